"""From the counters of the node and the box to a snapshot: rates since the last sample, and what online uses.

A counter may jump: a CPU comes or goes, a virtual machine is resumed or moved to another host. Such a
reading gives no rate: what a snapshot says is never more than the node has.
"""

from typing import Final

from criproxy.control.resources import RESOURCES, Resource, Sampling
from criproxy.model import Capacity, ResourceSample, Snapshot, Usage, UsageReading

TOLERANCE_RATIO: Final = 0.25
"""Clocks and counters are not read at one instant, so a reading may exceed the capacity by this share of it, and is cut
to it. What exceeds it by more is no measurement.
"""


class Sampler:
    """Remembers the last reading only, so its cost depends neither on time nor on the number of pods."""

    def __init__(self) -> None:
        self._last: tuple[float, UsageReading, Capacity] | None = None
        self.discarded = ""
        """Why the last reading was no measurement, in words; "" when it was one."""

    def sample(self, t_s: float, now: UsageReading, capacity: Capacity) -> Snapshot | None:
        """The snapshot since the last reading; None when there is no rate.

        `t_s` is CLOCK_BOOTTIME, for the order of things. Rates go by `read_s`: it is read with the counters, and stands
        still in a suspended machine, as they do.

        That is so for the first reading, for one that is not newer than the last, and for those that `discarded` is
        about: the node's own counter has gone back, or a counter says more than the machine has. A box that is new, or
        whose counter has gone back (made anew), has used what it shows now, if that is possible: it may have been
        there before us. One that has vanished uses nothing, and its last moments count as online's.
        """
        self.discarded = ""
        if self._last is None:
            self._last = t_s, now, capacity
            return None
        last_s, last, capacity_before = self._last
        if t_s <= last_s or now.read_s <= last.read_s:
            return None
        self._last = t_s, now, capacity
        dt_s = now.read_s - last.read_s
        of, impossible = {}, ""
        for row in RESOURCES.values():
            if row.sampling is not None:
                used = _used(row.sampling, now, last, dt_s)
                impossible = impossible or _impossible(row, row.sampling, used, capacity_before, capacity)
                of[row.name] = _sample(row.sampling, capacity, *used)
        appeared = last.box is None and now.box is not None
        self.discarded = "" if appeared else impossible
        if impossible:
            return None
        # The kernel adds up what each CPU was throttled for.
        throttled_ratio = min(1.0, _throttled_s(now.box, last.box) / (dt_s * capacity.cores))
        return Snapshot(t_s, of, throttled_ratio, now.box.anon_bytes if now.box else 0, now.read_s)


def _sample(sampling: Sampling, has: Capacity, node: float, box: float) -> ResourceSample:
    capacity = sampling.capacity(has)
    return ResourceSample(
        capacity=capacity,
        node=min(node, capacity),
        box=min(box, capacity),
        online=min(max(0, node - box), capacity),
        for_box=sampling.for_box(has),
    )


def _used(sampling: Sampling, now: UsageReading, last: UsageReading, dt_s: float) -> tuple[float, float]:
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
    """Why these can't be measurements, in words; "" when they can. CPUs and memory may have gone since `before`."""
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
