"""What recorded nodes would have lent and risked: `simulate`'s own replays, summed up for a page.

scores, curve    `simulate --resource cpu` (memory) `--sweep watermark=0.6..0.95`: the box's limit by the second; over
                 all, a node counts as much as another, as a group may be a single node of an odd size
lent             `simulate --cluster`'s forecast: what the law would have published, cell by cell
lives            `simulate --cluster`'s replay of jobs of one length that never end to come
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.commands.simulate.cluster import laws
from criproxy.commands.simulate.cluster.command import SEED
from criproxy.commands.simulate.cluster.figures import Counted
from criproxy.commands.simulate.cluster.forecast import Foreseen, NodeOnGrid, foresee
from criproxy.commands.simulate.cluster.record import Grid, PodsToCome, RecordedNode, grid_of
from criproxy.commands.simulate.command import replay
from criproxy.commands.simulate.parallel import Bar, available_cpus, spread
from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.score import Score, Summary, mean_score, summarise
from criproxy.commands.simulate.sweep import Point, Sweep, hard_budget, parse_sweep, recommended
from criproxy.commands.simulate.trace import Trace
from criproxy.config.settings import Config
from criproxy.control.resources import RESOURCES
from criproxy.control.series import PredictorSettings

SWEEP: Final = parse_sweep("watermark=0.6..0.95")

LIVES_S: Final = (600.0, 3600.0, 21600.0)
POD_CORES: Final = 1.0
POD_BYTES: Final = float(2 << 30)
"""What each of the jobs asks for, and uses; memory only where it is on record."""

HOURS: Final = 24


class HourOfDay(Struct, frozen=True):
    """What a group of nodes would have lent at an hour of the day (UTC), in the resource's unit; None: not on record.

    `guaranteed` is the least at any moment of that hour, of all days.
    """

    guaranteed: float | None
    mean: float | None


class GroupLent(Struct, frozen=True):
    """Of a group, all nodes together. `open_mean`, `bounded_mean`: with `cpu.idle` and without; alike for memory."""

    hours: tuple[HourOfDay, ...]
    guaranteed: float
    mean: float
    bounded_mean: float


class Life(Struct, frozen=True):
    """Of jobs of this length, on nodes that are full of them: what `simulate --cluster` says of a jobs.csv of them."""

    length_s: float
    ended: int
    evictions: int
    slowdown_p50: float | None
    slowdown_p95: float | None
    slowdown_p99: float | None
    below_half_ratio: float | None
    squeezed_ratio: float | None
    squeezes_a_day: float
    """Of a node."""
    evictions_a_day: float
    broken_memory: int
    online_samples: int

    @property
    def survived_ratio(self) -> float | None:
        """Of the starts, those that ended by themselves."""
        return self.ended / (self.ended + self.evictions) if self.ended else None


class ResourceAdvice(Struct, frozen=True):
    """One resource of a group. `score` is at the settings' own watermark."""

    resource: str
    capacity: float
    """Of the nodes that are on record at a moment, on average."""
    lent: GroupLent
    score: Score


class GroupAdvice(Struct, frozen=True):
    name: str
    nodes: int
    unscored: int
    """Nodes whose record ends within the warm-up."""
    days: float
    resources: tuple[ResourceAdvice, ...]
    lives: tuple[Life, ...]
    at_once: float
    """How many of the nodes are on record at a moment, on average: nodes come and go."""
    largest_pod_bytes: float | None = None


class CurvePoint(Struct, frozen=True):
    """The sweep's: what a watermark gives (the box's mean limit, of capacity) and risks (hard samples)."""

    watermark_ratio: float
    limit_ratio: float
    hard_ratio: float


class Curve(Struct, frozen=True):
    """Of all nodes. `recommended`: by the rule of `simulate --sweep`; None: none of them keeps within the budget."""

    resource: str
    points: tuple[CurvePoint, ...]
    recommended: float | None
    present: float
    """The settings' own."""
    budget_ratio: float

    @property
    def chosen(self) -> float | None:
        """To begin with: nobody begins with more than the default."""
        return None if self.recommended is None else min(self.recommended, self.present)


class Advice(Struct, frozen=True):
    """`overall`: the mean over nodes, by resource. `cpu`: that of all groups together."""

    groups: tuple[GroupAdvice, ...]
    curves: tuple[Curve, ...]
    overall: Mapping[str, Score]
    cpu: ResourceAdvice
    step_s: float
    first_s: float
    last_s: float
    lives_known: bool


def usual_plan(resource: str) -> Plan:
    """As `criproxy simulate` has it when nothing is said."""
    row = RESOURCES[resource]
    section, usual = getattr(Config(), resource), PredictorSettings()
    return Plan(
        resource=resource,
        floor=float(getattr(section, f"min_{row.unit}")),
        watermark_ratio=section.watermark_ratio,
        alpha_ratio=usual.alpha_ratio,
        cold_start_probes=usual.cold_start_probes,
    )


def study(nodes: Sequence[RecordedNode], largest: Mapping[str, float], bar: Bar, *, lives: bool) -> Advice:
    """`largest`: the memory of the largest pod by node, "" for any. `lives` needs numpy. Raises SimulateError."""
    swept = {"cpu": _swept([node.cpu for node in nodes], "cpu", bar)}
    memories = [node.memory for node in nodes if node.memory is not None]
    if len(memories) == len(nodes):
        swept["memory"] = _swept(memories, "memory", bar)
    grid = grid_of(nodes)
    foreseen = spread("forecasting", foresee, [NodeOnGrid(node, grid) for node in nodes], available_cpus(), bar)
    by_group: dict[str, list[_ForeseenNode]] = {}
    for node, found in zip(nodes, foreseen, strict=True):
        if all(node.cpu.family in one.summary.families for one in swept.values()):
            by_group.setdefault(node.cpu.family, []).append(_ForeseenNode(node.id, found))
    summaries = {of: one.summary for of, one in swept.items()}
    groups = tuple(
        _group(name, members, grid, summaries, largest, bar=bar, lives=lives) for name, members in by_group.items()
    )
    judged = [one.foreseen for members in by_group.values() for one in members]
    overall = {name: one.summary.overall.score for name, one in swept.items()}
    steps = sorted(node.cpu.step_s for node in nodes)
    return Advice(
        groups,
        tuple(one.curve for one in swept.values()),
        overall,
        _resource("cpu", judged, grid, overall["cpu"]),
        steps[len(steps) // 2],
        min(node.cpu.times_s[0] for node in nodes),
        max(node.cpu.times_s[-1] for node in nodes),
        lives,
    )


# --- the box's limit --------------------------------------------------------------------------------------------------


class _SweptResource(Struct, frozen=True):
    summary: Summary
    curve: Curve


def _swept(traces: Sequence[Trace], resource: str, bar: Bar) -> _SweptResource:
    plan = usual_plan(resource)
    values = tuple(sorted({*SWEEP.values, plan.watermark_ratio}))
    plans = Sweep("watermark", values).plans(plan)
    replayed = replay(traces, plans, bar)
    points = [
        Point(value, by_node(traces, [one.scores[i] for one in replayed], plan.alpha_ratio))
        for i, value in enumerate(values)
    ]
    best = recommended(points, plan)
    scores = [point.summary.overall.score for point in points]
    shown = tuple(
        CurvePoint(value, score.limit_ratio, score.hard_ratio) for value, score in zip(values, scores, strict=True)
    )
    at = values.index(plan.watermark_ratio)
    curve = Curve(resource, shown, None if best is None else best.value, plan.watermark_ratio, hard_budget(plan))
    return _SweptResource(points[at].summary, curve)


def by_node(traces: Sequence[Trace], scores: Sequence[Score | None], alpha_ratio: float) -> Summary:
    """As `summarise`, but that each node counts as much as another over all. Raises SimulateError without any score."""
    summary = summarise(traces, scores, alpha_ratio)
    overall = replace(summary.overall, score=mean_score(score for score in scores if score is not None))
    return replace(summary, overall=overall)


# --- what is lent -----------------------------------------------------------------------------------------------------


class _ForeseenNode(Struct, frozen=True):
    id: str
    foreseen: Foreseen


def _group(
    name: str,
    members: Sequence[_ForeseenNode],
    grid: Grid,
    summaries: Mapping[str, Summary],
    largest: Mapping[str, float],
    *,
    bar: Bar,
    lives: bool,
) -> GroupAdvice:
    foreseen = [one.foreseen for one in members]
    resources = [
        _resource(resource, foreseen, grid, summary.families[name].score) for resource, summary in summaries.items()
    ]
    scored = min(summary.families[name].nodes for summary in summaries.values())
    pods = [largest[node.id] for node in members if node.id in largest] or [*largest.values()]
    return GroupAdvice(
        name,
        len(members),
        len(members) - scored,
        grid.duration_s / 86400,
        tuple(resources),
        _lives(foreseen, grid, bar) if lives else (),
        mean_there([one.lent_cpu["criproxy"] for one in foreseen], [1.0] * len(foreseen), grid),
        max(pods, default=None),
    )


def _resource(resource: str, foreseen: Sequence[Foreseen], grid: Grid, score: Score) -> ResourceAdvice:
    capacities = [one.capacity_cores if resource == "cpu" else one.capacity_bytes for one in foreseen]
    ours, bounded = (
        [one.lent_cpu[law] if resource == "cpu" else one.lent_memory[law] for one in foreseen]
        for law in ("criproxy", "criproxy_former")
    )
    amounts = lent(together(ours, capacities), together(bounded, capacities), grid)
    return ResourceAdvice(resource, mean_there(ours, capacities, grid), amounts, score)


def together(columns: Sequence[Sequence[float]], capacities: Sequence[float]) -> "array[float]":
    """Per cell: the sum over the nodes that are there; one in a gap counts as the others do; NaN: none is known."""
    sums = array("d")
    for cell, total in zip(zip(*columns, strict=True), there(columns, capacities), strict=True):
        known = [(value, capacity) for value, capacity in zip(cell, capacities, strict=True) if not math.isnan(value)]
        of = sum(capacity for _, capacity in known)
        sums.append(sum(value for value, _ in known) / of * total if of else math.nan)
    return sums


def there(columns: Sequence[Sequence[float]], capacities: Sequence[float]) -> "array[float]":
    """Per cell: the capacity of the nodes that are there, from their first value to their last."""
    cells = range(len(columns[0]))
    totals = array("d", bytes(8 * len(cells)))
    for column, capacity in zip(columns, capacities, strict=True):
        first = next((cell for cell in cells if not math.isnan(column[cell])), len(cells))
        last = next((cell for cell in reversed(cells) if not math.isnan(column[cell])), -1)
        for cell in cells[first : last + 1]:
            totals[cell] += capacity
    return totals


def mean_there(columns: Sequence[Sequence[float]], capacities: Sequence[float], grid: Grid) -> float:
    """The mean of what is there, after the warm-up, over the cells in which a node is; that of all if none ever is."""
    totals = [total for total in there(columns, capacities)[grid.warm_cells :] if total]
    return sum(totals) / len(totals) if totals else sum(capacities)


def lent(ours: Sequence[float], bounded: Sequence[float], grid: Grid) -> GroupLent:
    """After the warm-up; the amounts are those of cells."""
    cells = [cell for cell in range(grid.warm_cells, grid.cells) if not math.isnan(ours[cell])]
    by_hour: list[list[float]] = [[] for _ in range(HOURS)]
    for cell in cells:
        by_hour[int((grid.start_s + cell * grid.cell_s) % 86400 // 3600)].append(ours[cell])
    hours = tuple(
        HourOfDay(min(values), sum(values) / len(values)) if values else HourOfDay(None, None) for values in by_hour
    )
    all_of_it = [ours[cell] for cell in cells]
    others = [bounded[cell] for cell in cells]
    count = max(1, len(cells))
    return GroupLent(hours, min(all_of_it, default=0.0), sum(all_of_it) / count, sum(others) / count)


# --- how long jobs would have lived -----------------------------------------------------------------------------------


def endless_jobs(capacity_cores: float, duration_s: float, length_s: float) -> PodsToCome:
    """So many jobs of this length at the beginning that they never end to come."""
    count = 2 * math.ceil(capacity_cores / POD_CORES * (duration_s / length_s + 1.0))
    return PodsToCome(0.0, POD_CORES, POD_BYTES, length_s, count)


def _lives(foreseen: Sequence[Foreseen], grid: Grid, bar: Bar) -> tuple[Life, ...]:
    from criproxy.commands.simulate.cluster.engine import NodesByLaw
    from criproxy.commands.simulate.cluster.engine import replay as replay_jobs

    cores = sum(one.capacity_cores for one in foreseen)
    jobs = [endless_jobs(cores, grid.duration_s, length_s) for length_s in LIVES_S]
    parts = [NodesByLaw(laws.LAWS[0].name, grid, tuple(foreseen), (job,), (SEED, 0)) for job in jobs]
    found = spread("replaying jobs", replay_jobs, parts, available_cpus(), bar)
    return tuple(map(_life, LIVES_S, found))


def _life(length_s: float, counted: Counted) -> Life:
    figures: dict[str, Any] = counted.figures(finite=True)
    days = counted.nodes_s / 86400 or 1.0
    return Life(
        length_s,
        counted.ended,
        counted.evictions,
        figures["slowdown_p50"],
        figures["slowdown_p95"],
        figures["slowdown_p99"],
        figures["below_half"],
        figures["squeezed"],
        counted.squeezes / days,
        counted.evictions / days,
        counted.broken_memory,
        counted.samples,
    )
