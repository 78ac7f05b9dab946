"""What a predictor costs: ns of CPU time per sample, and bytes per series; `./bench predictor [--json F]`."""

import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.table import table
from criproxy.control.histogram import CPU_BUCKETS
from criproxy.control.predictor import Predictor, make_predictor
from criproxy.control.series import PredictorKind, PredictorSettings

CAPACITY_CORES = 32.0
SERIES = 20
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Case:
    """One predictor under one rhythm: a sample each `step_s`, a forecast for `horizon_s`."""

    kind: PredictorKind
    horizon_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the rounds; `slowest_ns` is the slowest round's mean per sample."""

    kind: str
    horizon_s: float
    step_s: float
    ns_per_sample: float
    slowest_ns: float
    bytes_per_series: int


CASES = tuple(
    Case(kind, horizon_s, step_s)
    for kind in ("histogram", "calibrated")
    for horizon_s, step_s in ((60.0, 1.0), (3600.0, 1.0), (60.0, 60.0))
)


def load(samples: int) -> list[float]:
    """A day's wave with noise and bursts, in cores; always the same."""
    source = random.Random(1)
    return [
        max(0.0, 8.0 + 6.0 * source.random() * (i % 997 / 997) + (12.0 if source.random() < 0.01 else 0.0))
        for i in range(samples)
    ]


def feed(predictor: Predictor, case: Case, usages: Sequence[float]) -> None:
    for i, usage in enumerate(usages):
        predictor.observe(i * case.step_s, i * case.step_s, usage, CAPACITY_CORES)


def made(case: Case) -> Predictor:
    return make_predictor(PredictorSettings(kind=case.kind, horizon_s=case.horizon_s), CPU_BUCKETS)


def time_ns(case: Case, usages: Sequence[float]) -> float:
    """CPU time, not wall time: who else is on the machine is no cost of ours."""
    predictor = made(case)
    start = time.thread_time_ns()
    feed(predictor, case, usages)
    return (time.thread_time_ns() - start) / len(usages)


def size_bytes(case: Case, usages: Sequence[float]) -> int:
    """Memory of a predictor that has run; the bucket tables, which all share, are not in it."""
    feed(made(case), case, usages[:100])
    gc.collect()
    tracemalloc.start()
    kept = [made(case) for _ in range(SERIES)]
    for predictor in kept:
        feed(predictor, case, usages)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size // SERIES


def measure(samples: int) -> list[Result]:
    """The cases take turns in each round, so that a noisy neighbour's cache misses meet them all."""
    usages = load(samples)
    rounds = []
    for done in range(ROUNDS):
        rounds.append([time_ns(case, usages) for case in CASES])
        print(f"\rround {done + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [
        Result(
            case.kind,
            case.horizon_s,
            case.step_s,
            ns_per_sample=statistics.median(times),
            slowest_ns=max(times),
            bytes_per_series=size_bytes(case, usages[:2000]),
        )
        for case, times in zip(CASES, zip(*rounds, strict=True), strict=True)
    ]


def report(samples: int = 20_000) -> list[dict[str, Any]]:
    """Measure and print; returns the figures."""
    results = measure(samples)
    print(table(results))
    return [asdict(result) for result in results]
