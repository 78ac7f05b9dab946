"""How much CPU cgroups use between two readings, and what gives them more or less of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from integration.lab.cgroups import version
from integration.lab.usage import Cgroup


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds used since the cgroups were made, at one moment (CLOCK_MONOTONIC)."""

    at_s: float
    cpu_s: Mapping[str, float]

    def cores_since(self, before: Self, name: str) -> float:
        """The mean number of cores used since an earlier reading."""
        passed = self.at_s - before.at_s
        return max(self.cpu_s[name] - before.cpu_s[name], 0.0) / passed if passed > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Meter:
    """Reads the CPU counters of some cgroups, each under a name of its own. "/" is the node."""

    paths: Mapping[str, str]

    def read(self) -> Reading:
        """Raises OSError when a cgroup is gone."""
        return Reading(time.monotonic(), {name: Cgroup(path).cpu_s() for name, path in self.paths.items()})


def cpu_controller() -> str:
    """Under which name /proc/PID/cgroup has the cgroup that counts CPU time: "cpuacct", or "" on v2."""
    return "cpuacct" if version() == 1 else ""


def join(path: str, pid: int) -> None:
    """Have a process take its CPU time from a cgroup."""
    Cgroup(path).file("cpu", "cgroup.procs").write_text(str(pid))
