"""How much CPU pods of the box have used, and for how long they waited for it.

On v2 the kernel counts for how long some thread of a pod waited (PSI). On v1, or where PSI is off, a few threads of
each pod are looked at: from one reading to the next the same ones, as long as the pod has as many.
"""

import errno
from collections.abc import Collection
from typing import Final

from criproxy.cgroup import files as texts
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.cpu_use import used_s_of
from criproxy.cgroup.driver import CgroupError, checked_path
from criproxy.cgroup.run_queue import ENDED, threads_in
from criproxy.cgroup.tree import GONE, if_there
from criproxy.model.signals import PodCpuTimes

MOST_THREADS: Final = 8
"""Of one pod, of which the one that waits most counts."""

MOST_CGROUPS: Final = 16
"""Of one pod: its containers."""

_LIST_BYTES: Final = 1 << 14
"""How much of a cgroup's list of threads is read, which is about 2,000 of them."""

_NO_PRESSURE: Final = (*GONE, errno.EOPNOTSUPP)


def pods_cpu(files: FileAccess, pods: Collection[str], proc: str = "/proc") -> dict[str, PodCpuTimes]:
    """Of those pods of the box (paths) that are there. Raises CgroupError."""
    found = {}
    for pod in pods:
        with if_there():
            path = checked_path(pod)
            found[pod] = PodCpuTimes(used_s_of(files, path), _waited_s(files, path, proc))
    return found


def _waited_s(files: FileAccess, path: str, proc: str) -> dict[int, float]:
    if rows.CPU_PRESSURE.column(files.version) is not None:
        try:
            return {0: files.read(rows.CPU_PRESSURE, path)["some"]}
        except CgroupError as error:
            if error.errno not in _NO_PRESSURE:
                raise
    return _threads_waited_s(files, path, proc)


def _threads_waited_s(files: FileAccess, path: str, proc: str) -> dict[int, float]:
    """{}: this kernel does not count it, or the pod has no thread."""
    tree, top = files.tree, files.directory("cpu", path)
    containers, _ = tree.first_below(top, MOST_CGROUPS)
    threads = sorted(tid for cgroup in (top, *containers) for tid in threads_in(files, cgroup, _LIST_BYTES))
    stride = -(-len(threads) // MOST_THREADS) or 1
    found = {}
    for tid in threads[::stride]:
        try:
            times = texts.parse_schedstat(tree.read(f"{proc}/{tid}/schedstat"))
        except CgroupError as error:
            if error.errno not in ENDED:
                raise
            continue
        if times is not None:
            found[tid] = times[1]
    return found
