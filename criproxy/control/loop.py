"""The control loop: sample, predict, decide, apply, once per interval."""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.concurrency.clock import Clock
from criproxy.control.evidence import NOTHING_SEEN, CpuEvidence, HarmSeen, counts, joined
from criproxy.control.guard import CpuGuard
from criproxy.control.guardlaw import Outlook
from criproxy.control.history import DecisionRecord, History
from criproxy.control.policy import PolicySettings, PolicyState, decide
from criproxy.control.predictor import Predictor, make_predictor
from criproxy.control.resources import RESOURCES
from criproxy.control.sampler import Sampler
from criproxy.control.series import PredictorSettings, PredictorState
from criproxy.model import (
    CPU,
    MEMORY,
    UNLIMITED,
    Capacity,
    Decision,
    LimitChange,
    Limits,
    Prediction,
    ResourcePrediction,
    Snapshot,
    UsageReading,
)

_HOUR: Final = "_hour"
"""Ends the name of a resource's predictor that looks an hour ahead."""

HOUR_S: Final = 3600.0
HOUR_ALPHA_RATIO: Final = 0.05
HOUR_COLD_START_PROBES: Final = 288
"""How far ahead a node can promise, how sure of it, and a day of learning before."""


class BoundedBox(Protocol):
    """What the loop asks of the box (`criproxy.cgroup.box`). When anything of it raises, the tick fails."""

    @property
    def starting(self) -> int:
        """How many pods of the box are starting."""

    @property
    def limits(self) -> Limits | None:
        """What the kernel held after the last write; None: there was none."""

    async def usage(self) -> UsageReading:
        """Counters of the node and of the box, read as close together as can be."""

    async def apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        """Make the kernel's limits these; returns what had to be written. Idempotent."""


class LoopSettings(Struct, frozen=True):
    """`dry_run` computes and reports all, and applies nothing. `cpu_by_evidence`: see `control.evidence`."""

    policy: PolicySettings
    predictor: PredictorSettings
    interval_s: float = 1.0
    dry_run: bool = False
    cpu_by_evidence: bool = False


class TickObserver(Protocol):
    """Hears of each tick, and how long it took in seconds."""

    def ticked(
        self, snapshot: Snapshot, decision: Decision, changes: tuple[LimitChange, ...], seconds: float
    ) -> None: ...

    def tick_failed(self, seconds: float) -> None: ...

    def sample_discarded(self, reason: str) -> None:
        """The tick's reading was no measurement, so nothing was decided."""

    def ticks_missed(self, count: int) -> None: ...


class Loop(Struct, eq=False):
    """Its cost is that of a few small files and 25 us of arithmetic, whatever the number of pods.

    `kept_free`: how much must stay free of a node's memory. `on_sample` gets each sample, before it is used, and what
    the policy gave last, and would have given (see `due`). `_predicted`: the last prediction, and the snapshot that it
    was made from.
    """

    box: BoundedBox
    read_capacity: Callable[[], Capacity]
    clock: Clock
    settings: LoopSettings
    observer: TickObserver
    log: structlog.typing.FilteringBoundLogger
    guard: CpuGuard
    kept_free: Callable[[float], float] = lambda _: 0.0
    on_sample: Callable[[Snapshot, Limits, Limits], None] = lambda *_: None
    history: History = field(default_factory=History)
    failed_ticks: int = 0
    _sampler: Sampler = field(default_factory=Sampler)
    _predictors: dict[str, Predictor] = {}
    _state: PolicyState = PolicyState()
    _given: Limits = {}
    _due: Limits = {}
    _seen: HarmSeen = NOTHING_SEEN
    _cpu_share: float | None = None
    """What the ladder left of CPU at the last decision."""
    _only_lowers: bool = False
    _predicted: tuple[Snapshot, Prediction] | None = None
    _trouble: str | None = None
    _drifting: bool = False
    _discarding: bool = False

    def __post_init__(self) -> None:
        self._predictors = _predictors(self.settings.predictor)

    # --- one tick ---------------------------------------------------------------------------------------------------

    async def tick(self) -> bool:
        """One round; never sleeps, never raises. False when it failed: then the limits stay as they are.

        The first round has no rates yet and changes nothing.
        """
        started_s = self.clock.boottime_s()
        try:
            snapshot = await self._sample()
            self._tell_discarded()
            if snapshot is None:
                self.guard.wake()
                await self._fall_back()
            else:
                self.on_sample(snapshot, self._given, self._due)
                prediction = self._predict(snapshot)
                self._predicted = snapshot, prediction
                decision, changes = await self._apply(snapshot, prediction, self.box.starting)
                self.observer.ticked(snapshot, decision, changes, self.clock.boottime_s() - started_s)
        except Exception as error:
            self._failed(error)
            self.guard.wake()
            with contextlib.suppress(Exception):  # the tick has failed, is counted and logged
                await self._fall_back()
            with contextlib.suppress(Exception):  # an observer may be what failed
                self.observer.tick_failed(self.clock.boottime_s() - started_s)
            return False
        self._recovered()
        return True

    async def _sample(self) -> Snapshot | None:
        usages = await self.box.usage()
        capacity = self.read_capacity()
        return self._sampler.sample(self.clock.boottime_s(), usages, capacity)

    def _predict(self, snapshot: Snapshot) -> Prediction:
        t_s, wall_s = snapshot.t_s, self.clock.wall_s()
        found = {}
        for name, sample in snapshot.of.items():
            now, hour = self._predictors[name], self._predictors[f"{name}{_HOUR}"]
            found[name] = ResourcePrediction(
                level=_known(now.observe(t_s, wall_s, sample.online, sample.capacity)),
                note=now.note,
                hour=_known(hour.observe(t_s, wall_s, sample.online, sample.capacity)),
            )
        return found

    async def _apply(
        self, snapshot: Snapshot, prediction: Prediction, starting: int = 0
    ) -> tuple[Decision, tuple[LimitChange, ...]]:
        """Decide and apply. The new state holds even if applying fails: the next tick goes on towards it."""
        settings = self.settings
        kept = {MEMORY: self.kept_free(snapshot.of[MEMORY].capacity)}
        decision, self._state = decide(
            snapshot,
            prediction,
            self._state,
            settings.policy,
            self.guard.ceiling(),
            starting=starting,
            kept=kept,
        )
        self._given = decision.limits
        known = {
            name: ResourcePrediction(snapshot.of[name].online) if one.note else one for name, one in prediction.items()
        }
        due, _ = decide(snapshot, known, PolicyState(), settings.policy, starting=starting, kept=kept)
        self._due = due.limits
        cpu = self._cpu_evidence(snapshot, decision)
        self._cpu_share = self._seen.shares.get(CPU)
        self.guard.decided(self._outlook(snapshot, decision, cpu))
        decision = joined(decision, settings.policy.resources, self._seen, cpu)
        limits = self._allowed(decision.asked_of_box)
        self._state = replace(self._state, before=decision.limits if limits is None else _of(decision, limits))
        changes = () if settings.dry_run or limits is None else await self.box.apply(limits)
        self._tell_drift(changes)
        self.history.add(DecisionRecord(self.clock.wall_s(), snapshot, decision, applied=not settings.dry_run))
        return decision, changes

    def _allowed(self, limits: Limits) -> Limits | None:
        """The limits that may be applied; None: a box that is not known yet keeps what it has."""
        if not self._only_lowers:
            return limits
        held = self.box.limits
        return None if held is None else _at_most(limits, held)

    def _cpu_evidence(self, snapshot: Snapshot, decision: Decision) -> CpuEvidence | None:
        if not self.settings.cpu_by_evidence:
            return None
        seen, capacity = self._seen, snapshot.of[CPU].capacity
        seen_s = None if seen.cpu_seen_s is None else snapshot.t_s - seen.cpu_seen_s
        share = seen.shares.get(CPU)
        acquitted = share is None and self._cpu_share == 0.0
        return CpuEvidence(capacity, seen.cpu_idle, seen_s, share, decision.guard, acquitted)

    def _outlook(self, snapshot: Snapshot, decision: Decision, cpu: CpuEvidence | None) -> Outlook:
        """For the guard: the CPU limit as it would be without it.

        By evidence, all of the node is expected of online, so that no use of it is an alarm, but only its waiting.
        """
        laws, limit = self.settings.policy.resources, self._state.resources[CPU].limit
        by_law = replace(decision.resources[CPU], limit=UNLIMITED if limit is None else limit, before=None)
        unguarded = joined(
            replace(decision, resources={CPU: by_law}),
            laws,
            self._seen,
            None if cpu is None else replace(cpu, guard=None),
        ).resources[CPU]
        capacity, level = snapshot.of[CPU].capacity, by_law.prediction.level
        limit_cores = math.inf if unguarded.limit is UNLIMITED else unguarded.limit
        by_evidence = cpu is not None and counts(laws[CPU], cpu)
        return Outlook(capacity, limit_cores, capacity if by_evidence else level)

    async def _fall_back(self) -> None:
        """Without a prediction for as long as one reaches ahead, nothing is known of online any more: the floor."""
        if self._predicted is None or self._still_predicted:
            return
        last, t_s = self._predicted[0], self.clock.boottime_s()
        note = f"no sample for {t_s - last.t_s:.0f} s"
        await self._apply(replace(last, t_s=t_s), dict.fromkeys(last.of, ResourcePrediction(None, note)))

    @property
    def _still_predicted(self) -> bool:
        """Whether the last prediction still reaches as far as now."""
        if self._predicted is None:
            return False
        return self.clock.boottime_s() - self._predicted[0].t_s <= self.settings.predictor.horizon_s

    def _tell_discarded(self) -> None:
        """Each to the observer; to the log once, until a reading was a measurement."""
        reason = self._sampler.discarded
        if reason:
            self.observer.sample_discarded(reason)
            if not self._discarding:
                self.log.warning("sample_discarded", reason=reason, limits="kept until the next sample")
        self._discarding = bool(reason)

    def _tell_drift(self, changes: tuple[LimitChange, ...]) -> None:
        """Once, until a tick has found the box as the last one left it: somebody may go on and on."""
        drifted = [change for change in changes if change.drift]
        if drifted and not self._drifting:
            files = {change.file: f"{change.old} -> {change.new}" for change in drifted}
            self.log.warning("box_drifted", files=files, consequence="put back; somebody else writes the box's limits")
        self._drifting = bool(drifted)

    def _failed(self, error: Exception) -> None:
        self.failed_ticks += 1
        if self._trouble != type(error).__name__:
            self._trouble = type(error).__name__
            self.log.error("tick_failed", error=f"{self._trouble}: {error}", limits="kept", exc_info=error)

    def _recovered(self) -> None:
        if self._trouble is not None:
            self.log.info("tick_recovered", after=self._trouble, failed_ticks=self.failed_ticks)
            self._trouble = None

    # --- many ticks -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick by deadline until cancelled. Deadlines that a slow tick has overrun are skipped and counted."""
        deadline_s = self.clock.boottime_s()
        while True:
            await self.tick()
            interval_s = self.settings.interval_s
            deadline_s += interval_s
            late_s = self.clock.boottime_s() - deadline_s
            if late_s > 0.0:
                missed = math.ceil(late_s / interval_s)
                self.observer.ticks_missed(missed)
                deadline_s += missed * interval_s
            await self.clock.sleep(deadline_s - self.clock.boottime_s())

    # --- what others ask of it --------------------------------------------------------------------------------------

    def configure(self, settings: LoopSettings) -> None:
        """From the next tick on. The predictors keep what still fits."""
        if settings.predictor != self.settings.predictor:
            old = self.checkpoint()
            self._predictors = _predictors(settings.predictor)
            self.restore(old, 0.0)
        self.settings = settings

    @property
    def given(self) -> Limits:
        """By the policy's last decision, before what is seen of harm was joined to it."""
        return self._given

    @property
    def due(self) -> Limits:
        """What online leaves the box, had the last decision not been careful.

        What is predicted while little is known, or from what was, counts as no more than online uses now; and a raise
        waits for nothing.
        """
        return self._due

    def wait_for_checkpoint(self, waits: bool) -> None:
        """While it waits, the box gets no more than it has: what was held back before a restart is not known yet."""
        self._only_lowers = waits

    def see(self, seen: HarmSeen) -> None:
        """What is known of harm to online from now on: the next decision keeps to it."""
        self._seen = seen

    async def renew(self) -> None:
        """Decide anew from the last sample, as what is seen can't wait for the next. Raises what the box does."""
        if self._predicted is not None and self._still_predicted:
            snapshot, prediction = self._predicted
            await self._apply(snapshot, prediction, self.box.starting)
        else:
            await self._fall_back()

    def checkpoint(self) -> dict[str, PredictorState]:
        """What a restart should keep, per resource."""
        return {name: predictor.checkpoint() for name, predictor in self._predictors.items()}

    def restore(self, states: Mapping[str, PredictorState], shift_s: float) -> None:
        """Take over a checkpoint whose times need `shift_s` added; what is of no use any more is logged."""
        for name, predictor in self._predictors.items():
            if name in states:
                for lost in predictor.restore(states[name], self.clock.boottime_s(), shift_s):
                    self.log.warning("predictor_starts_cold", resource=name, lost=lost)


def _of(decision: Decision, limits: Limits) -> Limits:
    return {name: limits[name] for name in decision.limits}


def _at_most(limits: Limits, held: Limits) -> Limits:
    """The lower of each."""
    found = dict(limits)
    for name, most in held.items():
        limit = limits.get(name, UNLIMITED)
        if most is not UNLIMITED:
            found[name] = most if limit is UNLIMITED else min(limit, most)
    return found


def _predictors(settings: PredictorSettings) -> dict[str, Predictor]:
    hour = replace(settings, alpha_ratio=HOUR_ALPHA_RATIO, horizon_s=HOUR_S, cold_start_probes=HOUR_COLD_START_PROBES)
    return {
        f"{row.name}{reach}": make_predictor(chosen, row.sampling.buckets)
        for reach, chosen in (("", settings), (_HOUR, hour))
        for row in RESOURCES.values()
        if row.sampling is not None
    }


def _known(prediction: float) -> float | None:
    return prediction if math.isfinite(prediction) else None
