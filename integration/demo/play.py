"""The demo from beginning to end: set-up, the play, the cleaning, the figures and the plot."""

import argparse
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from types import ModuleType, TracebackType
from typing import Any, Final, Self

from msgspec import UNSET

from integration.demo import DemoError
from integration.demo.load import Play, read_play
from integration.demo.node import DemoNode, check_alive, start
from integration.demo.place import check_cgroups, cleaned, say
from integration.lab.cgroups import version

PEAK_RATIO: Final = 0.85
"""What online's peak takes of the machine's CPUs: the rest runs the demo itself."""

_SAMPLE_S: Final = 0.5
_MOST_SAMPLES: Final = 1000
_SAY_EVERY_S: Final = 3.0
BLUE, GREY, GREEN, RED, ORANGE, OLIVE = "#2f6fb0", "#b9c4d0", "#7fb77e", "#c62828", "#e08a00", "#c5b358"


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment, `t_s` after the play's start. Cores are means since the sample before; None: not known, or no limit.

    `wanted` is what online's curve asked for. `predicted`, `limit` and `throttled`, a share of all CPUs' time, are what
    criproxy said at that moment.
    """

    t_s: float
    wanted: float
    online: float
    node: float
    box: float
    predicted: float | None
    limit: float | None
    throttled: float

    @property
    def others(self) -> float:
        """What ran besides online and offline pods, criproxy too."""
        return max(self.node - self.box - self.online, 0.0)


def run(options: argparse.Namespace) -> None:
    """Run the demo. Raises DemoError, LabError, grpc.RpcError, OSError or Stopped; everything is cleaned up by then."""
    cores = len(os.sched_getaffinity(0))
    play = read_play(options.trace, options.trace_id, options.seconds, PEAK_RATIO * cores)
    check_cgroups()
    with ExitStack() as on_exit:
        (lab,) = on_exit.enter_context(cleaned(1, options.port))
        say("Setting up a node of its own:")
        node = start(lab, play, cores, port=options.port, with_kubelet=options.kubelet)
        say(f"online pod: {node.paths['online']}")
        say(f"offline pods: {node.paths['box']}, each wants all CPUs")
        say(f"1 s is {play.compression:.3g} s of the trace, and so much quicker does criproxy learn here")
        samples, due_s = [], 0.0
        others = on_exit.enter_context(Others(options.others, (play.seconds - options.others) / 2.0, cores))
        for sample in _samples(node, play):
            samples.append(sample)
            others.look(sample.t_s)
            if sample.t_s >= due_s:
                due_s = sample.t_s + _SAY_EVERY_S
                say(line(sample, cores))
    say("")
    words = in_words(samples, cores)
    for text in words:
        say(text)
    draw(samples, play, cores, options.plot, words[0])
    say(f"Plot: {options.plot}")


class Others:
    """Load that is no pod's: a busy loop for each CPU, for `seconds` from `begin_s` of the play on."""

    def __init__(self, seconds: float, begin_s: float, cores: int) -> None:
        self._seconds, self._begin_s, self._cores = seconds, begin_s, cores
        self._loops: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def look(self, t_s: float) -> None:
        if not self._seconds or self._loops or t_s < self._begin_s:
            return
        say(f"{t_s:5.1f} s  now others want all CPUs, for {self._seconds:g} s")
        loop = ("timeout", str(self._seconds), "sh", "-c", "while :; do :; done")
        self._loops = [subprocess.Popen(loop) for _ in range(self._cores)]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self._loops:
            one.terminate()  # and the loop with it
            one.wait()


def _samples(on: DemoNode, play: Play) -> Iterator[Sample]:
    """One sample at each deadline until the play's end, without drift; deadlines that were missed are left out."""
    step_s = max(_SAMPLE_S, play.seconds / _MOST_SAMPLES)
    start_s = on.begin()
    time.sleep(max(start_s - time.monotonic(), 0.0))
    before = on.meter.read()
    while (due_s := (math.floor((time.monotonic() - start_s) / step_s) + 1) * step_s) <= play.seconds:
        time.sleep(max(start_s + due_s - time.monotonic(), 0.0))
        check_alive(on.parts)
        now, cpu = on.meter.read(), on.cpu()
        online, box = now.cores_since(before, "online"), now.cores_since(before, "box")
        moments = (before.at_s - start_s + (part + 0.5) / 10 * (now.at_s - before.at_s) for part in range(10))
        yield Sample(
            t_s=now.at_s - start_s,
            wanted=mean(map(play.wanted_cores, moments)),
            online=online,
            # The root's own counter on v2 is the sum of clock ticks, which can miss what the others count exactly.
            node=max(now.cores_since(before, "node"), online + box),
            box=box,
            predicted=cpu.prediction if cpu else None,
            limit=None if cpu is None or isinstance(cpu.limit, str) else cpu.limit,
            throttled=cpu.throttled_ratio if cpu and cpu.throttled_ratio is not UNSET else 0.0,
        )
        before = now


# --- words ------------------------------------------------------------------------------------------------------------


def line(now: Sample, cores: int) -> str:
    """A sample in one plain line."""
    predicted, limit = ("   –" if value is None else f"{value:4.2f}" for value in (now.predicted, now.limit))
    return (
        f"{now.t_s:5.1f} s  node {now.node:4.2f}/{cores}  online {now.online:4.2f} of {now.wanted:4.2f} wanted  "
        f"predicted {predicted}  box limit {limit}  box {now.box:4.2f}  throttled {now.throttled:4.0%}"
    )


def in_words(samples: Sequence[Sample], cores: int) -> tuple[str, ...]:
    """The figures of a play, a line each. Raises DemoError for fewer than two samples."""
    if len(samples) < 2:
        raise DemoError("The machine was too busy for two samples: run the demo again when it is quieter.")

    def core_s(value: Callable[[Sample], float]) -> float:
        return sum(value(after) * (after.t_s - before.t_s) for before, after in pairwise(samples))

    seconds = samples[-1].t_s - samples[0].t_s
    offline, online = core_s(lambda one: one.box), core_s(lambda one: one.online)
    others, wanted = core_s(lambda one: one.others), core_s(lambda one: one.wanted)
    idle = core_s(lambda one: max(cores - one.online - one.others, 0.0))
    got, met = offline / idle if idle else 0.0, online / wanted if wanted else 1.0
    limits = [one.limit for one in samples if one.limit is not None]
    bounds = f"from {min(limits):.2f} to {max(limits):.2f} cores" if limits else "none"
    return (
        f"Offline work got {offline:.1f} core-seconds in {round(seconds + samples[0].t_s)} s: {got:.0%} of the "
        f"{idle:.1f} that all else left idle on {cores} cores.",
        f"Online wanted {wanted:.1f} core-seconds and used {online:.1f} ({met:.0%}). Everything else on this machine, "
        f"which criproxy counts as online, used {others:.1f}.",
        f"The box's limit was {bounds}, and held it back (it was throttled) for "
        f"{mean(one.throttled for one in samples):.0%} of the CPUs' time.",
        f"In short: {(offline + online + others) / (cores * seconds):.0%} of the CPU was used; offline got {got:.0%} "
        f"of what was left, and online lost {max(0.0, 1.0 - met):.0%} of what it wanted.",
    )


# --- the plot ---------------------------------------------------------------------------------------------------------


def load_pyplot() -> ModuleType:
    """For pictures in files. Raises DemoError where it does not load."""
    try:
        import matplotlib  # here, because it costs a second that only the end of a play should pay

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except (ImportError, RuntimeError) as error:  # numpy's wheels refuse old CPUs, and such as a VM may show
        why = " ".join(str(error).split())
        raise DemoError(f"No plot, because matplotlib does not load on this machine ({why}).") from error
    return pyplot


def finish(axes: Any) -> None:
    """What all panels have in common."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw(samples: Sequence[Sample], play: Play, cores: int, path: Path, subtitle: str) -> None:
    """Write the plot as PNG: who had the CPU, what criproxy decided, and how much the box was throttled."""
    pyplot = load_pyplot()
    figure, every = pyplot.subplots(3, sharex=True, figsize=(12, 9), height_ratios=(3, 3, 1), layout="constrained")
    who, decided, held_back = every
    times = [one.t_s for one in samples]

    def plot(axes: Any, value: Callable[[Sample], float | None], label: str, colour: str, **style: Any) -> None:
        axes.plot(times, [value(one) for one in samples], color=colour, label=label, **style)

    used = [[one.online for one in samples], [one.others for one in samples], [one.box for one in samples]]
    labels = ("online pod", "everything else (criproxy, too)", "offline pods (the box)")
    who.stackplot(times, *used, colors=(BLUE, GREY, GREEN), alpha=0.85, labels=labels)
    plot(who, lambda one: one.wanted, "what online wants", "black", lw=1, ls="--")
    who.set(ylim=(0, cores * 1.05), ylabel="who has the CPU\n(cores)")
    who.set_title(subtitle, fontsize=10, loc="left")
    plot(decided, lambda one: one.online + one.others, "online usage (node less box)", BLUE)
    plot(decided, lambda one: one.predicted, "prediction of online", ORANGE)
    plot(decided, lambda one: one.limit, "box limit", RED, lw=4.5, alpha=0.4)  # wide: the usage lies on it
    plot(decided, lambda one: one.box, "box usage", GREEN)
    decided.set(ylim=(0, cores * 1.05), ylabel="what criproxy decides\n(cores)")
    shares = [100 * one.throttled for one in samples]
    held_back.fill_between(times, shares, color="#8e44ad", alpha=0.5, step="pre", label="of CPU time")
    held_back.set(ylim=(0, 100), ylabel="box throttled\n(%)", xlabel="seconds of the play", xlim=(0, play.seconds))
    for axes in every:
        finish(axes)
    hours = play.points[-1][0] / 3600
    title = f"criproxy demo: {hours:.3g} h in {play.seconds:g} s on {cores} cores (cgroup v{version()})"
    figure.suptitle(title, fontsize=14, fontweight="bold")
    save(figure, path)
