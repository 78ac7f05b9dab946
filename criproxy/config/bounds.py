"""What a config may be at most, and how much is reported of one that is wrong. Pure.

A file is looked at before it is parsed: tomllib recurses into nested values, and takes time that grows with the square
of a key's parts (3 s for 16,000 of them).
"""

import re
from itertools import accumulate
from typing import Final

MAX_FILE_BYTES: Final = 128 * 1024
MAX_BYTES: Final = 2 * MAX_FILE_BYTES
"""Of all files together. The example, with every key and its explanation, has 8 KiB."""

MAX_DROPINS: Final = 100
MAX_DEPTH: Final = 8
"""Of tables and lists within each other, as well as of the parts of a dotted key. No setting needs more than three."""

MAX_ERRORS: Final = 20

_QUOTED_OR_COMMENT: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?'
    r"|'''(?:[^']|'(?!''))*+(?:''')?"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*",
    re.DOTALL,
)
"""One that never ends goes to the end of the line or the file, so that nothing is looked at twice."""

_BETWEEN_KEYS: Final = re.compile(r"[=,\[\]{}\n]")
_STEPS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


def too_deep(text: str) -> int | None:
    """The line (from 1) of a key with more parts than `MAX_DEPTH`, or where that many brackets are open; None: none."""
    shape = _QUOTED_OR_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(shape.split("\n"), 1):
        if line.count(".") >= MAX_DEPTH and any(part.count(".") >= MAX_DEPTH for part in _BETWEEN_KEYS.split(line)):
            return number
    depths = accumulate((_STEPS.get(character, 0) for character in shape), lambda depth, step: max(0, depth + step))
    at = next((index for index, depth in enumerate(depths) if depth > MAX_DEPTH), None)
    return None if at is None else shape.count("\n", 0, at) + 1
