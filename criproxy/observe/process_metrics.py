"""What the kernel says of this process, under the names that all Prometheus clients use. Source: proc(5)."""

import os
import resource
from pathlib import Path
from typing import Final

from criproxy.observe.exposition import Reading, Registry

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def add_process_metrics(registry: Registry) -> None:
    for name, text, kind, read in (
        ("virtual_memory_bytes", "Virtual memory size", "gauge", lambda: _stat(22)),
        ("resident_memory_bytes", "Resident memory size", "gauge", lambda: _stat(23) * _PAGE_BYTES),
        ("start_time_seconds", "Start time since 1970", "gauge", _start_s),
        ("cpu_seconds_total", "User and system CPU time spent", "counter", lambda: (_stat(13) + _stat(14)) / _TICKS),
        ("open_fds", "Open file descriptors", "gauge", lambda: len(os.listdir("/proc/self/fd"))),
        ("max_fds", "Most file descriptors", "gauge", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        Reading(f"process_{name}", text, kind, read, registry=registry)


def _stat(number: int) -> int:
    """A field of /proc/self/stat, counted from 0."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[number - 2])


def _start_s() -> float:
    """The same at each time that it is read."""
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + _stat(21) / _TICKS
