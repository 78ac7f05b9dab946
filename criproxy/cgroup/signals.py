"""Reads what the kernel says about harm to online: pressure, run queues, limits of its own, memory, disks.

Each kind is read by itself. One that can't be read is a `Missing`, which says why, and keeps none of the others from
being read. Nothing here waits for anything but the kernel's own locks, but all of it is for a thread of its own, as
each read of a v2 counter first sums up the cgroups below.

What is read is bounded: a dozen files each time, one of each online pod, `pod_stalls.MOST_PODS` at most,
`run_queue.MOST_THREADS` threads or a few more where there is no pressure, and, only when asked for, one file of each of
online's cgroups, `run_queue.MOST_CGROUPS` at most.
"""

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from criproxy.cgroup import files
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.cpu_use import used_s_of
from criproxy.cgroup.driver import CgroupError, checked_box, checked_path
from criproxy.cgroup.kernel_files import KernelFile
from criproxy.cgroup.naming import BoxPath, PodParent, parse_box, pod_names
from criproxy.cgroup.pod_stalls import MOST_PODS, PodStallReader
from criproxy.cgroup.run_queue import MOST_CGROUPS, RunQueueSampler
from criproxy.cgroup.tree import GONE, TICKS_PER_S, Tree
from criproxy.cgroup.work import ProcessorCounters, WorkReader
from criproxy.concurrency.clock import Clock
from criproxy.model import PIDS
from criproxy.model.signals import (
    CpuSpent,
    DiskCounters,
    DiskIo,
    DiskRate,
    MemoryRoom,
    MemoryStat,
    Missing,
    OwnLimits,
    PidsRoom,
    RunQueue,
    SignalReading,
    Stall,
    Throttling,
)

T = TypeVar("T")

_NO_PRESSURE_V1: Final = "cgroup v1 reports no pressure (PSI) of cgroups"
_OFF: Final = ("0", "n", "no", "off", "false")


class SignalReader:
    """`read` is for one thread; it remembers which threads it looks at."""

    def __init__(
        self,
        access: FileAccess,
        tree: Tree,
        clock: Clock,
        proc: str = "/proc",
        counters: ProcessorCounters | None = None,
    ) -> None:
        self._access = access
        self._tree = tree
        self._proc = proc
        self._clock = clock
        self._run_queue = RunQueueSampler(access, tree, clock, proc)
        self._pods = PodStallReader(access, tree, clock)
        self._work = WorkReader(access, tree, clock, counters)

    def read(
        self,
        box: str,
        *,
        own_limits: bool,
        pods: Mapping[str, Sequence[str]] | None = None,
        counts_work: bool = False,
    ) -> SignalReading:
        """The box need not be there. `own_limits`: with the time for which online's own limits stopped it. `pods`: the
        online pods, by uid, with where their cgroups may be. `counts_work`: the processor counts what they execute.

        Never raises.
        """
        pods = pods or {}
        if not counts_work:
            self._work.stop()
        places = _understood(lambda: (checked_path(parse_box(box).online), checked_box(box)))
        if isinstance(places, Missing):
            return SignalReading.without(places)
        online, box = places
        self._access.read_often(("", *places))
        cpu = self._stall(rows.CPU_PRESSURE, online)
        return SignalReading(
            cpu=cpu,
            memory=self._stall(rows.MEMORY_PRESSURE, online),
            io=self._stall(rows.IO_PRESSURE, online),
            run_queue=self._waiting(cpu, online),
            room=_understood(self._room),
            memory_stat=_understood(lambda: self._memory_stat(online)),
            disks=_understood(lambda: self._disks(box)),
            pids=_understood(self._pids),
            cpu_use=_understood(lambda: self._cpu_use(online, box)),
            own_limits=_understood(lambda: self._own_limits(online)) if own_limits else None,
            pods=_understood(lambda: self._pods.read(pods)),
            disk_limits=_understood(lambda: self._disk_limits(box)),
            cpu_idle=_understood(lambda: self._access.read_if_there(rows.CPU_IDLE, box)) is True,
            work=_understood(lambda: self._work.read(pods)) if counts_work else None,
        )

    def of_box(
        self, box: str, *, own_limits: bool, online: Collection[str] = (), counts_work: bool = False
    ) -> SignalReading:
        """As `read`. `online`: the uids of online's pods."""
        parsed = parse_box(box)
        pods = {uid: _at_kubelet(parsed, uid) for uid in online}
        return self.read(box, own_limits=own_limits, pods=pods, counts_work=counts_work)

    # --- pressure ----------------------------------------------------------------------------------------------------

    def _stall(self, row: KernelFile, online: str) -> Stall | Missing:
        return _understood(lambda: self._totals(row, online))

    def _totals(self, row: KernelFile, online: str) -> Stall | Missing:
        if row.column(self._access.version) is None:
            return Missing(_NO_PRESSURE_V1)
        try:
            totals_s = self._access.read(row, online)
        except CgroupError as error:
            if error.errno in (*GONE, errno.EOPNOTSUPP):
                return Missing(self._why_no_pressure(row, online))
            raise
        return Stall(self._clock.monotonic_s(), totals_s["some"])

    def _why_no_pressure(self, row: KernelFile, online: str) -> str:
        """A kernel without PSI has no such files, or they can't be read. Source: kernel/sched/psi.c."""
        file = self._access.file(row, online)
        if not self._tree.exists(self._access.directory("cpu", online)):
            return f"{file} does not exist: kubelet has not made its cgroup yet"
        if not self._tree.exists(f"{self._proc}/pressure"):
            return self._why_no_psi()
        if self._access.read_if_there(rows.PRESSURE_SWITCH, online) is False:
            return f"{self._access.file(rows.PRESSURE_SWITCH, online)} is 0: write 1 there"
        return f"{file} does not exist, although this kernel has PSI"

    def _why_no_psi(self) -> str:
        try:
            words = self._tree.read(f"{self._proc}/cmdline").split()
        except CgroupError:
            words = []
        for word in words:
            name, _, value = word.partition("=")
            if (name == "psi" and value in _OFF) or (name == "cgroup_disable" and "pressure" in value.split(",")):
                return f"PSI is switched off on the kernel's command line ({word})"
        return "this kernel was built without PSI, or has it off by default: then boot with psi=1"

    def _waiting(self, cpu: Stall | Missing, online: str) -> RunQueue | Missing:
        if isinstance(cpu, Stall):
            self._run_queue.forget()
            return Missing("not needed: pressure is read, which sees all threads")
        return _understood(lambda: self._run_queue.read(online))

    # --- limits of online's own --------------------------------------------------------------------------------------

    def _own_limits(self, online: str) -> OwnLimits:
        """Of pods and of containers, as kubelet limits both. What vanishes amid the reading is left out.

        Source: cgroup-v2.rst, cpu.stat; scheduler/sched-bwc.rst.
        """
        root = self._access.directory("cpu", "")
        directories, complete = self._tree.first_below(root + online, MOST_CGROUPS)
        paths = [directory.removeprefix(root) for directory in directories]
        of = {path: found for path in paths if (found := self._throttling(path)) is not None}
        whole = self._throttling(online)
        return OwnLimits(self._clock.monotonic_s(), of, None if whole is None else whole.usage_s, complete)

    def _throttling(self, path: str) -> Throttling | None:
        """None: the cgroup has gone."""
        stat = self._access.read_if_there(rows.CPU_STAT, path)
        if stat is None:
            return None
        if self._access.version == 1:
            return Throttling(stat.get("throttled_time", 0) / 1e9)
        return Throttling(stat.get("throttled_usec", 0) / 1e6, stat["usage_usec"] / 1e6)

    def _cpu_use(self, online: str, box: str) -> CpuSpent:
        online_s, box_s = (used_s_of(self._access, path) for path in (online, box))
        busy_s, steal_s, cpus = files.busy_and_stolen_s(self._tree.read_often(f"{self._proc}/stat"), TICKS_PER_S)
        return CpuSpent(self._clock.monotonic_s(), busy_s, online_s, box_s, steal_s, cpus)

    # --- memory ------------------------------------------------------------------------------------------------------

    def _room(self) -> MemoryRoom:
        meminfo = self._tree.read_often(f"{self._proc}/meminfo")
        capacity = files.memory_bytes(meminfo, "MemTotal") or 0
        kubelets = capacity - files.node_working_set_bytes(meminfo)
        return MemoryRoom(capacity, files.memory_bytes(meminfo, "MemAvailable"), kubelets)

    def _pids(self) -> PidsRoom:
        """By kubelet's measure. Source: proc(5), loadavg; kubelet, pkg/kubelet/stats/pidlimit."""
        tasks = self._tree.read_often(f"{self._proc}/loadavg").split()[3].partition("/")[2]
        limits = (self._tree.read_often(f"{self._proc}/sys/kernel/{file}") for file in rows.LIMITS[PIDS].node)
        return PidsRoom(int(tasks), min(int(limit) for limit in limits))

    def _memory_stat(self, online: str) -> MemoryStat:
        """On v1, the sums with the children begin with "total_"."""
        stat: Mapping[str, int] = self._access.read(rows.MEMORY_STAT, online)
        if self._access.version == 1:
            stat = {key.removeprefix("total_"): value for key, value in stat.items() if key.startswith("total_")}
        return MemoryStat(self._clock.monotonic_s(), stat, self._access.file(rows.MEMORY_STAT, online))

    # --- disks -------------------------------------------------------------------------------------------------------

    def _disks(self, box: str) -> DiskCounters | Missing:
        found = self._box_v1(box) if self._access.version == 1 else self._box_v2(box)
        if isinstance(found, Missing):
            return found
        node = files.parse_diskstats(self._tree.read(f"{self._proc}/diskstats"))
        return DiskCounters(
            self._clock.monotonic_s(),
            {number: DiskIo(disk.size_bytes, disk.operations) for number, disk in node.items()},
            found,
            {number: disk.name for number, disk in node.items()},
        )

    def _disk_limits(self, box: str) -> Mapping[str, DiskRate | None] | Missing:
        if self._access.version == 1:
            return Missing("cgroup v1 has no limit on disks for all that is in a cgroup")
        held: dict[str, DiskRate | None] | None = self._access.read_if_there(rows.IO_MAX, box)
        if held is None:
            return Missing(
                f"{self._access.file(rows.IO_MAX, box)} does not exist: the io controller is not enabled there"
            )
        return held

    def _box_v2(self, box: str) -> dict[str, DiskIo] | Missing:
        """Source: cgroup-v2.rst, io.stat."""
        stat = self._access.read_if_there(rows.IO_STAT, box)
        if stat is not None:
            return {number: _v2_io(values) for number, values in stat.items()}
        if not self._tree.exists(self._access.directory("cpu", box)):
            return {}
        return Missing(f"{self._access.file(rows.IO_STAT, box)} does not exist: the io controller is not enabled there")

    def _box_v1(self, box: str) -> dict[str, DiskIo] | Missing:
        """Source: blkio-controller.rst. Newer kernels count for a disk only once some cgroup has a limit there."""
        if self._access.mount("blkio") is None:
            return Missing("there is no cgroup v1 mount of blkio")
        for size, operations in ((rows.IO_BYTES, rows.IO_OPERATIONS), (rows.BFQ_BYTES, rows.BFQ_OPERATIONS)):
            if self._access.read(size, ""):
                sizes = self._access.read_if_there(size, box) or {}
                counts = self._access.read_if_there(operations, box) or {}
                return {number: DiskIo(sizes[number], counts.get(number, 0)) for number in sizes}
        return Missing("blkio of cgroup v1 counts no disk on this kernel")


@lru_cache(2 * MOST_PODS)
def _at_kubelet(box: BoxPath, uid: str) -> tuple[str, ...]:
    """Where kubelet's own cgroup of a pod may be."""
    return tuple(path for name in dict.fromkeys(pod_names(uid)) for path in PodParent(box, name).at_kubelet)


def _v2_io(values: dict[str, str]) -> DiskIo:
    def total(*keys: str) -> int:
        return sum(int(values.get(key, 0)) for key in keys)

    return DiskIo(total("rbytes", "wbytes"), total("rios", "wios"))


def _understood(read: Callable[[], T]) -> T | Missing:
    """What was read; why not, also when a file has another form than is known."""
    try:
        return read()
    except CgroupError as error:
        return Missing(str(error))
    except (ValueError, LookupError) as error:
        return Missing(f"a file has another form than is known: {error!r}")
