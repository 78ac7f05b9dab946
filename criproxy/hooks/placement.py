"""Puts an offline pod under the box, sandbox and containers."""

from collections.abc import Iterator

from criproxy.cgroup.naming import directory_of
from criproxy.model import PLACEMENT_ANNOTATION, Call, Change, Operation, Target


class PlacementHook:
    """Sets `cgroup_parent` to the pod's place in the box, and records the place on the sandbox.

    The runtime keeps the annotation with the sandbox, so the placement outlives criproxy without a state file.
    CreateContainer is rewritten too: containerd takes the parent from that request, not from its stored sandbox.
    A slice is named with its path, as kubelet does: containerd 1.7 looks for a sandbox's usage at the parent's very
    words, and one that it does not find costs ListPodSandboxStats the statistics of all pods.
    """

    name = "placement"

    def adjust(self, call: Call) -> Iterator[Change]:
        if call.operation in (Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD) and call.target is Target.SANDBOX:
            yield Change("cgroup_parent", directory_of(call.placement), "offline pods live in the box")
            yield Change("annotations", call.placement, "records the placement in the runtime", PLACEMENT_ANNOTATION)
        elif call.operation is Operation.CREATE_CONTAINER:
            yield Change("cgroup_parent", directory_of(call.placement), "a container follows its sandbox")
