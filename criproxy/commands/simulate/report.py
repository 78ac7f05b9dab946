"""The results as text for people."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.score import Score
from criproxy.commands.simulate.simulation import Candidate
from criproxy.commands.simulate.summary import HOLDS, Group, Summary
from criproxy.commands.simulate.sweep import Point, Sweep
from criproxy.commands.simulate.trace import Trace

_NONE = "-"
_SCORE_TITLES = ("violated %", "hard %", "by %", "by P99 %", "share %", "box %", "churn %")

LEGEND = (
    "violated: online wanted more than predicted; hard: more than the slack above the watermark, too; by: how much "
    "more, of capacity;\nshare: what was reclaimed, of what perfect foresight would have; box: the box's mean limit, "
    "of capacity;\nchurn: change of the prediction per sample, of capacity"
)


class Tuned(Struct, frozen=True):
    """A baseline with its tuned margin, over all traces."""

    candidate: Candidate
    size: float
    summary: Summary

    @property
    def share_ratio(self) -> float:
        return self.summary.overall.score.share_ratio or 0.0

    @property
    def name(self) -> str:
        margin = self.candidate.margin
        if margin == "sigma":
            return f"{self.candidate.baseline}, N = {self.size:.2f}"
        if margin == "of itself":
            return f"{self.candidate.baseline} x {1 + self.size:.3f}"
        sign = "+" if self.size >= 0 else "-"
        return f"{self.candidate.baseline} {sign} {abs(self.size):.2%} of capacity"


def scores(traces: Sequence[Trace], found: Sequence[Score | None], summary: Summary, *, brief: bool) -> Iterator[str]:
    """A row per series (unless `brief`), per family, and over all."""
    rows: list[tuple[str, ...]] = [("series", "samples", *_SCORE_TITLES)]
    if not brief:
        for trace, one in zip(traces, found, strict=True):
            cells = (_NONE,) * len(_SCORE_TITLES) if one is None else _cells(one)
            rows.append((trace.id, str(len(trace.times_s)), *cells))
    sizes: dict[str, int] = {}
    for trace in traces:
        sizes[trace.family] = sizes.get(trace.family, 0) + len(trace.times_s)
    for name, group in summary.families.items() if len(summary.families) > 1 else ():
        rows.append((f"family {name} ({_nodes(group.nodes)})", str(sizes[name]), *_cells(group.score)))
    rows.append((_overall(summary), str(sum(sizes.values())), *_cells(summary.overall.score)))
    yield from aligned(rows)


def _overall(summary: Summary) -> str:
    count = len(summary.families)
    return "overall" if count == 1 else f"overall (mean of {count} families)"


def words(traces: Sequence[Trace], summary: Summary, plan: Plan, unit: str) -> Iterator[str]:
    """What it means, in sentences."""
    score, group = summary.overall.score, summary.overall
    capacities = {trace.capacity for trace in traces}
    of = ""
    if len(capacities) == 1 and score.limit_ratio is not None:
        capacity = capacities.pop()
        of = f", {score.limit_ratio * capacity:.1f} of {capacity:g} {unit}"
    yield (
        f"Offline would have had {score.limit_ratio or 0.0:.1%} of a node on average{of}; the predictions left it "
        f"{_percent(score.share_ratio)} % of what perfect foresight would have."
    )
    ahead = "before the next sample" if plan.horizon_s is None else f"within {plan.horizon_s:g} s"
    target = f" (aim: {plan.alpha_ratio:.2%})" if plan.kind == "calibrated" else ""
    yield (
        f"Online wanted more than predicted {ahead} in {score.violation_ratio:.2%} of samples{target}, and more than "
        f"the slack above the watermark as well in {score.hard_ratio:.2%}."
    )
    yield f"{holding(group, plan)} nodes were violated in at most {HOLDS * plan.alpha_ratio:.2%} of their samples."


def holding(group: Group, plan: Plan) -> str:
    return f"{group.holding} of {group.nodes} ({group.holding / group.nodes:.1%})"


def comparison(ours: Summary, tuned: Sequence[Tuned], plan: Plan) -> Iterator[str]:
    """Ours beside the baselines, the best share first."""
    rows: list[tuple[str, ...]] = [("predictor", *_SCORE_TITLES[:5], "churn %", "nodes that hold")]
    rows.append((f"criproxy, {plan.kind}", *_compared(ours), holding(ours.overall, plan)))
    for one in sorted(tuned, key=lambda one: -one.share_ratio):
        rows.append((one.name, *_compared(one.summary), holding(one.summary.overall, plan)))
    yield from aligned(rows)


def _compared(summary: Summary) -> tuple[str, ...]:
    cells = _cells(summary.overall.score)
    return (*cells[:5], cells[6])


def swept(sweep: Sweep, points: Sequence[Point], plan: Plan) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [(sweep.setting, *_SCORE_TITLES, "nodes that hold")]
    for point, tried in zip(points, sweep.plans(plan), strict=True):
        rows.append((f"{point.value:g}", *_cells(point.summary.overall.score), holding(point.summary.overall, tried)))
    yield from aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *cells)).rstrip()


def _cells(score: Score) -> tuple[str, ...]:
    return (
        _percent(score.violation_ratio, 2),
        _percent(score.hard_ratio, 2),
        _percent(score.severity_ratio),
        _percent(score.severity_p99_ratio),
        _percent(score.share_ratio),
        _percent(score.limit_ratio),
        _percent(score.churn_ratio, 2),
    )


def _percent(ratio: float | None, digits: int = 1) -> str:
    return _NONE if ratio is None else f"{100 * ratio:.{digits}f}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
