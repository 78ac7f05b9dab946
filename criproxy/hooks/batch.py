"""What a pod asks of what nodes lend: its weight inside the box, and its memory limits.

Such a pod has no requests of the ordinary kind, so kubelet makes it BestEffort: the lowest weight, and no memory limit.
What it asks for, kubelet does not tell the runtime. The webhook that made it so writes it down in an annotation, which
kubelet passes on; criproxy's own (criproxy-cluster) in the quantities that the author wrote, Koordinator's in those
that the scheduler counts:

    colocation.criproxy.io/resources:
      {"containers": {"main": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}}}

    node.koordinator.sh/extended-resource-spec:
      {"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"},
                               "limits":   {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}}}}

batch-cpu counts thousandths of a CPU. Requests of CPU become CPU shares, as kubelet makes them of ordinary ones; limits
of memory become memory limits. Both are given to the cgroups of the pod and of its containers (`pods.pod_limits`), and
never to the runtime: kubelet takes what the runtime reports of a container for what the pod requests, and what is lent
would count as the node's own. A limit of CPU becomes no quota, as what online leaves is there to be used: it says on
how many CPUs the pod stays (`control.cpu_pins`). What kubelet sets itself, for requests and limits of the ordinary
kind, stays. Of a container that both annotations name, the first holds: it says what the pod asks for by now.

Whoever may create a pod may write anything there. Nothing in it can lift a pod above the box: shares compare siblings
in it only, and a memory limit only takes away. What makes no sense is ignored, as a whole.
Source: Koordinator, apis/extension/resource.go and pkg/koordlet/runtimehooks/hooks/batchresource.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from criproxy.model import HIGHEST_SHARES, LOWEST_SHARES, NO_LIMIT_BYTES, Asked
from criproxy.vocabulary.names import EXTENDED_SPEC, RESOURCES
from criproxy.vocabulary.presets import CORES, NAMES, ExtendedNames
from criproxy.vocabulary.quantities import parse_quantity

_ANNOTATIONS: Final[Mapping[str, ExtendedNames]] = {
    EXTENDED_SPEC: NAMES["batch"],
    RESOURCES: ExtendedNames("cpu", "memory", CORES),
}
"""Of two that name a container, the later one holds."""

_MOST_CHARACTERS: Final = 64 * 1024

_Amounts = Mapping[str, str | int | float] | None


class _RawSpecOfContainer(Struct, frozen=True):
    requests: _Amounts = None
    limits: _Amounts = None


class _RawExtendedSpec(Struct, frozen=True):
    containers: Mapping[str, _RawSpecOfContainer] | None = None


def asked_by(annotations: Mapping[str, str]) -> dict[str, Asked]:
    """What each container asks for, by its name. Raises ValueError for what makes no sense."""
    found: dict[str, Asked] = {}
    for annotation, names in _ANNOTATIONS.items():
        if (text := annotations.get(annotation)) is None:
            continue
        try:
            if len(text) > _MOST_CHARACTERS:
                raise ValueError(f"it has {len(text)} characters, more than {_MOST_CHARACTERS}")
            raw = msgspec.json.decode(text, type=_RawExtendedSpec)
            found |= {name: _asked(one, names) for name, one in (raw.containers or {}).items()}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"annotation {annotation}: {error}") from error
    return found


def of_pod(containers: Mapping[str, Asked]) -> Asked:
    """What the pod asks for as a whole: the sums; one container without a limit, and the pod has none.

    One without shares has the lowest, as kubelet would give it.
    """
    if not containers:
        return Asked()
    memory = [one.memory_bytes for one in containers.values()]
    millicores = [one.cpu_limit_millicores for one in containers.values()]
    return Asked(
        min(HIGHEST_SHARES, sum(one.cpu_shares or LOWEST_SHARES for one in containers.values())),
        sum(memory) if all(memory) else 0,
        sum(millicores) if all(millicores) else 0,
    )


def _asked(raw: _RawSpecOfContainer, names: ExtendedNames) -> Asked:
    times = 1000 // names.per_core
    millicores = _amount(raw.requests, names.cpu, times)
    shares = min(HIGHEST_SHARES, max(LOWEST_SHARES, millicores * 1024 // 1000)) if millicores else 0
    memory_bytes = _amount(raw.limits, names.memory)
    if memory_bytes >= NO_LIMIT_BYTES:
        memory_bytes = 0
    return Asked(shares, memory_bytes, _amount(raw.limits, names.cpu, times))


def _amount(amounts: _Amounts, name: str, times: int = 1) -> int:
    """In whole ones, rounded up; 0: it is not there."""
    value = times * parse_quantity(str((amounts or {}).get(name, 0)))
    if not math.isfinite(value):
        raise ValueError(f"{name} is more than any node has")
    return math.ceil(round(value, 6))  # 4.03 x 1000 is 4030 and not a little more
