"""From the counters of the node and the box to a snapshot: rates since the last sample, and what online uses."""

from msgspec import Struct

from criproxy.control.capacity import Capacity
from criproxy.model import Snapshot, Usage


class Reading(Struct, frozen=True):
    """The counters at one moment (`t_s`: CLOCK_BOOTTIME). `box` is None while there is no box."""

    t_s: float
    node: Usage
    box: Usage | None
    capacity: Capacity


class Sampler:
    """Remembers the last reading only, so its cost depends neither on time nor on the number of pods."""

    def __init__(self) -> None:
        self._last: Reading | None = None

    def sample(self, reading: Reading) -> Snapshot | None:
        """The snapshot since the last reading; None when no rate can be told.

        That is so for the first reading, for one that is not newer than the last, and when the node's own counter has
        gone back. A box that has appeared, or whose counter has gone back (made anew), has used what it shows now; one
        that has vanished uses nothing, and its last moments count as online's.
        """
        last = self._last
        if last is not None and reading.t_s <= last.t_s:
            return None
        self._last = reading
        if last is None or reading.node.cpu_usage_s < last.node.cpu_usage_s:
            return None
        dt_s = reading.t_s - last.t_s
        node_cores = (reading.node.cpu_usage_s - last.node.cpu_usage_s) / dt_s
        used_s, throttled_s = _since(reading.box, last.box)
        box_bytes = reading.box.working_set_bytes if reading.box else 0
        return Snapshot(
            t_s=reading.t_s,
            capacity_cores=reading.capacity.cores,
            capacity_bytes=reading.capacity.memory_bytes,
            node_cores=node_cores,
            node_bytes=reading.node.working_set_bytes,
            box_cores=used_s / dt_s,
            box_bytes=box_bytes,
            online_cores=max(0.0, node_cores - used_s / dt_s),
            online_bytes=max(0, reading.node.working_set_bytes - box_bytes),
            # The kernel adds up what each CPU was throttled for.
            throttled_ratio=min(1.0, throttled_s / (dt_s * reading.capacity.cores)),
        )


def _since(box: Usage | None, last: Usage | None) -> tuple[float, float]:
    """CPU seconds that the box used and was throttled for since the last reading."""
    if box is None:
        return 0.0, 0.0
    if last is None or box.cpu_usage_s < last.cpu_usage_s:
        return box.cpu_usage_s, box.throttled_s
    return box.cpu_usage_s - last.cpu_usage_s, max(0.0, box.throttled_s - last.throttled_s)
