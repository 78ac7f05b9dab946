"""What a process holds and does, sampled; and whether that is flat."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.node import cpu_seconds, rss_mib

_DRIFT_MIB: Final = 1.0
_DRIFT_FILES: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """`at_s` since the beginning; CPU and calls are means since the sample before."""

    at_s: float
    rss_mib: float
    open_files: int
    cpu_percent: float
    calls_per_s: float


def open_files(pid: int) -> int:
    """Source: proc(5), /proc/PID/fd."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def open_sockets(pid: int) -> int:
    """Of the open files. Source: proc(5), /proc/PID/fd."""
    sockets = 0
    for file in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets += os.readlink(f"/proc/{pid}/fd/{file}").startswith("socket:")
    return sockets


def watch(pid: int, calls: Callable[[], int], seconds: float, every_s: float) -> list[Sample]:
    """Samples of a process by a fixed schedule. `calls` tells how many there have been."""
    began_s = last_s = time.monotonic()
    last_cpu_s, last_calls = cpu_seconds(pid), calls()
    samples = []
    for number in range(1, round(seconds / every_s) + 1):
        time.sleep(max(0.0, began_s + number * every_s - time.monotonic()))
        now_s, cpu_s, count = time.monotonic(), cpu_seconds(pid), calls()
        past_s = now_s - last_s
        samples.append(
            Sample(
                now_s - began_s,
                rss_mib(pid),
                open_files(pid),
                100 * (cpu_s - last_cpu_s) / past_s,
                (count - last_calls) / past_s,
            )
        )
        last_s, last_cpu_s, last_calls = now_s, cpu_s, count
    return samples


@dataclass(frozen=True, slots=True)
class Drift:
    """Medians of the second and of the last fifth: the first fifth is the warm-up."""

    rss_early_mib: float
    rss_late_mib: float
    files_early: float
    files_late: float

    @property
    def flat(self) -> bool:
        """Whether neither grew by more than what comes and goes."""
        grown_mib, grown_files = self.rss_late_mib - self.rss_early_mib, self.files_late - self.files_early
        return grown_mib <= _DRIFT_MIB and grown_files <= _DRIFT_FILES


def drift(samples: Sequence[Sample]) -> Drift:
    """Of five samples or more."""
    fifth = len(samples) // 5
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    return Drift(
        statistics.median(sample.rss_mib for sample in early),
        statistics.median(sample.rss_mib for sample in late),
        statistics.median(sample.open_files for sample in early),
        statistics.median(sample.open_files for sample in late),
    )
