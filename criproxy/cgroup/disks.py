"""The box's limits on disks, and what of them a cgroup uses."""

from collections.abc import Mapping

from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import checked_box, checked_path
from criproxy.cgroup.files import io_max
from criproxy.cgroup.tree import if_there
from criproxy.model import LimitChange
from criproxy.model.signals import DiskRate


def hold_disks(files: FileAccess, box: str, wanted: Mapping[str, DiskRate]) -> tuple[LimitChange, ...]:
    """Bound the box on these disks, by number, and on no others, but for limits that somebody else has set.

    Does nothing where the kernel can't. A disk that is there no more takes no limit, and needs none. On newer kernels,
    a write may wait for what a disk has under way. Raises CgroupError.
    """
    path = checked_box(box)
    held: Mapping[str, DiskRate | None] | None = files.read_if_there(rows.IO_MAX, path)
    if held is None:
        return ()
    asked: dict[str, DiskRate | None] = {number: None for number, rate in held.items() if rate is not None}
    asked |= {number: rate.whole for number, rate in wanted.items() if held.get(number, rate) is not None}
    changes = []
    for number, rate in asked.items():
        if held.get(number) != rate:
            with if_there():
                files.write(rows.IO_MAX, path, (number, rate))
                old, new = io_max(number, held.get(number)), io_max(number, rate)
                changes.append(LimitChange(files.file(rows.IO_MAX, path), old, new, drift=False))
    return tuple(changes)


def disk_use(files: FileAccess, path: str) -> int | None:
    """How many bytes a cgroup has read from disks and written there; None: it is not there, or not counted.

    Raises CgroupError.
    """
    stat = files.read_if_there(rows.IO_STAT, checked_path(path))
    if stat is None:
        return None
    return sum(int(of.get(key, 0)) for of in stat.values() for key in ("rbytes", "wbytes"))
