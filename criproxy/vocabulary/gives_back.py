"""The annotation by which the ledger says what YARN may have to give back of a node's memory, and in what time. Pure.

colocation.criproxy.io/gives-back  {"serial":7,"bytes":3221225472,"wait_s":33.0}

No time of a clock is in it: whoever reads it goes by its own, from when it first saw the serial, for `VALID_S`. So a
ledger that is gone is believed no longer, whatever the two clocks say.
"""

from typing import Final

import msgspec
from msgspec import Struct

VALID_S: Final = 600.0
RENEW_S: Final = 240.0
"""By whoever writes it: two may be lost."""

TOLD_S: Final = 30.0
"""From when a node has published less to when YARN is told, at most: the ledger hears of it, and has other nodes."""

MOST_WAIT_S: Final = 333.0
"""A longer wait counts as this."""

_MOST_BYTES: Final = 1 << 62
MOST_CHARACTERS: Final = 1024


class Note(Struct, frozen=True):
    """`serial` is another one in each note; nothing else is told by it.

    `bytes`: what YARN has; while it gives back, what is left of that; 0: it has given back what it was asked for, or
    has not in time. `wait_s`: how long that may take, from when the node has published less.
    """

    serial: int
    bytes: int
    wait_s: float


def encoded(note: Note) -> str:
    return msgspec.json.encode(note).decode()


def decoded(text: str) -> Note:
    """Raises ValueError."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    try:
        found = msgspec.json.decode(text, type=Note)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"it is no note: {str(error)[:200]}") from error
    if not 0 <= found.bytes <= _MOST_BYTES or not found.wait_s > 0.0:
        raise ValueError("bytes is 0 or more, and wait_s more than 0")
    return found
