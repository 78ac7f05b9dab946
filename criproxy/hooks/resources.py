"""Takes from an offline pod's Linux resources what would lift it above the box or break inside it."""

from collections.abc import Iterator
from typing import Final

from criproxy.model import UNLIMITED, Adjustment, PodRequest, type_unlimited
from criproxy.model.cpulist import format_cpus, parse_cpus

HIGHEST_OOM_SCORE_ADJ: Final = 1000

_UNIFIED_DROPPED: Final = {
    "cpuset.cpus.partition": "a partition would take CPUs away from online pods",
}
"""Entries of `unified` (cgroup v2 files) that an offline pod may not have. Source: kernel, cgroup-v2.rst."""


class ResourcesHook:
    """Highest oom_score_adj, no CPU quota of its own on cgroup v1; CPU shares and memory limits stay.

    Shares compare siblings only: in the box they divide what the box gets, whose own weight is what keeps online first.

    CPUs and memory nodes are kubelet's to give (static CPU and memory manager): its shared pool, or a container's own.
    They stay, but for CPUs that have become an online pod's alone since: for these, kubelet sends an update later.

    A quota on cgroup v1: a child's ratio above its parent's is EINVAL, when the child is made and when the box
    shrinks, so no child of the box may carry one. cgroup v2 takes it, and it stays.
    """

    name = "resources"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        now = request.resources
        if now.oom_score_adj != HIGHEST_OOM_SCORE_ADJ:
            yield Adjustment(
                "oom_score_adj", HIGHEST_OOM_SCORE_ADJ, "an offline pod is the first to go when memory ends"
            )
        if (cpus := _left_of(now.cpuset_cpus, request.cpus)) != now.cpuset_cpus:
            yield Adjustment("cpuset_cpus", cpus, "the other CPUs are online pods' alone by now")
        if not request.child_quota:
            reason = "cgroup v1 refuses a quota above the box's, also when the box shrinks later"
            if now.cpu_quota_us:
                yield Adjustment("cpu_quota", None, reason)
            if now.cpu_period_us:
                yield Adjustment("cpu_period", None, reason)
        for key in now.unified:
            if key in _UNIFIED_DROPPED:
                yield Adjustment("unified", None, _UNIFIED_DROPPED[key], key)


def _left_of(asked: str, cpus: frozenset[int] | type_unlimited) -> str:
    """Of the CPUs that are asked for, those that the box may run on. What is no list is the runtime's to refuse."""
    try:
        wanted = parse_cpus(asked)
    except ValueError:
        return asked
    return asked if cpus is UNLIMITED or wanted <= cpus else format_cpus(wanted & cpus)
