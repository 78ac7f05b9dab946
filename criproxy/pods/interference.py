"""Answers harm to online pods: has each look judged (`control.interference.judge`), and does what the ladder says.

    what comes out    what is done with it
    shares            the control loop keeps to them in the same look (`pods.control_loop`)
    closed            no offline pod is let in (`Holds`), and `closed` here says why, for whoever publishes capacity
    one pod to go     `PodEviction` chooses and stops it, beside the looks; what it says of the owner is in the budget
    disks             the box is bounded on them one by one: see `control.interference.disks`
    transitions       the log, the counters, the status; and the checkpoint is written, so that a restart begins there;
                      so it is when a share has sunk, as nothing is given back by a restart

It rests while the box has no pods: then the box harms nobody. A restricted resource is then given back by the
ladder's clocks, as signals that are not reported for long count as calm.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupDriver
from criproxy.cgroup.signals import SignalReader
from criproxy.config.ladder import ladder_settings
from criproxy.control.day import Kind
from criproxy.control.evidence import NOTHING_SEEN, HarmSeen
from criproxy.control.interference.bystanders import UNUSED_RATIO
from criproxy.control.interference.cpi import Usual
from criproxy.control.interference.detectors import DETECTORS, IO, Detector
from criproxy.control.interference.disks import DisksState
from criproxy.control.interference.judge import Accusers, Judge, JudgedLook, Look
from criproxy.control.interference.ladder import RESOURCES_IN_TURN, EvictionOrder, LadderSettings, Rung
from criproxy.control.interference.responder import (
    DiskBound,
    InterferenceStatus,
    Move,
    ResponderState,
    RungStatus,
    SignalStatus,
)
from criproxy.control.interference.victim import owner_of
from criproxy.control.pod_speed import Feedback
from criproxy.model import CPU, MEMORY, Pod
from criproxy.model.modes import LimitsUse
from criproxy.model.shown import Counter, Gauge, Shows
from criproxy.model.signals import MemoryRoom, Missing, SignalReading
from criproxy.pods.disk_bounds import DiskBounds, DisksUse
from criproxy.pods.eviction import EvictionState, PodEviction
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.part import NodeSettings
from criproxy.pods.pod_speeds import PodSpeeds
from criproxy.pods.service_checks import ServiceChecks
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_HARM, ON_OVER_LIMIT, ON_STARVED
from criproxy.pods.words import megabytes, moment

SHORTAGE: Final = "memory_shortage"

_MOVES: Final = 20
_RUNGS: Final = tuple(rung.value for rung in Rung)
_RESOURCES: Final = tuple(one.name for one in RESOURCES_IN_TURN)

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
    """What a restart keeps. `well`: the sandboxes whose service has been well. `feedback`: see `pods.pod_speeds`."""

    responder: ResponderState
    moves: tuple[Move, ...] = ()
    disks: DisksState = DisksState()
    cpi: dict[str, Usual] = {}
    well: frozenset[str] = frozenset()
    eviction: EvictionState = EvictionState()
    feedback: Feedback | None = None
    accusers: Accusers = Accusers()


class InterferenceWatch(Shows, Struct, eq=False):
    """See the module. `reader` None: this machine has no cgroups to read. `save_soon`: to have the state saved soon.

    A look of the control loop has `job` read, what it reads judged, and what follows done; `seen` holds in between.

    Any thread may call `closed` and `status`.
    """

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
            {"resource": _RESOURCES},
        ),
        Counter(
            "ladder_transitions",
            "Moves of a resource of the box to a rung of the ladder",
            {"resource": _RESOURCES, "rung": _RUNGS},
        ),
        Counter(
            "exonerations",
            "Alarms of a signal of which the box proved not to be the cause",
            {"signal": tuple(one.name for one in DETECTORS)},
        ),
    )

    shared: PodsShared
    box: Box
    reader: SignalReader | None
    relief: MemoryRelief
    eviction: PodEviction
    services: ServiceChecks
    disks: DiskBounds
    speeds: PodSpeeds
    save_soon: Callable[[], object]
    settings: InterferenceSettings = InterferenceSettings()
    seed: int = field(default_factory=lambda: secrets.randbits(64))
    closed: str = ""
    seen: HarmSeen = NOTHING_SEEN
    _judge: Judge = field(default_factory=lambda: Judge(LadderSettings()))
    _judged: JudgedLook | None = None
    """By the look that is not yet followed."""
    _named: tuple[Mapping[str, Pod], Mapping[str, str]] = ({}, {})
    """The pods outside the box, and their names by uid, which each look needs and which seldom change."""
    _resting: str = _FIRST
    _moves: tuple[Move, ...] = ()
    _order: EvictionOrder | None = None
    _choice: asyncio.Task[None] | None = None
    """Carries out the order, until it is known who goes."""
    _evicting: set[asyncio.Task[None]] = set()
    """Those that carry out orders; `_choice`, and others whose pods are on their way."""
    _waits: bool = False
    _gone_s: float = 0.0
    """When the last pod went for memory (CLOCK_BOOTTIME)."""

    def __post_init__(self) -> None:
        self._judge = Judge(
            self.settings.ladder, self.settings.detectors, spares_memory=self.box.spares_memory, seed=self.seed
        )

    def configure(self, now: NodeSettings) -> None:
        self.set_to(answer_asked(now))

    def set_to(self, settings: InterferenceSettings) -> None:
        """From the next look on; what was learned stays, as does where each resource stands."""
        self.settings = settings
        self._judge.configure(settings.ladder, settings.detectors)
        if not settings.acts:
            self._rest("the box's limits are not criproxy's to set now")

    # --- a look -----------------------------------------------------------------------------------------------------

    @property
    def pace_s(self) -> float | None:
        """From one look to the next; None: with each sample of the control loop, as there is nothing to look at."""
        return self._judge.responder.look_s if self._looks else None

    @property
    def innocent(self) -> bool:
        """Whether the last look has shown that the box is not what online waits for."""
        return self._judged is not None and self._judged.innocent

    @property
    def _looks(self) -> bool:
        """Whether there is anything to look at, or to give back."""
        return self.settings.acts and not self._waits

    def job(self) -> Callable[[CgroupDriver, str], SignalReading] | None:
        """What this look needs to be read of driver and box, on the reader's thread; None: nothing."""
        if not self._looks or not self.shared.inventory.running_pods:
            return None
        if self.reader is None or not self.settings.enabled:
            return None
        online = tuple(self._online())
        own_limits, counts_work = self._judge.asks_own_limits, self.settings.cpi
        read = partial(self.reader.of_box, own_limits=own_limits, online=online, counts_work=counts_work)
        return lambda _, box: read(box)

    def judge(self, now_s: float, reading: SignalReading | Exception | None) -> None:
        """What this look means. A reading that failed is no reason to stand still: what is restricted is judged without
        signals then.
        """
        self._judged = None
        pods, responder = len(self.shared.inventory.running_pods), self._judge.responder
        if not self._looks or (not pods and not self.shared.inventory.places_known):
            return
        if not pods and responder.at_rest:
            self._rest("the box has no pods, so it harms nobody")
            if responder.remembers:
                self._judge.judge(Look(now_s, pods))
            return
        if not pods:
            self._forget("the box has no pods; what is held is given back by and by")
            reading = None
        elif not isinstance(reading, Exception):
            reading = reading if self.settings.enabled and self.reader is not None else self._room()
            if reading is None:
                self._forget("kubelet's cgroup is not known yet")
            else:
                self._resting = ""
        known = reading if isinstance(reading, SignalReading) else None
        self.disks.read(known)
        self._judged = judged = self._judge.judge(self._found(now_s, pods, known))
        before, shares = self.seen.shares, judged.decision.shares
        self.seen = self._judge.seen(shares)
        self.speeds.ladder_holds_cpu(CPU in shares)
        if any(share < before.get(name, 1.01) for name, share in shares.items()):
            self.save_soon()

    def _room(self) -> SignalReading | None:
        """The node's memory alone, by what it has in use."""
        evidence = self.relief.evidence
        if evidence is None:
            return None
        room = MemoryRoom(int(evidence.capacity), None, int(evidence.available))
        return SignalReading.without(_OFF, room=room)

    def _found(self, now_s: float, pods: int, reading: SignalReading | None) -> Look:
        asked = self.services.services()
        first = asked[0] if asked else None
        pods_end = {MEMORY: self.relief.irreducible(self._gone_s), CPU: self.speeds.why_one_is_to_go()}
        return Look(
            t_s=now_s,
            pods=pods,
            reading=reading,
            hard=self.relief.hard,
            services=self.services.signals(),
            unanswered="" if first is None else f"{first.pod}: {first.problem or 'it has not answered of late'}",
            online=self._online(),
            workloads=self._workloads(),
            over=frozenset({MEMORY} if self.relief.accountable else ()),
            unused=frozenset(() if self.disks.suspected else {IO}),
            idle=frozenset({MEMORY} if self._has_no_memory() else ()),
            irreducible={name: why for name, why in pods_end.items() if why},
            leaving=self.eviction.leaving,
        )

    def _has_no_memory(self) -> bool:
        """Whether the box has so little of the node's memory that taking it would say nothing.

        Page cache that nobody uses any more counts: it is what a box floods a node with.
        """
        evidence = self.relief.evidence
        return evidence is not None and max(evidence.box, evidence.charged) < UNUSED_RATIO * evidence.capacity

    def _online(self) -> Mapping[str, str]:
        """The names of online's pods, by uid."""
        outside = self.shared.inventory.outside
        if self._named[0] is not outside:
            self._named = outside, {pod.ref.uid: str(pod.ref) for pod in outside.values()}
        return self._named[1]

    def _workloads(self) -> dict[str, str]:
        """What online pods run, by uid, as far as labels say: pods of one owner are alike."""
        if not self.settings.cpi:
            return {}
        pods = self.shared.inventory.outside.values()
        return {pod.ref.uid: owner_of(pod) or str(pod.ref) for pod in pods}

    # --- what follows -----------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Do what the last look has shown to be needed, beside the limits."""
        judged = self._judged
        if judged is None:
            if not self.settings.acts:
                self.disks.rest(self.settings.disks)
            return
        decision, log = judged.decision, self.shared.log
        for one in decision.transitions:
            worse = one.after is not Rung.OPEN and one.before is not Rung.EVICTING
            write = log.warning if worse else log.info
            write("ladder", resource=one.resource, old=one.before, new=one.after, signal=one.signal, reason=one.reason)
            self.shared.counters.count("ladder_transitions", one.resource, one.after)
            self.shared.day.mark(self.shared.clock.boottime_s(), Kind.RUNG, one.reason, one.resource, one.after)
            if self.shared.tells is not None:
                self.shared.tells.transition(one)
        for name in decision.exonerated:
            self.shared.counters.count("exonerations", name)
        wall_s = self.shared.clock.wall_s()
        self._moves = (*self._moves, *(Move(wall_s, one) for one in decision.transitions))[-_MOVES:]
        self._close(decision.closed)
        if decision.eviction is not None:
            self._ask_for(decision.eviction)
        if decision.transitions or decision.eviction is not None:
            self.save_soon()
        self._bound_disks(judged)

    def _bound_disks(self, judged: JudgedLook) -> None:
        if self.settings.disks is not DisksUse.HELD:
            self.disks.rest(self.settings.disks)
            return
        share = judged.decision.shares.get(IO)
        self.disks.keep(share, calm=judged.calm_at_disks, innocent=judged.innocent_of_io)

    def _close(self, why: str) -> None:
        self.closed = why
        self.shared.holds.close(why)

    def _ask_for(self, order: EvictionOrder) -> None:
        """One order waits for the other, but an emergency's for none that is less.

        What is called off for that stays in the budget: Kubernetes may have begun with it.
        """
        before = self._order
        waits = before is not None and (before.emergency or not order.emergency)
        if waits or self._setting_of(order) not in self.shared.holds.stops_by:
            self._judge.responder.not_evicted()
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
        if order.starved:
            return ON_STARVED
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
            self._judge.responder.evicted(owners)
            self.save_soon()

        try:
            owners = await self.eviction.evict(order, self._setting_of(order), self.relief.excess_bytes, chosen)
        finally:
            if self._order is order:
                self._order = self._choice = None
            if order.starved:
                self.speeds.one_was_to_go()
        if owners is None:
            self._judge.responder.not_evicted()
        elif order.resource == MEMORY:
            self._gone_s = self.shared.clock.boottime_s()
        self.save_soon()

    def _rest(self, why: str) -> None:
        """Nothing is restricted."""
        self._forget(why)
        self._close("")
        self.disks.rest(DisksUse.LIFTED if self.settings.disks is DisksUse.HELD else self.settings.disks)
        self.seen, self._judged = NOTHING_SEEN, None
        self.speeds.ladder_holds_cpu(False)

    def _forget(self, why: str) -> None:
        """No signal is known."""
        self._resting = why
        self._judge.forget()
        self.disks.read(None)

    # --- what others ask of it --------------------------------------------------------------------------------------

    def checkpoint(self) -> InterferenceState:
        """What a restart should keep."""
        responder, usual, accusers = self._judge.state()
        return InterferenceState(
            responder,
            self._moves,
            self.disks.state,
            usual,
            self.services.well,
            self.eviction.checkpoint(),
            self.speeds.feedback,
            accusers,
        )

    def wait_for_checkpoint(self, waits: bool) -> None:
        """While it waits, no look is taken: one that does not know the restrictions would lift them."""
        self._waits = waits

    def restore(self, state: InterferenceState, shift_s: float) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours: no restriction is lifted."""
        try:
            self._judge.load(state.responder, state.cpi, state.accusers, shift_s)
        except ValueError as error:
            self.shared.log.warning("interference_starts_cold", lost=str(error))
        self._moves = tuple(
            replace(one, transition=replace(one.transition, t_s=one.transition.t_s + shift_s)) for one in state.moves
        )
        self.disks.state = state.disks
        self.services.recall(state.well)
        self.eviction.restore(state.eviction, shift_s)
        self.speeds.restore(state.feedback)
        if self.settings.acts:
            in_force = self._judge.in_force()
            self._close(in_force.closed)
            self.seen = HarmSeen(in_force.shares)

    def status(self) -> InterferenceStatus:
        now_s, budget = self.shared.clock.boottime_s(), self.settings.ladder.budget
        ladder, moves = self._judge.responder.ladder, self._moves
        return InterferenceStatus(
            resting=self._resting,
            signals=self._judge.signals(),
            rungs=tuple(self._rung(one.name) for one in self.settings.ladder.resources),
            closed=self.closed,
            evictions=sum(now_s - one.t_s < budget.window_s for one in ladder.evictions),
            most=budget.most,
            moves=tuple(reversed(moves)),
            disks=self.disks.status(),
            kept=budget.most - budget.of(emergency=False),
        )

    def _rung(self, resource: str) -> RungStatus:
        """While the limits are not ours, nothing is held, wherever the resource will stand when they are again."""
        untried = self._untried(resource)
        if not self.settings.acts:
            return RungStatus(resource, Rung.OPEN, None, self._resting, None, untried)
        responder = self._judge.responder
        last = next((one for one in reversed(self._moves) if one.transition.resource == resource), None)
        return RungStatus(
            resource=resource,
            rung=responder.ladder.of(resource).rung.value,
            since_s=None if last is None else last.wall_s,
            reason="" if last is None else last.transition.reason,
            share=self.seen.shares.get(resource),
            untried=untried,
            probe_in_s=responder.probe_in_s(resource),
        )

    def problems(self) -> Iterator[str]:
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
