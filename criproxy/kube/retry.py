"""Whether a request is worth another try, and when. Pure.

    pause = min(FIRST_S x 2^(failures - 1), MOST_S) x a random number from 0.5 to 1

When the server names a pause (Retry-After), it is kept, up to `MOST_NAMED_S`, and up to a quarter longer. After hours
without an API server, nodes thus come back within `MOST_S` of its return, each at another moment.

Source: API conventions, "HTTP Status codes"; RFC 9110, 10.2.3 (Retry-After).
"""

from enum import Enum
from typing import Final

FIRST_S: Final = 1.0
MOST_S: Final = 120.0
MOST_NAMED_S: Final = 600.0
_LONGER_RATIO: Final = 0.25
_MOST_DOUBLINGS: Final = 30


class Meaning(Enum):
    """What an answer's status means for the one who asked."""

    DONE = "done"
    AGAIN = "again"
    """It failed for now: the server is starting, busy, or another write came between."""
    STALE = "stale"
    """What was known of the object is too old: begin with a list of the present."""
    DENIED = "denied"
    """The credential is not valid, or not any more: it may have been rotated."""
    REFUSED = "refused"
    """It would be refused again, so long as it stays as it is."""


_KNOWN: Final = {
    401: Meaning.DENIED,
    408: Meaning.AGAIN,
    409: Meaning.AGAIN,
    410: Meaning.STALE,
    429: Meaning.AGAIN,
    501: Meaning.REFUSED,
    505: Meaning.REFUSED,
}


def meaning(status: int) -> Meaning:
    """What an HTTP status means. A redirection is refused: the API server sends none."""
    if status in _KNOWN:
        return _KNOWN[status]
    if 200 <= status < 300:
        return Meaning.DONE
    return Meaning.AGAIN if status >= 500 else Meaning.REFUSED


def pause_s(failures: int, jitter: float, named_s: float | None = None) -> float:
    """Seconds to wait after so many failures in a row, 1 or more. `jitter` is a random number from 0 to 1.

    `named_s` is what the server asked for; None: it did not.
    """
    grown_s = min(FIRST_S * 2.0 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS), MOST_S)
    own_s = grown_s * (0.5 + 0.5 * jitter)
    if named_s is None:
        return own_s
    return max(own_s, min(max(named_s, 0.0), MOST_NAMED_S) * (1.0 + _LONGER_RATIO * jitter))


def named_pause_s(header: str | None) -> float | None:
    """The seconds of a Retry-After header. None: there is none, or it is a date, which API servers do not send."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
