"""Puts an offline pod under the box, sandbox and containers."""

from collections.abc import Iterator

from criproxy.cgroup.naming import directory_of
from criproxy.model import PLACEMENT_ANNOTATION, STARTS, Adjustment, Operation, PodRequest, Target


class PlacementHook:
    """Sets `cgroup_parent` to the pod's place in the box, and records the place on the sandbox.

    The runtime keeps the annotation with the sandbox, so the placement outlives criproxy without a state file.
    CreateContainer is rewritten too: containerd takes the parent from that request, not from its stored sandbox.
    A slice is named with its path, as kubelet does: containerd 1.7 looks for a sandbox's usage at the parent's very
    words, and one that it does not find costs ListPodSandboxStats the statistics of all pods.
    """

    name = "placement"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        parent = directory_of(request.placement)
        if request.operation is Operation.CREATE_CONTAINER:
            yield Adjustment("cgroup_parent", parent, "a container follows its sandbox")
        elif request.operation in STARTS and request.target is Target.SANDBOX:
            reason = "records the placement in the runtime"
            yield Adjustment("cgroup_parent", parent, "offline pods live in the box")
            yield Adjustment("annotations", request.placement, reason, PLACEMENT_ANNOTATION)
