"""How fast `criproxy simulate` replays: samples per second of CPU time, in one process."""

import statistics
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.predictor import CAPACITY_CORES, load
from benchmarks.table import table
from criproxy.commands.simulate.replay import Plan, Trial, limit, predict, run
from criproxy.commands.simulate.trace import Trace

STEP_S = 60.0
ROUNDS = 5
PLAN = Plan(resource="cpu", floor=0.1)
HOUR = Plan(resource="cpu", floor=0.1, alpha_ratio=0.05, horizon_s=3600.0, cold_start_probes=288)


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the rounds; `times_real_time` is how much faster than the recorded node one CPU replays it."""

    part: str
    samples_per_s: float
    slowest_per_s: float
    times_real_time: float


def parts(trace: Trace) -> dict[str, Callable[[], object]]:
    """What a replay is made of."""
    predictions = predict(trace, PLAN)
    return {
        "predictor": lambda: predict(trace, PLAN),
        "policy": lambda: limit(trace, predictions, PLAN),
        "all, until the next sample": lambda: run(Trial(trace, (PLAN,))),
        "all, for the next hour": lambda: run(Trial(trace, (HOUR,))),
    }


def measure(samples: int) -> list[Result]:
    """The parts take turns in each round, so that a noisy neighbour meets them all. CPU time, in one process."""
    trace = Trace(
        "node", "node", CAPACITY_CORES, array("d", (i * STEP_S for i in range(samples))), array("d", load(samples))
    )
    rates: dict[str, list[float]] = {}
    for done in range(ROUNDS):
        for name, part in parts(trace).items():
            start = time.thread_time_ns()
            part()
            rates.setdefault(name, []).append(samples * 1e9 / (time.thread_time_ns() - start))
        print(f"\rround {done + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [
        Result(name, statistics.median(seen), min(seen), statistics.median(seen) * STEP_S)
        for name, seen in rates.items()
    ]


def report(samples: int = 20_000) -> list[dict[str, Any]]:
    """Measure and print; returns the figures."""
    results = measure(samples)
    print(table(results))
    return [asdict(result) for result in results]
