"""The box through the kernel's files alone, in either version of cgroups; `v1` and `v2` have what differs.

Slices, too, once systemd has made them: see `systemd.driver`.
"""

import errno
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from criproxy.cgroup import files
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import (
    CgroupError,
    ContainerLimits,
    HeldLimit,
    MemoryDriver,
    PodLimits,
    Reclaimable,
    all_done,
    checked_box,
    checked_path,
    checked_pod,
    is_box,
)
from criproxy.cgroup.kernel_files import LIMITS, KernelFile, weight_of
from criproxy.cgroup.naming import is_slice, parse_box, pod_named
from criproxy.cgroup.tree import Tree, if_there
from criproxy.cgroup.v1 import V1Hierarchies
from criproxy.cgroup.v2 import V2Hierarchy
from criproxy.model import (
    CPU,
    LOWEST_SHARES,
    MEMORY,
    MEMORY_HIGH,
    UNLIMITED,
    LimitChange,
    Limits,
    Unlimited,
    Usage,
)
from criproxy.model.cpulist import Cpus
from criproxy.model.signals import Missing

POD_FILES: Final = {
    "cpu_weight": rows.CPU_WEIGHT,
    "cpu_cores": rows.CPU_QUOTA,
    "pids": rows.PIDS_MAX,
    "protected": rows.MEMORY_PROTECTED,
    "oom_group": rows.MEMORY_OOM_GROUP,
}
"""The limits of a pod that take any value at once, by their names in `PodLimits`, in the order of writing."""

_CPU_FILES: Final = (rows.CPU_PERIOD, rows.CPU_QUOTA)
LIMIT_FILES: Final = (*_CPU_FILES, rows.MEMORY_HIGH, rows.MEMORY_MAX)
"""Which of the files that systemd writes are the limits on CPU and memory, in the order of writing."""


class KernelDriver:
    """A `CgroupDriver`. `version` has what is cgroup v1's or v2's own; its methods are alike in both."""

    def __init__(self, version: V1Hierarchies | V2Hierarchy, tree: Tree, proc: str = "/proc") -> None:
        self._version = version
        self.files = self._access = version.access
        self.version = version.access.version
        self.memory: MemoryDriver = KernelMemory(version)
        self._tree = tree
        self._proc = proc
        left_out = () if self.version == 2 else ("cpu_cores", "protected", "oom_group")
        self._pod_files = [(name, row) for name, row in POD_FILES.items() if name not in left_out]

    @property
    def cpu_idle(self) -> bool:
        """Whether the kernel has cpu.idle; on v2 it shows only once a first cgroup has the cpu controller."""
        first = ("", *(f"/{name}" for name in self._tree.children(self._access.directory("cpu", ""))))
        return any(self._access.has(rows.CPU_IDLE, path) for path in first)

    def node_usage(self) -> Usage:
        memory_bytes = files.node_working_set_bytes(self._tree.read_often(f"{self._proc}/meminfo"))
        return Usage(self._version.node_cpu_s(), memory_bytes)

    def usage(self, path: str) -> Usage | None:
        path = checked_path(path)
        with if_there():
            cpu_s, throttled_s = self._version.cpu_times(path)
            inactive_bytes, anon_bytes, reclaimable_bytes = self._access.read(rows.MEMORY_PARTS, path)
            memory_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
            working_set_bytes = max(0, memory_bytes - inactive_bytes)
            return Usage(cpu_s, working_set_bytes, throttled_s, memory_bytes, anon_bytes, reclaimable_bytes)
        return None

    def exists(self, path: str) -> bool:
        return self._tree.exists(self._access.directory("cpu", checked_path(path)))

    def identity(self, path: str) -> int | None:
        return self._tree.identity(self._access.directory("cpu", checked_path(path)))

    # --- the box -----------------------------------------------------------------------------------------------------

    def ensure(self, box: str, *, hands_off: bool = False) -> None:
        path = checked_box(box)
        self._expect(box)
        self._access.read_often(("", path, *self._around(box)))
        self._version.ensure(path, by_systemd=is_slice(box))

    def _around(self, box: str) -> list[str]:
        """The cgroup of the online pods, and all above the box but the root."""
        path, found = checked_box(box), [checked_path(parse_box(box).online)]
        while path := path.rpartition("/")[0]:
            found.append(path)
        return found

    def _expect(self, path: str) -> None:
        if is_slice(path) and not self.exists(path):
            raise CgroupError(f"{path} has no cgroup: systemd has not made it, or has stopped it")

    def read(self, box: str) -> Limits:
        path = checked_path(box)
        held: dict[str, float | Unlimited] = {
            CPU: self._version.cores(path),
            MEMORY: self._access.read(rows.MEMORY_MAX, path),
        }
        high = UNLIMITED if self.version == 1 else self._access.read(rows.MEMORY_HIGH, path)
        if high is not UNLIMITED and (held[MEMORY] is UNLIMITED or high < held[MEMORY]):
            held[MEMORY_HIGH] = high
        return held

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        path, size, high = checked_box(box), _pages(limits[MEMORY]), limits.get(MEMORY_HIGH)
        return all_done(
            (
                partial(self._settle_priority, path),
                partial(self._version.settle_cpu, path, limits[CPU]),
                partial(self._version.settle_memory, path, size, None if high is None else _pages(high)),
            )
        )

    def limit_files(self, box: str) -> Mapping[KernelFile, Any]:
        """What the files of the limits on CPU and memory hold."""
        path = checked_box(box)
        return {row: self._access.read(row, path) for row in LIMIT_FILES if row.column(self.version) is not None}

    def put_back(self, box: str, held: Mapping[KernelFile, Any]) -> None:
        """Have these files hold again what `limit_files` has found in them.

        A limit on memory below the usage is left to the next `write`, as the kernel would kill or wait for it.
        """
        path = checked_box(box)
        in_use_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
        for row, value in held.items():
            is_safe = row in _CPU_FILES or value is UNLIMITED or in_use_bytes <= value
            if is_safe and self._access.read(row, path) != value:
                self._access.write(row, path, value)

    def _settle_priority(self, path: str) -> list[LimitChange]:
        cpu = rows.CPU_IDLE if self._access.has(rows.CPU_IDLE, path) else rows.CPU_WEIGHT
        return [change for row in (cpu, *rows.DISK_WEIGHTS) for change in self._access.settle_lowest(row, path)]

    def confine(self, path: str, cpus: Cpus | Unlimited) -> tuple[LimitChange, ...]:
        if is_box(path):
            return tuple(self._version.confine(checked_box(path), cpus))
        return tuple(self._version.pin(*checked_pod(path), None if cpus is UNLIMITED else cpus))

    def may_swap(self, box: str) -> bool:
        path, swap = checked_box(box), rows.MEMORY_AND_SWAP if self.version == 1 else rows.SWAP_MAX
        if self._access.has(swap, path) or self._access.read_if_there(rows.MEMORY_MAX, path) in (None, UNLIMITED):
            return False
        return bool(files.memory_bytes(self._tree.read_often(f"{self._proc}/meminfo"), "SwapTotal"))

    def can_have(self, box: str, cpus: Cpus) -> Cpus:
        return self._version.can_have(checked_box(box), cpus)

    def capacity(self, box: str, name: str) -> int | None:
        row = LIMITS[name].limit
        if not self.can_limit(box, name):
            return None
        held = [self._access.read(row, path) for path in self._around(box)]
        node = [int(self._tree.read_often(f"{self._proc}/sys/kernel/{file}")) for file in LIMITS[name].node]
        return min((*node, *(limit for limit in held if isinstance(limit, int))), default=None)

    def write_limit(self, box: str, name: str, limit: Any) -> tuple[LimitChange, ...]:
        if name == CPU:
            return tuple(self._version.settle_quota(checked_box(box), limit))
        return tuple(self._access.settle(LIMITS[name].limit, checked_box(box), limit))

    def can_limit(self, box: str, name: str) -> bool:
        return self._access.has(LIMITS[name].limit, checked_box(box))

    def read_limit(self, path: str, name: str) -> HeldLimit | None:
        if name == CPU:
            return self._cpu_limit(checked_path(path))
        path, row = checked_path(path), LIMITS[name]
        limit = self._access.read(row.limit, path)
        used: int | None = None if limit is None or row.usage is None else self._access.read(row.usage, path)
        return None if limit is None else HeldLimit(limit, used)

    def _cpu_limit(self, path: str) -> HeldLimit | None:
        with if_there():
            return HeldLimit(self._version.cores(path), None)
        return None

    # --- pods --------------------------------------------------------------------------------------------------------

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        box, path = checked_pod(pod)
        self._expect(pod)
        made = self._version.make_pod(box, path, by_systemd=is_slice(pod))
        for name, row in self._pod_files:
            value = getattr(limits, name)
            if value is not None:
                self._access.settle(row, path, value, made=made)
            else:
                self._access.settle_lowest(row, path, made=made)
        if limits.hugetlb:
            self._version.enable_huge_pages(box)
        self._access.settle_family(rows.HUGE_PAGES, path, limits.hugetlb)
        if limits.memory_bytes is not None:
            size_bytes = files.whole_pages(limits.memory_bytes)
            self._version.settle_pod_memory(path, size_bytes)
            held = self._access.read(rows.MEMORY_MAX, path)
            if held != size_bytes:
                in_use_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
                raise CgroupError(
                    f"{self._access.file(rows.MEMORY_MAX, path)} is {self._access.text(rows.MEMORY_MAX, held)}, not "
                    f"{size_bytes}: {in_use_bytes} bytes are in use; ask again when it is less"
                )

    def container_cgroup(self, pod: str, container_id: str) -> str | None:
        """The directory of a container's cgroup, below the hierarchy's root; None: it has none.

        Runtimes put the container's id into its name: `<id>`, or `cri-containerd-<id>.scope` where systemd makes it.
        CRI-O may have its conmon beside it, `crio-conmon-<id>.scope`. Source: CRI-O, conmon_cgroup = "pod".
        """
        parent = checked_pod(pod)[1]
        if not container_id:
            return None
        names = self._tree.children(self._access.directory("cpu", parent))
        its = (name for name in names if container_id in name and "conmon" not in name.split("-"))
        return next((f"{parent}/{name}" for name in its), None)

    def settle_container(self, pod: str, container_id: str, limits: ContainerLimits) -> tuple[LimitChange, ...]:
        changes: list[LimitChange] = []
        with if_there():
            if (path := self.container_cgroup(pod, container_id)) is None:
                return ()
            weight, lowest = limits.cpu_weight, weight_of(LOWEST_SHARES, self.version)
            if weight is not None and self._access.read(rows.CPU_WEIGHT, path) <= lowest:
                changes += self._access.settle(rows.CPU_WEIGHT, path, weight)
            if limits.memory_bytes is not None:
                size_bytes, held = files.whole_pages(limits.memory_bytes), self._access.read(rows.MEMORY_MAX, path)
                if held is UNLIMITED or held > size_bytes:
                    changes += self._version.lower_memory_max(path, size_bytes)
            for controller in ("cpu", "memory"):  # containers come and go, and nobody would forget them
                self._access.forget(self._access.directory(controller, path))
        return tuple(changes)

    def pod_limits(self, path: str) -> PodLimits:
        path = checked_path(path)
        memory = self._access.read_if_there(rows.MEMORY_MAX, path)
        held = {name: self._access.read_if_there(row, path) for name, row in self._pod_files}
        values = {name: value for name, value in held.items() if value is not None}
        hugetlb = self._access.read_family(rows.HUGE_PAGES, path)
        directory = self._access.directory("cpu", path)
        if not self._tree.exists(directory):  # of one that is there, a controller may be switched off
            raise CgroupError(f"{directory} has gone", errno.ENOENT)
        return PodLimits(memory_bytes=None if memory is UNLIMITED else memory, hugetlb=hugetlb, **values)

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        return ()

    def pods(self, box: str) -> tuple[str, ...]:
        directory = checked_box(box)
        names = {name for root in self._access.roots for name in self._tree.children(root + directory)}
        return tuple(sorted(pod for name in names if (pod := pod_named(box, name)) is not None))

    def remove_pod(self, pod: str) -> bool:
        path = checked_pod(pod)[1]
        if processes_in(self._access, pod):
            return False
        for root in self._access.roots:
            if not self._tree.remove(root + path):
                return False
            self._access.forget(root + path)
        return True

    def kill_pod(self, pod: str) -> None:
        path = checked_pod(pod)[1]
        if self._access.has(rows.KILL, path):
            with if_there():
                self._access.write(rows.KILL, path, "1")
        else:
            self._tree.kill(lambda: processes_in(self._access, pod))


class KernelMemory:
    """A `MemoryDriver`."""

    def __init__(self, version: V1Hierarchies | V2Hierarchy) -> None:
        self._version = version
        self._access = version.access

    def reclaim(self, path: str, size_bytes: int) -> bool:
        return self._version.reclaim(checked_path(path), files.whole_pages(size_bytes))

    def reclaimable(self, box: str) -> Reclaimable | Missing:
        return self._version.reclaimable(checked_box(box))

    def take_back(self, box: str, size_bytes: int) -> int:
        path = checked_box(box)
        before_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
        try:
            self._access.write(rows.MEMORY_RECLAIM, path, str(size_bytes))
        except CgroupError as error:
            if error.errno != errno.EAGAIN:  # it was less
                raise
        after_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
        return max(0, before_bytes - after_bytes)

    def drop_cache(self, pod: str) -> int | None:
        path = checked_pod(pod)[1]
        with if_there():
            if processes_in(self._access, pod):
                return None
            before_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
            if before_bytes and self._version.drop_cache(path, before_bytes):
                after_bytes: int = self._access.read(rows.MEMORY_USAGE, path)
                return before_bytes - after_bytes if after_bytes < before_bytes else None
        return None


def processes_in(access: FileAccess, path: str) -> tuple[int, ...]:
    """The pids in a cgroup and below it, in any controller; none when it does not exist. Raises CgroupError."""
    path = checked_path(path)
    return tuple(sorted({pid for root in access.roots for pid in access.tree.processes(root + path)}))


def _pages(size: float | Unlimited) -> int | Unlimited:
    return size if size is UNLIMITED else files.whole_pages(size)
