"""Who of the replicas leads, and until when. Pure.

How it works
------------
There is one Lease. Its holder writes it anew each few seconds; the others look, and take it when it has not changed for
as long as it says it holds. Each goes by its own clock alone, one that goes on while the machine is suspended, so that
clocks which differ do no harm. Every write names the version that was read: of two that try, one fails.

    holder     sends a write ──────────── RENEW_WITHIN_S ────────────▶ may write no more
    the Lease       └─▶ changes
    another             └─▶ its look is answered ───────────── DURATION_S ─────────────▶ may take it

The holder counts from before its write was sent, and the others from after the answer that showed it. So whatever takes
its time in between, a request, an answer, a process that is stopped or a machine that is suspended, makes the holder
stop earlier and the others begin later. Between the two lie at least

    DURATION_S - RENEW_WITHIN_S  = 5 s

for the requests that the holder sent last, and for clocks that do not go equally fast. Whoever leads asks `leads` right
before each write. A write that was not answered may be done later: the Lease is then read before it is written again.

Of a holder each request may take `REQUEST_S`: it writes anew after `RETRY_S`, so one that is answered in time comes
before the last one is over:

    REQUEST_S + RETRY_S + REQUEST_S  <=  RENEW_WITHIN_S

Source: client-go, tools/leaderelection (the same times).
"""

from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

DURATION_S: Final = 15.0
RENEW_WITHIN_S: Final = 10.0
RETRY_S: Final = 2.0
REQUEST_S: Final = 4.0

_NEVER_S: Final = 0.0


class Lease(Struct, frozen=True):
    """As it was read or written: its holder ("": nobody), its version, and for how long it says that it holds."""

    holder: str
    version: str
    duration_s: float = DURATION_S


class Known(Struct, frozen=True):
    """What a replica knows. Times are of its own clock.

    `since_s`: the Lease was seen to be so then, and may have been so before. `current`: as far as is known it still is.
    `until_s`: before then this replica may act as the leader.
    """

    lease: Lease | None = None
    since_s: float = 0.0
    current: bool = False
    until_s: float = _NEVER_S


class Ask(Enum):
    """What comes next in a turn."""

    READ = "read"
    WRITE = "write"
    """It is ours; or nobody's, or its holder is silent: write our name."""
    WAIT = "wait"


def begun(known: Known, me: str) -> Known:
    """A turn begins: what another one has may have changed."""
    return replace(known, current=known.current and is_ours(known, me))


def asks(known: Known, me: str, now_s: float) -> Ask:
    if known.lease is None or not known.current:
        return Ask.READ
    silent = now_s - known.since_s >= known.lease.duration_s
    return Ask.WRITE if silent or known.lease.holder in ("", me) else Ask.WAIT


def read(known: Known, lease: Lease, me: str, now_s: float) -> Known:
    """The Lease was read; `now_s` is after the answer."""
    same = known.lease is not None and known.lease.version == lease.version
    until_s = known.until_s if lease.holder == me else _NEVER_S
    return Known(lease, known.since_s if same else now_s, current=True, until_s=until_s)


def wrote(version: str, me: str, sent_s: float, now_s: float) -> Known:
    """Our name was written, and has this version; `sent_s` is before the request."""
    return Known(Lease(me, version, DURATION_S), now_s, current=True, until_s=sent_s + RENEW_WITHIN_S)


def not_written(known: Known) -> Known:
    """A write was refused, or not answered: it may have been done, or be done later."""
    return replace(known, current=False)


def given_up(known: Known) -> Known:
    return replace(known, until_s=_NEVER_S)


def is_ours(known: Known, me: str) -> bool:
    """Whether the Lease has our name as far as is known, whether we may act or not."""
    return known.lease is not None and known.lease.holder == me


def leads(known: Known, now_s: float) -> bool:
    """Whether it may act now."""
    return now_s < known.until_s
