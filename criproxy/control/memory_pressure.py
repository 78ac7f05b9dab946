"""How near the node is to kubelet's eviction of pods for memory, and when an offline pod must go instead.

kubelet evicts when memory.available (capacity - working set) falls below its evictionHard, and ranks pods by usage over
requests; offline pods are outside its cgroups, so it counts them as 0 and evicts online first. So:

    kept free:  evictionHard + margin, which the policy's memory limit leaves, whatever the watermark says
    half-way:   evictionHard + margin / 2; below it, while the box is above its bound, the largest offline pod goes

A box within its bound has nothing to give back, and no pod of it is stopped. Source: kubelet, pkg/kubelet/eviction
(helpers.go, rankMemoryPressure); Kubernetes documentation, Node-pressure Eviction.
"""

import math
from typing import Final

from msgspec import Struct

MARGIN_RATIO: Final = 0.02
LEAST_MARGIN_BYTES: Final = 100 << 20
"""The larger of these two is the margin: online may grow by half of it between a pod's stop and kubelet's eviction."""

LASTING_S: Final = 2.0
"""For so long the box must be above its bound, as page cache that is being reclaimed is for a moment; not if kubelet's
threshold is crossed already.
"""

PAUSE_S: Final = 10.0
"""From one stop to the next: a pod's memory takes a moment to become free."""


class EvictionHard(Struct, frozen=True):
    """kubelet's evictionHard for memory.available: `size_bytes` + `ratio` of the node's memory; both 0: it has none.

    `source` says where it is set. `problem`: why it could not be read, so that this is kubelet's default; "": it was.
    """

    size_bytes: int = 100 << 20
    ratio: float = 0.0
    source: str = "kubelet's default"
    problem: str = ""

    def of(self, capacity_bytes: float) -> float:
        """The threshold in bytes."""
        return self.size_bytes + self.ratio * capacity_bytes


def margin_bytes(capacity_bytes: float) -> float:
    return max(LEAST_MARGIN_BYTES, MARGIN_RATIO * capacity_bytes)


def kept_free_bytes(hard: EvictionHard, capacity_bytes: float) -> float:
    """What the box's limit leaves free on the node; 0 where kubelet evicts no pod for memory."""
    threshold = hard.of(capacity_bytes)
    if not (0.0 < threshold < capacity_bytes and math.isfinite(capacity_bytes)):
        return 0.0
    return threshold + margin_bytes(capacity_bytes)


def halfway_bytes(hard: EvictionHard, capacity_bytes: float) -> float:
    """The memory.available below which an offline pod is stopped; 0 where kubelet evicts no pod for memory."""
    kept = kept_free_bytes(hard, capacity_bytes)
    return kept and kept - margin_bytes(capacity_bytes) / 2


class Evidence(Struct, frozen=True):
    """One sample, in bytes: `node` and `box` are working sets. `bound`: the box's wanted limit, None: it has none."""

    t_s: float
    capacity: float
    node: float
    box: float
    bound: float | None
    hard: EvictionHard

    @property
    def available(self) -> float:
        """As kubelet counts it."""
        return self.capacity - self.node


class PressureState(Struct, frozen=True):
    """`above_since_s`: since when the box is above its bound, None: it is within. `acted_s`: of the last stop."""

    above_since_s: float | None = None
    acted_s: float = -math.inf


class Verdict(Struct, frozen=True):
    """`over`: the node is past half-way and the box above its bound. `act`: the largest offline pod is to go."""

    over: bool
    act: bool


def decide(evidence: Evidence, state: PressureState) -> tuple[Verdict, PressureState]:
    """Whether to stop an offline pod now. Never raises; time must not go back from call to call."""
    bound = evidence.bound
    above = bound is not None and evidence.box > bound
    since_s = None if not above else evidence.t_s if state.above_since_s is None else state.above_since_s
    over = above and evidence.available < halfway_bytes(evidence.hard, evidence.capacity)
    crossed = evidence.available <= evidence.hard.of(evidence.capacity)
    lasts = since_s is not None and evidence.t_s - since_s >= LASTING_S
    act = over and (lasts or crossed) and evidence.t_s - state.acted_s >= PAUSE_S
    return Verdict(over, act), PressureState(since_s, evidence.t_s if act else state.acted_s)


class EvictionStatus(Struct, frozen=True):
    """How near the node is to kubelet's eviction of pods for memory. Bytes are None before the first sample.

    `hard_bytes` is kubelet's evictionHard for memory.available, set where `source` says (0: it has none); `problem`
    says why it is not known, so that kubelet's default stands there. Below `halfway_bytes`, while the box is above its
    limit, the largest offline pod is stopped. `last`: the last one, and why; "": none was.
    """

    source: str
    problem: str
    hard_bytes: int | None
    halfway_bytes: int | None
    available_bytes: int | None
    last: str
