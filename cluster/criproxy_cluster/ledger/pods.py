"""What the ledger reads of Pods and Nodes, and what a pod asks for as a whole. Pure.

Source: Kubernetes, component-helpers/resource/helpers.go (PodRequests): init containers run one after another, beside
the sidecars that were started before; sidecars stay beside the containers.
"""

from contextlib import suppress
from functools import lru_cache
from heapq import nsmallest
from sys import intern
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.ledger.law import Amounts, Pod, total
from criproxy_cluster.objects import LENT, NodeObject, published
from criproxy_cluster.vocabulary.quantities import MOST_CHARACTERS, amount, rounded_up

ENDED: Final = ("Succeeded", "Failed")
MOST_NAMES: Final = 64
"""Of a pod's resources: beyond, only those count that every node lends. An author may write tens of thousands."""

_SHORT: Final = 8
"""What is remembered has no more names."""


class PodMeta(Struct, frozen=True, gc=False):
    """A pod goes by its uid here: a name is another pod's tomorrow, or in another namespace."""

    name: str = msgspec.field(name="uid", default="")
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    pod_name: str = msgspec.field(name="name", default="")
    namespace: str = ""
    labels: dict[str, str] | None = None


class Resources(Struct, frozen=True, gc=False):
    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class Container(Struct, frozen=True, gc=False):
    resources: Resources = Resources()
    restart: str = msgspec.field(name="restartPolicy", default="")


class PodSpec(Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    priority: int = 0
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, Any] | None = None


class PodStatus(Struct, frozen=True, gc=False):
    phase: str = ""


class PodObject(Struct):
    """Source: core/v1 Pod."""

    metadata: PodMeta = PodMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class UnplacedMeta(Struct, frozen=True, gc=False):
    name: str = msgspec.field(name="uid", default="")
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class UnplacedObject(Struct):
    """A pod of which it is enough to know that it is there."""

    metadata: UnplacedMeta = UnplacedMeta()


def pod_of(found: PodObject) -> Pod:
    """Never raises: what can't be read counts as nothing."""
    meta, spec = found.metadata, found.spec
    return Pod(
        uid=meta.name,
        namespace=intern(meta.namespace),
        name=meta.pod_name,
        amounts=_asked(spec),
        priority=spec.priority,
        node=intern(spec.node_name),
        ended=found.status.phase in ENDED,
    )


def lent_by(node: NodeObject) -> dict[str, int]:
    """What it has of that which it lends, by name, rounded down."""
    return {intern(name): int(value) for name, value in published(node).items()}


def _asked(spec: PodSpec) -> Amounts:
    counted = _counted(spec)
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    for one in spec.init_containers or ():
        for name, value in _amounts(one, counted):
            beside = running.get(name, 0) + value
            most[name] = max(most.get(name, 0), beside)
            if one.restart == "Always":
                running[name] = beside
    for one in spec.containers or ():
        for name, value in _amounts(one, counted):
            running[name] = running.get(name, 0) + value
    for name, value in running.items():
        most[name] = max(most.get(name, 0), value)
    overhead = _read(tuple(one for one in (spec.overhead or {}).items() if one[0] in counted))
    return _shared(total([tuple(most.items()), overhead]))


def _counted(spec: PodSpec) -> set[str]:
    """The names of extended resources, which have a domain; of too many, the first and those that every node lends."""
    names = set(spec.overhead or ())
    for one in (*(spec.init_containers or ()), *(spec.containers or ())):
        names.update(one.resources.limits or (), one.resources.requests or ())
    found = {name for name in names if "/" in name}
    return found if len(found) <= MOST_NAMES else {*nsmallest(MOST_NAMES, found), *found.intersection(LENT)}


def _amounts(container: Container, counted: set[str]) -> Amounts:
    """A request that is not there is its limit."""
    found = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return _read(tuple(one for one in found.items() if one[0] in counted))


def _read(quantities: tuple[tuple[str, Any], ...]) -> Amounts:
    is_usual = len(quantities) <= _SHORT and all(
        isinstance(value, (int, str)) and len(str(value)) <= MOST_CHARACTERS for _, value in quantities
    )
    return _remembered(quantities) if is_usual else _made(quantities)


def _made(quantities: tuple[tuple[str, Any], ...]) -> Amounts:
    found = []
    for name, quantity in quantities:
        with suppress(ValueError):
            found.append((intern(name), rounded_up(amount(quantity))))
    return tuple(found)


_remembered: Final = lru_cache(4096)(_made)


@lru_cache(4096)
def _shared(amounts: Amounts) -> Amounts:
    """One for all pods that ask for the same."""
    return amounts
