"""How much of the box's memory is taken back before anybody is short of it: senpai's law. Pure.

    bytes = the box's memory x 1 % x max(0, 1 - pressure / 0.1 %)          each 6 s

Pressure is the share of the time for which some process of the box waited for memory: since the last step, or on
average of the last minute, whichever is more. So what nobody uses goes step by step, and as soon as the box waits for
what has gone, less is taken, or nothing for some minutes.

Source: github.com/facebookincubator/senpai, senpai.py; Weiner et al., "TMO: Transparent Memory Offloading in
Datacenters", ASPLOS 2022, 3.3.
"""

import math
from typing import Final

from msgspec import Struct

from criproxy.model.signals import Stall

EVERY_S: Final = 6.0
_MOST_RATIO: Final = 0.01
_PRESSURE_RATIO: Final = 0.001
"""At this pressure and above, nothing is taken."""

_MINUTE_S: Final = 60.0


class ReclaimState(Struct, frozen=True):
    """`last`: the reading before. `minute_ratio`: the pressure as a decaying average, as the kernel's avg60."""

    last: Stall | None = None
    minute_ratio: float = 0.0


def step(stall: Stall, size_bytes: int, state: ReclaimState) -> tuple[int, ReclaimState]:
    """How many bytes to take back now of `size_bytes` that could be; 0 where pressure is not known yet.

    `stall`: for how long processes of the box have waited for memory.
    """
    last = state.last
    passed_s = 0.0 if last is None else stall.read_s - last.read_s
    if last is None or passed_s <= 0.0 or stall.some_s < last.some_s:  # a box that was made anew counts from 0
        return 0, ReclaimState(stall, state.minute_ratio)
    since_ratio = (stall.some_s - last.some_s) / passed_s
    minute_ratio = since_ratio + (state.minute_ratio - since_ratio) * math.exp(-passed_s / _MINUTE_S)
    share = _MOST_RATIO * max(0.0, 1.0 - max(since_ratio, minute_ratio) / _PRESSURE_RATIO)
    return int(size_bytes * share), ReclaimState(stall, minute_ratio)
