"""What each law would publish of one node, cell by cell: criproxy's by its own predictors and its own law. Pure.

An amount stands in the cell whose samples it is made from, and is known to the scheduler from the next cell on. Only
foresight knows what is to come.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate.cluster import laws
from criproxy.commands.simulate.cluster.record import Grid, RecordedNode, on_grid
from criproxy.commands.simulate.trace import Trace
from criproxy.config.settings import Config
from criproxy.control.decider import HOUR_ALPHA_RATIO, HOUR_COLD_START_PROBES, HOUR_S
from criproxy.control.histogram import DecayedMass
from criproxy.control.memory_pressure import EvictionHard, kept_free_bytes
from criproxy.control.predictor import make_predictor
from criproxy.control.publication import OpenBoxSettings, RecentMean, by_forecast, by_open_box, within
from criproxy.control.resources import RESOURCES
from criproxy.control.series import PredictorSettings
from criproxy.model import CPU, MEMORY

HARD: Final = EvictionHard()
_HOUR: Final = PredictorSettings(
    alpha_ratio=HOUR_ALPHA_RATIO, horizon_s=HOUR_S, cold_start_probes=HOUR_COLD_START_PROBES
)
OPEN_BOX: Final = OpenBoxSettings()
_CPU: Final = Config().cpu
_MEMORY: Final = Config().memory


class Foreseen(Struct, frozen=True):
    """Of one node, per cell: what online used, NaN where that is not on record, and what each law would publish.

    CPU in cores; memory in bytes, None where it is not recorded.
    """

    capacity_cores: float
    capacity_bytes: float
    cpu: "array[float]"
    memory: "array[float] | None"
    lent_cpu: dict[str, "array[float]"]
    lent_memory: dict[str, "array[float]"]
    open_box: "OpenBoxAt | None" = None


class OpenBoxAt(Struct, frozen=True):
    """What criproxy's law of an open box is made from, per cell: online's mean of the last 5 minutes, and the hour's
    forecast, in cores. What pods really got moves the rest of it (`pod_speed.Feedback`).
    """

    recent: "array[float]"
    hour: "array[float]"

    def lent(self, cell: int, capacity: float, factor: float) -> float:
        """NaN where nothing is known."""
        recent, hour = self.recent[cell], self.hour[cell]
        amount = by_open_box(
            capacity, recent, hour, watermark_ratio=OPEN_BOX.watermark_ratio, factor=factor, reserve=_CPU.reserve_cores
        )
        return within(amount, capacity, _CPU.min_cores, _CPU.max_cores) if recent >= 0.0 else math.nan


class NodeOnGrid(Struct, frozen=True):
    """The work on one node."""

    node: RecordedNode
    grid: Grid

    @property
    def weight(self) -> int:
        return len(self.node.cpu.times_s) * (1 if self.node.memory is None else 2)


def foresee(work: NodeOnGrid) -> Foreseen:
    node, grid = work.node, work.grid
    cpu = on_grid(node.cpu.times_s, node.cpu.usages, grid)
    known = list(_known(node.cpu, CPU))
    recent, hour = (on_grid(node.cpu.times_s, [one[i] for one in known], grid, last=True) for i in (_RECENT, _FORECAST))
    open_box = OpenBoxAt(recent, hour)
    lent_cpu = _laid_out(node.cpu, _cpu_amounts(node.cpu, known), grid)
    factor = 1.0 / OPEN_BOX.speed_ratio
    lent_cpu["criproxy"] = array("f", [open_box.lent(k, node.cpu.capacity, factor) for k in range(grid.cells)])
    lent_cpu["foresight"] = _ahead(cpu, node.cpu.capacity, grid)
    if node.memory is None:
        return Foreseen(node.cpu.capacity, 0.0, cpu, None, lent_cpu, {}, open_box)
    memory = on_grid(node.memory.times_s, node.memory.usages, grid)
    lent_memory = _laid_out(node.memory, _memory_amounts(node.memory), grid)
    lent_memory["criproxy"] = lent_memory["criproxy_former"]
    capacity = node.memory.capacity
    lent_memory["foresight"] = _ahead(memory, capacity - kept_free_bytes(HARD, capacity), grid)
    return Foreseen(node.cpu.capacity, capacity, cpu, memory, lent_cpu, lent_memory, open_box)


_Known = tuple[float, float, float, float]
_RECENT, _FORECAST = 1, 2

_Lent = tuple[float, float, float, float]
"""Of criproxy before, Koordinator, TKE, Bilibili."""

_IN_TURN: Final[tuple[laws.LawOfAmounts, ...]] = ("criproxy_former", "koordinator", "tke", "bilibili")


def _laid_out(trace: Trace, amounts: Iterator[_Lent], grid: Grid) -> dict[str, "array[float]"]:
    columns = zip(*amounts, strict=True)
    return {
        name: on_grid(trace.times_s, column, grid, last=True) for name, column in zip(_IN_TURN, columns, strict=True)
    }


def _cpu_amounts(trace: Trace, known: Sequence[_Known]) -> Iterator[_Lent]:
    settings, capacity = _CPU, trace.capacity
    floor, reserve, ceiling = settings.min_cores, settings.reserve_cores, settings.max_cores
    for used, recent, hour, day in known:
        former = by_forecast(capacity, hour, watermark_ratio=laws.FORMER_WATERMARK_RATIO, reserve=reserve)
        yield (
            within(former, capacity, floor, ceiling),
            max(0.0, laws.KOORDINATOR_CPU_RATIO * capacity - recent),
            max(0.0, capacity - max(used, day)),
            max(0.0, laws.BILIBILI_RATIO * capacity - used),
        )


def _memory_amounts(trace: Trace) -> Iterator[_Lent]:
    settings, capacity = _MEMORY, trace.capacity
    floor, reserve, ceiling = settings.min_bytes, settings.reserve_bytes, settings.max_bytes
    kept = kept_free_bytes(HARD, capacity)
    for used, recent, hour, day in _known(trace, MEMORY):
        ours = by_forecast(capacity, hour, watermark_ratio=settings.watermark_ratio, reserve=reserve, kept=kept)
        ours = within(ours, capacity, floor, ceiling)
        yield (
            ours,
            max(0.0, laws.KOORDINATOR_MEMORY_RATIO * capacity - recent),
            max(0.0, capacity - day),
            max(0.0, laws.BILIBILI_RATIO * capacity - used),
        )


def _known(trace: Trace, resource: str) -> Iterator[_Known]:
    """After each sample: what online uses, its mean of the last 5 minutes, criproxy's forecast of the hour, and Crane's
    of the day.
    """
    sampling, capacity = RESOURCES[resource].sampling, trace.capacity
    assert sampling is not None
    buckets = sampling.buckets
    predictor, recent = make_predictor(_HOUR, buckets), RecentMean()
    days = DecayedMass(buckets.count, laws.TKE_HALF_LIFE_S, laws.TKE_PERCENTILE_RATIO)
    for t_s, used in zip(trace.times_s, trace.usages, strict=True):
        hour = predictor.observe(t_s, t_s, used, capacity)
        recent.observe(t_s, used)
        days.add(t_s, buckets.index(used), 1.0)
        day = buckets.uppers[days.pointer] * (1.0 + laws.TKE_MARGIN_RATIO)
        mean = recent.value()
        yield used, used if mean is None else mean, hour, day


def _ahead(used: Sequence[float], capacity: float, grid: Grid) -> "array[float]":
    """What online leaves all through the hour from the beginning of each cell on; NaN where its use is not known."""
    count = max(1, round(HOUR_S / grid.cell_s))
    left, window = array("f", [math.nan]) * len(used), deque[int]()
    for cell in range(len(used) - 1, -1, -1):
        if math.isnan(used[cell]):
            continue
        while window and used[window[-1]] <= used[cell]:
            window.pop()
        window.append(cell)
        while window[0] >= cell + count:
            window.popleft()
        left[cell] = max(0.0, capacity - used[window[0]])
    return left
