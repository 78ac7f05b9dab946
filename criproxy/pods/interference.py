"""Answers harm to online pods: reads the signals each second, has them judged, and does what the ladder says.

How it works
------------
A look goes one way, and the pure modules of `control.interference` do all of the judging:

    SignalReader.of_box -> signals.values, cpi -> Responder.tick (detectors, ladder) -> shares, closed, one pod to go
    ServiceChecks.signals -> service_checks ---------^

    what comes out    what is done with it
    shares            the control loop keeps to them from the next decision on; where one has sunk, it decides at once
    closed            no offline pod is let in (`Holds`), and `closed` here says why, for whoever publishes capacity
    one pod to go     `PodEviction` chooses and stops it, beside the looks; what it says of the owner is in the budget
    transitions       the log, the counters, the status; and the checkpoint is written, so that a restart begins there;
                      so it is when a share has sunk, as nothing is given back by a restart

It rests while the box has no pods: then the box harms nobody. A resource that is held then is given back by the
ladder's clocks, as signals that are not reported for long count as calm.

The time for which online's own limits stop it is read only after a look that can't say without it whether online is
harmed. What such a look has shown to be no harm, the guard is told: it acts upon the same pressure, but can't explain
it.

Disks are squeezed one by one, by io.max: see `control.interference.disks`. Of IO no experiment is made while there is
no disk of whose IO the box does a large part, nor where the kernel has no io.max (v1).

Memory is squeezed by memory.high, and its limit stays: see `control.evidence`. Where there is no memory.high (v1), a
squeeze would have to lower the limit, and who hits that is killed. So there it is never tried, but judged by account
(`memory_shortage`), and never held below the prediction, which bounds it anyway.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup.box import Box
from criproxy.cgroup.signals import SignalReader
from criproxy.config.ladder import ladder_settings
from criproxy.control.evidence import NOTHING_SEEN, HarmSeen
from criproxy.control.guard import CpuGuard
from criproxy.control.interference.cpi import CPI, CpiMeter, Usual
from criproxy.control.interference.detectors import DETECTORS, IO, Detector
from criproxy.control.interference.disks import LARGE_RATIO, DisksState
from criproxy.control.interference.ladder import EvictionOrder, LadderDecision, LadderSettings, Rung
from criproxy.control.interference.responder import (
    DiskBound,
    InterferenceStatus,
    Move,
    Responder,
    ResponderState,
    RungStatus,
    SignalStatus,
)
from criproxy.control.interference.service_checks import (
    ANNOTATION,
    SERVICE_CHECK,
    Hearing,
    at_rest,
    excused,
    heard,
    in_a_case,
    worst_of,
)
from criproxy.control.interference.signals import CPU_SIGNALS, SignalValue, observed, values
from criproxy.control.interference.victim import owner_of
from criproxy.control.loop import Loop
from criproxy.model import MEMORY
from criproxy.model.modes import LimitsUse
from criproxy.model.shown import Counter, Gauge
from criproxy.model.signals import MemoryRoom, Missing, SignalReading, WorkReading
from criproxy.pods.disk_bounds import DiskBounds, DisksUse
from criproxy.pods.eviction import EvictionState, PodEviction
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.part import NodeSettings, Part
from criproxy.pods.service_checks import ServiceChecks
from criproxy.pods.shared import PodsShared, Trouble
from criproxy.pods.stopping import ON_HARM, ON_OVER_LIMIT
from criproxy.pods.words import megabytes, moment

SHORTAGE: Final = "memory_shortage"

LARGE_IO_SHARE: Final = 100.0 * LARGE_RATIO
"""In %."""

_MOVES: Final = 20
_RUNGS: Final = tuple(rung.value for rung in Rung)

NO_HIGH: Final = (
    "no experiment is made of it, as cgroup v1 has no memory.high, and a lower limit would kill: it is judged by "
    "account alone, and never held below the prediction"
)

NO_IO_MAX: Final = (
    "no experiment is made of it, as a limit of cgroup v1 on a disk does not hold for what is below the box"
)

_OFF: Final = Missing("interference.enabled is false")
_FIRST: Final = "no look has been taken yet"


class InterferenceSettings(Struct, frozen=True):
    """`acts`: the box's limits are ours to set. `enabled`: off, the node's shortage of memory alone is answered.

    `disks`: whose its limits on disks are. `cpi`: the processor counts what online pods do.
    """

    ladder: LadderSettings = LadderSettings()
    acts: bool = False
    enabled: bool = True
    disks: DisksUse = DisksUse.HELD
    cpi: bool = False

    @property
    def detectors(self) -> tuple[Detector, ...]:
        return tuple(one for one in DETECTORS if self.enabled or one.name == SHORTAGE)


def answer_asked(now: NodeSettings) -> InterferenceSettings:
    config = now.config.interference
    return InterferenceSettings(
        ladder_settings(config), now.relieves, config.enabled and not now.held_off, _disks(now), config.cpi
    )


def _disks(now: NodeSettings) -> DisksUse:
    limits = now.modes.limits
    if limits is LimitsUse.WRITTEN and now.config.interference.enabled:
        return DisksUse.HELD
    return DisksUse.LIFTED if limits is LimitsUse.WRITTEN or now.lifts else DisksUse.LEFT


class InterferenceState(Struct, frozen=True):
    """What a restart keeps. `well`: the sandboxes whose service has been well."""

    responder: ResponderState
    moves: tuple[Move, ...] = ()
    disks: DisksState = DisksState()
    cpi: dict[str, Usual] = {}
    well: frozenset[str] = frozenset()
    eviction: EvictionState = EvictionState()


class InterferenceWatch(Part, Struct, eq=False):
    """See the module. `reader` None: this machine has no cgroups to read. `moved`: to have the state saved soon.

    `closed` and `status` may be asked for from any thread.
    """

    NAME = "answering harm to online pods"
    EVERY_S = FIRST_S = 1.0
    SLACK_S = 0.1
    GAUGES = (
        Gauge(
            "ladder_rung",
            "Where a resource of the box stands: 0 open, 1 tried, 2 squeezed, 3 closed, 4 evicting",
            lambda now: {one.resource: float(_RUNGS.index(one.rung)) for one in now.rungs},
            "resource",
        ),
        Gauge(
            "disk_bound_bytes_per_second",
            "What the box may read, and write, on a disk that it uses; +Inf: all it can",
            lambda now: {one.name: math.inf if one.bytes_per_s is None else one.bytes_per_s for one in now.disks},
            "device",
        ),
        Gauge(
            "signal",
            "A signal of harm to online pods, in its unit; NaN: it has no value now",
            lambda now: {one.name: math.nan if one.value is None else one.value for one in now.signals},
            "signal",
        ),
        Gauge(
            "signal_bar",
            "The value above which a signal counts as harm",
            lambda now: {one.name: one.bar for one in now.signals},
            "signal",
        ),
    )
    COUNTERS = (
        Counter(
            "evictions",
            "Offline pods that were stopped as online ones were harmed, or as the box could not be brought within its "
            "limit, by what was scarce",
            ("resource",),
        ),
        Counter("ladder_transitions", "Moves of a resource of the box to a rung of the ladder", ("resource", "rung")),
        Counter("exonerations", "Alarms of a signal of which the box proved not to be the cause", ("signal",)),
    )

    shared: PodsShared
    box: Box
    reader: SignalReader | None
    loop: Loop
    guard: CpuGuard
    relief: MemoryRelief
    eviction: PodEviction
    services: ServiceChecks
    disks: DiskBounds
    moved: Callable[[], object]
    settings: InterferenceSettings = InterferenceSettings()
    closed: str = ""
    _responder: Responder = field(default_factory=lambda: Responder(LadderSettings()))
    _resting: str = _FIRST
    _before: SignalReading | None = None
    _found: Sequence[SignalValue] = ()
    _own_limits: bool = False
    _hearing: Hearing = Hearing()
    _cpi: CpiMeter = field(default_factory=CpiMeter)
    _cpu_seen_s: float | None = None
    _cpu_idle: bool = False
    _shares: Mapping[str, float] = {}
    _moves: tuple[Move, ...] = ()
    _order: EvictionOrder | None = None
    _choice: asyncio.Task[None] | None = None
    """Carries out the order, until it is known who goes."""
    _evicting: set[asyncio.Task[None]] = set()
    """Those that carry out orders; `_choice`, and others whose pods are on their way."""
    _waits: bool = False
    _gone_s: float = 0.0
    """When the last pod went for memory (CLOCK_BOOTTIME)."""
    _unseen: Trouble = field(default_factory=Trouble)
    _unheld: Trouble = field(default_factory=Trouble)

    def __post_init__(self) -> None:
        self._responder = Responder(self._ladder(), self.settings.detectors)

    def _ladder(self) -> LadderSettings:
        """As it is set, as far as this machine can do it."""
        ladder = self.settings.ladder
        if self.box.spares_memory:
            return ladder
        untried = (replace(one, phase_s=None) if one.name in (MEMORY, IO) else one for one in ladder.resources)
        return replace(ladder, resources=tuple(untried))

    def configure(self, now: NodeSettings) -> None:
        self.set_to(answer_asked(now))

    def set_to(self, settings: InterferenceSettings) -> None:
        """From the next look on; what was learned stays, as does where each resource stands."""
        if settings != self.settings:
            before, self.settings = self._responder.state(), settings
            self._responder = Responder(self._ladder(), settings.detectors)
            self._responder.load(before)
        if not settings.acts:
            self._rest("the box's limits are not criproxy's to set now")

    # --- a look -----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """What fails of it is logged once, and the next look tries again. A kernel that does not answer is no reason to
        stand still: what is held is judged without signals then.
        """
        pods = len(self.shared.inventory.running_pods)
        if self._waits:
            return
        if not self.settings.acts:
            self.disks.rest(self.settings.disks)
            return
        if not pods and self._responder.at_rest:
            self._rest("the box has no pods, so it harms nobody")
            if self._responder.remembers:
                self._responder.tick(self.shared.clock.boottime_s(), {}, pods)
            return
        now_s, shown = self.shared.clock.boottime_s(), dict[str, float]()
        if not pods:
            self._forget("the box has no pods; what is held is given back by and by")
        else:
            with self._unseen.logged_by(lambda e: self.shared.log.warning("interference_not_seen", error=str(e))):
                shown = await self._read(now_s)
            if self._unseen.last:  # what the look before has shown holds no more
                self._found = ()
                self.disks.read(None)
                self.guard.acquit(False)
        await self._tick(now_s, shown, pods)

    async def _read(self, now_s: float) -> dict[str, float]:
        """The signals that the detectors are shown, by name. Raises CgroupError."""
        await self.relief.judge_now(self.loop.given, self.loop.due)
        workloads = self._workloads()
        reading = await self._reading(workloads)
        if reading is None:
            self._forget("kubelet's cgroup is not known yet")
            return {}
        self.disks.read(reading)
        self._found = found = (
            *values(self._before, reading, self.relief.hard),
            *self._services_word(now_s),
            *self._processors_word(now_s, reading, workloads),
        )
        self._before, self._resting, self._cpu_idle = reading, "", reading.cpu_idle
        bars = self._responder.bars()
        levels = {name: bar - self._responder.detectors[name].hysteresis for name, bar in bars.items()}
        known = [one for one in found if one.name in levels]
        seen = {one.name: observed(one, levels[one.name]) for one in known}
        cpu = [one for one in known if one.name in CPU_SIGNALS and one.most is not None]
        self._own_limits = any(
            seen[one.name][1] or self._responder.answers(one.name) or (one.most or 0.0) > bars[one.name] / 2.0
            for one in cpu
        )
        if any(seen[one.name][0] is not None for one in cpu):
            self._cpu_seen_s = now_s
        self.guard.acquit(any(self._is_innocent(one, seen[one.name][0], levels[one.name]) for one in cpu))
        shown = {name: value for name, (value, _) in seen.items() if value is not None}
        return self._without_others_io(shown)

    def _services_word(self, now_s: float) -> Iterator[SignalValue]:
        """What online services say of themselves, as the one signal that there is of it."""
        responder, name = self._responder, SERVICE_CHECK
        if name not in responder.detectors:
            return
        signals, asked = self.services.signals(), self.services.services()
        bar, case = responder.bars()[name], responder.ladder.case
        self._hearing = heard(signals, self._hearing, bar, bar - responder.detectors[name].hysteresis)
        if case is not None and case.detector == name:
            word, self._hearing = in_a_case(signals, self._hearing, responder.trial_counts_from_s(name))
            yield word
        elif signals:
            law = worst_of if responder.answers(name) else at_rest
            word, self._hearing = law(signals, self._hearing)
            yield word
        elif asked:
            yield SignalValue(name, "%", gap=f"{asked[0].pod}: {asked[0].problem or 'it has not answered of late'}")
        else:
            yield SignalValue(name, "%", absent=f"no online pod asks for it by the annotation {ANNOTATION}")

    def _workloads(self) -> dict[str, str]:
        """What online pods run, by uid, as far as labels say: pods of one owner are alike."""
        if not self.settings.cpi:
            return {}
        pods = self.shared.inventory.outside.values()
        return {pod.ref.uid: owner_of(pod) or str(pod.ref) for pod in pods}

    def _processors_word(
        self, now_s: float, reading: SignalReading, workloads: Mapping[str, str]
    ) -> Iterator[SignalValue]:
        """How many cycles online pods take for their instructions; nothing, where it is not asked for."""
        work, since_s = reading.work, self._responder.trial_counts_from_s(CPI)
        if work is None:
            return
        self._cpi.take(work, workloads)
        if since_s is not None and isinstance(work, WorkReading):
            yield self._cpi.of_accused(work.read_s - max(0.0, now_s - since_s))
        else:
            yield self._cpi.of_accused() if self._responder.answers(CPI) else self._cpi.at_rest()

    async def _reading(self, workloads: Mapping[str, str]) -> SignalReading | None:
        if self.settings.enabled and self.reader is not None:
            counted = tuple(workloads) if self.settings.cpi else None
            job = partial(self.reader.of_box, own_limits=self._own_limits, counted=counted)
            return await self.box.reads("read signals", lambda _, box: job(box))
        evidence = self.relief.evidence
        if evidence is None:
            return None
        room = MemoryRoom(int(evidence.capacity), None, int(evidence.available))
        return SignalReading(_OFF, _OFF, _OFF, _OFF, room, _OFF, _OFF, _OFF)

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

    # --- what follows -----------------------------------------------------------------------------------------------

    async def _tick(self, now_s: float, shown: Mapping[str, float], pods: int) -> None:
        over = frozenset({MEMORY}) if self.relief.accountable else frozenset[str]()
        unused = frozenset[str]() if self.disks.suspected else frozenset({IO})
        irreducible = {MEMORY: words} if (words := self.relief.irreducible(self._gone_s)) else {}
        decision = self._responder.tick(now_s, shown, pods, over, unused, irreducible=irreducible)
        wall_s, log = self.shared.clock.wall_s(), self.shared.log
        for one in decision.transitions:
            worse = one.after is not Rung.OPEN and one.before is not Rung.EVICTING
            write = log.warning if worse else log.info
            write("ladder", resource=one.resource, old=one.before, new=one.after, signal=one.signal, reason=one.reason)
            self.shared.counters.count("ladder_transitions", one.resource, one.after)
            if self.shared.tells is not None:
                self.shared.tells.transition(one)
        for name in decision.exonerated:
            self.shared.counters.count("exonerations", name)
        if SERVICE_CHECK in decision.exonerated:
            rest = self._responder.detectors[SERVICE_CHECK].rest
            self._hearing = excused(self.services.signals(), self._hearing, rest)
        self._moves = (*self._moves, *(Move(wall_s, one) for one in decision.transitions))[-_MOVES:]
        self._close(decision.closed)
        self.services.hurry("" if self._responder.trial_counts_from_s(SERVICE_CHECK) is None else self._hearing.accuser)
        if decision.eviction is not None:
            self._ask_for(decision.eviction)
        if decision.transitions or decision.eviction is not None:
            self.moved()
        self._bound_disks(decision)
        await self._hold(decision.shares)

    def _bound_disks(self, decision: LadderDecision) -> None:
        if self.settings.disks is not DisksUse.HELD:
            self.disks.rest(self.settings.disks)
            return
        share, rung = decision.shares.get(IO), self._responder.ladder.of(IO).rung
        freed = [one for one in decision.transitions if one.resource == IO and one.after is Rung.OPEN]
        innocent = any(one.before is not Rung.SQUEEZED or one.signal in decision.exonerated for one in freed)
        given_back = rung is Rung.TRIED and share is None
        self.disks.keep(share, calm=self._is_calm_at_disks(), innocent=innocent or given_back)

    def _is_calm_at_disks(self) -> bool:
        """What the disks do now hurts nobody, as far as is known."""
        name, responder = "io_pressure", self._responder
        if responder.is_harmed_by(IO) or name not in responder.detectors:
            return False
        level = responder.bars()[name] - responder.detectors[name].hysteresis
        waits = next((one.most for one in self._found if one.name == name), None)
        return waits is None or waits < level

    def _close(self, why: str) -> None:
        self.closed = why
        self.shared.holds.close(why)

    def _spared(self, shares: Mapping[str, float]) -> Mapping[str, float]:
        """The shares that can be had without killing."""
        if MEMORY not in shares or self.box.spares_memory:
            return shares
        return {**shares, MEMORY: 1.0}

    async def _hold(self, shares: Mapping[str, float]) -> None:
        before, self._shares = self._shares, self._spared(shares)
        self.loop.see(HarmSeen(self._shares, self._cpu_seen_s, self._cpu_idle))
        if any(share < before.get(name, 1.01) for name, share in self._shares.items()):
            self.moved()
            with self._unheld.logged_by(lambda e: self.shared.log.warning("squeeze_failed", error=str(e))):
                await self.loop.renew()

    def _ask_for(self, order: EvictionOrder) -> None:
        """One order waits for the other, but an emergency's for none that is less.

        What is called off for that stays in the budget: Kubernetes may have been asked already.
        """
        before = self._order
        waits = before is not None and (before.emergency or not order.emergency)
        if waits or self._setting_of(order) not in self.shared.holds.stops_by:
            self._responder.not_evicted()
            return
        if self._choice is not None:
            self._choice.cancel()
            self._choice = None
        self._order = order
        self._choice = task = asyncio.create_task(self._carry_out())
        self._evicting.add(task)
        task.add_done_callback(self._evicting.discard)

    @staticmethod
    def _setting_of(order: EvictionOrder) -> str:
        """By which the pod goes, so that it is known which one to change."""
        return ON_OVER_LIMIT if order.signal in ("", SHORTAGE) else ON_HARM

    async def _carry_out(self) -> None:
        try:
            await self.evict()
        except Exception as error:  # the next look gives the order anew, if it must be
            self.shared.log.error("eviction_failed", error=str(error) or type(error).__name__, exc_info=error)

    def cease(self) -> None:
        for task in self._evicting:
            task.cancel()

    async def evict(self) -> None:
        """Carry out the order that was given."""
        order = self._order
        if order is None:
            return

        def chosen(owners: tuple[str, ...]) -> None:
            self._order = self._choice = None
            self._responder.evicted(owners)
            self.moved()

        try:
            owners = await self.eviction.evict(order, self._setting_of(order), self.relief.excess_bytes, chosen)
        finally:
            if self._order is order:
                self._order = self._choice = None
        if owners is None:
            self._responder.not_evicted()
        elif order.resource == MEMORY:
            self._gone_s = self.shared.clock.boottime_s()
        self.moved()

    def _rest(self, why: str) -> None:
        """Nothing is held back."""
        self._forget(why)
        self.services.hurry("")
        self._close("")
        self._shares = {}
        self.disks.rest(DisksUse.LIFTED if self.settings.disks is DisksUse.HELD else self.settings.disks)
        self.loop.see(NOTHING_SEEN)

    def _forget(self, why: str) -> None:
        """No signal is known."""
        self._resting = why
        self._before, self._found, self._own_limits, self._cpu_seen_s = None, (), False, None
        self._hearing = Hearing()
        self.disks.read(None)
        self.guard.acquit(False)

    # --- what others ask of it --------------------------------------------------------------------------------------

    def checkpoint(self) -> InterferenceState:
        """What a restart should keep."""
        return InterferenceState(
            self._responder.state(),
            self._moves,
            self.disks.state,
            self._cpi.state(),
            self.services.well,
            self.eviction.checkpoint(),
        )

    def wait_for_checkpoint(self, waits: bool) -> None:
        """While it waits, no look is taken: one that does not know what is held back would give it back."""
        self._waits = waits

    def restore(self, state: InterferenceState, shift_s: float) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours: nothing that was held is lifted."""
        try:
            self._responder.load(state.responder, shift_s)
        except ValueError as error:
            self.shared.log.warning("interference_starts_cold", lost=str(error))
        self._moves, self.disks.state = state.moves, state.disks
        self._cpi.load(state.cpi)
        self.services.recall(state.well)
        self.eviction.restore(state.eviction, shift_s)
        if self.settings.acts:
            in_force = self._responder.in_force()
            self._shares = self._spared(in_force.shares)
            self._close(in_force.closed)
            self.loop.see(HarmSeen(self._shares))

    def status(self) -> InterferenceStatus:
        now_s, ladder, budget = self.shared.clock.boottime_s(), self._responder.ladder, self.settings.ladder.budget
        bars, moves = self._responder.bars(), self._moves
        rungs = []
        for resource in self.settings.ladder.resources:
            last = next((one for one in reversed(moves) if one.transition.resource == resource.name), None)
            rungs.append(
                RungStatus(
                    resource=resource.name,
                    rung=ladder.of(resource.name).rung.value,
                    since_s=None if last is None else last.wall_s,
                    reason="" if last is None else last.transition.reason,
                    share=self._shares.get(resource.name),
                    untried=self._untried(resource.name),
                    probe_in_s=self._responder.probe_in_s(resource.name),
                )
            )
        return InterferenceStatus(
            resting=self._resting,
            signals=tuple(_status(one, bars[one.name]) for one in self._found if one.name in bars),
            rungs=tuple(rungs),
            closed=self.closed,
            evictions=sum(now_s - one.t_s < budget.window_s for one in ladder.evictions),
            most=budget.most,
            moves=tuple(reversed(moves)),
            disks=self.disks.status(),
            kept=budget.most - budget.of(emergency=False),
        )

    def problems(self) -> Iterator[str]:
        yield from Part.problems(self)
        if self.closed:
            yield f"no offline pod is let in: {self.closed}"

    def now(self) -> InterferenceStatus:
        return self.status()

    def section(self) -> Mapping[str, Any]:
        return {"interference": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """What is known of harm to online pods: the signals, where each resource stands, and why."""
        harm = self.status()
        here = [one for one in harm.signals if one.here]
        seen = f"{len(here)} here, {len(harm.signals) - len(here)} not"
        yield (
            "signals",
            f"none is looked at: {harm.resting}" if harm.resting else seen,
            *map(_signal_in_words, harm.signals),
        )
        stand = harm.closed or ", ".join(f"{one.resource} {one.rung}" for one in harm.rungs)
        yield "ladder", stand, *_rungs_in_words(harm.rungs), *_disks_in_words(harm.disks), *_evictions_in_words(harm)

    def _untried(self, resource: str) -> str:
        if not self.box.spares_memory:
            return {MEMORY: NO_HIGH, IO: NO_IO_MAX}.get(resource, "")
        return self.disks.problem if resource == IO and not self._resting else ""


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


def _signal_in_words(one: SignalStatus) -> str:
    value = "" if one.value is None else f"{one.value:.4g} {one.unit}, harm above {one.bar:.4g}"
    words = "; ".join(filter(None, (value, one.note, one.why)))
    return f"{one.name}: {'here' if one.here else 'not here'}, {words}"


def _rungs_in_words(rungs: Iterable[RungStatus]) -> Iterator[str]:
    for rung in rungs:
        if rung.untried:
            yield f"{rung.resource}: {rung.untried}"
        if rung.since_s is not None:
            share = "" if rung.share is None else f", {rung.share:.0%} of the way from its floor"
            yield f"{rung.resource}: {rung.rung}{share}, since {moment(rung.since_s)}: {rung.reason}{_probe(rung)}"


def _probe(rung: RungStatus) -> str:
    if rung.probe_in_s is None:
        return ""
    return f"; more of it is given back after {rung.probe_in_s:.0f} s more of calm, to see whether the harm comes back"


def _disks_in_words(disks: Iterable[DiskBound]) -> Iterator[str]:
    for disk in disks:
        if disk.bytes_per_s is None or disk.operations_per_s is None:
            continue
        calm = f"{megabytes(disk.calm_bytes_per_s)}, {disk.calm_operations_per_s:.0f} operations/s"
        bound = f"{megabytes(disk.bytes_per_s)} and {disk.operations_per_s:.0f} operations/s"
        yield f"disk {disk.name}: reads and writes are held to {bound} each; while online was calm it did {calm}"


def _evictions_in_words(harm: InterferenceStatus) -> Iterator[str]:
    if harm.evictions:
        kept = f", {harm.kept} of them in an emergency only" if harm.kept else ""
        yield f"{harm.evictions} pods were stopped in ten minutes, of {harm.most} at most{kept}"
