"""Reads for how long each online pod waits for CPU (PSI of its cgroup).

One file of each pod, which stays open: to find and open it costs more than to read it, and one that is open is never
of another pod. `MOST_PODS` bounds what that takes.

Where the kernel has no pressure, as v1 has none and v2 has none with psi=0, what waits is known by the pods' threads
(`run_queue`), and a pod's cgroup alone is found here. An older kernel has the files then, too, and each says
EOPNOTSUPP. Source: kernel/sched/psi.c, psi_show; kernel/cgroup/cgroup.c, CFTYPE_PRESSURE.
"""

import errno
from collections.abc import Mapping, Sequence
from typing import Final

from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import CgroupError, checked_path
from criproxy.cgroup.tree import GONE, Tree
from criproxy.concurrency.clock import Clock
from criproxy.model.signals import PodStall, Stall

MOST_PODS: Final = 256
"""Kubelet runs 110 on a node by default."""


class PodStallReader:
    """For one thread."""

    def __init__(self, access: FileAccess, tree: Tree, clock: Clock) -> None:
        self._access, self._tree, self._clock = access, tree, clock
        self._open: dict[str, tuple[str, int | None]] = {}
        """By the pod's uid, its cgroup and the descriptor of its file; None: there is no such file."""

    def read(self, pods: Mapping[str, Sequence[str]]) -> dict[str, PodStall]:
        """By uid. `pods`: where the cgroup of each may be. What is not there, or vanishes, is left out."""
        for uid, (_, fd) in tuple(self._open.items()):
            may_come = fd is None and self._access.version == 2  # by cgroup.pressure
            if uid not in pods or may_come:
                self._close(uid)
        found = {}
        for uid, paths in pods.items():
            if uid in self._open or (len(self._open) < MOST_PODS and self._opens(uid, paths)):
                try:
                    found[uid] = self._read(uid)
                except (
                    CgroupError,
                    ValueError,
                    LookupError,
                ):  # it has gone, or its file has another form than is known
                    self._close(uid)
        return found

    def _opens(self, uid: str, paths: Sequence[str]) -> bool:
        for path in map(checked_path, paths):
            if not self._tree.exists(self._access.directory("cpu", path)):
                continue
            try:
                self._open[uid] = path, self._opened(path)
            except CgroupError:
                return False
            return True
        return False

    def _opened(self, path: str) -> int | None:
        """Raises CgroupError."""
        if self._access.version == 1:
            return None
        try:
            return self._tree.open(self._access.file(rows.CPU_PRESSURE, path))
        except CgroupError as error:
            if error.errno not in (*GONE, errno.EOPNOTSUPP):
                raise
            return None

    def _read(self, uid: str) -> PodStall:
        path, fd = self._open[uid]
        if fd is None:
            return PodStall(path)
        try:
            text = self._tree.read_open(fd, path)
        except CgroupError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return PodStall(path)
        return PodStall(path, Stall(self._clock.monotonic_s(), self._access.value(rows.CPU_PRESSURE, text)["some"]))

    def _close(self, uid: str) -> None:
        _, fd = self._open.pop(uid)
        if fd is not None:
            self._tree.close(fd)
