"""Processes of a container that left its box, one by one: all that run for it are looked at in one pass over /proc.

Whose process one is, its parents and its namespace of process ids say. Orphans of that namespace are children of the
container's first process, so that all that was started in the container descends from it, wherever it went. What a
runtime starts in there (exec, probes) descends from the container's shim, and is deeper in namespaces than it.

        containerd-shim              namespaces 1
        ├── first process            namespaces 2     all below it
        ├── exec'd                   namespaces 2     below the shim, and deeper
        └── runc                     namespaces 1     the runtime's own

Both can be read of any process without rights over it, as what says who shares a namespace (/proc/PID/ns) can't. What a
pod in the node's own namespace of process ids leaves behind is the node's child, and not seen.

A process whose first thread has ended is a zombie to all appearances while its other threads run on: it is where they
are (`cgroups_of`).
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.naming import directory_of

_BOUNDING_V1: Final = ("cpu", "cpuacct", "memory")
_BOUNDING_V2: Final = ("",)
_PIDS: Final = "pids"
"""Not every kernel has this controller of v1."""

_DELETED: Final = " (deleted)"

_SHIMS: Final = frozenset({b"containerd-shim", b"conmon"})
"""Names of processes, as the kernel cuts them. A shim of containerd's is one pod's, a conmon one container's."""

_ENDED: Final = frozenset({b"Z", b"X"})
"""States: a zombie, and dead."""

_FLAGS: Final = 6
_STARTED: Final = 19
"""Behind the command's name. Source: proc(5), /proc/pid/stat, fields 9 and 22."""

_EXITING: Final = 0x4
"""Among the flags: it has begun to end. Source: kernel, include/linux/sched.h, PF_EXITING."""


def astray(cgroups: str, box: str) -> str:
    """Where a process is that is not in the box in each hierarchy that bounds, in words; "": it is.

    `cgroups` is what /proc/PID/cgroup says. Source: cgroups(7), /proc/pid/cgroup.
    """
    paths: dict[str, str] = {}
    for line in files.lines_of(cgroups):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.removesuffix(_DELETED))
    within = f"{directory_of(box)}/"
    elsewhere: dict[str, list[str]] = {}
    bounding = list(_BOUNDING_V1 if _BOUNDING_V1[0] in paths else _BOUNDING_V2)
    if _PIDS in paths:
        bounding.append(_PIDS)
    for controller in bounding:
        path = paths.get(controller, "no cgroup")
        if not path.startswith(within):
            elsewhere.setdefault(path, []).append(controller)
    if list(elsewhere.values()) == [bounding]:
        words = next(iter(elsewhere))
    else:
        words = ", ".join(f"{path} ({' and '.join(controllers)})" for path, controllers in elsewhere.items())
    return words.encode(errors="surrogateescape").decode(errors="backslashreplace")  # a path may be no UTF-8


_AT_ONCE_BYTES: Final = 64 * 1024

_DEEPEST: Final = 33
"""Namespaces of process ids: the node's, and 32 below each other. Source: pid_namespaces(7)."""


class Stray(Struct, frozen=True):
    """A process of the container whose first process is `first`; with `started`, its number is its own for good.

    `entered`: it was not made in the container, but by the runtime, which puts what it executes there into the
    namespaces a moment before the cgroup. Source: opencontainers/runc, libcontainer/process_linux.go.
    """

    first: int
    pid: int
    started: int
    where: str
    entered: bool = False


class _SeenProcess(Struct, frozen=True):
    name: bytes
    state: bytes
    parent: int
    started: int


def strays(proc: Path, boxes: Mapping[int, str]) -> list[Stray]:
    """Those of these containers, whose boxes are by the number of their first processes. Raises OSError."""
    processes = _processes(proc)
    children: dict[int, list[int]] = defaultdict(list)
    for pid, one in processes.items():
        children[one.parent].append(pid)
    found = []
    for first, pid, entered in _of_containers(proc, processes, children, boxes):
        one = processes[pid]
        cgroups = _cgroups_of_threads(proc, pid) if one.state in _ENDED else cgroups_of(proc, pid)
        if cgroups and (where := astray(cgroups, boxes[first])):
            found.append(Stray(first, pid, one.started, where, entered))
    return found


def _of_containers(
    proc: Path, processes: Mapping[int, _SeenProcess], children: Mapping[int, Sequence[int]], boxes: Mapping[int, str]
) -> Iterator[tuple[int, int, bool]]:
    """All but the first processes themselves, each with the first one of a container of its pod, and if it entered."""
    shims: dict[int, int] = {}
    for first in boxes.keys() & processes.keys():
        cgroups = cgroups_of(proc, first)
        if cgroups and astray(cgroups, boxes[first]):
            continue  # it is not what it was: its number is another's by now, or it was moved
        yield from ((first, pid, False) for pid in _below(first, children, boxes))
        if (shim := processes.get(processes[first].parent)) is not None and shim.name in _SHIMS:
            shims[processes[first].parent] = first
    for shim_pid, first in shims.items():
        below = tuple(_below(shim_pid, children, boxes))
        depths = {pid: _depth(proc, pid) for pid in (shim_pid, *below)}
        inside = {pid for pid in below if depths[pid] > depths[shim_pid]}
        yield from ((first, pid, processes[pid].parent not in inside) for pid in below if pid in inside)


def _below(pid: int, children: Mapping[int, Sequence[int]], apart: Mapping[int, str]) -> Iterator[int]:
    """What descends from it, but for those `apart`, which are looked at for themselves."""
    waiting = [*children.get(pid, ())]
    while waiting:
        one = waiting.pop()
        if one not in apart:
            yield one
            waiting += children.get(one, ())


def _processes(proc: Path) -> dict[int, _SeenProcess]:
    found = {}
    for entry in os.listdir(proc):
        if entry.isdecimal() and (data := _read(proc, entry, "stat")):
            head, _, rest = data.rpartition(b")")  # a name may hold anything, brackets too
            fields = rest.split(None, _STARTED + 1)
            found[int(entry)] = _SeenProcess(head.partition(b"(")[2], fields[0], int(fields[1]), int(fields[_STARTED]))
    return found


def _depth(proc: Path, pid: int) -> int:
    """In how many namespaces of process ids it has a number; 0: it has ended. One that does not show it is deepest."""
    status = _read(proc, str(pid), "status")
    _, shown, rest = status.partition(b"\nNSpid:")
    if not shown:
        return _DEEPEST if status else 0
    return len(rest.partition(b"\n")[0].split())


def cgroups_of(proc: Path, pid: int) -> str:
    """What /proc/PID/cgroup says of a process, or of a thread of it that lives; "": it has ended. Raises OSError.

    On v1, the kernel shows a thread that has ended in the root of every hierarchy, also the first one of a process that
    runs on. Source: kernel/cgroup/cgroup.c, proc_cgroup_show (PF_EXITING).
    """
    cgroups = files.kernel_text(_read(proc, str(pid), "cgroup"))
    return _cgroups_of_threads(proc, pid) if _is_in_roots(cgroups) and _has_ended(proc, str(pid)) else cgroups


def _is_in_roots(cgroups: str) -> bool:
    """Of all hierarchies of v1, of which there is one at least."""
    lines = (line.split(":", 2) for line in files.lines_of(cgroups))
    paths = {path for _, controllers, path in lines if controllers}
    return paths == {"/"}


def _cgroups_of_threads(proc: Path, pid: int) -> str:
    """Those of a thread that has not ended; "": there is none."""
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    living = (f"{pid}/task/{tid}" for tid in threads if not _has_ended(proc, f"{pid}/task/{tid}"))
    found = (files.kernel_text(_read(proc, thread, "cgroup")) for thread in living)
    return next((cgroups for cgroups in found if cgroups), "")


def _has_ended(proc: Path, thread: str) -> bool:
    """Whether a process, or a thread of one (`PID/task/TID`), has ended or begun to."""
    fields = _read(proc, thread, "stat").rpartition(b")")[2].split(None, _FLAGS + 1)
    return not fields or fields[0] in _ENDED or bool(int(fields[_FLAGS]) & _EXITING)


def _read(proc: Path, pid: str, name: str) -> bytes:
    """b"" where the process has ended. In few steps, as there may be thousands of them."""
    try:
        fd = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY)
        try:
            data = part = os.read(fd, _AT_ONCE_BYTES)
            while len(part) == _AT_ONCE_BYTES:  # a process of many groups has a status of up to 720 KB
                part = os.read(fd, _AT_ONCE_BYTES)
                data += part
            return data
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return b""
