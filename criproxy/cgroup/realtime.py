"""Which pods have threads that run in real time: before all others, whatever the pod's cgroup says."""

import os
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.driver import checked_pod
from criproxy.cgroup.tree import Tree, if_there

_POLICIES: Final[Mapping[int, str]] = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", 6: "SCHED_DEADLINE"}
"""Source: sched(7); include/uapi/linux/sched.h."""

_RESET_ON_FORK: Final = 0x40000000


class RealtimeThreads(Struct, frozen=True):
    """Looks at every thread in the pods' cgroups: not for the event loop, as each cgroup is read."""

    tree: Tree
    proc: str = "/proc"

    def read(self, placements: Mapping[str, str]) -> dict[str, str]:
        """In words what runs in real time, by sandbox id; `placements`: by sandbox id. Raises CgroupError."""
        mounts = files.parse_mounts(self.tree.read(f"{self.proc}/self/mountinfo"))
        mount, name = (mounts.v1["cpu"], "tasks") if "cpu" in mounts.v1 else (mounts.v2 or "", "cgroup.threads")
        found = {}
        for sandbox_id, placement in placements.items():
            for directory in self.tree.below(mount + checked_pod(placement)[1]):
                if words := self._first(f"{directory}/{name}"):
                    found[sandbox_id] = words
                    break
        return found

    def _first(self, file: str) -> str:
        """The first such thread of a cgroup; "": there is none."""
        threads: list[str] = []
        with if_there():
            threads = self.tree.read(file).split()
        for thread in threads:
            try:
                policy = os.sched_getscheduler(int(thread)) & ~_RESET_ON_FORK
            except ProcessLookupError:
                continue
            if policy in _POLICIES:
                return f"thread {thread} runs under {_POLICIES[policy]}"
        return ""
