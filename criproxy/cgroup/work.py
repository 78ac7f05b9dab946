"""Counts the cycles and instructions of online pods, by the processor's own counters (perf_event_open).

Each pod takes a pair of counters on each CPU, which the kernel switches with the pod's threads. `MOST_PAIRS` bounds
what that costs, and no more than half of the descriptors that this process may have are theirs: with none left, no call
of kubelet's would be taken, and no limit written. Pods beyond that are not counted. Where there are no such counters
(most virtual machines have none), or they are not permitted, it is said why.

Source: perf_event_open(2), PERF_FLAG_PID_CGROUP, PERF_FORMAT_GROUP; include/uapi/linux/perf_event.h.
"""

import contextlib
import errno
import os
import resource
import struct
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import checked_path
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Clock
from criproxy.model.cpulist import parse_cpus
from criproxy.model.signals import Missing, Work, WorkReading

MOST_PAIRS: Final = 512
"""A read of each takes some microseconds: 512 in a second cost about 0.3 % of a core."""

_SYSCALLS: Final[Mapping[str, int]] = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQ")
"""perf_event_attr up to config1 (PERF_ATTR_SIZE_VER0)."""
_READ_FORMAT: Final = 1 << 3
_PID_CGROUP, _CLOEXEC = 1 << 2, 1 << 3
_CYCLES, _INSTRUCTIONS = 0, 1
_GROUP: Final = struct.Struct("=QQQ")
"""How many there are, and the values."""

_ABSENT: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL)
_DENIED: Final = (errno.EPERM, errno.EACCES)

NO_COUNTERS: Final = (
    "this machine's processor counts no cycles for us: a virtual machine has such counters only where its host passes "
    "them on"
)
DENIED: Final = (
    "perf_event_open is not permitted: add CapabilityBoundingSet=CAP_PERFMON and SystemCallFilter=perf_event_open to "
    "criproxy.service, see docs/harm.md, Cycles per instruction"
)


def most_pairs() -> int:
    """How many there may be now."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_PAIRS if descriptors == resource.RLIM_INFINITY else min(MOST_PAIRS, descriptors // 2 // 2)


class ProcessorCounters(Protocol):
    """The system call."""

    def open(self, cgroup: int, cpu: int) -> tuple[int, int]:
        """Descriptors of a pair of counters for a cgroup (a directory's descriptor). Raises OSError."""

    def read(self, pair: tuple[int, int]) -> Work:
        """What was counted. Raises OSError."""

    def close(self, pair: tuple[int, int]) -> None: ...


class KernelCounters:
    """`ProcessorCounters` of the kernel. Cycles and instructions are one group: the kernel counts both or none."""

    def open(self, cgroup: int, cpu: int) -> tuple[int, int]:
        leader = self._open(_CYCLES, cgroup, cpu, -1)
        try:
            return leader, self._open(_INSTRUCTIONS, cgroup, cpu, leader)
        except OSError:
            os.close(leader)
            raise

    def _open(self, event: int, cgroup: int, cpu: int, leader: int) -> int:
        import ctypes  # only who asks for it needs it

        number = _SYSCALLS.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        attributes = _ATTRIBUTES.pack(0, _ATTRIBUTES.size, event, 0, 0, _READ_FORMAT, 0, 0, 0, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        flags = ctypes.c_ulong(_PID_CGROUP | _CLOEXEC)
        found = int(libc.syscall(ctypes.c_long(number), attributes, cgroup, cpu, leader, flags))
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return found

    def read(self, pair: tuple[int, int]) -> Work:
        _, cycles, instructions = _GROUP.unpack(os.read(pair[0], _GROUP.size))
        return Work(cycles, instructions)

    def close(self, pair: tuple[int, int]) -> None:
        for descriptor in pair:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class WorkReader:
    """For one thread."""

    def __init__(
        self,
        access: FileAccess,
        tree: Tree,
        clock: Clock,
        counters: ProcessorCounters | None = None,
        online: str = "/sys/devices/system/cpu/online",
    ) -> None:
        self._access = access
        self._tree = tree
        self._counters = counters or KernelCounters()
        self._clock = clock
        self._online = online
        self._cpus: frozenset[int] = frozenset()
        self._open: dict[str, list[tuple[int, int]]] = {}

    def read(self, pods: Mapping[str, Sequence[str]]) -> WorkReading | Missing:
        """What each pod has done, by its uid; `pods`: where the cgroup of each may be. Raises CgroupError."""
        self._keep(pods)
        try:
            self._begin(pods)
            return WorkReading(self._clock.monotonic_s(), {uid: self._sum(pairs) for uid, pairs in self._open.items()})
        except OSError as error:
            self.stop()
            if error.errno in _ABSENT:
                return Missing(NO_COUNTERS)
            return Missing(DENIED if error.errno in _DENIED else f"perf_event_open failed: {error.strerror}")

    def stop(self) -> None:
        """Count nothing any more."""
        self._keep({})

    def _keep(self, pods: Mapping[str, Sequence[str]]) -> None:
        """Count only these on; none, when other CPUs are there by now."""
        cpus = parse_cpus(self._tree.read(self._online)) if pods else frozenset()
        for uid in [uid for uid in self._open if uid not in pods or cpus != self._cpus]:
            for pair in self._open.pop(uid):
                self._counters.close(pair)
        self._cpus = cpus

    def _begin(self, pods: Mapping[str, Sequence[str]]) -> None:
        for uid in sorted(pods.keys() - self._open.keys()):
            if (len(self._open) + 1) * len(self._cpus) > most_pairs():
                return
            if (cgroup := self._directory(pods[uid])) is not None:
                self._begin_one(uid, cgroup)

    def _begin_one(self, uid: str, directory: str) -> None:
        try:
            cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        pairs = self._open[uid] = []
        try:
            for cpu in sorted(self._cpus):
                pairs.append(self._counters.open(cgroup, cpu))
        finally:
            os.close(cgroup)

    def _directory(self, paths: Sequence[str]) -> str | None:
        for path in paths:
            directory = self._access.directory("perf_event", checked_path(path))
            if self._tree.exists(directory):
                return directory
        return None

    def _sum(self, pairs: Sequence[tuple[int, int]]) -> Work:
        counted = [self._counters.read(pair) for pair in pairs]
        return Work(sum(one.cycles for one in counted), sum(one.instructions for one in counted))
