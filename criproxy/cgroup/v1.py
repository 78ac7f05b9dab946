"""The box in cgroup v1: one directory per hierarchy, in every hierarchy that runc joins."""

import errno
import os
from collections.abc import Iterator, Mapping
from typing import Final

from criproxy.cgroup import files
from criproxy.cgroup.driver import Capabilities, CgroupError, PodLimits, contested, no_cpus, too_full
from criproxy.cgroup.hugetlb import Hugetlb
from criproxy.cgroup.ledger import Ledger
from criproxy.cgroup.pids import PidsController
from criproxy.cgroup.places import checked_box, checked_path, checked_pod, is_slice, pod_named
from criproxy.cgroup.tree import GONE, Tree
from criproxy.cgroup.v1_controllers import BlkIO, Cpu, CpuAcct, CpuSet, Memory
from criproxy.model import CPU, MEMORY, UNLIMITED, LimitChange, Limits, Pids, Usage, type_unlimited
from criproxy.model.cpulist import Cpus, format_cpus

LOWEST_SHARES: Final = 2
LOWEST_DISK_WEIGHTS: Final = {"bfq_weight": 1, "weight": 10}

_TRIES: Final = 3
"""So often the box's cpuset is narrowed while containers come."""

# The kernel's and cgroupspy's values: None is "no limit" (-1 in the file).
_Value = int | bool | None


class V1Driver:
    """A `CgroupDriver`. `mounts`: see `files.Mounts.v1`; cpu, cpuacct and memory must be among them.

    `unified` is the hybrid set-up's cgroup2 mount, without controllers: runc 1.1 joins it too (measured), so that its
    empty directories are ours to remove.
    """

    def __init__(self, mounts: Mapping[str, str], unified: str | None, tree: Tree, proc: str = "/proc") -> None:
        self._mounts = mounts
        self._hierarchies = tuple(sorted({*mounts.values(), *([unified] if unified else [])}))
        self._tree = tree
        self._meminfo = f"{proc}/meminfo"
        self._ledger = Ledger()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._followed: set[str] = set()
        """The boxes' cpuset files that all below was brought to."""
        self._pids = PidsController(mounts.get("pids"), tree, proc, self._ledger)
        self._hugetlb = Hugetlb(mounts.get("hugetlb"), tree, "limit_in_bytes")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(version=1, cpu_idle=self._cpu("").has("idle"), child_quota=False)

    @property
    def root_cpuset(self) -> str | None:
        mount = self._mounts.get("cpuset")
        return f"{mount}/cpuset.effective_cpus" if mount else None

    def node_usage(self) -> Usage:
        memory_bytes = files.node_working_set_bytes(self._tree.read(self._meminfo))
        return Usage(self._cpuacct("").usage / 1e9, memory_bytes)

    def usage(self, path: str) -> Usage | None:
        path = checked_path(path)
        try:
            stat = files.parse_flat_keyed(self._cpu(path).get_property(b"cpu.stat"))
            memory = self._memory(path)
            inactive_bytes = files.parse_flat_keyed(memory.get_property(b"memory.stat"))["total_inactive_file"]
            memory_bytes = memory.usage_in_bytes
            return Usage(
                cpu_usage_s=self._cpuacct(path).usage / 1e9,
                working_set_bytes=max(0, memory_bytes - inactive_bytes),
                throttled_s=stat["throttled_time"] / 1e9,
                throttled_periods=stat["nr_throttled"],
                memory_bytes=memory_bytes,
            )
        except CgroupError as error:
            if error.errno in GONE:
                return None
            raise

    def exists(self, path: str) -> bool:
        return self._tree.exists(self._mounts["cpu"] + checked_path(path))

    def identity(self, path: str) -> int | None:
        return self._tree.identity(self._mounts["cpu"] + checked_path(path))

    def ensure(self, box: str) -> None:
        self._expect_slice(box)
        box = checked_box(box)
        for hierarchy in self._hierarchies:
            self._make(hierarchy, box)
        memory = self._memory(box)
        # Before Linux 5.11 a limit counts the children only with this, and EBUSY tells that there are some already.
        if memory.has("use_hierarchy") and not memory.use_hierarchy:
            memory.use_hierarchy = True

    def read(self, box: str) -> Limits:
        box = checked_path(box)
        cpu = self._cpu(box)
        quota_us, limit_bytes = cpu.cfs_quota_us, self._memory(box).limit_in_bytes
        return {
            CPU: UNLIMITED if quota_us is None else quota_us / cpu.cfs_period_us,
            MEMORY: UNLIMITED if limit_bytes is None else limit_bytes,
        }

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        box = checked_box(box)
        quota_us = None if limits[CPU] is UNLIMITED else files.quota_us(limits[CPU])
        size_bytes = None if limits[MEMORY] is UNLIMITED else self._whole_pages(limits[MEMORY])
        return (
            *self._settle_priority(box),
            *self._settle_cpu(box, quota_us),
            *self._settle_memory(self._memory(box), size_bytes),
        )

    def confine(self, box: str, cpus: Cpus | type_unlimited) -> tuple[LimitChange, ...]:
        """The box has its parent's memory nodes, and of its CPUs those that it may have, also when some come or go.

        A hot-unplugged CPU is taken out of every cgroup by the kernel, and one that is plugged in again comes back at
        the root only. Source: kernel/cgroup/cpuset.c, hotplug_update_tasks_legacy.
        """
        path = checked_box(box)
        mount = self._mounts.get("cpuset")
        if mount is None:
            if cpus is UNLIMITED:
                return ()
            raise CgroupError(
                "there is no cpuset hierarchy, so offline pods can't be kept to the CPUs that kubelet leaves"
            )
        parent = CpuSet(self._tree, mount + path.rpartition("/")[0])
        want = parent.cpus if cpus is UNLIMITED else parent.cpus & cpus
        if not want and cpus is not UNLIMITED:
            raise no_cpus(box)
        return (*self._follow(mount + path, "cpus", want), *self._follow(mount + path, "mems", parent.mems))

    def squeeze(self, box: str, cores: float) -> tuple[LimitChange, ...]:
        return tuple(self._settle_quota(checked_box(box), files.quota_us(cores)))

    def reclaim(self, path: str, size_bytes: int) -> bool:
        memory, want = self._memory(checked_path(path)), self._whole_pages(size_bytes)
        file = memory.file("limit_in_bytes")
        held = memory.limit_in_bytes
        if held is not None and held <= want:
            return False
        with self._ledger.sinking(file):
            step = max(want, self._whole_pages(memory.usage_in_bytes - files.RECLAIM_STEP_BYTES))
            reached = self._try(memory, "limit_in_bytes", step)
            self._ledger.kept(file, _text(memory.limit_in_bytes))
        return reached and step > want

    def pids_share(self, box: str, ratio: float) -> int | None:
        return self._pids.share(box, ratio)

    def write_pids(self, box: str, ratio: float) -> tuple[LimitChange, ...]:
        share = self._pids.share(box, ratio)
        return () if share is None else tuple(self._pids.settle(box, share))

    def read_pids(self, path: str) -> Pids | None:
        return self._pids.read(path)

    @property
    def node_cpu_counter(self) -> str | None:
        return self._cpuacct("").file("usage")

    def cpu_counter(self, path: str) -> str:
        return self._cpuacct(checked_path(path)).file("usage")

    def pressure_file(self, path: str) -> str | None:
        return None

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        self._expect_slice(pod)
        by_systemd = is_slice(pod)
        box, pod = checked_pod(pod)
        for hierarchy in self._hierarchies:
            if by_systemd:  # which removes the empty box from hierarchies that no slice has asked for
                self._make(hierarchy, box)
            self._make_one(hierarchy, box, pod)
        tuple(self._settle(self._cpu(pod), "shares", limits.cpu_weight or LOWEST_SHARES))
        if limits.pids is not None:
            tuple(self._pids.settle(pod, limits.pids))
        self._hugetlb.settle(pod, limits.hugetlb)
        if limits.memory_bytes is not None:
            memory, size_bytes = self._memory(pod), self._whole_pages(limits.memory_bytes)
            tuple(self._bring(memory, "limit_in_bytes", "usage_in_bytes", size_bytes))
            if memory.limit_in_bytes != size_bytes:
                held = _text(memory.limit_in_bytes)
                raise too_full(memory.file("limit_in_bytes"), held, size_bytes, memory.usage_in_bytes)

    def pod_limits(self, path: str) -> PodLimits:
        pids, memory = self._pids.read(path), self.read(path)[MEMORY]
        return PodLimits(
            memory_bytes=None if memory is UNLIMITED else int(memory),
            cpu_weight=self._cpu(checked_path(path)).shares,
            pids=None if pids is None else pids.limit,
            hugetlb=self._hugetlb.read(path),
        )

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        return ()

    def pods(self, box: str) -> tuple[str, ...]:
        directory = checked_box(box)
        names = {name for hierarchy in self._hierarchies for name in self._tree.children(hierarchy + directory)}
        return tuple(sorted(pod for name in names if (pod := pod_named(box, name)) is not None))

    def remove_pod(self, pod: str) -> bool:
        path = checked_pod(pod)[1]
        if self.processes(path):
            return False
        for hierarchy in self._hierarchies:
            if not self._tree.remove(hierarchy + path):
                return False
            self._ledger.forget(hierarchy + path)
        return True

    def kill_pod(self, pod: str) -> None:
        checked_pod(pod)
        self._tree.kill(lambda: self.processes(pod))

    def processes(self, path: str) -> tuple[int, ...]:
        path = checked_path(path)
        pids: set[int] = set()
        for hierarchy in self._hierarchies:
            pids |= self._tree.processes(hierarchy + path)
        return tuple(sorted(pids))

    def _expect_slice(self, path: str) -> None:
        """Systemd makes slices, but not in all hierarchies: runc joins cpuset, freezer and others too."""
        if is_slice(path) and not self.exists(path):
            raise CgroupError(f"{path} does not exist: systemd has not made it, or has stopped it")

    # --- directories -----------------------------------------------------------------------------------------------

    def _make(self, hierarchy: str, path: str) -> None:
        """With its parents. Of those that are there, a cpuset alone may lack something yet."""
        if hierarchy != self._mounts.get("cpuset") and self._tree.exists(hierarchy + path):
            return
        parent = ""
        for name in path.split("/")[1:]:
            self._make_one(hierarchy, parent, f"{parent}/{name}")
            parent = f"{parent}/{name}"

    def _make_one(self, hierarchy: str, parent: str, path: str) -> None:
        if self._tree.mkdir(hierarchy + path):
            self._ledger.forget(hierarchy + path)
        if hierarchy == self._mounts.get("cpuset"):
            self._fill_cpuset(CpuSet(self._tree, hierarchy + parent), CpuSet(self._tree, hierarchy + path))

    def _fill_cpuset(self, parent: CpuSet, child: CpuSet) -> None:
        """A new cpuset is empty, and takes no process. One that has a value keeps it: it may be kubelet's."""
        if not child.cpus:
            child.cpus = parent.cpus
        if not child.mems:
            child.mems = parent.mems

    def _follow(self, box: str, attribute: str, want: set[int]) -> Iterator[LimitChange]:
        """Bring the box, its pods, and all in them that has what the box had, to these CPUs or memory nodes.

        Another value (a container's own) stays, as far as it lies within. The kernel wants each child within its parent
        at any moment: so first all are widened, from the top down, then narrowed, from the bottom up. A container that
        comes amid this has what was; then it is done again, and so it is when an earlier time did not come to its end.
        """
        top = CpuSet(self._tree, box)
        file, held = top.file(attribute), _held(top, attribute) or set()
        if not want or (held == want and file in self._followed):
            self._ledger.kept(file, format_cpus(held))
            return
        self._followed.discard(file)
        for tries_left in reversed(range(_TRIES)):
            plan = self._plan(box, attribute, held, want)
            try:
                for cpuset, own, target in plan:
                    if not target <= own:
                        _change(cpuset, attribute, own | target)
                for cpuset, own, target in reversed(plan):
                    if not own <= target:
                        _change(cpuset, attribute, target)
                break
            except CgroupError as error:
                if error.errno != errno.EBUSY or not tries_left:
                    raise
        new = getattr(top, attribute)
        if new != want:
            raise contested(file, format_cpus(want), format_cpus(new))
        self._followed.add(file)
        if held != want:
            yield self._ledger.changed(file, format_cpus(held), format_cpus(want))

    def _plan(
        self, box: str, attribute: str, held: set[int], want: set[int]
    ) -> list[tuple[CpuSet, set[int], set[int]]]:
        """What the box and all below it have and shall have, parents first. `held`: what the box had."""
        plan: list[tuple[CpuSet, set[int], set[int]]] = []
        targets: dict[str, set[int]] = {}
        for directory in self._tree.below(box):
            cpuset, parent = CpuSet(self._tree, directory), directory.rpartition("/")[0]
            own = _held(cpuset, attribute)
            if not own and directory != box:
                continue  # it has gone, or has not been given any yet, and takes no process
            own, above = own or set(), targets.get(parent, want)
            follows = box in (directory, parent) or own in (held, held | want)
            targets[directory] = above if follows else own & above or above
            plan.append((cpuset, own, targets[directory]))
        return plan

    # --- settling: read, compare, write, verify --------------------------------------------------------------------

    def _settle(self, controller: BlkIO | Cpu | Memory, attribute: str, want: _Value) -> Iterator[LimitChange]:
        file, old = controller.file(attribute), getattr(controller, attribute)
        if old == want:
            self._ledger.kept(file, _text(old))
            return
        setattr(controller, attribute, want)
        new = getattr(controller, attribute)
        if new != want and not self._ledger.is_sinking(file):
            raise contested(file, _text(want), _text(new))
        yield self._ledger.changed(file, _text(old), _text(new))

    def _settle_priority(self, box: str) -> Iterator[LimitChange]:
        cpu = self._cpu(box)
        if cpu.has("idle"):
            yield from self._settle(cpu, "idle", True)
        else:
            yield from self._settle(cpu, "shares", LOWEST_SHARES)
        if mount := self._mounts.get("blkio"):
            disk = BlkIO(self._tree, mount + box)
            for attribute, weight in LOWEST_DISK_WEIGHTS.items():
                if disk.has(attribute):
                    yield from self._settle(disk, attribute, weight)

    def _settle_cpu(self, box: str, quota_us: int | None) -> Iterator[LimitChange]:
        """Somebody else's longer period stays until the quota is ours: in ours, theirs would be a larger share."""
        cpu = self._cpu(box)
        if cpu.cfs_period_us > files.CFS_PERIOD_US and quota_us is not None:
            yield from self._settle_quota(box, quota_us)
        yield from self._settle(cpu, "cfs_period_us", files.CFS_PERIOD_US)
        yield from self._settle_quota(box, quota_us)

    def _settle_quota(self, box: str, quota_us: int | None) -> Iterator[LimitChange]:
        cpu = self._cpu(box)
        try:
            yield from self._settle(cpu, "cfs_quota_us", quota_us)
        except CgroupError as error:
            if error.errno != errno.EINVAL:
                raise
            # A child whose quota is a larger share than the box's: nothing in the box may have one.
            yield from self._strip_quotas(box)
            yield from self._settle(cpu, "cfs_quota_us", quota_us)

    def _strip_quotas(self, box: str) -> Iterator[LimitChange]:
        for directory in self._tree.below(self._mounts["cpu"] + box)[1:]:
            child = Cpu(self._tree, directory)
            old = child.cfs_quota_us
            if old is not None:
                child.cfs_quota_us = None
                yield LimitChange(child.file("cfs_quota_us"), _text(old), _text(None), drift=True)

    def _settle_memory(self, memory: Memory, want: int | None) -> Iterator[LimitChange]:
        """Memory, and memory with swap: the same limit, so that squeezed memory does not become disk traffic.

        The kernel wants memsw >= limit at any moment: up, memsw goes first; down, it follows.
        """
        old = memory.limit_in_bytes
        raising = want is None or (old is not None and want >= old)
        if not raising:
            yield from self._bring(memory, "limit_in_bytes", "usage_in_bytes", want)
        if memory.has("memsw_limit_in_bytes"):
            reached = None if want is None else max(want, int(memory.limit_in_bytes))
            yield from self._bring(memory, "memsw_limit_in_bytes", "memsw_usage_in_bytes", reached)
        if raising:
            yield from self._settle(memory, "limit_in_bytes", want)

    def _bring(self, memory: Memory, limit: str, usage: str, want: int | None) -> Iterator[LimitChange]:
        """Raise a memory limit, or lower it as far as the kernel need not reclaim: see `reclaim`."""
        old: int | None = getattr(memory, limit)
        if want is None or (old is not None and want >= old):
            yield from self._settle(memory, limit, want)
            return
        in_use_bytes: int = getattr(memory, usage)
        self._try(memory, limit, want if in_use_bytes <= want else in_use_bytes + files.SLACK_BYTES)
        new = getattr(memory, limit)
        if new != old:
            yield self._ledger.changed(memory.file(limit), _text(old), _text(new))

    def _try(self, memory: Memory, limit: str, size_bytes: int) -> bool:
        """Lower a limit; never raise it. False when the kernel could not reclaim enough."""
        held = getattr(memory, limit)
        if held is not None and held <= size_bytes:
            return True
        try:
            setattr(memory, limit, size_bytes)
        except CgroupError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    def _whole_pages(self, size_bytes: float) -> int:
        return files.whole_pages(size_bytes, self._page_bytes)

    def _cpu(self, path: str) -> Cpu:
        return Cpu(self._tree, self._mounts["cpu"] + path)

    def _cpuacct(self, path: str) -> CpuAcct:
        return CpuAcct(self._tree, self._mounts["cpuacct"] + path)

    def _memory(self, path: str) -> Memory:
        return Memory(self._tree, self._mounts["memory"] + path)


def _held(cpuset: CpuSet, attribute: str) -> set[int] | None:
    """None when the cgroup has gone."""
    try:
        held: set[int] = getattr(cpuset, attribute)
        return held
    except CgroupError as error:
        if error.errno in GONE:
            return None
        raise


def _change(cpuset: CpuSet, attribute: str, value: set[int]) -> None:
    try:
        setattr(cpuset, attribute, value)
    except CgroupError as error:
        if error.errno not in GONE:
            raise


def _text(value: _Value) -> str:
    return "-1" if value is None else str(int(value))
