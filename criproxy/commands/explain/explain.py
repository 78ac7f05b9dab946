"""`criproxy explain`: what criproxy would do to a pod, and why, from its manifest alone.

It is said by the very code that does it to kubelet's calls (`pods.admission`, `pods.placing`).
"""

from collections.abc import Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.naming import BoxPath, Driver, PodParent, pod_names
from criproxy.commands.explain.manifest import PLACEHOLDER_UID, Manifest, ManifestCall, ManifestPart
from criproxy.fronts.nri.codec import reaches
from criproxy.hooks import HookSettings, offline_chain
from criproxy.hooks.batch import asked_by, of_pod
from criproxy.hooks.hardening import Hardening
from criproxy.hooks.offline import OfflineRules, is_static_system_pod
from criproxy.model import STARTS, Adjustment, Pod, Security, Target
from criproxy.observe.status_text import printable
from criproxy.pods.admission import AdmissionSettings, Admit, Facts, Refuse, judge
from criproxy.pods.inventory import described
from criproxy.pods.placing import AppliedAdjustment, adjust, unboundable
from criproxy.vocabulary import unboundable as unboundable_words

_MAX_CELL = 72


class NodeFacts(Struct, frozen=True):
    """What an explanation needs to know of the node.

    `box`: the one beside kubelet's cgroups; `origin` says how its driver is known. `hooks`: what they go by. `by_nri`:
    its front is NRI's.
    """

    enabled: bool
    rules: OfflineRules
    box: BoxPath
    origin: str
    hooks: HookSettings
    by_nri: bool = False


class Explanation(Struct, frozen=True):
    """What happens to a pod, at its `place` in the box. `why` None: it is online.

    `refused` says why it can't start, `changes` what changes, and `left` what only the CRI front would change.
    """

    why: str | None
    refused: str | None = None
    place: str = ""
    changes: tuple[tuple[ManifestPart, tuple[AppliedAdjustment, ...]], ...] = ()
    left: tuple[tuple[ManifestPart, tuple[Adjustment, ...]], ...] = ()


def explain(manifest: Manifest, node: NodeFacts) -> Explanation:
    """The fate of a pod on a node whose switch is on."""
    why = node.rules.why(manifest.pod)
    if why is None:
        return Explanation(None)
    chain = offline_chain(node.hooks)
    plain, underscored = pod_names(manifest.pod.ref.uid)
    name = underscored if node.box.driver is Driver.SYSTEMD else plain
    pod = replace(manifest.pod, cgroup_parent=PodParent(node.box, name).at_kubelet[-1])
    place, changes, left = "", [], []
    for written in manifest.calls:
        call = _as_nri_sees(written) if node.by_nri else written
        sandbox = None if call.operation in STARTS else described("", pod.ref, place, pod.labels, pod.annotations)
        asked = _unboundable(call, node.hooks.hardening)
        judgement = judge(Facts(call.operation, pod, sandbox, unboundable=asked), AdmissionSettings(True, node.rules))
        if isinstance(judgement, Refuse):
            return Explanation(why, judgement.detail)
        assert isinstance(judgement, Admit)
        place = judgement.parent.in_box
        made, all_made = (tuple(adjust(one, judgement.parent, chain)) for one in (call, written))
        changes.append((written.parts[0], made))
        done = {one.adjustment for one in made}
        left.append((written.parts[0], tuple(one.adjustment for one in all_made if one.adjustment not in done)))
    return Explanation(why, None, place, tuple(changes), tuple(left))


def _as_nri_sees(call: ManifestCall) -> ManifestCall:
    """What the runtime tells of it, and what can be set in answer: see `fronts.nri.codec`."""
    (part,) = call.parts
    asked = part.security
    told = Security(asked.privileged, asked.host_namespaces, host_mounts=asked.host_mounts)
    return replace(call, parts=(replace(part, security=told, reach=partial(reaches, call.operation, part.target)),))


def _unboundable(call: ManifestCall, hardening: Hardening) -> str:
    """As the node finds it; what links and mounts of a node lead to, a manifest does not say."""
    if hardening.lets(call.pod) is not None:
        return ""
    mounts = (one for part in call.parts for one in part.security.host_mounts)
    return unboundable(call, hardening) or hardening.refusal_of_mounts(mounts)


def render(manifest: Manifest, explanation: Explanation, node: NodeFacts) -> str:
    """What `explain` found, as text for a terminal, newline at the end."""
    return "".join(f"{printable(line)}\n" for line in _lines(manifest, explanation, node))


def _lines(manifest: Manifest, explanation: Explanation, node: NodeFacts) -> Iterator[str]:
    pod = manifest.pod
    yield f"pod            {pod.ref}"
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
    yield f"place          {explanation.place} ({node.box.driver} driver, {node.origin})"
    quota = "its own stays (cgroup v2)" if node.hooks.child_quota else "only the box has one (cgroup v1)"
    yield f"CPU quota      {quota}"
    yield "CPU shares     kubelet's, by its requests, among the pods of the box; the box comes after all online pods"
    yield "CPUs           on as many of the box's as its CPU limit, rounded up; without one on all (cpuset.pin_pods)"
    if (rule := node.hooks.hardening.lets(pod)) is not None:
        yield f"hardening      none, as the node's file lets it (hardening.allow): {rule}"
    for words in (*_unbounded(manifest), *_left(explanation)):
        yield f"not bounded    {words}"
    if manifest.runtime_class:
        yield f"runtime        {manifest.runtime_class}: of one that starts virtual machines, see docs/refused.md"
    yield from _asked(pod)
    yield "pids           kubelet's podPidsLimit, and the box's limit together with all offline pods (pids.max_ratio)"
    yield ""
    yield from _table(list(_rows(manifest, explanation)))


def _unbounded(manifest: Manifest) -> Iterator[str]:
    """What the pod was let have all the same, and what that does to the box's bounds."""
    asked = [part.security for call in manifest.calls for part in call.parts]
    if any(one.privileged for one in asked):
        yield f"it has privileged: {unboundable_words.ESCAPE}"
    for name, written in unboundable_words.HOST_NAMESPACES.items():
        if any(name in one.host_namespaces for one in asked):
            yield f"it has {written}: {unboundable_words.OUTSIDE}"
    for port in dict.fromkeys(port for one in asked for port in one.host_ports):
        yield f"it has hostPort {port}: {unboundable_words.TAKES}"
    refused, lent = unboundable_words.HOST_PATHS, unboundable_words.WRITABLE_HOST_PATHS
    for mount in dict.fromkeys(mount for one in asked for mount in one.host_mounts):
        if unboundable_words.first_related(mount.path, refused) is not None:
            yield f"it has a hostPath volume of {mount.path}: {unboundable_words.ESCAPE}"
        elif not mount.readonly and unboundable_words.first_holding(mount.path, lent) is None:
            yield f"it has a writable hostPath volume of {mount.path}: {unboundable_words.RUNS}"


def _left(explanation: Explanation) -> Iterator[str]:
    """What NRI has no way to change."""
    for part, adjustments in explanation.left:
        fields = [one.place for one in adjustments if one.field != "cpu_period"]  # which bounds nothing by itself
        if fields and part.target is Target.SANDBOX:
            yield "the sandbox's own process, which stays in kubelet's cgroup of the pod (see docs/nri.md)"
        elif fields:
            yield f"{', '.join(fields)} of {part.container}, which NRI can't set (see docs/nri.md)"


def _asked(pod: Pod) -> Iterator[str]:
    """What its annotation makes of the pod as a whole."""
    try:
        asked = of_pod(asked_by(pod.annotations))
    except ValueError as error:
        yield f"ignored        {error}"
        return
    parts = (
        f"CPU shares {asked.cpu_shares}" if asked.cpu_shares else "",
        f"a memory limit of {asked.memory_bytes >> 20} MiB" if asked.memory_bytes else "",
        f"{-(-asked.cpu_limit_millicores // 1000)} CPUs to stay on" if asked.cpu_limit_millicores else "",
    )
    if any(parts):
        yield f"by annotation  {', '.join(filter(None, parts))}"


def _rows(manifest: Manifest, explanation: Explanation) -> Iterator[tuple[str, str, str, str, str]]:
    yield ("of", "field", "old", "new", "reason")
    for part, changes in explanation.changes:
        target = f"{manifest.kinds.get(part.container, '')} {part.target} {part.container}".strip()
        if not changes:
            yield (target, "", "", "", "nothing changes")
        for change in changes:
            one = change.adjustment
            yield (target, one.place, _shown(change.old), _shown(one.value), one.reason)
            target = ""


def _shown(value: str | int | None) -> str:
    text = "(none)" if value is None or value == "" else str(value)
    return text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "..."


def _table(rows: list[tuple[str, str, str, str, str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
