"""From phases to claims: ratios within a round, with intervals. Pure.

Per round and measure, an arm's value is divided by the geometric mean of the two alone phases of that round, or by
that of another arm where the two are compared; "alone again" is divided by "alone". Rounds of one server, load and
work are alike, and make a *cell*. In logarithms:

    mean      of the cells' means: each cell counts the same, however many rounds it has
    interval  95 %, by Student's t, for these cells: of what scatters within each (a cell of one round: as within all
              the others); degrees of freedom by Welch and Satterthwaite. Where no cell has two rounds, of what the
              cells' means scatter, which is more
    seen      the smallest ratio above 1 that so many rounds, scattered so, tell from 1 four times of five:
              exp((t(0.975) + t(0.8)) * standard error), so that the interval just leaves 1 out

A bootstrap of so few rounds would be too narrow: of four it holds the truth four times of five (tests/test_effect.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Any

from benchmarks.effect.arms import AGAIN, ALONE

FEWEST_ROUNDS = 6
"""From how many on a run may end before its time box."""

_CONFIDENCE = 0.95
_POWER = 0.8

Row = Mapping[str, Any]
"""What one phase measured, by the measure's name; None: it can't be told."""
Round = Mapping[str, Row]
"""The rows of a round, by arm."""
Cells = Sequence[Sequence[float]]

MEASURES: Mapping[str, str] = {
    "cpu_per_request": "online's CPU per request (cache, bandwidth, siblings)",
    "wait_per_request": "online's wait for a CPU per request",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
}
"""In layers: from the quietest measure to the loudest."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rounds, its interval, and the smallest ratio that these rounds could have seen.

    Of one round these three are None. `freedom`: the degrees of freedom of the interval.
    """

    mean: float
    low: float | None
    high: float | None
    seen: float | None
    rounds: int
    freedom: int


def quantile(ordered: Sequence[float], ratio: float) -> float:
    """Of sorted values; NaN without any."""
    return ordered[int(ratio * (len(ordered) - 1))] if ordered else math.nan


def cells_of(rounds: Sequence[Round]) -> list[list[Round]]:
    """The rounds of each server, load and work."""
    found: dict[tuple[str, ...], list[Round]] = {}
    for one in rounds:
        row = next(iter(one.values()))
        found.setdefault((row["server"], row["load"], row["work"]), []).append(one)
    return list(found.values())


def ratios(rounds: Sequence[Round], arm: str, measure: str, to: Sequence[str] = (ALONE, AGAIN)) -> list[list[float]]:
    """By cell, of each round that has the arm and those that it is compared with: the ratio.

    A round in which a value is not known, or not above 0, tells nothing.
    """
    names = (arm, *((ALONE,) if arm == AGAIN else to))
    found = []
    for cell in cells_of(rounds):
        values = [[one[name][measure] for name in names] for one in cell if one.keys() >= set(names)]
        logs = [[math.log(value) for value in of if value is not None and value > 0.0] for of in values]
        found.append([math.exp(of[0] - fmean(of[1:])) for of in logs if len(of) == len(names)])
    return [cell for cell in found if cell]


def estimate(cells: Cells) -> Estimate | None:
    """Of ratios, in logarithms; None without any."""
    found = mean([[math.log(value) for value in cell] for cell in cells])
    if found is None:
        return None
    low, high, seen = (None if value is None else math.exp(value) for value in (found.low, found.high, found.seen))
    return Estimate(math.exp(found.mean), low, high, seen, found.rounds, found.freedom)


def mean(cells: Cells) -> Estimate | None:
    """Of plain numbers, such as shares, of which no cell is empty; `seen` is a difference. None without any."""
    means, rounds = [fmean(cell) for cell in cells], sum(map(len, cells))
    if not means:
        return None
    middle = fmean(means)
    error, freedom = _standard_error(cells, means)
    if not freedom:
        return Estimate(middle, None, None, None, rounds, 0)
    half = student_t(0.5 + _CONFIDENCE / 2, freedom) * error
    return Estimate(middle, middle - half, middle + half, half + student_t(_POWER, freedom) * error, rounds, freedom)


def _standard_error(cells: Cells, means: Sequence[float]) -> tuple[float, int]:
    """Of the mean of the means, and its degrees of freedom; (0, 0): not known."""
    freedoms = [len(cell) - 1 for cell in cells]
    if not any(freedoms):
        return (stdev(means) / math.sqrt(len(means)), len(means) - 1) if len(means) > 1 else (0.0, 0)
    pooled = sum(freedom * variance(cell) for cell, freedom in zip(cells, freedoms, strict=True) if freedom)
    of_one = pooled / sum(freedoms), sum(freedoms)
    known = [(variance(cell), len(cell) - 1) if len(cell) > 1 else of_one for cell in cells]
    parts = [(square / len(cell), freedom) for cell, (square, freedom) in zip(cells, known, strict=True)]
    total = sum(part for part, _ in parts)
    freedom = total**2 / sum(part**2 / freedom for part, freedom in parts) if total else sum(freedoms)
    return math.sqrt(total) / len(cells), max(1, int(freedom))


def enough(rounds: Sequence[Round], arms: Sequence[str], target_ratio: float) -> bool:
    """The rule to stop by: for every arm, p99's interval is no wider than from 1/target to target around its mean.

    It needs as many degrees of freedom as `FEWEST_ROUNDS` of one cell have, or chance alone would make it narrow.
    """
    return all(
        found is not None
        and found.freedom >= FEWEST_ROUNDS - 1
        and found.high is not None
        and found.high / found.mean <= target_ratio
        for arm in arms
        for found in [estimate(ratios(rounds, arm, "p99"))]
    )


def student_t(probability: float, freedom: int) -> float:
    """The value below which Student's t lies with this probability (from 0.5 on).

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, freedom) > 2 * probability - 1 else (middle, high)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that Student's t lies between -t and t."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = term if freedom > 1 else 0.0
    for number in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (number - 1) / number
        total += term
    return 2 / math.pi * (angle + total) if odd else total
