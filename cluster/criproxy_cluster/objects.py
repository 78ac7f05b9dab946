"""What is read of Kubernetes' objects. Pure. All other fields are skipped, so that 10,000 nodes take little memory."""

from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from sys import intern
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.vocabulary.names import (
    CONDITION,
    EVICTED,
    EVICTED_FROM,
    OCCUPIED,
    POLICIES,
    POLICY,
    POLICY_STATUS,
    PUBLISHES,
)
from criproxy_cluster.vocabulary.policy import PolicyReport
from criproxy_cluster.vocabulary.presets import NAMES
from criproxy_cluster.vocabulary.published import names_of
from criproxy_cluster.vocabulary.quantities import amount

Json = dict[str, Any]
"""An object as Kubernetes has it in JSON."""

LENT: Final = frozenset(name for preset in NAMES.values() for name, _, _ in preset.rows)


class Meta(Struct, rename="camel"):
    """Source: meta/v1 ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Taint(Struct, frozen=True, gc=False):
    """`more`: when it was added."""

    key: str = ""
    value: str | None = None
    effect: str = ""
    timeAdded: str | None = None


class NodeSpec(Struct):
    taints: tuple[Taint, ...] | None = None
    unschedulable: bool | None = None


class Condition(Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    lastHeartbeatTime: str | None = None


class NodeStatus(Struct):
    capacity: dict[str, Any] | None = None
    allocatable: dict[str, Any] | None = None
    conditions: tuple[Condition, ...] | None = None


class NodeObject(Struct):
    """Source: core/v1 Node."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class PolicyObject(Struct):
    """A ColocationPolicy."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Any = None
    status: Any = None


class CohortObject(Struct):
    """Source: Kueue, kueue.x-k8s.io/v1beta2 Cohort."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Any = None


class Toleration(Struct, frozen=True, gc=False):
    """Source: core/v1 Toleration, but for how long."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class FlavorSpec(Struct, frozen=True, rename="camel"):
    """`node_taints` are of its nodes; Kueue adds its `tolerations` to the pods that it admits there."""

    node_labels: dict[str, str] | None = None
    node_taints: tuple[Taint, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class FlavorObject(Struct):
    """Source: Kueue, kueue.x-k8s.io/v1beta2 ResourceFlavor."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: FlavorSpec = msgspec.field(default_factory=FlavorSpec)


class PodSetAssignment(Struct, rename="camel"):
    """`flavors` and `resource_usage` by the name of a resource, for `count` pods."""

    name: str = "main"
    count: int | None = None
    flavors: dict[str, str] | None = None
    resource_usage: dict[str, Any] | None = None


class Admission(Struct, rename="camel"):
    pod_set_assignments: tuple[PodSetAssignment, ...] | None = None


class WorkloadCondition(Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class PodCount(Struct):
    """How many pods of a pod set, by its name."""

    name: str = "main"
    count: int = 1


class WorkloadMeta(Struct, rename="camel"):
    """A Workload goes by its uid here: its name may be another one's, in another namespace."""

    name: str = msgspec.field(name="uid", default="")
    workload_name: str = msgspec.field(name="name", default="")
    namespace: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class WorkloadSpec(Struct, rename="camel"):
    active: bool | None = None
    pod_sets: tuple[PodCount, ...] | None = None


class WorkloadStatus(Struct, rename="camel"):
    """`reclaimable_pods`: those that have ended, or need nothing any more."""

    admission: Admission | None = None
    conditions: tuple[WorkloadCondition, ...] | None = None
    reclaimable_pods: tuple[PodCount, ...] | None = None


class WorkloadObject(Struct):
    """Source: Kueue, kueue.x-k8s.io/v1beta2 Workload."""

    metadata: WorkloadMeta = msgspec.field(default_factory=WorkloadMeta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class NodeView(Struct, frozen=True, gc=False):
    """A Node, as far as it concerns the controller. `None`: it is not there."""

    name: str
    version: str
    labels: Mapping[str, str]
    policy: str | None
    parts: str | None
    report: PolicyReport | None
    evicted: str | None
    taints: tuple[Taint, ...]
    lent: tuple[str, ...]
    """The names of which it publishes more than 0."""
    beat: str | None
    """When its criproxy last wrote the condition."""
    lends: bool
    """Whether the condition says that it lends. What is published while it does not is somebody else's."""
    reason: str
    """The condition's."""

    @property
    def empty(self) -> bool:
        """Whether it lends nothing, and no offline pod runs on."""
        return not (self.lent or self.lends) and self.reason != OCCUPIED

    @property
    def reports(self) -> bool:
        """Whether criproxy has ever said anything there. Where it has not, it finds its policy when it is put there."""
        return bool(self.report or self.beat or self.reason or self.evicted)

    @property
    def kept_out(self) -> frozenset[str]:
        """The controllers of pods that it has a label for."""
        return frozenset(key[len(EVICTED_FROM) :] for key in self.labels if key.startswith(EVICTED_FROM))


def view(node: NodeObject) -> NodeView:
    """Never raises: what can't be read counts as not there."""
    meta, annotations = node.metadata, node.metadata.annotations or {}
    condition = next((one for one in node.status.conditions or () if one.type == CONDITION), None)
    names = _names(annotations.get(PUBLISHES))
    lent = set[str]()
    for table in (node.status.capacity, node.status.allocatable):
        lent |= {intern(name) for name in (table or {}).keys() & names if _some((table or {})[name])}
    return NodeView(
        name=intern(meta.name),  # a label has it, too
        version=meta.resource_version,
        labels={intern(key): intern(value) for key, value in (meta.labels or {}).items()},
        policy=_interned(annotations.get(POLICY)),
        parts=_interned(annotations.get(POLICIES)),
        report=_report(annotations.get(POLICY_STATUS)),
        evicted=annotations.get(EVICTED),
        taints=node.spec.taints or (),
        lent=tuple(sorted(lent)),
        beat=condition.lastHeartbeatTime if condition else None,
        lends=condition is not None and condition.status == "True",
        reason=intern(condition.reason) if condition else "",
    )


def published(node: NodeObject) -> dict[str, Fraction]:
    """What is published, 0 too, by its name. What can't be read is left out."""
    allocatable = node.status.allocatable or {}
    found = {}
    for name in sorted(allocatable.keys() & _names((node.metadata.annotations or {}).get(PUBLISHES))):
        with suppress(ValueError):
            found[name] = amount(allocatable[name])
    return found


def _names(text: str | None) -> frozenset[str]:
    """The names that are the node's to lend. A node of before does not say them."""
    return LENT if text is None else frozenset(names_of(text))


def _some(quantity: Any) -> bool:
    try:
        return amount(quantity) > 0
    except ValueError:
        return True


def _report(text: str | None) -> PolicyReport | None:
    try:
        return msgspec.json.decode(text, type=PolicyReport) if text else None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _interned(text: str | None) -> str | None:
    return None if text is None else intern(text)
