"""One row per kernel file of a cgroup: its names, and how a value is written there, read and compared. No I/O.

A row has a column for each version of cgroups, where the version has such a file. A column holds the file's name, its
format, the lowest value (for priorities) and the properties that make systemd write the same value. The formats of v1
are cgroupspy's interfaces, but for limits and for files that it does not know.

To bound the box in one more resource by one more file, add its row and name it in `LIMITS`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cgroupspy.interfaces import BaseFileInterface, CommaDashSetFile, FlagFile, IntegerFile
from msgspec import Struct

from criproxy.cgroup.files import (
    CFS_PERIOD_US,
    io_max,
    memory_parts,
    parse_blkio,
    parse_flat_keyed,
    parse_io_max,
    parse_nested_keyed,
    parse_pressure,
    quota_us,
)
from criproxy.model import NO_LIMIT_BYTES, PIDS, UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus, mask_of, parse_cpus

PropertyValue = bool | int | bytes | str
"""The value of a systemd property; its type in Python determines the one on the bus (`b`, `t`, `ay`, `s`)."""

Properties = Mapping[str, PropertyValue]

INFINITY: Final = (1 << 64) - 1
"""No limit, in properties that are counts."""

# An absent limit of v1 reads as the largest count of pages, 2^63 less one page. Source: mm/page_counter.c.

_CPU_IDLE: Final = 0
"""What CPUWeight=idle is on the bus."""


class Format(Struct, frozen=True):
    """`text` is what is written for a value; `value` is what a text from the kernel means.

    `exact`: a text from the kernel is compared as it is, and not as what would be written for its value.
    """

    text: Callable[[Any], str]
    value: Callable[[str], Any]
    exact: bool = False

    def held(self, text: str) -> str:
        """A text from the kernel, in the form in which we would have written it, to be compared with `text`."""
        return text if self.exact else self.text(self.value(text))


class Column(Struct, frozen=True):
    """A file in one version of cgroups. `properties` of a value; None: systemd is not asked to write this file.

    `new`: what a cgroup that was just made holds; None: it is to be read.
    """

    name: str
    format: Format
    lowest: Any = None
    properties: Callable[[Any], Properties] | None = None
    new: str | None = None


class KernelFile(Struct, frozen=True):
    """A file of a cgroup. `optional`: a kernel may lack it; then it reads as None, and nothing is written."""

    v1: Column | None = None
    v2: Column | None = None
    optional: bool = False

    def column(self, version: int) -> Column | None:
        return self.v1 if version == 1 else self.v2


class FileFamily(Struct, frozen=True):
    """Files of one controller that differ in a middle part (a size of page), by the ends of their names."""

    controller: str
    v1: str
    v2: str

    def has(self, version: int, name: str) -> bool:
        return name.startswith(f"{self.controller}.") and name.endswith(self.v1 if version == 1 else self.v2)


class BoxLimit(Struct, frozen=True):
    """A resource that one file of the box bounds. `usage`: the file that says how much is in use, if any.

    `node`: files of /proc/sys/kernel; the node can have the least of them.
    """

    limit: KernelFile
    usage: KernelFile | None = None
    node: tuple[str, ...] = ()


# --- formats ---------------------------------------------------------------------------------------------------------


def _cores(text: str) -> float | Unlimited:
    quota, period_us = text.split()
    return UNLIMITED if quota == "max" else int(quota) / int(period_us)


def _first_line(text: str) -> str:
    """The first line of io.weight is the weight for all disks; lines for single disks may follow."""
    return text.partition("\n")[0]


_ORDER: Final = Format(str, str)
_NUMBER: Final = Format(str, int)
_FLAG: Final = Format(lambda on: str(int(on)), lambda text: text != "0")
_COUNT: Final = Format(
    lambda value: "max" if value is UNLIMITED else str(value), lambda text: UNLIMITED if text == "max" else int(text)
)
_CORES: Final = Format(
    lambda cores: f"{'max' if cores is UNLIMITED else quota_us(cores)} {CFS_PERIOD_US}", _cores, exact=True
)
_COUNT_V1: Final = Format(
    lambda size: "-1" if size is UNLIMITED else str(size),
    lambda text: UNLIMITED if int(text) >= NO_LIMIT_BYTES else int(text),
)
_CORES_V1: Final = Format(
    lambda cores: "-1" if cores is UNLIMITED else str(quota_us(cores)),
    lambda text: UNLIMITED if int(text) < 0 else int(text) / CFS_PERIOD_US,
)
_DEFAULT_WEIGHT: Final = Format(str, _first_line)
_CPUS: Final = Format(lambda cpus: format_cpus(cpus) or "\n", parse_cpus)
"""A write of nothing does not reach the kernel."""
_KEYED: Final = Format(str, parse_flat_keyed)
_NESTED: Final = Format(str, parse_nested_keyed)
_IO_MAX: Final = Format(lambda limit: io_max(*limit), parse_io_max)
_BLKIO: Final = Format(str, parse_blkio)
_PRESSURE: Final = Format(str, parse_pressure)


def _v1(
    interface: BaseFileInterface,
    lowest: Any = None,
    properties: Callable[[Any], Properties] | None = None,
    new: str | None = None,
) -> Column:
    """The column of a file of v1 that cgroupspy knows."""

    def value(text: str) -> Any:
        found = interface.sanitize_get(text)
        return frozenset(found) if isinstance(found, set) else found

    form = Format(lambda value: str(interface.sanitize_set(value)), value)
    return Column(interface.filename.decode(), form, lowest, properties, new)


# --- properties of systemd -------------------------------------------------------------------------------------------


def _property(*names: str) -> Callable[[int | Unlimited], Properties]:
    return lambda value: dict.fromkeys(names, INFINITY if value is UNLIMITED else value)


def _quota_properties(cores: float | Unlimited) -> Properties:
    per_s_us = INFINITY if cores is UNLIMITED else round(cores * 1_000_000)
    return {"CPUQuotaPerSecUSec": per_s_us, "CPUQuotaPeriodUSec": CFS_PERIOD_US}


def _allowed_cpus(cpus: Cpus | Unlimited) -> Properties:
    return {"AllowedCPUs": b"" if cpus is UNLIMITED else mask_of(cpus)}


# --- rows: priority --------------------------------------------------------------------------------------------------

CPU_IDLE: Final = KernelFile(
    v1=_v1(FlagFile("cpu.idle"), lowest=True),
    v2=Column("cpu.idle", _FLAG, lowest=True, properties=lambda _: {"CPUWeight": _CPU_IDLE}),
    optional=True,
)
"""While it is set, the kernel refuses any write of the weight (EINVAL). On v1 it exists since Linux 5.15."""

CPU_WEIGHT: Final = KernelFile(
    v1=_v1(IntegerFile("cpu.shares"), lowest=2, properties=_property("CPUShares"), new="1024"),
    v2=Column("cpu.weight", _NUMBER, lowest=1, properties=_property("CPUWeight"), new="100"),
)


def weight_of(shares: int, version: int) -> int:
    """CPU shares (2 to 262144) in the unit of the kernel's file: v2's weight (1 to 10000), as kubelet works it out."""
    return shares if version == 1 else 1 + (shares - 2) * 9999 // 262142


IO_WEIGHT: Final = KernelFile(
    v1=_v1(IntegerFile("blkio.weight"), lowest=10, properties=lambda _: {"IOWeight": 1}),
    v2=Column("io.weight", _DEFAULT_WEIGHT, lowest="default 1", properties=lambda _: {"IOWeight": 1}),
    optional=True,
)
"""Of use on v1 with the CFQ scheduler, which Linux 5.0 has dropped, and on v2 with the io.cost model."""

IO_BFQ_WEIGHT: Final = KernelFile(
    v1=_v1(IntegerFile("blkio.bfq.weight"), lowest=1),
    v2=Column("io.bfq.weight", _DEFAULT_WEIGHT, lowest="default 1"),
    optional=True,
)
"""Of use with the BFQ scheduler, and there while it is loaded."""

DISK_WEIGHTS: Final = (IO_WEIGHT, IO_BFQ_WEIGHT)

# --- rows: limits ----------------------------------------------------------------------------------------------------

CPU_QUOTA: Final = KernelFile(
    v1=Column("cpu.cfs_quota_us", _CORES_V1, properties=_quota_properties),
    v2=Column("cpu.max", _CORES, properties=_quota_properties, new=f"max {CFS_PERIOD_US}"),
)
"""In cores. On v1, as far as `CPU_PERIOD` is ours."""

CPU_PERIOD: Final = KernelFile(v1=_v1(IntegerFile("cpu.cfs_period_us")))

MEMORY_MAX: Final = KernelFile(
    v1=Column("memory.limit_in_bytes", _COUNT_V1, properties=_property("MemoryMax")),
    v2=Column("memory.max", _COUNT, properties=_property("MemoryMax")),
)
"""In whole pages: see `files.whole_pages`."""

MEMORY_HIGH: Final = KernelFile(v2=Column("memory.high", _COUNT, properties=_property("MemoryHigh")))

MEMORY_PROTECTED: Final = KernelFile(
    v2=Column(
        "memory.low",
        Format(lambda on: "max" if on else "0", lambda text: text != "0"),
        properties=lambda on: {"MemoryLow": INFINITY if on else 0},
        new="0",
    )
)
"""Whether reclaim takes the memory of its siblings first. In the box it holds against the box's other pods alone: what
the box itself is not protected from, nothing in it is. Source: cgroup-v2.rst, memory.low; mm/page_counter.c,
effective_protection.
"""

MEMORY_GUARANTEES: Final = (
    KernelFile(v2=Column("memory.min", _COUNT), optional=True),
    KernelFile(v2=Column("memory.low", _COUNT), optional=True),
)
"""For reading: how much of a cgroup's memory is not to be taken back. Criproxy gives the box none."""

MEMORY_OOM_GROUP: Final = KernelFile(v2=Column("memory.oom.group", _FLAG, new="0"), optional=True)
"""Whether the kernel, when it kills one process in here for want of memory, kills all of them. It counts where what
ran short is this cgroup or one above it, not one below it. Since Linux 4.19; systemd has no property of it for slices.
Source: cgroup-v2.rst, memory.oom.group; mm/memcontrol.c, mem_cgroup_get_oom_group.
"""

MEMORY_AND_SWAP: Final = KernelFile(v1=Column("memory.memsw.limit_in_bytes", _COUNT_V1), optional=True)
"""There with swap accounting only."""

MEMORY_RECLAIM: Final = KernelFile(v2=Column("memory.reclaim", _ORDER), optional=True)
"""Written only: how much to take back; EAGAIN: it was less. Since Linux 5.19, and from 6.9 on with a swappiness."""

MEMORY_FORCE_EMPTY: Final = KernelFile(v1=Column("memory.force_empty", _ORDER), optional=True)
"""Written only: takes back all that can be. Source: Documentation/admin-guide/cgroup-v1/memory.rst, 5.1."""

SWAP_MAX: Final = KernelFile(v2=Column("memory.swap.max", _COUNT, properties=_property("MemorySwapMax")), optional=True)

PIDS_MAX: Final = KernelFile(
    v1=Column("pids.max", _COUNT, properties=_property("TasksMax"), new="max"),
    v2=Column("pids.max", _COUNT, properties=_property("TasksMax"), new="max"),
    optional=True,
)
"""Processes and threads: below what is there, nothing ends, and nothing new starts. A root has no such file.

Source: Documentation/admin-guide/cgroup-v1/pids.rst; cgroup-v2.rst, PID.
"""

IO_MAX: Final = KernelFile(v2=Column("io.max", _IO_MAX), optional=True)
"""What is written is the limit of one disk: its number, and a rate or None. What is read are all of them.

Systemd is not told of it: by its source (cgroup.c, cgroup_context_apply) it writes the lines of those disks alone that
it was given; not measured. Each look puts back what has gone. On v1 a limit holds for the processes of one cgroup,
not for those below it (blk-throttle.c, throtl_pd_init), so that the box as a whole can't be bounded.
"""

KILL: Final = KernelFile(v2=Column("cgroup.kill", _ORDER), optional=True)
"""Written only, "1": kills all in the cgroup and below it, what is just forked, too. Since Linux 5.14.

Source: cgroup-v2.rst, cgroup.kill.
"""

HUGE_PAGES: Final = FileFamily("hugetlb", v1=".limit_in_bytes", v2=".max")
"""One or two files for each size of page, which systemd does not know.

Source: Documentation/admin-guide/cgroup-v1/hugetlb.rst; cgroup-v2.rst, HugeTLB.
"""

CPUS: Final = KernelFile(
    v1=_v1(CommaDashSetFile("cpuset.cpus")), v2=Column("cpuset.cpus", _CPUS, properties=_allowed_cpus)
)
"""Systemd has no say in the cpusets of v1."""

MEMORY_NODES: Final = KernelFile(v1=_v1(CommaDashSetFile("cpuset.mems")))

HIERARCHICAL_MEMORY: Final = KernelFile(v1=_v1(FlagFile("memory.use_hierarchy")), optional=True)
"""Before Linux 5.11 a limit counts the children only with this."""

# --- rows that are read only -----------------------------------------------------------------------------------------

CPU_STAT: Final = KernelFile(v1=Column("cpu.stat", _KEYED), v2=Column("cpu.stat", _KEYED))
CPU_USAGE: Final = KernelFile(v1=_v1(IntegerFile("cpuacct.usage")), v2=Column("cpu.stat", _KEYED))
CPU_PRESSURE: Final = KernelFile(v2=Column("cpu.pressure", _PRESSURE))
MEMORY_PRESSURE: Final = KernelFile(v2=Column("memory.pressure", _PRESSURE))
IO_PRESSURE: Final = KernelFile(v2=Column("io.pressure", _PRESSURE))
PRESSURE_SWITCH: Final = KernelFile(v2=Column("cgroup.pressure", _FLAG), optional=True)
"""Since Linux 6.1; 0: the cgroup has no pressure files."""

MEMORY_STAT: Final = KernelFile(v1=Column("memory.stat", _KEYED), v2=Column("memory.stat", _KEYED))
IO_STAT: Final = KernelFile(v2=Column("io.stat", _NESTED), optional=True)
IO_BYTES: Final = KernelFile(v1=Column("blkio.throttle.io_service_bytes_recursive", _BLKIO), optional=True)
IO_OPERATIONS: Final = KernelFile(v1=Column("blkio.throttle.io_serviced_recursive", _BLKIO), optional=True)
BFQ_BYTES: Final = KernelFile(v1=Column("blkio.bfq.io_service_bytes_recursive", _BLKIO), optional=True)
BFQ_OPERATIONS: Final = KernelFile(v1=Column("blkio.bfq.io_serviced_recursive", _BLKIO), optional=True)
"""Of disks with the BFQ scheduler. What is written through the page cache counts as the root's on v1."""

EFFECTIVE_CPUS: Final = KernelFile(
    v1=_v1(CommaDashSetFile("cpuset.effective_cpus")), v2=Column("cpuset.cpus.effective", _CPUS)
)
MEMORY_PARTS: Final = KernelFile(
    v1=Column("memory.stat", Format(str, lambda text: memory_parts(parse_flat_keyed(text), "total_", "rss"))),
    v2=Column("memory.stat", Format(str, lambda text: memory_parts(parse_flat_keyed(text), "", "anon"))),
)
MEMORY_USAGE: Final = KernelFile(v1=_v1(IntegerFile("memory.usage_in_bytes")), v2=Column("memory.current", _NUMBER))
MEMORY_AND_SWAP_USAGE: Final = KernelFile(v1=_v1(IntegerFile("memory.memsw.usage_in_bytes")))
PIDS_CURRENT: Final = KernelFile(v1=Column("pids.current", _NUMBER), v2=Column("pids.current", _NUMBER))

# --- what is gone through row by row ---------------------------------------------------------------------------------

LIMITS: Final[Mapping[str, BoxLimit]] = {
    PIDS: BoxLimit(PIDS_MAX, PIDS_CURRENT, ("pid_max", "threads-max")),
}
"""What bounds the box beside CPU and memory, by the name of the resource. Each is a single file that takes any value at
once; CPU and memory, which are written in an order of their own, are code of the drivers. The box writes what the
decided limits say under the same name, or else its share (`BoxSettings.share_ratios`) of the capacity.
"""


def properties(version: int, values: Mapping[KernelFile, Any]) -> Properties:
    """The properties that make systemd write these values, as far as it knows the files; None: leave alone."""
    found: dict[str, PropertyValue] = {}
    for row, value in values.items():
        column = row.column(version)
        if value is not None and column is not None and column.properties is not None:
            found.update(column.properties(value))
    return found
