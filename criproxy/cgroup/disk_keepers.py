"""Switches on what keeps disks to the box's weight, where an operator asks for it, and switches off what it has set.

    io.cost    `8:0 enable=1` in the root cgroup's io.cost.qos (v2), by the kernel's own model of the disk
    bfq        the disk's scheduler, where the kernel offers it

Either is the whole disk's, so all that use it feel it. What was changed, and how it was before, is written into a file
(`record`) first, a line for each: `io.cost 8:0 enable=0`, `bfq sda mq-deadline`. So a later process, or the package's
removal, can put it back; a disk that somebody else had switched on is not in there, and stays. The file lies where a
reboot removes it, as that undoes what it tells of.

Source: kernel, admin-guide/cgroup-v2.rst, io.cost.qos; block/switching-sched.rst.
"""

import errno
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from criproxy.cgroup.disk_weight import Disk, DiskWeights, parse_costed
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.files import kernel_text, lines_of
from criproxy.cgroup.tree import Tree
from criproxy.concurrency import statefile

Keeper = Literal["leave", "io.cost", "bfq"]
"""What is to keep the weight; leave: whatever the disk has."""

_LINE: Final = re.compile(r"io\.cost \d+:\d+ enable=0|bfq [\w!:-]+ [\w-]+")
_MOST_BYTES: Final = 1 << 20
"""Of the record; a real one has a line for each disk."""

_READ_ONLY: Final = "let the service write there: docs/disks.md"


class ChangedDisk(Struct, frozen=True):
    """A disk (by its number for io.cost, its name for bfq) that was changed, and what is written to put that back."""

    keeper: str
    disk: str
    before: str


class Kept(Struct, frozen=True):
    """What one look has done: the disks that were switched, in words, and why others could not be, by name."""

    switched: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


class DiskKeepers(Struct, frozen=True):
    """For one thread."""

    tree: Tree
    record: Path
    weights: DiskWeights

    @property
    def has_changed_some(self) -> bool:
        return self.record.exists()

    def keep(self, keeper: Keeper) -> Kept:
        """Have each disk kept by this; and put back what was set for another. Raises CgroupError, OSError."""
        root, disks = self.weights.v2_mount(), self.weights.disks()
        file = f"{root}/io.cost.qos"
        has_qos = root is not None and self.tree.exists(file)
        costed = parse_costed(self.tree.read(file)) if has_qos else frozenset()
        switched, failures = dict[str, str](), dict[str, str]()
        changed = self._remembered()
        for one in [one for one in changed if one.keeper != keeper]:
            disk = next((disk for disk in disks if _name(one.keeper, disk) == one.disk), None)
            if disk is not None and _is_kept(one.keeper, disk, costed):
                if why := self._write(file, one, one.before):
                    failures[disk.name] = why
                    continue  # it is tried again
                switched[disk.name] = f"{one.keeper} off"
            changed.remove(one)  # it is as it was, or somebody has changed it since, or it has gone
        self._remember(changed)
        for disk in disks if keeper != "leave" else ():
            if _is_kept(keeper, disk, costed):
                continue
            if not (why := _why_not(keeper, disk, root, has_qos=has_qos)):
                one = ChangedDisk(keeper, _name(keeper, disk), disk.scheduler if keeper == "bfq" else "enable=0")
                changed = [*(other for other in changed if other.disk != one.disk), one]
                self._remember(changed)
                why = self._write(file, one, "enable=1" if keeper == "io.cost" else "bfq")
            if why:
                failures[disk.name] = why
            else:
                switched[disk.name] = f"{keeper} on"
        return Kept(switched, failures)

    def _write(self, qos: str, one: ChangedDisk, value: str) -> str:
        """Why it could not be; "": it is done."""
        try:
            if one.keeper == "io.cost":
                self.tree.write(qos, f"{one.disk} {value}")
            else:
                self.tree.write(str(self.weights.sys_block / one.disk / "queue/scheduler"), value)
        except CgroupError as error:
            return f"{error}; {_READ_ONLY}" if error.errno in (errno.EROFS, errno.EACCES) else str(error)
        return ""

    # --- the record --------------------------------------------------------------------------------------------------

    def _remembered(self) -> list[ChangedDisk]:
        try:
            lines = lines_of(kernel_text(statefile.read(self.record, _MOST_BYTES)))
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise OSError(f"{self.record}: {error}: switch the disks by hand, and remove it") from error
        found = (_LINE.fullmatch(line) for line in lines)
        return [ChangedDisk(*line[0].split(" ")) for line in found if line]

    def _remember(self, changed: list[ChangedDisk]) -> None:
        if not changed:
            self.record.unlink(missing_ok=True)
        elif changed != self._remembered():
            text = "".join(f"{one.keeper} {one.disk} {one.before}\n" for one in changed)
            statefile.write(self.record, text.encode(), durable=False)


def _name(keeper: str, disk: Disk) -> str:
    return disk.number if keeper == "io.cost" else disk.name


def _is_kept(keeper: str, disk: Disk, costed: Collection[str]) -> bool:
    return disk.number in costed if keeper == "io.cost" else disk.scheduler == "bfq"


def _why_not(keeper: Keeper, disk: Disk, root: str | None, *, has_qos: bool) -> str:
    """Why a disk can't be switched; "": it can."""
    if keeper == "bfq":
        return "" if "bfq" in disk.offered else "the kernel offers no bfq for it: load the module bfq"
    if root is None:
        return "io.cost takes cgroup v2"
    if not has_qos:
        return f"{root}/io.cost.qos does not exist: io.cost takes the io controller on v2, and a kernel with it"
    return ""
