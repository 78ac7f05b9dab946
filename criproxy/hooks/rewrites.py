"""What is rewritten in an offline pod's requests, a small hook per concern: place, resources, machine, real time."""

from collections.abc import Iterator
from typing import ClassVar, Final

from msgspec import Struct

from criproxy.cgroup.naming import directory_of
from criproxy.hooks.batch import asked_by, of_pod
from criproxy.model import (
    PLACEMENT_ANNOTATION,
    STARTS,
    UNLIMITED,
    Adjustment,
    Operation,
    PodRequest,
    Target,
    Unlimited,
)
from criproxy.model.cpulist import format_cpus, parse_cpus
from criproxy.vocabulary.unboundable import SYS_NICE, may_run_in_real_time

HIGHEST_OOM_SCORE_ADJ: Final = 1000

_UNIFIED_DROPPED: Final = {
    "cpuset.cpus.partition": "a partition would take CPUs away from online pods",
}
"""Entries of `unified` (cgroup v2 files) that an offline pod may not have. Source: kernel, cgroup-v2.rst."""

_MACHINE_PERIOD_US: Final = 100_000
"""Source: kubelet, QuotaPeriod."""


class PlacementHook(Struct, frozen=True):
    """Sets `cgroup_parent` to the pod's place in the box, and records the place on the sandbox.

    The runtime keeps the annotation with the sandbox, so the placement outlives criproxy without a state file.
    CreateContainer is rewritten too: containerd takes the parent from that request, not from its stored sandbox.
    A slice is named with its path, as kubelet does: containerd 1.7 looks for a sandbox's usage at the parent's very
    words, and one that it does not find costs ListPodSandboxStats the statistics of all pods.
    """

    name: ClassVar[str] = "placement"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        parent = directory_of(request.placement)
        if request.operation is Operation.CREATE_CONTAINER:
            yield Adjustment("cgroup_parent", parent, "a container follows its sandbox")
        elif _starts_sandbox(request):
            reason = "records the placement in the runtime"
            yield Adjustment("cgroup_parent", parent, "offline pods live in the box")
            yield Adjustment("annotations", request.placement, reason, PLACEMENT_ANNOTATION)


class ResourcesHook(Struct, frozen=True):
    """Highest oom_score_adj, no CPU quota of its own on cgroup v1; CPU shares and memory limits stay.

    Shares compare siblings only: in the box they divide what the box gets, whose own weight is what keeps online first.

    CPUs and memory nodes are kubelet's to give (static CPU and memory manager): its shared pool, or a container's own.
    They stay, but for CPUs that have become an online pod's alone since: for these, kubelet sends an update later.

    A quota on cgroup v1: a child's ratio above its parent's is EINVAL, when the child is made and when the box
    shrinks, so no child of the box may carry one. cgroup v2 takes it, and it stays (`child_quota`). So does that of a
    sandbox that starts, which goes into no cgroup: see `MachineHook`.
    """

    child_quota: bool
    name: ClassVar[str] = "resources"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        now = request.resources
        if now.oom_score_adj != HIGHEST_OOM_SCORE_ADJ:
            yield Adjustment(
                "oom_score_adj", HIGHEST_OOM_SCORE_ADJ, "an offline pod is the first to go when memory ends"
            )
        if (cpus := _left_of(now.cpuset_cpus, request.cpus)) != now.cpuset_cpus:
            yield Adjustment("cpuset_cpus", cpus, "the other CPUs are online pods' alone by now")
        if not self.child_quota and not _starts_sandbox(request):
            reason = "cgroup v1 refuses a quota above the box's, also when the box shrinks later"
            if now.cpu_quota_us:
                yield Adjustment("cpu_quota", None, reason)
            if now.cpu_period_us:
                yield Adjustment("cpu_period", None, reason)
        for key in now.unified:
            if key in _UNIFIED_DROPPED:
                yield Adjustment("unified", None, _UNIFIED_DROPPED[key], key)


class MachineHook(Struct, frozen=True):
    """Gives a sandbox that starts what its pod asks for in an annotation, where kubelet knows of none.

    Runtimes hand a sandbox's CPU and memory on as annotations alone, by which those of virtual machines size theirs
    (`io.kubernetes.cri.sandbox-cpu-quota`, `-cpu-period` and `-memory`); no cgroup gets them.
    Source: containerd, pkg/cri/annotations; Kata Containers, static_sandbox_resource_mgmt.
    """

    name: ClassVar[str] = "machine"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        if not _starts_sandbox(request):
            return
        try:
            asked = of_pod(asked_by(request.annotations))
        except ValueError:
            return
        now, reason = request.resources, "sizes the machine, where the runtime runs one for the pod; no cgroup gets it"
        if asked.cpu_limit_millicores and now.cpu_quota_us <= 0:
            yield Adjustment("cpu_quota", asked.cpu_limit_millicores * _MACHINE_PERIOD_US // 1000, reason)
            yield Adjustment("cpu_period", _MACHINE_PERIOD_US, reason)
        if asked.memory_bytes and now.memory_limit_bytes <= 0:
            yield Adjustment("memory_limit_in_bytes", asked.memory_bytes, reason)


class RealtimeHook(Struct, frozen=True):
    """Drops CAP_SYS_NICE where a container asks for it, by itself or with all others.

    A thread under SCHED_FIFO, SCHED_RR or SCHED_DEADLINE goes before all others, and neither cpu.idle nor a weight nor
    the quota holds it, unless the kernel has RT_GROUP_SCHED, and that not for SCHED_DEADLINE. A privileged container
    has all capabilities, whatever it drops. Source: sched(7).
    """

    name: ClassVar[str] = "realtime"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        if may_run_in_real_time(request.security.added_capabilities):
            yield Adjustment("drop_capabilities", SYS_NICE, "a realtime thread would run past every limit of the box")


def _starts_sandbox(request: PodRequest) -> bool:
    return request.operation in STARTS and request.target is Target.SANDBOX


def _left_of(asked: str, cpus: frozenset[int] | Unlimited) -> str:
    """Of the requested CPUs, those that the box may run on. What is no list is the runtime's to refuse."""
    try:
        wanted = parse_cpus(asked)
    except ValueError:
        return asked
    return asked if cpus is UNLIMITED or wanted <= cpus else format_cpus(wanted & cpus)
