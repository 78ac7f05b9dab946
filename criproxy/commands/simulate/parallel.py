"""Trials on all CPUs, where it is worth it, with a progress bar for who watches."""

import contextlib
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final, Protocol, TextIO, TypeVar

_WORTH_A_PROCESS: Final = 20_000
"""Samples that take about as long as it takes to start the processes."""

_BAR: Final = 24
_REDRAW_S: Final = 0.1


class Weighed(Protocol):
    """A part of the work."""

    @property
    def weight(self) -> int:
        """How many samples long it takes."""


Task = TypeVar("Task", bound=Weighed)
Result = TypeVar("Result")


class Bar:
    """A progress bar on a terminal; nothing at all elsewhere. `clock`: monotonic, in s."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = stream.write if stream.isatty() else lambda _text: 0
        self._clock = clock
        self._what = ""
        self._samples = self._done = 0
        self._begun_s = self._drawn_s = 0.0

    def begin(self, what: str, samples: int) -> None:
        self._what, self._samples, self._done = what, samples, 0
        self._begun_s, self._drawn_s = self._clock(), -math.inf
        self.done(0)

    def done(self, samples: int) -> None:
        """`samples` more are done."""
        self._done += samples
        now_s, ratio = self._clock(), self._done / max(self._samples, 1)
        if now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        left = f", {(now_s - self._begun_s) * (1.0 / ratio - 1.0):.0f} s left" if ratio else ""
        bar = ("#" * round(_BAR * ratio)).ljust(_BAR, ".")
        self._write(f"\r\x1b[K{self._what} [{bar}] {ratio:4.0%}  {self._done:,} of {self._samples:,} samples{left}")

    def end(self) -> None:
        self._write("\r\x1b[K")


def spread(what: str, task: Callable[[Task], Result], trials: Sequence[Task], jobs: int, bar: Bar) -> list[Result]:
    """The task's result for each trial, in their order. Raises what the task raises."""
    weights = [trial.weight for trial in trials]
    alone = jobs < 2 or len(trials) < 2 or sum(weights) < _WORTH_A_PROCESS
    order = sorted(range(len(trials)), key=lambda i: -weights[i])  # so that no long one is left alone at the end
    results: dict[int, Result] = {}
    bar.begin(what, sum(weights))
    with contextlib.ExitStack() as stack:
        stack.callback(bar.end)
        each: Callable[..., Iterable[Result]] = map
        if not alone:
            executor = _processes(jobs)
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
            each = executor.map
        for i, result in zip(order, each(task, [trials[i] for i in order]), strict=True):
            results[i] = result
            bar.done(weights[i])
    return [results[i] for i in range(len(trials))]


def available_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _processes(jobs: int) -> ProcessPoolExecutor:
    """Ctrl-C goes to all processes of the terminal; only the first should have something to say."""
    silent = (signal.SIGINT, signal.SIG_DFL)
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), signal.signal, silent)
