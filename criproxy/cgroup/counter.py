"""Reads CPU counters for the event loop: a system call each, on files that stay open and never block."""

import errno
import os
from typing import Final

from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import checked_path
from criproxy.cgroup.kernel_files import CPU_USAGE
from criproxy.cgroup.naming import parse_box

_FIRST_LINE: Final = b"usage_usec "
_ENOUGH_BYTES: Final = 64


class CpuCounter:
    """One cgroup's: v1's cpuacct.usage (ns) or v2's cpu.stat (its first line, in us).

    Source: Documentation/admin-guide/cgroup-v1/cpuacct.rst, cgroup-v2.rst (cpu.stat).
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._fd = -1

    def seconds(self) -> float:
        """CPU time. Raises OSError or ValueError."""
        try:
            data = self._read()
        except OSError as error:
            self.close()
            if error.errno != errno.ENODEV:
                raise
            data = self._read()  # that cgroup is gone, and another may have its name by now
        if data.startswith(_FIRST_LINE):
            return int(data[len(_FIRST_LINE) : data.index(b"\n")]) / 1e6
        return int(data) / 1e9

    def close(self) -> None:
        """The next look opens the file anew."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bytes:
        if self._fd < 0:
            self._fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._fd, _ENOUGH_BYTES, 0)


class CpuTimes:
    """The CPU time of the node and of its box. `whole`: the node's file counts the box, too, and not what is beside."""

    def __init__(self, node: str, box: str, *, whole: bool) -> None:
        self._node, self._box = CpuCounter(node), CpuCounter(box)
        self._whole = whole

    def read(self) -> tuple[float, float]:
        """Seconds, node first. Raises OSError or ValueError."""
        node_s, box_s = self._node.seconds(), self._box.seconds()
        return node_s if self._whole else node_s + box_s, box_s

    def close(self) -> None:
        self._node.close()
        self._box.close()


def cpu_times(files: FileAccess, box: str) -> CpuTimes:
    """The CPU counters of the node and of the box.

    On v2 the node is kubepods and the box: the kernel only samples the root's own counter (0.4 of 1.1 busy cores were
    seen), while other cgroups are exact. Raises CgroupError.
    """
    node = "" if files.version == 1 else checked_path(parse_box(box).online)
    counters = (files.file(CPU_USAGE, path) for path in (node, checked_path(box)))
    return CpuTimes(*counters, whole=not node)
