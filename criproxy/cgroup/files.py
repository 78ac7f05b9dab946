"""What cgroup and /proc files say, and what is written into them: text and numbers only, no I/O."""

import mmap
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

CFS_PERIOD_US: Final = 100_000
"""Longer throttles for longer, shorter (10 ms) was measured to double online's p99."""

MIN_QUOTA_US: Final = 1_000
"""The kernel refuses less. Source: kernel/sched/core.c, min_cfs_quota_period."""

RECLAIM_STEP_BYTES: Final = 256 << 20
RECLAIM_STEPS: Final = 8
"""How many steps a memory limit sinks at a time, before it is looked at anew what is wanted."""

SLACK_BYTES: Final = 8 << 20
"""Distance that a limit keeps from a usage that can't be reclaimed, so that the next allocation is no OOM kill."""

_V1_HIERARCHIES: Final = frozenset(
    {"cpu", "cpuacct", "cpuset", "memory", "blkio", "devices", "freezer", "pids", "name=systemd"}
    | {"net_cls", "net_prio", "perf_event", "hugetlb", "rdma", "misc"}
)
_PAGE_BYTES: Final = mmap.PAGESIZE
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Mounts(Struct, frozen=True):
    """Where the cgroup hierarchies are mounted whose root is visible here.

    `v1` maps each controller (and `name=systemd`, which runc joins too) to its mount point; co-mounted ones share it.
    """

    v1: Mapping[str, str]
    v2: str | None


def parse_mounts(mountinfo: str) -> Mounts:
    """Source: proc(5), /proc/PID/mountinfo. Mounts of a subtree are left out: paths from kubelet start at the root."""
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        root, mount_point = mount.split()[3:5]
        kind, _, options = filesystem.split(maxsplit=2)
        if root != "/":
            continue
        mount_point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), mount_point)
        if kind == "cgroup2":
            v2 = v2 or mount_point
        elif kind == "cgroup":
            for controller in _V1_HIERARCHIES.intersection(options.split(",")):
                v1.setdefault(controller, mount_point)
    return Mounts(v1, v2)


def parse_flat_keyed(text: str) -> dict[str, int]:
    """Lines of `KEY VALUE`, as in cpu.stat and memory.stat. Source: Documentation/admin-guide/cgroup-v2.rst, Format."""
    return {key: int(value) for key, _, value in (line.partition(" ") for line in text.splitlines())}


def node_working_set_bytes(meminfo: str) -> int:
    """The node's memory in use but for inactive page cache, as kubelet counts it. Source: proc(5), /proc/meminfo."""
    kilobytes = {}
    for line in meminfo.splitlines():
        key, _, rest = line.partition(":")
        if key in ("MemTotal", "MemFree", "Inactive(file)"):
            kilobytes[key] = int(rest.split()[0])
    return max(0, kilobytes["MemTotal"] - kilobytes["MemFree"] - kilobytes["Inactive(file)"]) * 1024


def idle_cpu_seconds(stat: str, ticks_per_s: int) -> dict[int, float]:
    """How long each CPU that is online was idle, waiting for a disk included. Source: proc(5), /proc/stat."""
    idle_s = {}
    for line in stat.splitlines():
        name, *ticks = line.split(maxsplit=6)
        if not name.startswith("cpu"):
            break
        if name != "cpu":
            idle_s[int(name[3:])] = (int(ticks[3]) + int(ticks[4])) / ticks_per_s
    return idle_s


def quota_us(cores: float) -> int:
    """The CFS quota per `CFS_PERIOD_US`, at least what the kernel takes."""
    return max(MIN_QUOTA_US, round(cores * CFS_PERIOD_US))


def whole_pages(size_bytes: float) -> int:
    """The kernel keeps memory limits in whole pages, rounded down: compare with this."""
    return int(size_bytes) // _PAGE_BYTES * _PAGE_BYTES
