"""What is cgroup v1's own: a directory per hierarchy, the box's in each that runc joins; cpusets; memory with swap."""

import errno
from collections.abc import Mapping
from typing import Final

from criproxy.cgroup import files
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess, contested
from criproxy.cgroup.driver import CgroupError, Reclaimable, no_cpus
from criproxy.cgroup.kernel_files import KernelFile
from criproxy.cgroup.tree import Tree, if_there
from criproxy.model import UNLIMITED, LimitChange, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.model.signals import Missing

_OF_PODS: Final = ("cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids")
"""Where a pod's cgroup is to be there, with its limits, before the runtime begins. In the other hierarchies the runtime
makes it on its way to the container's, as in any parent that it is given (runc: libcontainer/cgroups/fs, join).
"""

_TRIES: Final = 3
"""So often the box's cpuset is narrowed while containers come."""


class V1Hierarchies:
    """For `KernelDriver`; paths are checked directories, and all methods raise CgroupError.

    `mounts`: see `files.Mounts.v1`; cpu, cpuacct and memory must be among them.

    `unified` is the hybrid set-up's cgroup2 mount, without controllers: runc 1.1 joins it too (measured), so that its
    empty directories are ours to remove.
    """

    def __init__(self, mounts: Mapping[str, str], unified: str | None, tree: Tree) -> None:
        roots = {*mounts.values(), *([unified] if unified else [])}
        self.access = FileAccess(1, mounts, roots, tree)
        self._tree = tree
        self._cpuset = mounts.get("cpuset")
        of_pods = {mounts[name] for name in _OF_PODS if name in mounts}
        self._roots_of_pods = tuple(root for root in self.access.roots if root in of_pods)
        self._followed: set[str] = set()
        """The boxes' cpuset files that all below was brought to."""

    def node_cpu_s(self) -> float:
        """The CPU time of all that runs on the node."""
        return float(self.access.read(rows.CPU_USAGE, "")) / 1e9

    def cpu_times(self, path: str) -> tuple[float, float]:
        """CPU time and throttled time of a cgroup, in s."""
        stat = self.access.read(rows.CPU_STAT, path)
        return self.access.read(rows.CPU_USAGE, path) / 1e9, stat["throttled_time"] / 1e9

    def cores(self, path: str) -> float | Unlimited:
        quota: float | Unlimited = self.access.read(rows.CPU_QUOTA, path)
        period_us: int = self.access.read(rows.CPU_PERIOD, path)
        if quota is UNLIMITED or period_us == files.CFS_PERIOD_US:
            return quota
        return quota * files.CFS_PERIOD_US / period_us

    # --- directories -----------------------------------------------------------------------------------------------

    def ensure(self, box: str, *, by_systemd: bool) -> None:
        """Systemd makes slices, but not in all hierarchies: runc joins cpuset, freezer and others too."""
        for root in self.access.roots:
            self._make_all(root, box)
        if self.access.read(rows.HIERARCHICAL_MEMORY, box) is False:  # EBUSY: there are children already
            self.access.write(rows.HIERARCHICAL_MEMORY, box, True)

    def make_pod(self, box: str, pod: str, *, by_systemd: bool) -> bool:
        """Whether it is new in all hierarchies that it is made in, and nobody has written to it yet."""
        new = not by_systemd
        for root in self.access.roots if by_systemd else self._roots_of_pods:
            if by_systemd:  # which removes the empty box from hierarchies that no slice has asked for
                self._make_all(root, box)
            new = self._make(root, box, pod) and new
        return new

    def enable_huge_pages(self, box: str) -> None:
        """A hierarchy has its controllers everywhere."""

    def _make_all(self, root: str, path: str) -> None:
        """With its parents. Of those that are there, a cpuset alone may lack something yet; one that has it has parents
        that have it.
        """
        if root == self._cpuset:
            if all(self.access.read_if_there(row, path) for row in (rows.CPUS, rows.MEMORY_NODES)):
                return
        elif self._tree.exists(root + path):
            return
        parent = ""
        for name in path.split("/")[1:]:
            self._make(root, parent, f"{parent}/{name}")
            parent = f"{parent}/{name}"

    def _make(self, root: str, parent: str, path: str) -> bool:
        made = self.access.make(root + path)
        if root == self._cpuset:
            # A new cpuset is empty, and takes no process. One that has a value keeps it: it may be kubelet's.
            for row in (rows.CPUS, rows.MEMORY_NODES):
                if made or not self.access.read(row, path):
                    self.access.copy(row, parent, path)
        return made

    # --- cpusets ---------------------------------------------------------------------------------------------------

    def confine(self, box: str, cpus: Cpus | Unlimited) -> list[LimitChange]:
        """The box has its parent's memory nodes, and of its CPUs those that it may have, also when some come or go.

        A hot-unplugged CPU is taken out of every cgroup by the kernel, and one that is plugged in again comes back at
        the root only. Source: kernel/cgroup/cpuset.c, hotplug_update_tasks_legacy.
        """
        if self._cpuset is None:
            if cpus is UNLIMITED:
                return []
            raise CgroupError(
                "there is no cpuset hierarchy, so offline pods can't be kept to the CPUs that kubelet leaves"
            )
        parent = box.rpartition("/")[0]
        want: Cpus = self.access.read(rows.CPUS, parent)
        if cpus is not UNLIMITED:
            want &= cpus
            if not want:
                raise no_cpus(box)
        nodes: Cpus = self.access.read(rows.MEMORY_NODES, parent)
        return [*self._follow(rows.CPUS, box, want), *self._follow(rows.MEMORY_NODES, box, nodes)]

    def can_have(self, box: str, cpus: Cpus) -> Cpus:
        """Cpusets of v1 have no partitions."""
        return cpus

    def pin(self, box: str, pod: str, cpus: Cpus | None) -> list[LimitChange]:
        """See `CgroupDriver.confine`; None: the pod is on all CPUs of the box.

        What comes into the pod later has what the pod has.
        """
        if self._cpuset is None:
            if cpus is None:
                return []
            raise CgroupError("there is no cpuset hierarchy, so offline pods can't be kept on some of the box's CPUs")
        of_box: Cpus = self.access.read(rows.CPUS, box)
        want = of_box if cpus is None else of_box & cpus
        held = self.access.read_if_there(rows.CPUS, pod)
        if not want or held is None or held == want:
            return []
        if cpus is not None:
            own_cpus = [own for own in self.access.read_children(rows.CPUS, pod) if own and own != held]
            if not all(want <= own for own in own_cpus):
                return []
        changes = self._follow(rows.CPUS, pod, want, is_box=False)
        self._followed.discard(self.access.file(rows.CPUS, pod))  # pods come and go
        return changes

    def _follow(self, row: KernelFile, top: str, want: Cpus, *, is_box: bool = True) -> list[LimitChange]:
        """Bring the box, its pods, and all in them that has what is above it, to these CPUs or memory nodes; or a pod.

        Another value (a container's own) stays, as far as it lies within; a pinned pod is to be pinned anew. The kernel
        wants each child within its parent at any moment: so first all are widened, from the top down, then narrowed,
        from the bottom up. A container that comes amid this has what was; then it is done again, and so it is when an
        earlier time did not come to its end.
        """
        file, held = self.access.file(row, top), self.access.read_if_there(row, top) or frozenset()
        if not want or (held == want and file in self._followed):
            self.access.note(row, top, held)
            return []
        self._followed.discard(file)
        for tries_left in reversed(range(_TRIES)):
            plan = self._plan(row, top, held, want, is_box=is_box)
            try:
                for path, own, target in plan:
                    if not target <= own:
                        with if_there():
                            self.access.write(row, path, own | target)
                for path, own, target in reversed(plan):
                    if not own <= target:
                        with if_there():
                            self.access.write(row, path, target)
                break
            except CgroupError as error:
                if error.errno != errno.EBUSY or not tries_left:
                    raise
        new = self.access.read(row, top)
        if new != want:
            raise contested(file, format_cpus(want), format_cpus(new))
        self._followed.add(file)
        return [] if held == want else [self.access.changed(row, top, held, want)]

    def _plan(self, row: KernelFile, top: str, held: Cpus, want: Cpus, *, is_box: bool) -> list[tuple[str, Cpus, Cpus]]:
        """What `top` and all below it have and shall have, parents first. `held`: what `top` had."""
        plan: list[tuple[str, Cpus, Cpus]] = []
        targets: dict[str, Cpus] = {}
        before: dict[str, Cpus] = {}
        root = self._cpuset or ""
        for directory in self._tree.below(root + top):
            path = directory.removeprefix(root)
            parent = path.rpartition("/")[0]
            own: Cpus | None = self.access.read_if_there(row, path)
            if not own and path != top:
                continue  # it has gone, or has not been given any yet, and takes no process
            own, above = own or frozenset(), targets.get(parent, want)
            before[path] = own
            follows = path == top or (is_box and parent == top) or own in (held, held | want, before.get(parent))
            targets[path] = above if follows else own & above or above
            plan.append((path, own, targets[path]))
        return plan

    # --- CPU -------------------------------------------------------------------------------------------------------

    def settle_cpu(self, box: str, cores: float | Unlimited) -> list[LimitChange]:
        """Somebody else's longer period stays until the quota is ours: in ours, theirs would be a larger share."""
        changes = []
        if cores is not UNLIMITED and self.access.read(rows.CPU_PERIOD, box) > files.CFS_PERIOD_US:
            changes += self.settle_quota(box, cores)
        changes += self.access.settle(rows.CPU_PERIOD, box, files.CFS_PERIOD_US)
        return [*changes, *self.settle_quota(box, cores)]

    def settle_quota(self, box: str, cores: float | Unlimited) -> list[LimitChange]:
        """As `settle_cpu`, by the one file with the quota."""
        try:
            return self.access.settle(rows.CPU_QUOTA, box, cores)
        except CgroupError as error:
            if error.errno != errno.EINVAL:
                raise
        # A child whose quota is a larger share than the box's: nothing in the box may have one.
        stripped = self._strip_quotas(box)
        try:
            return [*stripped, *self.access.settle(rows.CPU_QUOTA, box, cores)]
        except CgroupError as error:
            if error.errno == errno.EINVAL and cores is not UNLIMITED:
                self._check_above(box, cores)
            raise

    def _check_above(self, box: str, cores: float) -> None:
        """Raises CgroupError when a cgroup above the box has less than these cores: no child's quota may be larger.

        Source: kernel/sched/core.c, tg_cfs_schedulable_down.
        """
        path = box
        while path := path.rpartition("/")[0]:
            if (held := self.cores(path)) is not UNLIMITED and held < cores:
                raise CgroupError(
                    f"{self.access.file(rows.CPU_QUOTA, path)} allows {held:g} cores, so the kernel takes no limit of "
                    f"{cores:g} cores on {box}, which is below it: lift the one above (-1), or raise it to the node's "
                    "cores",
                    errno.EINVAL,
                )

    def _strip_quotas(self, box: str) -> list[LimitChange]:
        changes, root = [], self.access.directory("cpu", "")
        for directory in self._tree.below(root + box)[1:]:
            path = directory.removeprefix(root)
            file, old = self.access.file(rows.CPU_QUOTA, path), self.access.read(rows.CPU_QUOTA, path)
            if old is not UNLIMITED:
                self.access.write(rows.CPU_QUOTA, path, UNLIMITED)
                was, now = self.access.text(rows.CPU_QUOTA, old), self.access.text(rows.CPU_QUOTA, UNLIMITED)
                changes.append(LimitChange(file, was, now, drift=True))
        return changes

    # --- memory ----------------------------------------------------------------------------------------------------

    def settle_memory(self, box: str, want: int | Unlimited, high: int | Unlimited | None = None) -> list[LimitChange]:
        """Memory, and memory with swap: the same limit, so that what is within it is not swapped.

        There is no memory.high, so `high` is nothing here. The kernel wants memsw >= limit at any moment: up, memsw
        goes first; down, it follows.
        """
        raising = _at_least(want, self.access.read(rows.MEMORY_MAX, box))
        changes = [] if raising else self._bring(rows.MEMORY_MAX, rows.MEMORY_USAGE, box, want)
        if self.access.has(rows.MEMORY_AND_SWAP, box):
            limit = self.access.read(rows.MEMORY_MAX, box)
            reached = UNLIMITED if UNLIMITED in (want, limit) else max(want, limit)
            changes += self._bring(rows.MEMORY_AND_SWAP, rows.MEMORY_AND_SWAP_USAGE, box, want if raising else reached)
        return [*changes, *self.access.settle(rows.MEMORY_MAX, box, want)] if raising else changes

    def settle_pod_memory(self, pod: str, want: int) -> list[LimitChange]:
        return self._bring(rows.MEMORY_MAX, rows.MEMORY_USAGE, pod, want)

    lower_memory_max = settle_pod_memory

    def reclaim(self, path: str, want: int) -> bool:
        held = self.access.read(rows.MEMORY_MAX, path)
        if held is not UNLIMITED and held <= want:
            return False
        with self.access.lowering(rows.MEMORY_MAX, path):
            step = max(want, files.whole_pages(self.access.read(rows.MEMORY_USAGE, path) - files.RECLAIM_STEP_BYTES))
            reached = self._lower(rows.MEMORY_MAX, path, step)
        return reached and step > want

    def reclaimable(self, box: str) -> Reclaimable | Missing:
        return Missing("cgroup v1 has no memory.reclaim")

    def drop_cache(self, pod: str, in_use_bytes: int) -> bool:
        """All in one go; False: the kernel can't."""
        if not self.access.has(rows.MEMORY_FORCE_EMPTY, pod):
            return False
        self.access.write(rows.MEMORY_FORCE_EMPTY, pod, "0")
        return True

    def _bring(self, limit: KernelFile, usage: KernelFile, path: str, want: int | Unlimited) -> list[LimitChange]:
        """Raise a memory limit, or lower it as far as the kernel need not reclaim: see `reclaim`."""
        old = self.access.read(limit, path)
        if want is UNLIMITED or _at_least(want, old):
            return self.access.settle(limit, path, want)
        in_use_bytes: int = self.access.read(usage, path)
        self._lower(limit, path, want if in_use_bytes <= want else in_use_bytes + files.SLACK_BYTES)
        new = self.access.read(limit, path)
        return [] if new == old else [self.access.changed(limit, path, old, new)]

    def _lower(self, limit: KernelFile, path: str, size_bytes: int) -> bool:
        """Lower a limit; never raise it. False when the kernel could not reclaim enough."""
        held = self.access.read(limit, path)
        if held is not UNLIMITED and held <= size_bytes:
            return True
        try:
            self.access.write(limit, path, size_bytes)
        except CgroupError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True


def _at_least(want: int | Unlimited, held: int | Unlimited) -> bool:
    return want is UNLIMITED or (held is not UNLIMITED and want >= held)
