"""Reads one cgroup's CPU counter for the event loop: one open, read and close of a file that never blocks."""

import os
from typing import Final

_FIRST_LINE: Final = b"usage_usec "
_ENOUGH_BYTES: Final = 64


def cpu_seconds(file: str) -> float:
    """CPU time from v1's cpuacct.usage (ns) or v2's cpu.stat (its first line, in us). Raises OSError or ValueError.

    Source: Documentation/admin-guide/cgroup-v1/cpuacct.rst, cgroup-v2.rst (cpu.stat).
    """
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _ENOUGH_BYTES)
    finally:
        os.close(fd)
    if data.startswith(_FIRST_LINE):
        return int(data[len(_FIRST_LINE) : data.index(b"\n")]) / 1e6
    return int(data) / 1e9
