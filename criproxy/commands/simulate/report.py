"""The results: text for people, JSON with all numbers, CSV for the course of each node."""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from msgspec import to_builtins

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.replay import Course, Plan
from criproxy.commands.simulate.score import HOLDS, Group, Score, Summary
from criproxy.commands.simulate.sweep import Point, Sweep
from criproxy.commands.simulate.trace import Findings, Trace

_NONE = "-"
SCORE_TITLES = ("violated %", "hard %", "by %", "by P99 %", "share %", "box %", "churn %")

LEGEND = (
    "violated: online wanted more than predicted; hard: more than the slack above the watermark, too; by: how much "
    "more, of capacity;\nshare: what was reclaimed, of what perfect foresight would have; box: the box's mean limit, "
    "of capacity;\nchurn: change of the prediction per sample, of capacity"
)


def scores(traces: Sequence[Trace], found: Sequence[Score | None], summary: Summary, *, brief: bool) -> Iterator[str]:
    """A row per series (unless `brief`), per family, and over all."""
    rows: list[tuple[str, ...]] = [("series", "samples", *SCORE_TITLES)]
    if not brief:
        for trace, one in zip(traces, found, strict=True):
            cells = (_NONE,) * len(SCORE_TITLES) if one is None else cells_of(one)
            rows.append((trace.id, str(len(trace.times_s)), *cells))
    sizes: Counter[str] = Counter()
    for trace in traces:
        sizes[trace.family] += len(trace.times_s)
    for name, group in summary.families.items() if len(summary.families) > 1 else ():
        nodes = "1 node" if group.nodes == 1 else f"{group.nodes} nodes"
        rows.append((f"family {name} ({nodes})", str(sizes[name]), *cells_of(group.score)))
    count = len(summary.families)
    overall = "overall" if count == 1 else f"overall (mean of {count} families)"
    rows.append((overall, str(sizes.total()), *cells_of(summary.overall.score)))
    yield from aligned(rows)


def words(traces: Sequence[Trace], summary: Summary, plan: Plan, unit: str) -> Iterator[str]:
    """What it means, in sentences."""
    score, group = summary.overall.score, summary.overall
    capacities = {trace.capacity for trace in traces}
    of = ""
    if len(capacities) == 1:
        capacity = capacities.pop()
        of = f", {score.limit_ratio * capacity:.1f} of {capacity:g} {unit}"
    yield (
        f"Offline would have had {score.limit_ratio:.1%} of a node on average{of}; the predictions left it "
        f"{_percent(score.share_ratio)} % of what perfect foresight would have."
    )
    ahead = "before the next sample" if plan.horizon_s is None else f"within {plan.horizon_s:g} s"
    target = f" (aim: {plan.alpha_ratio:.2%})" if plan.kind == "calibrated" else ""
    yield (
        f"Online wanted more than predicted {ahead} in {score.violation_ratio:.2%} of samples{target}, and more than "
        f"the slack above the watermark as well in {score.hard_ratio:.2%}."
    )
    yield f"{holding(group)} nodes were violated in at most {HOLDS * plan.alpha_ratio:.2%} of their samples."


def holding(group: Group) -> str:
    return f"{group.holding} of {group.nodes} ({group.holding / group.nodes:.1%})"


def swept(sweep: Sweep, points: Sequence[Point]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [(sweep.setting, *SCORE_TITLES, "nodes that hold")]
    for point in points:
        overall = point.summary.overall
        rows.append((f"{point.value:g}", *cells_of(overall.score), holding(overall)))
    yield from aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *cells)).rstrip()


def cells_of(score: Score) -> tuple[str, ...]:
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


# --- files ------------------------------------------------------------------------------------------------------------


def result(
    plan: Plan, traces: Sequence[Trace], scores: Sequence[Score | None], summary: Summary, findings: Findings
) -> dict[str, Any]:
    """All numbers of a simulation, ready for JSON; ratios lie within 0 and 1, and null is what nothing defines."""
    return {
        "plan": to_builtins(plan),
        "findings": [
            {"flaw": flaw.name.lower(), "count": count, "first": findings.places[flaw]}
            for flaw, count in findings.counts.items()
        ],
        "series": [
            {
                "id": trace.id,
                "family": trace.family,
                "capacity": trace.capacity,
                "samples": len(trace.times_s),
                "step_s": trace.step_s,
                "score": None if score is None else to_builtins(score),
            }
            for trace, score in zip(traces, scores, strict=True)
        ],
        **summed(summary),
    }


def summed(summary: Summary) -> dict[str, Any]:
    return {"families": to_builtins(summary.families), "overall": to_builtins(summary.overall)}


def write_json(path: str, content: object) -> None:
    """Raises SimulateError when it can't be written."""
    with writing("--json", path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_predictions(path: str, traces: Sequence[Trace], courses: Sequence[Course]) -> None:
    """id,t,usage,prediction,limit per sample, in the input's unit. Raises SimulateError when it can't be written."""
    with writing("--predictions", path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("id", "t", "usage", "prediction", "limit"))
        for trace, course in zip(traces, courses, strict=True):
            for t_s, *values in zip(trace.times_s, trace.usages, course.predictions, course.limits, strict=True):
                writer.writerow((trace.id, f"{t_s:.15g}", *(f"{value:.9g}" for value in values)))


@contextmanager
def writing(option: str, path: str) -> Iterator[TextIO]:
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise SimulateError(f"{option} {path}: {error.strerror}; give a file that can be written") from error
