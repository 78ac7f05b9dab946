"""Simple predictors to compare with: base + margin x scale, with the margin tuned on the very data that judges them.

Tuning takes the smallest margin, one for all nodes, that violates no more often than allowed. Nobody knows it
beforehand, so this is the best that such a predictor could do.
"""

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final, Literal

from msgspec import Struct

from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.score import first_scored
from criproxy.commands.simulate.trace import Trace
from criproxy.control.histogram import LevelHistogram

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
        histogram, bases = LevelHistogram(plan.buckets, half_life_s, percentile_ratio, "weight"), array("d")
        for t_s, usage in zip(trace.times_s, trace.usages, strict=True):
            histogram.add(t_s, usage * plan.unit)
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
