"""The one way in which a pod of the box is stopped for a scarce resource: choose who goes, keep it out, stop it.

`control.interference.victim` ranks the pods. Where Kubernetes is switched on, the first of a few goes whose disruption
budget lets it. If none may, and memory is scarce, the first is stopped at the runtime: kubelet's own eviction knows no
budgets either, and would take an online pod. For CPU and disks, and where the box alone has too much memory, kubelet
evicts nobody: then nobody goes, and the next request names others first.

What each would give back is read when one has to go: its memory but for page cache and slab, which stay, less its fair
share of what all of them have (in proportion to their memory limits, else an equal one), or the CPU or disk IO that it
uses within a second. Where IO is scarce, the box is at its floor by then: who wants most has most of that. At the same
time Kubernetes, where it is switched on, tells their priorities and owners; nobody waits longer for them.

Where pods starve for CPU, none is stopped at the runtime: kubelet would start it here again. It goes to another node by
its eviction, or stays.

One pod goes, then it is looked again: a pod that was given time to end, by notice or by the grace period of an
eviction, keeps the next from going until it has ended, or for `VICTIM_HELD_S`. So does one whose stop is waited for.
Where memory is scarce, none is given any time, and nobody waits. In an emergency Kubernetes has half a second
which pod may go, and that one's processes are killed then: kubelet's way or the runtime's takes seconds, in which the
kernel would swap out online's memory, or kubelet evict online pods. No mark of its author protects a pod then.

Who would give back next to nothing stays (`control.interference.victim.worth`), but where pods starve: there nothing is
given back, and the one goes that loses least.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from criproxy.cgroup.box import Box
from criproxy.cgroup.disks import disk_use
from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.tree import if_there
from criproxy.control.interference.detectors import IO
from criproxy.control.interference.ladder import EvictionOrder
from criproxy.control.interference.victim import Candidate, Victim, candidate, choose, fair_shares, owner_of, worth
from criproxy.control.resources import RESOURCES, bytes_in_words
from criproxy.model import CPU, MEMORY, UNLIMITED, Pod, Sandbox, Unlimited, Usage
from criproxy.pods.runtime import ListedSandbox
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import KnownPod, Leave, PodStopper

VICTIM_HELD_S: Final = 60.0
"""For so long a pod that was stopped may not start again, so that nothing spins."""

STOP_S: Final = 10.0
"""So long a stop is waited for: one that does not stop must not keep the next."""

ACCEPTED_S: Final = 3.0
"""An eviction that is not accepted by then comes too late: the sandbox is stopped instead."""

KNOWN_S: Final = 1.0
"""So long Kubernetes is waited for to say which pods matter more: those that are harmed wait, too."""

EMERGENCY_S: Final = 0.5
"""In an emergency neither Kubernetes nor the runtime is waited for longer."""

GRACE_S: Final = 1
"""What an evicted pod gets to end where memory is scarce, in s: the node has no more time."""

VICTIMS: Final = 5
"""So many are tried, of which each may have a disruption budget that lets it not go."""

LEAST: Final[Mapping[str, float]] = {MEMORY: 1 << 20, CPU: 0.01, IO: 4096.0}
"""A pod that uses less has nothing to give back. Of CPU, at its floor, many have little each: see `_least`."""

_NOT_EVICTED: Final = "Kubernetes has evicted none of the offline pods that it was asked for"
_PASSED: Final = "; disruption budgets keep those that come before it"

_RATE_OVER_S: Final = 1.0


def _uses(words: Callable[[float], str], use: float) -> str:
    return f"uses {words(use)}"


def _lost(cpu_s: float) -> str:
    return f"loses its work of {cpu_s:.0f} s of CPU time, but for what it has saved"


_WORDS: Final[Mapping[str, Callable[[float], str]]] = {
    **{name: partial(_uses, row.words) for name, row in RESOURCES.items()},
    IO: lambda bytes_per_s: f"uses {bytes_in_words(bytes_per_s)} of disk IO per second",
}


class EvictionState(Struct, frozen=True):
    """What a restart keeps, so that no pod goes twice or in another's stead: by sandbox id, in CLOCK_BOOTTIME.

    `tried`: until when each is not chosen again; `leaving`: when each will have ended that was given time for that;
    `counted`: when each was to go that counts in the `StopBudget`, whoever has stopped it; `short`: what online was
    short of when it was chosen, where online was harmed.
    """

    tried: dict[str, float] = {}
    leaving: dict[str, float] = {}
    counted: dict[str, float] = {}
    short: dict[str, str] = {}


class PodEviction(Struct):
    """`last`: who went last, and why, by resource.

    `_tried`: the sandboxes that were to be stopped, and until when they are not chosen again: for `VICTIM_HELD_S`, or
    until they should have ended that were evicted. Then kubelet may be away, and they are stopped. `_short`: what
    online was short of when they were chosen, where online was harmed.

    `_kept`: the sandboxes that disruption budgets kept when nobody went, and until when they come after all others.
    """

    shared: PodsShared
    box: Box
    stopper: PodStopper
    last: dict[str, str] = {}
    _tried: dict[str, float] = {}
    _short: dict[str, str] = {}
    _kept: dict[str, float] = {}
    _stopping: set[str] = set()

    async def evict(
        self,
        order: EvictionOrder,
        setting: str,
        excess_bytes: float = 0.0,
        chosen: Callable[[tuple[str, ...]], object] = lambda _: None,
    ) -> tuple[str, ...] | None:
        """Stop one pod, as `setting` says; returns the names of what owns it, None: nobody went.

        `chosen` hears of them, too, before the pod's end is waited for. Until then, this may be cancelled.

        `excess_bytes`: by how much the box is above its memory limit; 0: it is not, or that is not known.

        Never raises: a failure is logged. `setting` is read again once it is known who would go. A pod that an
        operator holds criproxy off goes in an emergency alone, after all others. There is no time for notice, nor
        for its own grace period, where online waits for memory; there is where the box alone has too much of it.
        """
        now_s = self.shared.clock.boottime_s()
        self._tried = {one: until_s for one, until_s in self._tried.items() if now_s < until_s}
        self._short = {one: resource for one, resource in self._short.items() if one in self._tried}
        self._kept = {one: until_s for one, until_s in self._kept.items() if now_s < until_s}
        try:
            excess = excess_bytes if order.resource == MEMORY else 0.0
            return await self._evict(order, setting, now_s, excess, chosen)
        except (CgroupError, ConnectionError, TimeoutError, ValueError) as error:
            reason = str(error) or "the runtime did not list its pods in time"
            self.shared.log.error("not_relieved", resource=order.resource, reason=reason)
            return None

    async def _evict(
        self,
        order: EvictionOrder,
        setting: str,
        now_s: float,
        excess: float,
        chosen: Callable[[tuple[str, ...]], object],
    ) -> tuple[str, ...] | None:
        at_once = order.resource == MEMORY and bool(order.signal)
        if not at_once and self.leaving:
            return None
        sandboxes, candidates = await self._candidates(order)
        least = 0.0 if order.starved else worth(candidates, excess)
        covers = self.shared.holds.hold_offs.covers
        free = [one for one in candidates if not covers(one.pod)]
        kept = [] if at_once else [one for one in free if sandboxes[one.pod.uid].id in self._kept]
        ranked = partial(_ranked, barred=order.barred, least=least, emergency=order.emergency)
        victims = (ranked([one for one in free if one not in kept]) + ranked(kept))[:VICTIMS]
        if not victims and order.emergency:  # kubelet would evict online pods
            victims = ranked(candidates)
        if not victims:
            reason = "no offline pod may go that has any to give back"
            self.shared.log.warning("not_relieved", resource=order.resource, reason=reason)
            return None
        if setting not in self.shared.holds.stops_by:  # by now
            return None
        words = _lost if order.starved else _WORDS[order.resource]
        leaves: list[tuple[str, Leave]] = []
        for victim in victims:
            one = victim.candidate
            passed = _PASSED if leaves or (kept and one not in kept) else ""
            why = f"{order.reason}; it {words(one.use)}, and {victim.reason}{passed}"
            leave = Leave(one.pod, why, setting, held_off_too=order.emergency and covers(one.pod))
            leaves.append((sandboxes[one.pod.uid].id, leave))
        within_s = EMERGENCY_S if order.emergency else ACCEPTED_S
        found = await self.stopper.evict_first(leaves, within_s=within_s, grace_s=GRACE_S if at_once else None)
        if not at_once and (found is None or (order.starved and not found[1])):
            self._kept |= {sandbox_id: now_s + VICTIM_HELD_S for sandbox_id, _ in leaves}
            reason = "disruption budgets keep all offline pods that were asked for" if found is None else _NOT_EVICTED
            self.shared.log.warning("not_relieved", resource=order.resource, reason=reason)
            return None
        at, is_evicted = found or (0, False)
        sandbox_id, leave = leaves[at]
        pod, why = leave.pod, leave.why
        if not is_evicted and not self.stopper.stands(leave):
            self.shared.log.info("not_stopped_any_more", pod=str(pod), pod_uid=pod.uid, reason=why, setting=setting)
            return None
        again_s = now_s + VICTIM_HELD_S
        self._tried[sandbox_id] = again_s if not is_evicted else min(again_s, self.stopper.ends_s(sandbox_id))
        if order.signal:
            self._short[sandbox_id] = order.resource
        held = f"online pods were harmed: {order.reason}" if order.signal else order.reason
        self.shared.holds.hold(pod, VICTIM_HELD_S, held, setting)
        self.last = {**self.last, order.resource: f"{pod}: {why}"}
        self.shared.counters.count("evictions", order.resource)
        owners = victims[at].candidate.owners
        chosen(owners)
        if order.emergency:
            await self._kill(sandboxes[pod.uid], leave)
        if not is_evicted:
            await self._stop(sandbox_id, leave, at_once=at_once, resource=order.resource)
        return owners

    def checkpoint(self) -> EvictionState:
        """What a restart should keep."""
        noticed = {one: self._tried[one] for one in self.stopper.leaving & self._tried.keys()}
        counted = self.stopper.budget.memory(self.shared.clock.boottime_s())
        leaving = {**noticed, **self.stopper.evicted}
        return EvictionState(dict(self._tried), leaving, dict(counted), dict(self._short))

    def restore(self, state: EvictionState, shift_s: float) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours."""
        self._tried = {one: until_s + shift_s for one, until_s in state.tried.items()}
        self._short = dict(state.short)
        self.stopper.recall({one: end_s + shift_s for one, end_s in state.leaving.items()})
        counted = {one: s + shift_s for one, s in state.counted.items()}
        self.stopper.budget.recall(counted, self.shared.clock.boottime_s())

    @property
    def leaving(self) -> frozenset[str]:
        """Whether one that was to be stopped still has the time that it was given, or its stop is waited for: what
        online was short of when it was chosen; "": nobody was harmed.
        """
        running = {one.id for one in self.shared.inventory.running_pods}
        leaving = (self.stopper.leaving | self._stopping) & self._tried.keys() & running
        return frozenset(self._short.get(one, "") for one in leaving)

    async def _kill(self, sandbox: Sandbox, leave: Leave) -> None:
        """What fails of it is logged: its sandbox is stopped all the same."""
        self.shared.log.warning("kill", pod=str(sandbox.pod), pod_uid=sandbox.pod.uid, reason=leave.why)

        def kill(driver: CgroupDriver, _: str) -> None:
            if self.stopper.stands(leave):  # on the thread: jobs before this one may have taken long
                driver.kill_pod(sandbox.placement or "")

        try:
            await self.box.writes("kill a pod", kill, apart="cgroup-killer")
        except (CgroupError, TimeoutError, ValueError) as error:
            self.shared.log.error("not_killed", pod=str(sandbox.pod), pod_uid=sandbox.pod.uid, reason=str(error))

    async def _stop(self, sandbox_id: str, leave: Leave, *, at_once: bool, resource: str) -> None:
        """One that the runtime does not stop in time, or not without an error, is counted, and the next may go.

        Its processes are gone all the same, killed here or by the runtime, which does that before it takes the network
        away: an uncounted kill would leave the budget without an end.
        """
        self._stopping.add(sandbox_id)
        try:
            async with asyncio.timeout(STOP_S):
                await self.stopper.stop(sandbox_id, leave, at_once=at_once)
        except (ConnectionError, TimeoutError, ValueError) as error:
            reason = f"the runtime has not stopped {leave.pod}: {str(error) or f'no answer within {STOP_S:.0f} s'}"
            self.shared.log.error("not_relieved", resource=resource, reason=reason)
        finally:
            self._stopping.discard(sandbox_id)

    async def _candidates(self, order: EvictionOrder) -> tuple[dict[str, Sandbox], list[Candidate]]:
        """The sandboxes by their pods' uid, and the pods with what they say of themselves, and Kubernetes of them."""
        emergency = order.emergency
        running = {one.id: one for one in self.shared.inventory.running_pods}
        self.stopper.forget_others(running.keys())
        untried = [one for one in running.values() if one.id not in self._tried]
        (uses, shares), sandboxes, known = await asyncio.gather(
            self._uses({one.placement: one for one in untried if one.placement}, order),
            self._listed(emergency),
            self.stopper.known(within_s=EMERGENCY_S if emergency else KNOWN_S),
        )
        found, tiers = [], self.box.state().tiers
        least = 0.0 if order.starved else _least(order.resource, uses)
        for listed in sandboxes:
            if listed.id in uses and uses[listed.id] >= least:
                pod, told = Pod(listed.pod, listed.labels, listed.annotations), known.get(listed.pod.uid, KnownPod())
                # The API server may answer the next time only: the owner is barred by both of its names.
                owners = tuple(filter(None, (told.owner, owner_of(pod))))
                use, mid = uses[listed.id], tiers and running[listed.id].mid
                found.append(
                    candidate(
                        pod,
                        owners,
                        use,
                        listed.created_s,
                        fair_share=shares.get(listed.id, 0.0),
                        mid=mid,
                        kubernetes_priority=told.priority,
                    )
                )
        return {one.pod.uid: one for one in running.values()}, found

    async def _listed(self, emergency: bool) -> Sequence[ListedSandbox]:
        """In an emergency, what is known already, where the runtime does not answer at once: it wants memory, too."""
        if not emergency:
            return await self.shared.runtime.sandboxes()
        try:
            async with asyncio.timeout(EMERGENCY_S):
                return await self.shared.runtime.sandboxes()
        except (ConnectionError, TimeoutError):
            return self.shared.inventory.marked

    async def _uses(
        self, pods: Mapping[str, Sandbox], order: EvictionOrder
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What each uses, and what its fair share is of memory: by sandbox id, in the unit of the resource.

        Where pods starve, what each has used of CPU since it began; all of it is its fair share, so the youngest goes.
        """
        resource = order.resource
        if order.starved:
            used = {pods[path].id: usage.cpu_usage_s for path, usage in (await self._usages(tuple(pods))).items()}
            return used, used
        if resource == MEMORY:
            paths = tuple(pods)
            now = await self._usages(paths)
            limits = await self.box.reads("read pods' limits", lambda driver, _: memory_limits(driver, paths)) or {}
            uses = {pods[path].id: float(usage.given_back_bytes) for path, usage in now.items()}
            return uses, fair_shares(uses, {pods[path].id: limit for path, limit in limits.items()})
        before = await self._counters(pods, resource)
        began_s = self.shared.clock.boottime_s()
        await self.shared.clock.sleep(_RATE_OVER_S)
        later = await self._counters(before, resource)
        seconds = self.shared.clock.boottime_s() - began_s
        return {pods[path].id: max(0.0, used - before[path]) / seconds for path, used in later.items()}, {}

    async def _counters(self, pods: Collection[str], resource: str) -> Mapping[str, float]:
        """By path: seconds of CPU, or bytes of IO."""
        if resource == IO:
            paths = tuple(pods)
            return await self.box.reads("read pods' IO", lambda driver, _: disk_uses(driver, paths)) or {}
        return {path: usage.cpu_usage_s for path, usage in (await self._usages(tuple(pods))).items()}

    async def _usages(self, pods: tuple[str, ...]) -> dict[str, Usage]:
        return await self.box.reads("read pods' usage", lambda driver, _: usages(driver, pods)) or {}


# --- jobs of the box's reader, for pods of the box (paths), of which each may have gone -------------------------------


def usages(driver: CgroupDriver, pods: Collection[str]) -> dict[str, Usage]:
    """What those use that are there. Raises CgroupError."""
    return {path: usage for path in pods if (usage := driver.usage(path)) is not None}


def memory_limits(driver: CgroupDriver, pods: Collection[str]) -> dict[str, float]:
    """The memory limits, in bytes, of those that have one. Raises CgroupError."""
    held = {path: _memory_limit(driver, path) for path in pods}
    return {path: limit for path, limit in held.items() if limit is not UNLIMITED}


def _memory_limit(driver: CgroupDriver, path: str) -> float | Unlimited:
    with if_there():
        return driver.read(path)[MEMORY]
    return UNLIMITED


def disk_uses(driver: CgroupDriver, pods: Collection[str]) -> dict[str, int]:
    """How many bytes those have read from disks and written that are counted. Raises CgroupError."""
    return {path: use for path in pods if (use := disk_use(driver.files, path)) is not None}


# --- the choice -------------------------------------------------------------------------------------------------------


def _least(resource: str, uses: Mapping[str, float]) -> float:
    """What a pod must use to be worth stopping: of CPU, half of an equal share will do."""
    if resource != CPU or not uses:
        return LEAST[resource]
    return min(LEAST[CPU], sum(uses.values()) / len(uses) / 2)


def _ranked(candidates: Sequence[Candidate], *, barred: frozenset[str], least: float, emergency: bool) -> list[Victim]:
    """The few who go first, the first at the front."""
    found: list[Victim] = []
    left = list(candidates)
    while len(found) < VICTIMS and (victim := choose(left, barred, least=least, emergency=emergency)) is not None:
        found.append(victim)
        left.remove(victim.candidate)
    return found
