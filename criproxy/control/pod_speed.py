"""How much of the CPU that offline pods want they get, and which of them starve. Pure.

What a pod wants can't be read, as who waits does not say how long it would run. It is estimated from three numbers of
the time between two looks, in cores and as a ratio:

    got      what it used, at most what it asked for
    waiting  for which part of the time one of its threads waited for a CPU
    wanted   got + waiting x max(1, waiting x (asked - got)), at most what it asked for

One thread that waits lacks one core for as long as it waits, which is exact for a pod of one thread. A pod that waits
nearly all of the time has more threads that wait, and is taken to want all that it asked for. One that merely sleeps
does not wait, and wants no more than it got.

    speed    got / wanted
    starved  below half (or the speed that was promised, if that is less) over the last five minutes

A pod that wants less than a tenth of what it asked for does not count: its few milliseconds say nothing of the node.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from criproxy.control.publication import RECENT_S, RecentMean
from criproxy.model.signals import PodCpuTimes

WANTS_RATIO: Final = 0.1
STARVED_RATIO: Final = 0.5
FULL_RATIO: Final = 0.9
"""Who gets as much has its full speed, as far as can be measured."""

SLOW_RATIOS: Final = (FULL_RATIO, STARVED_RATIO)
"""Time below these is counted."""

RELIEF_S: Final = 60.0
"""How long the others are measured after a pod was to go, before the next one is."""


class PodSpeed(Struct, frozen=True):
    """Cores that one pod asked for, used at most of these, and wanted, between two looks."""

    asked: float
    got: float
    wanted: float

    @property
    def counts(self) -> bool:
        return self.wanted >= WANTS_RATIO * self.asked

    @property
    def ratio(self) -> float:
        """1 where it lacks nothing."""
        return self.got / self.wanted if self.got < self.wanted else 1.0


def waiting_ratio(before: PodCpuTimes, now: PodCpuTimes, seconds: float) -> float | None:
    """For which part of the time a thread of it waited; of a few, the one that waited most. None: not known."""
    known = before.waited_s.keys() & now.waited_s.keys()
    if not known or not seconds > 0.0:
        return None
    waiting = max(now.waited_s[one] - before.waited_s[one] for one in known) / seconds
    return min(1.0, max(0.0, waiting))


def pod_speed(asked: float, before: PodCpuTimes, now: PodCpuTimes, seconds: float) -> PodSpeed | None:
    """None: nothing is known of it, as it asked for nothing or no counter goes on."""
    waiting = waiting_ratio(before, now, seconds)
    if not asked > 0.0 or waiting is None or now.used_s < before.used_s:
        return None
    got = min(asked, (now.used_s - before.used_s) / seconds)
    return PodSpeed(asked, got, min(asked, got + waiting * max(1.0, waiting * (asked - got))))


def below(speeds: Mapping[str, PodSpeed], ratio: float) -> float:
    """Which part of the pods that count is slower; 0 where none counts."""
    counted = [one for one in speeds.values() if one.counts]
    return sum(one.ratio < ratio for one in counted) / len(counted) if counted else 0.0


class _Lately(Struct, eq=False):
    """What one pod, or all together, got and wanted in the last five minutes, or since it began."""

    since_s: float
    got: RecentMean = field(default_factory=RecentMean)
    wanted: RecentMean = field(default_factory=RecentMean)

    def observe(self, t_s: float, got: float, wanted: float) -> None:
        self.got.observe(t_s, got)
        self.wanted.observe(t_s, wanted)

    @property
    def ratio(self) -> float:
        got, wanted = self.got.value() or 0.0, self.wanted.value() or 0.0
        return got / wanted if got < wanted else 1.0


class Starvation(Struct, eq=False):
    """Who starves, and whether a pod is to go for that, by the speeds of look after look.

    One goes once a pod starves and all together lack CPU: a pod alone may lack it for reasons of its own, and nobody's
    end would give it more. After that, one after the other goes until the rest have their full speed, each once it is
    known for `RELIEF_S` how they fare without the last.
    """

    starved: Mapping[str, float] = {}
    """The pods that starve, and the share that each got of what it wanted in the last five minutes."""
    one_must_go: bool = False
    _windows: dict[str, _Lately] = {}
    _all: _Lately | None = None
    _relieving: bool = False

    def look(self, t_s: float, speeds: Mapping[str, PodSpeed], ratio: float) -> None:
        """`ratio`: the speed that pods are to keep. A pod that is not in `speeds` begins anew."""
        self._windows = {pod: self._windows.get(pod) or _Lately(t_s) for pod in speeds}
        together = self._all = self._all or _Lately(t_s)
        counted = [one for one in speeds.values() if one.counts]
        together.observe(t_s, sum(one.got for one in counted), sum(one.wanted for one in counted))
        found = {}
        for pod, one in speeds.items():
            window = self._windows[pod]
            window.observe(t_s, one.got, one.wanted)
            wants = (window.wanted.value() or 0.0) >= WANTS_RATIO * one.asked
            if wants and t_s - window.since_s >= RECENT_S and window.ratio < min(STARVED_RATIO, ratio):
                found[pod] = window.ratio
        self.starved = found
        lacking = together.ratio < FULL_RATIO
        if self._relieving and t_s - together.since_s >= RELIEF_S:
            self._relieving = self.one_must_go = lacking
        elif not self._relieving:
            self.one_must_go = lacking and bool(found)

    def one_went(self) -> None:
        """How the others fare is measured anew."""
        self.forget()
        self._relieving = True

    def forget(self) -> None:
        """Begin anew, as all is different."""
        self.starved, self.one_must_go, self._windows, self._all, self._relieving = {}, False, {}, None, False


# --- what is measured moves what is published -------------------------------------------------------------------------

MOST_SLOW_RATIO: Final = 0.01
"""The part of pods' time below their speed that is aimed at."""

STEPS_PER_HOUR: Final = 10.0
STEPS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
"""As parts of 1 / speed: where it begins is the fifth."""

START: Final = 4.0


class Feedback(Struct, frozen=True):
    """Integral control of how much is published of what the hour's forecast leaves.

        position += STEPS_PER_HOUR x hours x (MOST_SLOW_RATIO - part of the pods that were below their speed)
        factor    = the step at this position, with straight lines between steps, / speed

    So an hour of starving takes it from where it begins to nothing, and a day of calm gives back 2.4 steps. Nothing
    moves while no pod wants CPU, as nothing is measured then. `speed_ratio`: what it was measured by.
    """

    speed_ratio: float
    position: float = START

    @property
    def is_sane(self) -> bool:
        return 0.0 <= self.position <= len(STEPS) - 1 and 0.0 < self.speed_ratio <= 1.0

    @property
    def factor(self) -> float:
        low = min(int(self.position), len(STEPS) - 2)
        part = self.position - low
        return ((1.0 - part) * STEPS[low] + part * STEPS[low + 1]) / self.speed_ratio

    def adjusted(self, slow_ratio: float, hours: float) -> "Feedback":
        position = self.position + STEPS_PER_HOUR * hours * (MOST_SLOW_RATIO - slow_ratio)
        return Feedback(self.speed_ratio, min(max(position, 0.0), len(STEPS) - 1.0))


def restored(saved: Feedback | None, speed_ratio: float) -> Feedback:
    """Where a saved one stood, if it was measured by the same speed and makes sense; else where it begins."""
    if saved is None or not saved.is_sane or not math.isclose(saved.speed_ratio, speed_ratio):
        return Feedback(speed_ratio)
    return saved
