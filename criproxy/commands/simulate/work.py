"""Work on many traces: on all CPUs where it is worth it, with a progress bar for who watches."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final, Protocol, TextIO, TypeVar

from criproxy.commands.simulate.simulation import Trial

_WORTH_A_PROCESS: Final = 20_000
"""Samples that take about as long as it takes to start the processes."""

_BAR: Final = 24
_REDRAW_S: Final = 0.1

Result = TypeVar("Result")


class Progress(Protocol):
    """Is told how many samples are done."""

    def begin(self, what: str, samples: int) -> None: ...

    def done(self, samples: int) -> None: ...

    def end(self) -> None: ...


class Bar:
    """A progress bar on a terminal; nothing at all elsewhere."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
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


def spread(
    what: str, task: Callable[[Trial], Result], trials: Sequence[Trial], jobs: int, progress: Progress
) -> list[Result]:
    """The task's result for each trial, in their order. Raises what the task raises."""
    weights = [len(trial.trace.times_s) * len(trial.plans) for trial in trials]
    progress.begin(what, sum(weights))
    try:
        if jobs < 2 or len(trials) < 2 or sum(weights) < _WORTH_A_PROCESS:
            return [_counted(task(trial), weight, progress) for trial, weight in zip(trials, weights, strict=True)]
        return _in_processes(task, trials, weights, jobs, progress)
    finally:
        progress.end()


def available_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _counted(result: Result, weight: int, progress: Progress) -> Result:
    progress.done(weight)
    return result


def _in_processes(
    task: Callable[[Trial], Result], trials: Sequence[Trial], weights: Sequence[int], jobs: int, progress: Progress
) -> list[Result]:
    """The longest first, so that none is left alone at the end."""
    executor = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"), initializer=_die_silently)
    try:
        order = sorted(range(len(trials)), key=lambda i: -weights[i])
        futures = {executor.submit(task, trials[i]): i for i in order}
        results: dict[int, Result] = {}
        for future in as_completed(futures):
            i = futures[future]
            results[i] = _counted(future.result(), weights[i], progress)
        return [results[i] for i in range(len(trials))]
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _die_silently() -> None:
    """Ctrl-C goes to all processes of the terminal; only the first should have something to say."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
