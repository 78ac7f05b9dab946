"""The page's two kinds of plots, as SVG by hand: what is lent by the hour, and what a setting gives and risks."""

from collections.abc import Sequence
from typing import Final

from criproxy.commands.advise.study import Curve, HourOfDay

_WIDTH: Final = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 14, 42
_HEIGHT: Final = 250


def by_hour(hours: Sequence[HourOfDay], most: float, factor: float, unit: str) -> str:
    """A bar an hour: the mean, and within it what is guaranteed. Amounts are shown in `unit`, of `factor` each, up to
    `most`.
    """
    base, room = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    step = (_WIDTH - _LEFT - _RIGHT) / len(hours)
    parts = [_open()]
    for i in range(5):
        y = base - room * i / 4
        parts.append(f'<path class="axis" d="M{_LEFT},{y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{most / factor * i / 4:.4g}</text>')
    for i, hour in enumerate(hours):
        x = _LEFT + i * step
        for kind, value, inset in (("mean", hour.mean, 0.12), ("sure", hour.guaranteed, 0.3)):
            if value is not None:
                height = room * value / most
                parts.append(
                    f'<rect class="{kind}" x="{x + inset * step:.1f}" y="{base - height:.1f}" '
                    f'width="{(1 - 2 * inset) * step:.1f}" height="{height:.1f}"/>'
                )
        if i % 3 == 0:
            parts.append(f'<text x="{x + step / 2:.1f}" y="{base + 18}" text-anchor="middle">{i}</text>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">hour of the day (UTC); {unit}</text>'
    )
    return "".join(parts) + "</svg>"


def of_sweep(curve: Curve) -> str:
    """What each watermark gives against what it risks; the budget as a line, the chosen one in a ring."""
    most_risk = 1.1 * max(curve.budget_ratio, *(one.hard_ratio for one in curve.points))
    base, room, across = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP, _WIDTH - _LEFT - _RIGHT

    def at(risk: float, gain: float) -> tuple[float, float]:
        return _LEFT + across * risk / most_risk, base - room * gain

    parts = [_open()]
    for i in range(5):
        y = base - room * i / 4
        parts.append(f'<path class="axis" d="M{_LEFT},{y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{25 * i} %</text>')
    x, _ = at(curve.budget_ratio, 0.0)
    parts.append(f'<path class="budget" d="M{x:.1f},{_TOP}V{base}"/>')
    parts.append(f'<text x="{x - 6:.1f}" y="{_TOP + 12}" text-anchor="end">no more is recommended</text>')
    points = [at(one.hard_ratio, one.limit_ratio) for one in curve.points]
    line = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<path class="curve" d="M{line}"/>')
    for one, (x, y) in zip(curve.points, points, strict=True):
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        if one.watermark_ratio == curve.chosen:
            parts.append(f'<circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
        if one in (curve.points[0], curve.points[-1]) or one.watermark_ratio == curve.chosen:
            parts.append(f'<text x="{x + 12:.1f}" y="{y + 14:.1f}">{one.watermark_ratio:g}</text>')
    parts.append(f'<text x="{_LEFT}" y="{base + 18}">0</text>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{base + 18}" text-anchor="end">{most_risk:.2%} of the time online wants more '
        "than the slack</text>"
    )
    return "".join(parts) + "</svg>"


def _open() -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">'
