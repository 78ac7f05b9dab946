"""How much of each disk the box may have: what the ladder's share of IO means, disk by disk; pure.

How it works
------------
Nobody says what a disk can do, so it is learned from what it *does*. While online is calm, the rate of the whole disk
is a rate at which nobody is hurt:

    calm    the disk's rate, followed within seconds when it rises while online is calm, and forgotten within days
    online  what others than the box do of it, at once when that rises, and slowly when it falls
    top     calm * HEADROOM - online, at least the floor

| the ladder says        | each disk of which the box does a large part                                         |
|------------------------|--------------------------------------------------------------------------------------|
| a share s (0 to 1)     | is bounded to floor + s * (top - floor): the floor in an experiment                  |
| open, after a verdict  | stays bounded to `top` as long as the box presses against that                        |
| open, as it is innocent | is free at once                                                                      |

HEADROOM lets a bound that the box uses up grow by some 14 % a second, as long as online stays calm at that; where
online is not calm, nothing is learned, so that the bound stops growing before there is harm. A box that needs less than
half of its bound for `SLACK_S` is not bounded any more: then there is nothing to bound. So a disk is never opened at
once to a box that was found to harm online there, and an innocent one is never held for good.

The floor is what counts as no use of a disk at all. What reads do and what writes do has the same bound, each by
itself, in bytes and in operations.

A disk whose limit somebody else has set is left alone: see `cgroup.files.parse_io_max`.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.control.interference.signals import LEAST_BYTES_PER_S, LEAST_OPERATIONS_PER_S, SHORTEST_S, disk_shares
from criproxy.model.signals import DiskCounters, DiskIo, DiskRate

FLOOR: Final = DiskRate(LEAST_BYTES_PER_S, LEAST_OPERATIONS_PER_S)

LARGE_RATIO: Final = 0.2
"""A box that does less of a disk's IO is not suspected of what online waits for there."""

HEADROOM: Final = 1.5
"""Of a bound, the kernel lets a box use some three quarters: with 1.25, measured, a bound of 1.5 MB/s grew no more."""
RISE_HALF_S: Final = 2.0
FORGET_HALF_S: Final = 86400.0
ONLINE_HALF_S: Final = 10.0
SLACK_S: Final = 10.0
_PRESSES_RATIO: Final = 0.5
_STEP_RATIO: Final = 0.05
"""By less than this a bound is not changed: each change is a write."""

_LONGEST_S: Final = 5.0
"""Nobody knows what was in a longer gap."""

_NOTHING: Final = DiskRate(0.0, 0.0)


class DiskPast(Struct, frozen=True):
    """What is known of a disk. `bound` None: it is not bounded. `slack_s`: since when the box needs far less."""

    calm: DiskRate = _NOTHING
    online: DiskRate = _NOTHING
    bound: DiskRate | None = None
    slack_s: float = 0.0

    @property
    def top(self) -> DiskRate:
        """The most that the box may have of it."""
        return self.calm.of(self.online, lambda calm, online: calm * HEADROOM - online).of(FLOOR, max)


class DisksState(Struct, frozen=True):
    """By the disk's number (`8:0`)."""

    of: Mapping[str, DiskPast] = field(default_factory=dict)

    @property
    def bounds(self) -> dict[str, DiskRate]:
        """Those that are bounded, and to what."""
        return {number: past.bound for number, past in self.of.items() if past.bound is not None}


class DisksOrder(Struct, frozen=True):
    """What holds at one look. `share`: the ladder's, None: it does not hold IO. `calm`: online is, at its disks.

    `innocent`: the ladder has just found that the box is not the cause. `held`: the disks that the kernel holds the box
    back on by our own doing, as a process before this one may have left them; `others`: those whose limit is not ours.
    """

    share: float | None
    calm: bool
    innocent: bool = False
    held: Collection[str] = ()
    others: Collection[str] = ()


def suspected(last: DiskCounters, this: DiskCounters, others: Collection[str] = ()) -> frozenset[str]:
    """The disks of whose IO the box does a large part, and that it can be bounded on."""
    shares = disk_shares(last, this)
    return frozenset(number for number, share in shares.items() if share >= LARGE_RATIO and number not in others)


def step(last: DiskCounters | None, this: DiskCounters | None, state: DisksState, order: DisksOrder) -> DisksState:
    """The state after a look; None: nothing was read. Never raises."""
    seconds = 0.0 if last is None or this is None else this.read_s - last.read_s
    read = last is not None and this is not None and SHORTEST_S <= seconds <= _LONGEST_S
    suspects = suspected(last, this, order.others) if read and last is not None and this is not None else frozenset()
    found = {}
    for number in {*state.of, *order.held, *(this.box if this is not None else ())}:
        if this is not None and number not in this.node:  # it has gone: another may have its number one day
            continue
        past = state.of.get(number, DiskPast())
        rates = _rates(number, last, this, seconds) if read and last is not None and this is not None else None
        if rates is not None:
            past = _learned(past, *rates, seconds, calm=order.calm)
        box = None if rates is None else rates[1]
        begins = order.share is not None and number in {*suspects, *order.held}
        if number in order.others or (past.bound is None and not begins):
            bound = None
        else:
            past, bound = _bound(past, box, seconds, order)
        found[number] = replace(past, bound=bound, slack_s=0.0 if bound is None else past.slack_s)
    return DisksState({number: past for number, past in found.items() if past != DiskPast()})


def _bound(past: DiskPast, box: DiskRate | None, seconds: float, order: DisksOrder) -> tuple[DiskPast, DiskRate | None]:
    if order.share is not None:
        share, top = min(1.0, max(0.0, order.share)), past.top
        wanted = FLOOR.of(top, lambda floor, most: floor + share * (most - floor))
        return replace(past, slack_s=0.0), _in_steps(past.bound, wanted)
    if order.innocent or past.bound is None:
        return past, None
    if box is not None:
        presses = (
            box.bytes_per_s >= _PRESSES_RATIO * past.bound.bytes_per_s
            or box.operations_per_s >= _PRESSES_RATIO * past.bound.operations_per_s
        )
        past = replace(past, slack_s=0.0 if presses else past.slack_s + seconds)
    return past, None if past.slack_s >= SLACK_S else _in_steps(past.bound, past.top)


def _in_steps(before: DiskRate | None, wanted: DiskRate) -> DiskRate:
    if before is None or wanted == FLOOR:
        return wanted
    parts = before.of(wanted, lambda old, new: abs(new - old) / old if old else 1.0)
    return wanted if max(parts.bytes_per_s, parts.operations_per_s) > _STEP_RATIO else before


def _learned(past: DiskPast, node: DiskRate, box: DiskRate, seconds: float, *, calm: bool) -> DiskPast:
    rise = 1.0 - 0.5 ** (seconds / RISE_HALF_S)
    forget, fall = 0.5 ** (seconds / FORGET_HALF_S), 0.5 ** (seconds / ONLINE_HALF_S)
    known = past.calm
    if calm:
        known = known.of(node, lambda old, new: old + rise * (new - old) if new > old else old * forget)
    others = node.of(box, lambda all_of_it, its: max(0.0, all_of_it - its))
    return replace(past, calm=known, online=past.online.of(others, lambda old, new: max(new, old * fall)))


def _rates(number: str, last: DiskCounters, this: DiskCounters, seconds: float) -> tuple[DiskRate, DiskRate] | None:
    """The whole disk's and the box's; None: a counter is another disk's by now, or is not there."""
    node = _rate(last.node.get(number), this.node.get(number), seconds)
    if node is None:
        return None
    box = this.box.get(number)
    of_box = _NOTHING if box is None else _rate(last.box.get(number, DiskIo(0, 0)), box, seconds)
    return None if of_box is None else (node.of(of_box, max), of_box)


def _rate(last: DiskIo | None, this: DiskIo | None, seconds: float) -> DiskRate | None:
    if last is None or this is None:
        return None
    size_bytes, operations = this.size_bytes - last.size_bytes, this.operations - last.operations
    return None if size_bytes < 0 or operations < 0 else DiskRate(size_bytes / seconds, operations / seconds)
