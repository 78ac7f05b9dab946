"""The control loop: what bounds the box, once a second. Everything that happens in a second happens in this order:

    read      usage and signals, once, on the reader's thread
    predict   a sample becomes a prediction, and the policy decides (`control.decider`)
    judge     whether the box has to answer for memory (`pods.memory_relief`), and for harm (`pods.interference`)
    apply     the policy's decision, with what is seen of harm joined to it
    follow    pods that go, disks, who is let in

A sample is due each `control.interval_s`, and harm is looked at each second, so that both share a look where they can.
A look without a sample decides anew only if harm has changed what the box may have, or if the last prediction does not
reach as far as now.

What fails keeps nothing else from being done, and the limits stay as they are. The next look tries again.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.control.decider import Decider, LoopSettings, Now
from criproxy.control.guard import CpuGuard
from criproxy.control.history import DecisionRecord, History
from criproxy.control.series import PredictorState
from criproxy.model import (
    MEMORY,
    UNLIMITED,
    Capacity,
    Decision,
    GivingBack,
    LimitChange,
    Limits,
    Snapshot,
    UsageReading,
)
from criproxy.pods.interference import InterferenceWatch
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.part import NodeSettings, Part
from criproxy.pods.policy_settings import loop_settings
from criproxy.pods.shared import PodsShared

_EARLY_RATIO: Final = 0.05


class TickObserver(Protocol):
    """Hears of each look that takes a sample, and how long it took in seconds."""

    def ticked(
        self, snapshot: Snapshot, decision: Decision, changes: tuple[LimitChange, ...], seconds: float
    ) -> None: ...

    def tick_failed(self, seconds: float) -> None: ...

    def sample_discarded(self, reason: str) -> None:
        """The reading was no measurement, so nothing was decided."""

    def ticks_missed(self, count: int) -> None:
        """So many were overrun."""


class Deadlines(Struct):
    """Of what is due again and again. `due_s` None: at once. By CLOCK_MONOTONIC, as none is missed in a suspended
    machine.
    """

    due_s: float | None = None

    def is_due(self, now_s: float, every_s: float) -> bool:
        """Also a moment before, so that what is due at one time is done in one look."""
        return self.due_s is None or now_s >= self.due_s - _EARLY_RATIO * every_s

    def done(self, began_s: float, now_s: float, every_s: float) -> int:
        """The next is `every_s` after the last; returns how many were overrun meanwhile, which are skipped."""
        due_s = (began_s if self.due_s is None else self.due_s) + every_s
        missed = max(0, math.ceil((now_s - due_s) / every_s))
        self.due_s = due_s + missed * every_s
        return missed


class ControlLoop(Part, Struct, eq=False):
    """See the module. Its cost is that of a few small files, whatever the number of pods."""

    NAME = "bounding the box"
    SLACK_S = 0.0

    shared: PodsShared
    box: Box
    read_capacity: Callable[[], Capacity]
    decider: Decider
    observer: TickObserver
    guard: CpuGuard
    relief: MemoryRelief
    harm: InterferenceWatch
    giving_back: Callable[[], GivingBack | None] = lambda: None
    """What the memory limit waits for, as long as memory is no matter of harm."""
    history: History = field(default_factory=History)
    _samples: Deadlines = field(default_factory=Deadlines)
    _harm_looks: Deadlines = field(default_factory=Deadlines)
    _capacity: Capacity | None = None
    _shares: Mapping[str, float] = {}
    """What the ladder left at the last decision."""
    _only_lowers: bool = False
    _drifting: bool = False
    _discarding: bool = False

    def configure(self, now: NodeSettings) -> None:
        self.set_to(loop_settings(now))
        self.harm.configure(now)

    def set_to(self, settings: LoopSettings) -> None:
        """From the next look on."""
        self.decider.configure(settings, self.shared.clock.boottime_s())

    @property
    def pause_s(self) -> float:
        dues_s = [one.due_s for one in (self._samples, self._harm_looks) if one.due_s is not None]
        return max(0.0, min(dues_s, default=0.0) - self.shared.clock.monotonic_s())

    def cease(self) -> None:
        self.harm.cease()
        self._samples, self._harm_looks = Deadlines(), Deadlines()

    # --- a look -----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Raises the first failure of any step, once all are done."""
        clock, interval_s = self.shared.clock, self.decider.settings.interval_s
        pace_s, now_s, began_s = self.harm.pace_s or interval_s, clock.boottime_s(), clock.monotonic_s()
        samples, harm = self._samples.is_due(began_s, interval_s), self._harm_looks.is_due(began_s, pace_s)
        usage, reading = await self.box.usage(self.harm.job() if harm else None)
        failures = [usage] if isinstance(usage, Exception) else list[Exception]()
        snapshot, decided = None, None
        with _noting(failures):
            if isinstance(usage, UsageReading):
                snapshot = self._learned(now_s, usage, sample=samples)
        if harm:
            with _noting(failures):
                self.harm.judge(now_s, reading)
                self.guard.acquit(self.harm.innocent)
        with _noting(failures):
            decided = await self._bounded(now_s, is_new=snapshot is not None)
        if harm:
            with _noting(failures):
                self.harm.follow()
            self._harm_looks.done(began_s, clock.monotonic_s(), self.harm.pace_s or interval_s)
        if samples:
            with _noting(failures):
                self._tell(snapshot, decided, failures, clock.monotonic_s() - began_s)
            if missed := self._samples.done(began_s, clock.monotonic_s(), interval_s):
                self.observer.ticks_missed(missed)
        if isinstance(reading, Exception):
            failures.append(reading)
        if failures:
            raise failures[0]

    def _learned(self, now_s: float, usage: UsageReading, *, sample: bool) -> Snapshot | None:
        """Predict and decide by a sample, and judge memory; None: no sample was due, or it was no measurement."""
        self._capacity = capacity = self.read_capacity()
        snapshot = None
        if sample:
            snapshot = self.decider.sampled(now_s, self.shared.clock.wall_s(), usage, capacity)
            self._tell_discarded()
            if snapshot is None:
                return None
            self.decider.decide(self._now(now_s, capacity))
        self.relief.judge(now_s, usage, capacity.memory_bytes, self.decider)
        return snapshot

    def _now(self, now_s: float, capacity: Capacity) -> Now:
        kept = {MEMORY: self.relief.kept_free(capacity.memory_bytes)}
        is_harm = MEMORY in self.harm.seen.shares
        giving_back = None if is_harm else self.giving_back()
        held = None if is_harm else self._keeps_memory(capacity)
        return Now(now_s, self.box.starting, kept, self.guard.ceiling(), giving_back, held)

    def _keeps_memory(self, capacity: Capacity) -> float | None:
        """What the box has of memory, while it is not known what was promised before a restart, or too little of
        online; None: both are known, or there is no box.
        """
        limits, keeps = self.box.limits, self._only_lowers or self.decider.is_learning(MEMORY)
        if limits is None or not keeps:
            return None
        held = limits.get(MEMORY, UNLIMITED)
        return float(capacity.memory_bytes) if held is UNLIMITED else held

    async def _bounded(self, now_s: float, *, is_new: bool) -> tuple[Decision, tuple[LimitChange, ...]] | None:
        """Join what is seen of harm to the policy's decision, and apply that; None: what holds need not change."""
        seen, decider = self.harm.seen, self.decider
        if not is_new:
            if self._capacity is None or not decider.has_sample:
                return None
            if seen.shares == self._shares and decider.still_predicts(now_s):
                return None
            decider.decide(self._now(now_s, self._capacity))
        snapshot, decision, outlook = decider.joined(seen)
        self._shares = seen.shares
        self.guard.decided(outlook)
        limits = self._allowed(decision.asked_of_box)
        decider.applied(decision.limits if limits is None else limits)
        kept_by = decider.settings.kept_by
        changes = () if kept_by or limits is None else await self.box.apply(limits)
        self._tell_drift(changes)
        self.history.add(DecisionRecord(self.shared.clock.wall_s(), snapshot, decision, kept_by))
        return decision, changes

    def _allowed(self, limits: Limits) -> Limits | None:
        """The limits that may be applied; None: a box that is not known yet keeps what it has."""
        if not self._only_lowers:
            return limits
        held = self.box.limits
        return None if held is None else _at_most(limits, held)

    # --- what is said of it -----------------------------------------------------------------------------------------

    def _tell(
        self,
        snapshot: Snapshot | None,
        decided: tuple[Decision, tuple[LimitChange, ...]] | None,
        failures: list[Exception],
        seconds: float,
    ) -> None:
        """A look that took a sample is over. Without one, online may need what the box has: the guard looks, too."""
        if failures:
            self.guard.wake()
            self.observer.tick_failed(seconds)
        elif snapshot is None or decided is None:
            self.guard.wake()
        else:
            self.observer.ticked(snapshot, *decided, seconds)

    def _tell_discarded(self) -> None:
        """Each to the observer; to the log once, until a reading was a measurement."""
        if reason := self.decider.discarded:
            self.observer.sample_discarded(reason)
            if not self._discarding:
                self.shared.log.warning("sample_discarded", reason=reason, limits="kept until the next sample")
        self._discarding = bool(reason)

    def _tell_drift(self, changes: tuple[LimitChange, ...]) -> None:
        """Once, until a decision has found the box as the last one left it: somebody may go on and on."""
        drifted = [change for change in changes if change.drift]
        if drifted and not self._drifting:
            files = {change.file: f"{change.old} -> {change.new}" for change in drifted}
            self.shared.log.warning(
                "box_drifted", files=files, consequence="put back; somebody else writes the box's limits"
            )
        self._drifting = bool(drifted)

    # --- over a restart ---------------------------------------------------------------------------------------------

    def wait_for_checkpoint(self, waits: bool) -> None:
        """While it waits, the box gets no more than it has: what was restricted before a restart is not known yet. Nor
        does it get less memory, but for what online uses: it may have been promised what it has.
        """
        self._only_lowers = waits
        self.harm.wait_for_checkpoint(waits)

    def predictors(self) -> dict[str, PredictorState]:
        """What is known of online's usage, by resource."""
        return self.decider.checkpoint()

    def restore(self, predictors: Mapping[str, PredictorState], shift_s: float) -> None:
        """Take over what was known, by times that need `shift_s` added."""
        self.decider.restore(predictors, self.shared.clock.boottime_s(), shift_s)


@contextlib.contextmanager
def _noting(failures: list[Exception]) -> Iterator[None]:
    """Go on whatever fails within this."""
    try:
        yield
    except Exception as error:
        failures.append(error)


def _at_most(limits: Limits, held: Limits) -> Limits:
    """The lower of each."""
    found = dict(limits)
    for name, most in held.items():
        limit = limits.get(name, UNLIMITED)
        if most is not UNLIMITED:
            found[name] = most if limit is UNLIMITED else min(limit, most)
    return found
