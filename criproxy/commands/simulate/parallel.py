"""Trials on all CPUs, where it is worth it, with a progress bar for who watches."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final, TextIO, TypeVar

from criproxy.commands.simulate.replay import Trial

_WORTH_A_PROCESS: Final = 20_000
"""Samples that take about as long as it takes to start the processes."""

_BAR: Final = 24
_REDRAW_S: Final = 0.1

Result = TypeVar("Result")


class Bar:
    """A progress bar on a terminal; nothing at all elsewhere. `clock`: monotonic, in s."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream.isatty() else None
        self._clock = clock
        self._what = ""
        self._samples = self._done = 0
        self._begun_s = self._drawn_s = 0.0

    def begin(self, what: str, samples: int) -> None:
        self._what, self._samples, self._done = what, samples, 0
        self._begun_s = self._clock()
        self._draw(self._begun_s)

    def done(self, samples: int) -> None:
        """`samples` more are done."""
        self._done += samples
        now_s = self._clock()
        if now_s - self._drawn_s >= _REDRAW_S:
            self._draw(now_s)

    def _draw(self, now_s: float) -> None:
        self._drawn_s = now_s
        if self._stream is None:
            return
        ratio = self._done / max(self._samples, 1)
        filled = round(_BAR * ratio)
        left = f", {(now_s - self._begun_s) * (1.0 / ratio - 1.0):.0f} s left" if ratio else ""
        self._stream.write(
            f"\r\x1b[K{self._what} [{'#' * filled}{'.' * (_BAR - filled)}] {ratio:4.0%}"
            f"  {self._done:,} of {self._samples:,} samples{left}"
        )
        self._stream.flush()

    def end(self) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def spread(what: str, task: Callable[[Trial], Result], trials: Sequence[Trial], jobs: int, bar: Bar) -> list[Result]:
    """The task's result for each trial, in their order. Raises what the task raises."""
    weights = [len(trial.trace.times_s) * len(trial.plans) for trial in trials]
    alone = jobs < 2 or len(trials) < 2 or sum(weights) < _WORTH_A_PROCESS
    results: dict[int, Result] = {}
    bar.begin(what, sum(weights))
    try:
        for i, result in _in_turn(task, trials) if alone else _in_processes(task, trials, weights, jobs):
            results[i] = result
            bar.done(weights[i])
    finally:
        bar.end()
    return [results[i] for i in range(len(trials))]


def available_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _in_turn(task: Callable[[Trial], Result], trials: Sequence[Trial]) -> Iterator[tuple[int, Result]]:
    return ((i, task(trial)) for i, trial in enumerate(trials))


def _in_processes(
    task: Callable[[Trial], Result], trials: Sequence[Trial], weights: Sequence[int], jobs: int
) -> Iterator[tuple[int, Result]]:
    """The longest first, so that none is left alone at the end."""
    executor = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"), initializer=_die_silently)
    try:
        order = sorted(range(len(trials)), key=lambda i: -weights[i])
        futures = {executor.submit(task, trials[i]): i for i in order}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _die_silently() -> None:
    """Ctrl-C goes to all processes of the terminal; only the first should have something to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
