"""Work in processes gives what work in one gives; the bar is for terminals only."""

import io
import os

import pytest
from simulate_helpers import PLAN, trace

from criproxy.commands.simulate.parallel import Bar, spread
from criproxy.commands.simulate.replay import Trial, run


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Counted(Bar):
    """Only counts."""

    def __init__(self):
        super().__init__(io.StringIO())
        self.samples = self.counted = 0
        self.ended = False

    def begin(self, _what, samples):
        self.samples = samples

    def done(self, samples):
        self.counted += samples

    def end(self):
        self.ended = True


def trials(count, samples):
    return [
        Trial(trace([float((i * j + i) % 7) for j in range(samples)], step=60.0, name=f"n-{i}"), (PLAN,), keep=True)
        for i in range(count)
    ]


def process_of(_trial):
    return os.getpid()


def fail(trial):
    raise ValueError(trial.trace.id)


def test_spread_over_processes_gives_the_same_in_the_same_order():
    many, alone, together = trials(5, 5000), Counted(), Counted()
    elsewhere, here = spread("", run, many, 2, together), spread("", run, many, 1, alone)
    assert [one.scores for one in elsewhere] == [one.scores for one in here]
    assert [one.courses[0].limits for one in elsewhere] == [one.courses[0].limits for one in here]
    assert len({one.scores for one in here}) == 5
    assert (together.samples, together.counted, together.ended) == (25_000, 25_000, True)
    assert (alone.samples, alone.counted, alone.ended) == (25_000, 25_000, True)


@pytest.mark.parametrize(
    ("count", "samples", "jobs", "elsewhere"),
    [(5, 5000, 2, True), (5, 5000, 1, False), (5, 50, 2, False), (1, 50_000, 2, False)],
    ids=["much-work", "one-cpu", "little-work", "one-trace"],
)
def test_spread_starts_processes_only_where_they_pay(count, samples, jobs, elsewhere):
    processes = set(spread("", process_of, trials(count, samples), jobs, Counted()))
    assert (os.getpid() not in processes) == elsewhere


@pytest.mark.parametrize("jobs", [1, 2])
def test_spread_raises_what_the_task_raises_and_ends_the_bar(jobs):
    progress = Counted()
    with pytest.raises(ValueError, match="n-"):
        spread("", fail, trials(3, 10_000), jobs, progress)
    assert progress.ended


def test_bar_on_a_terminal_tells_what_is_done_and_what_is_left():
    terminal, now = Terminal(), [100.0]
    bar = Bar(terminal, lambda: now[0])
    bar.begin("replaying", 4000)
    assert terminal.getvalue().endswith("replaying [........................]   0%  0 of 4,000 samples")
    now[0] += 2.0
    bar.done(1000)
    assert terminal.getvalue().endswith("replaying [######..................]  25%  1,000 of 4,000 samples, 6 s left")
    bar.end()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_bar_is_not_drawn_more_often_than_one_can_see():
    terminal, now = Terminal(), [100.0]
    bar = Bar(terminal, lambda: now[0])
    bar.begin("replaying", 100)
    for _ in range(100):
        now[0] += 0.01
        bar.done(1)
    assert 5 <= terminal.getvalue().count("replaying") <= 11


def test_bar_elsewhere_is_silent():
    stream = io.StringIO()
    bar = Bar(stream, lambda: 0.0)
    bar.begin("replaying", 1)
    bar.done(1)
    bar.end()
    assert stream.getvalue() == ""
