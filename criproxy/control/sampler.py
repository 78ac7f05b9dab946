"""From the counters of the node and the box to a snapshot: rates since the last sample, and what online uses.

A counter may jump: a CPU comes or goes, a virtual machine is resumed or moved to another host. No rate can be told of
such a reading, and none is: what a snapshot says is never more than the node has.
"""

from typing import Final

from msgspec import Struct

from criproxy.control.capacity import Capacity
from criproxy.model import Snapshot, Usage

TOLERANCE_RATIO: Final = 0.25
"""Of capacity: by so much a reading may exceed it and is cut to it, as clocks and counters are not read at one instant.
What exceeds it by more is no measurement.
"""


class Reading(Struct, frozen=True):
    """The counters at one moment. `box` is None while there is no box.

    `t_s` is CLOCK_BOOTTIME, for the order of things; `read_s` CLOCK_MONOTONIC, for rates: it is read with the counters,
    and stands still in a suspended machine, as they do.
    """

    t_s: float
    read_s: float
    node: Usage
    box: Usage | None
    capacity: Capacity


class Sampler:
    """Remembers the last reading only, so its cost depends neither on time nor on the number of pods."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self.discarded = ""
        """Why the last reading was no measurement, in words; "": it was one."""

    def sample(self, reading: Reading) -> Snapshot | None:
        """The snapshot since the last reading; None when no rate can be told.

        That is so for the first reading, for one that is not newer than the last, and for those that `discarded` tells
        of: the node's own counter has gone back, or a counter says more than the machine has. A box that has appeared,
        or whose counter has gone back (made anew), has used what it shows now, if that is possible: it may have been
        there before us. One that has vanished uses nothing, and its last moments count as online's.
        """
        self.discarded = ""
        last = self._last
        if last is not None and (reading.t_s <= last.t_s or reading.read_s <= last.read_s):
            return None
        self._last = reading
        if last is None:
            return None
        dt_s = reading.read_s - last.read_s
        node_cores = (reading.node.cpu_usage_s - last.node.cpu_usage_s) / dt_s
        used_s, throttled_s = _since(reading.box, last.box)
        box_cores = used_s / dt_s
        box_bytes = reading.box.working_set_bytes if reading.box else 0
        impossible = _impossible(node_cores, box_cores, box_bytes, last.capacity, reading.capacity)
        appeared = last.box is None and reading.box is not None
        self.discarded = "" if appeared else impossible
        if impossible:
            return None
        cores, memory_bytes = reading.capacity.cores, reading.capacity.memory_bytes
        return Snapshot(
            t_s=reading.t_s,
            capacity_cores=cores,
            capacity_bytes=memory_bytes,
            node_cores=min(node_cores, cores),
            node_bytes=min(reading.node.working_set_bytes, memory_bytes),
            box_cores=min(box_cores, cores),
            box_bytes=min(box_bytes, memory_bytes),
            online_cores=min(max(0.0, node_cores - box_cores), cores),
            online_bytes=min(max(0, reading.node.working_set_bytes - box_bytes), memory_bytes),
            # The kernel adds up what each CPU was throttled for.
            throttled_ratio=min(1.0, throttled_s / (dt_s * cores)),
        )


def _since(box: Usage | None, last: Usage | None) -> tuple[float, float]:
    """CPU seconds that the box used and was throttled for since the last reading."""
    if box is None:
        return 0.0, 0.0
    if last is None or box.cpu_usage_s < last.cpu_usage_s:
        return box.cpu_usage_s, box.throttled_s
    return box.cpu_usage_s - last.cpu_usage_s, max(0.0, box.throttled_s - last.throttled_s)


def _impossible(node_cores: float, box_cores: float, box_bytes: int, before: Capacity, now: Capacity) -> str:
    """Why these can't be measurements, in words; "": they can. CPUs and memory may have gone since `before`."""
    cores = max(before.cores + before.outside_cores, now.cores + now.outside_cores)
    memory_bytes = max(before.memory_bytes, now.memory_bytes)
    if node_cores < 0.0:
        return "the node's CPU counter has gone back"
    if max(node_cores, box_cores) > cores * (1.0 + TOLERANCE_RATIO):
        whose = "the node's" if node_cores >= box_cores else "the box's"
        return f"{whose} CPU counter says {max(node_cores, box_cores):.2f} cores, of {cores:.2f}"
    if box_bytes > memory_bytes * (1.0 + TOLERANCE_RATIO):
        return f"the box's working set is {box_bytes} bytes, of {memory_bytes}"
    return ""
