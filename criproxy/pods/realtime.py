"""Looks for threads of offline pods that run in real time.

A call by CRI has CAP_SYS_NICE dropped (`criproxy.hooks.rewrites`); NRI neither tells which capabilities a container
has, nor lets a plugin set them. With both, another plugin of NRI may have the runtime start a container under such a
policy, which takes no capability of the container's. So each minute, the threads of the box's pods are looked at, and a
moment after each start, those of the pod that started; at most `MOST_THREADS` in one look, the others in the next. A
pod that runs in real time is told of, and stopped when the config says so, as what runs outside the box. One that the
node's own file allows all of this (`hardening.allow`) may run so. Where privileged pods are let in, nobody is stopped
for it: such a pod has the capability whatever it drops, and would be stopped with each try.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from math import inf
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
"""From a pod's last start to the look at it: a program has begun by then. What is left of a look follows as soon."""

MOST_THREADS: Final = 10_000
"""Of one look. To ask for a thread's policy takes 2.6 µs, in which no other Python code runs."""

_EARLY: Final = 0.9
"""A look may come a twentieth before its time (`Clock.sleep`)."""

_PAST: Final = "past every limit of the box"


class RealtimeWatch(PodObserver, Part, Struct, eq=False):
    """See the module. `found`: which pods, and in words what runs in them. `hardening` None: nobody is looked at."""

    NAME = "looking for threads in real time"
    EVERY_S = 60.0
    GAUGES = (
        Gauge(
            "realtime_pods",
            "Offline pods with threads in real time, past the box's limits",
            lambda part: len(part.found),
        ),
    )

    shared: PodsShared
    stops: StopRequests
    threads: RealtimeThreads
    worker: Worker
    hardening: Hardening | None = None
    found: Mapping[PodRef, str] = {}
    _started: dict[str, float] = {}
    """When each pod last started something that no look has seen (CLOCK_BOOTTIME), by sandbox id."""
    _turns: dict[str, int] = {}
    """Which pods are still to be looked at, in order, and how many of their threads were, by sandbox id."""
    _failed: bool = False
    _all_s: float = -inf
    """When it was last the turn of all pods (CLOCK_BOOTTIME)."""
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "RealtimeWatch":
        return cls(ports.shared, ports.stops, RealtimeThreads(Tree()), ports.workers["node-looks"])

    def configure(self, now: NodeSettings) -> None:
        self.hardening = now.config.hardening.of_hooks() if now.relieves else None
        self._wake.set()

    def pod_started(self, running: Running) -> None:
        if self.hardening is None:
            return
        if not self._started:
            self._wake.set()
        self._started[running.sandbox.id] = self.shared.clock.boottime_s()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        if self.hardening is None:
            return None
        if self._turns and self._failed:
            return self.EVERY_S
        if self._started or self._turns:
            return SOON_S
        return max(0.0, self._all_s + self.EVERY_S - self.shared.clock.boottime_s())

    async def look(self) -> None:
        if (hardening := self.hardening) is None:
            self.found, self._started, self._turns = {}, {}, {}
            return
        allowed = {one.id for one in self.shared.inventory.marked if hardening.lets(_pod(one)) is not None}
        placed = {one.id: one for one in self.shared.inventory.running_pods if one.id not in allowed}
        placements = {id: one.placement for id, one in placed.items() if one.placement is not None}
        running = {one.pod for one in placed.values()}
        self.found = {pod: words for pod, words in self.found.items() if pod in running}
        turns = self._turns = self._next_turns(placements)
        if not turns:
            return
        job = partial(self.threads.read, placements, turns, MOST_THREADS)
        self._failed = True
        looked = await self.worker.run("look for threads in real time", job)
        self._turns, self._failed = looked.left, False
        before, cleared = self.found, {placed[id].pod for id in turns.keys() - looked.left.keys()}
        kept = {pod: words for pod, words in before.items() if pod not in cleared}
        self.found = kept | {placed[id].pod: words for id, words in looked.words.items()}
        for id, words in looked.words.items():
            pod, why = placed[id].pod, f"{words}, {_PAST}"
            if pod not in before:
                self.shared.log.error("realtime_in_box", pod=str(pod), pod_uid=pod.uid, reason=why)
            if hardening.refuse_privileged and self.shared.holds.stops(ON_UNBOUNDED, pod):
                self.shared.holds.hold(pod, HOLD_S, why, ON_UNBOUNDED)
                self.stops.stop(placed[id], why, ON_UNBOUNDED)

    def _next_turns(self, placements: Mapping[str, str]) -> dict[str, int]:
        """Whose turn it is: first those that have started, then those that were left, or all when it is their time."""
        now_s = self.shared.clock.boottime_s()
        due = [id for id, started_s in self._started.items() if now_s - started_s >= SOON_S * _EARLY]
        turns = dict.fromkeys(due, 0)
        for id in due:
            del self._started[id]
        waits_for_starts = bool(due or self._started) and now_s - self._all_s < self.EVERY_S * _EARLY
        turns |= {id: seen for id, seen in self._turns.items() if id not in turns}
        if not self._turns and not waits_for_starts:
            self._all_s = now_s
            turns |= {id: 0 for id in placements if id not in turns}
        return {id: seen for id, seen in turns.items() if id in placements}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        remedy = (
            "take CAP_SYS_NICE from it (capabilities.drop), and the scheduling class that another plugin of NRI gives "
            "it (docs/cpus.md)"
        )
        if self.hardening is not None and not self.hardening.refuse_privileged:
            remedy += ", and `privileged`, which gives it back"
        for pod, words in self.found.items():
            yield f"offline pod {pod}: {words}, {_PAST}: {remedy}"


def _pod(sandbox: ListedSandbox) -> Pod:
    return Pod(sandbox.pod, sandbox.labels, sandbox.annotations)
