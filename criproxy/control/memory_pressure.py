"""How near the node is to kubelet's eviction of pods for memory, and whether the box has to answer for it.

kubelet evicts when memory.available (capacity - working set) falls below its evictionHard, or stays below its
evictionSoft for as long as that allows. Either way it ranks pods by usage over requests; offline pods are outside its
cgroups, so it counts them as 0 and evicts online first. So the threshold is the larger of the two, and:

    kept free:  threshold + margin, which the policy's memory limit leaves, whatever the watermark says
    half-way:   threshold + margin / 2; below it, while the box is above its bound, an offline pod goes at once

`interference.ladder` decides when a pod goes, from how near it is (`interference.signals`, memory_shortage) and from
what is said here: whether the box is above its bound. A box within its bound has nothing to give back, and no pod of it
is stopped. Where the box holds more than its bound in anonymous memory alone, no reclaim brings it back, and
memory.high would stall its tasks with the locks that they hold: then one pod goes, too, however much is free. Source:
kubelet, pkg/kubelet/eviction (helpers.go, rankMemoryPressure); Kubernetes documentation, Node-pressure Eviction.
"""

import math
from typing import Final

from msgspec import Struct

MARGIN_RATIO: Final = 0.02
LEAST_MARGIN_BYTES: Final = 100 << 20
"""The larger of these two is the margin: online may grow by half of it between a pod's stop and kubelet's eviction."""

LASTING_S: Final = 2.0
"""How long the box must be above its bound before that counts: page cache that is being reclaimed is, for a moment.
Where kubelet's threshold is crossed already, it counts at once.
"""


class EvictionHard(Struct, frozen=True):
    """kubelet's evictionHard for memory.available: `size_bytes` + `ratio` of the node's memory; both 0: it has none.

    `soft_bytes` and `soft_ratio` are its evictionSoft, in the same way. `source` says where they are set. `problem`:
    why one of them could not be read, so that this is what is assumed (kubelet's default, where evictionHard is not
    known); "": they were.
    """

    size_bytes: int = 100 << 20
    ratio: float = 0.0
    source: str = "kubelet's default"
    problem: str = ""
    soft_bytes: int = 0
    soft_ratio: float = 0.0

    def of(self, capacity_bytes: float) -> float:
        """The threshold in bytes: the larger of the two, as kubelet evicts below either."""
        return max(self.size_bytes + self.ratio * capacity_bytes, self.soft_bytes + self.soft_ratio * capacity_bytes)


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


TOLERATED_RATIO: Final = 0.02
"""A bound moves a little all the time; a box of anonymous memory that is no further above it than this loses no pod."""


class Evidence(Struct, frozen=True):
    """One sample, in bytes: `node` and `box` are working sets; `anon` is what of the box nothing but swap takes back,
    and `charged` all that is charged to it, page cache too.

    `bound`: the limit that the policy gives the box, None: none. It need not answer for what the ladder takes off that.
    `due`: what online leaves it, which is more while the policy is careful for want of knowledge.
    """

    t_s: float
    capacity: float
    node: float
    box: float
    bound: float | None
    hard: EvictionHard
    anon: float = 0.0
    due: float = 0.0
    charged: float = 0.0

    @property
    def irreducible(self) -> bool:
        """Whether no reclaim brings the box back to its bound, or so near to it that its tasks are not stalled.

        A bound that is lower than online needs it to be rises by itself, so that no pod has to go for it.

        Source: mm/memcontrol.c, calculate_high_delay (the stall grows with the square of the excess).
        """
        return self.bound is not None and self.anon > max(self.bound, self.due) * (1.0 + TOLERATED_RATIO)

    @property
    def available(self) -> float:
        """As kubelet counts it."""
        return self.capacity - self.node


class MemoryVerdict(Struct, frozen=True):
    """`above`: the box is above its bound, and not for a moment only. `over`: and the node is past half-way."""

    above: bool
    over: bool


def judge(evidence: Evidence, above_since_s: float | None) -> tuple[MemoryVerdict, float | None]:
    """What the box has to answer for, and since when it is above its bound; None: it is within. Never raises.

    `above_since_s`: what the last call said. Time must not go back from call to call.
    """
    bound = evidence.bound
    above = bound is not None and evidence.box > bound
    since_s = None if not above else evidence.t_s if above_since_s is None else above_since_s
    crossed = evidence.available <= evidence.hard.of(evidence.capacity)
    lasts = since_s is not None and evidence.t_s - since_s >= LASTING_S
    over = above and evidence.available < halfway_bytes(evidence.hard, evidence.capacity)
    return MemoryVerdict(above and (lasts or crossed), over), since_s


class EvictionStatus(Struct, frozen=True):
    """How near the node is to kubelet's eviction of pods for memory. Bytes are None before the first sample.

    `hard_bytes` is the larger of kubelet's evictionHard and evictionSoft for memory.available, set where `source` says
    (0: it has neither); `problem` says why one of them is not known, so that what is assumed stands there. Below
    `halfway_bytes`, while the box is above its limit, an offline pod is stopped. `last`: the last one, and why; "":
    none was.
    """

    source: str
    problem: str
    hard_bytes: int | None
    halfway_bytes: int | None
    available_bytes: int | None
    last: str
