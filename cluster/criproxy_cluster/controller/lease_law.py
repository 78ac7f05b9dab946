"""Who of the replicas leads. Pure.

How it works
------------
There is one Lease. Its holder writes it anew each few seconds; the others look, and take it when it has not changed for
as long as it says it holds. Each goes by its own clock alone, from the moment when it saw the last change, so that
clocks which differ do no harm. Every write names the version that was read: of two that try, one fails.

A holder that could not write for `RENEW_WITHIN_S` has to stop, before anybody else may begin:

    RETRY_S  <  RENEW_WITHIN_S + the longest request  <  DURATION_S

What the leader does is level-triggered and idempotent in any case: two of them at once write the same.
Source: client-go, tools/leaderelection (the same times).
"""

from enum import Enum
from typing import Final

from msgspec import Struct

DURATION_S: Final = 15.0
RENEW_WITHIN_S: Final = 10.0
RETRY_S: Final = 2.0


class Seen(Struct, frozen=True):
    """The Lease as it was read: its holder ("": nobody), its version, and since when it has been so (own clock)."""

    holder: str
    version: str
    duration_s: float
    since_s: float


class Turn(Enum):
    RENEW = "renew"
    """It is ours; or nobody's, or its holder is silent: write our name."""
    WAIT = "wait"


def looked(before: Seen | None, holder: str, version: str, duration_s: float, now_s: float) -> Seen:
    """What is known after reading the Lease."""
    if before is not None and before.version == version:
        return before
    return Seen(holder, version, duration_s, now_s)


def turn(seen: Seen, me: str, now_s: float) -> Turn:
    free = seen.holder in ("", me) or now_s - seen.since_s >= seen.duration_s
    return Turn.RENEW if free else Turn.WAIT


def still_leads(written_s: float | None, now_s: float) -> bool:
    """Whether one that last wrote its name then (None: never) may act."""
    return written_s is not None and now_s - written_s < RENEW_WITHIN_S
