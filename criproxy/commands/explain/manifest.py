"""Reads Pod manifests as the calls that kubelet makes of them, as far as criproxy looks at those."""

import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from criproxy.model import EVERY, Adjustment, HostMount, Operation, Pod, PodRef, Resources, Security, Target
from criproxy.vocabulary.manifests import UnreadableManifestError, called, documents, flattened, makes_pods, pod_of

PLACEHOLDER_UID: Final = "UID"
"""Stands for the uid that the API server, or kubelet for a static pod, has not given yet."""

_PERIOD_US: Final = 100_000
"""Kubelet sends it with each container. Source: kubelet, MilliCPUToQuota."""

MOST_OBJECTS: Final = 1000

_HAS_NONE: Final = "has no pod that is known here, and is passed over"
_MAKES: Final = "is passed over: explain its pods when they are made (kubectl get pod NAME -o yaml)"

_NOT_ZERO: Final = re.compile(r"[1-9]")


class ManifestError(ValueError):
    """A manifest is no Pod that kubelet would take; the message says where and why."""


class _RawResources(Struct, frozen=True):
    limits: Mapping[str, str | int | float] | None = None

    @property
    def has_cpu_limit(self) -> bool:
        return _NOT_ZERO.search(str((self.limits or {}).get("cpu", 0))) is not None


class _RawCapabilities(Struct, frozen=True):
    add: tuple[str, ...] | None = None


class _RawSeccompProfile(Struct, frozen=True):
    type: str | None = None


class _RawSecurityContext(Struct, frozen=True):
    """Of a container, or of a pod, which has the profile alone."""

    capabilities: _RawCapabilities | None = None
    privileged: bool | None = None
    seccompProfile: _RawSeccompProfile | None = None
    procMount: str | None = None

    @property
    def profile(self) -> str:
        """ "" where none is set."""
        return (self.seccompProfile.type if self.seccompProfile else None) or ""


class _RawHostPath(Struct, frozen=True):
    path: str


class _RawVolume(Struct, frozen=True):
    name: str = ""
    hostPath: _RawHostPath | None = None


class _RawVolumeMount(Struct, frozen=True):
    name: str = ""
    readOnly: bool | None = None


class _RawPort(Struct, frozen=True):
    hostPort: int | None = None


class _RawContainer(Struct, frozen=True):
    name: str
    ports: tuple[_RawPort, ...] | None = None
    resources: _RawResources | None = None
    securityContext: _RawSecurityContext | None = None
    volumeMounts: tuple[_RawVolumeMount, ...] | None = None


class _RawMetadata(Struct, frozen=True):
    name: str | None = None
    generateName: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class _RawSpec(Struct, frozen=True):
    containers: tuple[_RawContainer, ...]
    initContainers: tuple[_RawContainer, ...] | None = None
    ephemeralContainers: tuple[_RawContainer, ...] | None = None
    runtimeClassName: str | None = None
    resources: _RawResources | None = None
    securityContext: _RawSecurityContext | None = None
    volumes: tuple[_RawVolume, ...] | None = None
    hostNetwork: bool | None = None
    hostPID: bool | None = None
    hostIPC: bool | None = None
    hostUsers: bool | None = None

    def security(self, container: _RawContainer | None) -> Security:
        """What kubelet asks for a container, or for the sandbox, which is privileged if any container is."""
        shared = {"network": self.hostNetwork, "pid": self.hostPID, "ipc": self.hostIPC}
        namespaces = tuple(name for name, is_shared in shared.items() if is_shared)
        if container is None:
            every = (*(self.initContainers or ()), *self.containers)  # ephemeral ones come later
            privileged = any(one.securityContext is not None and one.securityContext.privileged for one in every)
            ports = (port.hostPort or 0 for one in every for port in one.ports or ())
            return Security(privileged, namespaces, host_ports=tuple(port for port in ports if port > 0))
        context = container.securityContext or _RawSecurityContext()
        profile = context.profile or (self.securityContext.profile if self.securityContext else "")
        paths = {one.name: one.hostPath.path for one in self.volumes or () if one.hostPath is not None}
        mounts = container.volumeMounts or ()
        return Security(
            bool(context.privileged),
            namespaces,
            profile in ("", "Unconfined"),
            (context.capabilities.add if context.capabilities else None) or (),
            tuple(HostMount(paths[one.name], bool(one.readOnly)) for one in mounts if one.name in paths),
            unmasked=context.procMount == "Unmasked" and self.hostUsers is not False and not context.privileged,
        )


class _RawPod(Struct, frozen=True):
    metadata: _RawMetadata
    spec: _RawSpec


def everything(_: Adjustment) -> bool:
    return True


class ManifestPart(Struct, frozen=True):
    """A `placing.CallPart`. Its resources say whether there is a CPU quota, not which: kubelet works that out.

    `reach`: which adjustments the node's front can make.
    """

    pod: Pod
    target: Target
    container: str
    resources: Resources
    security: Security = Security()
    reach: Callable[[Adjustment], bool] = everything

    def reaches(self, adjustment: Adjustment) -> bool:
        return self.reach(adjustment)

    def apply(self, adjustment: Adjustment) -> str | int | None:
        """The value before, as far as the manifest says it."""
        if adjustment.field == "annotations":
            begins, every, _ = adjustment.key.partition(EVERY)
            its = self.pod.annotations
            first = next((key for key in its if key.startswith(begins)), "") if every else adjustment.key
            return its.get(first)
        match adjustment.field:
            case "drop_capabilities":
                return None
            case "add_capabilities":
                return ", ".join(self.security.added_capabilities)
            case "seccomp":
                return "Unconfined"
            case "proc_mount":
                return "Unmasked"
            case _:
                return "kubelet's"


class ManifestCall(Struct, frozen=True):
    """A `placing.Opened`: the call that makes the sandbox, or a container."""

    operation: Operation
    pod: Pod
    parts: tuple[ManifestPart]


class Manifest(Struct, frozen=True):
    """A Pod as far as criproxy looks at it: the `calls` for its sandbox and its containers, in kubelet's order.

    `kinds`: those of its containers that are no ordinary ones, in words. `runtime_class`: "" for the node's default.
    """

    pod: Pod
    kinds: Mapping[str, str]
    calls: tuple[ManifestCall, ...]
    runtime_class: str = ""


class ReadManifests(Struct, frozen=True):
    """The pods of a file, and in words what of it has none."""

    pods: tuple[Manifest, ...]
    passed_over: tuple[str, ...] = ()


def read_manifests(data: bytes) -> ReadManifests:
    """The pods of a JSON or YAML file: one object, several documents, or Lists; also those that a controller makes.

    Raises ManifestError, also where there is no pod.
    """
    try:
        objects = list(islice(flattened([one.value for one in documents(data, yaml)]), MOST_OBJECTS + 1))
    except UnreadableManifestError as error:
        raise ManifestError(str(error)) from error
    if len(objects) > MOST_OBJECTS:
        raise ManifestError(f"it has more than {MOST_OBJECTS} objects: split it")
    pods, passed_over = [], []
    for one in objects:
        if (steps := pod_of(one)) is None:
            passed_over.append(f"{called(one)} {_MAKES if makes_pods(one) else _HAS_NONE}")
        else:
            pods.append(_manifest(_template(one, steps), called(one)))
    if not pods:
        raise ManifestError("; ".join(("there is no Pod in it, nor what makes Pods", *passed_over[:3])))
    return ReadManifests(tuple(pods), tuple(passed_over))


def _template(document: dict[str, Any], steps: tuple[str, ...]) -> Any:
    """The pod, with name and namespace of who makes it where it has none of its own."""
    pod: Any = document
    for step in steps:
        pod = pod.get(step) if isinstance(pod, dict) else None
    if not isinstance(pod, dict):
        raise ManifestError(f"{called(document)}: {'.'.join(steps)} is missing")
    maker, meta = document.get("metadata"), pod.get("metadata")
    if not steps or not isinstance(maker, dict) or not isinstance(meta, dict | None):
        return pod
    given = {key: maker[key] for key in ("name", "generateName", "namespace") if key in maker}
    return {**pod, "metadata": {**given, **(meta or {})}}


def _manifest(document: Any, shown: str) -> Manifest:
    try:
        raw = msgspec.convert(document, _RawPod)
    except msgspec.ValidationError as error:
        quotes = "; a word that is a text needs quotes, for kubectl, too" if "Expected `str" in str(error) else ""
        raise ManifestError(f"{shown}: {error}{quotes}") from error
    spec = raw.spec
    if not spec.containers:
        raise ManifestError(f"{shown}: spec.containers is empty")
    inits, later = spec.initContainers or (), spec.ephemeralContainers or ()
    containers = (*inits, *spec.containers)
    # The pod's own limits go before the sum of its containers'. Source: kubelet, calculateSandboxResources.
    limited = any(one.has_cpu_limit for one in (spec.resources, *(each.resources for each in containers)) if one)
    pod = _pod(raw.metadata)
    sandbox = ManifestPart(pod, Target.SANDBOX, "", _resources(limited), spec.security(None))
    start = ManifestCall(Operation.RUN_POD_SANDBOX, pod, (sandbox,))
    creates = (
        ManifestCall(Operation.CREATE_CONTAINER, pod, (_container(pod, one, spec.security(one)),))
        for one in (*containers, *later)
    )
    kinds = {one.name: kind for kind, those in (("init", inits), ("ephemeral", later)) for one in those}
    return Manifest(pod, kinds, (start, *creates), spec.runtimeClassName or "")


def _container(pod: Pod, raw: _RawContainer, security: Security) -> ManifestPart:
    resources = _resources(raw.resources is not None and raw.resources.has_cpu_limit)
    return ManifestPart(pod, Target.CONTAINER, raw.name, resources, security)


def _resources(has_cpu_limit: bool) -> Resources:
    return Resources(cpu_period_us=_PERIOD_US, cpu_quota_us=_PERIOD_US if has_cpu_limit else 0)


def _pod(meta: _RawMetadata) -> Pod:
    ref = PodRef(meta.uid or PLACEHOLDER_UID, meta.namespace or "default", meta.name or meta.generateName or "")
    kubelets = {
        "io.kubernetes.pod.name": ref.name,
        "io.kubernetes.pod.namespace": ref.namespace,
        "io.kubernetes.pod.uid": ref.uid,
    }
    return Pod(ref, {**(meta.labels or {}), **kubelets}, meta.annotations or {})
