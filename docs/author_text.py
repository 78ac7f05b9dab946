"""docs/author-text.md: every label, annotation and field that the author of a pod writes, and who reads it.

A row's readers are the code's own functions, its bounds their constants; `read` is how a test gives them a text, and
finds the names that they look for.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup.naming import LONGEST as LONGEST_PATH
from criproxy.cgroup.naming import BoxPath, PodParent, parse_kubelet_parent
from criproxy.control.interference import service_checks
from criproxy.control.interference.service_checks import ServiceAnswer, check_of, percent_of
from criproxy.control.interference.victim import LONGEST_OWNER, OWNERS, candidate, owner_of
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.codec import Request
from criproxy.fronts.nri.plugin import is_required
from criproxy.hooks import Chain
from criproxy.hooks.bandwidth import EGRESS, INGRESS, Bandwidth, BandwidthHook
from criproxy.hooks.batch import asked_by
from criproxy.hooks.hardening import CACHE_CLASS, NRI_PLUGINS, Hardening, HardeningHook
from criproxy.hooks.notice import MOST_NOTICE_S, notice_asked_s
from criproxy.hooks.offline import CONFIG_SOURCE, DEFAULT_RULE, PRESETS, OfflineRules, is_static_system_pod
from criproxy.hooks.rewrites import RealtimeHook, ResourcesHook
from criproxy.hooks.tiers import is_mid
from criproxy.kube.evictions import MAX_EVICTED, MOST_GRACE_S, Evictor, change, kept_out, kept_out_for
from criproxy.kube.objects import BoundPod, ContainerSpec, Meta, Needs, PodSpec, allocated, decoded, told_cores
from criproxy.model import HostMount, Operation, Pod, PodRef, PodRequest, Resources, Target
from criproxy.pods.inventory import Inventory, described
from criproxy.pods.placing import AppliedAdjustment, adjust, unboundable
from criproxy.pods.service_checks import MOST as MOST_CHECKS
from criproxy.pods.service_checks import MOST_BYTES
from criproxy.vocabulary import names
from criproxy.vocabulary.presets import EVERY_MARK, OWN_MARK
from criproxy.vocabulary.quantities import MOST_CHARACTERS as LONGEST_QUANTITY
from criproxy.vocabulary.unboundable import MOST_CAPABILITIES

NOBODY: Final = "nothing"

Kind = Literal["label", "annotation", "field", "answer"]


class AuthorText(Struct, frozen=True):
    """A row: a text by what it is and its names (keys of labels or annotations; a field's is its path).

    `of`: whose it is read. `readers` read it, `bound` says how much of it, `better` what its author gains by it, and
    `worse` what others lose. `read` gives a text to the readers, as a pod's labels or annotations, or as the field.
    """

    kind: Kind
    names: tuple[str, ...]
    of: Literal["all pods", "offline pods", "pods in the box", "online pods"]
    readers: tuple[Callable[..., object], ...]
    bound: str
    better: str
    worse: str
    read: Callable[[str], object] = field(default=str)


_REF: Final = PodRef("uid", "batch", "pod")
_PLACE: Final = PodParent(BoxPath("/offline"), "podu1")

_QUERIES: Final = {"queue": "max(queue_length{pod='$pod'})"}
_RULES: Final = OfflineRules((DEFAULT_RULE,), PRESETS)


def pod_of(kind: Kind, marks: Mapping[str, str], namespace: str = "batch") -> Pod:
    ref = PodRef("uid", namespace, "pod")
    return Pod(ref, marks if kind == "label" else {}, marks if kind == "annotation" else {})


def readers_of_pod(pod: Pod) -> None:
    """All that is read of a pod's labels and annotations, whatever their names."""
    _RULES.why(pod)
    owner_of(pod)
    candidate(pod, (), 1.0, 0.0)
    for job in (
        lambda: described("id", pod.ref, "/offline/poduid", pod.labels, pod.annotations),
        lambda: asked_by(pod.annotations),
        lambda: check_of(pod.annotations, pod.ref, _QUERIES),
    ):
        with contextlib.suppress(ValueError):
            job()
    is_required(pod)
    request = PodRequest(Operation.RUN_POD_SANDBOX, Target.SANDBOX, "/offline/poduid", Resources(), pod=pod)
    tuple(BandwidthHook(Bandwidth(10**6, 10**6)).adjust(request))
    create = replace(request, operation=Operation.CREATE_CONTAINER, target=Target.CONTAINER, container="NAME")
    for call in (request, create):
        tuple(HardeningHook(Hardening()).adjust(call))


def _marks(kind: Kind, *keys: str, namespace: str = "batch") -> Callable[[str], object]:
    return lambda text: readers_of_pod(pod_of(kind, dict.fromkeys(keys, text), namespace))


def _bound_pod(text: str) -> BoundPod:
    return BoundPod(Meta(uid=text), PodSpec(containers=(ContainerSpec("main", Needs({"cpu": text})),)))


def of_spec(name: str, text: str) -> BoundPod:
    """A pod that has this as a number of its spec, as the node reads it of the API. Raises ObjectError."""
    return decoded(b'{"spec":{"%b":%b}}' % (name.encode(), text.encode("utf-8", "surrogateescape")), BoundPod)


def _ranked(text: str) -> object:
    pod = of_spec("priority", text)
    return candidate(pod_of("label", {}), (), 1.0, 0.0, kubernetes_priority=pod.spec.priority)


def _evicted(text: str) -> object:
    return change((), kept_out({}, text, kept_out_for(300.0, 0.0, 0.0)))


def _masked(text: str) -> object:
    paths = [text.encode("utf-8", "surrogateescape")]
    linux = {"security_context": {"masked_paths": paths, "readonly_paths": paths}}
    call = Request(
        Operation.CREATE_CONTAINER,
        cri.CreateContainerRequest(config=cri.ContainerConfig(linux=linux)).SerializeToString(),
    )
    return [part.security for part in call.parts]


@lru_cache(4)
def _creating(text: str) -> bytes:
    """A container's call with this as its name, its CPUs and its capabilities, these also as a list of its words."""
    names = [one.encode("utf-8", "surrogateescape") for one in (text, *text.split(","))]
    linux = {"resources": {"cpuset_cpus": names[0]}, "security_context": {"capabilities": {"add_capabilities": names}}}
    config = cri.ContainerConfig(metadata={"name": names[0]}, linux=linux)
    sandbox = cri.PodSandboxConfig(metadata={"uid": b"u1"}, labels=[cri.StringEntry(key=b"app", value=b"job")])
    return cri.CreateContainerRequest(config=config, sandbox_config=sandbox).SerializeToString()


def container_read(text: str) -> object:
    """What is logged or answered of such a call."""
    call = Request(Operation.CREATE_CONTAINER, _creating(text))
    if why := unboundable(call, Hardening()):
        return why
    chain = Chain((ResourcesHook(child_quota=True), RealtimeHook(), HardeningHook(Hardening())))
    found = [one.logged() for one in adjust(call, _PLACE, chain, frozenset({0}))]
    call.encode()
    return found


def _answer(text: str) -> object:
    check = check_of({names.SERVICE_CHECK: '{"http": {"port": 1}, "threshold": 1}'}, _REF, {})
    assert check is not None
    return percent_of(ServiceAnswer(True, text), check)


_PLACED: Final = "The weight is among the pods of the box alone, which comes after all online pods."

_STAYS: Final = (
    "others go in its place that give back a tenth of what is needed, or of what it uses; else online bears its harm, "
    "within the limits"
)

ROWS: Final = (
    AuthorText(
        "label",
        tuple(dict.fromkeys(one.key for one in EVERY_MARK if one.of == "label")),
        "all pods",
        (OfflineRules.why,),
        "compared as it is; no more than 80 characters are repeated",
        "nothing: an offline pod comes after all online ones",
        NOBODY,
        _marks("label", OWN_MARK.key),
    ),
    AuthorText(
        "annotation",
        tuple(dict.fromkeys(one.key for one in EVERY_MARK if one.of == "annotation")),
        "all pods",
        (OfflineRules.why,),
        "compared as it is; no more than 80 characters are repeated; nothing in kube-system and criproxy-system",
        "nothing: an offline pod comes after all online ones",
        NOBODY,
        _marks("annotation", *(one.key for one in EVERY_MARK if one.of == "annotation")),
    ),
    AuthorText(
        "annotation",
        (CONFIG_SOURCE,),
        "all pods",
        (is_static_system_pod,),
        "compared as it is",
        "nothing: kubelet writes it, and it counts in kube-system alone",
        NOBODY,
        _marks("annotation", CONFIG_SOURCE, namespace="kube-system"),
    ),
    AuthorText(
        "label",
        (names.TIER, names.KOORDINATOR_CLASS),
        "all pods",
        (is_mid,),
        "compared as it is",
        "where `colocation.tiers` is on, more of the box's CPU than pods of the lower tier, and to go after those of "
        "its own priority",
        "offline pods of the lower tier have less of the box, and go first",
        _marks("label", names.TIER, names.KOORDINATOR_CLASS),
    ),
    AuthorText(
        "annotation",
        (names.KEEP_REQUESTS,),
        "pods in the box",
        (asked_by,),
        "compared as it is",
        "the pod has what it requests of online's share, as the scheduler counts it, and nothing of what nodes lend",
        NOBODY,
        _marks("annotation", names.KEEP_REQUESTS),
    ),
    AuthorText(
        "annotation",
        (names.RESOURCES, names.EXTENDED_SPEC),
        "pods in the box",
        (asked_by,),
        f"{names.MOST_RECORDED} characters, {names.MOST_CONTAINERS} containers, {LONGEST_QUANTITY} characters of a "
        "quantity; beyond that all of it is ignored",
        f"a weight in the box of no more than its spec requests, as the API server shows it to the node, and of no "
        f"more than the node's CPUs. {_PLACED} Of a pod with a mark, criproxy's webhook writes the first anew, or "
        "takes both away; a pod without a mark that has the first is refused by its admission policy",
        "without the cluster's side, and where the node does not know the spec (below), other offline pods have less "
        "of the box's CPU",
        _marks("annotation", names.RESOURCES),
    ),
    AuthorText(
        "annotation",
        (names.NOTICE_SECONDS,),
        "all pods",
        (notice_asked_s,),
        f"9 digits; {MOST_NOTICE_S} s of notice",
        "time to end well before it is stopped",
        "online waits up to so long for what the pod has to give back; not in an emergency",
        _marks("annotation", names.NOTICE_SECONDS),
    ),
    AuthorText(
        "annotation",
        (names.PRIORITY, names.EVICTION_PRIORITY),
        "offline pods",
        (candidate,),
        "a number of 32 bits, else it is not there",
        "nothing: it can only send the pod sooner than its PriorityClass does",
        "nothing",
        _marks("annotation", names.PRIORITY, names.EVICTION_PRIORITY),
    ),
    AuthorText(
        "label",
        (names.KOORDINATOR_PRIORITY,),
        "offline pods",
        (candidate,),
        "a number of 32 bits, else it is not there",
        "nothing: it can only send the pod sooner than its PriorityClass does",
        "nothing",
        _marks("label", names.KOORDINATOR_PRIORITY),
    ),
    AuthorText(
        "label",
        (names.EVICTION_ENABLED,),
        "offline pods",
        (candidate,),
        "compared as it is",
        "it is not evicted for the harm that it does, but in an emergency; limits, and what closes the node, hold",
        _STAYS,
        _marks("label", names.EVICTION_ENABLED),
    ),
    AuthorText(
        "annotation",
        (names.EVICTION_ENABLED,),
        "offline pods",
        (candidate,),
        "compared as it is",
        "it is not evicted for the harm that it does, but in an emergency; limits, and what closes the node, hold",
        _STAYS,
        _marks("annotation", names.EVICTION_ENABLED),
    ),
    AuthorText(
        "label",
        OWNERS,
        "offline pods",
        (owner_of,),
        f"{LONGEST_OWNER} characters, else it is not there",
        "it counts as one of another owner's pods in its namespace, and is spared for a while after one of them went",
        "other offline pods go in its place",
        _marks("label", *OWNERS),
    ),
    AuthorText(
        "annotation",
        (EGRESS, INGRESS),
        "offline pods",
        (BandwidthHook.adjust, AppliedAdjustment.logged),
        f"a quantity of {LONGEST_QUANTITY} characters; what is more than the node's bound, or none, is replaced by it",
        "nothing: it may only ask for less",
        NOBODY,
        _marks("annotation", EGRESS, INGRESS),
    ),
    AuthorText(
        "annotation",
        (names.SERVICE_CHECK,),
        "online pods",
        (check_of,),
        f"{service_checks.MOST_CHARACTERS} characters; {MOST_CHECKS} services of a node are asked; a query is one that "
        "the node names",
        "offline pods give way when it says that it fares badly, if an experiment shows that they are the cause",
        f"offline pods have less of the box meanwhile; of more than {MOST_CHECKS} services, some are not asked",
        _marks("annotation", names.SERVICE_CHECK),
    ),
    AuthorText(
        "annotation",
        (names.PLACEMENT,),
        "all pods",
        (Inventory.refresh,),
        f"{LONGEST_PATH} characters; believed if it names the pod's own cgroup in a box, and that is there",
        "nothing: of an offline pod it is overwritten",
        NOBODY,
        parse_kubelet_parent,
    ),
    AuthorText(
        "answer",
        ("HTTP body, standard output",),
        "online pods",
        (percent_of,),
        f"{MOST_BYTES} bytes, else the check is put off; a number of 300 digits",
        f"as `{names.SERVICE_CHECK}`",
        f"as `{names.SERVICE_CHECK}`",
        _answer,
    ),
    AuthorText(
        "field",
        ("metadata.uid, .name and .namespace",),
        "all pods",
        (parse_kubelet_parent,),
        "kubelet makes the cgroup's name of the uid: 120 letters, digits, `-` and `_`; 320 characters are shown",
        NOBODY,
        NOBODY,
        lambda text: parse_kubelet_parent(f"/kubepods/pod{text}"),
    ),
    AuthorText(
        "field",
        ("metadata.ownerReferences[].uid",),
        "offline pods",
        (change,),
        f"63 letters, digits and `-` as a label; the last {MAX_EVICTED} that were evicted are remembered",
        "a pod that names another owner may be placed on a node again that has just evicted it",
        "pods of an owner that is named falsely prefer other nodes for five minutes",
        _evicted,
    ),
    AuthorText(
        "field",
        ("spec.containers[].resources",),
        "all pods",
        (allocated, told_cores),
        f"{LONGEST_QUANTITY} characters of a quantity. The node sees what kubelet makes of it, as numbers",
        f"a weight and limits as kubelet gives them. {_PLACED}",
        "other offline pods have less of the box's CPU, as the scheduler has promised it",
        lambda text: (allocated([_bound_pod(text)], ["cpu"]), told_cores(_bound_pod(text), {"cpu": 1})),
    ),
    AuthorText(
        "field",
        ("spec.volumes[].hostPath.path",),
        "offline pods",
        (Hardening.refusal_of_mounts,),
        "compared as it is written, and, in a thread of its own, by where it leads; a pod with one of the kernel's or "
        "the runtime's is refused, with one that is not lent unless it is read-only, and with a path of more than "
        "4,096 characters, or paths of more than 8,192 parts in all",
        "what other folders of the node's hold, to read; and what is in lent ones, to write",
        "a folder of `hardening.writable_host_paths` from which the node runs something gives the node to who may "
        "write there: take it off the list, or let Pod Security's `baseline` refuse hostPath",
        lambda text: [Hardening().refusal_of_mounts([HostMount(path)]) for path in (text, f"/{text}")],
    ),
    AuthorText(
        "field",
        ("spec.containers[].ports[].hostPort, securityContext.procMount",),
        "offline pods",
        (Hardening.refusal, HardeningHook.adjust),
        "numbers, and paths that kubelet writes; a pod with a port of the node's is refused, /proc is masked",
        NOBODY,
        NOBODY,
        _masked,
    ),
    AuthorText(
        "annotation",
        (f"{CACHE_CLASS}pod", f"{CACHE_CLASS}container.NAME"),
        "offline pods",
        (HardeningHook.adjust, AppliedAdjustment.logged),
        "taken away; 320 characters of it are logged",
        NOBODY,
        NOBODY,
        _marks("annotation", f"{CACHE_CLASS}pod", f"{CACHE_CLASS}container.NAME"),
    ),
    AuthorText(
        "annotation",
        NRI_PLUGINS,
        "offline pods",
        (HardeningHook.adjust, AppliedAdjustment.logged),
        "taken away, with `/pod` and `/container.NAME`, too; 320 characters of one are logged; by NRI they stay",
        NOBODY,
        "by NRI, where such a plugin runs: CPUs and a scheduling class of online pods'",
        _marks("annotation", *NRI_PLUGINS),
    ),
    AuthorText(
        "annotation",
        (names.REQUIRED_PLUGINS, f"{names.REQUIRED_PLUGINS}/pod"),
        "offline pods",
        (is_required,),
        "whether criproxy is in it, and in those of a container alone (`/container.NAME`); criproxy's webhook reads "
        "the lists, as long as the API server lets them be, and adds to them",
        "nothing: by NRI, it is not started where a plugin of the list is away",
        NOBODY,
        _marks("annotation", names.REQUIRED_PLUGINS, f"{names.REQUIRED_PLUGINS}/pod"),
    ),
    AuthorText(
        "field",
        ("spec.terminationGracePeriodSeconds",),
        "offline pods",
        (Evictor.evict_pod,),
        f"{MOST_GRACE_S} s, where Kubernetes evicts it; 1 s where memory is short",
        "time to end before it is stopped",
        "online waits up to so long for what the pod has to give back; not in an emergency",
        partial(of_spec, "terminationGracePeriodSeconds"),
    ),
    AuthorText(
        "field",
        ("spec.priority",),
        "offline pods",
        (candidate,),
        "a number of 32 bits, which the API server sets by the PriorityClass",
        "others of the box go first",
        "other offline pods go in its place",
        _ranked,
    ),
    AuthorText(
        "field",
        ("spec.containers[].name, securityContext.capabilities.add",),
        "offline pods",
        (Hardening.refusal, RealtimeHook.adjust, ResourcesHook.adjust, HardeningHook.adjust),
        f"compared as they are; a container that adds more than {MOST_CAPABILITIES} capabilities is refused; a CPU "
        "list, which kubelet writes, has 8,192 CPUs at most",
        "nothing: what reaches past the pod is cut",
        NOBODY,
        container_read,
    ),
)


class ClusterText(Struct, frozen=True):
    """A row of what the cluster's side reads of offline pods. `readers`: paths below criproxy_cluster, which a node has
    not; the test gives them the text.
    """

    kind: Kind
    names: tuple[str, ...]
    readers: tuple[str, ...]
    bound: str
    better: str
    worse: str


_VIRTUAL: Final = "other pods of its namespace find less room on virtual nodes, of which a policy says how many it has"

CLUSTER: Final = (
    ClusterText(
        "annotation",
        (names.DEADLINE,),
        ("owners.rules.deadline_s",),
        "20 characters of RFC 3339 in UTC, else it is not there",
        "where a policy has `spec.owners.overflow`, it is left for virtual nodes once that time is near",
        _VIRTUAL,
    ),
    ClusterText(
        "annotation",
        (names.ALONE_SECONDS,),
        ("owners.rules.alone_s",),
        "8 digits; 30 days",
        f"with `{names.DEADLINE}`, it is left for virtual nodes earlier; a policy's status counts its owner as kept to",
        _VIRTUAL,
    ),
    ClusterText(
        "annotation",
        (names.OVERFLOW, names.RAISED),
        ("webhook.conversion.converted", "owners.pods.owned_pod"),
        "whether it is there; of a pod that is made, the webhook takes it away or writes it",
        NOBODY,
        "one that is written later counts: others of its namespace find less room on virtual nodes, or in the higher "
        "tier",
    ),
    ClusterText(
        "label",
        (names.TIER,),
        ("owners.pods.owned_pod",),
        "whether it is there",
        "nothing: a pod whose author has said its tier is not raised",
        NOBODY,
    ),
    ClusterText(
        "annotation",
        ("vpaUpdates",),
        ("webhook.conversion.warnings",),
        "whether it is there: then there is a warning",
        NOBODY,
        NOBODY,
    ),
    ClusterText(
        "field",
        ("metadata.ownerReferences[]",),
        ("owners.pods.controller_of", "webhook.overflow.Overflow.why"),
        "63 characters of the controller's kind, 253 of its name, 63 of its uid, all of printable ASCII, else the pod "
        "counts as one without a controller; 400 owners are remembered, of each namespace in turn",
        "a pod that names another owner of its namespace is left for virtual nodes by what befell that one's",
        _VIRTUAL,
    ),
    ClusterText(
        "field",
        ("spec.containers[].resources, spec.initContainers[].resources, spec.overhead",),
        ("ledger.pods.pod_of", "webhook.conversion.converted"),
        f"{LONGEST_QUANTITY} characters of a quantity, else the webhook refuses CPU and memory, and the ledger counts "
        "nothing; of more than 64 names, the ledger counts the first and those that every node lends",
        "a place on a node that lends as much",
        "other offline pods find less room on that node, as with any scheduler",
    ),
    ClusterText(
        "annotation",
        (names.REQUIRED_PLUGINS, f"{names.REQUIRED_PLUGINS}/pod", f"{names.REQUIRED_PLUGINS}/container.NAME"),
        ("webhook.conversion.converted",),
        "with `--require-plugin`, a JSON list of names, else the pod is refused; on a node, the NRI front looks for "
        "criproxy's name in it",
        NOBODY,
        NOBODY,
    ),
)


class LeftText(Struct, frozen=True):
    """A row of what criproxy does not read of an offline pod: what an author could want by it, and what bounds that."""

    names: str
    wanted: str
    bounds: str


class UnknownText(Struct, frozen=True):
    """A row of where a node can't know what the scheduler was told of a pod: why, and what bounds a false record."""

    where: str
    why: str
    bounds: str


_CLAIM: Final = "the box, after all online pods; no more than the node's CPUs"

UNKNOWN: Final = (
    UnknownText(
        "`kubernetes.enabled = false`",
        "the node asks no API server, and neither kubelet's PodResources nor its files that are meant for others have "
        "a pod's extended resources",
        f"{_CLAIM}; criproxy's webhook and admission policies, which need no node",
    ),
    UnknownText(
        "before the API server has shown the pod: for seconds after its start, or while it does not answer",
        "an honest pod must not lose its share to an API server that is away",
        f"{_CLAIM}; asked again after each listing, once a minute",
    ),
    UnknownText(
        "static pods",
        "the API server knows their mirror pods under another uid",
        "they are files of the node's administrator",
    ),
    UnknownText(
        "a spec that requests what nothing has counted (`nodeName` past the scheduler)",
        "a bound pod does not say who has bound it",
        "kubelet admits no more than the node has of names below kubernetes.io/, and of others that the node does not "
        "have none count",
    ),
    UnknownText(
        "how a pod divides its own weight among its containers, its limits of memory and CPU",
        "they are read as the record has them",
        "siblings in the pod alone; a limit of memory only takes away, one of CPU says on how many of the box's CPUs "
        "the pod stays",
    ),
)

LEFT: Final = (
    LeftText(
        "`seccompProfile: Localhost`",
        "a profile that allows more than RuntimeDefault",
        "it is a file that the node's administrator put into kubelet's folder; put none there that allows add_key",
    ),
    LeftText(
        "`appArmorProfile: Unconfined`, `seLinuxOptions` (`spc_t`, another pod's level)",
        "writes that the profile denies",
        "the capabilities of the list, the masks of /proc and the mounts; nothing of another pod's is in sight. Where "
        "a cluster relies on them, Pod Security's `baseline` refuses both",
    ),
    LeftText(
        "`runAsUser`, `runAsGroup`, `supplementalGroups`, `fsGroup`",
        "an online pod's uid, whose share of what the kernel counts by user it could use up",
        "a user namespace (`hostUsers: false`), see docs/refused.md; groups reach what is mounted, and no device",
    ),
    LeftText(
        "`allowPrivilegeEscalation`, `readOnlyRootFilesystem`, `tty`, `stdin`",
        NOBODY,
        "capabilities and the profile; pseudo-terminals are watched",
    ),
    LeftText(
        "`volumeDevices`, devices of device plugins and DRA (CDI)",
        "a device of the node's",
        "the administrator's classes and plugins offer them, and the cgroup's list of devices names each. "
        "`cdi.k8s.io/…` annotations of a pod reach no runtime: they are read of the container's, which kubelet writes",
    ),
    LeftText(
        "`mountPropagation: Bidirectional`",
        "mounts in the node's mount namespace",
        "it needs `privileged`, at the API server and in kubelet",
    ),
    LeftText(
        "`image` that is a checkpoint",
        "capabilities, no seccomp and a scheduling policy of its own, which the runtime restores",
        "a node without `criu` restores none (docs/refused.md)",
    ),
    LeftText(
        "image volumes, `emptyDir`, PersistentVolumeClaims, NFS and others of the network",
        "disk space, and memory by `medium: Memory`",
        "kubelet's eviction and sizeLimit; what is in memory counts against the box",
    ),
    LeftText(
        "`sysctls`",
        "larger buffers of TCP (`net.ipv4.tcp_rmem`)",
        "kubelet lets safe ones alone, all of the pod's own namespaces; the node's memory of TCP is watched",
    ),
    LeftText(
        "`runtimeClassName`",
        "a runtime that keeps no bound",
        "classes are the administrator's; where its processes are is checked each minute (docs/refused.md)",
    ),
    LeftText(
        "`io.containerd.…`, `io.kubernetes.cri-o.…`, `…crio.io`, `org.systemd.property.…` annotations",
        "settings of the container that its runtime takes from annotations",
        "none reaches it from a pod unless the runtime's configuration names it for the runtime class "
        "(pod_annotations, allowed_annotations): name none for classes of offline pods",
    ),
    LeftText(
        "`blockio.resources.beta.kubernetes.io/…` annotations",
        "a class with a higher weight at disks",
        "it is the container's own cgroup's, in the box",
    ),
    LeftText(
        "`shareProcessNamespace`, ephemeral containers, `lifecycle`, probes",
        "work of the runtime's for it",
        "exec runs in the container's cgroup; what the runtime itself works is measured (docs/refused.md)",
    ),
    LeftText(
        "`podAntiAffinity`",
        "to keep online pods off its node, its zone or all nodes: whom a pod wants to be away from, the scheduler "
        "keeps away from it",
        "criproxy's webhook has it count offline pods alone. Elsewhere: the admission plugin "
        "LimitPodHardAntiAffinityTopology for more than a node, and priorities: online pods preempt it",
    ),
    LeftText(
        "`podAffinity`, `topologySpreadConstraints`",
        "a place beside others",
        "they choose for this pod alone; a required affinity makes its node a little better for those that it selects",
    ),
    LeftText(
        "`terminationMessagePath`, `hostAliases`, `dnsConfig`, `env`",
        "work of kubelet's for it",
        "kubelet reads 4 KiB of the message; the others are of an object that the API server lets be 1.5 MiB at most",
    ),
    LeftText(
        "`priorityClassName`, `preemptionPolicy`, `nodeName`, `schedulerName`",
        "to displace online pods, or to come past the scheduler",
        "criproxy's webhook takes away what is a system's and sets its own class; who comes past the scheduler is "
        "placed in the box all the same. Elsewhere: a ResourceQuota with a scope of priority classes",
    ),
)


def page() -> str:
    return "\n".join(
        (
            "# What a pod's author writes, and who reads it",
            "",
            "Every label, annotation and field of a pod that criproxy reads on a node, with its bound, what it can",
            "better for its author and what it can worsen for others. Online pods lose by none, but for those that",
            "let an offline pod stay longer. Each is read in time that grows with its length: of 64 KiB of the worst",
            "text, in 5 ms. What is for offline pods alone is read of those alone. Made by",
            "`.venv/bin/python -m docs.generate` from docs/author_text.py; a test reads each.",
            "",
            "| what | name | read of | by | bound | better for its author | worse for others |",
            "|---|---|---|---|---|---|---|",
            *map(_row, ROWS),
            "",
            "## What the cluster's side reads",
            "",
            "What webhook, controller and ledger read of offline pods, in the same time.",
            "",
            "| what | name | by | bound | better for its author | worse for others |",
            "|---|---|---|---|---|---|",
            *map(_cluster_row, CLUSTER),
            "",
            "## What a node can't know of what the scheduler was told",
            "",
            "Over CRI, kubelet hands on ordinary requests as CPU shares, and of extended resources nothing: what a pod",
            "requests of what nodes lend stands in the webhook's record (`colocation.criproxy.io/resources`), or in",
            "Koordinator's. A record that nobody but its author wrote is a claim. Where `kubernetes.enabled` is on,",
            "the node reads its own pods' specs at the API server, and a claim above the spec's counts as the spec's",
            "(`pod_weight_lowered`), for the weight and for all that is judged by what pods ask for. It remains a",
            "claim in these cases:",
            "",
            "| where | why it can't be known | what bounds it |",
            "|---|---|---|",
            *(f"| {one.where} | {one.why} | {one.bounds} |" for one in UNKNOWN),
            "",
            "## What criproxy leaves to others",
            "",
            "Fields and annotations of an offline pod that nothing on a node reads or changes. Of what kubelet runs",
            "for a pod, ephemeral containers, memory volumes, annotations, users and devices, sysctls and profiles,",
            "integration/control_plane/test_left_fields.py shows it with a real API server, kubelet and containerd.",
            "",
            "| what an author writes | what it could be wanted for | what bounds it |",
            "|---|---|---|",
            *(f"| {one.names} | {one.wanted} | {one.bounds} |" for one in LEFT),
            "",
        )
    )


def _cluster_row(row: ClusterText) -> str:
    readers = ", ".join(f"`{one}`" for one in row.readers)
    return f"| {row.kind} | {_shown(row)} | {readers} | {row.bound} | {row.better} | {row.worse} |"


def _shown(row: AuthorText | ClusterText) -> str:
    return ", ".join(f"`{name}`" if row.kind in ("label", "annotation") else name for name in row.names)


def _row(row: AuthorText) -> str:
    readers = ", ".join(f"`{one.__module__.removeprefix('criproxy.')}.{one.__qualname__}`" for one in row.readers)
    return f"| {row.kind} | {_shown(row)} | {row.of} | {readers} | {row.bound} | {row.better} | {row.worse} |"


def keys(kind: Kind) -> Iterator[str]:
    """The names of all rows of this kind."""
    for row in ROWS:
        if row.kind == kind:
            yield from row.names
