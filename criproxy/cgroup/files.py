"""What cgroup and /proc files say, and what is written into them: text and numbers only, no I/O."""

import mmap
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from criproxy.model.signals import DiskRate

CFS_PERIOD_US: Final = 100_000
"""Longer throttles for longer, shorter (10 ms) was measured to double online's p99."""

MIN_QUOTA_US: Final = 1_000
"""The kernel refuses less. Source: kernel/sched/core.c, min_cfs_quota_period."""

RECLAIM_STEP_BYTES: Final = 256 << 20
RECLAIM_STEPS: Final = 8
"""How many steps a memory limit sinks at a time, before it is looked at anew what is wanted."""

CACHE_STEP_BYTES: Final = 64 << 20
"""How much page cache of an ended pod is taken back at a time: what a more urgent reclaim may have to wait for."""

SLACK_BYTES: Final = 8 << 20
"""Distance that a limit keeps from a usage that can't be reclaimed, so that the next allocation is no OOM kill."""

_V1_HIERARCHIES: Final = frozenset(
    {"cpu", "cpuacct", "cpuset", "memory", "blkio", "devices", "freezer", "pids", "name=systemd"}
    | {"net_cls", "net_prio", "perf_event", "hugetlb", "rdma", "misc"}
)
_PAGE_BYTES: Final = mmap.PAGESIZE
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def kernel_text(data: bytes) -> str:
    """What a file of /proc or /sys holds. Its lines end in a line feed alone: no other byte of a name is one's end.

    Whoever makes a mount, a cgroup or a process gives it its name, of any bytes but a few that the kernel escapes. What
    is no UTF-8 comes out again as it came in (surrogateescape), as in names of files.
    """
    return data.decode(errors="surrogateescape")


def lines_of(text: str) -> list[str]:
    """The lines of such a file, but for empty ones at its ends."""
    text = text.strip("\n")
    return text.split("\n") if text else []


class Mounts(Struct, frozen=True):
    """Where the cgroup hierarchies are mounted whose root is visible here.

    `v1` maps each controller (and `name=systemd`, which runc joins too) to its mount point; co-mounted ones share it.
    """

    v1: Mapping[str, str]
    v2: str | None


def parse_mounts(mountinfo: str) -> Mounts:
    """Mounts of a subtree are left out: paths from kubelet start at the root. A line of another form is skipped.

    A source may be empty. In names the kernel escapes blanks, tabs, line feeds and backslashes, and no other bytes.
    Source: proc(5), /proc/PID/mountinfo; fs/proc_namespace.c, show_mountinfo.
    """
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in lines_of(mountinfo):
        mount, _, filesystem = line.partition(" - ")
        match mount.split(" "), filesystem.split(" "):
            case [_, _, _, "/", mount_point, *_], ["cgroup2", *_]:
                v2 = v2 or unescaped(mount_point)
            case [_, _, _, "/", mount_point, *_], ["cgroup", _, options]:
                for controller in _V1_HIERARCHIES.intersection(options.split(",")):
                    v1.setdefault(controller, unescaped(mount_point))
    return Mounts(v1, v2)


def unescaped(name: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), name)


def parse_flat_keyed(text: str) -> dict[str, int]:
    """Lines of `KEY VALUE`, as in cpu.stat and memory.stat. Source: Documentation/admin-guide/cgroup-v2.rst, Format."""
    return {key: int(value) for key, _, value in (line.partition(" ") for line in lines_of(text))}


def node_working_set_bytes(meminfo: str) -> int:
    """The node's memory in use but for inactive page cache, as kubelet counts it. Source: proc(5), /proc/meminfo."""
    total, free, inactive = (memory_bytes(meminfo, key) for key in ("MemTotal", "MemFree", "Inactive(file)"))
    if total is None or free is None or inactive is None:
        raise KeyError("/proc/meminfo lacks MemTotal, MemFree or Inactive(file)")
    return max(0, total - free - inactive)


def memory_bytes(meminfo: str, key: str) -> int | None:
    """A line of /proc/meminfo; None: this kernel has none. Source: proc(5), /proc/meminfo."""
    _, found, rest = f"\n{meminfo}".partition(f"\n{key}:")  # of fifty lines, each second
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else None


def parse_pressure(text: str) -> dict[str, float]:
    """The totals of a pressure file in s, by line: `some`, and `full` where the kernel has it.

    Source: Documentation/accounting/psi.rst, Pressure interface.
    """
    totals_s = {}
    for line in lines_of(text):
        kind, *fields = line.split()
        totals_s[kind] = int(dict(field.split("=", 1) for field in fields)["total"]) / 1e6
    return totals_s


def parse_nested_keyed(text: str) -> dict[str, dict[str, str]]:
    """Lines of `KEY NAME=VALUE …`, as in io.stat. Source: Documentation/admin-guide/cgroup-v2.rst, Format.

    Linux 5.15 to 5.18 print the number of a disk without counts and no line feed after it, so that the next disk's
    follows on the same line. Source: block/blk-cgroup.c, blkcg_print_one_stat.
    """
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals:
            fields[name] = value
        else:
            fields = found[word] = {}
    return found


_IO_MAX: Final = ("rbps", "wbps", "riops", "wiops")


def parse_io_max(text: str) -> dict[str, DiskRate | None]:
    """A cgroup's limits of disks, by the disk's number; None: one that is not criproxy's.

    Those of criproxy are the ones that name all four numbers, and have the same for reads as for writes. So they are
    known again after a `kill -9`, and what an operator has set stays. Source: cgroup-v2.rst, io.max.
    """
    found = dict[str, DiskRate | None]()
    for number, limits in parse_nested_keyed(text).items():
        of_reads, of_writes, reads, writes = (limits.get(name, "max") for name in _IO_MAX)
        ours = "max" not in (of_reads, reads) and (of_reads, reads) == (of_writes, writes)
        found[number] = DiskRate(int(of_reads), int(reads)) if ours else None
    return found


def io_max(number: str, rate: DiskRate | None) -> str:
    """The line that sets such a limit, or lifts it (None)."""
    values = ("max", "max") if rate is None else (int(rate.bytes_per_s), int(rate.operations_per_s))
    size, operations = values
    return f"{number} rbps={size} wbps={size} riops={operations} wiops={operations}"


def parse_blkio(text: str) -> dict[str, int]:
    """What was read and written, by the disk's number.

    A line is `8:0 Read 4096`, with other words for other sums, and a last one is the total of all disks.
    Source: Documentation/admin-guide/cgroup-v1/blkio-controller.rst.
    """
    sums: dict[str, int] = {}
    for line in lines_of(text):
        disk, *rest = line.split()
        if ":" in disk and len(rest) == 2 and rest[0] in ("Read", "Write"):
            sums[disk] = sums.get(disk, 0) + int(rest[1])
    return sums


class DiskStat(Struct, frozen=True):
    """A line of /proc/diskstats. `operations`: reads and writes as asked for, those that were merged too."""

    name: str
    size_bytes: int
    operations: int


_SECTOR_BYTES: Final = 512
"""In this file, whatever the disk has."""

_DISK: Final = re.compile(r" *(\d+) +(\d+) (.+?)((?: \d+){7})(?= |$)", re.ASCII)
"""Numbers, the name, which may be anything, and the first seven counts."""


def parse_diskstats(text: str) -> dict[str, DiskStat]:
    """By the disk's number; a line of another form is skipped. Source: Documentation/admin-guide/iostats.rst."""
    found = {}
    for line in lines_of(text):
        if (match := _DISK.match(line)) is None:
            continue
        number, name, counts = f"{match[1]}:{match[2]}", match[3], [int(one) for one in match[4].split()]
        reads, merged_reads, read, _, writes, merged_writes, written = counts
        operations = reads + merged_reads + writes + merged_writes
        found[number] = DiskStat(name, (read + written) * _SECTOR_BYTES, operations)
    return found


def parse_schedstat(text: str) -> tuple[float, float] | None:
    """For how long a thread has run, and has waited on a run queue, in s; None: this kernel does not count it.

    Such a kernel writes zeros for every thread. Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """
    ran_ns, waited_ns, slices = (int(word) for word in text.split()[:3])
    return (ran_ns / 1e9, waited_ns / 1e9) if ran_ns or waited_ns or slices else None


def memory_parts(stat: Mapping[str, int], prefix: str, anon: str) -> tuple[int, int, int]:
    """Of memory.stat, in bytes: inactive page cache; what nothing but swap takes back, anonymous memory, tmpfs, and
    huge pages; and what can be reclaimed, and stays when its cgroup goes: page cache but tmpfs, and slab (v1 does not
    tell).

    Huge pages are there where they count in memory.current, which is with the mount option memory_hugetlb_accounting.
    `prefix` is "total_" on v1, where `anon` is "rss". Source: cgroup-v2.rst and cgroup-v1/memory.rst, memory.stat.
    """
    inactive = stat[f"{prefix}inactive_file"]
    reclaimable = inactive + stat.get(f"{prefix}active_file", 0) + stat.get("slab_reclaimable", 0)
    kept = stat[f"{prefix}{anon}"] + stat.get(f"{prefix}shmem", 0) + stat.get("hugetlb", 0)
    return inactive, kept, reclaimable


def idle_cpu_seconds(stat: str, ticks_per_s: int) -> dict[int, float]:
    """How long each CPU that is online was idle, waiting for a disk included. Source: proc(5), /proc/stat."""
    idle_s = {}
    for line in lines_of(stat):
        name, *ticks = line.split(maxsplit=6)
        if not name.startswith("cpu"):
            break
        if name != "cpu":
            idle_s[int(name[3:])] = (int(ticks[3]) + int(ticks[4])) / ticks_per_s
    return idle_s


def busy_and_stolen_s(stat: str, ticks_per_s: int) -> tuple[float, float, int]:
    """For how long all CPUs together were used, and were given to other machines, in s; and how many CPUs are online.

    What a guest uses is in what its host's process does. Source: proc(5), /proc/stat.
    """
    lines = list(lines_of(stat))
    user, nice, system, _, _, irq, softirq, steal = (int(ticks) for ticks in lines[0].split()[1:9])
    cpus = sum(line.startswith("cpu") for line in lines) - 1
    return (user + nice + system + irq + softirq) / ticks_per_s, steal / ticks_per_s, cpus


def quota_us(cores: float) -> int:
    """The CFS quota per `CFS_PERIOD_US`, at least what the kernel takes."""
    return max(MIN_QUOTA_US, round(cores * CFS_PERIOD_US))


def whole_pages(size_bytes: float) -> int:
    """The kernel keeps memory limits in whole pages, rounded down: compare with this."""
    return int(size_bytes) // _PAGE_BYTES * _PAGE_BYTES
