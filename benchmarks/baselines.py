"""Simple predictors beside criproxy's: base + margin x scale, with the margin tuned on the very data that judges them.

`./bench baselines FILE… --capacity N` takes what `criproxy simulate` takes. Tuning takes the smallest margin, one for
all nodes, that violates no more often than allowed. Nobody knows it beforehand, so this is the best that such a
predictor could do.
"""

import math
import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Final, Literal

from msgspec import Struct

from criproxy.commands.simulate import report
from criproxy.commands.simulate.command import Options, carry_out, parse, read, replay, tell
from criproxy.commands.simulate.parallel import Bar, available_cpus, spread
from criproxy.commands.simulate.replay import Plan, Trial, highest_ahead, limit
from criproxy.commands.simulate.score import Score, Summary, first_scored, score, summarise
from criproxy.commands.simulate.trace import Trace
from criproxy.control.histogram import CPU_BUCKETS, MEMORY_BUCKETS, LevelHistogram

Margin = Literal["of itself", "of capacity", "sigma"]
"""The scale of a margin: the base, the capacity, or the standard deviation."""

_LEAST_MARGIN: Final = -1.0
_MOST_MARGIN: Final = 1e6
_BISECTIONS: Final = 60

Forecast = tuple["array[float]", "array[float]"]
"""Per sample: the base, and the standard deviation (empty when the baseline has none)."""


class Baseline(Struct, frozen=True):
    name: str
    margins: tuple[Margin, ...]
    forecast: Callable[[Trace, Plan], Forecast]


def _last(trace: Trace, _plan: Plan) -> Forecast:
    return array("d", trace.usages), array("d")


def _highest(window_s: float) -> Callable[[Trace, Plan], Forecast]:
    def forecast(trace: Trace, _plan: Plan) -> Forecast:
        times, usages, bases = trace.times_s, trace.usages, array("d")
        window: deque[int] = deque()
        for i, usage in enumerate(usages):
            while window and usages[window[-1]] <= usage:
                window.pop()
            window.append(i)
            while times[window[0]] <= times[i] - window_s:
                window.popleft()
            bases.append(usages[window[0]])
        return bases, array("d")

    return forecast


def _percentile(half_life_s: float, percentile_ratio: float) -> Callable[[Trace, Plan], Forecast]:
    """Each sample weighs the same but for its age: a percentile of time, not of area."""

    def forecast(trace: Trace, plan: Plan) -> Forecast:
        buckets = CPU_BUCKETS if plan.resource == "cpu" else MEMORY_BUCKETS
        histogram, bases = LevelHistogram(buckets, half_life_s, percentile_ratio), array("d")
        for t_s, usage in zip(trace.times_s, trace.usages, strict=True):
            amount = usage * plan.unit
            histogram.add(t_s, amount, 1.0 / buckets.widths[buckets.index(amount)])
            bases.append((histogram.percentile() or 0.0) / plan.unit)
        return bases, array("d")

    return forecast


def _mean_and_sigma(window_s: float) -> Callable[[Trace, Plan], Forecast]:
    """Sums are of what exceeds the first usage, so that little is lost when equal numbers are subtracted."""

    def forecast(trace: Trace, _plan: Plan) -> Forecast:
        times, usages, bases, sigmas = trace.times_s, trace.usages, array("d"), array("d")
        total = squares = 0.0
        oldest = 0
        for i, usage in enumerate(usages):
            total += usage - usages[0]
            squares += (usage - usages[0]) ** 2
            while times[oldest] <= times[i] - window_s:
                total -= usages[oldest] - usages[0]
                squares -= (usages[oldest] - usages[0]) ** 2
                oldest += 1
            mean = total / (i + 1 - oldest)
            bases.append(usages[0] + mean)
            sigmas.append(math.sqrt(max(0.0, squares / (i + 1 - oldest) - mean * mean)))
        return bases, sigmas

    return forecast


BASELINES: Final = (
    Baseline("last value", ("of itself", "of capacity"), _last),
    Baseline("maximum of 30 min", ("of itself", "of capacity"), _highest(1800.0)),
    Baseline("maximum of 2 h", ("of itself", "of capacity"), _highest(7200.0)),
    Baseline("P95 by weight, 1 h half-life", ("of itself", "of capacity"), _percentile(3600.0, 0.95)),
    Baseline("P95 by weight, 24 h half-life", ("of itself", "of capacity"), _percentile(86400.0, 0.95)),
    Baseline("mean + N sigma of 2 h", ("sigma",), _mean_and_sigma(7200.0)),
)


def with_margin(forecast: Forecast, capacity: float, margin: Margin, size: float) -> "array[float]":
    """The predictions of a baseline, within 0 and capacity."""
    base, scale = forecast[0], _scale(forecast, capacity, margin)
    return array("d", (min(max(b + size * s, 0.0), capacity) for b, s in zip(base, scale, strict=True)))


def needed_margins(forecast: Forecast, trace: Trace, margin: Margin, highest: Sequence[float]) -> "array[float]":
    """The margin that each scored sample would have needed not to be violated, sorted. `highest`: its outlook."""
    base, scale = forecast[0], _scale(forecast, trace.capacity, margin)
    needed = array("d")
    for i in range(first_scored(trace), len(highest)):
        if not math.isnan(highest[i]):
            lack = highest[i] - base[i]
            needed.append(lack / scale[i] if scale[i] > 0.0 else math.copysign(math.inf, lack) if lack else -math.inf)
    return array("d", sorted(needed))


def tuned(needed: Mapping[str, Sequence[Sequence[float]]], violation_ratio: float) -> float:
    """The smallest margin at which the violations, averaged over traces and then over families, are within the ratio.

    `needed`: per family, the sorted needed margins of each trace. The largest margin if none is enough.
    """

    def violations(size: float) -> float:
        return fmean(fmean(1.0 - bisect_right(one, size) / len(one) for one in many) for many in needed.values())

    low, high = _LEAST_MARGIN, _MOST_MARGIN
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if violations(middle) <= violation_ratio else (middle, high)
    return high


def _scale(forecast: Forecast, capacity: float, margin: Margin) -> Sequence[float]:
    base, sigma = forecast
    if margin == "of itself":
        return base
    return sigma if margin == "sigma" else array("d", [capacity]) * len(base)


class Candidate(Struct, frozen=True):
    """A baseline, by its name, and its margin; the margin's size is found by tuning."""

    baseline: str
    margin: Margin


CANDIDATES: tuple[Candidate, ...] = tuple(
    Candidate(baseline.name, margin) for baseline in BASELINES for margin in baseline.margins
)


def margins(trial: Trial) -> dict[Candidate, "array[float]"]:
    """Per candidate, the margins that the trace's samples needed (`needed_margins`)."""
    trace, plan = trial.trace, trial.plans[0]
    highest, found = highest_ahead(trace, plan), {}
    for baseline in BASELINES:
        forecast = baseline.forecast(trace, plan)
        for margin in baseline.margins:
            found[Candidate(baseline.name, margin)] = needed_margins(forecast, trace, margin, highest)
    return found


def judge(trial: Trial, sizes: Mapping[Candidate, float]) -> dict[Candidate, Score | None]:
    """The score of each candidate on the trace, with its margin of the given size."""
    trace, plan = trial.trace, trial.plans[0]
    highest, found = highest_ahead(trace, plan), {}
    for baseline in BASELINES:
        forecast = baseline.forecast(trace, plan)
        for margin in baseline.margins:
            candidate = Candidate(baseline.name, margin)
            predictions = with_margin(forecast, trace.capacity, margin, sizes[candidate])
            limits = limit(trace, predictions, plan)
            found[candidate] = score(trace, predictions, limits, highest, plan.watermark_ratio)
    return found


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


def comparison(ours: Summary, tuned: Sequence[Tuned], plan: Plan) -> Iterator[str]:
    """Ours beside the baselines, the best share first."""
    rows: list[tuple[str, ...]] = [("predictor", *report.SCORE_TITLES[:5], "churn %", "nodes that hold")]
    rows.append((f"criproxy, {plan.kind}", *_compared(ours), report.holding(ours.overall)))
    for one in sorted(tuned, key=lambda one: -one.share_ratio):
        rows.append((one.name, *_compared(one.summary), report.holding(one.summary.overall)))
    yield from report.aligned(rows)


def _compared(summary: Summary) -> tuple[str, ...]:
    cells = report.cells_of(summary.overall.score)
    return (*cells[:5], cells[6])


def tune(traces: Sequence[Trace], ours: Summary, plan: Plan, bar: Bar) -> tuple[float, list[Tuned]]:
    """Each baseline with the margin that does best; as often violated as ours may be, or is if that is more."""
    trials, jobs = [Trial(trace, (plan,)) for trace in traces], available_cpus()
    allowed_ratio = max(plan.alpha_ratio, ours.overall.score.violation_ratio)
    needed = spread("tuning baselines", margins, trials, jobs, bar)
    sizes = {one: tuned(_by_family(traces, [found[one] for found in needed]), allowed_ratio) for one in CANDIDATES}
    del needed
    judged = spread("judging baselines", partial(judge, sizes=sizes), trials, jobs, bar)
    best: dict[str, Tuned] = {}
    for one in CANDIDATES:
        summary = summarise(traces, [scores[one] for scores in judged], plan.alpha_ratio)
        tried = Tuned(one, sizes[one], summary)
        if one.baseline not in best or best[one.baseline].share_ratio < tried.share_ratio:
            best[one.baseline] = tried
    return allowed_ratio, list(best.values())


def _by_family(traces: Sequence[Trace], needed: Sequence["array[float]"]) -> dict[str, list["array[float]"]]:
    by_family: dict[str, list[array[float]]] = {}
    for trace, one in zip(traces, needed, strict=True):
        if one:
            by_family.setdefault(trace.family, []).append(one)
    return by_family


def compare(chosen: Options, bar: Bar) -> None:
    """Raises SimulateError."""
    traces, _ = read(chosen)
    replayed = replay(traces, (chosen.plan,), bar)
    ours = summarise(traces, [one.scores[0] for one in replayed], chosen.plan.alpha_ratio)
    allowed_ratio, rows = tune(traces, ours, chosen.plan, bar)
    tell(
        [f"Baselines, each with the one margin that on this very data is violated in {allowed_ratio:.2%} of samples:"],
        comparison(ours, rows, chosen.plan),
    )
    if chosen.json:
        found = [{"baseline": row.name, "margin_size": row.size, **report.summed(row.summary)} for row in rows]
        report.write_json(chosen.json, found)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    return carry_out(lambda: compare(parse(arguments), Bar(sys.stderr)))
