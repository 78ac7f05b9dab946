"""Amounts as Kubernetes writes them: `1500m`, `2`, `100Mi`, `1e3`."""

import math
import re
from collections.abc import Mapping
from typing import Final

_SUFFIXES: Final[Mapping[str, float]] = {
    "": 1.0,
    **{name: 1000.0**-power for power, name in enumerate("mun", 1)},
    **{name: 1000.0**power for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": 1024.0**power for power, name in enumerate("KMGTPE", 1)},
}
_QUANTITY: Final = re.compile(r"\+?(\d+(?:\.\d*)?|\.\d+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII)

MOST_CHARACTERS: Final = 64
"""Of a quantity. Kubernetes keeps some 19 digits of one: a longer text is a mistake, or hostile."""


def parse_quantity(text: str) -> float:
    """Its value, which is not negative; inf is more than any node has. Raises ValueError.

    Source: apimachinery, resource.Quantity.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"{text[:40]!r} and so on has {len(text)} characters, and a quantity at most {MOST_CHARACTERS}"
        )
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no quantity that is not negative")
    number, suffix, exponent = match.groups()
    try:
        value = float(number) * (10.0 ** int(exponent) if exponent else _SUFFIXES[suffix or ""])
    except OverflowError:
        return math.inf
    return value if value < 2.0**63 else math.inf
