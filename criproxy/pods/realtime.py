"""Looks each minute for offline pods with threads in real time, reports them, and stops them when the config says so.

A pod gets no capability for that from us (`criproxy.hooks.realtime`), but a privileged one has it all the same.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.worker import Worker
from criproxy.control.clock import Clock
from criproxy.model import PodRef
from criproxy.pods.inventory import Inventory
from criproxy.pods.stopping import ON_UNBOUNDED, Holds, StopsPods

EVERY_S: Final = 60.0

HOLD_S: Final = 300.0
"""For so long a pod that was stopped may not start again: kubelet would start it at once, with the same threads."""


class RealtimeReader(Protocol):
    """See `criproxy.cgroup.processes.RealtimeThreads`."""

    def read(self, placements: Mapping[str, str]) -> dict[str, str]: ...


class RealtimeSettings(Struct, frozen=True):
    """`stop`: pods with threads in real time are stopped."""

    stop: bool


class RealtimeWatch:
    """`found` may be asked for from any thread."""

    def __init__(
        self,
        settings: RealtimeSettings,
        inventory: Inventory,
        threads: RealtimeReader,
        worker: Worker,
        *,
        stopper: StopsPods,
        holds: Holds,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self.found: Mapping[PodRef, str] = {}
        """Which pods, and in words what runs in them."""
        self._settings = settings
        self._inventory = inventory
        self._threads = threads
        self._worker = worker
        self._stopper = stopper
        self._holds = holds
        self._clock = clock
        self._trouble = ""
        self._log = log

    def configure(self, settings: RealtimeSettings) -> None:
        self._settings = settings
        if not settings.stop:
            self._holds.lift(ON_UNBOUNDED)

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
            if self._settings.stop:
                self._holds.hold(pod, HOLD_S, "its threads ran in real time, past the box's limits", ON_UNBOUNDED)
                self._stopper.stop(placed[id], f"{words}, past the box's limits ({ON_UNBOUNDED})")
