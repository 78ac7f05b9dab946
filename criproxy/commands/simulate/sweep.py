"""A setting tried at several values: what each gives and risks, and which one to take."""

import math
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.score import Summary

Swept = Literal["watermark", "alpha"]

_POINTS: Final = 7
_WATERMARK_STEP: Final = 0.05
_MINUTES_A_DAY: Final = 24 * 60

HARD_BUDGET_NEXT: Final = 1 / 500
"""The share of samples in which online may want more than the slack, too: 3 minutes a day."""

HARD_BUDGET_AHEAD: Final = 1 / 100
"""The same for a longer horizon, whose prediction only advertises what may be there."""


NEARLY: Final = 0.95
"""What gives this share of the most is as good: the rest would be bought with ever more violations."""


class Sweep(Struct, frozen=True):
    setting: Swept
    values: tuple[float, ...]

    def plans(self, plan: Plan) -> tuple[Plan, ...]:
        """The plan with each of the values."""
        return tuple(replace(plan, **{f"{self.setting}_ratio": value}) for value in self.values)


class Point(Struct, frozen=True):
    """One value of the setting, and what it came to."""

    value: float
    summary: Summary


def parse_sweep(text: str) -> Sweep:
    """`watermark=0.6..0.9` (steps of 0.05, or 7 in all) or `alpha=0.005..0.1` (7, each a multiple of the one before).

    Raises SimulateError on anything else.
    """
    name, _, bounds = text.partition("=")
    low_text, _, high_text = bounds.partition("..")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        low = high = math.nan
    if name == "watermark" and 0.0 < low < high <= 1.0:
        steps = round((high - low) / _WATERMARK_STEP)
        fits = 1 <= steps < 2 * _POINTS and math.isclose(low + steps * _WATERMARK_STEP, high)
        count = steps + 1 if fits else _POINTS
        return Sweep("watermark", tuple(round(low + (high - low) * i / (count - 1), 4) for i in range(count)))
    if name == "alpha" and 0.0 < low < high < 1.0:
        factor = (high / low) ** (1 / (_POINTS - 1))
        return Sweep("alpha", tuple(float(f"{low * factor**i:.2g}") for i in range(_POINTS)))
    raise SimulateError(
        f"--sweep {text}: give watermark=LOW..HIGH, above 0 and at most 1, or alpha=LOW..HIGH, between 0 and 1, "
        "such as watermark=0.6..0.9"
    )


def hard_budget(plan: Plan) -> float:
    return HARD_BUDGET_NEXT if plan.horizon_s is None else HARD_BUDGET_AHEAD


def recommended(points: Sequence[Point], plan: Plan) -> Point | None:
    """The lowest value that gives offline nearly the most that is to be had within the budget; None without any."""
    safe = _safe(points, plan)
    return next((point for point in safe if _gain(point) >= NEARLY * max(map(_gain, safe))), None)


def advice(sweep: Sweep, points: Sequence[Point], plan: Plan) -> list[str]:
    """What to set and why, in sentences for an operator."""
    best, name = recommended(points, plan), sweep.setting
    rule = f"{hard_budget(plan):.1%} of the time{_minutes(hard_budget(plan), plan)}"
    if best is None:
        careful = min(points, key=_hard)
        other = "alpha" if name == "watermark" else "watermark"
        return [
            f"No value tried can be recommended: with each, the slack is not enough more than {rule}.",
            f"The most careful is {name} {careful.value:g}: {_effect(careful, plan)}.",
            f"Lower {other} as well, or leave out the nodes that are violated most.",
        ]
    most = max(_safe(points, plan), key=_gain)
    lines = [
        f"Recommended: {name} {best.value:g}: {_effect(best, plan)}.",
        f"The rule: of the values with which the slack is not enough at most {rule}, the lowest that gives offline at "
        f"least {NEARLY:.0%} of the most, which is {_gain(most):.1%} of a node at {most.value:g}.",
    ]
    index = points.index(best)
    if index + 1 < len(points):
        lines.append(f"Next higher, {points[index + 1].value:g}: {_effect(points[index + 1], plan)}.")
    else:
        lines.append("It is the highest value tried; a higher one may do as well.")
    if index:
        lines.append(f"Next lower, {points[index - 1].value:g}: {_effect(points[index - 1], plan)}.")
    return lines


def _safe(points: Sequence[Point], plan: Plan) -> list[Point]:
    return [point for point in points if _hard(point) <= hard_budget(plan)]


def _gain(point: Point) -> float:
    return point.summary.overall.score.limit_ratio


def _hard(point: Point) -> float:
    return point.summary.overall.score.hard_ratio


def _effect(point: Point, plan: Plan) -> str:
    violated = point.summary.overall.score.violation_ratio
    return (
        f"offline gets {_gain(point):.1%} of a node on average; online wants more than predicted {violated:.2%} of the "
        f"time, and the slack above the watermark is not enough for it {_hard(point):.2%}{_minutes(_hard(point), plan)}"
    )


def _minutes(ratio: float, plan: Plan) -> str:
    """Only until the next sample is a share of samples a share of the time in which online really waits."""
    return f" ({ratio * _MINUTES_A_DAY:.1f} min a day)" if plan.horizon_s is None else ""
