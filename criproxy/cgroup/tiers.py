"""Two tiers of offline pods inside the box, by weights alone: mid goes before low. Pure.

    weight of a mid pod   8 x what it would have, and the kernel's default at least
    weight of a low pod   an eighth of what it would have, and the lowest at least

So of two busy pods that ask for as much, the mid one gets 64 times the CPU of the low one, and 100 (v2) or 512 times
(v1) where both ask for nothing. Within a tier, pods keep the proportions of their requests, from an eighth of a CPU to
32 CPUs. There is no cgroup more, and cpu.idle of the box as a whole keeps both behind online pods as before.

Memory: what a mid pod has is protected from reclaim within the box while low pods have any (memory.low, v2 alone).
"""

from collections.abc import Mapping
from typing import Final

FACTOR: Final = 8

_RANGES: Final[Mapping[int, tuple[int, int, int]]] = {1: (2, 1024, 262144), 2: (1, 100, 10000)}
"""Lowest, default and highest weight, by the cgroups' version. Source: kernel/sched/sched.h; cgroup-v2.rst, Weights."""


def tiered(weight: int | None, mid: bool, version: int) -> int:
    """`weight` as the pod would have it without tiers, in the unit of the kernel's file; None: the lowest."""
    lowest, default, highest = _RANGES[version]
    weight = lowest if weight is None else weight
    return min(highest, max(default, FACTOR * weight)) if mid else max(lowest, weight // FACTOR)
