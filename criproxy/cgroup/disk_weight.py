"""Finds, per disk, whether the box's lowest weight is in force: the kernel takes weights without keeping to them.

A weight is kept by the BFQ scheduler (CFQ, before Linux 5.0), or on cgroup v2 by the io.cost model where the root's
io.cost.qos switches it on. With any other scheduler, what offline pods read and write competes as an equal.
Source: kernel, Documentation/block/bfq-iosched.rst, section 4; admin-guide/cgroup-v2.rst, IO.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.driver import CgroupError, checked_box
from criproxy.cgroup.kernel_files import IO_BFQ_WEIGHT, IO_WEIGHT, Column, KernelFile
from criproxy.cgroup.tree import Tree

_NO_DISK: Final = re.compile(r"^(loop|ram|zram|sr|fd|nbd)\d")
"""What is no disk, or has one beneath it."""

_CHOSEN: Final = re.compile(r"\[(.+)\]")

_WEIGHTS: Final[Mapping[int, Mapping[str, KernelFile]]] = {
    1: {"bfq": IO_BFQ_WEIGHT, "cfq": IO_WEIGHT},
    2: {"bfq": IO_BFQ_WEIGHT, "io.cost": IO_WEIGHT},
}
"""By the cgroups' version, what keeps to a weight, and the weight."""


class Disk(Struct, frozen=True):
    """A disk, by its name in /sys/block, its number (`8:0`) and its scheduler ("" where it has none).

    `offered`: the schedulers that it may have.
    """

    name: str
    number: str
    scheduler: str
    offered: tuple[str, ...] = ()


class DiskWeight(Struct, frozen=True):
    """What keeps the box's lowest weight on a disk (bfq, cfq, io.cost); "": nothing does, and `why`."""

    name: str
    kept_by: str
    why: str = ""


def judge(disk: Disk, lowest: Collection[str], costed: Collection[str]) -> DiskWeight:
    """Whether the weight is in force. `lowest`: for which keepers the box has it; `costed`: disks with io.cost on."""
    keepers = [disk.scheduler] if disk.scheduler in ("bfq", "cfq") else []
    if disk.number in costed:
        keepers.append("io.cost")
    for keeper in keepers:
        if keeper in lowest:
            return DiskWeight(disk.name, keeper)
    if keepers:
        return DiskWeight(disk.name, "", f"the box has no weight for {keepers[0]}")
    return DiskWeight(disk.name, "", f"scheduler {disk.scheduler or 'none'} keeps to no weight")


def parse_costed(qos: str) -> frozenset[str]:
    """The disks with io.cost switched on, of the root's io.cost.qos. Source: cgroup-v2.rst, io.cost.qos."""
    return frozenset(line.split()[0] for line in files.lines_of(qos) if "enable=1" in line.split())


class DiskWeights(Struct, frozen=True):
    """Reads it, on a thread."""

    tree: Tree
    proc: str = "/proc"
    sys_block: Path = Path("/sys/block")

    def read(self, version: int, box: str | None) -> tuple[DiskWeight, ...]:
        """Of each disk, by name. `version`: the cgroups'. No box yet: as it will be with one. Raises CgroupError."""
        mounts = files.parse_mounts(self.tree.read(f"{self.proc}/self/mountinfo"))
        mount = mounts.v2 if version == 2 else mounts.v1.get("blkio")
        if mount is None:
            return tuple(DiskWeight(disk.name, "", "no cgroup mount has the blkio controller") for disk in self.disks())
        columns = {keeper: row.column(version) for keeper, row in _WEIGHTS[version].items()}
        lowest = [keeper for keeper, column in columns.items() if column and self._is_lowest(mount, box, column)]
        costed = parse_costed(self._text(f"{mount}/io.cost.qos")) if version == 2 else frozenset()
        return tuple(judge(disk, lowest, costed) for disk in self.disks())

    def v2_mount(self) -> str | None:
        """Where cgroup v2 is mounted; None: nowhere. Raises CgroupError."""
        return files.parse_mounts(self.tree.read(f"{self.proc}/self/mountinfo")).v2

    def _is_lowest(self, mount: str, box: str | None, column: Column) -> bool:
        if box is None:
            return True
        text = self._text(f"{mount}{checked_box(box)}/{column.name}")
        return text != "" and bool(column.format.value(text) == column.lowest)

    def _text(self, file: str) -> str:
        """ "": there is no such file."""
        try:
            return self.tree.read(file)
        except CgroupError:
            return ""

    def disks(self) -> list[Disk]:
        """What has no other device beneath it, has a size, and is none of those that are no disks.

        A hidden one (`nvme0c0n1`) is a path to another, which has all that is read and written. Source:
        drivers/nvme/host/multipath.c; Documentation/ABI/stable/sysfs-block, hidden.
        """
        found = []
        for directory in sorted(self.sys_block.glob("*")):
            if _NO_DISK.match(directory.name) or any((directory / "slaves").glob("*")):
                continue
            if (self._attribute(directory, "size") or "0") == "0" or self._attribute(directory, "hidden") == "1":
                continue
            scheduler = self._attribute(directory, "queue/scheduler")
            chosen = _CHOSEN.search(scheduler)
            offered = tuple(scheduler.replace("[", "").replace("]", "").split())
            number = self._attribute(directory, "dev")
            found.append(Disk(directory.name, number, chosen[1] if chosen else scheduler, offered))
        return found

    @staticmethod
    def _attribute(directory: Path, name: str) -> str:
        try:
            return files.kernel_text((directory / name).read_bytes()).strip()
        except OSError:
            return ""
