"""Looks for threads of offline pods that run in real time, where CAP_SYS_NICE can't be taken from them: by NRI.

A call by CRI has that capability dropped (`criproxy.hooks.rewrites`); NRI neither tells which capabilities a container
has, nor lets a plugin set them. So each minute, and a moment after each start, the threads of the box's pods are looked
at. A pod that runs in real time is told of, and stopped when the config says so, as what runs outside the box. One that
the node's own file allows all of this (`hardening.allow`) may run so.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.realtime import RealtimeThreads
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.worker import Worker
from criproxy.hooks.hardening import Hardening
from criproxy.model import Pod, PodRef
from criproxy.model.shown import Gauge
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.runtime import ListedSandbox, Running
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED, StopRequests

SOON_S: Final = 2.0
"""From a start to the look at it: a program has begun by then. What starts meanwhile shares that look."""

_PAST: Final = "past every limit of the box"


class RealtimeWatch(PodObserver, Part, Struct, eq=False):
    """See the module. `found`: which pods, and in words what runs in them. `hardening` None: nobody is looked at."""

    NAME = "looking for threads in real time"
    EVERY_S = 60.0
    GAUGES = (
        Gauge(
            "realtime_pods",
            'Offline pods with threads in real time, past the box\'s limits (looked for with proxy.front = "nri")',
            lambda part: len(part.found),
        ),
    )

    shared: PodsShared
    stops: StopRequests
    threads: RealtimeThreads
    worker: Worker
    hardening: Hardening | None = None
    found: Mapping[PodRef, str] = {}
    _started_s: float | None = None
    """When the first pod or container started that no look has seen (CLOCK_BOOTTIME); None: there is none."""
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "RealtimeWatch":
        return cls(ports.shared, ports.stops, RealtimeThreads(Tree()), ports.workers["node-looks"])

    def configure(self, now: NodeSettings) -> None:
        by_nri = now.config.proxy.front == "nri"
        self.hardening = now.config.hardening.of_hooks() if by_nri else None
        self._wake.set()

    def pod_started(self, running: Running) -> None:
        if self.hardening is not None and self._started_s is None:
            self._started_s = self.shared.clock.boottime_s()
            self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        if self.hardening is None:
            return None
        return self.EVERY_S if self._started_s is None else SOON_S

    async def look(self) -> None:
        if (hardening := self.hardening) is None:
            self.found = {}
            return
        if self._started_s is not None and self.shared.clock.boottime_s() - self._started_s < SOON_S:
            return
        self._started_s = None
        allowed = {one.id for one in self.shared.inventory.marked if hardening.lets(_pod(one)) is not None}
        placed = {one.id: one for one in self.shared.inventory.running_pods if one.id not in allowed}
        placements = {id: one.placement for id, one in placed.items() if one.placement is not None}
        found = await self.worker.run("look for threads in real time", lambda: self.threads.read(placements))
        before, self.found = self.found, {placed[id].pod: words for id, words in found.items()}
        for id, words in found.items():
            pod, why = placed[id].pod, f"{words}, {_PAST}"
            if pod not in before:
                self.shared.log.error("realtime_in_box", pod=str(pod), pod_uid=pod.uid, reason=why)
            if self.shared.holds.stops(ON_UNBOUNDED, pod):
                self.shared.holds.hold(pod, HOLD_S, why, ON_UNBOUNDED)
                self.stops.stop(placed[id], why, ON_UNBOUNDED)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for pod, words in self.found.items():
            yield f"offline pod {pod}: {words}, {_PAST}: take CAP_SYS_NICE from it (capabilities.drop)"


def _pod(sandbox: ListedSandbox) -> Pod:
    return Pod(sandbox.pod, sandbox.labels, sandbox.annotations)
