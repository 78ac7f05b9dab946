"""What the kernel counts: CPU time of a cgroup and of the machine, throttling, memory. On cgroup v1 and v2."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from integration.lab.cgroups import hierarchies, version

CPUS = len(os.sched_getaffinity(0))
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup's files. `path` as in a cgroup_parent; methods raise OSError when it is not there."""

    path: str

    def cpu_s(self) -> float:
        """CPU time used by the cgroup and all below it."""
        if version() == 1:
            return int(self._read("cpuacct", "cpuacct.usage")) / 1e9
        return self._stat("cpu.stat")["usage_usec"] / 1e6

    def quota_cores(self) -> float | None:
        """The CPU quota, as a number of cores; None: there is none."""
        if version() == 1:
            quota_us = int(self._read("cpu", "cpu.cfs_quota_us"))
            return quota_us / int(self._read("cpu", "cpu.cfs_period_us")) if quota_us > 0 else None
        quota, period_us = self._read("cpu", "cpu.max").split()
        return None if quota == "max" else int(quota) / int(period_us)

    def periods(self) -> tuple[int, int]:
        """The CPU bandwidth's periods that had a task, and those in which the quota was used up."""
        stat = self._stat("cpu.stat")
        return stat["nr_periods"], stat["nr_throttled"]

    def favour(self) -> None:
        """Give it the highest weight among its siblings: the machine's other work hardly counts beside it."""
        self.either("cpu.shares", "cpu.weight").write_text("262144" if version() == 1 else "10000")

    def memory_limit_bytes(self) -> int:
        name = "memory.limit_in_bytes" if version() == 1 else "memory.max"
        return int(self._read("memory", name))

    def memory_high_bytes(self) -> int | None:
        """What the cgroup is reclaimed to, below its limit; None: nothing. On v2 only."""
        high = self._read("memory", "memory.high").strip()
        return None if high == "max" else int(high)

    def memory_bytes(self) -> int:
        """The memory that the cgroup and all below it have now."""
        return int(self._read("memory", "memory.usage_in_bytes" if version() == 1 else "memory.current"))

    def memory_peak_bytes(self) -> int:
        """The most memory that the cgroup and all below it had at once. On v2 since Linux 5.19."""
        name = "memory.max_usage_in_bytes" if version() == 1 else "memory.peak"
        return int(self._read("memory", name))

    def lift_quota(self) -> None:
        """Take the CPU quota away, as somebody else might."""
        name, unlimited = ("cpu.cfs_quota_us", "-1") if version() == 1 else ("cpu.max", "max")
        self.file("cpu", name).write_text(unlimited)

    def exists(self) -> bool:
        return self._directory("cpu").is_dir()

    def file(self, controller: str, name: str) -> Path:
        """A file of the cgroup, in the hierarchy of the controller (of v1, or v2 as a whole)."""
        return self._directory(controller) / name

    def either(self, v1: str, v2: str) -> Path:
        """A file of the cgroup: `v1` in its controller's hierarchy, or `v2`."""
        return self.file(v1.partition(".")[0], v1 if version() == 1 else v2)

    def _directory(self, controller: str) -> Path:
        name = controller if version() == 1 else ""
        return next(one.directory(self.path) for one in hierarchies() if name in one.controllers)

    def _read(self, controller: str, name: str) -> str:
        return (self._directory(controller) / name).read_text()

    def _stat(self, name: str) -> dict[str, int]:
        return {key: int(value) for key, value in (line.split() for line in self._read("cpu", name).splitlines())}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's CPU time since boot, in s; `steal_s` went to other machines on the same host."""

    at_s: float
    busy_s: float
    idle_s: float
    steal_s: float

    @staticmethod
    def read() -> "Machine":
        """Source: proc_stat(5); guest time is in user time too."""
        line = Path("/proc/stat").read_text().partition("\n")[0]
        user, nice, system, idle, iowait, irq, softirq, steal = (int(field) / _TICKS for field in line.split()[1:9])
        busy_s = user + nice + system + irq + softirq
        return Machine(time.monotonic(), busy_s, idle + iowait, steal)


def busy_loops(count: int = CPUS) -> tuple[str, ...]:
    """A container's command: so many loops that are never idle."""
    return (
        "sh",
        "-c",
        f"n=1; while [ $n -lt {count} ]; do (while :; do :; done) & n=$((n + 1)); done; while :; do :; done",
    )
