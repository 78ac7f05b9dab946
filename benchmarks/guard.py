"""How soon the box shrinks when online steps up, how it follows a step up and down, and what false alarms cost.

Needs root. `python -m benchmarks.guard [reaction] [response] [cost] [--steps N] [--json F] [--plot F.png]`

All three take about seven minutes with 40 steps: the costs alone four, as each of three loads is watched for 20 s twice
with the guard and twice without. What is under way, and for how long, is told on stderr.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.node import cpu_seconds
from benchmarks.stage import Quota, Stage, cpu, settle, stage
from benchmarks.table import table
from integration.lab.clean import clean
from integration.lab.criproxy import Config
from integration.lab.directory import claimed
from integration.lab.process import LabError

_BY_PREDICTION: Final = {"bound": "prediction"}
"""A box that is bounded by evidence is open until there is any: there is nothing to squeeze."""

_QUICK: Config = {
    "cpu": _BY_PREDICTION,
    "control": {
        "interval_s": 0.25,
        "predictor": "histogram",
        "half_life_s": 0.3,
        "raise_threshold_ratio": 0.0,
        "max_raise_ratio": 1.0,
    },
    "guard": {"hold_s": 0.5},
}
"""A predictor that forgets each step within seconds, so that a hundred of them find a box with something to lose."""

_BUSY_S = 0.6
_STEP_WINDOW_S = 0.5
_SAMPLE_S = 0.05
_BEFORE_S = 5.0
_PHASE_S = 15.0
_ROUNDS = 2

_STEP_S = 3.0
"""What a step takes, with the wait until the box has something to lose; more on a busy machine."""

_LEAD_S, _BURST_S, _TAIL_S = 4.0, 8.0, 20.0
"""Of the response: before the step up, until the step down, and after it."""

_LOADS = (
    ("quiet", 0.0, 1.0),
    ("30 % of all CPUs, pulses of 3 ms", 0.003, 0.01),
    ("50 % of all CPUs, pulses of 50 ms", 0.05, 0.1),
)
"""What costs are measured under: in words, and for how long of which period each CPU is busy, in s."""

PARTS = ("response", "reaction", "cost")


@dataclass(frozen=True, slots=True)
class Reaction:
    """Milliseconds from an online step to the box's quota in the kernel, over all steps.

    `first_` is the first lower quota, `last_` the lowest of the half second after the step. `missed` had none.
    """

    steps: int
    missed: int
    first_p50_ms: float
    first_p99_ms: float
    first_max_ms: float
    last_p50_ms: float
    last_p99_ms: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of the step response; cores."""

    t_s: float
    online: float
    box: float
    prediction: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the guard does under a load without steps, with it and without in turn.

    `quota_` is the box's mean quota: what offline could have had, whatever else ran on the machine.
    """

    load: str
    seconds: float
    squeezes: int
    needless: int
    quota_cores_with: float
    quota_cores_without: float
    quota_ratio: float
    criproxy_cpu_ratio_with: float
    criproxy_cpu_ratio_without: float


def _tell(what: str, seconds: float) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}, about {seconds:.0f} s …", file=sys.stderr, flush=True)


def reactions(on: Stage, steps: int) -> Reaction:
    """Steps from idle to all CPUs, at random phases of everything that has a rhythm."""
    _tell(f"{steps} steps", steps * _STEP_S)
    firsts, lasts = [], []
    for number in range(steps):
        settle(on, 0.6 * on.cores)
        time.sleep(random.uniform(0.0, 0.5))
        on.quotas()
        before = on.seen[-1].cores
        start_s = time.monotonic() + 0.05
        on.burn(start_s, _BUSY_S)
        with on.ahead():
            time.sleep(0.05 + _BUSY_S)
        lower = [seen for seen in on.quotas() if 0.0 < seen.at_s - start_s < _STEP_WINDOW_S and seen.cores < before]
        if lower:
            firsts.append(lower[0].at_s - start_s)
            lasts.append(min(lower, key=lambda seen: seen.cores).at_s - start_s)
        print(f"\rstep {number + 1} of {steps}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if not firsts:
        raise LabError(f"no quota sank within {_STEP_WINDOW_S:g} s of any of {steps} steps: see criproxy's log")
    return Reaction(
        steps=steps,
        missed=steps - len(firsts),
        first_p50_ms=1000 * statistics.median(firsts),
        first_p99_ms=1000 * _p99(firsts),
        first_max_ms=1000 * max(firsts),
        last_p50_ms=1000 * statistics.median(lasts),
        last_p99_ms=1000 * _p99(lasts),
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


@dataclass(frozen=True, slots=True)
class Response:
    """The samples, and each quota with its time since the step."""

    samples: list[Sample]
    quotas: list[tuple[float, float]]


def response(on: Stage) -> Response:
    """Idle, all CPUs for a while, idle again."""
    _tell("the response to a step up and down", _LEAD_S + _BURST_S + _TAIL_S)
    settle(on, 0.6 * on.cores)
    samples: list[Sample] = []
    start_s = time.monotonic() + _LEAD_S
    on.burn(start_s, _BURST_S)
    prediction = cpu(on)["prediction_cores"]
    before = on.meter.read()
    for count in range(int((_LEAD_S + _BURST_S + _TAIL_S) / _SAMPLE_S)):
        time.sleep(max(0.0, start_s - _LEAD_S + (count + 1) * _SAMPLE_S - time.monotonic()))
        now = on.meter.read()
        if count % 4 == 0:
            prediction = cpu(on)["prediction_cores"]
        online, box = now.cores_since(before, "online"), now.cores_since(before, "box")
        samples.append(Sample(now.at_s - start_s, online, box, prediction))
        before = now
    on.quotas()
    quotas = [(seen.at_s - start_s, seen.cores) for seen in on.seen]
    return Response(samples, [*quotas, (samples[-1].t_s, quotas[-1][1])])


def cost(on: Stage, name: str, busy_s: float, period_s: float) -> Cost:
    """Phases with the guard and without, in turn, under one load; each begins at rest."""
    took: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    squeezes = needless = 0
    for number in range(2 * _ROUNDS):
        enabled = number % 2 == (number // 2) % 2
        guard_is = "with" if enabled else "without"
        _tell(f"{name}, {guard_is} the guard ({number + 1} of {2 * _ROUNDS})", _BEFORE_S + _PHASE_S)
        on.proxy.configure({**_steady(enabled), "colocation": {"enabled": True}})
        on.burn(time.monotonic(), _BEFORE_S + _PHASE_S, busy_s, period_s)
        time.sleep(_BEFORE_S)
        guard, before, spent_s = on.proxy.status()["guard"], on.meter.read(), cpu_seconds(on.pid)
        time.sleep(_PHASE_S)
        after, now = on.proxy.status()["guard"], on.meter.read()
        assert after["enabled"] == enabled, "the reload has not been taken up"
        seconds = now.at_s - before.at_s
        on.quotas()
        took[enabled].append((_mean_quota(on.seen, before.at_s, now.at_s), (cpu_seconds(on.pid) - spent_s) / seconds))
        squeezes += after["squeezes"] - guard["squeezes"]
        needless += after["false_alarms"] - guard["false_alarms"]
    medians = {enabled: [statistics.median(column) for column in zip(*took[enabled], strict=True)] for enabled in took}
    return Cost(
        load=name,
        seconds=_ROUNDS * _PHASE_S,
        squeezes=squeezes,
        needless=needless,
        quota_cores_with=medians[True][0],
        quota_cores_without=medians[False][0],
        quota_ratio=medians[True][0] / medians[False][0],
        criproxy_cpu_ratio_with=medians[True][1],
        criproxy_cpu_ratio_without=medians[False][1],
    )


def _mean_quota(seen: Sequence[Quota], from_s: float, until_s: float) -> float:
    """What held from one moment to another, on average, in cores."""
    total = 0.0
    for quota, after in zip(seen, [*(later.at_s for later in seen[1:]), until_s], strict=True):
        total += quota.cores * max(0.0, min(after, until_s) - max(quota.at_s, from_s))
    return total / (until_s - from_s)


def _steady(guard: bool) -> Config:
    """The defaults but for the bound, with a predictor that knows a load within seconds."""
    control = {"predictor": "histogram", "half_life_s": 30.0, "max_raise_ratio": 1.0}
    return {"cpu": _BY_PREDICTION, "control": control, "guard": {"enabled": guard}}


def report(parts: Sequence[str], steps: int, plot: Path | None) -> dict[str, Any]:
    """Measure and print these of `PARTS`; returns the figures."""
    found: dict[str, Any] = {}
    conditions = {"cpus": len(os.sched_getaffinity(0)), "load_average_before": os.getloadavg()}
    with claimed() as directory:
        try:
            with stage(directory, _QUICK) as on:
                if "response" in parts:
                    with on.ahead():
                        followed = response(on)
                    found["response"] = asdict(followed)
                    if plot:
                        draw(followed, on.cores, plot)
                if "reaction" in parts:
                    reaction = reactions(on, steps)
                    found["reaction"] = asdict(reaction)
                    print(table([reaction]), flush=True)
                if "cost" in parts:
                    costs = [cost(on, *load) for load in _LOADS]
                    found["cost"] = [asdict(one) for one in costs]
                    print(table(costs))
        finally:
            clean(directory)
    return {"conditions": {**conditions, "load_average_after": os.getloadavg()}, **found}


def draw(followed: Response, cores: int, file: Path) -> None:
    """The step response as a picture."""
    import matplotlib  # here, because only those who want a picture should need it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (whole, detail) = pyplot.subplots(2, 1, figsize=(11, 8), layout="constrained")
    samples = followed.samples
    times = [sample.t_s for sample in samples]
    for axes, (left, right) in ((whole, (times[0], times[-1])), (detail, (-0.3, 0.7))):
        axes.step(times, [sample.online for sample in samples], where="pre", label="online's usage", color="#2f6fb0")
        axes.step(times, [sample.box for sample in samples], where="pre", label="the box's usage", color="#7fb77e")
        axes.step(*zip(*followed.quotas, strict=True), where="post", label="the box's quota", color="#c62828")
        known = [(sample.t_s, sample.prediction) for sample in samples if sample.prediction is not None]
        axes.step(*zip(*known, strict=True), where="post", label="prediction", color="#e08a00", linestyle="--")
        axes.set(xlim=(left, right), ylim=(0, cores * 1.1), ylabel="cores")
        axes.grid(alpha=0.3)
    whole.set_title(f"Online steps from idle to all {cores} CPUs and back: the guard squeezes, the ticks give back")
    whole.legend(loc="upper right")
    detail.set_xlabel("seconds since the step")
    figure.savefig(file, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("parts", metavar="PART", nargs="*", help=f"which of {', '.join(PARTS)} (all, unless named)")
    parser.add_argument("--steps", type=int, default=40, help="steps of the reaction's measurement (%(default)s)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    parser.add_argument("--plot", metavar="F", type=Path, help="draw the step response into this file")
    options = parser.parse_args()
    if unknown := set(options.parts).difference(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    if options.steps < 1:
        parser.error("--steps: at least one")
    figures = report(options.parts or PARTS, options.steps, options.plot)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
