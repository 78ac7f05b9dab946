"""cgroupspy's controllers of cgroup v1, on an explicit directory, with the files that cgroupspy lacks."""

import functools
import inspect
from typing import Final

from cgroupspy.controllers import (
    BlkIOController,
    Controller,
    CpuAcctController,
    CpuController,
    CpuSetController,
    MemoryController,
)
from cgroupspy.interfaces import FlagFile, IntegerFile
from cgroupspy.nodes import Node

from criproxy.cgroup.tree import Tree

# An absent limit reads as the largest count of pages, 2^63 less one page. Source: mm/page_counter.c.
_NO_LIMIT_BYTES: Final = 1 << 62


class _ByteLimitFile(IntegerFile):  # type: ignore[misc]
    """A memory limit in bytes; None: no limit."""

    def sanitize_get(self, value: str) -> int | None:
        size = int(value)
        return None if size >= _NO_LIMIT_BYTES else size


class _OnTree(Controller):  # type: ignore[misc]
    """Sends cgroupspy's reads and writes through a `Tree`: cgroupspy opens with O_CREAT and loses the file's name."""

    def __init__(self, tree: Tree, directory: str) -> None:
        super().__init__(Node(directory))
        self._tree = tree
        self._directory = directory

    def file(self, attribute: str) -> str:
        """The path of the file behind an attribute."""
        return f"{self._directory}/{_filename(type(self), attribute)}"  # type: ignore[arg-type]

    def has(self, attribute: str) -> bool:
        return self._tree.exists(self.file(attribute))

    def get_property(self, filename: bytes) -> str:
        return self._tree.read(f"{self._directory}/{filename.decode()}")

    def set_property(self, filename: bytes, value: object) -> None:
        self._tree.write(f"{self._directory}/{filename.decode()}", str(value))


@functools.cache
def _filename(controller: type[object], attribute: str) -> str:
    name: bytes = inspect.getattr_static(controller, attribute).filename
    return name.decode()


class BlkIO(_OnTree, BlkIOController):  # type: ignore[misc]
    """`bfq_weight` exists while BFQ is loaded, `weight` with CFQ, which Linux 5.0 has dropped."""

    bfq_weight = IntegerFile("blkio.bfq.weight")


class Cpu(_OnTree, CpuController):  # type: ignore[misc]
    """`idle` exists since Linux 5.15; while it is set, a write of `shares` is EINVAL."""

    idle = FlagFile("cpu.idle")


class CpuAcct(_OnTree, CpuAcctController):  # type: ignore[misc]
    pass


class CpuSet(_OnTree, CpuSetController):  # type: ignore[misc]
    pass


class Memory(_OnTree, MemoryController):  # type: ignore[misc]
    """The memsw files exist with swap accounting only."""

    limit_in_bytes = _ByteLimitFile("memory.limit_in_bytes")
    memsw_limit_in_bytes = _ByteLimitFile("memory.memsw.limit_in_bytes")
