"""What a pod asks of what nodes lend: its weight inside the box, and its memory limits.

Such a pod has no requests of the ordinary kind, so kubelet makes it BestEffort: the lowest weight, and no memory limit.
What it asks for, kubelet does not tell the runtime. The webhook that made it so writes it down in an annotation, which
kubelet passes on; criproxy's own (criproxy-cluster) in the quantities that the author wrote, Koordinator's in those
that the scheduler counts:

    colocation.criproxy.io/resources:
      {"containers": {"main": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}},
       "initContainers": {"fetch": {"requests": {"cpu": "1"}}, "log": {"restartPolicy": "Always"}}}

    node.koordinator.sh/extended-resource-spec:
      {"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"},
                               "limits":   {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}}}}

batch-cpu counts thousandths of a CPU. Requests of CPU become CPU shares, as kubelet makes them of ordinary ones; limits
of memory become memory limits. Both are given to the cgroups of the pod and of its containers (`pods.pod_limits`), and
never to the runtime: kubelet takes what the runtime reports of a container for what the pod requests, and what is lent
would count as the node's own. A limit of CPU becomes no quota, as what online leaves is there to be used: it says on
how many CPUs the pod stays (`control.cpu_pins`). What kubelet sets itself, for requests and limits of the ordinary
kind, stays. Where the first is there, the second is not read: the first says of each container what it asks for by now.
A pod that keeps its requests (`KEEP_REQUESTS`) was promised those and nothing else, and neither is read.

Whoever may create a pod may write anything there, where no webhook writes it. Nothing in it can lift a pod above the
box: shares compare siblings in it only, are never more than the node's CPUs (`BoxPods`), and a memory limit
only takes away. What makes no sense is ignored, as a whole.
Source: Koordinator, apis/extension/resource.go and pkg/koordlet/runtimehooks/hooks/batchresource; KEP-753.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from criproxy.model import HIGHEST_SHARES, LOWEST_SHARES, NO_LIMIT_BYTES, Asked, ContainerKind
from criproxy.vocabulary.names import EXTENDED_SPEC, KEEP_REQUESTS, MOST_CONTAINERS, MOST_RECORDED, RESOURCES
from criproxy.vocabulary.presets import CORES, NAMES, ExtendedNames
from criproxy.vocabulary.quantities import parse_quantity

ANNOTATIONS: Final[Mapping[str, ExtendedNames]] = {
    RESOURCES: ExtendedNames("cpu", "memory", CORES),
    EXTENDED_SPEC: NAMES["batch"],
}
"""The first that is there holds."""

_MOST_TABLES: Final = 4 * (MOST_CONTAINERS + 1)
"""In the annotation's JSON: of a container, itself, its requests and its limits, and one that others may add."""

_MOST_MILLICORES: Final = 1_000_000_000
"""Of a container's limit: no node has a million CPUs."""

_Amounts = Mapping[str, str | int | float] | None


class _RawSpecOfContainer(Struct, frozen=True):
    requests: _Amounts = None
    limits: _Amounts = None
    restartPolicy: str | None = None


_Containers = Mapping[str, _RawSpecOfContainer] | None


class _RawExtendedSpec(Struct, frozen=True):
    containers: _Containers = None
    initContainers: _Containers = None


def asked_by(annotations: Mapping[str, str]) -> dict[str, Asked]:
    """What each container asks for, by its name; init containers first, in their order.

    Raises ValueError for what makes no sense.
    """
    if annotations.get(KEEP_REQUESTS) == "true":
        return {}
    for annotation, names in ANNOTATIONS.items():
        if (text := annotations.get(annotation)) is not None:
            try:
                return _read(text, names)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"annotation {annotation}: {error}") from error
    return {}


def _read(text: str, names: ExtendedNames) -> dict[str, Asked]:
    if len(text) > MOST_RECORDED:
        raise ValueError(f"it has {len(text)} characters, more than {MOST_RECORDED}")
    if text.count("{") > _MOST_TABLES:  # before each becomes an object
        raise ValueError(f"it has more tables than {MOST_CONTAINERS} containers need")
    raw = msgspec.json.decode(text, type=_RawExtendedSpec)
    inits, mains = raw.initContainers or {}, raw.containers or {}
    if (count := len(inits) + len(mains)) > MOST_CONTAINERS:
        raise ValueError(f"it has {count} containers, more than {MOST_CONTAINERS}")
    kinds = {True: ContainerKind.SIDECAR, False: ContainerKind.INIT}
    found = {name: _asked(one, names, kinds[one.restartPolicy == "Always"]) for name, one in inits.items()}
    return found | {name: _asked(one, names, ContainerKind.MAIN) for name, one in mains.items()}


def of_pod(containers: Mapping[str, Asked]) -> Asked:
    """What the pod asks for as a whole; one container without a limit, and the pod has none.

    It is the most that any moment of its life asks for: containers and sidecars together, or an init container with the
    sidecars that start before it. One without shares has the lowest, as kubelet would give it. Source: KEP-753.
    """
    if not containers:
        return Asked()
    asked = tuple(containers.values())
    return Asked(
        min(HIGHEST_SHARES, _most([(one.cpu_shares or LOWEST_SHARES, one.kind) for one in asked])),
        _limit_bytes(_most_limit([(one.memory_bytes, one.kind) for one in asked])),
        _most_limit([(one.cpu_limit_millicores, one.kind) for one in asked]),
    )


def once_initialized(containers: Mapping[str, Asked]) -> Asked:
    """As `of_pod`, once its init containers have ended."""
    return of_pod({name: one for name, one in containers.items() if one.kind is not ContainerKind.INIT})


def _most(amounts: Collection[tuple[int, ContainerKind]]) -> int:
    together = most = 0
    for amount, kind in amounts:
        if kind is ContainerKind.INIT:
            most = max(most, together + amount)
        else:
            together += amount
    return max(most, together)


def _most_limit(limits: Collection[tuple[int, ContainerKind]]) -> int:
    return _most(limits) if all(limit for limit, _ in limits) else 0


def _asked(raw: _RawSpecOfContainer, names: ExtendedNames, kind: ContainerKind) -> Asked:
    times = 1000 // names.per_core
    millicores = _amount(raw.requests, names.cpu, times)
    shares = min(HIGHEST_SHARES, max(LOWEST_SHARES, millicores * 1024 // 1000)) if millicores else 0
    cpu_limit_millicores = _amount(raw.limits, names.cpu, times)
    if cpu_limit_millicores > _MOST_MILLICORES:
        raise ValueError(f"{names.cpu} is more than any node has")
    return Asked(shares, _limit_bytes(_amount(raw.limits, names.memory)), cpu_limit_millicores, kind)


def _limit_bytes(amount: int) -> int:
    """0 for what is no limit."""
    return amount if amount < NO_LIMIT_BYTES else 0


def _amount(amounts: _Amounts, name: str, times: int = 1) -> int:
    """In whole ones, rounded up; 0: it is not there."""
    value = times * parse_quantity(str((amounts or {}).get(name, 0)))
    if not math.isfinite(value):
        raise ValueError(f"{name} is more than any node has")
    return math.ceil(round(value, 6))  # 4.03 x 1000 is 4030 and not a little more
