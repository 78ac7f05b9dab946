"""Where a process is: its /proc/PID/cgroup, and nothing else of /proc/PID, which can wait for a starved process."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from criproxy.cgroup.naming import directory_of
from criproxy.cgroup.worker import Worker

_BOUNDING_V1: Final = ("cpu", "cpuacct", "memory")
_BOUNDING_V2: Final = ("",)
_PIDS: Final = "pids"
"""Not every kernel has this controller of v1."""

_DELETED: Final = " (deleted)"


def astray(cgroups: str, box: str) -> str:
    """Where a process is that is not in the box in each hierarchy that bounds, in words; "": it is.

    `cgroups` is what /proc/PID/cgroup says. Source: cgroups(7), /proc/pid/cgroup.
    """
    paths: dict[str, str] = {}
    for line in cgroups.splitlines():
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
        return next(iter(elsewhere))
    return ", ".join(f"{path} ({' and '.join(controllers)})" for path, controllers in elsewhere.items())


class Whereabouts:
    """Reads /proc/PID/cgroup in a thread of its own: for it, the kernel takes a lock that others can hold for long.

    Source: kernel/cgroup/cgroup.c, proc_cgroup_show (cgroup_mutex).
    """

    def __init__(self, proc: Path = Path("/proc"), *, timeout_s: float = 10.0) -> None:
        self._proc = proc
        self._worker = Worker("cgroup-verifier", timeout_s)

    async def read(self, pids: Collection[int]) -> dict[int, str]:
        """The file of each process that is there. Raises CgroupError when the kernel does not answer."""
        return await self._worker.run("read where processes are", lambda: self._read(tuple(pids))) if pids else {}

    def close(self) -> None:
        self._worker.close()

    def _read(self, pids: Collection[int]) -> dict[int, str]:
        found = {}
        for pid in pids:
            try:
                found[pid] = (self._proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found
