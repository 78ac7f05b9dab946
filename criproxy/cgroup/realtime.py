"""Finds threads of offline pods that run in real time: neither weight nor quota of the box holds them."""

import os
from collections.abc import Mapping
from typing import Final

from criproxy.cgroup import files
from criproxy.cgroup.driver import CgroupError, checked_pod
from criproxy.cgroup.tree import GONE, Tree

_POLICIES: Final[Mapping[int, str]] = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", 6: "SCHED_DEADLINE"}
"""Source: sched(7); include/uapi/linux/sched.h."""

_RESET_ON_FORK: Final = 0x40000000


class RealtimeThreads:
    """Looks at every thread in the pods' cgroups: not for the event loop, as each cgroup is read."""

    def __init__(self, tree: Tree, proc: str = "/proc") -> None:
        self._tree = tree
        self._mountinfo = f"{proc}/self/mountinfo"

    def read(self, placements: Mapping[str, str]) -> dict[str, str]:
        """In words what runs in real time, by sandbox id; `placements`: by sandbox id. Raises CgroupError."""
        mounts = files.parse_mounts(self._tree.read(self._mountinfo))
        mount, name = (mounts.v1["cpu"], "tasks") if "cpu" in mounts.v1 else (mounts.v2 or "", "cgroup.threads")
        found = {}
        for sandbox_id, placement in placements.items():
            for directory in self._tree.below(mount + checked_pod(placement)[1]):
                if words := self._first(f"{directory}/{name}"):
                    found[sandbox_id] = words
                    break
        return found

    def _first(self, file: str) -> str:
        """The first such thread of a cgroup; "": there is none."""
        try:
            threads = self._tree.read(file).split()
        except CgroupError as error:
            if error.errno in GONE:
                return ""
            raise
        for thread in threads:
            try:
                policy = os.sched_getscheduler(int(thread)) & ~_RESET_ON_FORK
            except ProcessLookupError:
                continue
            if policy in _POLICIES:
                return f"thread {thread} runs under {_POLICIES[policy]}"
        return ""
