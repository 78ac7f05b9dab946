"""Where a pod's processes are: found below its shim, so that one outside the pod's cgroups is found too."""

import contextlib
import time
from pathlib import Path

from integration.lab.cgroups import of_process, unkept
from integration.lab.process import POLL_S, all_pids, argv_of, descendants

HELPERS_S = 240
"""A hundred calls that were cut leave as many helpers, which share what CPU the box has."""


def processes_of(sandbox_id: str) -> set[int]:
    """Every process of a running pod: what its shim started, and what became of that.

    While the runtime is at work in the pod, its own helpers are among them.
    """
    return descendants([pid for pid in all_pids() if _is_shim(argv_of(pid), sandbox_id)])


def cgroups_of(sandbox_id: str) -> dict[int, dict[str, str]]:
    """The cgroup, by controller, of each process of `processes_of` that is still there."""
    found = {}
    for pid in processes_of(sandbox_id):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = of_process(pid)
    assert found, f"sandbox {sandbox_id} has no process"
    return found


def strays(sandbox_id: str, cgroup: str) -> list[str]:
    """The processes of a pod that are not below this cgroup in every controller but `unkept`, a line for each."""
    return [
        f"process {pid} ({argv_of(pid)}) is in {path} of {controller or 'cgroup v2'}"
        for pid, paths in cgroups_of(sandbox_id).items()
        for controller, path in paths.items()
        if controller not in unkept() and not path.startswith(f"{cgroup}/")
    ]


def assert_within(sandbox_id: str, cgroup: str) -> None:
    """Every process of a pod is below this cgroup, once the runtime's own helpers have ended.

    Those of a call that was cut off may take a while; what is the pod's own never moves.
    """
    deadline = time.monotonic() + HELPERS_S
    while (found := strays(sandbox_id, cgroup)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    assert not found, "\n".join(found)


def _is_shim(argv: list[str], sandbox_id: str) -> bool:
    return bool(argv) and Path(argv[0]).name.startswith("containerd-shim") and sandbox_id in argv
