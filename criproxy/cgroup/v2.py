"""What is cgroup v2's own: one hierarchy, controllers enabled from the top down, memory.high before memory.max."""

import errno
import time
from collections.abc import Callable
from typing import Final

from criproxy.cgroup import files
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.busytime import BusyTime
from criproxy.cgroup.driver import CgroupError, Reclaimable, no_cpus
from criproxy.cgroup.tree import TICKS_PER_S, Tree, if_there
from criproxy.model import UNLIMITED, LimitChange, Unlimited
from criproxy.model.cpulist import Cpus
from criproxy.model.signals import Missing, Stall

# What kubelet asks of a pod's cgroup, as far as the kernel has it.
_CONTROLLERS: Final = frozenset({"cpu", "cpuset", "hugetlb", "io", "memory", "pids"})


class V2Hierarchy:
    """As `v1.V1Hierarchies`. `mount`: where the unified hierarchy is mounted. `clock`: CLOCK_MONOTONIC, in s.

    memory.oom.group is left at 0 on the box: it would kill all pods at once.
    """

    def __init__(
        self, mount: str, tree: Tree, proc: str = "/proc", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.access = FileAccess(2, {"": mount}, (mount,), tree)
        self.mount = mount
        self._tree = tree
        self._stat = f"{proc}/stat"
        self._clock = clock
        self._busy = BusyTime()
        self._takes_swappiness = True
        self._confined: set[str] = set()
        """The boxes whose CPUs are ours to set; of others, an administrator may have set them."""

    def node_cpu_s(self) -> float:
        idle_s = files.idle_cpu_seconds(self._tree.read_often(self._stat), TICKS_PER_S)
        return self._busy.add(self._clock(), idle_s)

    def cpu_times(self, path: str) -> tuple[float, float]:
        stat = self.access.read(rows.CPU_STAT, path)
        return stat["usage_usec"] / 1e6, stat.get("throttled_usec", 0) / 1e6

    def cores(self, path: str) -> float | Unlimited:
        cores: float | Unlimited = self.access.read(rows.CPU_QUOTA, path)
        return cores

    # --- directories -----------------------------------------------------------------------------------------------

    def ensure(self, box: str, *, by_systemd: bool) -> None:
        if by_systemd or self._passes_all(box):
            return
        directory = self.mount
        for name in box.split("/")[1:]:
            self._enable_controllers(directory)
            directory = f"{directory}/{name}"
            self.access.make(directory)
        self._enable_controllers(directory)

    def _passes_all(self, box: str) -> bool:
        """Whether the box passes on all controllers that there are, and so do all above it. Source: cgroup-v2.rst,
        Top-down Constraint.
        """
        with if_there():
            enabled = self._tree.read_often(f"{self.mount}{box}/cgroup.subtree_control").split()
            available = self._tree.read_often(f"{self.mount}/cgroup.controllers").split()
            return _CONTROLLERS.intersection(available).issubset(enabled)
        return False

    def make_pod(self, box: str, pod: str, *, by_systemd: bool) -> bool:
        """Whether it is new, and nobody has written to it yet."""
        return not by_systemd and self.access.make(self.mount + pod)

    def enable_huge_pages(self, box: str) -> None:
        """A controller that systemd does not know."""
        self._enable_controllers(self.mount + box, frozenset({rows.HUGE_PAGES.controller}))

    def _enable_controllers(self, directory: str, wanted: frozenset[str] = _CONTROLLERS) -> None:
        available = set(self._tree.read(f"{directory}/cgroup.controllers").split())
        enabled = set(self._tree.read(f"{directory}/cgroup.subtree_control").split())
        if missing := sorted((available & wanted) - enabled):
            self._tree.write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in missing))

    # --- CPU -------------------------------------------------------------------------------------------------------

    def confine(self, box: str, cpus: Cpus | Unlimited) -> list[LimitChange]:
        """What is below follows by itself: it runs on what its own cpuset and the box's have in common."""
        if cpus is UNLIMITED:
            if box not in self._confined:
                return []
            return self._unconfine(box, box.rpartition("/")[0])
        cpus = self.can_have(box, cpus)
        if not self.access.has(rows.CPUS, box):
            file = self.access.file(rows.CPUS, box)
            raise CgroupError(f"{file} does not exist, so offline pods can't be kept to the CPUs that kubelet leaves")
        self._confined.add(box)
        return self.access.settle(rows.CPUS, box, cpus)

    def can_have(self, box: str, cpus: Cpus) -> Cpus:
        """See `CgroupDriver.can_have`: with none of its CPUs online, it would run on all that are above it.

        What it can have are those on which the nearest cgroup above it with a cpuset runs, all of them online; others
        that are online are a partition's, which a write of them here would end, or the kernel refuse (before 6.1).
        Source: kernel/cgroup/cpuset.c, update_cpumasks_hier, validate_change; cgroup-v2.rst, cpuset.cpus.effective.
        """
        there, above = None, box
        while cpus and there is None and above:
            above = above.rpartition("/")[0]
            there = self.access.read_if_there(rows.EFFECTIVE_CPUS, above)
        if there is not None and not cpus <= there:
            cpus -= files.idle_cpu_seconds(self._tree.read_often(self._stat), TICKS_PER_S).keys() - there
        if not (cpus if there is None else cpus & there):
            raise no_cpus(box)
        return cpus

    def pin(self, box: str, pod: str, cpus: Cpus | None) -> list[LimitChange]:
        """See `CgroupDriver.confine`; None: the pod is on all CPUs of the box."""
        with if_there():
            if cpus is None:
                return self._unconfine(pod, "") if self.access.has(rows.CPUS, pod) else []
            held = self.access.read_if_there(rows.CPUS, pod)
            if held is None and self._tree.exists(self.mount + pod):
                file = self.access.file(rows.CPUS, pod)
                raise CgroupError(f"{file} does not exist, so offline pods can't be kept on some of the box's CPUs")
            own = [one for one in self.access.read_children(rows.CPUS, pod) if one]
            if all(cpus <= one for one in own):
                return self.access.settle(rows.CPUS, pod, cpus)
            # A container whose CPUs its pod does not have runs wherever the pod does.
            if held and not all(one <= held for one in own):
                return self._unconfine(pod, "")
        return []

    def _unconfine(self, box: str, above: str) -> list[LimitChange]:
        """An empty cpuset follows whatever is above it. One with processes is refused that (ENOSPC): until they have
        ended, it has what the cgroup `above` has by number, which what is between them narrows.

        Source: kernel/cgroup/cpuset.c, validate_change; seen on Linux 6.1.
        """
        try:
            changes = self.access.settle(rows.CPUS, box, frozenset())
        except CgroupError as error:
            if error.errno != errno.ENOSPC:
                raise
            cpus: Cpus = self.access.read(rows.EFFECTIVE_CPUS, above)
            return self.access.settle(rows.CPUS, box, cpus)
        self._confined.discard(box)
        return changes

    def settle_cpu(self, box: str, cores: float | Unlimited) -> list[LimitChange]:
        return self.access.settle(rows.CPU_QUOTA, box, cores)

    settle_quota = settle_cpu

    # --- memory ----------------------------------------------------------------------------------------------------

    def settle_memory(self, box: str, want: int | Unlimited, high: int | Unlimited | None = None) -> list[LimitChange]:
        """No swap while memory is limited, so that squeezed memory does not become disk traffic.

        `high`: for memory.high, where that is to be below memory.max; None: it is the same.
        """
        swap = self.access.settle(rows.SWAP_MAX, box, UNLIMITED if want is UNLIMITED else 0)
        return [*swap, *self.settle_pod_memory(box, want, high)]

    def settle_pod_memory(
        self, path: str, want: int | Unlimited, high: int | Unlimited | None = None
    ) -> list[LimitChange]:
        """memory.high reclaims and slows down, memory.max kills: so high goes first, and max never below the usage.

        A memory.high below the usage is `reclaim`'s matter alone.
        """
        if want is UNLIMITED:
            return [*self.access.settle(rows.MEMORY_MAX, path, want), *self.access.settle(rows.MEMORY_HIGH, path, want)]
        changes = []
        high = want if high is None or high is UNLIMITED else min(high, want)
        if self.access.read(rows.MEMORY_USAGE, path) <= high:
            changes = self.access.settle(rows.MEMORY_HIGH, path, high)
        else:
            self.access.note(rows.MEMORY_HIGH, path, self.access.read(rows.MEMORY_HIGH, path))
        return [*changes, *self.lower_memory_max(path, want)]

    def lower_memory_max(self, path: str, want: int) -> list[LimitChange]:
        """Never below the usage, as the kernel would kill for that, or wait for reclaim."""
        in_use_bytes: int = self.access.read(rows.MEMORY_USAGE, path)
        held = self.access.read(rows.MEMORY_MAX, path)
        if in_use_bytes > want:
            want = files.whole_pages(in_use_bytes + files.SLACK_BYTES)
            want = want if held is UNLIMITED else min(held, want)
        return self.access.settle(rows.MEMORY_MAX, path, want)

    def reclaim(self, path: str, want: int) -> bool:
        """By memory.high: when that is below the usage, it slows down whoever allocates more."""
        before_bytes: int = self.access.read(rows.MEMORY_USAGE, path)
        if self.access.read(rows.MEMORY_HIGH, path) == want or before_bytes <= want:
            return False
        step = max(want, files.whole_pages(before_bytes - files.RECLAIM_STEP_BYTES))
        with self.access.lowering(rows.MEMORY_HIGH, path):
            self.access.write(rows.MEMORY_HIGH, path, step)
            after_bytes: int = self.access.read(rows.MEMORY_USAGE, path)
            goes_on = step > want and after_bytes <= before_bytes - files.RECLAIM_STEP_BYTES // 4
            if step > want and not goes_on:
                self.access.write(rows.MEMORY_HIGH, path, want)
        return goes_on

    def reclaimable(self, box: str) -> Reclaimable | Missing:
        for row, why in (
            (rows.MEMORY_RECLAIM, "it takes Linux 5.19"),
            (rows.MEMORY_PRESSURE, "this kernel has no pressure (PSI), or has it switched off"),
        ):
            if not self.access.has(row, box):
                return Missing(f"{self.access.file(row, box)} does not exist: {why}")
        kept = [self.access.read(row, box) or 0 for row in rows.MEMORY_GUARANTEES]
        stall = Stall(self._clock(), self.access.read(rows.MEMORY_PRESSURE, box)["some"])
        in_use_bytes: int = self.access.read(rows.MEMORY_USAGE, box)
        return Reclaimable(0 if UNLIMITED in kept else max(0, in_use_bytes - max(kept)), stall)

    def drop_cache(self, pod: str, in_use_bytes: int) -> bool:
        """A step; False: the kernel can't. With swappiness 0, where the kernel takes it, so that nothing is swapped."""
        if not self.access.has(rows.MEMORY_RECLAIM, pod):
            return False
        order = str(min(in_use_bytes, files.CACHE_STEP_BYTES))
        try:
            if self._takes_swappiness and not self._reclaimed(pod, f"{order} swappiness=0"):
                self._takes_swappiness = False
            if not self._takes_swappiness:
                self.access.write(rows.MEMORY_RECLAIM, pod, order)
        except CgroupError as error:
            if error.errno != errno.EAGAIN:
                raise
        return True

    def _reclaimed(self, pod: str, order: str) -> bool:
        """False: the kernel does not understand the order."""
        try:
            self.access.write(rows.MEMORY_RECLAIM, pod, order)
        except CgroupError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        return True
