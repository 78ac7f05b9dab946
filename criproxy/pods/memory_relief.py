"""Stops the largest offline pod before kubelet evicts an online one; `control.memory_pressure` decides when.

It also reads kubelet's threshold, off the event loop, and keeps new offline pods out while the box is over: kubelet
starts a pod again that was stopped, and it would come straight back.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Final

from msgspec import Struct, field, structs

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.worker import Worker
from criproxy.control.memory_pressure import (
    PAUSE_S,
    EvictionHard,
    EvictionStatus,
    Evidence,
    PressureState,
    Verdict,
    decide,
    halfway_bytes,
    kept_free_bytes,
)
from criproxy.control.resources import bytes_in_words
from criproxy.model import MEMORY, UNLIMITED, Sandbox, Snapshot
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_OVER_LIMIT, PodStopper

READ_EVERY_S: Final = 60.0
"""From one reading of kubelet's threshold to the next: it changes with kubelet's restart only."""

SOON_S: Final = 2.0

HOLD_S: Final = 60.0
"""For so long a pod that was stopped may not start again, so that nothing spins."""

EVICT_S: Final = 3.0
"""An eviction that is not accepted by then comes too late: the sandbox is stopped instead."""

GRACE_S: Final = 1
"""What an evicted pod gets to end, in s: the node has no more time."""

VICTIMS: Final = 5
"""So many are tried, of which each may have a disruption budget that lets it not go."""

_AMONG: Final = "the most of those whose disruption budgets let them go"

LEAST_BYTES: Final = 1 << 20
"""A pod that uses less has nothing to give back."""


class MemoryRelief(Struct):
    """Judges each of the loop's samples. `read_hard` reads kubelet's threshold, in `worker`'s thread.

    `active`: the box's limits are ours to set. `hard`: kubelet's threshold, as far as known. `_tried`: the sandboxes
    that were to be stopped, and when.
    """

    active: bool
    shared: PodsShared
    box: Box
    stopper: PodStopper
    read_hard: Callable[[], EvictionHard]
    worker: Worker
    hard: EvictionHard = EvictionHard(problem="it was not read yet")
    _state: PressureState = PressureState()
    _over: bool = False
    _evidence: Evidence | None = None
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _tried: dict[str, float] = {}
    _last: str = ""

    def configure(self, active: bool) -> None:
        """`Holds` has to know before whether pods are stopped."""
        self.active = active
        self._hold_everybody()

    async def run(self) -> None:
        """Stop pods when that is due, and read kubelet's threshold each minute, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._relieve())
            tasks.create_task(self._follow_kubelet())

    @property
    def _stops(self) -> bool:
        """Otherwise it is only logged."""
        return ON_OVER_LIMIT in self.shared.holds.stops_by

    def kept_free(self, capacity_bytes: float) -> float:
        """What the box's limit must leave free of so much memory."""
        return kept_free_bytes(self.hard, capacity_bytes)

    def problems(self) -> Iterator[str]:
        """What an operator should know now."""
        if self._over:
            yield self._words()

    def status(self) -> EvictionStatus:
        hard, evidence = self.hard, self._evidence
        return EvictionStatus(
            source=hard.source,
            problem=hard.problem,
            hard_bytes=None if evidence is None else round(hard.of(evidence.capacity)),
            halfway_bytes=None if evidence is None else round(halfway_bytes(hard, evidence.capacity)),
            available_bytes=None if evidence is None else round(evidence.available),
            last=self._last,
        )

    # --- for the loop -----------------------------------------------------------------------------------------------

    def sampled(self, snapshot: Snapshot) -> None:
        """Judge this moment, also when the limits could not be written: then it is needed most."""
        held, memory = self.box.state().memory, snapshot.of[MEMORY]
        bound = None if held is None or held.wanted_bytes is UNLIMITED else held.wanted_bytes
        self._evidence = Evidence(
            t_s=snapshot.t_s,
            capacity=memory.capacity,
            node=memory.node,
            box=memory.box,
            bound=bound if self.active else None,
            hard=self.hard,
        )
        verdict, self._state = decide(self._evidence, self._state)
        self._log_change(verdict)
        self._hold_everybody()
        if verdict.act and self._stops:
            self._due.set()

    def _hold_everybody(self) -> None:
        """A pod that starts would take memory that the box is over already."""
        holds = self._over and self._stops
        self.shared.holds.hold_everybody(self._words() if holds else "")

    def _log_change(self, verdict: Verdict) -> None:
        if verdict.over and not self._over:
            remedy = f"none: {ON_OVER_LIMIT}"
            if self._stops:
                remedy = "the largest offline pod is stopped"
            self._over = True
            self.shared.log.warning("memory_over_limit", detail=self._words(), remedy=remedy)
        elif self._over and not verdict.over:
            self._over = False
            self.shared.log.info("memory_within_limit")

    def _words(self) -> str:
        seen = self._evidence
        assert seen is not None
        threshold, above = seen.hard.of(seen.capacity), seen.box - (seen.bound or 0.0)
        return (
            f"memory.available is {bytes_in_words(seen.available)}, and kubelet evicts pods below "
            f"{bytes_in_words(threshold)}, while the box is {bytes_in_words(above)} above its memory limit"
        )

    # --- what it does -----------------------------------------------------------------------------------------------

    async def _relieve(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self.stop_largest()

    async def stop_largest(self) -> None:
        """Stop the offline pod with the largest working set. Never raises: a failure is logged."""
        now_s = self.shared.clock.boottime_s()
        self._tried = {one: at_s for one, at_s in self._tried.items() if now_s - at_s < HOLD_S}
        try:
            largest = await self._largest()
            if not largest:
                self.shared.log.warning("memory_not_relieved", reason="no offline pod has memory to give back")
                return
            if not self._stops:  # by now
                return
            words = self._words()
            victims = [
                (one.id, one.pod, f"{words}; this pod uses {most}, {bytes_in_words(size)}")
                for (one, size), most in zip(largest, chain(("the most",), repeat(_AMONG)), strict=False)
            ]
            async with asyncio.timeout(PAUSE_S):  # one that does not stop must not keep the next
                at = await self.stopper.evict_first(victims, within_s=EVICT_S, grace_s=GRACE_S)
                sandbox, why = largest[at or 0][0], victims[at or 0][2]
                self._tried[sandbox.id] = now_s
                reason = "the node was near kubelet's eviction of pods for memory"
                self.shared.holds.hold(sandbox.pod, HOLD_S, reason, ON_OVER_LIMIT)
                if at is None:
                    await self.stopper.stop_now(sandbox.id, sandbox.pod, why)
        except (CgroupError, ConnectionError, TimeoutError) as error:
            self.shared.log.error(
                "memory_not_relieved", reason=str(error) or "the runtime did not stop the pod in time"
            )
        else:
            self._last = f"{sandbox.pod}: {why}"
            self.shared.counters.count("memory_evictions")

    async def _largest(self) -> list[tuple[Sandbox, int]]:
        """The few largest, the largest first."""
        untried = (one for one in self.shared.inventory.running_pods if one.id not in self._tried)
        pods = {one.placement: one for one in untried if one.placement}
        sizes = await self.box.memory_of(tuple(pods))
        large = sorted((pod for pod in sizes if sizes[pod] >= LEAST_BYTES), key=lambda pod: sizes[pod], reverse=True)
        return [(pods[pod], sizes[pod]) for pod in large[:VICTIMS]]

    async def _follow_kubelet(self) -> None:
        """The first calls come before that."""
        await self.shared.clock.sleep(SOON_S)
        while True:
            await self.read_threshold()
            await self.shared.clock.sleep(READ_EVERY_S)

    async def read_threshold(self) -> None:
        """Say what has changed."""
        try:
            hard = await self.worker.run("read kubelet's evictionHard", self.read_hard)
        except Exception as error:  # what was known holds
            hard = structs.replace(self.hard, problem=f"it can't be read now: {error}")
        if hard != self.hard:
            words = f"{hard.ratio:.1%}" if hard.ratio else bytes_in_words(hard.size_bytes)
            if hard.problem:
                remedy = f"{words} is assumed, kubelet's default"
                self.shared.log.warning("eviction_threshold_unknown", reason=hard.problem, consequence=remedy)
            else:
                self.shared.log.info("eviction_threshold", memory_available=words, source=hard.source)
        self.hard = hard
