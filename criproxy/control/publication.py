"""How much of a resource a node publishes for offline pods, and when a change is worth a report. Pure.

A pod that is placed now must still fit later, so what is published looks ahead further than the box's own limit does:

    forecast    capacity x watermark - reserve - hour
                of memory, no more than capacity - what kubelet must find free - hour
    open box    the least of
                capacity x watermark - reserve - recent      no more than is free now
                (capacity - reserve - hour) / speed          no more than leaves pods `speed` of what they asked for,
                                                             if the forecast comes true
    always      what the box may run on x watermark: not on CPUs that a pod has alone, nor on isolated ones
                within the box's floor and ceiling; the floor while `hour` is not known
                nothing of the box's limit that waits to be given back

`hour` is what online should not exceed within the hour, and `recent` its mean use of the last five minutes.

Memory cannot be taken back at once, nor CPU from a box without cpu.idle: there the forecast's law holds. Where the box
is open (`criproxy.control.evidence`), online takes its CPU back within a time slice, and what a wrong forecast costs is
speed. So CPU has the open box's law there, with a watermark of its own.

Reports are damped: a rise waits for the regular report, and only a fall by more than `FALL_RATIO` goes out at once.

By replay of 17 traces with 10 min to 4 h long jobs, pods spent 0.23 % of their time below half of what they asked for,
and 0.83 % on the worst trace, at a speed of 0.5 and a watermark of 0.95.
"""

import math
from collections import deque
from typing import Final

from msgspec import Struct, field

from criproxy.control.resources import Resource
from criproxy.model import UNLIMITED, Bounds, ResourceDecision, ResourceSample

RECENT_S: Final = 300.0
REPORT_S: Final = 300.0
FALL_RATIO: Final = 0.1

_SHOWN: Final = 0.005
"""Two factors that differ by less look alike."""


class OpenBoxSettings(Struct, frozen=True):
    """`watermark_ratio`: the share of the node's CPUs that online and what is published may fill now.

    `speed_ratio`: pods keep at least this share of what they asked for, should the forecast come true.
    """

    watermark_ratio: float = 0.95
    speed_ratio: float = 0.5


class RecentMean(Struct, eq=False):
    """The mean of a rate over the last `RECENT_S`, or over what there is of it."""

    _samples: deque[tuple[float, float, float]] = field(default_factory=deque)
    """When each ended, how long it is, and its mean rate."""
    _length_s: float = 0.0
    _total: float = 0.0

    def observe(self, t_s: float, rate: float) -> None:
        """`rate` is the mean since the last call; one that is not a sane number is left out. Time must not go back, and
        it is CLOCK_MONOTONIC where a machine may be suspended: rates are of what was measured.
        """
        if not 0.0 <= rate < math.inf:
            return
        samples = self._samples
        length_s = min(t_s - samples[-1][0], RECENT_S) if samples else 0.0
        samples.append((t_s, length_s, rate))
        self._length_s += length_s
        self._total += length_s * rate
        while samples[0][0] <= t_s - RECENT_S:
            _, length_s, rate = samples.popleft()
            self._length_s -= length_s
            self._total -= length_s * rate

    def value(self) -> float | None:
        """None: nothing was observed."""
        if not self._samples:
            return None
        return max(0.0, self._total / self._length_s) if self._length_s > 0.0 else self._samples[-1][2]


# --- how much, in the resource's unit ---------------------------------------------------------------------------------


def by_forecast(
    capacity: float, hour: float, *, watermark_ratio: float, reserve: float = 0.0, kept: float = 0.0
) -> float:
    """The forecast's law. `kept` must stay free of the capacity, lest kubelet evict pods; 0: nothing."""
    amount = capacity * watermark_ratio - reserve - hour
    return min(amount, capacity - kept - hour) if kept else amount


def by_open_box(
    capacity: float, recent: float, hour: float, *, watermark_ratio: float, factor: float, reserve: float = 0.0
) -> float:
    """The open box's law. `factor` is 1 / speed."""
    return min(capacity * watermark_ratio - reserve - recent, factor * (capacity - reserve - hour))


def within(amount: float, capacity: float, floor: float, ceiling: float | None = None) -> float:
    """The amount within the box's floor and ceiling; no floor is above the capacity, and none below the floor."""
    return max(amount if ceiling is None else min(amount, ceiling), min(floor, capacity))


def falls(amount: float, reported: float) -> bool:
    """Whether the amount is so far below what was reported that it can't wait for the regular report."""
    return reported - amount > FALL_RATIO * reported


# --- how much, and why ------------------------------------------------------------------------------------------------


class Lendable(Struct, frozen=True):
    """An amount of a resource, in its unit, and why it is so."""

    amount: float
    why: str


def lendable(
    row: Resource,
    sample: ResourceSample,
    decided: ResourceDecision,
    settings: OpenBoxSettings,
    *,
    factor: float | None = None,
) -> Lendable:
    """One resource. Never raises: what is not a sane number counts as not known.

    `factor` stands in place of 1 / speed, as what pods got has moved it (`pod_speed.Feedback`); None: it has not.
    """
    bounds, hour, recent = decided.bounds, decided.prediction.hour, decided.prediction.recent
    capacity = sample.capacity
    if not 0.0 < capacity < math.inf:
        return Lendable(0.0, f"the capacity is not known ({capacity})")
    if bounds.watermark_ratio is None:
        limit = capacity - bounds.reserve if decided.limit is UNLIMITED else min(decided.limit, capacity)
        limit = limit if sample.for_box is None else min(limit, sample.for_box)
        return Lendable(max(limit, 0.0), f"the box's limit, which is not predicted: {decided.reason}")
    if hour is None or not 0.0 <= hour < math.inf:
        floor = within(0.0, capacity, bounds.floor)
        return Lendable(floor, "the floor, as online's use within the hour can't be predicted")
    online = _Online(row, capacity, hour, bounds)
    if decided.open and recent is not None and 0.0 <= recent < math.inf:
        watermark_ratio = settings.watermark_ratio
        amount, why = _open_box(online, recent, settings, factor)
    else:
        watermark_ratio = bounds.watermark_ratio
        amount, why = _forecast(online, watermark_ratio)
    if sample.for_box is not None and amount > sample.for_box * watermark_ratio:
        amount = sample.for_box * watermark_ratio
        why = f"{row.words(sample.for_box)} that the box may run on x {watermark_ratio:.2f}, below {why}"
    if decided.waits and decided.limit is not UNLIMITED and amount > decided.limit - decided.waits:
        amount, why = decided.limit - decided.waits, f"the box's limit, without what is given back: {decided.reason}"
    held = within(amount, capacity, bounds.floor, bounds.ceiling)
    if held > amount:
        return Lendable(held, f"the floor, above {why}")
    return Lendable(held, f"the ceiling, below {why}" if held < amount else why)


class _Online(Struct, frozen=True):
    """What is forecast of online's use of one resource."""

    row: Resource
    capacity: float
    hour: float
    bounds: Bounds

    @property
    def reserved(self) -> str:
        return f" - {self.row.words(self.bounds.reserve)} reserved" if self.bounds.reserve else ""


def _forecast(online: _Online, watermark_ratio: float) -> tuple[float, str]:
    words, capacity, hour, bounds = online.row.words, online.capacity, online.hour, online.bounds
    unkept = by_forecast(capacity, hour, watermark_ratio=watermark_ratio, reserve=bounds.reserve)
    amount = by_forecast(capacity, hour, watermark_ratio=watermark_ratio, reserve=bounds.reserve, kept=bounds.kept)
    if amount < unkept:
        kept = f"{words(bounds.kept)} kept free, lest kubelet evict pods"
        return amount, f"{words(capacity)} - {kept} - {words(hour)} of online's"
    why = f"{words(capacity)} x {watermark_ratio:.2f} - {words(hour)} that online may use within the hour"
    return amount, why + online.reserved


def _open_box(online: _Online, recent: float, settings: OpenBoxSettings, measured: float | None) -> tuple[float, str]:
    words, capacity, hour, reserve = online.row.words, online.capacity, online.hour, online.bounds.reserve
    watermark, by_speed = settings.watermark_ratio, 1.0 / settings.speed_ratio
    factor = by_speed if measured is None else measured
    amount = by_open_box(capacity, recent, hour, watermark_ratio=watermark, factor=factor, reserve=reserve)
    if amount < factor * (capacity - reserve - hour):
        why = f"what is free now: {words(capacity)} x {watermark:.2f} - {words(recent)} that online used"
        return amount, f"{why} in the last 5 minutes{online.reserved}"
    why = f"{factor:.2f} x ({words(capacity)} - {words(hour)} that online may use within the hour{online.reserved})"
    why += f", so that pods keep {settings.speed_ratio:.0%} of what they asked for"
    return amount, f"{why}, {by_speed:.2f} x moved by what they got" if abs(factor - by_speed) >= _SHOWN else why
