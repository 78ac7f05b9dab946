"""Detectors of harm to online pods: a signal each, and the bar above which it is an alarm.

How it works
------------
Every signal is worse the higher it is. A `Detector` says from which value on it is harm (`threshold`), which value
means none at all (`rest`), and which resources of the box may be the cause, in the order in which they are tried
(`suspects`). What is usual on a node is not known beforehand, so the value that counts is a *bar* that is learned:

    expected = max(threshold, queueing)             queueing: see `queueing_percent`; CPU pressure alone
    harmless = max(threshold, QUEUE_MARGIN * queueing)
    usual    = min(USUAL_SPREAD * p75, p99.99)      of a decayed histogram of what the box can't have caused, in parts
                                                    of what is expected
    bar      = min(most, max(harmless, usual))

- Online pods wait for each other, too: on 2 CPUs an ideal machine at 50 % use has a pressure of 25 %. What is usual
  depends on online's use likewise, so CPU signals have a histogram for each tenth of the node that online uses.
- The box can't have caused what was there while it used nothing; nor an alarm that it was acquitted of, or that did not
  come back with it; nor what goes on after an acquittal, up to twice the height that it was acquitted of, until the
  signal is harmless again. Harmless values hurt nobody. Nothing else is learned: an aggressor
  can't teach its bar by growing slowly.
- Values vary around what is usual, which `USUAL_SPREAD` allows for once such harm was acquitted (p99.99). Episodes of
  others that fill less than a quarter of the time (p75) don't make the detector deaf for harm of their height. A
  histogram begins with `FIRST_REST_S` at rest, so that the first values do not decide alone, forgets half in a week,
  and outlives restarts and reboots.

A signal is *high* from the moment when it exceeds the bar until it is below the bar by `hysteresis`; an *alarm* is a
signal that has been high for `hold_s` and the detector's *patience*. An acquittal leaves the bar alone, and doubles the
patience: 2, 4 … `LONGEST_PATIENCE_S`; half of it is forgotten each `FORGET_HALF_LIFE_S`. So no detector goes deaf, and
the harm that others bring for seconds is waited out. It stays at the first of these where the box was guilty for sure
not long ago: see `ladder`.

Times are summed up from sample to sample, and a gap counts as `longest_gap_s` at most: nobody knows what happened in
it. The sample that first exceeds the bar counts half of the time since the one before it, as the harm has begun
somewhere in between.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from criproxy.control.histogram import Buckets, DecayedMass, MassState
from criproxy.model import CPU, MEMORY, PIDS

IO: Final = "io"

FORGET_HALF_LIFE_S: Final = 600.0
FIRST_PATIENCE_S: Final = 2.0
LONGEST_PATIENCE_S: Final = 30.0

USUAL_HALF_LIFE_S: Final = 7 * 86400.0
USUAL_RATIO: Final = 0.9999
USUAL_SPREAD: Final = 2.5
FIRST_REST_S: Final = 600.0
QUEUE_MARGIN: Final = 1.5
ALARM_S: Final = 5.0
ALARM_MARGIN: Final = 1.25
"""What an alarm weighs that was explained, and what it is learned as: the next may be a bit higher."""

_MIDDLE_RATIO: Final = 0.75

USES: Final = 10
"""Histograms by online's use; one more is for use that is not known."""

LONGEST_GAP_S: Final = 5.0
"""From sample to sample, at the daemon's pace of one a second."""

SEVERITY_BUCKETS: Final = Buckets(first=0.02, largest=100.0, ratio=1.1)
"""For severities: 1 is what is expected, 0 is `rest`."""


class Detector(Struct, frozen=True):
    """A signal, and when it is an alarm; `threshold`, `hysteresis`, `most`, `rest` and `emergency` are in its `unit`.

    `words` name the signal in sentences. From `emergency` on, the first suspect is evicted from without an experiment;
    None: this signal knows no emergency. `stock`: it says how much is in use (memory, processes), not how fast
    something goes, so that a squeeze does not bring it down and no experiment proves anything. `by_use`: what is usual
    depends on how much CPU online uses; `queues`: and there is pressure by online's own queueing. `slow`: its values
    come seconds apart, so that a phase of an experiment for it takes longer (`LadderSettings.slow_phase_s`). `evicts`:
    no, where it is the word of whoever owns the pod that is harmed, and proved by nothing but that.

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
    evicts: bool = True
    by_use: bool = False
    queues: bool = False
    slow: bool = False

    def __post_init__(self) -> None:
        emergency = math.inf if self.emergency is None else self.emergency
        if not self.rest < self.threshold <= self.most <= emergency:
            raise ValueError(f"{self.name}: must be rest < threshold <= most <= emergency")
        if not 0.0 <= self.hysteresis < self.threshold - self.rest:
            raise ValueError(f"{self.name}: hysteresis must be at least 0, and less than the threshold is above rest")
        if not self.suspects or not 0.0 <= self.hold_s < math.inf:
            raise ValueError(f"{self.name}: needs a suspect and a hold_s of at least 0")
        if self.emergency is not None and not self.stock:
            raise ValueError(f"{self.name}: only a stock knows an emergency, as no experiment is made in one")

    def in_words(self, value: float) -> str:
        """A value with its unit: `12.5 %`."""
        return f"{value:.4g} {self.unit}"


POD_PRESSURE: Final = "pod_pressure"

POD: Final = Detector("pod", "the pod's waiting for CPU", "%", 20.0, 1.5, (CPU,), hysteresis=4.0, most=90.0,
                      queues=True)  # fmt: skip
"""That of each online pod by itself; `pod_pressure` is in percent of its bar. A first guess, not measured."""

DETECTORS: Final = (
    Detector("memory_shortage", "the node's memory in use, where 100 is kubelet's eviction threshold,", "%", 98.0, 1.0,
             (MEMORY,), hysteresis=2.0, most=99.0, rest=94.0, emergency=99.0, stock=True),
    Detector("cpu_pressure", "online's waiting for CPU", "%", 10.0, 2.0, (CPU,), hysteresis=2.0, most=100.0,
             by_use=True, queues=True),
    Detector("run_queue_delay", "online's waiting in run queues", "ms/s", 50.0, 2.0, (CPU,), hysteresis=10.0,
             most=500.0, by_use=True),
    Detector(POD_PRESSURE, "an online pod's waiting for CPU, where 100 is its own bar,", "%", 100.0, 0.0, (CPU,),
             hysteresis=20.0, most=100.0),
    Detector("memory_pressure", "online's waiting for memory", "%", 5.0, 2.0, (MEMORY, IO), hysteresis=2.0, most=40.0),
    Detector("refaults", "online's pages read again after they were reclaimed", "pages/s", 500.0, 5.0, (MEMORY, IO),
             hysteresis=100.0, most=20_000.0),
    Detector("io_pressure", "online's waiting for IO", "%", 10.0, 3.0, (IO, MEMORY), hysteresis=2.0, most=60.0),
    Detector("service_check", "an online service's own measure, where 100 is its threshold,", "%", 100.0, 0.0,
             (CPU, IO, MEMORY), hysteresis=2.0, most=400.0, rest=50.0, slow=True, evicts=False),
    Detector("cpi", "an online service's cycles per instruction, in deviations above its usual,", "sigma", 2.0, 0.0,
             (CPU, MEMORY), hysteresis=0.5, most=8.0, slow=True),
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


class OnlineUse(Struct, frozen=True):
    """How many cores online uses, of how many CPUs the node has."""

    cores: float
    cpus: int

    @property
    def ratio(self) -> float:
        return min(1.0, max(0.0, self.cores / self.cpus)) if self.cpus > 0 else 0.0


@lru_cache(maxsize=4)
def queueing_percent(use: OnlineUse) -> float:
    """The pressure (PSI `some`, in %) of an ideal machine at this use: one queue, random arrivals, nobody else (M/M/c).
    All monitors of a look ask for the same.

    With c CPUs, use u, and Erlang's C, the probability that all CPUs are busy:

        C * (1 - u^c) / (c * (1 - u))        2 CPUs: u^2

    Source: Erlang C; kernel, Documentation/accounting/psi.rst (`some` is weighed by the CPUs that are not idle).
    """
    cpus, u = use.cpus, use.ratio
    if cpus <= 0 or u <= 0.0:
        return 0.0
    if u >= 1.0:
        return 100.0
    blocking = 1.0  # Erlang B, from no CPU up
    for count in range(1, cpus + 1):
        blocking = cpus * u * blocking / (count + cpus * u * blocking)
    waits = blocking / (1.0 - u * (1.0 - blocking))
    return 100.0 * waits * (1.0 - u**cpus) / (cpus * (1.0 - u))


class Assessment(Struct, frozen=True):
    """What one sample of a signal means. `mean` is that of the values since the signal is `high`, which it has been for
    `high_s`; the value, if not.
    """

    value: float
    bar: float
    high: bool
    alarm: bool
    emergency: bool
    mean: float
    high_s: float = 0.0


class MonitorState(Struct, frozen=True):
    """A `Monitor` for a checkpoint. `usual`: by use. `t_s`, `acquitted_s` None: there was no sample, or no acquittal.

    `innocent_up_to`: up to this value the box is known not to be the cause, until the signal is harmless; None: nothing
    is known. `patience_s` is what it was at `acquitted_s`.
    """

    usual: dict[int, MassState]
    t_s: float | None
    patience_s: float
    acquitted_s: float | None
    high: bool
    high_s: float
    total: float
    samples: int
    innocent_up_to: float | None


class Monitor:
    """A detector at work: what it remembers from sample to sample."""

    __slots__ = (
        "_acquitted_s", "_high", "_high_s", "_innocent_up_to", "_longest_gap_s", "_patience_s", "_samples", "_t_s",
        "_total", "_use", "_usual", "detector",
    )  # fmt: skip

    def __init__(self, detector: Detector, longest_gap_s: float = LONGEST_GAP_S) -> None:
        self.detector = detector
        self._longest_gap_s = longest_gap_s
        self._usual: dict[int, DecayedMass] = {}
        self._use: OnlineUse | None = None
        self._t_s: float | None = None
        self._patience_s = 0.0
        self._acquitted_s: float | None = None
        self._high = False
        self._high_s = 0.0
        self._total, self._samples = 0.0, 0
        self._innocent_up_to: float | None = None

    def observe(self, t_s: float, value: float, use: OnlineUse | None = None, *, explained: bool = False) -> Assessment:
        """A finite value, and online's use at that time. Time that goes back stands still.

        `explained`: the box can't have caused it.
        """
        detector, last_s = self.detector, self._t_s
        self._t_s = t_s = t_s if last_s is None else max(t_s, last_s)
        seconds = 0.0 if last_s is None else min(t_s - last_s, self._longest_gap_s)
        self._use = use
        bar = self.bar()
        was_high = self._high
        self._high = value > bar or (was_high and value >= bar - detector.hysteresis)
        if self._high:
            self._high_s = self._high_s + seconds if was_high else seconds / 2.0
            self._total, self._samples = (self._total + value, self._samples + 1) if was_high else (value, 1)
        else:
            self._high_s, self._total, self._samples = 0.0, 0.0, 0
        self._learn(t_s, value, seconds, explained=explained)
        emergency = detector.emergency is not None and value >= detector.emergency
        mean = self._total / self._samples if self._high else value
        alarm = self._high and self._high_s >= detector.hold_s + self.patience_s(t_s)
        return Assessment(value, bar, self._high, alarm, emergency, mean, self._high_s)

    def _learn(self, t_s: float, value: float, seconds: float, *, explained: bool) -> None:
        harmless = value <= self._harmless()
        innocent = self._innocent_up_to is not None and value <= self._innocent_up_to
        if harmless and not self._high:
            self._innocent_up_to = None
        if seconds > 0.0 and (harmless or innocent or explained):
            self._add(t_s, value - self.detector.rest, seconds)

    def _add(self, t_s: float, excess: float, seconds: float) -> None:
        usual = self._usual.get(self._place())
        if usual is None:
            usual = DecayedMass(SEVERITY_BUCKETS.count, USUAL_HALF_LIFE_S, USUAL_RATIO)
            usual.add(t_s, 0, FIRST_REST_S)
            self._usual[self._place()] = usual
        usual.add(t_s, SEVERITY_BUCKETS.index(excess / self._scale()), seconds)

    def _place(self) -> int:
        if self._use is None or not self.detector.by_use:
            return USES
        return min(USES - 1, int(USES * self._use.ratio))

    def _queueing(self) -> float:
        return 0.0 if self._use is None or not self.detector.queues else queueing_percent(self._use)

    def _scale(self) -> float:
        """How far what is expected lies above rest."""
        return max(self.detector.threshold, self._queueing()) - self.detector.rest

    def _harmless(self) -> float:
        return min(self.detector.most, max(self.detector.threshold, QUEUE_MARGIN * self._queueing()))

    def bar(self) -> float:
        """The value above which the signal is high, at the use that was seen last."""
        harmless, usual = self._harmless(), self._usual.get(self._place())
        if usual is None:
            return harmless
        rest, scale, uppers = self.detector.rest, self._scale(), SEVERITY_BUCKETS.uppers
        severity = uppers[usual.pointer]
        if rest + scale * severity > harmless:
            severity = min(severity, USUAL_SPREAD * uppers[_bucket(usual, _MIDDLE_RATIO)])
        return min(self.detector.most, max(harmless, rest + scale * severity))

    @property
    def acquitted(self) -> bool:
        """The signal is known not to be the box's doing: it has not been harmless since an acquittal."""
        return self._innocent_up_to is not None

    def patience_s(self, t_s: float) -> float:
        """For how long beyond its hold the signal must be high to be an alarm, at `t_s`."""
        if self._acquitted_s is None:
            return 0.0
        return self._patience_s * math.exp2(-max(0.0, t_s - self._acquitted_s) / FORGET_HALF_LIFE_S)

    def forget_acquittal(self) -> None:
        """An experiment found the box to be a cause of the signal: no height of it is known to be innocent any more."""
        self._innocent_up_to = None

    def convict(self, t_s: float) -> None:
        """The box is the cause of the signal: wait no longer than `FIRST_PATIENCE_S` for it."""
        self._patience_s, self._acquitted_s = min(FIRST_PATIENCE_S, self.patience_s(t_s)), t_s

    def acquit(self, t_s: float, *, lately_guilty: bool = False) -> None:
        """The box is not the cause of the signal: be more patient, begin to wait anew, and learn what goes on.

        `lately_guilty`: it was not long ago.
        """
        longest_s = FIRST_PATIENCE_S if lately_guilty else LONGEST_PATIENCE_S
        self._patience_s = min(longest_s, max(FIRST_PATIENCE_S, 2.0 * self.patience_s(t_s)))
        self._acquitted_s = t_s
        if self._high:
            rest, mean = self.detector.rest, self._total / self._samples
            self._innocent_up_to = rest + 2.0 * (mean - rest)
            self._high_s = 0.0

    def explain(self, t_s: float, excess: float) -> None:
        """An alarm of so much above rest, which the box was found not to be the cause of."""
        self._add(t_s, ALARM_MARGIN * excess, ALARM_S)

    def state(self) -> MonitorState:
        """For a checkpoint: `load` of it continues bit for bit."""
        return MonitorState(
            {place: usual.state() for place, usual in sorted(self._usual.items())}, self._t_s, self._patience_s,
            self._acquitted_s, self._high, self._high_s, self._total, self._samples, self._innocent_up_to,
        )  # fmt: skip

    def load(self, state: MonitorState, shift_s: float = 0.0) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours.

        Raises ValueError, changing nothing, when its histograms do not fit.
        """
        loaded: dict[int, DecayedMass] = {}
        for place, mass in state.usual.items():
            if not 0 <= place <= USES:
                raise ValueError(f"histogram {place} of {USES + 1}")
            loaded[place] = DecayedMass(SEVERITY_BUCKETS.count, USUAL_HALF_LIFE_S, USUAL_RATIO)
            loaded[place].load(mass, shift_s)
        self._usual = loaded
        self._t_s = None if state.t_s is None else state.t_s + shift_s
        self._patience_s = state.patience_s
        self._acquitted_s = None if state.acquitted_s is None else state.acquitted_s + shift_s
        self._high, self._high_s, self._innocent_up_to = state.high, state.high_s, state.innocent_up_to
        self._total, self._samples = state.total, state.samples


def _bucket(mass: DecayedMass, ratio: float) -> int:
    """The bucket in which this quantile lies."""
    target, below = ratio * mass.total, 0.0
    for bucket, held in enumerate(mass.mass):
        below += held
        if below >= target:
            return bucket
    return len(mass.mass) - 1


def by_name(detectors: tuple[Detector, ...] = DETECTORS) -> Mapping[str, Detector]:
    return {detector.name: detector for detector in detectors}
