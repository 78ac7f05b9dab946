"""Keeps the cgroups of the box's pods, and of their containers, at what kubelet and the pods' authors ask for.

| cgroup          | has                                              | where that is known from                       |
|-----------------|--------------------------------------------------|------------------------------------------------|
| the pod's       | all that kubelet has set on its own cgroup of it | kubelet's cgroup, read anew at each look       |
| the container's | the CPU weight and the memory limit that it asks | the pod's annotations (`hooks.batch`);         |
|                 | for beyond kubelet's knowledge                   | what kubelet itself has given a container      |
|                 |                                                  | stays                                          |

A pod that starts has its cgroup from the box (`BoxPods.admit`). A container gets what it asks for here, once it has
started, and not in the request that creates it: the runtime would report that to kubelet, kubelet takes it for what the
pod requests, and scheduler and kubelet's admission would count what is lent as taken from online pods.

Kubelet resizes its own cgroup of a pod before or after it updates the pod's containers, and tells the runtime of the
pod before that, after it, or never. So each update is followed by a look at the containers, as the runtime has written
theirs anew, `SOON_S` after its end by one at the pod, and `AGAIN_S` after its begin by another: kubelet may have been
refused, and then its own cgroup has what was there before. Meanwhile the pod's cgroup is left alone.

What nobody has told is found by turns: each listing is followed by a look at some pods, so that a minute costs the same
on a node with 1,000 of them.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupDriver, ContainerLimits, all_done
from criproxy.cgroup.kernel_files import weight_of
from criproxy.cgroup.naming import parse_placement
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.closing import all_tried
from criproxy.model import Asked, LimitChange, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import Part, Ports
from criproxy.pods.runtime import Running
from criproxy.pods.shared import PodsShared, Turns

SOON_S: Final = 0.5
AGAIN_S: Final = 5.0

AT_ONCE: Final = 50
"""How many pods are looked at after a listing. Each costs some twenty reads of the kernel's files."""


class AskedOfContainer(Struct, frozen=True):
    """What a container of a pod in the box (`pod`: its path) asks for; `id` is the runtime's."""

    pod: str
    id: str
    asked: Asked


def settle_containers(driver: CgroupDriver, asked: Collection[AskedOfContainer]) -> tuple[LimitChange, ...]:
    """A job of the box's: give containers what they ask for, where kubelet has given them nothing.

    One that has gone is no error. What failed of one is raised after all were tried, as CgroupError.
    """
    return all_done(partial(_settle_container, driver, one) for one in asked)


def _settle_container(driver: CgroupDriver, one: AskedOfContainer) -> tuple[LimitChange, ...]:
    weight = weight_of(one.asked.cpu_shares, driver.version) if one.asked.cpu_shares else None
    return driver.settle_container(one.pod, one.id, ContainerLimits(weight, one.asked.memory_bytes or None))


class PodLimitsUpkeep(PodObserver, Part, Struct, eq=False):
    """The first listing is followed by a look at all pods, each other one by a look at the next `AT_ONCE`, and at those
    whose limits could not be set.
    """

    NAME = "keeping pods and containers to their limits"
    SLACK_S = 0.0

    shared: PodsShared
    box: Box
    _listed: bool = False
    _turns: Turns | None = None
    """None: all are due."""
    _failed: frozenset[str] = frozenset()
    """The sandboxes of a look that has not succeeded."""
    _due: set[str] = set()
    """The sandboxes whose containers the next look has to look at."""
    _soon: dict[str, float] = {}
    """When (monotonic) a look has to come at the sandboxes themselves, after an update; as `_later`."""
    _later: dict[str, float] = {}
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "PodLimitsUpkeep":
        return cls(ports.shared, ports.box)

    def pods_listed(self) -> None:
        self._listed = True
        self._wake.set()

    def pod_started(self, running: Running) -> None:
        if running.container in running.sandbox.containers:
            self._look_at(running.sandbox)

    def resize_asked(self, sandbox: Sandbox) -> None:
        self._later[sandbox.id] = self.shared.clock.monotonic_s() + AGAIN_S
        self._wake.set()

    def resize_done(self, sandbox: Sandbox) -> None:
        self._soon[sandbox.id] = self.shared.clock.monotonic_s() + SOON_S
        self._look_at(sandbox)

    def _look_at(self, sandbox: Sandbox) -> None:
        self._due.add(sandbox.id)
        self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        """Until the first of those that wait is due."""
        waiting = (*self._soon.values(), *self._later.values())
        return max(0.0, min(waiting) - self.shared.clock.monotonic_s()) if waiting else None

    def _ripe(self) -> set[str]:
        now_s = self.shared.clock.monotonic_s()
        return {id for waiting in (self._soon, self._later) for id, at_s in waiting.items() if at_s <= now_s}

    async def look(self) -> None:
        """At what is due."""
        listed, self._listed = self._listed, False
        due, self._due = self._due, set()
        ripe, now_s = self._ripe(), self.shared.clock.monotonic_s()
        self._soon, self._later = (
            {id: at_s for id, at_s in of.items() if at_s > now_s} for of in (self._soon, self._later)
        )
        hold_offs = self.shared.holds.hold_offs
        if hold_offs.of_box() is not None:
            return
        running = {one.id: one for one in self.shared.inventory.running_pods if not hold_offs.covers(one.pod)}
        turn = self._turn(running) if listed else frozenset()
        pods = {id: one for id, one in running.items() if id in ripe or (id in turn and id not in self._later)}
        of_containers = {id: one for id, one in running.items() if id in due or id in ripe or id in turn}
        self._failed = (self._failed & running.keys()) | of_containers.keys()
        await all_tried(self._carry(pods), self._settle(of_containers))
        self._failed -= of_containers.keys()

    def _turn(self, running: Collection[str]) -> frozenset[str]:
        """Those whose turn it is, and those that failed."""
        if self._turns is None:
            self._turns = Turns()
            return frozenset(running)
        return self._failed.intersection(running) | self._turns.next(running, AT_ONCE)

    async def _carry(self, pods: dict[str, Sandbox]) -> None:
        places = [parse_placement(one.placement) for one in pods.values() if one.placement]
        if places and (carried := await self.box.pods.carry(places)):
            reason = "the pods' cgroups in the box held others"
            self.shared.log.info("pod_limits_carried", pods=list(carried), reason=reason)

    async def _settle(self, pods: dict[str, Sandbox]) -> None:
        asking = [
            AskedOfContainer(sandbox.placement, one.id, asked)
            for sandbox in pods.values()
            if sandbox.placement and sandbox.containers
            for one in self.shared.inventory.containers_of(sandbox.id)
            if (asked := sandbox.containers.get(one.name)) is not None
        ]
        if not asking:
            return
        if changes := await self.box.writes("settle containers", lambda driver, _: settle_containers(driver, asking)):
            reason = "their pods' annotations ask for it"
            files = [{"file": change.file, "old": change.old, "new": change.new} for change in changes]
            self.shared.log.info("container_limits_set", files=files, reason=reason)
