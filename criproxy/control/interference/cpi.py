"""Cycles per instruction of online pods, against what is usual for each workload: the signal `cpi`.

A thread that shares a cache, memory bandwidth or a core's units with another takes more cycles for the same
instructions, while no pressure shows it. How many it takes is the program's own, so it is learned per workload:

    cpi        cycles / instructions of a pod in a window of `WINDOW_S`; none if it ran less than `LEAST_CYCLES`
    usual      mean and variance of a workload's windows, decayed by half in `HALF_LIFE_WINDOWS`, known after `LEAST`
    deviation  (cpi - mean) / max(sqrt(variance), mean * LEAST_RATIO)

A window counts as `CLIP` deviations above the mean at most, so that one bad hour does not become usual, and one that is
usual in the end does.

Of all pods, one value goes to the detector:

    at rest        the highest deviation of a pod that has been so high for `HELD` windows in a row
    an experiment  that of the accused pod, from when what the box has lost takes effect
    convicted      that of the accused pod, in the last window

Source: CPI² (EuroSys 2013): 10 s each, outliers above 2 sigma, 3 in a row within 5 minutes. Pure.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from criproxy.control.interference.signals import SignalValue
from criproxy.model.signals import Missing, Work, WorkReading

CPI: Final = "cpi"

WINDOW_S: Final = 10.0
HELD: Final = 3
LEAST_CYCLES: Final = 100e6
LEAST: Final = 30
HALF_LIFE_WINDOWS: Final = 8640
LEAST_RATIO: Final = 0.05
CLIP: Final = 3.0
MOST_WORKLOADS: Final = 256
"""Those that were seen last are remembered."""

_SHORTEST_S: Final = 1.0
_KEPT_S: Final = HELD * WINDOW_S + 5.0
_DECAY: Final = 1.0 - math.exp2(-1.0 / HALF_LIFE_WINDOWS)


class Usual(Struct, frozen=True):
    """What a workload takes usually, of so many windows."""

    windows: int = 0
    mean: float = 0.0
    variance: float = 0.0

    @property
    def sigma(self) -> float:
        return max(math.sqrt(self.variance), self.mean * LEAST_RATIO)

    def deviation(self, cpi: float) -> float:
        return (cpi - self.mean) / self.sigma

    def learned(self, cpi: float) -> "Usual":
        """Source: T. Finch, Incremental calculation of weighted mean and variance, section 9."""
        if self.windows >= LEAST:
            cpi = min(cpi, self.mean + CLIP * self.sigma)
        share = max(_DECAY, 1.0 / (self.windows + 1))
        step = cpi - self.mean
        variance = (1.0 - share) * (self.variance + share * step * step)
        return Usual(self.windows + 1, self.mean + share * step, variance)


class _PodCounts(Struct):
    """What was counted of a pod, by the time of the reading, and when a window of it was learned last."""

    workload: str
    counted: dict[float, Work]
    learned_s: float


class CpiMeter:
    """What is known of all online pods that are counted."""

    def __init__(self) -> None:
        self._usual: dict[str, Usual] = {}
        self._pods: dict[str, _PodCounts] = {}
        self.accused = ""
        """By uid; "": none is, yet."""
        self._now_s = -math.inf
        self._absent = ""

    def take(self, reading: WorkReading | Missing, workloads: Mapping[str, str]) -> None:
        """`workloads`: what each pod runs, by its uid; a pod that is none of them is not counted."""
        if isinstance(reading, Missing):
            self._absent, self._pods = reading.why, {}
            return
        self._absent, self._now_s = "", reading.read_s
        known, self._pods = self._pods, {}
        for uid, work in reading.of.items():
            if uid in workloads:
                self._pods[uid] = self._counted(known.get(uid), workloads[uid], work)

    def _counted(self, pod: _PodCounts | None, workload: str, work: Work) -> _PodCounts:
        now_s = self._now_s
        last = None if pod is None or not pod.counted else pod.counted[max(pod.counted)]
        if pod is None or pod.workload != workload or last is None or work.cycles < last.cycles:
            return _PodCounts(workload, {now_s: work}, now_s)
        pod.counted = {at_s: was for at_s, was in pod.counted.items() if at_s >= now_s - _KEPT_S} | {now_s: work}
        if now_s - pod.learned_s >= WINDOW_S:
            if (cpi := _cpi(pod, pod.learned_s, now_s)) is not None:
                self._learn(workload, cpi)
            pod.learned_s = now_s
        return pod

    def _learn(self, workload: str, cpi: float) -> None:
        usual = self._usual.pop(workload, Usual())
        self._usual[workload] = usual.learned(cpi)
        while len(self._usual) > MOST_WORKLOADS:
            del self._usual[next(iter(self._usual))]

    # --- the signal --------------------------------------------------------------------------------------------------

    def at_rest(self) -> SignalValue:
        """The worst pod becomes the accused."""
        if self._absent:
            return SignalValue(CPI, "sigma", absent=self._absent)
        held = {uid: value for uid, pod in self._pods.items() if (value := self._held(pod)) is not None}
        if not held:
            return SignalValue(CPI, "sigma", gap=self._why_none())
        self.accused = max(held, key=lambda uid: (held[uid], uid))
        return self._of(self._pods[self.accused], held[self.accused])

    def of_accused(self, since_s: float | None = None) -> SignalValue:
        """Since then, or in the last window; both are on the clock of the readings."""
        pod = self._pods.get(self.accused)
        if self._absent or pod is None:
            return self.at_rest() if self._absent else SignalValue(CPI, "sigma", gap="the pod that was slow has gone")
        value = self._deviation(pod, self._now_s - WINDOW_S if since_s is None else since_s, self._now_s)
        if value is None:
            return SignalValue(CPI, "sigma", gap="the pod that was slow has hardly run since")
        return self._of(pod, value)

    def _held(self, pod: _PodCounts) -> float | None:
        ends_s = [self._now_s - number * WINDOW_S for number in range(HELD)]
        found = [self._deviation(pod, end_s - WINDOW_S, end_s) for end_s in ends_s]
        known = [value for value in found if value is not None]
        return min(known) if len(known) == HELD else None

    def _deviation(self, pod: _PodCounts, from_s: float, to_s: float) -> float | None:
        usual = self._usual.get(pod.workload, Usual())
        cpi = _cpi(pod, from_s, to_s)
        return None if cpi is None or usual.windows < LEAST else usual.deviation(cpi)

    def _of(self, pod: _PodCounts, deviation: float) -> SignalValue:
        usual, value = self._usual[pod.workload], max(0.0, deviation)
        cpi = usual.mean + deviation * usual.sigma
        note = f"{pod.workload}: {cpi:.2f} cycles per instruction, usually {usual.mean:.2f}"
        return SignalValue(CPI, "sigma", value, value, note=note)

    def _why_none(self) -> str:
        if not self._pods:
            return "no online pod is counted"
        most = max(self._usual.get(pod.workload, Usual()).windows for pod in self._pods.values())
        if most < LEAST:
            return f"what is usual is being learned: {most} of {LEAST} windows of {WINDOW_S:g} s"
        return f"no pod that is known has run enough for {HELD} windows of {WINDOW_S:g} s"

    # --- a restart ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Usual]:
        return dict(self._usual)

    def load(self, usual: Mapping[str, Usual], accused: str = "") -> None:
        self._usual, self.accused = dict(usual), accused


def _cpi(pod: _PodCounts, from_s: float, to_s: float) -> float | None:
    """Of the readings nearest to both ends. None: too little ran, or there are none so far back."""
    first_s, last_s = _nearest(pod.counted, from_s), _nearest(pod.counted, to_s)
    if last_s - first_s < max(_SHORTEST_S, 0.7 * (to_s - from_s)):
        return None
    first, last = pod.counted[first_s], pod.counted[last_s]
    cycles, instructions = last.cycles - first.cycles, last.instructions - first.instructions
    return cycles / instructions if cycles >= LEAST_CYCLES and instructions > 0 else None


def _nearest(times: Iterable[float], at_s: float) -> float:
    return min(times, key=lambda t_s: abs(t_s - at_s))
