"""What came of the demo of a cluster: figures in words, and the picture."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from integration.demo.cluster.probe import ANSWER_S, Answer, quantile
from integration.demo.cluster.watch import SQUEEZED, Mark, Moment
from integration.demo.plot import load_pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ONLINE: Final = "#2f6fb0"
_OTHERS: Final = "#b9c4d0"
_BOX: Final = "#7fb77e"
_SECOND: Final = "#c5b358"
_LIMIT: Final = "#c62828"
_LENT: Final = "#e08a00"

SQUEEZED_RATIO: Final = 0.1
"""Of the machine's cores: a limit that moved by less was not seen to be squeezed."""


class Ticking(Protocol):
    """Whoever knows how long the play has gone on."""

    @property
    def now_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Window:
    """A time of the play whose latencies are told by themselves."""

    name: str
    start_s: float
    end_s: float


@dataclass
class Outcome:
    """What was seen. `begin_s` is when the play began (CLOCK_MONOTONIC), all other times count from there.

    `started_after_s`: from the Job's submission until all of its pods ran; `evicted_after_s`: from the burst to the
    eviction; `replaced_after_s`: from there until another pod of the Job ran, on `replaced_on`.
    """

    cores: int
    moments: Sequence[Moment]
    marks: Sequence[Mark]
    begin_s: float
    answers: Sequence[Answer] = ()
    windows: list[Window] = field(default_factory=list)
    started_after_s: float = 0.0
    evicted: str = ""
    evicted_after_s: float = 0.0
    replaced_after_s: float = 0.0
    replaced_on: str = ""

    @contextlib.contextmanager
    def window(self, name: str, clock: Ticking) -> Iterator[None]:
        start_s = clock.now_s
        yield
        self.windows.append(Window(name, start_s, clock.now_s))

    def latencies(self, window: Window) -> list[float]:
        start_s, end_s = self.begin_s + window.start_s, self.begin_s + window.end_s
        return [one.latency_s for one in self.answers if start_s <= one.at_s < end_s]


def in_words(outcome: Outcome) -> Iterator[str]:
    """The figures, a line each."""
    yield (
        f"The Job's pods ran {outcome.started_after_s:.1f} s after it was submitted. {outcome.evicted} was evicted "
        f"{outcome.evicted_after_s:.1f} s after the burst began; {outcome.replaced_after_s:.1f} s later another pod "
        f"ran in its place, on {outcome.replaced_on}."
    )
    used = [
        sum(cores(after) * (after.t_s - before.t_s) for before, after in pairwise(outcome.moments))
        for cores in (attrgetter("box_cores"), attrgetter("second_cores"))
    ]
    yield f"Offline pods used {used[0]:.1f} core-seconds in the box of node 1, {used[1]:.1f} in that of node 2."
    limits = [one.limit_cores for one in outcome.moments if one.limit_cores is not None and one.promised_cores]
    if limits:
        yield f"With pods in it, the box of node 1 had from {min(limits):.2f} to {max(limits):.2f} cores."
        if max(limits) - min(limits) < SQUEEZED_RATIO * outcome.cores:
            others = sum(one.others_cores for one in outcome.moments) / len(outcome.moments)
            yield (
                f"So nothing was to be seen of a squeeze: beside the demo's pods this machine used {others:.1f} of its "
                f"{outcome.cores} cores, and the box had no more than its least. Run the demo again when it is quieter."
            )
        elif all(mark.text != SQUEEZED for mark in outcome.marks):
            yield "Nothing has squeezed it: what online wants to use, the kernel gives to online first."
    yield f"{'online latency':24} {'requests':>8} {'p50':>8} {'p99':>8}  no answer"
    for window in outcome.windows:
        latencies = outcome.latencies(window)
        lost = sum(latency >= ANSWER_S for latency in latencies)
        yield f"{window.name:24} {len(latencies):8} {_ms(latencies, 0.5)} {_ms(latencies, 0.99)}  {lost}"


def _ms(latencies: Sequence[float], q: float) -> str:
    value = quantile(latencies, q)
    return f"{'–':>8}" if value is None else f"{1000 * value:5.0f} ms"


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(outcome: Outcome, path: Path) -> None:
    """Write the picture as PNG. Raises OSError when it cannot be written, DemoError without matplotlib."""
    pyplot = load_pyplot()
    figure, (who, lends, answers) = pyplot.subplots(
        3, 1, sharex=True, figsize=(13, 10), height_ratios=(3, 2, 2), layout="constrained"
    )
    _who(who, outcome)
    _lends(lends, outcome)
    _answers(answers, outcome)
    for axes in (who, lends, answers):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        for mark in outcome.marks:
            axes.axvline(mark.t_s, color="#555555", lw=0.7, ls=":")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    for mark in _apart(outcome.marks):
        who.annotate(
            mark.text, (mark.t_s, 1.0), xycoords=("data", "axes fraction"), rotation=35, fontsize=8, va="bottom"
        )
    answers.set_xlabel("seconds of the play")
    figure.suptitle(f"criproxy demo: a cluster on {outcome.cores} cores", fontsize=14, fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _apart(marks: Sequence[Mark]) -> list[Mark]:
    """Without those that would be written over the one before."""
    found: list[Mark] = []
    for mark in marks:
        if not found or mark.t_s - found[-1].t_s > 2.0 or mark.text in ("evicted",):
            found.append(mark)
    return found


def _who(axes: "Axes", outcome: Outcome) -> None:
    moments = outcome.moments
    axes.stackplot(
        [one.t_s for one in moments],
        [one.online_cores for one in moments],
        [one.others_cores for one in moments],
        [one.box_cores for one in moments],
        [one.second_cores for one in moments],
        colors=(_ONLINE, _OTHERS, _BOX, _SECOND),
        alpha=0.85,
        labels=("online pod", "everything else", "box of node 1", "box of node 2"),
    )
    axes.set(ylim=(0, outcome.cores * 1.05), ylabel="who has the CPU\n(cores)")


def _lends(axes: "Axes", outcome: Outcome) -> None:
    moments = outcome.moments
    times = [one.t_s for one in moments]

    def line(values: Sequence[float | None], label: str, colour: str, style: str = "-") -> None:
        known = [float("nan") if value is None else value for value in values]
        axes.plot(times, known, style, color=colour, drawstyle="steps-post", label=label)

    axes.fill_between(
        times, [one.box_cores for one in moments], color=_BOX, alpha=0.6, step="post", label="its box uses"
    )
    line([one.lent_cores for one in moments], "batch-cpu published", _LENT)
    line([one.promised_cores for one in moments], "of it promised to pods", _LENT, ":")
    line([one.limit_cores for one in moments], "its box may use", _LIMIT)
    axes.set(ylim=(0, outcome.cores * 1.05), ylabel="node 1\n(cores)")


def _answers(axes: "Axes", outcome: Outcome) -> None:
    times = [one.at_s - outcome.begin_s for one in outcome.answers]
    values = [1000 * one.latency_s for one in outcome.answers]
    axes.scatter(times, values, s=4, color=_ONLINE, alpha=0.35, label="a request of online's")
    for number, window in enumerate(outcome.windows):
        p99 = quantile(outcome.latencies(window), 0.99)
        if p99 is not None:
            label = "99th percentile" if number == 0 else ""
            axes.hlines(1000 * p99, window.start_s, window.end_s, color=_LIMIT, lw=2, label=label)
    axes.set(yscale="log", ylabel="online's latency\n(ms)")
