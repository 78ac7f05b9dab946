"""Takes from an offline pod's Linux resources what would lift it above the box or break inside it."""

from collections.abc import Iterator
from typing import Final

from criproxy.model import Call, Change

HIGHEST_OOM_SCORE_ADJ: Final = 1000

_UNIFIED_DROPPED: Final = {
    "cpuset.cpus": "a cpuset would pin offline work to CPUs that online pods need",
    "cpuset.cpus.partition": "a cpuset would pin offline work to CPUs that online pods need",
    "cpuset.mems": "a cpuset would pin offline work to memory nodes that online pods need",
}
"""Entries of `unified` (cgroup v2 files) that say the same as a field below. Source: kernel, cgroup-v2.rst."""


class ResourcesHook:
    """No cpuset, highest oom_score_adj, no CPU quota of its own on cgroup v1; CPU shares and memory limits stay.

    Shares compare siblings only: in the box they divide what the box gets, whose own weight is what keeps online first.

    A quota on cgroup v1: a child's ratio above its parent's is EINVAL, when the child is made and when the box
    shrinks, so no child of the box may carry one. cgroup v2 takes it, and it stays.
    """

    name = "resources"

    def adjust(self, call: Call) -> Iterator[Change]:
        now = call.resources
        if now.oom_score_adj != HIGHEST_OOM_SCORE_ADJ:
            yield Change("oom_score_adj", HIGHEST_OOM_SCORE_ADJ, "offline work is the first to go when memory ends")
        if now.cpuset_cpus:
            yield Change("cpuset_cpus", None, "a cpuset would pin offline work to CPUs that online pods need")
        if now.cpuset_mems:
            yield Change("cpuset_mems", None, "a cpuset would pin offline work to memory nodes that online pods need")
        if not call.child_quota:
            reason = "cgroup v1 refuses a quota above the box's, also when the box shrinks later"
            if now.cpu_quota_us:
                yield Change("cpu_quota", None, reason)
            if now.cpu_period_us:
                yield Change("cpu_period", None, reason)
        for key in now.unified:
            if key in _UNIFIED_DROPPED:
                yield Change("unified", None, _UNIFIED_DROPPED[key], key)
