"""What /proc and the cgroups tell of processes, without a wait for the process itself, which may be starved.

Which cgroups a process is in (its proc cgroup), its parent, its CPU time and when it started.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.strays import Stray, cgroups_of, strays
from criproxy.concurrency.worker import Worker


class ProcCgroupReader:
    """Reads /proc/PID/cgroup in a thread of its own: for it, the kernel takes a lock that others can hold for long.

    Source: kernel/cgroup/cgroup.c, proc_cgroup_show (cgroup_mutex).
    """

    def __init__(self, proc: Path = Path("/proc"), *, timeout_s: float = 10.0) -> None:
        self._proc = proc
        self._worker = Worker("cgroup-verifier", timeout_s)

    async def read(self, pids: Collection[int]) -> dict[int, str]:
        """What `cgroups_of` says of each process that is there. Raises StuckError when the kernel does not answer."""
        return await self._worker.run("read the cgroups of processes", lambda: self._read(tuple(pids))) if pids else {}

    async def strays(self, boxes: Mapping[int, str]) -> list[Stray]:
        """As `criproxy.cgroup.strays`. Raises StuckError as `read`, and OSError."""
        return await self._worker.run("look for strays", lambda: strays(self._proc, boxes)) if boxes else []

    def close(self) -> None:
        self._worker.close()

    def _read(self, pids: Collection[int]) -> dict[int, str]:
        found = {pid: cgroups_of(self._proc, pid) for pid in pids}
        return {pid: cgroups for pid, cgroups in found.items() if cgroups}


# --- CPU time --------------------------------------------------------------------------------------------------------

_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19
"""Places behind the command's name. Source: proc(5), /proc/pid/stat, fields 4, 14, 15 and 22."""


class ProcessStat(Struct, frozen=True):
    """`cpu_s` is of the process itself, not of its children. `started`: with the pid, it names a process for good."""

    parent: int
    cpu_s: float
    started: int


def read_stat(proc: Path, pid: int, ticks_per_s: int) -> ProcessStat | None:
    """None: there is no such process. Raises OSError."""
    try:
        text = files.kernel_text((proc / str(pid) / "stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # a command's name may hold anything, brackets too
    return ProcessStat(
        parent=int(fields[_PARENT]),
        cpu_s=(int(fields[_USER]) + int(fields[_SYSTEM])) / ticks_per_s,
        started=int(fields[_STARTED]),
    )
