"""How much CPU the node, the box and the online pod use, from the kernel's own counters, beside what criproxy says."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from integration.lab.cgroups import hierarchies, version


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
        return Reading(time.monotonic(), {name: cpu_seconds(path) for name, path in self.paths.items()})


def cpu_seconds(path: str) -> float:
    """CPU time used by a cgroup and all below it. Source: cgroup-v1/cpuacct, cgroup-v2 cpu.stat."""
    controller, file = ("cpuacct", "cpuacct.usage") if version() == 1 else ("", "cpu.stat")
    directory = _directory(controller, path)
    text = (directory / file).read_text()
    if file == "cpuacct.usage":
        return int(text) / 1e9
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("usage_usec ")) / 1e6


def join(path: str, pid: int) -> None:
    """Have a process take its CPU time from a cgroup."""
    (_directory("cpu" if version() == 1 else "", path) / "cgroup.procs").write_text(str(pid))


def exists(path: str) -> bool:
    """Whether a cgroup is there."""
    return _directory(cpu_controller(), path).is_dir()


def cpu_controller() -> str:
    """Under which name /proc/PID/cgroup has the cgroup that counts CPU time: "cpuacct", or "" on v2."""
    return "cpuacct" if version() == 1 else ""


def set_shares(path: str, shares: int) -> None:
    """Set a cgroup's CPU weight, given as v1's shares (1024 = one CPU), as the OCI runtimes convert it for v2.

    Source: cgroup v2, cpu.weight; runc, ConvertCPUSharesToCgroupV2Value.
    """
    if version() == 1:
        (_directory("cpu", path) / "cpu.shares").write_text(str(shares))
    else:
        (_directory("", path) / "cpu.weight").write_text(str(1 + (shares - 2) * 9999 // 262142))


def _directory(controller: str, path: str) -> Path:
    return next(one.directory(path) for one in hierarchies() if controller in one.controllers)
