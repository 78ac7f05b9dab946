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
    starved  below half (or the configured speed, if that is less) over the last five minutes

A pod that wants less than a tenth of what it asked for does not count: its few milliseconds say nothing of the node.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from criproxy.control.publication import RECENT_S, RecentMean

WANTS_RATIO: Final = 0.1
STARVED_RATIO: Final = 0.5
SLOW_RATIOS: Final = (0.9, 0.5)
"""Time below these is counted."""


class PodCpuTimes(Struct, frozen=True):
    """Counters of one pod: CPU seconds that it used, and for how long somebody waited.

    `waited_s`: by thread, of those that were looked at; 0: of some thread or other (PSI), which tells of all of them.
    """

    used_s: float
    waited_s: Mapping[int, float]


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


def pod_speed(asked: float, before: PodCpuTimes, now: PodCpuTimes, seconds: float) -> PodSpeed | None:
    """None: nothing is known of it, as it asked for nothing or no counter goes on."""
    known = before.waited_s.keys() & now.waited_s.keys()
    if not asked > 0.0 or not seconds > 0.0 or not known or now.used_s < before.used_s:
        return None
    got = min(asked, (now.used_s - before.used_s) / seconds)
    waiting = max(now.waited_s[one] - before.waited_s[one] for one in known) / seconds
    waiting = min(1.0, max(0.0, waiting))
    return PodSpeed(asked, got, min(asked, got + waiting * max(1.0, waiting * (asked - got))))


def below(speeds: Mapping[str, PodSpeed], ratio: float) -> float:
    """Which part of the pods that count is slower; 0 where none counts."""
    counted = [one for one in speeds.values() if one.counts]
    return sum(one.ratio < ratio for one in counted) / len(counted) if counted else 0.0


class _FiveMinutes(Struct, eq=False):
    """What one pod got and wanted in the last five minutes."""

    since_s: float
    got: RecentMean = field(default_factory=RecentMean)
    wanted: RecentMean = field(default_factory=RecentMean)


class Starvation(Struct, eq=False):
    """Who starves, by the speeds of look after look."""

    _windows: dict[str, _FiveMinutes] = {}
    _starved: dict[str, float] = {}

    def look(self, t_s: float, speeds: Mapping[str, PodSpeed], ratio: float) -> None:
        """`ratio`: the speed that pods are to keep. A pod that is not in `speeds` begins anew."""
        self._windows = {pod: self._windows.get(pod) or _FiveMinutes(t_s) for pod in speeds}
        self._starved = {}
        for pod, one in speeds.items():
            window = self._windows[pod]
            window.got.observe(t_s, one.got)
            window.wanted.observe(t_s, one.wanted)
            got, wanted = window.got.value() or 0.0, window.wanted.value() or 0.0
            if t_s - window.since_s < RECENT_S or wanted < WANTS_RATIO * one.asked:
                continue
            if got < min(STARVED_RATIO, ratio) * wanted:
                self._starved[pod] = got / wanted

    def forget(self) -> None:
        """Begin anew, as another pod has gone or all is different."""
        self._windows, self._starved = {}, {}

    @property
    def starved(self) -> Mapping[str, float]:
        """The pods that starve, and the share that each got of what it wanted in the last five minutes."""
        return self._starved


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

    def moved(self, slow_ratio: float, hours: float) -> "Feedback":
        position = self.position + STEPS_PER_HOUR * hours * (MOST_SLOW_RATIO - slow_ratio)
        return Feedback(self.speed_ratio, min(max(position, 0.0), len(STEPS) - 1.0))


def restored(saved: Feedback | None, speed_ratio: float) -> Feedback:
    """Where a saved one stood, if it was measured by the same speed and makes sense; else where it begins."""
    if saved is None or not saved.is_sane or not math.isclose(saved.speed_ratio, speed_ratio):
        return Feedback(speed_ratio)
    return saved
