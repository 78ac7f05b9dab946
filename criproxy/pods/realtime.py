"""Looks each minute for offline pods with threads in real time, reports them, and stops them when the config says so.

A pod gets no capability for that from us (`criproxy.hooks.rewrites`), but a privileged one has it all the same.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from criproxy.cgroup.processes import RealtimeThreads
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.worker import Worker
from criproxy.model import PodRef, Sandbox
from criproxy.model.shown import Gauge
from criproxy.pods.part import Part, Ports, StopsPods
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED


class RealtimeWatch(Part, Struct):
    """`found`: which pods, and in words what runs in them."""

    NAME = "looking for threads in real time"
    EVERY_S = FIRST_S = 60.0
    GAUGES = (
        Gauge(
            "realtime_pods",
            "Offline pods with threads in real time, past the box's limits",
            lambda part: len(part.found),
        ),
    )

    shared: PodsShared
    stops: StopsPods
    threads: RealtimeThreads
    worker: Worker
    found: Mapping[PodRef, str] = {}

    @classmethod
    def made(cls, ports: Ports) -> "RealtimeWatch":
        return cls(ports.shared, ports.stops, RealtimeThreads(Tree()), ports.workers["node-looks"])

    async def look(self) -> None:
        placed = {sandbox.id: sandbox for sandbox in self.shared.inventory.running_pods}
        placements = {id: sandbox.placement for id, sandbox in placed.items() if sandbox.placement is not None}
        found = await self.worker.run("look for realtime threads", lambda: self.threads.read(placements))
        self._judge(placed, found)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for pod, words in self.found.items():
            yield f"{words} in offline pod {pod}, and no limit of the box holds it"

    def _judge(self, placed: Mapping[str, Sandbox], found: Mapping[str, str]) -> None:
        before, self.found = self.found, {placed[id].pod: words for id, words in found.items()}
        for id, words in found.items():
            pod = placed[id].pod
            if pod not in before:
                reason = f"{words}, and no limit of the box holds it"
                self.shared.log.error("realtime_in_box", pod=str(pod), pod_uid=pod.uid, reason=reason)
            if self.shared.holds.stops(ON_UNBOUNDED, pod):
                self.shared.holds.hold(pod, HOLD_S, "its threads ran in real time, past the box's limits", ON_UNBOUNDED)
                self.stops.stop(placed[id], f"{words}, past the box's limits ({ON_UNBOUNDED})", ON_UNBOUNDED)
