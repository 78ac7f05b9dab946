"""What is read of a pod for its owner's history. Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from criproxy_cluster.objects import Json
from criproxy_cluster.owners.rules import Asked, alone_s, deadline_s
from criproxy_cluster.vocabulary.names import ALONE_SECONDS, DEADLINE, OVERFLOW, RAISED, TIER
from criproxy_cluster.vocabulary.times import wall_s

ENDED: Final = ("Succeeded", "Failed")
EVICTED: Final = "Evicted"
"""The reason of a pod that kubelet has evicted."""

DISRUPTED: Final = "DisruptionTarget"
"""The condition of a pod that is made to leave. Source: Kubernetes, "Pod disruption conditions"."""

LONGEST_KIND: Final = 63
LONGEST_NAME: Final = 253
LONGEST_UID: Final = 63
"""Characters of an owner reference, in which Kubernetes bounds none of the three. What owns pods has no longer ones."""


class OwnerReference(Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class OwnedMeta(Struct, frozen=True, gc=False, rename="camel"):
    """A pod goes by its uid here."""

    name: str = msgspec.field(name="uid", default="")
    resource_version: str = ""
    pod_name: str = msgspec.field(name="name", default="")
    namespace: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class OwnedSpec(Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class PodCondition(Struct, frozen=True, gc=False, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class Terminated(Struct, frozen=True, gc=False, rename="camel"):
    finished_at: str | None = None


class ContainerState(Struct, frozen=True, gc=False):
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, gc=False):
    state: ContainerState = ContainerState()


class OwnedStatus(Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    reason: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class OwnedPodObject(Struct):
    """Source: core/v1 Pod."""

    metadata: OwnedMeta = OwnedMeta()
    spec: OwnedSpec = OwnedSpec()
    status: OwnedStatus = OwnedStatus()


class Owner(Struct, frozen=True, gc=False, order=True):
    """Of two with the same name, one after the other, the uid tells which it is."""

    namespace: str
    kind: str
    name: str
    uid: str


class OwnedPod(Struct, frozen=True, gc=False):
    """Times are in seconds since 1970. `phase` "": it has not ended. `leaving`: it is being deleted."""

    uid: str
    name: str
    owner: Owner
    created_s: float
    version: str = ""
    bound_s: float | None = None
    """When it was placed; None: it waits for a node."""
    phase: str = ""
    ended_s: float = 0.0
    evicted_s: float | None = None
    leaving: bool = False
    raised: bool = False
    tiered: bool = False
    """Whether its author has said which tier it is of."""
    overflowed: bool = False
    alone_s: float = 0.0

    @property
    def waits(self) -> bool:
        return self.bound_s is None and not self.phase and not self.leaving


def controller_of(namespace: str, references: Iterable[OwnerReference]) -> Owner | None:
    """A pod's controller. None: it has none, or its author names one that can't be: too long, or no printable ASCII."""
    one = next((one for one in references if one.controller), None)
    if one is None:
        return None
    bounded = ((one.kind, LONGEST_KIND), (one.name, LONGEST_NAME), (one.uid, LONGEST_UID))
    if not all(len(text) <= longest and text.isascii() and text.isprintable() for text, longest in bounded):
        return None
    return Owner(namespace, one.kind, one.name, one.uid)


def owned_pod(found: OwnedPodObject) -> OwnedPod:
    """Never raises: what can't be read counts as not there."""
    meta, status = found.metadata, found.status
    annotations, labels = meta.annotations or {}, meta.labels or {}
    created_s = _time(meta.creation_timestamp)
    conditions = {one.type: one for one in status.conditions or () if one.status == "True"}
    placed = conditions.get("PodScheduled")
    phase = status.phase if status.phase in ENDED else ""
    ended_s = max((_ended(one) for one in status.container_statuses or ()), default=0.0)
    evicted_s = None
    if disrupted := conditions.get(DISRUPTED):
        evicted_s = _time(disrupted.last_transition_time)
    elif status.phase == "Failed" and status.reason == EVICTED:
        evicted_s = ended_s or created_s
    return OwnedPod(
        uid=meta.name,
        name=meta.pod_name,
        owner=controller_of(meta.namespace, meta.owner_references or ())
        or Owner(meta.namespace, "Pod", meta.pod_name, meta.name),
        created_s=created_s,
        version=meta.resource_version,
        bound_s=(_time(placed.last_transition_time) if placed else created_s) if found.spec.node_name else None,
        phase=phase,
        ended_s=ended_s,
        evicted_s=evicted_s if found.spec.node_name else None,
        leaving=meta.deletion_timestamp is not None,
        raised=RAISED in annotations,
        tiered=TIER in labels,
        overflowed=OVERFLOW in annotations,
        alone_s=alone_s(annotations.get(ALONE_SECONDS)),
    )


def asked_of(annotations: Json) -> Asked:
    return Asked(deadline_s(annotations.get(DEADLINE)), alone_s(annotations.get(ALONE_SECONDS)))


def _ended(one: ContainerStatus) -> float:
    return _time(one.state.terminated.finished_at) if one.state.terminated else 0.0


def _time(text: str | None) -> float:
    try:
        return wall_s(text) if text else 0.0
    except ValueError:
        return 0.0
