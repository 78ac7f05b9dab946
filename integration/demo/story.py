"""What happens at this moment, in words: for the picture's last lines, and for plain lines. Pure."""

from collections.abc import Sequence
from typing import Final

from integration.demo.sample import Sample, Setting, clock

_LOOK_BACK_S: Final = 2.5
_NOTABLE_RATIO: Final = 0.08
_HELD_RATIO: Final = 0.05
"""A box that is throttled for this share of the CPUs' time wants more than its limit."""


def happening(samples: Sequence[Sample], setting: Setting) -> str:
    """One short clause on the last sample, seen against those a moment before. Raises IndexError without samples."""
    now = samples[-1]
    then = next(sample for sample in samples if sample.t_s >= now.t_s - _LOOK_BACK_S)
    if now.limit_cores is None:
        return "no limit yet: criproxy waits for its first samples"
    before = now.limit_cores if then.limit_cores is None else then.limit_cores
    return _move(before, now.limit_cores, setting.capacity_cores) or _state(now, now.limit_cores, setting)


def _move(before: float, limit: float, capacity_cores: float) -> str:
    """The clause on a limit that has moved; "" where it has not, by much."""
    if limit < before - _NOTABLE_RATIO * capacity_cores:
        return f"the box is squeezed from {before:.2f} to {limit:.2f} cores"
    if limit > before + _NOTABLE_RATIO * capacity_cores:
        return f"the box grows from {before:.2f} to {limit:.2f} cores"
    return ""


def _state(now: Sample, limit: float, setting: Setting) -> str:
    if now.prediction_cores is None and not now.is_open(setting.capacity_cores):
        return "criproxy learns: until it can predict, offline pods get the minimum"
    if limit <= setting.floor_cores:
        others = max(now.rest_cores - now.online_cores, 0.0)
        also = f" (other programs use {others:.2f} cores)" if others > _NOTABLE_RATIO * setting.capacity_cores else ""
        return f"the machine is full{also}: offline pods keep the minimum of {limit:.2f} cores"
    if now.reaches_into_box(setting.capacity_cores, setting.floor_cores):
        return "online rises faster than predicted: it goes first by priority, the limit follows"
    if now.is_open(setting.capacity_cores):
        return f"nothing tells of harm: the box is open, uses {now.box_cores:.2f} cores, and online goes first"
    if now.throttled_ratio > _HELD_RATIO:
        return f"offline pods want everything and are held at {limit:.2f} cores"
    return f"offline pods soak up {now.box_cores:.2f} cores that online leaves idle"


def line(samples: Sequence[Sample], setting: Setting) -> str:
    """The last sample in one plain line."""
    now = samples[-1]
    return (
        f"{clock(now.t_s):>5}  day {setting.day_clock(now.t_s)}  "
        f"node {now.node_cores:4.2f}/{setting.capacity_cores:g}  "
        f"online {now.online_cores:4.2f} of {now.wanted_cores:4.2f} wanted  predicted {cores(now.prediction_cores)}  "
        f"limit {cores(now.limit_cores)}  box {now.box_cores:4.2f}  throttled {now.throttled_ratio:4.0%}  "
        f"{happening(samples, setting)}"
    )


def cores(value: float | None) -> str:
    """A number of cores, or a dash where there is none."""
    return "   –" if value is None else f"{value:4.2f}"
