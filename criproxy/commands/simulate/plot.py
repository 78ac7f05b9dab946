"""The results as pictures: a few nodes' courses, or the trade-off of a sweep. Needs matplotlib, which is optional."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.replay import Course, Plan
from criproxy.commands.simulate.score import Score, first_scored
from criproxy.commands.simulate.sweep import Point, Sweep, hard_budget
from criproxy.commands.simulate.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS: Final = 3
"""More courses are not drawn into one picture."""

_INSTALL: Final = "python3 -m venv .venv && .venv/bin/pip install '.[plot]'"
_BINS: Final = 3000
"""The most points that can be distinguished: more samples are drawn as the ranges of this many bins."""

_USAGE: Final = "#2f6fb0"
_PREDICTION: Final = "#e08a00"
_RECLAIMABLE: Final = "#7fb77e"
_VIOLATION: Final = "#c62828"
_QUIET: Final = "#666666"


class Panel(Struct, frozen=True):
    """One node to draw."""

    trace: Trace
    course: Course
    score: Score | None


def pick(scores: Sequence[Score | None]) -> list[int]:
    """Which nodes to draw: all if they fit, else those with the most, the median and the fewest violations."""
    if len(scores) <= PANELS:
        return list(range(len(scores)))
    ranked = sorted((-score.violation_ratio, i) for i, score in enumerate(scores) if score is not None)
    return list(dict.fromkeys(ranked[at][1] for at in (0, len(ranked) // 2, -1)))


def require() -> None:
    """Raises SimulateError, with the remedy, when matplotlib can't be had: before the work, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except (ImportError, RuntimeError) as error:  # numpy's wheels refuse old CPUs with a RuntimeError
        why = " ".join(str(error).split())
        remedy = f"install it with {sys.executable} -m pip install matplotlib, or leave --plot out"
        if sys.flags.no_site:  # as a package starts it: what pip installs is not seen
            remedy = f"criproxy's packages have none: in a checkout, {_INSTALL}; or draw what --json writes"
        raise SimulateError(f"--plot needs matplotlib ({why}): {remedy}") from error


@contextmanager
def _figure(path: str, width: float, height: float) -> "Iterator[Figure]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise SimulateError(f"--plot {path}: {error}; give a file that can be written, as .png or .svg") from error


def draw_courses(path: str, panels: Sequence[Panel], plan: Plan, unit: str) -> None:
    """Usage, prediction, what is reclaimable between them and the watermark, and violations. Raises SimulateError."""
    with _figure(path, 13, 1.2 + 3.6 * len(panels)) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for one, panel in zip(axes, panels, strict=True):
            _course(one, panel, plan, unit)
        legend = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend), frameon=False)


def _course(axes: "Axes", panel: Panel, plan: Plan, unit: str) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    trace, course = panel.trace, panel.course
    mark = plan.watermark_ratio * trace.capacity
    spans = _spans(len(trace.times_s))
    moments = [_moment(trace.times_s[span.start]) for span in spans]
    usage = [max(trace.usages[span]) for span in spans]
    predicted = [max(course.predictions[span]) for span in spans]
    tops = [max(mark, prediction) for prediction in predicted]
    axes.fill_between(
        moments, predicted, tops, color=_RECLAIMABLE, alpha=0.35, label="reclaimable", step="post", lw=0.0
    )
    axes.fill_between(moments, 0.0, usage, color=_USAGE, alpha=0.35, step="post", lw=0.0)
    axes.plot(moments, usage, color=_USAGE, lw=0.8, drawstyle="steps-post", label="online usage")
    axes.plot(moments, predicted, color=_PREDICTION, lw=1.2, drawstyle="steps-post", label="prediction")
    _violations(axes, panel)
    axes.axhline(trace.capacity, color=_QUIET, lw=0.9, label="capacity")
    axes.axhline(mark, color=_QUIET, lw=0.9, ls="--", label=f"watermark, {plan.watermark_ratio:g} of capacity")
    axes.set(ylim=(0, 1.04 * trace.capacity), xlim=(moments[0], moments[-1]), ylabel=unit)
    axes.set_title(_title(panel, len(spans)), loc="left", fontsize=10)
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)


def _violations(axes: "Axes", panel: Panel) -> None:
    """A red line from the prediction up to what online then wanted, and a tick on the ground so that none is missed."""
    trace, course = panel.trace, panel.course
    warm = first_scored(trace)
    exceeded = [
        i for i in range(warm, len(course.highest)) if course.highest[i] > min(course.predictions[i], trace.capacity)
    ]
    if exceeded:
        moments = [_moment(trace.times_s[i]) for i in exceeded]
        lows = [course.predictions[i] for i in exceeded]
        highs = [course.highest[i] for i in exceeded]
        axes.vlines(moments, lows, highs, color=_VIOLATION, lw=1.6, label="violation")
        axes.vlines(moments, 0.0, 0.02, color=_VIOLATION, lw=1.0, transform=axes.get_xaxis_transform())
    if 0 < warm < len(trace.times_s):
        axes.axvspan(_moment(trace.times_s[0]), _moment(trace.times_s[warm]), color="#000000", alpha=0.06, lw=0)
        axes.annotate("warm-up,\nnot scored", (0.004, 0.83), xycoords="axes fraction", va="top", fontsize=8)


def _title(panel: Panel, spans: int) -> str:
    score, count = panel.score, len(panel.trace.times_s)
    binned = f", drawn as the highest of {math.ceil(count / spans)} samples each" if spans < count else ""
    if score is None:
        return f"{panel.trace.id}: too short to be scored{binned}"
    share = "" if score.share_ratio is None else f", {score.share_ratio:.0%} of what perfect foresight would reclaim"
    return f"{panel.trace.id}: {score.violation_ratio:.2%} of samples violated{share}{binned}"


def _spans(count: int) -> list[slice]:
    width = max(1, math.ceil(count / _BINS))
    return [slice(start, start + width) for start in range(0, count, width)]


def _moment(t_s: float) -> float:
    """Days since 1970, which is what matplotlib draws dates by."""
    return t_s / 86400.0


def draw_sweep(path: str, sweep: Sweep, points: Sequence[Point], best: Point | None, plan: Plan) -> None:
    """What offline gets against how often online gets less than it wants, a dot per value. Raises SimulateError."""
    with _figure(path, 9, 5.5) as figure:
        axes = figure.subplots()
        gains = [100 * point.summary.overall.score.limit_ratio for point in points]
        risks = [100 * point.summary.overall.score.hard_ratio for point in points]
        axes.plot(risks, gains, "-o", color=_USAGE, label=sweep.setting)
        for point, risk, gain in zip(points, risks, gains, strict=True):
            axes.annotate(f"{point.value:g}", (risk, gain), (6, -12), textcoords="offset points", fontsize=9)
            if point is best:
                axes.plot([risk], [gain], "o", ms=14, mfc="none", mec=_RECLAIMABLE, mew=2.5, label="recommended")
        axes.axvline(100 * hard_budget(plan), color=_VIOLATION, ls="--", lw=1, label="no more risk is recommended")
        axes.set(
            xlabel="online wants more than is left to it, slack included (% of samples)",
            ylabel="the box's mean limit (% of capacity)",
        )
        axes.set_xlim(left=0.0)
        axes.set_title(f"What {sweep.setting} gives and risks", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
        axes.legend(frameon=False)
