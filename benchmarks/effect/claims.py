"""From phases to claims: ratios to online alone in the same round, with intervals. Pure.

Per round and measure, an arm's value is divided by the geometric mean of the two alone phases of that round; "alone
again" is divided by "alone". Over the rounds stand the geometric mean of these ratios, its 95 % interval (bootstrap
over rounds, percentiles of 2,000 resamples) and the smallest ratio above 1 that so many rounds could have seen:
one-sided, 5 % false alarms, 80 % power, so exp(2.486 x s / sqrt(n)), s being the standard deviation of the ratios'
logarithms.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.effect.arms import AGAIN, ALONE

RESAMPLES = 2000
FEWEST_ROUNDS = 6
"""The bootstrap of fewer says little."""
_POWER = 2.486
"""z(0.95) + z(0.80)."""

Row = Mapping[str, float]
"""What one phase measured, by the measure's name."""

MEASURES: Mapping[str, str] = {
    "cpu_per_request": "online's CPU per request (cache, bandwidth, siblings)",
    "wait_per_request": "online's wait for a CPU per request",
    "tail_share": "requests slower than 99 % of alone's",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
}
"""In layers: from the quietest measure to the loudest."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rounds, its interval, and the smallest ratio that these rounds could have seen (None: one round)."""

    mean: float
    low: float
    high: float
    seen: float | None
    rounds: int


def quantile(ordered: Sequence[float], ratio: float) -> float:
    """Of sorted values; NaN without any."""
    return ordered[int(ratio * (len(ordered) - 1))] if ordered else math.nan


def ratios(rounds: Sequence[Mapping[str, Row]], arm: str, measure: str) -> list[float]:
    """Per round that has the arm and alone: the ratio. Rounds in which a value is not above 0 tell nothing."""
    found = []
    for one in rounds:
        own, first, last = one.get(arm), one.get(ALONE), one.get(AGAIN)
        if own is None or first is None or last is None:
            continue
        base = first[measure] if arm == AGAIN else math.sqrt(max(0.0, first[measure] * last[measure]))
        if base > 0.0 and own[measure] > 0.0:
            found.append(own[measure] / base)
    return found


def estimate(values: Sequence[float], *, seed: int = 1) -> Estimate | None:
    """Of ratios, in logarithms; None without any."""
    if not values:
        return None
    logs = [math.log(value) for value in values]
    low, high = _interval(logs, seed)
    seen = math.exp(_POWER * stdev(logs) / math.sqrt(len(logs))) if len(logs) > 1 else None
    return Estimate(math.exp(fmean(logs)), math.exp(low), math.exp(high), seen, len(logs))


def mean(values: Sequence[float], *, seed: int = 1) -> Estimate | None:
    """Of plain numbers, such as shares; None without any."""
    if not values:
        return None
    low, high = _interval(values, seed)
    return Estimate(fmean(values), low, high, None, len(values))


def enough(rounds: Sequence[Mapping[str, Row]], arms: Sequence[str], target_ratio: float) -> bool:
    """The rule to stop by: for every arm, p99's interval is no wider than from 1/target to target around its mean."""
    return all(
        found is not None
        and found.rounds >= FEWEST_ROUNDS
        and found.high / found.mean <= target_ratio
        and found.mean / found.low <= target_ratio
        for arm in arms
        for found in [estimate(ratios(rounds, arm, "p99"))]
    )


def _interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    dice = random.Random(seed)
    pick: Callable[[], float] = lambda: fmean(dice.choices(values, k=len(values)))  # noqa: E731
    means = sorted(pick() for _ in range(RESAMPLES))
    return quantile(means, 0.025), quantile(means, 0.975)
