"""The metric: how often, and by how much, online wanted more than was predicted, and what offline got for it.

With p the prediction at a sample, y the highest usage within the horizon after it, C the capacity, w the watermark:

- violation: the share of samples with y > p; severity: (y - p) / C there, its mean and P99
- hard: the share of samples with y - p > (1 - w) C, where not even the slack above the watermark was enough
- share: the sum of max(0, wC - p) over the sum of max(0, wC - y), which is what perfect foresight would have reclaimed
- churn: the mean of |change of p| / C from sample to sample
"""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.trace import GAP_STEPS, Trace

WARM_UP_S: Final = 24 * 3600.0
SHORT_WARM_UP_S: Final = 6 * 3600.0
SHORT_TRACE_S: Final = 3 * 86400.0
"""A trace no longer than this has the short warm-up; what a predictor says while it warms up is not scored."""


class Score(Struct, frozen=True):
    """The metric of one trace, or its mean over several; None where nothing defines it.

    `limit_ratio` is the mean of the limit / C that the policy gives the box.
    """

    violation_ratio: float
    share_ratio: float | None
    hard_ratio: float
    severity_ratio: float | None
    severity_p99_ratio: float | None
    churn_ratio: float
    limit_ratio: float


def outlook(trace: Trace, horizon_s: float, *, whole: bool) -> "array[float]":
    """y per sample: the highest usage within (t, t + horizon]; NaN where it is not on record.

    It is not when no sample lies in the horizon or a gap hides a part of it; with `whole`, nor when the trace ends
    before the horizon does.
    """
    times, usages, count = trace.times_s, trace.usages, len(trace.times_s)
    highest = array("d", [math.nan]) * count
    blind_s = _gap_starts(trace)
    known_s = times[-1] if whole and count else math.inf
    window: deque[int] = deque()
    seen = 0
    for i in range(count):
        until_s = times[i] + horizon_s
        while seen < count and times[seen] <= until_s:
            while window and usages[window[-1]] <= usages[seen]:
                window.pop()
            window.append(seen)
            seen += 1
        while window and window[0] <= i:
            window.popleft()
        if window and until_s <= known_s and blind_s[i] >= until_s:
            highest[i] = usages[window[0]]
    return highest


def _gap_starts(trace: Trace) -> "array[float]":
    """Per sample: when the first gap from there on begins; inf when none does."""
    times, longest_s = trace.times_s, GAP_STEPS * trace.step_s
    starts = array("d", [math.inf]) * len(times)
    for i in range(len(times) - 2, -1, -1):
        starts[i] = times[i] if times[i + 1] - times[i] > longest_s else starts[i + 1]
    return starts


def first_scored(trace: Trace) -> int:
    """The index of the first sample after the warm-up."""
    times = trace.times_s
    warm_up_s = SHORT_WARM_UP_S if not times or times[-1] - times[0] <= SHORT_TRACE_S else WARM_UP_S
    return next((i for i, t_s in enumerate(times) if t_s >= times[0] + warm_up_s), len(times))


def score(
    trace: Trace,
    predictions: Sequence[float],
    limits: Sequence[float],
    highest: Sequence[float],
    watermark_ratio: float,
) -> Score | None:
    """The metric of one trace, `highest` being its outlook; None when no sample can be scored."""
    capacity = trace.capacity
    mark = watermark_ratio * capacity
    slack = capacity - mark
    scored = hard = 0
    reclaimed = oracle = churn = limited = 0.0
    exceeded = []
    first = first_scored(trace)
    for i in range(first, len(highest)):
        y = highest[i]
        if math.isnan(y):
            continue
        p = min(max(predictions[i], 0.0), capacity)
        scored += 1
        reclaimed += max(0.0, mark - p)
        oracle += max(0.0, mark - y)
        limited += limits[i]
        churn += abs(p - min(max(predictions[i - 1], 0.0), capacity)) if i else 0.0
        if y > p:
            exceeded.append(y - p)
            hard += y - p > slack
    if not scored:
        return None
    exceeded.sort()
    return Score(
        violation_ratio=len(exceeded) / scored,
        share_ratio=reclaimed / oracle if oracle > 0.0 else None,
        hard_ratio=hard / scored,
        severity_ratio=fmean(exceeded) / capacity if exceeded else None,
        severity_p99_ratio=exceeded[math.ceil(0.99 * len(exceeded)) - 1] / capacity if exceeded else None,
        churn_ratio=churn / scored / capacity,
        limit_ratio=limited / scored / capacity,
    )


def mean_score(scores: Iterable[Score]) -> Score:
    """The unweighted mean of each number over those that have it, of at least one score."""
    columns = zip(*map(astuple, scores), strict=True)
    means = [
        fmean(known) if (known := [value for value in column if value is not None]) else None for column in columns
    ]
    return Score(*means)  # type: ignore[arg-type]  # what every score has, the mean has


HOLDS: Final = 1.5
"""A node holds its alpha when its own violation is within this many times of it."""


class Group(Struct, frozen=True):
    """Several nodes: the unweighted mean of their scores, and how many of them hold their alpha."""

    score: Score
    nodes: int
    holding: int


class Summary(Struct, frozen=True):
    """`overall.score` is the unweighted mean over families, so that a family of many nodes does not outvote another."""

    overall: Group
    families: dict[str, Group]


def summarise(traces: Sequence[Trace], scores: Sequence[Score | None], alpha_ratio: float) -> Summary:
    """Of the traces that have a score. Raises SimulateError without any."""
    by_family: dict[str, list[Score]] = {}
    for trace, score in zip(traces, scores, strict=True):
        if score is not None:
            by_family.setdefault(trace.family, []).append(score)
    if not by_family:
        raise SimulateError(
            f"nothing to score: no series goes on for longer than the warm-up ({SHORT_WARM_UP_S / 3600:g} h, or "
            f"{WARM_UP_S / 3600:g} h of one longer than {SHORT_TRACE_S / 86400:g} days); give a longer record"
        )
    families = {
        name: Group(mean_score(scores), len(scores), sum(one.violation_ratio <= HOLDS * alpha_ratio for one in scores))
        for name, scores in by_family.items()
    }
    overall = Group(
        mean_score(group.score for group in families.values()),
        sum(group.nodes for group in families.values()),
        sum(group.holding for group in families.values()),
    )
    return Summary(overall, families)
