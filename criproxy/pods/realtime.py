"""Looks each minute for offline pods with threads in real time, reports them, and stops them when the config says so.

A pod gets no capability for that from us (`criproxy.hooks.rewrites`), but a privileged one has it all the same.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.processes import RealtimeThreads
from criproxy.cgroup.worker import Worker
from criproxy.model import PodRef, Sandbox
from criproxy.pods.reconciler import Reconciler
from criproxy.pods.shared import PodsShared, Trouble
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED

EVERY_S: Final = 60.0


class RealtimeWatch(Struct):
    """`found`: which pods, and in words what runs in them; it may be asked for from any thread."""

    shared: PodsShared
    stopper: Reconciler
    threads: RealtimeThreads
    worker: Worker
    found: Mapping[PodRef, str] = {}
    _trouble: Trouble = field(default_factory=Trouble)

    async def run(self) -> None:
        while True:
            await self.shared.clock.sleep(EVERY_S, slack_s=1.0)
            await self.look()

    async def look(self) -> None:
        """Never raises: a failure is logged once, and the next look tries again."""
        placed = {sandbox.id: sandbox for sandbox in self.shared.inventory.running_pods}
        placements = {id: sandbox.placement for id, sandbox in placed.items() if sandbox.placement is not None}
        with self._trouble.logged_by(lambda e: self.shared.log.warning("realtime_threads_not_known", error=str(e))):
            found = await self.worker.run("look for realtime threads", lambda: self.threads.read(placements))
            self._judge(placed, found)

    def _judge(self, placed: Mapping[str, Sandbox], found: Mapping[str, str]) -> None:
        before, self.found = self.found, {placed[id].pod: words for id, words in found.items()}
        for id, words in found.items():
            pod = placed[id].pod
            if pod not in before:
                reason = f"{words}, and no limit of the box holds it"
                self.shared.log.error("realtime_in_box", pod=str(pod), pod_uid=pod.uid, reason=reason)
            if self.shared.holds.stops(ON_UNBOUNDED, pod):
                self.shared.holds.hold(pod, HOLD_S, "its threads ran in real time, past the box's limits", ON_UNBOUNDED)
                self.stopper.stop(placed[id], f"{words}, past the box's limits ({ON_UNBOUNDED})")
