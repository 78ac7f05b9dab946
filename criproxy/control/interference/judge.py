"""One look at harm: from a reading of the kernel's counters, and what services say, to what the box may have.

    reading -> signals.values -------+
    services -> service_checks ------+-> Responder.tick (detectors, ladder) -> shares, closed, one pod to go
    what online executes -> cpi -----+
    pods' own waiting -> pod_waits --+

The time for which online's own limits stop it is read while a signal for CPU, that of a single pod too, is above half
of its bar, or judged (`asks_own_limits`): it takes two readings to say how much they explain.

Of IO no experiment is made while there is no disk of whose IO the box does a large part.

Memory is squeezed by memory.high, and its limit stays: see `control.evidence`. Where there is no memory.high (v1), a
squeeze would have to lower the limit, and who hits that is killed. So there it is never tried, but judged by account
(`memory_shortage`), and never held below the prediction, which bounds it anyway.

Pure: the caller reads and acts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.control.evidence import HarmSeen
from criproxy.control.interference.bystanders import Bystanders, CpuSeen
from criproxy.control.interference.cpi import CPI, CpiMeter, Usual
from criproxy.control.interference.detectors import DETECTORS, IO, POD, POD_PRESSURE, Detector, OnlineUse
from criproxy.control.interference.disks import LARGE_RATIO
from criproxy.control.interference.ladder import LadderDecision, LadderSettings, Rung
from criproxy.control.interference.pod_waits import PodMeter
from criproxy.control.interference.responder import Responder, ResponderState, SignalStatus
from criproxy.control.interference.service_checks import (
    ANNOTATION,
    SERVICE_CHECK,
    ServiceRecord,
    ServiceSignal,
    at_rest,
    exempt,
    in_a_case,
    recorded,
    with_accuser,
)
from criproxy.control.interference.signals import CPU_SIGNALS, SignalValue, observed, pod_waits, values
from criproxy.control.memory_pressure import EvictionHard
from criproxy.model import CPU, MEMORY
from criproxy.model.signals import CpuSpent, SignalReading, WorkReading

LARGE_IO_SHARE: Final = 100.0 * LARGE_RATIO
"""In %."""


class Look(Struct, frozen=True):
    """What one look has found. `pods`: how many the box has. `reading` None: nothing could be read.

    `hard`: kubelet's threshold for memory. `services`: the last answer of each online service with a check;
    `unanswered` says of one that it has not answered yet; "": none has a check. `online`: the names of online's pods,
    by uid.
    `workloads`: what they run, where what they execute is counted. `over`, `unused`, `irreducible`, `leaving`: see
    `ladder.Signals`. `idle`: the resources of which the box has next to nothing now, beside CPU.
    """

    t_s: float
    pods: int
    reading: SignalReading | None = None
    hard: EvictionHard = EvictionHard()
    services: Sequence[ServiceSignal] = ()
    unanswered: str = ""
    online: Mapping[str, str] = {}
    workloads: Mapping[str, str] = {}
    over: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    irreducible: Mapping[str, str] = {}
    leaving: frozenset[str] = frozenset()


class JudgedLook(Struct, frozen=True):
    """What a look means. `innocent`: online waits for CPU, and it is known that the box is not why.

    `calm_at_disks`: what the disks do now hurts nobody, as far as is known. `innocent_of_io`: the box's IO was found
    not to be what harmed, or is given back in an experiment, as it was before.
    """

    decision: LadderDecision
    innocent: bool = False
    calm_at_disks: bool = False
    innocent_of_io: bool = False


class Accusers(Struct, frozen=True):
    """The pods for whose harm a resource is tried, or was convicted, by uid; "": none.

    `service`: by its own word. `waits`: it waits for CPU, and `bar` is that of its alarm, in %. `slow`: by its cycles
    per instruction.
    """

    service: str = ""
    waits: str = ""
    bar: float = POD.threshold
    slow: str = ""


class Judge(Struct, eq=False):
    """Remembers from look to look what the next one needs.

    `spares_memory`: this machine squeezes memory by memory.high, and so kills nobody by it. `seed`: of what is random
    in experiments, which nobody should be able to foresee.
    """

    ladder: LadderSettings
    detectors: tuple[Detector, ...] = DETECTORS
    spares_memory: bool = True
    seed: int = 0
    asks_own_limits: bool = False
    _responder: Responder = field(default_factory=lambda: Responder(LadderSettings()))
    _before: SignalReading | None = None
    _found: Sequence[SignalValue] = ()
    _services: ServiceRecord = ServiceRecord()
    _pods: PodMeter = field(default_factory=PodMeter)
    _cpi: CpiMeter = field(default_factory=CpiMeter)
    _bystanders: Bystanders = field(default_factory=Bystanders)
    _cpu_seen_s: float | None = None
    _cpu_idle: bool = False

    def __post_init__(self) -> None:
        self._responder = Responder(self._as_can_be(self.ladder), self.detectors, seed=self.seed)

    def _as_can_be(self, ladder: LadderSettings) -> LadderSettings:
        """As it is set, as far as this machine can do it."""
        if self.spares_memory:
            return ladder
        untried = (replace(one, phase_s=None) if one.name in (MEMORY, IO) else one for one in ladder.resources)
        return replace(ladder, resources=tuple(untried))

    def configure(self, ladder: LadderSettings, detectors: tuple[Detector, ...]) -> None:
        """From the next look on; what was learned stays, as does where each resource stands."""
        if (ladder, detectors) != (self.ladder, self.detectors):
            self.ladder, self.detectors = ladder, detectors
            before = self._responder.state()
            self._responder = Responder(self._as_can_be(ladder), detectors)
            self._responder.load(before)

    # --- a look -----------------------------------------------------------------------------------------------------

    def judge(self, look: Look) -> JudgedLook:
        shown: Mapping[str, float] = {}
        innocent, cpu = False, self._cpu_seen(look.reading)
        if look.reading is None:
            self._found = ()  # what the look before has shown holds no more
        else:
            shown, innocent = self._shown(look, look.reading, None if cpu is None else cpu.online)
        decision = self._tick(look, shown, cpu)
        if POD_PRESSURE in decision.exonerated:
            self._pods.acquit(look.t_s)
        if POD_PRESSURE in decision.explained:
            self._pods.explain(look.t_s, decision.explained[POD_PRESSURE])
        if SERVICE_CHECK in decision.exonerated:
            self._services = exempt(look.services, self._services, self._responder.detectors[SERVICE_CHECK].rest)
        return JudgedLook(
            replace(decision, shares=self._spared(decision.shares)),
            innocent,
            self._is_calm_at_disks(),
            self._is_innocent_of_io(decision),
        )

    def _tick(self, look: Look, shown: Mapping[str, float], cpu: CpuSeen | None) -> LadderDecision:
        """With what is known of who uses the CPUs. That the box was idle counts only while nothing is taken from it."""
        responder, unused = self._responder, look.unused
        if responder.at_rest:
            unused |= look.idle
            if cpu is not None and cpu.box_is_idle:
                unused |= {CPU}
        return responder.tick(
            look.t_s,
            shown,
            look.pods,
            look.over,
            unused,
            irreducible=look.irreducible,
            others=frozenset({CPU} if cpu is not None and cpu.others_rose else ()),
            use=None if cpu is None else cpu.online,
            leaving=look.leaving,
        )

    def _cpu_seen(self, reading: SignalReading | None) -> CpuSeen | None:
        if reading is None or not isinstance(reading.cpu_use, CpuSpent):
            return None
        return self._bystanders.seen(reading.cpu_use, calm=self._responder.is_calm)

    def _shown(self, look: Look, reading: SignalReading, use: OnlineUse | None) -> tuple[Mapping[str, float], bool]:
        """The signals that the detectors are shown, by name, and whether the box is known to be innocent of CPU's."""
        responder = self._responder
        self._found = found = (
            *values(self._before, reading, look.hard),
            *self._pod_signal(look, reading, use),
            *self._service_signal(look),
            *self._processor_signal(look, reading),
        )
        self._before, self._cpu_idle = reading, reading.cpu_idle
        bars = responder.bars()
        levels = {name: bar - responder.detectors[name].hysteresis for name, bar in bars.items()}
        known = [one for one in found if one.name in levels]
        seen = {one.name: observed(one, levels[one.name]) for one in known}
        cpu = [one for one in known if one.name in CPU_SIGNALS and one.most is not None]
        waits = [*cpu, *(one for one in known if one.name == POD_PRESSURE)]
        self.asks_own_limits = any(
            seen[one.name][1] or responder.answers(one.name) or (one.most or 0.0) > bars[one.name] / 2.0
            for one in waits
        )
        if any(seen[one.name][0] is not None for one in cpu):
            self._cpu_seen_s = look.t_s
        shown = {name: value for name, (value, _) in seen.items() if value is not None}
        harmed = shown.get(POD_PRESSURE, 0.0) > bars.get(POD_PRESSURE, 0.0)
        innocent = not harmed and any(self._is_innocent(one, seen[one.name][0], levels[one.name]) for one in cpu)
        return self._without_others_io(shown), innocent

    def _pod_signal(self, look: Look, reading: SignalReading, use: OnlineUse | None) -> Iterator[SignalValue]:
        """How long the pod waits that waits most for what is usual for it."""
        if POD_PRESSURE in self._responder.detectors:
            self._pods.take(look.t_s, pod_waits(self._before, reading), look.online, use)
            yield self._pods.of_accused() if self._responder.answers(POD_PRESSURE) else self._pods.at_rest()

    def _service_signal(self, look: Look) -> Iterator[SignalValue]:
        """What online services say of themselves, as the one signal that there is of it."""
        responder, name, signals = self._responder, SERVICE_CHECK, look.services
        if name not in responder.detectors:
            return
        bar, case = responder.bars()[name], responder.ladder.case
        counts_from_s = responder.trial_counts_from_s(name)
        self._services = recorded(signals, self._services, bar, bar - responder.detectors[name].hysteresis)
        is_tried = case is not None and case.detector == name
        if responder.answers(name) and not is_tried and counts_from_s is None:
            self._services = with_accuser(signals, self._services, look.online, look.t_s, self.ladder.lost_s)
        if counts_from_s is not None or is_tried or (signals and responder.answers(name)):
            word, self._services = in_a_case(signals, self._services, counts_from_s)
            yield word
        elif signals:
            word, self._services = at_rest(signals, self._services)
            yield word
        elif look.unanswered:
            yield SignalValue(name, "%", gap=look.unanswered)
        else:
            yield SignalValue(name, "%", absent=f"no online pod asks for it by the annotation {ANNOTATION}")

    def _processor_signal(self, look: Look, reading: SignalReading) -> Iterator[SignalValue]:
        """How many cycles online pods take for their instructions; nothing, where it is not asked for."""
        work, since_s = reading.work, self._responder.trial_counts_from_s(CPI)
        if work is None:
            return
        self._cpi.take(work, look.workloads)
        if since_s is not None and isinstance(work, WorkReading):
            yield self._cpi.of_accused(work.read_s - max(0.0, look.t_s - since_s))
        else:
            yield self._cpi.of_accused() if self._responder.answers(CPI) else self._cpi.at_rest()

    def _is_innocent(self, signal: SignalValue, value: float | None, level: float) -> bool:
        """Online waits as much as would be harm, and it is known that the box is not why."""
        detector = self._responder.detectors[signal.name]
        assert signal.most is not None
        if value is None or signal.most < detector.threshold - detector.hysteresis:
            return False
        return value < level or self._responder.has_acquitted(signal.name)

    def _without_others_io(self, shown: dict[str, float]) -> dict[str, float]:
        """The share says whether to suspect the box at all; it must never judge an experiment."""
        share = next((one.value for one in self._found if one.name == "box_io_share"), None)
        if share is None or share >= LARGE_IO_SHARE or self._responder.answers("io_pressure"):
            return shown
        return {name: value for name, value in shown.items() if name != "io_pressure"}

    def _spared(self, shares: Mapping[str, float]) -> Mapping[str, float]:
        """The shares that can be had without killing."""
        return shares if MEMORY not in shares or self.spares_memory else {**shares, MEMORY: 1.0}

    def _is_calm_at_disks(self) -> bool:
        name, responder = "io_pressure", self._responder
        if responder.is_harmed_by(IO) or name not in responder.detectors:
            return False
        level = responder.bars()[name] - responder.detectors[name].hysteresis
        waits = next((one.most for one in self._found if one.name == name), None)
        return waits is None or waits < level

    def _is_innocent_of_io(self, decision: LadderDecision) -> bool:
        freed = [one for one in decision.transitions if one.resource == IO and one.after is Rung.OPEN]
        if any(one.before is not Rung.SQUEEZED or one.signal in decision.exonerated for one in freed):
            return True
        return self._responder.ladder.of(IO).rung is Rung.TRIED and IO not in decision.shares

    def forget(self) -> None:
        """No signal is known, nor what it was before."""
        self._before, self._found, self.asks_own_limits, self._cpu_seen_s = None, (), False, None
        if not self._responder.answers(SERVICE_CHECK):
            self._services = ServiceRecord()

    # --- what is known ----------------------------------------------------------------------------------------------

    def seen(self, shares: Mapping[str, float]) -> HarmSeen:
        """For the decision on limits, with what the ladder leaves."""
        return HarmSeen(shares, self._cpu_seen_s, self._cpu_idle)

    @property
    def responder(self) -> Responder:
        return self._responder

    def in_force(self) -> LadderDecision:
        """What holds before the next look."""
        in_force = self._responder.in_force()
        return replace(in_force, shares=self._spared(in_force.shares))

    def signals(self) -> tuple[SignalStatus, ...]:
        """Those of the last look, for people."""
        bars = self._responder.bars()
        return tuple(_status(one, bars[one.name]) for one in self._found if one.name in bars)

    def state(self) -> tuple[ResponderState, dict[str, Usual], Accusers]:
        """What a restart should keep."""
        waits, bar = self._pods.accused
        return (
            self._responder.state(),
            self._cpi.state(),
            Accusers(self._services.accuser, waits, bar, self._cpi.accused),
        )

    def load(self, responder: ResponderState, usual: dict[str, Usual], accusers: Accusers, shift_s: float) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours. Raises ValueError: see `Responder.load`."""
        self._cpi.load(usual, accusers.slow)
        self._pods.accused = accusers.waits, accusers.bar
        self._services = ServiceRecord(accuser=accusers.service)
        self._responder.load(responder, shift_s)


def _status(signal: SignalValue, bar: float) -> SignalStatus:
    return SignalStatus(
        name=signal.name,
        unit=signal.unit,
        value=signal.most if signal.value is None else signal.value,
        bar=bar,
        here=not signal.absent,
        why=signal.absent or signal.gap,
        note=signal.note,
    )
