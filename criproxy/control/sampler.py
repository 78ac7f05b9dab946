"""From the counters of the node and the box to a snapshot: rates since the last sample, and what online uses.

A counter may jump: a CPU comes or goes, a virtual machine is resumed or moved to another host. Such a
reading gives no rate: what a snapshot says is never more than the node has.
"""

from typing import Final

from msgspec import Struct

from criproxy.control.resources import RESOURCES, Resource, Sampling
from criproxy.model import Capacity, ResourceSample, Snapshot, Usage

TOLERANCE_RATIO: Final = 0.25
"""Of capacity: by so much a reading may exceed it and is cut to it, as clocks and counters are not read at one instant.
What exceeds it by more is no measurement.
"""


class CounterReading(Struct, frozen=True):
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
        self._last: CounterReading | None = None
        self.discarded = ""
        """Why the last reading was no measurement, in words; "": it was one."""

    def sample(self, reading: CounterReading) -> Snapshot | None:
        """The snapshot since the last reading; None when there is no rate.

        That is so for the first reading, for one that is not newer than the last, and for those that `discarded` is
        about: the node's own counter has gone back, or a counter says more than the machine has. A box that is new, or
        whose counter has gone back (made anew), has used what it shows now, if that is possible: it may have been
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
        of, impossible = {}, ""
        for row in RESOURCES.values():
            if row.sampling is not None:
                used = _used(row.sampling, reading, last, dt_s)
                impossible = impossible or _impossible(row, row.sampling, used, last.capacity, reading.capacity)
                of[row.name] = _sample(row.sampling.capacity(reading.capacity), *used)
        appeared = last.box is None and reading.box is not None
        self.discarded = "" if appeared else impossible
        if impossible:
            return None
        # The kernel adds up what each CPU was throttled for.
        throttled_ratio = min(1.0, _throttled_s(reading.box, last.box) / (dt_s * reading.capacity.cores))
        return Snapshot(reading.t_s, of, throttled_ratio)


def _sample(capacity: float, node: float, box: float) -> ResourceSample:
    online = min(max(0, node - box), capacity)
    return ResourceSample(capacity=capacity, node=min(node, capacity), box=min(box, capacity), online=online)


def _used(sampling: Sampling, now: CounterReading, last: CounterReading, dt_s: float) -> tuple[float, float]:
    """What the node and the box use of a resource."""
    node = sampling.used(now.node)
    box = sampling.used(now.box) if now.box else 0
    if not sampling.counter:
        return node, box
    before = sampling.used(last.box) if last.box else 0.0
    return (node - sampling.used(last.node)) / dt_s, (box - before if box >= before else box) / dt_s


def _throttled_s(box: Usage | None, last: Usage | None) -> float:
    """For how long the box was throttled since the last reading."""
    if box is None:
        return 0.0
    if last is None or box.cpu_usage_s < last.cpu_usage_s:
        return box.throttled_s
    return max(0.0, box.throttled_s - last.throttled_s)


def _impossible(row: Resource, sampling: Sampling, used: tuple[float, float], before: Capacity, now: Capacity) -> str:
    """Why these can't be measurements, in words; "": they can. CPUs and memory may have gone since `before`."""
    node, box = used
    most = max(sampling.most(before), sampling.most(now))
    if not sampling.counter:
        beyond = box > most * (1.0 + TOLERANCE_RATIO)
        return f"the box's working set is {box} bytes, of {most}" if beyond else ""
    if node < 0.0:
        return f"the node's {row.title} counter has gone back"
    if max(node, box) > most * (1.0 + TOLERANCE_RATIO):
        whose = "the node's" if node >= box else "the box's"
        return f"{whose} {row.title} counter says {row.words(max(node, box))}, of {most:.2f}"
    return ""
