"""The one way in which a pod of the box is stopped for a scarce resource: choose who goes, keep it out, stop it.

`control.interference.victim` ranks the pods. What each would give back is read when one has to go: its working set, or
the CPU that it uses within a second.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupError
from criproxy.control.interference.ladder import EvictionOrder
from criproxy.control.interference.victim import Candidate, candidate, choose, owner_of
from criproxy.control.resources import RESOURCES
from criproxy.model import CPU, MEMORY, Pod, Sandbox
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import PodStopper

HOLD_S: Final = 60.0
"""For so long a pod that was stopped may not start again, so that nothing spins."""

STOP_S: Final = 10.0
"""So long a stop is waited for: one that does not stop must not keep the next."""

LEAST: Final[Mapping[str, float]] = {MEMORY: 1 << 20, CPU: 0.01}
"""A pod that uses less has nothing to give back."""

_CPU_OVER_S: Final = 1.0


class PodEviction(Struct):
    """`last`: who went last, and why, by resource. `_tried`: the sandboxes that were to be stopped, and when."""

    shared: PodsShared
    box: Box
    stopper: PodStopper
    last: dict[str, str] = {}
    _tried: dict[str, float] = {}

    async def evict(self, order: EvictionOrder, setting: str) -> str | None:
        """Stop one pod, as `setting` says; returns what owns it ("": nothing does), None: nobody went.

        Never raises: a failure is logged. `setting` is asked again when it is known who would go. A pod that an
        operator holds criproxy off goes in an emergency alone, after all others. There is no time for notice where
        memory is scarce.
        """
        now_s = self.shared.clock.boottime_s()
        self._tried = {one: at_s for one, at_s in self._tried.items() if now_s - at_s < HOLD_S}
        try:
            return await self._evict(order, setting, now_s)
        except (CgroupError, ConnectionError, TimeoutError, ValueError) as error:
            reason = str(error) or "the runtime did not stop the pod in time"
            self.shared.log.error("not_relieved", resource=order.resource, reason=reason)
            return None

    async def _evict(self, order: EvictionOrder, setting: str, now_s: float) -> str | None:
        sandboxes, candidates = await self._candidates(order.resource)
        covers = self.shared.holds.hold_offs.covers
        victim = choose([one for one in candidates if not covers(one.pod)], order.barred)
        if victim is None and order.emergency:  # kubelet would evict online pods
            victim = choose(candidates, order.barred)
        if victim is None:
            reason = "no offline pod may go that has any to give back"
            self.shared.log.warning("not_relieved", resource=order.resource, reason=reason)
            return None
        if setting not in self.shared.holds.stops_by:  # by now
            return None
        one = victim.candidate
        sandbox = sandboxes[one.pod.uid]
        self._tried[sandbox.id] = now_s
        self.shared.holds.hold(one.pod, HOLD_S, f"online pods were harmed: {order.reason}", setting)
        words = RESOURCES[order.resource].words(one.use)
        why = f"{order.reason}; it uses {words}, and {victim.reason}"
        async with asyncio.timeout(STOP_S):
            await self.stopper.stop_all({sandbox.id: (one.pod, why)}, at_once=order.resource == MEMORY)
        self.last = {**self.last, order.resource: f"{one.pod}: {why}"}
        self.shared.counters.count("evictions", order.resource)
        return one.owner

    async def _candidates(self, resource: str) -> tuple[dict[str, Sandbox], list[Candidate]]:
        """The sandboxes by their pods' uid, and the pods with what they say of themselves."""
        running = {one.id: one for one in self.shared.inventory.running_pods if one.id not in self._tried}
        uses = await self._uses({one.placement: one for one in running.values() if one.placement}, resource)
        found = []
        for listed in await self.shared.runtime.sandboxes():
            if listed.id in uses and uses[listed.id] >= LEAST[resource]:
                pod = Pod(listed.pod, listed.labels, listed.annotations)
                found.append(candidate(pod, owner_of(pod), uses[listed.id], listed.created_s))
        return {one.pod.uid: one for one in running.values()}, found

    async def _uses(self, pods: Mapping[str, Sandbox], resource: str) -> dict[str, float]:
        """By sandbox id, in the unit of the resource."""
        now = await self.box.usage_of(tuple(pods))
        if resource == MEMORY:
            return {pods[path].id: float(usage.working_set_bytes) for path, usage in now.items()}
        began_s = self.shared.clock.boottime_s()
        await self.shared.clock.sleep(_CPU_OVER_S)
        later = await self.box.usage_of(tuple(now))
        seconds = self.shared.clock.boottime_s() - began_s
        return {
            pods[path].id: max(0.0, usage.cpu_usage_s - now[path].cpu_usage_s) / seconds
            for path, usage in later.items()
        }
