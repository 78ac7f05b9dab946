"""`criproxy explain`: what criproxy would do to a pod, and why, from its manifest alone."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from criproxy.cgroup.naming import BoxPath, parse_kubelet_parent
from criproxy.commands.explain.manifest import PLACEHOLDER_UID, Manifest
from criproxy.hooks import Chain
from criproxy.hooks.offline import OfflineRules, is_static_system_pod
from criproxy.model import Adjustment, Operation, PodRequest, Resources, Target
from criproxy.observe.status_text import printable

_MAX_CELL = 72


class Node(Struct, frozen=True):
    """What an explanation needs to know of the node. `child_quota`: see model.PodRequest.

    `boxes`: the one beside kubelet's cgroups, or one for each cgroup driver that kubelet may have; `origin` says how it
    is known, "": it is not.
    """

    enabled: bool
    rules: OfflineRules
    chain: Chain
    memory_bytes: int
    child_quota: bool
    boxes: tuple[BoxPath, ...]
    origin: str


class Explanation(Struct, frozen=True):
    """What happens to a pod. `why` None: it is online. `refused` says why it can't start, `changes` what changes."""

    manifest: Manifest
    why: str | None
    refused: str | None
    changes: tuple[tuple[PodRequest, tuple[Adjustment, ...]], ...]


def explain(manifest: Manifest, node: Node) -> tuple[Explanation, ...]:
    """The fate of a pod on a node whose switch is on, for each of its boxes."""
    return tuple(_explain(manifest.beside(box), node) for box in node.boxes)


def _explain(manifest: Manifest, node: Node) -> Explanation:
    pod = manifest.pod
    why = node.rules.why(pod)
    if why is None:
        return Explanation(manifest, None, None, ())
    try:
        placement = parse_kubelet_parent(pod.cgroup_parent).in_box
    except ValueError as error:
        return Explanation(manifest, why, str(error), ())
    calls = _calls(manifest, node, placement)
    return Explanation(manifest, why, None, tuple((call, node.chain.adjust(call)) for call in calls))


def render(explanations: Sequence[Explanation], node: Node) -> str:
    """What `explain` found, as text for a terminal, newline at the end."""
    return "".join(f"{printable(line)}\n" for line in _lines(explanations, node))


def _calls(manifest: Manifest, node: Node, placement: str) -> Iterator[PodRequest]:
    ref = manifest.pod.ref
    sandbox = manifest.sandbox_resources()
    yield PodRequest(Operation.RUN_POD_SANDBOX, Target.SANDBOX, ref, placement, sandbox, node.child_quota)
    for container in manifest.containers:
        resources = manifest.container_resources(container, node.memory_bytes)
        target, name, added = Target.CONTAINER, container.name, container.added_capabilities
        yield PodRequest(Operation.CREATE_CONTAINER, target, ref, placement, resources, node.child_quota, name, added)


def _lines(explanations: Sequence[Explanation], node: Node) -> Iterator[str]:
    explanation = explanations[0]
    manifest = explanation.manifest
    pod = manifest.pod
    yield f"pod            {pod.ref}"
    yield f"QoS class      {manifest.qos}"
    yield from _parents(explanations, node)
    if pod.ref.uid == PLACEHOLDER_UID:
        yield f"               the manifest has no uid yet: {PLACEHOLDER_UID} stands for it"
    if explanation.why is None:
        static = " (a static pod of kube-system always is)" if is_static_system_pod(pod) else ""
        yield f"class          online{static}: every request passes as it came"
        return
    yield f"class          offline: {explanation.why}"
    if pod.ref.namespace == "kube-system":
        yield "               as a static pod it would be online: in kube-system those always are"
    if not node.enabled:
        yield "               but colocation is off here (colocation.enabled): it would start as an ordinary pod"
    if explanation.refused is not None:
        yield f"refused        {explanation.refused}"
        return
    yield f"CPU quota      {_quota(node)}"
    shares = manifest.sandbox_resources().cpu_shares
    yield f"CPU shares     {shares}, as kubelet says, among the pods of the box; the box comes after all online pods"
    yield "pids           kubelet's podPidsLimit, and the box's limit together with all offline pods (pids.max_ratio)"
    yield ""
    yield from _table(list(_rows(explanations, node)))


def _parents(explanations: Sequence[Explanation], node: Node) -> Iterator[str]:
    head, origin = "cgroup_parent", f", {node.origin}" if node.origin else ""
    for one, box in zip(explanations, node.boxes, strict=True):
        yield f"{head:<13}  {one.manifest.pod.cgroup_parent} (by kubelet, {box.driver} driver{origin})"
        head = ""
    if not node.origin:
        yield "               which driver it is, neither a running criproxy nor kubelet's configuration tells"


def _quota(node: Node) -> str:
    return "a pod's own stays (cgroup v2)" if node.child_quota else "the box's alone counts (cgroup v1)"


def _rows(explanations: Sequence[Explanation], node: Node) -> Iterator[tuple[str, str, str, str, str]]:
    """What differs by driver has a row for each."""
    explanation, *others = explanations
    kinds = {c.name: "init container" if c.init else "container" for c in explanation.manifest.containers}
    yield ("of", "field", "old", "new", "reason")
    for number, (call, changes) in enumerate(explanation.changes):
        target = f"{kinds[call.container]} {call.container}" if call.container else str(call.target)
        if not changes:
            yield (target, "", "", "", "nothing changes")
        for place, change in enumerate(changes):
            same = [(one.manifest, one.changes[number][1][place]) for one in others]
            by_driver = any(other.value != change.value for _, other in same)
            for box, (manifest, one) in zip(node.boxes, [(explanation.manifest, change), *same], strict=True):
                reason = f"{one.reason} ({box.driver} driver)" if by_driver else one.reason
                yield (target, change.place, _shown(_old(manifest, call.resources, one)), _shown(one.value), reason)
                target = ""
                if not by_driver:
                    break


def _old(manifest: Manifest, resources: Resources, change: Adjustment) -> str | int | None:
    """What kubelet sends in the field of a change; names as in CRI."""
    return {
        "cgroup_parent": manifest.pod.cgroup_parent,
        "annotations": manifest.pod.annotations.get(change.key),
        "unified": resources.unified.get(change.key),
        "cpu_period": resources.cpu_period_us,
        "cpu_quota": resources.cpu_quota_us,
        "cpu_shares": resources.cpu_shares,
        "memory_limit_in_bytes": resources.memory_limit_bytes,
        "oom_score_adj": resources.oom_score_adj,
        "cpuset_cpus": resources.cpuset_cpus,
        "cpuset_mems": resources.cpuset_mems,
        "drop_capabilities": None,
    }[change.field]


def _shown(value: str | int | None) -> str:
    text = "(none)" if value is None or value == "" else str(value)
    return text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "..."


def _table(rows: list[tuple[str, str, str, str, str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
