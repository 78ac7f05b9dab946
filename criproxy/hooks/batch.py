"""What a pod asks of Koordinator's batch resources: its weight inside the box, and its memory limits.

Such a pod has no requests of the ordinary kind, so kubelet makes it BestEffort: the lowest weight, and no memory limit.
What it asks for, kubelet does not tell the runtime; Koordinator's webhook writes it down in an annotation, which
kubelet passes on:

    node.koordinator.sh/extended-resource-spec:
      {"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"},
                               "limits":   {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}}}}

batch-cpu counts thousandths of a CPU. Its requests become CPU shares, as kubelet makes them of ordinary ones; limits of
batch-memory become memory limits. Limits of batch-cpu are not taken up: what online leaves is there to be used.
What kubelet sets itself, for requests and limits of the ordinary kind, stays.

Whoever may create a pod may write anything there. Nothing in it can lift a pod above the box: shares compare siblings
in it only, and a memory limit only takes away. What makes no sense is ignored, as a whole.
Source: Koordinator, apis/extension/resource.go and pkg/koordlet/runtimehooks/hooks/batchresource.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from criproxy.model import LOWEST_SHARES, Adjustment, Asked, Operation, PodRequest, Target
from criproxy.model.quantity import parse_quantity

ANNOTATION: Final = "node.koordinator.sh/extended-resource-spec"
BATCH_CPU: Final = "kubernetes.io/batch-cpu"
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"

_MOST_CHARACTERS: Final = 64 * 1024
_HIGHEST_SHARES: Final = 262144
"""Source: Linux, kernel/sched/sched.h, MAX_SHARES."""

_Amounts = Mapping[str, str | int | float] | None


class _RawSpecOfContainer(Struct, frozen=True):
    requests: _Amounts = None
    limits: _Amounts = None


class _RawExtendedSpec(Struct, frozen=True):
    containers: Mapping[str, _RawSpecOfContainer] | None = None


def asked_by(annotations: Mapping[str, str]) -> dict[str, Asked]:
    """What each container asks for, by its name. Raises ValueError for what makes no sense."""
    if (text := annotations.get(ANNOTATION)) is None:
        return {}
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"it has {len(text)} characters, more than {_MOST_CHARACTERS}")
        raw = msgspec.json.decode(text, type=_RawExtendedSpec)
        return {name: _asked(one) for name, one in (raw.containers or {}).items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"annotation {ANNOTATION}: {error}") from error


def of_pod(containers: Mapping[str, Asked]) -> Asked:
    """What the pod asks for as a whole: the sums; one container without a memory limit, and the pod has none.

    One without shares has the lowest, as kubelet would give it.
    """
    if not containers:
        return Asked()
    memory = [one.memory_bytes for one in containers.values()]
    return Asked(
        min(_HIGHEST_SHARES, sum(one.cpu_shares or LOWEST_SHARES for one in containers.values())),
        sum(memory) if all(memory) else 0,
    )


def _asked(raw: _RawSpecOfContainer) -> Asked:
    millicores = _amount(raw.requests, BATCH_CPU)
    shares = min(_HIGHEST_SHARES, max(LOWEST_SHARES, millicores * 1024 // 1000)) if millicores else 0
    return Asked(shares, _amount(raw.limits, BATCH_MEMORY))


def _amount(amounts: _Amounts, name: str) -> int:
    """In whole ones, rounded up; 0: it is not there."""
    value = parse_quantity(str((amounts or {}).get(name, 0)))
    if not math.isfinite(value):
        raise ValueError(f"{name} is more than any node has")
    return math.ceil(value)


class BatchHook:
    """Gives a container the CPU shares and the memory limit that it asks for, where kubelet gave none."""

    name = "batch"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        if request.target is not Target.CONTAINER or request.operation is Operation.UPDATE_CONTAINER_RESOURCES:
            return
        try:
            asked = asked_by(request.annotations).get(request.container, Asked())
        except ValueError:
            return
        now = request.resources
        if asked.cpu_shares and now.cpu_shares <= LOWEST_SHARES:
            yield Adjustment("cpu_shares", asked.cpu_shares, f"its request of {BATCH_CPU}, against others in the box")
        if asked.memory_bytes and not now.memory_limit_bytes:
            yield Adjustment("memory_limit_in_bytes", asked.memory_bytes, f"its limit of {BATCH_MEMORY}")
