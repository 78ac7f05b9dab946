"""The results as files: JSON for all numbers, CSV for the course of each node."""

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.findings import Findings
from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.report import Tuned
from criproxy.commands.simulate.score import Score
from criproxy.commands.simulate.simulation import Course
from criproxy.commands.simulate.summary import Group, Summary
from criproxy.commands.simulate.sweep import Point
from criproxy.commands.simulate.trace import Trace


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
    families: Mapping[str, Group] = summary.families
    return {
        "families": {name: to_builtins(group) for name, group in families.items()},
        "overall": to_builtins(summary.overall),
    }


def compared(tuned: Sequence[Tuned]) -> list[dict[str, Any]]:
    return [
        {
            "baseline": one.candidate.baseline,
            "margin": one.candidate.margin,
            "margin_size": one.size,
            **summed(one.summary),
        }
        for one in tuned
    ]


def swept(points: Sequence[Point], best: Point | None) -> list[dict[str, Any]]:
    return [{"value": point.value, "recommended": point is best, **summed(point.summary)} for point in points]


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Raises SimulateError when it can't be written."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise SimulateError(f"--json {path}: {error.strerror}; give a file that can be written") from error


def write_predictions(path: str, traces: Sequence[Trace], courses: Sequence[Course]) -> None:
    """id,t,usage,prediction,limit per sample, in the input's unit. Raises SimulateError when it can't be written."""
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "t", "usage", "prediction", "limit"))
            for trace, course in zip(traces, courses, strict=True):
                for t_s, *values in zip(trace.times_s, trace.usages, course.predictions, course.limits, strict=True):
                    writer.writerow((trace.id, f"{t_s:.15g}", *(f"{value:.9g}" for value in values)))
    except OSError as error:
        raise SimulateError(f"--predictions {path}: {error.strerror}; give a file that can be written") from error
