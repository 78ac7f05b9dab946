"""Lines of block characters: values over time, as high as wanted. Pure."""

from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def columns(points: Sequence[tuple[float, float | None]], end: float, width: int) -> tuple[float | None, ...]:
    """Fit (time, value) points into `width` columns from 0 to `end`: each column's mean.

    A column without a point of its own repeats the one before; None where there is nothing yet, or no value.
    """
    slots: list[list[float | None]] = [[] for _ in range(width)]
    for time, value in points:
        slots[min(max(int(time / end * width), 0), width - 1)].append(value)
    last = max((index for index, slot in enumerate(slots) if slot), default=-1)
    fitted: list[float | None] = []
    for index, slot in enumerate(slots):
        known = [value for value in slot if value is not None]
        if known:
            fitted.append(sum(known) / len(known))
        else:
            fitted.append(fitted[-1] if fitted and not slot and index <= last else None)
    return tuple(fitted)


def spark(values: Sequence[float | None], top: float, height: int = 1) -> tuple[str, ...]:
    """Draw values between 0 and `top` as `height` lines, the uppermost first; None is drawn as nothing."""
    steps = len(_BLOCKS) - 1
    lines = []
    for row in reversed(range(height)):
        line = ""
        for value in values:
            level = 0 if value is None else max(round(min(max(value / top, 0.0), 1.0) * height * steps), 1)
            line += _BLOCKS[min(max(level - row * steps, 0), steps)]
        lines.append(line)
    return tuple(lines)
