"""Takes from an offline container the capability to run in real time, which no limit of the box holds."""

from collections.abc import Iterator
from typing import Final

from criproxy.model import Adjustment, PodRequest

SYS_NICE: Final = "SYS_NICE"
_GIVING: Final = frozenset({SYS_NICE, "ALL"})


class RealtimeHook:
    """Drops CAP_SYS_NICE where a container asks for it, by itself or with all others.

    A thread under SCHED_FIFO, SCHED_RR or SCHED_DEADLINE goes before all others, and neither cpu.idle nor a weight nor
    the quota holds it, unless the kernel has RT_GROUP_SCHED, and that not for SCHED_DEADLINE. What is dropped wins over
    what is added, in containerd and CRI-O. A privileged container has all capabilities, whatever it drops.
    Source: sched(7); containerd, internal/cri/opts, WithCapabilities.
    """

    name = "realtime"

    def adjust(self, request: PodRequest) -> Iterator[Adjustment]:
        asked = {name.upper().removeprefix("CAP_") for name in request.added_capabilities}
        if asked & _GIVING:
            yield Adjustment("drop_capabilities", SYS_NICE, "a realtime thread would run past every limit of the box")
