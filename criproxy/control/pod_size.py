"""Whether a pod uses what it asked for: the law by which one lies about its size. Pure.

    too little asked   for an hour on end, each mean of 5 minutes is above 3 x what it asked for
    too much asked     for an hour on end, each is below a third of it, and the pod has not waited for CPU meanwhile

A burst within 5 minutes, or a pause, is no lie; nor is a pod that gets less than it wants. A pod that asks for nothing
can't lie.
"""

import math
from enum import StrEnum
from typing import Final

from msgspec import Struct

FACTOR: Final = 3.0
SPAN_S: Final = 3600.0
SLOT_S: Final = 300.0
WAITING_RATIO: Final = 0.1
"""A pod that waits for more of the time would use more if it could."""


class Size(StrEnum):
    """What a pod asks for, next to what it uses. The values are words for people."""

    FITS = "it asks for about what it uses"
    TOO_SMALL = "it uses more than 3 x what it asked for"
    TOO_LARGE = "it uses less than a third of what it asked for"


class SizeState(Struct, frozen=True):
    """What is known of one resource of a pod. `size` has held since `since_s`, by the means of whole slots.

    `used` and `waited` are sums over the slot, which began at `slot_s` and has lasted `seconds`.
    """

    asked: float = 0.0
    slot_s: float = 0.0
    seconds: float = 0.0
    used: float = 0.0
    waited: float = 0.0
    size: Size = Size.FITS
    since_s: float = 0.0
    mean: float = 0.0

    def verdict(self) -> Size:
        """What has held for an hour; otherwise it fits, as far as is known."""
        return self.size if self.slot_s - self.since_s >= SPAN_S else Size.FITS


class Seen(Struct, frozen=True):
    """A pod has used `use` in the last `seconds` before `t_s`, a rate or an amount in the unit of `asked`; None: it
    asks for nothing. `waiting_ratio`: for which share of the time it has waited for CPU; None: not known.
    """

    t_s: float
    seconds: float
    use: float
    asked: float | None
    waiting_ratio: float | None = None


def step(state: SizeState | None, seen: Seen) -> SizeState | None:
    """None: nothing is known, as it asks for nothing. All is forgotten when it asks for something else."""
    seconds, use, asked = seen.seconds, seen.use, seen.asked
    if not asked or not (math.isfinite(asked) and math.isfinite(use)):
        return None
    if state is None or state.asked != asked:
        began_s = seen.t_s - seconds
        state = SizeState(asked=asked, slot_s=began_s, since_s=began_s)
    total_s = state.seconds + seconds
    used = state.used + use * seconds
    waited = state.waited + (seen.waiting_ratio or 0.0) * seconds
    if total_s < SLOT_S:
        return SizeState(asked, state.slot_s, total_s, used, waited, state.size, state.since_s, state.mean)
    mean, size = used / total_s, _size(used / total_s / asked, waited / total_s)
    since_s = state.since_s if size is state.size else state.slot_s
    return SizeState(asked=asked, slot_s=seen.t_s, size=size, since_s=since_s, mean=mean)


def _size(ratio: float, waiting_ratio: float) -> Size:
    if ratio > FACTOR:
        return Size.TOO_SMALL
    if ratio < 1.0 / FACTOR and waiting_ratio <= WAITING_RATIO:
        return Size.TOO_LARGE
    return Size.FITS
