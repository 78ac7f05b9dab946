"""Having pods leave, and keeping those out for a while that were stopped.

Where Kubernetes is switched on, a pod is evicted by its API: its budget is kept to, and it does not come straight back.
Where that can't be had, its sandbox is stopped at the runtime, after notice, and kubelet starts it anew. What must not
wait (a pod that no limit holds, online pods that are harmed) is stopped whatever its budget says, as kubelet itself
would do. While colocation is off, what kubelet starts anew is outside the box, and no limit holds it: there, a pod that
can't be evicted stays in the box, within its limits, and its eviction is asked for again.

**Asked again.** From the moment at which somebody decides that a pod is to go until it goes, it may have notice, an API
server may be waited for, and jobs before its own. Meanwhile an operator may hold criproxy off it, a setting be switched
off, or another criproxy take over. So every stop names the setting by which it is done (`Leave`), and `Holds.stops`
judges that right before each step that can't be undone, whoever has asked for it before.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock, Wake
from criproxy.control.day import Day, Kind
from criproxy.control.interference.ladder import Budget
from criproxy.model import PodRef, Sandbox
from criproxy.pods.hold_offs import HoldOffs
from criproxy.pods.inventory import Inventory
from criproxy.pods.runtime import Runtime

ON_UNBOUNDED: Final = "colocation.on_unbounded"
ON_RUNTIME_OVERLOAD: Final = "colocation.on_runtime_overload"
ON_OVER_LIMIT: Final = "memory.on_over_limit"
ON_HARM: Final = "interference.on_harm"
ON_STARVED: Final = "kubernetes.on_starved"
"""The settings by which single pods are stopped."""

ON_DISABLE: Final = "colocation.on_disable"
ON_CLOSE: Final = "schedule.on_close"
"""Those by which all are."""

STOPS_S: Final = 5.0
"""How long `PodStopper.stop_all` waits. A stop that hangs (`Runtime.stop` gives up after two minutes) goes on by
itself: no other pod, and nothing else, waits for it.
"""

HOLD_S: Final = 300.0
"""How long a pod that was stopped may not start again: kubelet would start it at once, to do or land as it did."""

_CALLED_OFF_S: Final = 1.0
"""How soon a notice ends that is called off."""

EVICT_S: Final = 10.0
"""How long the API server may take to accept an eviction, before the pod's sandbox is stopped instead, or it stays."""


class BudgetError(Exception):
    """The pod's disruption budget, or the cluster's admission, does not let it go now."""


class RefusedError(Exception):
    """Kubernetes does not evict the pod, for another reason than BudgetError's."""


class Leave(Struct, frozen=True):
    """That a pod is to go, why, and by which `setting`. `held_off_too`: also when an operator holds criproxy off it.

    `in_budget`: it counts in the `StopBudget`, and may have to wait for it. `held`: why it may not start again for
    `HOLD_S` once its notice or its stop has begun, after "it was stopped, as"; "": it may.
    """

    pod: PodRef
    why: str
    setting: str
    held_off_too: bool = False
    in_budget: bool = True
    held: str = ""


ASKED_S: Final = 150.0
"""Whoever asks for a stop does so each minute, or more often, while its cause lasts."""


class StopRequests(Struct, eq=False):
    """Single pods of the box that shall stop: any part asks for it here, `wake` is set, and `PodStops` does it."""

    clock: Clock = field(default_factory=Clock)
    wake: Wake = field(default_factory=Wake)
    _asked: dict[str, tuple[float, Leave]] = {}
    """When it was last asked for (CLOCK_BOOTTIME), by sandbox id."""

    def stop(self, sandbox: Sandbox, why: str, setting: str, held: str = "") -> None:
        """Stop this one by a setting; `held` as for `Leave`. When it does not stop, it is tried again, while the
        setting says so and whoever has asked does so again: the cause may be over.

        By `ON_UNBOUNDED`, it waits for no `StopBudget`, whatever it was to be stopped for before: it was in the box,
        and no limit holds it any more.
        """
        asked = Leave(sandbox.pod, why, setting, in_budget=setting != ON_UNBOUNDED, held=held)
        _, one = self._asked.get(sandbox.id, (0.0, asked))
        self._asked[sandbox.id] = self.clock.boottime_s(), asked if one.in_budget else one
        self.wake.set()

    def keep(self, placed: Collection[str], stops_by: frozenset[str], begun: Collection[str] = ()) -> dict[str, Leave]:
        """Forget all but those of these sandboxes and by these settings; returns what is left, by sandbox id.

        What has not been asked for again for `ASKED_S` is forgotten, too, unless it was `begun`.
        """
        oldest_s = self.clock.boottime_s() - ASKED_S
        self._asked = {
            id: (at_s, one)
            for id, (at_s, one) in self._asked.items()
            if id in placed and one.setting in stops_by and (at_s >= oldest_s or id in begun)
        }
        return {id: one for id, (_, one) in self._asked.items()}


class KnownPod(Struct, frozen=True):
    """What Kubernetes knows of a pod beside its labels and annotations.

    `priority` None: it has none. `owner` is the uid of who makes another pod in its place; "": nobody. `cpu_shares`:
    those of the CPU that the scheduler has counted for it, what nodes lend included; None: not known.
    """

    priority: int | None = None
    owner: str = ""
    cpu_shares: int | None = None


class Evicts(Protocol):
    """Whoever has pods leave as Kubernetes does it."""

    async def known(self, *, within_s: float) -> Mapping[str, KnownPod]:
        """This node's pods by uid; none, when nobody has answered `within_s`. Never raises."""

    async def evict(
        self,
        pod: PodRef,
        why: str,
        *,
        within_s: float,
        grace_s: int | None = None,
        still: Callable[[], bool] = lambda: True,
    ) -> float | None:
        """Have it leave, in its own grace period (or `grace_s`); returns within how many seconds it will have ended.
        `still`: whether it is to go, asked right before each request; if not, that is a RefusedError.

        None: there is no such pod any more, or nobody has answered `within_s`: that goes on by itself. Raises
        BudgetError and RefusedError, and nothing else.
        """

    def promised_cores(self) -> float | None:
        """What pods of this node can have been promised of its CPUs at most, as published; None: nothing was."""

    def stopped(self, pod: PodRef, why: str) -> None:
        """Tell Kubernetes that a pod's sandbox is stopped at the runtime. Neither blocks nor raises."""


class StopBudget(Struct):
    """How many pods may go in `law.window_s`: `law.most`, whoever has picked them, so that no rule and no measurement
    that is wrong ever empties a node. The ladder keeps to a budget of its own, and what goes for it counts here, too.
    All pods that an operator has leave (`ON_DISABLE`, `ON_CLOSE`) do not, nor does one that got out of the box: it was
    seen to, and pods that do so could otherwise use the budget up and go on. `counts`: one counts that a restart should
    know of.
    """

    law: Budget = Budget()
    counts: Wake = field(default_factory=Wake)
    _began_s: dict[str, float] = {}
    """When each was to go that counts (CLOCK_BOOTTIME), by sandbox id."""

    def takes(self, sandbox_id: str, one: Leave, now_s: float) -> bool:
        """Whether this one may go now, which counts from now on, and once."""
        counted = self.memory(now_s)
        if not one.in_budget or sandbox_id in counted:
            return True
        if len(counted) >= self.law.most:
            return False
        self._began_s[sandbox_id] = now_s
        self.counts.set()
        return True

    def went(self, sandbox_id: str, one: Leave, now_s: float) -> None:
        """This one has gone, whether or not anybody has asked for it here."""
        if one.in_budget:
            self._began_s.setdefault(sandbox_id, now_s)
            self.counts.set()

    def stays(self, sandbox_id: str) -> None:
        """This one does not go after all."""
        self._began_s.pop(sandbox_id, None)

    def memory(self, now_s: float) -> dict[str, float]:
        """When each was to go that counts (CLOCK_BOOTTIME), by sandbox id: what another process goes on by."""
        self._began_s = {one: s for one, s in self._began_s.items() if now_s - s < self.law.window_s}
        return self._began_s

    def recall(self, began_s: Mapping[str, float], now_s: float) -> None:
        """These were to go by a process before this one, and none later than now."""
        self._began_s = {**{one: min(s, now_s) for one, s in began_s.items()}, **self._began_s}


class PodStopper(Struct):
    """Has pods leave, each once, and those again that did not. `evicts` None: all are stopped at the runtime. `holds`
    judges whether they are to go, see the module.

    There, a pod that asks for notice has its containers' stop signal sent first, and as many seconds to end by itself;
    nobody waits for that. To stop the sandbox alone would kill them at once. One that is evicted has its own grace
    period, and no notice on top.
    """

    runtime: Runtime
    log: FilteringBoundLogger
    pods: Inventory
    holds: "Holds"
    evicts: Evicts | None = None
    clock: Clock = field(default_factory=Clock)
    day: Day = field(default_factory=Day)
    budget: StopBudget = field(default_factory=StopBudget)
    _later: int = 0
    """How many of those that were last to be stopped wait for the budget."""
    _marked: set[str] = set()
    """Those whose end has a mark in the day."""
    _stopped: set[str] = set()
    _evicted: dict[str, float] = {}
    """Until when each will have ended that was evicted (CLOCK_BOOTTIME)."""
    _told: set[str] = set()
    """Those that Kubernetes knows to be stopped at the runtime."""
    _waiting: dict[str, float] = {}
    """When each was last asked for that stays until Kubernetes lets it go (CLOCK_BOOTTIME)."""
    _unanswered: set[str] = set()
    """Those of them that no disruption budget holds: nobody has answered, or Kubernetes refuses."""
    _noticed: dict[str, asyncio.Task[None]] = {}
    _under_way: dict[str, asyncio.Task[None]] = {}
    """What `stop_all` has begun and not seen the end of, by sandbox id."""

    @property
    def stopped(self) -> frozenset[str]:
        """The sandboxes that were stopped, or evicted, of those that were last to be."""
        return frozenset(self._stopped) | frozenset(self._evicted)

    @property
    def leaving(self) -> frozenset[str]:
        """The sandboxes that have time now to end by themselves: after notice, or in the grace of an eviction."""
        now_s = self.clock.boottime_s()
        return frozenset(self._noticed) | {one for one, end_s in self._evicted.items() if now_s < end_s}

    @property
    def evicted(self) -> Mapping[str, float]:
        """When each that was evicted will have ended (CLOCK_BOOTTIME), by sandbox id."""
        return self._evicted

    @property
    def begun(self) -> frozenset[str]:
        """The sandboxes whose end was begun, in whatever way, of those that were last to be."""
        return self.leaving | self.stopped | self._under_way.keys()

    def recall(self, ends_s: Mapping[str, float]) -> None:
        """These had time given to end, by a process before this one: as if they were evicted, they have no other."""
        self._evicted = {**self._evicted, **ends_s}

    def ends_s(self, sandbox_id: str) -> float:
        """When one that was evicted will have ended (CLOCK_BOOTTIME); infinite: it was not."""
        return self._evicted.get(sandbox_id, math.inf)

    def stands(self, one: Leave) -> bool:
        """Whether it is to go, still. Any thread may call it."""
        return self.holds.stops(one.setting, one.pod, held_off_too=one.held_off_too)

    async def stop_all(self, wanted: Mapping[str, Leave], patient: Collection[str] = ()) -> None:
        """Have these leave, by sandbox id: all at once that the budget lets go, and each in a task that goes on when it
        takes longer than `STOPS_S`, until `cease`. The next call tries the rest again.

        Those that are `patient` wait until their disruption budget lets them go, and, by `ON_DISABLE`, until Kubernetes
        evicts them: later calls try again, by turns.
        Raises what `Runtime.stop` does, after all were tried, of what has ended since the last call; of a stop after
        notice, that is logged.
        """
        self.forget_others(wanted.keys())
        ended = self._ended()
        begun = self.leaving | self._stopped | self._under_way.keys() | ended.keys()
        due = [(one, leave) for one, leave in wanted.items() if one not in begun]
        due.sort(key=lambda item: self._waiting.get(item[0], -math.inf))
        now_s, later = self.clock.boottime_s(), 0
        for one, leave in due:
            if self.budget.takes(one, leave, now_s):
                self._under_way[one] = asyncio.create_task(self._leave(one, leave, patient=one in patient))
            else:
                later += 1
        if later and not self._later:
            self.log.warning("stops_wait", pods=later, most=self.budget.law.most)
        self._later = later
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=STOPS_S)
        tasks = (ended | self._ended()).values()
        failures = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
        if failures:
            raise failures[0]

    def problems(self) -> Iterator[str]:
        if self._later:
            most = self.budget.law.most
            yield (
                f"{self._later} offline pods wait to be stopped, as at most {most} go in ten minutes "
                "(interference.evict_most)"
            )
        if self._unanswered:
            yield (
                f"{len(self._unanswered)} offline pods stay in the box, within its limits, though colocation is off: "
                "the API server has not had them evicted; it is asked again each minute, and the log says what it "
                "answers (not_evicted)"
            )

    def cease(self) -> None:
        """Wait for nothing that is under way, but for notice."""
        for task in self._under_way.values():
            task.cancel()
        self._under_way = {}

    def _ended(self) -> dict[str, asyncio.Task[None]]:
        """What has ended of what was under way, and is so no more."""
        ended = {one: task for one, task in self._under_way.items() if task.done()}
        self._under_way = {one: task for one, task in self._under_way.items() if one not in ended}
        return ended

    def forget_others(self, sandboxes: Collection[str]) -> None:
        """What was done to all others does not matter any more."""
        self._stopped.intersection_update(sandboxes)
        self._told.intersection_update(sandboxes)
        self._marked.intersection_update(sandboxes)
        self._waiting = {one: asked_s for one, asked_s in self._waiting.items() if one in sandboxes}
        self._unanswered.intersection_update(sandboxes)
        self._evicted = {one: end_s for one, end_s in self._evicted.items() if one in sandboxes}

    async def known(self, *, within_s: float) -> Mapping[str, KnownPod]:
        """What Kubernetes knows of this node's pods, by uid; none, where it can't be reached, or does not answer."""
        return {} if self.evicts is None else await self.evicts.known(within_s=within_s)

    async def evict_first(
        self, victims: Sequence[tuple[str, Leave]], *, within_s: float, grace_s: int | None = None
    ) -> tuple[int, bool] | None:
        """Evict the first of these whose budget lets it go: by sandbox id, in their order.

        Returns which, and whether it was evicted. Otherwise the caller stops it: nobody has answered for it in time,
        and it may go by that request yet; or it was refused, as were all that no budget holds; or the first was evicted
        before and has not ended: kubelet may be away. None: the budgets hold all of them.
        """
        if self.evicts is None:
            return 0, False
        end_s = self.clock.boottime_s() + within_s
        refused: int | None = None
        for at, (sandbox_id, one) in enumerate(victims):
            now_s = self.clock.boottime_s()
            before_s = self.ends_s(sandbox_id)
            if at == 0 and before_s <= now_s:
                return at, False
            try:
                ends_s = await self.evicts.evict(
                    one.pod,
                    one.why,
                    within_s=max(0.0, end_s - now_s),
                    grace_s=grace_s,
                    still=partial(self.stands, one),
                )
            except BudgetError:
                continue
            except RefusedError:
                refused = at if refused is None else refused
                continue
            if ends_s is None:
                return at, False
            self._evicted[sandbox_id] = min(before_s, self.clock.boottime_s() + ends_s)
            self._mark(sandbox_id, one, "evicted")
            return at, True
        return None if refused is None else (refused, False)

    async def _leave(self, sandbox_id: str, one: Leave, *, patient: bool) -> None:
        """One that was evicted and has not ended is stopped: kubelet may be away."""
        if self.evicts is None or sandbox_id in self._evicted:
            await self.stop(sandbox_id, one)
            return
        pod, why = one.pod, one.why
        ends_s, budget, stays = None, "", patient and one.setting == ON_DISABLE
        try:
            ends_s = await self.evicts.evict(pod, why, within_s=EVICT_S, still=partial(self.stands, one))
        except BudgetError as error:
            budget, stays = str(error), patient
        except RefusedError:
            pass
        held = self._waiting.keys() - self._unanswered
        self._unanswered.discard(sandbox_id)
        if ends_s is not None:
            self._evicted[sandbox_id] = self.clock.boottime_s() + ends_s
            self._mark(sandbox_id, one, "evicted")
        elif stays and self.stands(one):
            if not budget:
                self._unanswered.add(sandbox_id)
            elif sandbox_id not in held:
                self.log.info("eviction_waits", pod=str(pod), pod_uid=pod.uid, reason=why, budget=budget)
            self._waiting[sandbox_id] = self.clock.boottime_s()
            self.budget.stays(sandbox_id)
        else:
            await self.stop(sandbox_id, one)

    async def stop(self, sandbox_id: str, one: Leave, *, at_once: bool = False) -> None:
        """At the runtime, whatever its budget says. `at_once`: there is no time for notice.

        Raises what `Runtime.stop` does; of a stop after notice, that is logged.
        """
        if at_once or sandbox_id in self._evicted or not self._notices(sandbox_id, one):
            await self._stop(sandbox_id, one)

    async def _stop(self, sandbox_id: str, one: Leave) -> None:
        """All stops at the runtime come by here."""
        pod, why = one.pod, one.why
        if not self.stands(one):
            self.log.info("not_stopped_any_more", pod=str(pod), pod_uid=pod.uid, reason=why, setting=one.setting)
            self.budget.stays(sandbox_id)
            if not self.holds.resting:
                self.holds.release(pod, one.setting)
            return
        self._hold(one)
        self.log.warning("stop", pod=str(pod), pod_uid=pod.uid, reason=why)
        self._mark(sandbox_id, one, "stopped")
        if self.evicts is not None and sandbox_id not in self._told:
            self._told.add(sandbox_id)
            self.evicts.stopped(pod, why)
        await self.runtime.stop(sandbox_id)
        self._stopped.add(sandbox_id)

    def _hold(self, one: Leave) -> None:
        if one.held:
            self.holds.hold(one.pod, HOLD_S, one.held, one.setting)

    def _mark(self, sandbox_id: str, one: Leave, how: str) -> None:
        if sandbox_id not in self._marked:
            self._marked.add(sandbox_id)
            self.budget.went(sandbox_id, one, self.clock.boottime_s())
            self.day.mark(self.clock.boottime_s(), Kind.LEAVING, one.why, str(one.pod), how)

    def _notices(self, sandbox_id: str, one: Leave) -> bool:
        """Whether it has had notice, or has it from now on, and is stopped then."""
        if sandbox_id in self._noticed:
            return True
        if not (notice_s := self.pods.notice_s(sandbox_id)):
            return False
        if not self.stands(one):
            return False
        self._hold(one)
        self.log.info("notice", pod=str(one.pod), pod_uid=one.pod.uid, seconds=notice_s, reason=one.why)
        self._noticed[sandbox_id] = task = asyncio.create_task(self._stop_after(notice_s, sandbox_id, one))
        task.add_done_callback(lambda _: self._noticed.pop(sandbox_id, None))
        return True

    async def _stop_after(self, notice_s: int, sandbox_id: str, one: Leave) -> None:
        containers = [one.id for one in self.pods.containers_of(sandbox_id)]
        notices = [asyncio.create_task(self.runtime.give_notice(one, notice_s)) for one in containers]
        while notices and (await asyncio.wait(notices, timeout=_CALLED_OFF_S))[1]:
            if not self.holds.resting and not self.stands(one):
                for notice in notices:
                    notice.cancel()
        await asyncio.gather(*notices, return_exceptions=True)  # whatever fails of it: they are stopped then
        try:
            await self._stop(sandbox_id, one)
        except Exception as error:  # the next time, it is tried again
            self.log.warning("not_stopped", pod=str(one.pod), pod_uid=one.pod.uid, error=str(error))


class HeldPod(Struct, frozen=True):
    """A pod that may not start in the box until then (CLOCK_BOOTTIME), as it was stopped by a setting; see `Holds`."""

    uid: str
    setting: str
    until_s: float
    why: str


class Holds(Struct):
    """By which settings pods are stopped now (`stops_by`), and which pods may not start in the box for now.

    `closed`: why no pod at all may; "": they may. Kubelet starts a pod again at once that was stopped, and it would do
    the same again. A hold names the `setting` by which the pod was stopped, and ends with it. A pod that an operator
    holds criproxy off is not stopped.
    """

    clock: Clock
    hold_offs: HoldOffs
    stops_by: frozenset[str] = frozenset()
    closed: str = ""
    resting: bool = False
    _judges: bool = True
    _held: dict[tuple[str, str], tuple[float, str]] = {}

    def stops(self, setting: str, pod: PodRef, *, held_off_too: bool = False) -> bool:
        """Whether that setting stops this pod now. Any thread may call it."""
        if self.resting or setting not in self.stops_by:
            return False
        return held_off_too or not self.hold_offs.covers(pod)

    def hold(self, pod: PodRef, seconds: float, why: str, setting: str) -> None:
        """Keep the pod out for these seconds; `why` follows "it was stopped, as"."""
        now_s = self.clock.boottime_s()
        others = {key: held for key, held in self._held.items() if held[0] > now_s}
        self._held = {**others, (pod.uid, setting): (now_s + seconds, why)}  # as a whole: the status reads it meanwhile

    def release(self, pod: PodRef, setting: str) -> None:
        """Let the pod in again that was to be stopped by this setting, and is not."""
        self._held = {key: held for key, held in self._held.items() if key != (pod.uid, setting)}

    def memory(self) -> tuple[HeldPod, ...]:
        """What another process goes on by."""
        now_s = self.clock.boottime_s()
        return tuple(
            HeldPod(uid, setting, until_s, why)
            for (uid, setting), (until_s, why) in self._held.items()
            if until_s > now_s
        )

    def recall(self, pods: Sequence[HeldPod], shift_s: float) -> None:
        """These were held by a process before this one; `shift_s` makes their times ours, and no hold is longer than
        `HOLD_S`. Those of settings by which no pods are stopped now are over.
        """
        latest_s = self.clock.boottime_s() + HOLD_S
        recalled = {
            (one.uid, one.setting): (min(one.until_s + shift_s, latest_s), one.why)
            for one in pods
            if one.setting in self.stops_by
        }
        self._held = {**recalled, **self._held}

    def close(self, why: str) -> None:
        """Let no pod in, as the box harms online ones; with "" those are that are not held by themselves."""
        self.closed = why

    def configure(self, stops_by: frozenset[str]) -> None:
        """Pods are stopped by these settings from now on."""
        self.stops_by = stops_by
        self._held = {key: held for key, held in self._held.items() if key[1] in stops_by}

    def rest(self, *, judges_on: bool) -> None:
        """Until `resume`, another process serves, and stops pods. `judges_on`: we are still asked of their starts."""
        self.resting, self._judges = True, judges_on

    def resume(self) -> None:
        self.resting, self._judges = False, True

    def held(self, pod: PodRef) -> str:
        """Why the pod may not start in the box now; "" when it may. Any thread may call it."""
        return self.held_itself(pod) or (self.closed if self._judges else "")

    def held_itself(self, pod: PodRef) -> str:
        """As `held`, but whatever holds for all pods alike: why nothing of it may start, in a sandbox that it has."""
        if not self._judges:
            return ""
        for (uid, setting), (until_s, why) in self._held.items():
            if uid == pod.uid and (left_s := until_s - self.clock.boottime_s()) > 0.0:
                return f"it was stopped, as {why} ({setting}), so it is not let in for {left_s:.0f} s"
        return ""
