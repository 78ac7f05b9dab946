"""What came of the demo of a cluster: figures in words, and the picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from integration.demo.cluster.probe import ANSWER_S
from integration.demo.play import BLUE, GREEN, GREY, OLIVE, ORANGE, RED, finish, load_pyplot, save

SQUEEZED: Final = "squeezed"
"""The mark of a limit that is lowered."""

_SEEN_RATIO: Final = 0.1
"""Of the machine's cores: a limit that moved by less was not seen to be squeezed."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One look, `t_s` after the play began. Cores are means since the look before.

    `limit` is that of node 1's box, `lent` what that node publishes; None: not known, or none.
    """

    t_s: float
    online: float
    box: float
    second_box: float
    others: float
    limit: float | None
    lent: float | None


@dataclass
class Outcome:
    """What was seen. `begin_s` is when the play began (CLOCK_MONOTONIC), all other times count from there.

    `marks` are what happened, in a few words, `windows` the times whose latencies are told by themselves, `answers` the
    probe's. `started_after_s`: from the Job's submission until all of its pods ran; `evicted_after_s`: from the burst
    to the eviction; `replaced_after_s`: from there until another pod of the Job ran, on `replaced_on`.
    """

    cores: int
    begin_s: float
    moments: list[Moment] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    windows: dict[str, tuple[float, float]] = field(default_factory=dict)
    answers: Sequence[tuple[float, float]] = ()
    started_after_s: float = 0.0
    evicted: str = ""
    evicted_after_s: float = 0.0
    replaced_after_s: float = 0.0
    replaced_on: str = ""

    def latencies(self, window: tuple[float, float]) -> list[float]:
        """In order."""
        start_s, end_s = window
        return sorted(latency_s for due_s, latency_s in self.answers if start_s <= due_s - self.begin_s < end_s)


def in_words(outcome: Outcome) -> Iterator[str]:
    """The figures, a line each."""
    yield (
        f"The Job's pods ran {outcome.started_after_s:.1f} s after it was submitted. {outcome.evicted} was evicted "
        f"{outcome.evicted_after_s:.1f} s after the burst began; {outcome.replaced_after_s:.1f} s later another pod "
        f"ran in its place, on {outcome.replaced_on}."
    )
    spans = [(after, after.t_s - before.t_s) for before, after in pairwise(outcome.moments)]
    one, two = (sum(now.box * span_s for now, span_s in spans), sum(now.second_box * span_s for now, span_s in spans))
    yield f"Offline pods used {one:.1f} core-seconds in the box of node 1, {two:.1f} in that of node 2."
    limits = [now.limit for now in outcome.moments if now.limit is not None and now.box]
    if limits:
        yield f"With pods in it, the box of node 1 had from {min(limits):.2f} to {max(limits):.2f} cores."
        if max(limits) - min(limits) < _SEEN_RATIO * outcome.cores:
            others = sum(now.others for now in outcome.moments) / len(outcome.moments)
            yield (
                f"So nothing was to be seen of a squeeze: beside the demo's pods this machine used {others:.1f} of its "
                f"{outcome.cores} cores, and the box had no more than its least. Run the demo again when it is quieter."
            )
        elif all(text != SQUEEZED for _, text in outcome.marks):
            yield "Nothing has squeezed it: what online wants to use, the kernel gives to online first."
    yield f"{'online latency':24} {'requests':>8} {'p50':>8} {'p99':>8}  no answer"
    for name, window in outcome.windows.items():
        latencies = outcome.latencies(window)
        shown = (f"{1000 * at(latencies, q):5.0f} ms" if latencies else f"{'–':>8}" for q in (0.5, 0.99))
        yield f"{name:24} {len(latencies):8} {' '.join(shown)}  {sum(one >= ANSWER_S for one in latencies)}"


def at(ordered: Sequence[float], q: float) -> float:
    """A quantile."""
    return ordered[int(q * (len(ordered) - 1))]


def draw(outcome: Outcome, path: Path) -> None:
    """Write the picture as PNG. Raises OSError when it cannot be written, DemoError without matplotlib."""
    pyplot = load_pyplot()
    figure, every = pyplot.subplots(3, sharex=True, figsize=(13, 10), height_ratios=(3, 2, 2), layout="constrained")
    who, lends, answers = every
    moments, top = outcome.moments, outcome.cores * 1.05
    times = [one.t_s for one in moments]
    used = zip(*((one.online, one.others, one.box, one.second_box) for one in moments), strict=True)
    labels = ("online pod", "everything else", "box of node 1", "box of node 2")
    who.stackplot(times, *used, colors=(BLUE, GREY, GREEN, OLIVE), alpha=0.85, labels=labels)
    who.set(ylim=(0, top), ylabel="who has the CPU\n(cores)")
    box = [one.box for one in moments]
    lends.fill_between(times, box, color=GREEN, alpha=0.6, step="post", label="its box uses")
    for values, label, colour in (
        ([one.lent for one in moments], "batch-cpu published", ORANGE),
        ([one.limit for one in moments], "its box may use", RED),
    ):
        lends.plot(times, values, color=colour, drawstyle="steps-post", label=label)
    lends.set(ylim=(0, top), ylabel="node 1\n(cores)")
    due = [due_s - outcome.begin_s for due_s, _ in outcome.answers]
    took_ms = [1000 * latency_s for _, latency_s in outcome.answers]
    answers.scatter(due, took_ms, s=4, color=BLUE, alpha=0.35, label="a request of online's")
    for window in outcome.windows.values():
        if latencies := outcome.latencies(window):
            answers.hlines(1000 * at(latencies, 0.99), *window, color=RED, lw=2)
    answers.set(yscale="log", ylabel="online's latency\n(ms; red: p99)", xlabel="seconds of the play")
    for axes in every:
        finish(axes)
        for t_s, _ in outcome.marks:
            axes.axvline(t_s, color="#555555", lw=0.7, ls=":")
    last_s = -10.0
    for t_s, text in outcome.marks:
        if t_s - last_s > 2.0 or text == "evicted":  # else it would be written over the one before
            last_s = t_s
            over = {"xycoords": ("data", "axes fraction"), "rotation": 35, "fontsize": 8, "va": "bottom"}
            who.annotate(text, (t_s, 1.0), **over)
    figure.suptitle(f"criproxy demo: a cluster on {outcome.cores} cores", fontsize=14, fontweight="bold")
    save(figure, path)
