"""The resources that the box is bounded by: one row each, and everything that names them is made from the rows.

Limits, samples, predictions, decisions, the status, `--why` and the metrics go by these rows. The settings of a
resource are in the config's section of its name: min_<unit>, max_<unit>, reserve_<unit>, static_<unit> and
watermark_ratio. The drivers in `cgroup` know how a limit is written.
"""

import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from criproxy.control.histogram import CPU_BUCKETS, MEMORY_BUCKETS, Buckets
from criproxy.model import CPU, MEMORY, PIDS, UNLIMITED, Capacity, Limit, Usage


class Sampling(Struct, frozen=True):
    """How a resource's capacity and use are read from the kernel's counters, and the `buckets` of its predictors.

    `used` is of the node or of the box: what is in use, or a `counter` of it, whose rate counts. No reading can be more
    than `most`. `for_box`: see `ResourceSample`.
    """

    capacity: Callable[[Capacity], float]
    most: Callable[[Capacity], float]
    for_box: Callable[[Capacity], float | None]
    used: Callable[[Usage], float]
    counter: bool
    buckets: Buckets
    usage_help: str
    capacity_help: str


class Resource(Struct, frozen=True):
    """A row. `unit` ends the names of its settings, metrics and keys of the status, `head` its line in the status.

    A limit moves in whole `step`s. `words` writes an amount in a sentence, `cell` in a table, and `cell_unit` follows
    the latter in a sentence. `sampling` None: nothing is read nor predicted, so that its limit is as configured.

    Its law: the floor grows by `start` for each pod that is starting, at most by `start_most`; what of it is more than
    `firm_floor` gives way to what must stay free lest kubelet evict pods; and `guarded` says that the guard's ceiling
    holds for it. `kills`: who hits its limit is killed, so that a squeeze leaves the limit alone.
    """

    name: str
    title: str
    unit: str
    head: str
    step: float
    words: Callable[[float], str]
    cell: Callable[[float], str]
    cell_unit: str = ""
    sampling: Sampling | None = None
    start: float = 0.0
    start_most: float = 0.0
    firm_floor: float = math.inf
    guarded: bool = False
    kills: bool = False

    def whole(self, limit: Limit) -> Limit:
        """An int where the unit has no fractions."""
        return limit if limit is UNLIMITED or self.step < 1 else int(limit)


def cores_in_words(cores: float) -> str:
    return f"{cores:.2f} cores"


def bytes_in_words(size_bytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes / 2**10:.0f} KiB"


def bytes_in_a_cell(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.2f} GiB"


_ROWS: Final = (
    Resource(
        name=CPU,
        title="CPU",
        unit="cores",
        head="cores",
        step=0.01,  # the smallest quota that the kernel takes, and what an operator is shown
        words=cores_in_words,
        cell="{:.2f}".format,
        cell_unit=" cores",
        sampling=Sampling(
            capacity=lambda capacity: capacity.cores,
            most=lambda capacity: capacity.cores + capacity.outside_cores,
            for_box=lambda capacity: capacity.for_box_cores,
            used=lambda usage: usage.cpu_usage_s,
            counter=True,
            buckets=CPU_BUCKETS,
            usage_help="CPU in use",
            capacity_help="CPUs of the node",
        ),
        # Runtime and init run within the box's quota, and take about a twentieth of a second of CPU time per pod
        # (`python -m benchmarks.starts`).
        start=0.1,
        start_most=1.0,
        guarded=True,
    ),
    Resource(
        name=MEMORY,
        title="memory",
        unit="bytes",
        head="memory",
        step=1 << 20,  # it comes and goes by pages: without steps, the limit would be written each second
        words=bytes_in_words,
        cell=bytes_in_a_cell,
        sampling=Sampling(
            capacity=lambda capacity: capacity.memory_bytes,
            most=lambda capacity: capacity.memory_bytes,
            for_box=lambda _: None,
            used=lambda usage: usage.working_set_bytes,
            counter=False,
            buckets=MEMORY_BUCKETS,
            usage_help="Memory working set",
            capacity_help="Memory of the node",
        ),
        firm_floor=128 << 20,
        kills=True,
    ),
)

RESOURCES: Final = {row.name: row for row in _ROWS}


class Share(Struct, frozen=True):
    """A row of what the box has a fixed share of, lest pods of it take all: `max_ratio` of what the node can have.

    The box itself counts it out when it is made, as no pod may enter before; so there is no decision about it.
    """

    name: str
    title: str
    bounded_by: str


SHARES: Final = {PIDS: Share(PIDS, "processes and threads", "pids controller")}
