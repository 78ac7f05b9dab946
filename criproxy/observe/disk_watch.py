"""Looks each minute whether the disks keep to the box's weight, and logs when that changes."""

from collections.abc import Callable
from typing import Final

import structlog
from msgspec import Struct, field

from criproxy.cgroup.box import BoxState
from criproxy.cgroup.disk_weight import DiskWeight, DiskWeights
from criproxy.cgroup.worker import Worker
from criproxy.control.clock import Clock
from criproxy.pods.shared import Trouble

EVERY_S: Final = 60.0

_REMEDY: Final = "set io.weight, or choose the scheduler bfq for these disks: docs/disks.md"


class DiskWatch(Struct):
    """`box` says where the box is. `disks` may be asked for from any thread."""

    weights: DiskWeights
    worker: Worker
    box: Callable[[], BoxState]
    clock: Clock
    log: structlog.typing.FilteringBoundLogger
    disks: tuple[DiskWeight, ...] = ()
    _trouble: Trouble = field(default_factory=Trouble)

    async def run(self) -> None:
        """Looks, until cancelled."""
        while True:
            await self.look()
            await self.clock.sleep(EVERY_S, slack_s=1.0)

    async def look(self) -> None:
        """Never raises: a failure is logged once, and the next look tries again."""
        state = self.box()
        if not state.version:
            return
        before = self.disks
        with self._trouble.logged_by(lambda error: self.log.warning("disk_weight_not_known", error=str(error))):
            self.disks = await self.worker.run("look at disks", lambda: self.weights.read(state.version, state.path))
        if (disks := self.disks) == before:
            return
        if in_force := {one.name: one.kept_by for one in disks if one.kept_by}:
            self.log.info("disk_weight_in_force", disks=in_force)
        if left := {one.name: one.why for one in disks if not one.kept_by}:
            self.log.info("disk_weight_not_in_force", disks=left, remedy=_REMEDY)
