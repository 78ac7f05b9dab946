"""Detectors of harm to online pods: a signal each, and the bar above which it is an alarm.

How it works
------------
Every signal is worse the higher it is. A `Detector` says from which value on it is harm (`threshold`), which value
means none at all (`rest`), and which resources of the box may be the cause, in the order in which they are tried
(`suspects`). What is usual on a node is not known beforehand, so the value that counts is a *bar* that is learned:

    usual = the 99th percentile of a decayed histogram of what the box can't have caused
    bar   = min(most, max(threshold, usual) + raised)

An exoneration doubles what the bar lies above `rest`; `raised`, what that adds, halves each `FORGET_HALF_LIFE_S`.

- The histogram learns from values up to the threshold, which hurt nobody, and, after an exoneration, from those up to
  the bar, until the signal is back at its threshold. It never learns from a value that is not explained: an aggressor
  can't teach its bar by growing slowly.
- `most` keeps a bar that was doubled again and again below what the signal can reach, so that no detector goes deaf.

A signal is *high* from the moment when it exceeds the bar until it is below the bar by `hysteresis`; an *alarm* is a
signal that has been high for `hold_s`. Times are summed up from sample to sample, and a gap counts as `longest_gap_s`
at most: nobody knows what happened in it.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from criproxy.control.histogram import Buckets, DecayedMass, MassState
from criproxy.model import CPU, MEMORY, PIDS

IO: Final = "io"

FORGET_HALF_LIFE_S: Final = 600.0
USUAL_HALF_LIFE_S: Final = 3600.0
USUAL_RATIO: Final = 0.99

LONGEST_GAP_S: Final = 5.0
"""From sample to sample, at the daemon's pace of one a second."""

SEVERITY_BUCKETS: Final = Buckets(first=0.01, largest=100.0)
"""For severities: 1 is the threshold, 0 is `rest`."""


class Detector(Struct, frozen=True):
    """A signal, and when it is an alarm; `threshold`, `hysteresis`, `most`, `rest` and `emergency` are in its `unit`.

    `words` name the signal in sentences. From `emergency` on, the first suspect is evicted from without an experiment;
    None: this signal knows no emergency. `stock`: it says how much is held (memory, processes), not how fast
    something goes, so that a squeeze does not bring it down and no experiment proves anything.

    Raises ValueError when the values contradict each other.
    """

    name: str
    words: str
    unit: str
    threshold: float
    hold_s: float
    suspects: tuple[str, ...]
    hysteresis: float
    most: float
    rest: float = 0.0
    emergency: float | None = None
    stock: bool = False

    def __post_init__(self) -> None:
        emergency = math.inf if self.emergency is None else self.emergency
        if not self.rest < self.threshold <= self.most <= emergency:
            raise ValueError(f"{self.name}: must be rest < threshold <= most <= emergency")
        if not 0.0 <= self.hysteresis < self.threshold - self.rest:
            raise ValueError(f"{self.name}: hysteresis must be at least 0, and less than the threshold is above rest")
        if not self.suspects or not 0.0 <= self.hold_s < math.inf:
            raise ValueError(f"{self.name}: needs a suspect and a hold_s of at least 0")

    def in_words(self, value: float) -> str:
        """A value with its unit: `12.5 %`."""
        return f"{value:.4g} {self.unit}"


DETECTORS: Final = (
    Detector("memory_shortage", "the node's memory in use, where 100 is kubelet's eviction threshold,", "%", 98.0, 1.0,
             (MEMORY,), hysteresis=2.0, most=99.0, rest=94.0, emergency=99.0, stock=True),
    Detector("cpu_pressure", "online's waiting for CPU", "%", 10.0, 2.0, (CPU,), hysteresis=2.0, most=60.0),
    Detector("run_queue_delay", "online's waiting in run queues", "ms/s", 50.0, 2.0, (CPU,), hysteresis=10.0,
             most=500.0),
    Detector("memory_pressure", "online's waiting for memory", "%", 5.0, 2.0, (MEMORY, IO), hysteresis=2.0, most=40.0),
    Detector("refaults", "online's pages read again after they were reclaimed", "pages/s", 500.0, 5.0, (MEMORY, IO),
             hysteresis=100.0, most=20_000.0),
    Detector("io_pressure", "online's waiting for IO", "%", 10.0, 3.0, (IO, MEMORY), hysteresis=2.0, most=60.0),
    Detector("service_check", "an online service's own measure, where 100 is its threshold,", "%", 100.0, 0.0,
             (CPU, IO, MEMORY), hysteresis=2.0, most=400.0, rest=50.0),
    Detector("cpi", "an online service's cycles per instruction, in deviations above its usual,", "sigma", 2.0, 0.0,
             (CPU, MEMORY), hysteresis=0.5, most=8.0),
    Detector("pids_shortage", "the node's processes in use", "%", 90.0, 1.0, (PIDS,), hysteresis=2.0, most=98.0,
             rest=70.0, stock=True),
)  # fmt: skip
"""In the order in which their alarms are answered. Pressures are what PSI's `some` total grew by since the last sample,
not avg10, which still remembers when an experiment is over. `memory_shortage` is

    100 - 2 * (memory.available - threshold) / margin      threshold: the larger of evictionHard and evictionSoft
                                                           margin: 2 % of the node's memory, at least 100 MiB

so that its emergency is memory half-way to kubelet's threshold, within 1 % above it. Each service has a `hold_s` of its
own, which is over when `service_check` is shown its word (see `service_checks`); likewise `cpi` is shown a pod that has
been slow for three windows of 10 s. A service's measure, a latency perhaps, is not 0 when all is well, but about half
of its threshold. The thresholds are first guesses, not measured. Source: kernel, Documentation/accounting/psi.rst; CPI²
(EuroSys 2013) for 2 sigma.
"""


class Assessment(Struct, frozen=True):
    """What one sample of a signal means. `mean` is that of the values since the signal is `high`; the value, if not."""

    value: float
    bar: float
    high: bool
    alarm: bool
    emergency: bool
    mean: float


class MonitorState(Struct, frozen=True):
    """A `Monitor` for a checkpoint. `t_s` and `raised_s` None: there was no sample, or no exoneration."""

    usual: MassState
    t_s: float | None
    raised: float
    raised_s: float | None
    high: bool
    high_s: float
    total: float
    samples: int
    innocent: bool


class Monitor:
    """A detector at work: what it remembers from sample to sample."""

    __slots__ = (
        "_high", "_high_s", "_innocent", "_longest_gap_s", "_raised", "_raised_s", "_samples", "_t_s", "_total",
        "_usual", "detector",
    )  # fmt: skip

    def __init__(self, detector: Detector, longest_gap_s: float = LONGEST_GAP_S) -> None:
        self.detector = detector
        self._longest_gap_s = longest_gap_s
        self._usual = DecayedMass(SEVERITY_BUCKETS.count, USUAL_HALF_LIFE_S, USUAL_RATIO)
        self._t_s: float | None = None
        self._raised = 0.0
        self._raised_s: float | None = None
        self._high = False
        self._high_s = 0.0
        self._total, self._samples = 0.0, 0
        self._innocent = False

    def observe(self, t_s: float, value: float) -> Assessment:
        """A finite value. Time that goes back stands still."""
        detector, last_s = self.detector, self._t_s
        self._t_s = t_s = t_s if last_s is None else max(t_s, last_s)
        seconds = 0.0 if last_s is None else min(t_s - last_s, self._longest_gap_s)
        bar = self.bar(t_s)
        was_high = self._high
        self._high = value > bar or (was_high and value >= bar - detector.hysteresis)
        if self._high:
            self._high_s = self._high_s + seconds if was_high else 0.0
            self._total, self._samples = (self._total + value, self._samples + 1) if was_high else (value, 1)
        else:
            self._high_s, self._total, self._samples = 0.0, 0.0, 0
        self._learn(t_s, value, bar, seconds)
        emergency = detector.emergency is not None and value >= detector.emergency
        mean = self._total / self._samples if self._high else value
        return Assessment(value, bar, self._high, self._high and self._high_s >= detector.hold_s, emergency, mean)

    def _learn(self, t_s: float, value: float, bar: float, seconds: float) -> None:
        detector = self.detector
        harmless = value <= detector.threshold
        if seconds > 0.0 and (harmless or (self._innocent and value <= bar)):
            severity = (value - detector.rest) / (detector.threshold - detector.rest)
            self._usual.add(t_s, SEVERITY_BUCKETS.index(severity), seconds)
        if harmless and not self._high:
            self._innocent = False

    def bar(self, t_s: float) -> float:
        """The value above which the signal is high, at `t_s`."""
        return min(self.detector.most, self._base() + self._raised_at(t_s))

    def exonerate(self, t_s: float) -> None:
        """The box is not the cause of the signal: double the bar."""
        base, bar = self._base(), self.bar(t_s)
        doubled = 2.0 * (bar - self.detector.rest) + self.detector.rest
        self._raised, self._raised_s = max(0.0, min(doubled, self.detector.most) - base), t_s
        self._innocent = True

    def _base(self) -> float:
        detector, usual = self.detector, self._usual
        severity = SEVERITY_BUCKETS.uppers[usual.pointer] if usual.total > 0.0 else 0.0
        learned = detector.rest + severity * (detector.threshold - detector.rest)
        return min(detector.most, max(detector.threshold, learned))

    def _raised_at(self, t_s: float) -> float:
        if self._raised_s is None:
            return 0.0
        return self._raised * math.exp2(-max(0.0, t_s - self._raised_s) / FORGET_HALF_LIFE_S)

    def state(self) -> MonitorState:
        """For a checkpoint: `load` of it continues bit for bit."""
        return MonitorState(
            self._usual.state(), self._t_s, self._raised, self._raised_s, self._high, self._high_s,
            self._total, self._samples, self._innocent,
        )  # fmt: skip

    def load(self, state: MonitorState, shift_s: float = 0.0) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours.

        Raises ValueError, changing nothing, when its histogram does not fit.
        """
        self._usual.load(state.usual, shift_s)
        self._t_s = None if state.t_s is None else state.t_s + shift_s
        self._raised, self._raised_s = state.raised, None if state.raised_s is None else state.raised_s + shift_s
        self._high, self._high_s, self._innocent = state.high, state.high_s, state.innocent
        self._total, self._samples = state.total, state.samples


def by_name(detectors: tuple[Detector, ...] = DETECTORS) -> Mapping[str, Detector]:
    return {detector.name: detector for detector in detectors}
