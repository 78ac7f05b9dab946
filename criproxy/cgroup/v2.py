"""The box in cgroup v2: one directory of the unified hierarchy, driven through plain files."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from criproxy.cgroup import files
from criproxy.cgroup.busytime import BusyTime
from criproxy.cgroup.driver import Capabilities, CgroupError, PodLimits, contested, no_cpus, too_full
from criproxy.cgroup.hugetlb import Hugetlb
from criproxy.cgroup.ledger import Ledger
from criproxy.cgroup.pids import PidsController
from criproxy.cgroup.places import checked_box, checked_path, checked_pod, is_slice, pod_named
from criproxy.cgroup.tree import GONE, Tree
from criproxy.model import CPU, MEMORY, UNLIMITED, LimitChange, Limits, Pids, Usage, type_unlimited
from criproxy.model.cpulist import Cpus, format_cpus

NO_LIMIT: Final = "max"
LOWEST_WEIGHT: Final = "1"
LOWEST_IO_WEIGHT: Final = "default 1"

# The io controller's weight is of use with the io.cost model alone, BFQ's with that scheduler.
_IO_WEIGHTS: Final = ("io.weight", "io.bfq.weight")

# What kubelet asks of a pod's cgroup, as far as the kernel has it.
_CONTROLLERS: Final = frozenset({"cpu", "cpuset", "hugetlb", "io", "memory", "pids"})


class V2Driver:
    """A `CgroupDriver`. `mount`: where the unified hierarchy is mounted. `clock`: CLOCK_MONOTONIC, in s.

    memory.oom.group is left at 0 on the box: it would kill all pods at once.
    """

    def __init__(
        self, mount: str, tree: Tree, proc: str = "/proc", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.mount = self._mount = mount
        self._tree = tree
        self._proc = proc
        self._clock = clock
        self._busy = BusyTime()
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._ledger = Ledger()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._confined: set[str] = set()
        """The boxes whose CPUs are ours to set; of others, an administrator may have set them."""
        self._pids = PidsController(mount, tree, proc, self._ledger)
        self._hugetlb = Hugetlb(mount, tree, "max")

    @property
    def capabilities(self) -> Capabilities:
        first = self._tree.children(self._mount)
        idle = any(self._tree.exists(f"{self._mount}/{name}/cpu.idle") for name in first)
        return Capabilities(version=2, cpu_idle=idle, child_quota=True)

    @property
    def root_cpuset(self) -> str | None:
        file = f"{self._mount}/cpuset.cpus.effective"
        return file if self._tree.exists(file) else None

    def node_usage(self) -> Usage:
        memory_bytes = files.node_working_set_bytes(self._tree.read(f"{self._proc}/meminfo"))
        idle_s = files.idle_cpu_seconds(self._tree.read(f"{self._proc}/stat"), self._ticks_per_s)
        return Usage(self._busy.add(self._clock(), idle_s), memory_bytes)

    def usage(self, path: str) -> Usage | None:
        directory = self._mount + checked_path(path)
        try:
            cpu = self._stat(f"{directory}/cpu.stat")
            inactive_bytes = self._stat(f"{directory}/memory.stat")["inactive_file"]
            memory_bytes = self._number(f"{directory}/memory.current")
            return Usage(
                cpu_usage_s=cpu["usage_usec"] / 1e6,
                working_set_bytes=max(0, memory_bytes - inactive_bytes),
                throttled_s=cpu.get("throttled_usec", 0) / 1e6,
                throttled_periods=cpu.get("nr_throttled", 0),
                memory_bytes=memory_bytes,
            )
        except CgroupError as error:
            if error.errno in GONE:
                return None
            raise

    def exists(self, path: str) -> bool:
        return self._tree.exists(self._mount + checked_path(path))

    def identity(self, path: str) -> int | None:
        return self._tree.identity(self._mount + checked_path(path))

    def ensure(self, box: str) -> None:
        directory = self._mount
        if is_slice(box):
            self._made(directory + checked_box(box))
            return
        for name in checked_box(box).split("/")[1:]:
            self._enable_controllers(directory)
            directory = f"{directory}/{name}"
            self._make(directory)
        self._enable_controllers(directory)

    def read(self, box: str) -> Limits:
        directory = self._mount + checked_path(box)
        quota, period_us = self._tree.read(f"{directory}/cpu.max").split()
        limit = self._tree.read(f"{directory}/memory.max")
        return {
            CPU: UNLIMITED if quota == NO_LIMIT else int(quota) / int(period_us),
            MEMORY: UNLIMITED if limit == NO_LIMIT else int(limit),
        }

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        directory = self._mount + checked_box(box)
        return (
            *self._settle_priority(directory),
            *self._settle(f"{directory}/cpu.max", _quota(limits[CPU])),
            *self._settle_swap(directory, limited=limits[MEMORY] is not UNLIMITED),
            *self._settle_memory(directory, None if limits[MEMORY] is UNLIMITED else self._whole_pages(limits[MEMORY])),
        )

    def confine(self, box: str, cpus: Cpus | type_unlimited) -> tuple[LimitChange, ...]:
        """What is below follows by itself: it runs on what its own cpuset and the box's have in common."""
        file = f"{self._mount}{checked_box(box)}/cpuset.cpus"
        if cpus is UNLIMITED:
            if box not in self._confined:
                return ()
            changes = tuple(self._settle(file, "", write="\n"))  # a write of nothing does not reach the kernel
            self._confined.discard(box)
            return changes
        if not cpus:
            raise no_cpus(box)
        if not self._tree.exists(file):
            raise CgroupError(f"{file} does not exist, so offline pods can't be kept to the CPUs that kubelet leaves")
        self._confined.add(box)
        return tuple(self._settle(file, format_cpus(cpus)))

    def squeeze(self, box: str, cores: float) -> tuple[LimitChange, ...]:
        file = f"{self._mount}{checked_box(box)}/cpu.max"
        return tuple(self._settle(file, _quota(cores)))

    def pids_share(self, box: str, ratio: float) -> int | None:
        return self._pids.share(box, ratio)

    def write_pids(self, box: str, ratio: float) -> tuple[LimitChange, ...]:
        share = self._pids.share(box, ratio)
        return () if share is None else tuple(self._pids.settle(box, share))

    def read_pids(self, path: str) -> Pids | None:
        return self._pids.read(path)

    def reclaim(self, path: str, size_bytes: int) -> bool:
        """By memory.high: standing at a size below the usage, it slows down whoever allocates more."""
        directory, want = self._mount + checked_path(path), self._whole_pages(size_bytes)
        file, current = f"{directory}/memory.high", f"{directory}/memory.current"
        held_bytes, before_bytes = _size(self._tree.read(file)), self._number(current)
        if held_bytes == want or before_bytes <= want:
            return False
        step = max(want, self._whole_pages(before_bytes - files.RECLAIM_STEP_BYTES))
        with self._ledger.sinking(file):
            self._tree.write(file, str(step))
            goes_on = step > want and self._number(current) <= before_bytes - files.RECLAIM_STEP_BYTES // 4
            if step > want and not goes_on:
                self._tree.write(file, str(want))
            self._ledger.kept(file, self._tree.read(file))
        return goes_on

    @property
    def node_cpu_counter(self) -> str | None:
        return None

    def cpu_counter(self, path: str) -> str:
        return f"{self._mount}{checked_path(path)}/cpu.stat"

    def pressure_file(self, path: str) -> str | None:
        return f"{self._mount}{checked_path(path)}/cpu.pressure"

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        box, path = checked_pod(pod)
        directory = self._mount + path
        self._made(directory) if is_slice(pod) else self._make(directory)
        weight = LOWEST_WEIGHT if limits.cpu_weight is None else str(limits.cpu_weight)
        tuple(self._settle(f"{directory}/cpu.weight", weight))
        if limits.cpu_cores is not None:
            tuple(self._settle(f"{directory}/cpu.max", _quota(limits.cpu_cores)))
        if limits.pids is not None:
            tuple(self._pids.settle(pod, limits.pids))
        if limits.hugetlb:  # a controller that systemd does not know
            self._enable_controllers(self._mount + box, frozenset({"hugetlb"}))
        self._hugetlb.settle(path, limits.hugetlb)
        if limits.memory_bytes is not None:
            size_bytes = self._whole_pages(limits.memory_bytes)
            tuple(self._settle_memory(directory, size_bytes))
            held = self._tree.read(f"{directory}/memory.max")
            if held != str(size_bytes):
                in_use_bytes = self._number(f"{directory}/memory.current")
                raise too_full(f"{directory}/memory.max", held, size_bytes, in_use_bytes)

    def pod_limits(self, path: str) -> PodLimits:
        pids, limits, weight = self._pids.read(path), self.read(path), f"{self._mount}{checked_path(path)}/cpu.weight"
        return PodLimits(
            memory_bytes=None if limits[MEMORY] is UNLIMITED else int(limits[MEMORY]),
            cpu_weight=self._number(weight) if self._tree.exists(weight) else None,
            cpu_cores=limits[CPU],
            pids=None if pids is None else pids.limit,
            hugetlb=self._hugetlb.read(path),
        )

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        return ()

    def pods(self, box: str) -> tuple[str, ...]:
        names = self._tree.children(self._mount + checked_box(box))
        return tuple(sorted(pod for name in names if (pod := pod_named(box, name)) is not None))

    def remove_pod(self, pod: str) -> bool:
        directory = self._mount + checked_pod(pod)[1]
        if self._tree.processes(directory) or not self._tree.remove(directory):
            return False
        self._ledger.forget(directory)
        return True

    def kill_pod(self, pod: str) -> None:
        checked_pod(pod)
        self._tree.kill(lambda: self.processes(pod))

    def processes(self, path: str) -> tuple[int, ...]:
        return tuple(sorted(self._tree.processes(self._mount + checked_path(path))))

    # --- directories -----------------------------------------------------------------------------------------------

    def _make(self, directory: str) -> None:
        if self._tree.mkdir(directory):
            self._ledger.forget(directory)

    def _made(self, directory: str) -> None:
        if not self._tree.exists(directory):
            raise CgroupError(f"{directory} does not exist: systemd has not made it, or has stopped it")

    def _enable_controllers(self, directory: str, wanted: frozenset[str] = _CONTROLLERS) -> None:
        available = set(self._tree.read(f"{directory}/cgroup.controllers").split())
        enabled = set(self._tree.read(f"{directory}/cgroup.subtree_control").split())
        if missing := sorted((available & wanted) - enabled):
            self._tree.write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in missing))

    # --- settling: read, compare, write, verify --------------------------------------------------------------------

    def _settle(self, file: str, want: str, *, write: str = "") -> Iterator[LimitChange]:
        """`write`: what makes the file hold `want`, where that is something else."""
        old = self._first_line(file)
        if old == want:
            self._ledger.kept(file, old)
            return
        self._tree.write(file, write or want)
        new = self._first_line(file)
        if new != want and not self._ledger.is_sinking(file):
            raise contested(file, want, new)
        yield self._ledger.changed(file, old, new)

    def _first_line(self, file: str) -> str:
        """All there is, but in io.weight, where weights of single devices may follow."""
        return self._tree.read(file).partition("\n")[0]

    def _settle_priority(self, directory: str) -> Iterator[LimitChange]:
        # While idle, the kernel refuses any write of cpu.weight (EINVAL).
        if self._tree.exists(f"{directory}/cpu.idle"):
            yield from self._settle(f"{directory}/cpu.idle", "1")
        else:
            yield from self._settle(f"{directory}/cpu.weight", LOWEST_WEIGHT)
        for file in (f"{directory}/{name}" for name in _IO_WEIGHTS):
            if self._tree.exists(file):
                yield from self._settle(file, LOWEST_IO_WEIGHT)

    def _settle_swap(self, directory: str, *, limited: bool) -> Iterator[LimitChange]:
        """No swap while memory is limited, so that squeezed memory does not become disk traffic."""
        file = f"{directory}/memory.swap.max"
        if self._tree.exists(file):
            yield from self._settle(file, "0" if limited else NO_LIMIT)

    def _settle_memory(self, directory: str, want: int | None) -> Iterator[LimitChange]:
        """memory.high reclaims and slows down, memory.max kills: so high goes first, and max never below the usage.

        A memory.high below the usage is `reclaim`'s matter alone.
        """
        high, limit, current = (f"{directory}/memory.{name}" for name in ("high", "max", "current"))
        if want is None:
            yield from self._settle(limit, NO_LIMIT)
            yield from self._settle(high, NO_LIMIT)
            return
        if self._number(current) <= want:
            yield from self._settle(high, str(want))
        else:
            self._ledger.kept(high, self._tree.read(high))
        in_use_bytes, held_bytes = self._number(current), _size(self._tree.read(limit))
        if in_use_bytes > want:
            slack_bytes = self._whole_pages(in_use_bytes + files.SLACK_BYTES)
            yield from self._settle(limit, str(slack_bytes if held_bytes is None else min(held_bytes, slack_bytes)))
        else:
            yield from self._settle(limit, str(want))

    def _stat(self, file: str) -> dict[str, int]:
        return files.parse_flat_keyed(self._tree.read(file))

    def _number(self, file: str) -> int:
        return int(self._tree.read(file))

    def _whole_pages(self, size_bytes: float) -> int:
        return files.whole_pages(size_bytes, self._page_bytes)


def _quota(cores: float | type_unlimited) -> str:
    """What cpu.max holds."""
    return f"{NO_LIMIT if cores is UNLIMITED else files.quota_us(cores)} {files.CFS_PERIOD_US}"


def _size(text: str) -> int | None:
    return None if text == NO_LIMIT else int(text)
