"""What the node has: CPUs that are online and within the root cpuset, and memory. Both may change by hot-plug."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.model import Capacity
from criproxy.model.cpulist import Cpus, parse_cpus

_MEM_TOTAL: Final = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)

_ENOUGH_BYTES: Final = 1 << 16
"""The kernel gives such a file in one read, as far as there is room."""


class CapacityReader(Struct, frozen=True):
    """Reads the capacity from the kernel's files; three or four small reads that never block.

    `cpuset` is the root cpuset's file of effective CPUs (v1: cpuset.effective_cpus, v2: cpuset.cpus.effective), or None
    where there is none. `for_box`: those of some CPUs that the box may run on. Source:
    Documentation/admin-guide/cputopology.rst, cgroup-v2.rst (Cpuset), proc(5).
    """

    cpuset: Path | None
    online: Path = Path("/sys/devices/system/cpu/online")
    meminfo: Path = Path("/proc/meminfo")
    for_box: Callable[[Cpus], Cpus] = lambda cpus: cpus

    def read(self) -> Capacity:
        """Raises OSError, or ValueError naming the file, when there is no capacity to be read."""
        online = _cpus(self.online)
        cpus = online if self.cpuset is None else online & _cpus(self.cpuset)
        total = _MEM_TOTAL.search(_text(self.meminfo))
        if not cpus:
            raise ValueError(f"no CPU is both in {self.online} and in {self.cpuset}")
        if total is None:
            raise ValueError(f"{self.meminfo} has no MemTotal")
        outside_cores = float(len(online) - len(cpus))
        for_box = len(cpus & self.for_box(cpus))
        return Capacity(
            float(len(cpus)), int(total[1]) * 1024, outside_cores, None if for_box == len(cpus) else float(for_box)
        )


def _cpus(file: Path) -> Cpus:
    """The CPUs of a list such as `0-3,8`."""
    text = _text(file).strip()
    try:
        return parse_cpus(text)
    except ValueError as error:
        raise ValueError(f"{file} holds {text!r}, not a list of CPUs") from error


def _text(file: Path) -> str:
    """By system calls alone: this is each tick's, and `Path.read_text` makes twice as many."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _ENOUGH_BYTES).decode()
    finally:
        os.close(fd)
