"""What is read of Kubernetes' objects, and what is written to them. Pure.

Only the fields that criproxy uses are decoded; all others are skipped, whatever they are.
Source: Kubernetes API reference, core/v1 and policy/v1.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from criproxy.model import PodRef
from criproxy.vocabulary.quantities import amount, rounded_up

T = TypeVar("T")

MAX_MESSAGE: Final = 1024
"""Characters of an event's or a condition's message. Source: core/v1 Event validation, noteLengthLimit."""


UID: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?", re.ASCII)
"""As the API server makes them: names of labels, too. Whoever makes a pod may write any text for its owner's."""


class ObjectError(ValueError):
    """The answer is another object than the request's."""


def decoded(data: bytes, kind: type[T]) -> T:
    """An object of the API. Raises ObjectError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectError(f"not {kind.__name__} as JSON: {str(error)[:200]}") from error


# --- read ------------------------------------------------------------------------------------------------------------


class Owner(Struct, frozen=True, rename="camel"):
    """Source: meta/v1 OwnerReference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Meta(Struct, frozen=True, rename="camel"):
    """Source: meta/v1 ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None


class NodeCondition(Struct, frozen=True):
    type: str = ""
    status: str = ""


class NodeStatus(Struct, frozen=True):
    capacity: Mapping[str, str] | None = None
    allocatable: Mapping[str, str] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(Struct, frozen=True):
    """The own Node, as far as it concerns criproxy."""

    metadata: Meta = Meta()
    status: NodeStatus = NodeStatus()

    def annotation(self, name: str) -> str | None:
        return (self.metadata.annotations or {}).get(name)


class Needs(Struct, frozen=True):
    """Source: core/v1 ResourceRequirements. A quantity may also be a bare number."""

    requests: Mapping[str, str | int | float] | None = None
    limits: Mapping[str, str | int | float] | None = None


class ContainerSpec(Struct, frozen=True, rename="camel"):
    name: str = ""
    resources: Needs = Needs()
    restart_policy: str | None = None
    """Of an init container: "Always" makes it a sidecar, which runs on beside the others."""


class PodSpec(Struct, frozen=True, rename="camel"):
    termination_grace_period_seconds: int | None = None
    containers: tuple[ContainerSpec, ...] | None = None
    init_containers: tuple[ContainerSpec, ...] | None = None
    overhead: Mapping[str, str | int | float] | None = None
    priority: int | None = None


class PodStatus(Struct, frozen=True):
    phase: str = ""


class BoundPod(Struct, frozen=True):
    """A pod that is bound to this node."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ref(self) -> PodRef:
        return PodRef(self.metadata.uid, self.metadata.namespace, self.metadata.name)

    @property
    def controller(self) -> Owner | None:
        """Who makes another pod when this one is gone; None: nobody, or one whose uid is none."""
        owners = self.metadata.owner_references or ()
        return next((owner for owner in owners if owner.controller and UID.fullmatch(owner.uid)), None)

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class StatusCause(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class StatusDetails(Struct, frozen=True, rename="camel"):
    kind: str = ""
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int = 0


class ApiStatus(Struct, frozen=True):
    """How the API server says that something failed, or of some requests that all went well. Source: meta/v1 Status."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None

    def caused_by(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in (self.details and self.details.causes) or ())

    @property
    def denied_by_admission(self) -> bool:
        """Whether an admission webhook or a ValidatingAdmissionPolicy denies it: the code is theirs, and may be any.

        Source: apiserver, admission/plugin: webhook/errors/statuserror.go, policy/validating/dispatcher.go.
        """
        webhook = "admission webhook " in self.message and " denied the request" in self.message
        return webhook or ("ValidatingAdmissionPolicy " in self.message and " denied request: " in self.message)


def status_of(body: bytes) -> ApiStatus:
    """What the server says beside the number. What is no Status (a proxy's page) becomes the message, shortened."""
    try:
        return decoded(body, ApiStatus)
    except ObjectError:
        return ApiStatus(message=" ".join(body[:300].decode(errors="replace").split())[:200])


def allocated(pods: Sequence[BoundPod], names: Sequence[str]) -> dict[str, int]:
    """How much of each of these resources the pods have been promised, rounded up.

    As the scheduler counts it: containers and sidecars together, or the largest init container with the sidecars that
    start before it, and the overhead. Pods that have ended count no more, those that are being deleted do.
    Source: KEP-753, "Resources calculation for scheduling and pod admission". Raises ObjectError.
    """
    running = [pod for pod in pods if not pod.ended]
    return {name: sum((rounded_up(_promised(pod.spec, name)) for pod in running), 0) for name in names}


def told_cores(pod: BoundPod, names: Mapping[str, int]) -> Fraction:
    """The CPUs that the scheduler counts for a pod, as in `allocated`, by all of these resources together.

    `names`: how much of each one core is. Raises ObjectError.
    """
    return sum((_promised(pod.spec, name) / per_core for name, per_core in names.items()), Fraction(0))


def _promised(spec: PodSpec, name: str) -> Fraction:
    sidecars = most = Fraction(0)
    for container in spec.init_containers or ():
        request = _request(container.resources, name)
        if container.restart_policy == "Always":
            sidecars += request
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + request)
    together = sidecars + sum((_request(one.resources, name) for one in spec.containers or ()), Fraction(0))
    return max(most, together) + _amount(spec.overhead, name)


def _request(needs: Needs, name: str) -> Fraction:
    given = needs.requests or {}
    return _amount(given if name in given else needs.limits, name)


def _amount(given: Mapping[str, str | int | float] | None, name: str) -> Fraction:
    try:
        return amount((given or {}).get(name, "0"))
    except ValueError as error:
        raise ObjectError(f"{name}: {error}") from error


def path(*parts: str) -> str:
    """The path of an object below /api/v1, whatever its names hold."""
    return "/".join(("/api/v1", *(quote(part, safe="") for part in parts)))


# --- written ---------------------------------------------------------------------------------------------------------


def annotations_patch(annotations: Mapping[str, str | None]) -> bytes:
    """Sets these annotations; None removes one. Both kinds of a JSON merge patch take it."""
    return msgspec.json.encode({"metadata": {"annotations": dict(annotations)}})


class Condition(Struct, frozen=True, rename="camel"):
    """Source: core/v1 NodeCondition. Times are RFC 3339, UTC."""

    type: str
    status: str
    reason: str
    message: str
    last_heartbeat_time: str
    last_transition_time: str


def status_patch(
    quantities: Mapping[str, int | None], condition: Condition, annotations: Mapping[str, str | None]
) -> bytes:
    """A strategic merge patch for nodes/status, of resources, annotations (None removes one) and one condition.

    All else stays. Kubelet makes allocatable from capacity, but only when it next writes its status: so both are set.
    Kubelet, too, relies on it that nodes/status takes annotations.
    Source: component-helpers, node/util/status.go, preparePatchBytesforNodeStatus.
    """
    amounts = {name: None if amount is None else str(amount) for name, amount in quantities.items()}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [msgspec.to_builtins(condition)]}
    return msgspec.json.encode({"metadata": {"annotations": annotations}, "status": status})


def eviction(pod: PodRef, version: str, grace_period_s: int | None) -> bytes:
    """The body of a POST to pods/eviction. `version` is v1 or v1beta1; None: the pod's own grace period.

    It names the pod's uid, so that a pod of the same name that came since is left alone.
    Source: policy/v1 Eviction; meta/v1 DeleteOptions, preconditions.
    """
    options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    return msgspec.json.encode(
        {
            "apiVersion": f"policy/{version}",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
    )


class Involved(Struct, frozen=True, rename="camel"):
    """Whom an event is about. Source: core/v1 ObjectReference."""

    kind: str
    name: str
    uid: str
    api_version: str = "v1"
    namespace: str = ""


class Event(Struct, frozen=True, rename="camel"):
    """Source: core/v1 Event."""

    metadata: Mapping[str, str]
    involved_object: Involved
    reason: str
    message: str
    type: str
    source: Mapping[str, str]
    first_timestamp: str
    last_timestamp: str
    count: int = 1
    kind: str = "Event"
    api_version: str = "v1"


def event(about: Involved, node: str, reason: str, message: str, *, at: str, name: str, well: bool = False) -> Event:
    """About a pod or the node, a warning unless `well`. `at` is RFC 3339; `name` makes the event's name unique."""
    return Event(
        metadata={"name": f"{about.name}.{name}", "namespace": about.namespace or "default"},
        involved_object=about,
        reason=reason,
        message=message[:MAX_MESSAGE],
        type="Normal" if well else "Warning",
        source={"component": "criproxy", "host": node},
        first_timestamp=at,
        last_timestamp=at,
    )
