"""Looks each minute for offline pods with threads in real time, tells of them, and stops them when the config says so.

A pod gets no capability for that from us (`criproxy.hooks.realtime`), but a privileged one has it all the same.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from criproxy.cgroup.worker import Worker
from criproxy.control.clock import Clock
from criproxy.model import PodRef, Sandbox

EVERY_S: Final = 60.0

HOLD_S: Final = 300.0
"""For so long a pod that was stopped may not start again: kubelet would start it at once, with the same threads."""


class Inventory(Protocol):
    """What is asked of the inventory (`criproxy.pods.inventory`)."""

    @property
    def running_pods(self) -> tuple[Sandbox, ...]: ...


class Threads(Protocol):
    """See `criproxy.cgroup.processes.RealtimeThreads`."""

    def read(self, placements: Mapping[str, str]) -> dict[str, str]: ...


class RealtimeWatch:
    """`evicts`: the pods are stopped; may be replaced at any time. `evict` stops a sandbox, for a reason, some time."""

    def __init__(
        self,
        evicts: bool,
        inventory: Inventory,
        threads: Threads,
        worker: Worker,
        *,
        evict: Callable[[Sandbox, str], None],
        clock: Clock,
    ) -> None:
        self.evicts = evicts
        self.found: Mapping[PodRef, str] = {}
        """Which pods, and in words what runs in them. May be asked for from any thread."""
        self._inventory = inventory
        self._threads = threads
        self._worker = worker
        self._evict = evict
        self._clock = clock
        self._held: dict[str, float] = {}
        self._trouble = ""
        self._log = structlog.get_logger()

    def held(self, pod: PodRef) -> str:
        """Why a pod may not start in the box for now; "": it may."""
        if not self.evicts or self._held.get(pod.uid, 0.0) <= self._clock.boottime_s():
            return ""
        return (
            "its threads ran in real time, past the box's limits, so it was stopped (colocation.on_unbounded) and is "
            f"not let in for {HOLD_S:g} s"
        )

    async def run(self) -> None:
        """Looks, until cancelled."""
        while True:
            await self._clock.sleep(EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Never raises: a failure is logged once, and the next look tries again."""
        placed = {sandbox.id: sandbox for sandbox in self._inventory.running_pods}
        placements = {id: sandbox.placement for id, sandbox in placed.items() if sandbox.placement is not None}
        try:
            found = await self._worker.run("look for realtime threads", lambda: self._threads.read(placements))
        except Exception as error:
            if str(error) != self._trouble:
                self._log.warning("realtime_threads_not_known", error=str(error))
            self._trouble = str(error)
            return
        self._trouble = ""
        before, self.found = self.found, {placed[id].pod: words for id, words in found.items()}
        for id, words in found.items():
            pod = placed[id].pod
            if pod not in before:
                self._log.error(
                    "realtime_in_box",
                    pod=str(pod),
                    pod_uid=pod.uid,
                    reason=f"{words}, and no limit of the box holds it",
                )
            if self.evicts:
                now_s = self._clock.boottime_s()
                self._held = {uid: until_s for uid, until_s in self._held.items() if until_s > now_s}
                self._held[pod.uid] = now_s + HOLD_S
                self._evict(placed[id], f"{words}, past the box's limits (colocation.on_unbounded)")
