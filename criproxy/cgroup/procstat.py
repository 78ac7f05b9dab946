"""A process's parent, CPU time and start, as /proc/PID/stat tells them: without a wait for the process itself."""

from pathlib import Path

from msgspec import Struct

_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19
"""Places behind the command's name. Source: proc(5), /proc/pid/stat, fields 4, 14, 15 and 22."""


class ProcessStat(Struct, frozen=True):
    """`cpu_s` is of the process itself, not of its children. `started`: with the pid, it names a process for good."""

    parent: int
    cpu_s: float
    started: int


def parse(text: str, ticks_per_s: int) -> ProcessStat:
    """What /proc/PID/stat says. A command's name may hold anything, brackets too."""
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        parent=int(fields[_PARENT]),
        cpu_s=(int(fields[_USER]) + int(fields[_SYSTEM])) / ticks_per_s,
        started=int(fields[_STARTED]),
    )


def read(proc: Path, pid: int, ticks_per_s: int) -> ProcessStat | None:
    """None: there is no such process. Raises OSError."""
    try:
        return parse((proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"), ticks_per_s)
    except (FileNotFoundError, ProcessLookupError):
        return None
