"""Has disks keep to the box's weight by the means that an operator has chosen, puts back what it has changed, and says
which disks keep to it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup.box import Box
from criproxy.cgroup.disk_keepers import DiskKeepers, Keeper, Kept
from criproxy.cgroup.disk_weight import DiskWeight, DiskWeights
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.worker import Worker
from criproxy.model.modes import LimitsUse
from criproxy.model.shown import Gauge, listed
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared

_TIMEOUT_S: Final = 10.0
_REMEDY: Final = "set io.weight, or choose the scheduler bfq for these disks: docs/disks.md"
_EQUALS: Final = "there, offline pods read and write as equals of online ones"


def keeper_asked(now: NodeSettings) -> Keeper | None:
    """None: what is in force is not ours to change. Where colocation is off, nobody looks after it any more."""
    if now.modes.limits is LimitsUse.LIFTED:
        return "leave"
    return now.config.io.weight if now.writes else None


class DiskKeeping(Part, Struct, eq=False):
    """`keeper`: see `keeper_asked`."""

    NAME = "having disks keep to the box's weight"
    EVERY_S = 60.0
    GAUGES = (
        Gauge(
            "disk_weight_in_force",
            "Whether a disk keeps to the box's lowest weight",
            lambda part: {disk.name: bool(disk.kept_by) for disk in part.found},
            "device",
        ),
    )

    shared: PodsShared
    box: Box
    keepers: DiskKeepers
    weights: DiskWeights
    looks: Worker
    keeper: Keeper | None = None
    kept: Kept = Kept()
    found: tuple[DiskWeight, ...] = ()
    """What keeps each disk to the weight, as far as the kernel says."""
    _worker: Worker | None = None
    """A thread of its own: to switch a disk waits for what it has under way. None: nothing was to be done yet."""
    _wake: Wake = field(default_factory=Wake)

    @classmethod
    def made(cls, ports: Ports) -> "DiskKeeping":
        weights = DiskWeights(Tree())
        keepers = DiskKeepers(Tree(), ports.run_path.with_suffix(".disks"), weights)
        return cls(ports.shared, ports.box, keepers, weights, ports.looks)

    def configure(self, now: NodeSettings) -> None:
        keeper = keeper_asked(now)
        if keeper != self.keeper:
            self.keeper = keeper
            self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def _is_at_work(self) -> bool:
        """Whether disks are to be kept, or put back."""
        return self.keeper not in (None, "leave") or (self.keeper == "leave" and self.keepers.has_changed_some)

    async def look(self) -> None:
        try:
            await self._keep()
        finally:
            await self._see()

    async def _keep(self) -> None:
        keeper, log = self.keeper, self.shared.log
        if keeper is None or not self._is_at_work:
            self.kept = Kept()
            return
        before = self.kept
        if self._worker is None:
            self._worker = Worker("disk-keepers", _TIMEOUT_S)
        self.kept = await self._worker.run("switch disks", lambda: self.keepers.keep(keeper))
        if self.kept.switched:
            log.info("disk_weight_switched", disks=dict(self.kept.switched), reason=f"io.weight = {keeper}")
        if self.kept.failures and self.kept.failures != before.failures:
            log.warning("disk_weight_not_switched", disks=dict(self.kept.failures))

    async def _see(self) -> None:
        version, path = self.box.version, self.box.path
        if not version:
            return
        before = self.found
        self.found = await self.looks.run("look at disks", lambda: self.weights.read(version, path))
        if self.found == before:
            return
        if in_force := {one.name: one.kept_by for one in self.found if one.kept_by}:
            self.shared.log.info("disk_weight_in_force", disks=in_force)
        if left := {one.name: one.why for one in self.found if not one.kept_by}:
            self.shared.log.info("disk_weight_not_in_force", disks=left, remedy=_REMEDY)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def disks(self) -> tuple[DiskWeight, ...]:
        """Which disks keep to the weight; of the others why not, and why one could not be switched."""
        failures = self.kept.failures
        return tuple(
            disk
            if disk.kept_by or disk.name not in failures
            else replace(disk, why=f"{disk.why} ({failures[disk.name]})")
            for disk in self.found
        )

    def section(self) -> Mapping[str, Any]:
        return {"disks": self.disks()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        disks = self.disks()
        if kept := [f"{disk.name} ({disk.kept_by})" for disk in disks if disk.kept_by]:
            yield "disk weight", f"in force on {', '.join(listed(kept))}"
        reasons: dict[str, list[str]] = {}
        for disk in disks:
            if not disk.kept_by:
                reasons.setdefault(disk.why, []).append(disk.name)
        for why, names in reasons.items():
            yield "disk weight", f"not in force on {', '.join(listed(names))}: {why}; {_EQUALS}"
