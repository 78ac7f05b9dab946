"""A systemd that makes slices in the fake kernel, writes there what it was told, and forgets nothing.

A scope is somebody else's: see `FakeSystemd.scope`.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.kernel_files import INFINITY, Properties, PropertyValue
from criproxy.cgroup.naming import directory_of
from criproxy.cgroup.systemd.units import INVALID_ARGS, SystemdUnits, UnitError
from tests.fakes.kernel import FakeKernel

_V1_HIERARCHIES = ("cpu,cpuacct", "memory", "pids", "systemd")


class FakeSystemd(SystemdUnits):
    """`away` fails every call; `old` does not know CPUWeight=idle; `waited` tells that it had to reclaim."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.units: dict[str, dict[str, PropertyValue]] = {}
        self._scopes: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.away = self.old = self.waited = self.stubborn = False
        if kernel.version == 2:
            kernel.write(f"{kernel.root}/cg/cgroup.subtree_control", "+cpu +io +memory +pids")

    def scope(self, path: str) -> None:
        """The runtime has made this cgroup (below the hierarchy's root) as a scope."""
        unit = path.rpartition("/")[2]
        self._scopes[unit] = path
        self.units[unit] = {}

    def start(self, unit: str, properties: Properties) -> None:
        self._asked("start", unit, properties)
        self.units.setdefault(unit, {}).update(properties)
        for directory in self._directories(unit):
            self._make(directory)
        self.reset(unit)

    def set(self, unit: str, properties: Properties) -> None:
        self._asked("set", unit, properties)
        self.units[unit].update(properties)
        self.reset(unit)

    def stop(self, unit: str) -> bool:
        self._asked("stop", unit, {})
        if self.stubborn:
            return False
        self.units.pop(unit, None)
        for directory in self._directories(unit):
            assert not self.kernel.processes(directory), f"{unit} is stopped, and with it what runs there"
            self.kernel.remove(directory)
        return True

    def reset(self, unit: str) -> None:
        """Write all that the unit's properties say, as at a reload or when a first pod comes."""
        told = self.units[unit]
        if self.kernel.version == 2:
            self._write_v2(self._directories(unit)[-1], told)
        else:
            self._write_v1(self._path(unit), told)

    def by_hand(self, unit: str, **properties: PropertyValue) -> None:
        """Somebody else's set-property."""
        self.units[unit].update(properties)
        self.reset(unit)

    def _asked(self, name: str, unit: str, properties: Properties) -> None:
        self.calls.append((name, unit))
        if self.away:
            raise UnitError(f"systemd was asked for {unit}: no answer")
        if self.old and properties.get("CPUWeight") == 0:
            raise UnitError("systemd refused it", INVALID_ARGS)

    def _directories(self, unit: str) -> list[str]:
        roots = ["cg"] if self.kernel.version == 2 else _V1_HIERARCHIES
        return [f"{self.kernel.root}/{root}{self._path(unit)}" for root in roots]

    def _path(self, unit: str) -> str:
        return self._scopes.get(unit) or directory_of(unit)

    def _make(self, directory: str) -> None:
        missing = [Path(directory)]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for path in reversed(missing):
            self.kernel.mkdir(str(path))
            if self.kernel.version == 2:
                self.kernel.write(f"{path}/cgroup.subtree_control", "+cpu +io +memory +pids")

    def _write_v2(self, directory: str, told: Properties) -> None:
        self._write(directory, "cpu.idle", str(int(told.get("CPUWeight") == 0)))
        if told.get("CPUWeight"):
            self._write(directory, "cpu.weight", str(told["CPUWeight"]))
        self._write(directory, "io.weight", f"default {int(told.get('IOWeight', 100))}")
        if isinstance(mask := told.get("AllowedCPUs"), bytes):  # so the controller is on
            bits = int.from_bytes(mask, "little")
            cpus = ",".join(str(cpu) for cpu in range(bits.bit_length()) if bits >> cpu & 1)
            Path(directory, "cpuset.cpus").touch()
            self._write(directory, "cpuset.cpus", cpus or "\n")
        quota = told.get("CPUQuotaPerSecUSec", INFINITY)
        assert isinstance(quota, int)
        self._write(directory, "cpu.max", f"{'max' if quota == INFINITY else quota // 10} 100000")
        for name, file in (
            ("MemoryHigh", "memory.high"),
            ("MemoryMax", "memory.max"),
            ("MemorySwapMax", "memory.swap.max"),
            ("TasksMax", "pids.max"),
        ):
            size = told.get(name, INFINITY)
            assert isinstance(size, int)
            if name in ("MemoryHigh", "MemoryMax"):
                self.waited |= size < int(self.kernel.read(f"{directory}/memory.current"))
            self._write(directory, file, "max" if size == INFINITY else str(size))
        self._write(directory, "memory.oom.group", "0")  # its OOMPolicy of a unit that is delegated, and of a slice
        self._write(directory, "memory.low", "max" if told.get("MemoryLow", 0) == INFINITY else "0")

    def _write_v1(self, path: str, told: Properties) -> None:
        quota, size = told.get("CPUQuotaPerSecUSec", INFINITY), told.get("MemoryMax", INFINITY)
        assert isinstance(quota, int)
        assert isinstance(size, int)
        cpu, memory = f"{self.kernel.root}/cpu,cpuacct{path}", f"{self.kernel.root}/memory{path}"
        self._write(cpu, "cpu.shares", str(told.get("CPUShares", 1024)))
        self._write(cpu, "cpu.cfs_quota_us", "-1" if quota == INFINITY else str(quota // 10))
        tasks = told.get("TasksMax", INFINITY)
        self._write(f"{self.kernel.root}/pids{path}", "pids.max", "max" if tasks == INFINITY else str(tasks))
        self.waited |= size < int(self.kernel.read(f"{memory}/memory.usage_in_bytes"))
        self._write(memory, "memory.limit_in_bytes", "-1" if size == INFINITY else str(size))

    def _write(self, directory: str, file: str, value: str) -> None:
        """A value that the kernel refuses is logged, and no more."""
        if os.path.exists(f"{directory}/{file}"):
            try:
                self.kernel.write(f"{directory}/{file}", value)
            except CgroupError as error:
                assert error.errno in (errno.EINVAL, errno.EBUSY, errno.ENOSPC)


def names(calls: Iterable[tuple[str, str]]) -> list[str]:
    return [name for name, _ in calls]
