"""Has pods of the box leave: single ones that parts ask for (`StopRequests`), or all, by the switch or the schedule."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from criproxy.concurrency.clock import Wake
from criproxy.config.ladder import ladder_settings
from criproxy.model import Sandbox
from criproxy.model.modes import LimitsUse
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_CLOSE, ON_DISABLE, Leave, PodStopper, StopRequests

_SCHEDULE: Final = "the schedule is off", ON_CLOSE
_SWITCH: Final = "colocation was switched off", ON_DISABLE


def all_leave(now: NodeSettings) -> tuple[str, str] | None:
    """Why all pods of the box are to leave, and by which setting; None: they are not."""
    if now.writes and now.stage.drain:
        return _SCHEDULE
    off = now.modes.limits is LimitsUse.LIFTED
    return _SWITCH if off and now.config.colocation.on_disable == "evict" else None


class PodStops(PodObserver, Part, Struct, eq=False):
    """What did not stop is tried again each minute, and whenever a pod has gone: a disruption budget may have room now.

    `all_leave`: see the function.
    """

    NAME = "stopping pods"
    EVERY_S = 60.0

    shared: PodsShared
    requests: StopRequests
    stopper: PodStopper
    all_leave: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "PodStops":
        return cls(ports.shared, ports.stops, ports.shared.stopper())

    def configure(self, now: NodeSettings) -> None:
        self.all_leave = all_leave(now)
        self.stopper.budget.law = ladder_settings(now.config.interference).budget
        self.wake.set()

    def cease(self) -> None:
        self.stopper.cease()

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self.stopper.problems()

    def pods_listed(self) -> None:
        self.wake.set()

    def pod_removed(self, sandbox: Sandbox) -> None:
        self.wake.set()

    @property
    def wake(self) -> Wake:
        return self.requests.wake

    async def look(self) -> None:
        """Pods that are merely to make room for the schedule, or for who switches colocation off, keep to their
        disruption budgets. While colocation is off, they keep to the box until Kubernetes evicts them, where it is on.

        Of those, pods that have ended are left alone: the API server deletes such a pod when it is evicted, whatever
        its budget, and with it its logs and exit states.
        """
        if not self.shared.runtime.ready:
            return
        placed = {sandbox.id: sandbox.pod for sandbox in self.shared.inventory.placed}
        single = self.requests.keep(placed.keys(), self.shared.holds.stops_by, self.stopper.begun)
        everything: dict[str, Leave] = {}
        if self.all_leave is not None:
            why, setting = self.all_leave
            ended = {sandbox.id for sandbox in self.shared.inventory.ended_pods}
            going = {one: pod for one, pod in placed.items() if one not in ended}
            everything = {one: Leave(pod, why, setting, in_budget=False) for one, pod in going.items()}
        wanted = {one: leave for one, leave in (single | everything).items() if self.stopper.stands(leave)}
        await self.stopper.stop_all(wanted, patient=everything.keys() - single.keys())
