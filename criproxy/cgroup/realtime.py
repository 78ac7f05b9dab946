"""Which pods have threads that run in real time: before all others, whatever the pod's cgroup says."""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.driver import checked_pod
from criproxy.cgroup.tree import Tree, if_there

_POLICIES: Final[Mapping[int, str]] = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", 6: "SCHED_DEADLINE"}
"""Source: sched(7); include/uapi/linux/sched.h."""

_RESET_ON_FORK: Final = 0x40000000


class RealtimeFound(Struct, frozen=True):
    """`words`: what runs in real time. `left`: how many threads were looked at, of the pods that have more. Both are by
    sandbox id.
    """

    words: dict[str, str]
    left: dict[str, int]


class RealtimeThreads(Struct, frozen=True):
    """Looks at the threads in the pods' cgroups: not for the event loop, as each cgroup is read."""

    tree: Tree
    proc: str = "/proc"

    def read(self, placements: Mapping[str, str], seen: Mapping[str, int], most: int) -> RealtimeFound:
        """Look at `most` threads of the pods in `seen`, in that order, without the first of each pod, as many as were
        seen before. Both mappings are by sandbox id. The pod that it stops at is the last of those that are left.
        Raises CgroupError.
        """
        mounts = files.parse_mounts(self.tree.read(f"{self.proc}/self/mountinfo"))
        mount, name = (mounts.v1["cpu"], "tasks") if "cpu" in mounts.v1 else (mounts.v2 or "", "cgroup.threads")
        found: dict[str, str] = {}
        left = dict(seen)
        for sandbox_id, before in seen.items():
            threads = islice(self._threads(mount + checked_pod(placements[sandbox_id])[1], name), before, None)
            for thread in threads:
                if most == 0:
                    left[sandbox_id] = left.pop(sandbox_id)
                    return RealtimeFound(found, left)
                most -= 1
                left[sandbox_id] += 1
                if policy := _real_time(thread):
                    found[sandbox_id] = f"thread {thread} runs under {policy}"
                    break
            del left[sandbox_id]
        return RealtimeFound(found, left)

    def _threads(self, directory: str, name: str) -> Iterator[int]:
        """Those of a cgroup and of all below it."""
        for cgroup in self.tree.below(directory):
            threads: list[str] = []
            with if_there():
                threads = self.tree.read(f"{cgroup}/{name}").split()
            yield from map(int, threads)


def _real_time(thread: int) -> str:
    """The name of the policy under which it runs in real time; "": it does not, or has ended."""
    try:
        return _POLICIES.get(os.sched_getscheduler(thread) & ~_RESET_ON_FORK, "")
    except ProcessLookupError:
        return ""
