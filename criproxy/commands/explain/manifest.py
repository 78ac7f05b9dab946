"""Reads Pod manifests and says what kubelet makes of them: QoS class, cgroup_parent, Linux resources."""

import enum
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.naming import BoxPath, Driver, directory_of, pod_names
from criproxy.model import Pod, PodRef, Resources

PLACEHOLDER_UID: Final = "UID"
"""Stands for the uid that the API server, or kubelet for a static pod, has not given yet."""

_PERIOD_US: Final = 100_000
_MIN_QUOTA_US: Final = 1000
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]{1,3})|(m|u|n|k|M|G|T|P|E|[KMGTPE]i))?")
_SCALES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(1000),
    **{unit: Decimal(1000) ** (power + 2) for power, unit in enumerate("MGTPE")},
    **{f"{unit}i": Decimal(1024) ** (power + 1) for power, unit in enumerate("KMGTPE")},
}
_LARGEST: Final = Decimal(2**63 - 1)


class ManifestError(ValueError):
    """A manifest is no Pod that kubelet would take; the message says where and why."""


class QosClass(enum.StrEnum):
    """Kubernetes' quality of service classes."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


Quantities = Mapping[str, str | int | float]


class _Amounts(Struct, frozen=True):
    requests: Quantities | None = None
    limits: Quantities | None = None


class _Capabilities(Struct, frozen=True):
    add: tuple[str, ...] | None = None


class _SecurityContext(Struct, frozen=True):
    capabilities: _Capabilities | None = None


class _Container(Struct, frozen=True):
    name: str
    resources: _Amounts | None = None
    restartPolicy: str | None = None
    securityContext: _SecurityContext | None = None


class _Metadata(Struct, frozen=True):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class _Spec(Struct, frozen=True):
    containers: tuple[_Container, ...]
    initContainers: tuple[_Container, ...] | None = None
    resources: _Amounts | None = None
    priorityClassName: str | None = None


class _Status(Struct, frozen=True):
    qosClass: QosClass | None = None


class _Manifest(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec
    status: _Status | None = None


class Amounts(Struct, frozen=True):
    """Requests and limits by resource name, in units (CPUs, bytes); a missing request is its limit."""

    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]


class ManifestContainer(Struct, frozen=True):
    """A container; `init` ones run before the others, and `sidecar` ones go on beside them."""

    name: str
    init: bool
    sidecar: bool
    amounts: Amounts
    added_capabilities: tuple[str, ...] = ()


class Manifest(Struct, frozen=True):
    """A Pod as kubelet sees it. `pod_amounts` are the pod-level resources (Kubernetes 1.32), if it has any."""

    pod: Pod
    qos: QosClass
    containers: tuple[ManifestContainer, ...]
    pod_amounts: Amounts | None
    node_critical: bool

    def beside(self, box: BoxPath) -> "Manifest":
        """The same where kubelet's cgroups are those beside this box."""
        top, besteffort, burstable = box.online_parents
        parents = {QosClass.GUARANTEED: top, QosClass.BEST_EFFORT: besteffort, QosClass.BURSTABLE: burstable}
        plain, underscored = pod_names(self.pod.ref.uid)
        if box.driver is Driver.SYSTEMD:
            parent = directory_of(f"{parents[self.qos].removesuffix('.slice')}-{underscored}.slice")
        else:
            parent = f"{parents[self.qos]}/{plain}"
        return replace(self, pod=replace(self.pod, cgroup_parent=parent))

    def sandbox_resources(self) -> Resources:
        """What RunPodSandbox carries. Source: kubelet, calculateSandboxResources."""
        amounts = self.pod_amounts or _sum(self.containers)
        return _resources(amounts, oom_score_adj=0)

    def container_resources(self, container: ManifestContainer, node_bytes: int) -> Resources:
        """What CreateContainer carries on a node with `node_bytes` of memory.

        Source: kubelet, GetContainerOOMScoreAdjust.
        """
        if self.node_critical or self.qos is QosClass.GUARANTEED:
            oom_score_adj = -997
        elif self.qos is QosClass.BEST_EFFORT:
            oom_score_adj = 1000
        else:
            request = container.amounts.requests.get("memory", Decimal(0))
            oom_score_adj = min(max(1000 - int(1000 * request / node_bytes), 3), 999)
        return _resources(container.amounts, oom_score_adj)


def read_manifests(text: str) -> tuple[Manifest, ...]:
    """The pods of a JSON or YAML text: one, several documents, or a List. Raises ManifestError."""
    pods = [pod for document in _documents(text) for pod in _pods(document)]
    if not pods:
        raise ManifestError("there is no Pod in it")
    return tuple(_manifest(pod) for pod in pods)


def parse_quantity(value: str | float) -> Decimal:
    """A Kubernetes quantity ("500m", "1.5Gi", 2) in units. Raises ManifestError."""
    match = _QUANTITY.fullmatch(str(value))
    try:
        number = Decimal(match[1] + (match[2] or "")) * _SCALES.get(match[3], Decimal(1)) if match else None
    except InvalidOperation:
        number = None
    if number is None or not 0 <= number <= _LARGEST:
        raise ManifestError(f'{value!r} is no quantity, such as "500m", 2 or "1.5Gi"')
    return number


def qos_class(amounts: tuple[Amounts, ...]) -> QosClass:
    """The class of a pod with these containers (or pod-level resources). Source: kubernetes, ComputePodQOS."""
    requests = _total(a.requests for a in amounts)
    limits = _total(a.limits for a in amounts)
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    all_limited = all(a.limits.get(name, 0) > 0 for a in amounts for name in ("cpu", "memory"))
    return QosClass.GUARANTEED if all_limited and requests == limits else QosClass.BURSTABLE


def _total(lists: Iterator[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for quantities in lists:
        for name in ("cpu", "memory"):
            if quantities.get(name, 0) > 0:
                total[name] = total.get(name, Decimal(0)) + quantities[name]
    return total


def _documents(text: str) -> list[Any]:
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"it is no JSON: {error}") from error
    import yaml  # 20 ms that JSON need not pay

    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"it is no YAML: {error}") from error


def _pods(document: Any) -> Iterator[Any]:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "Pod":
        yield document
    elif kind in ("List", "PodList") and isinstance(document.get("items"), list):
        for item in document["items"]:
            # The items of a PodList carry no kind of their own.
            yield from _pods({"kind": "Pod", **item} if kind == "PodList" and isinstance(item, dict) else item)
    else:
        raise ManifestError(f"its kind is {kind!r}: only a Pod, or a List of them, can be explained")


def _manifest(document: Any) -> Manifest:
    try:
        raw = msgspec.convert(document, _Manifest)
    except msgspec.ValidationError as error:
        raise ManifestError(str(error)) from error
    spec, meta = raw.spec, raw.metadata
    if not spec.containers:
        raise ManifestError("spec.containers is empty")
    containers = (
        *(_container(c, init=True) for c in spec.initContainers or ()),
        *(_container(c, init=False) for c in spec.containers),
    )
    pod_amounts = (
        _amounts(spec.resources) if spec.resources and (spec.resources.requests or spec.resources.limits) else None
    )
    counted = (pod_amounts,) if pod_amounts else tuple(c.amounts for c in containers)
    qos = (raw.status.qosClass if raw.status else None) or qos_class(counted)
    return Manifest(
        pod=_pod(meta, qos),
        qos=qos,
        containers=containers,
        pod_amounts=pod_amounts,
        node_critical=spec.priorityClassName == "system-node-critical",
    )


def _container(raw: _Container, *, init: bool) -> ManifestContainer:
    sidecar = init and raw.restartPolicy == "Always"
    capabilities = raw.securityContext.capabilities if raw.securityContext else None
    added = (capabilities.add if capabilities else None) or ()
    return ManifestContainer(raw.name, init, sidecar, _amounts(raw.resources), added)


def _amounts(raw: _Amounts | None) -> Amounts:
    limits = {name: parse_quantity(value) for name, value in ((raw and raw.limits) or {}).items()}
    requests = {name: parse_quantity(value) for name, value in ((raw and raw.requests) or {}).items()}
    return Amounts(requests={**limits, **requests}, limits=limits)


def _pod(meta: _Metadata, qos: QosClass) -> Pod:
    ref = PodRef(meta.uid or PLACEHOLDER_UID, meta.namespace or "default", meta.name or "")
    kubelets = {
        "io.kubernetes.pod.name": ref.name,
        "io.kubernetes.pod.namespace": ref.namespace,
        "io.kubernetes.pod.uid": ref.uid,
    }
    parent = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: "/burstable", QosClass.BEST_EFFORT: "/besteffort"}[qos]
    labels = {**(meta.labels or {}), **kubelets}
    return Pod(ref, labels, meta.annotations or {}, f"/kubepods{parent}/pod{ref.uid}")


def _sum(containers: tuple[ManifestContainer, ...]) -> Amounts:
    """What the pod as a whole needs at most. Source: kubernetes, component-helpers/resource, PodRequests, PodLimits."""
    return Amounts(
        requests=_pod_total([(c, c.amounts.requests) for c in containers]),
        limits=_pod_total([(c, c.amounts.limits) for c in containers]),
    )


def _pod_total(containers: list[tuple[ManifestContainer, Mapping[str, Decimal]]]) -> dict[str, Decimal]:
    running: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container, quantities in containers:
        for name, quantity in quantities.items():
            before = running.get(name, Decimal(0))
            if container.sidecar or not container.init:
                running[name] = before + quantity
            peak[name] = max(peak.get(name, Decimal(0)), before + quantity)
    return peak


def _resources(amounts: Amounts, oom_score_adj: int) -> Resources:
    """Source: kubelet, calculateLinuxResources, MilliCPUToShares and MilliCPUToQuota."""
    request, limit = (math.ceil(given.get("cpu", Decimal(0)) * 1000) for given in (amounts.requests, amounts.limits))
    return Resources(
        cpu_period_us=_PERIOD_US,
        cpu_quota_us=max(limit * _PERIOD_US // 1000, _MIN_QUOTA_US) if limit else 0,
        cpu_shares=min(max(request * 1024 // 1000, _MIN_SHARES), _MAX_SHARES),
        memory_limit_bytes=math.ceil(amounts.limits.get("memory", Decimal(0))),
        oom_score_adj=oom_score_adj,
    )
