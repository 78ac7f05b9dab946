"""The demo from beginning to end: checks, set-up, the play, the cleaning, the summary and the plot."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from statistics import mean
from types import FrameType
from typing import Final, Never

from msgspec import UNSET

from criproxy.config.settings import Cpu
from integration.demo import DemoError
from integration.demo.arguments import DAY, Options
from integration.demo.checks import check_plot, check_port, look, problem
from integration.demo.curve import Play, TraceError, read_curve
from integration.demo.place import Place, held
from integration.demo.sample import Sample, Setting
from integration.demo.screen import Say, screen
from integration.demo.stage import Stage, half_life_s, stage
from integration.demo.summary import in_words, summarise
from integration.lab.cgroups import version

PEAK_RATIO: Final = 0.85
"""What online's peak takes of the machine's CPUs: the rest runs the demo itself."""
_SAMPLE_S: Final = 0.5
_MOST_SAMPLES: Final = 1000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """The user, or the system, ends the demo with a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def run(options: Options, say: Say) -> None:
    """Run the demo. Raises DemoError, LabError, grpc.RpcError, OSError or Stopped; everything is cleaned up by then."""
    if sentence := problem(look()):
        raise DemoError(sentence)
    try:
        curve = read_curve(options.trace, options.trace_id)
    except TraceError as error:
        raise DemoError(str(error)) from error
    check_plot(options.plot)
    cores = len(os.sched_getaffinity(0))
    play = Play(curve, options.seconds, PEAK_RATIO * cores)
    with stoppable(), held(options.directory) as place:
        if not place.is_clean():
            say(f"Cleaning up what an earlier demo left in {place.base}.")
            place.clear()
        check_port(options.port)
        with cleaned(place, say):
            setting, samples = _perform(place, play, cores, options, say)
    _conclude(setting, samples, options, say)


def _perform(place: Place, play: Play, cores: int, options: Options, say: Say) -> tuple[Setting, list[Sample]]:
    say("Setting up a node of its own:")
    place.lab.mkdir()
    with stage(place, play, cores, say, port=options.port, with_kubelet=options.kubelet) as on:
        known = on.cpu()
        capacity = known.capacity if known and known.capacity else float(cores)
        setting = _setting(play, capacity, options)
        with screen(setting, _heading(on, play, setting)) as shown:
            samples: list[Sample] = []
            for sample in _samples(on, play):
                samples.append(sample)
                shown.show(samples)
    return setting, samples


def _samples(on: Stage, play: Play) -> Iterator[Sample]:
    """One sample at each deadline until the play's end, without drift; deadlines that were missed are left out."""
    step_s = max(_SAMPLE_S, play.seconds / _MOST_SAMPLES)
    start = on.begin()
    time.sleep(max(start - time.monotonic(), 0.0))
    before = on.meter.read()
    while (due_s := (math.floor((time.monotonic() - start) / step_s) + 1) * step_s) <= play.seconds:
        time.sleep(max(start + due_s - time.monotonic(), 0.0))
        on.check()
        now, cpu = on.meter.read(), on.cpu()
        online, box = now.cores_since(before, "online"), now.cores_since(before, "box")
        limit = None if cpu is None or isinstance(cpu.limit, str) else cpu.limit
        yield Sample(
            t_s=now.at_s - start,
            wanted_cores=_mean_wanted(play, before.at_s - start, now.at_s - start),
            online_cores=online,
            # The root's own counter on v2 is the sum of clock ticks, which can miss what the others count exactly.
            node_cores=max(now.cores_since(before, "node"), online + box),
            box_cores=box,
            prediction_cores=cpu.prediction if cpu else None,
            limit_cores=limit,
            throttled_ratio=cpu.throttled_ratio if cpu and cpu.throttled_ratio is not UNSET else 0.0,
            reason=cpu.reason if cpu else "",
        )
        before = now


def _mean_wanted(play: Play, from_s: float, to_s: float) -> float:
    return mean(play.wanted_cores(from_s + (part + 0.5) / 10 * (to_s - from_s)) for part in range(10))


def _setting(play: Play, capacity_cores: float, options: Options) -> Setting:
    trace = "a day" if options.trace == DAY else f"{options.trace.name}, series {play.curve.id},"
    return Setting(
        title=f"criproxy demo: {trace} in {play.seconds:g} s on {capacity_cores:g} cores (cgroup v{version()})",
        seconds=play.seconds,
        compression=play.compression,
        capacity_cores=capacity_cores,
        floor_cores=Cpu().min_cores,
        half_life_s=half_life_s(play),
        cgroup_version=version(),
    )


def _heading(on: Stage, play: Play, setting: Setting) -> tuple[str, ...]:
    return (
        f"online pod: {on.paths['online']}",
        f"offline pods: {on.paths['box']}, each wants all CPUs",
        f"1 s is {_span(setting.compression)} of the trace: the histogram predictor's half-life of 15 min is "
        f"{setting.half_life_s:.2g} s here",
        f"the trace's peak of {play.curve.peak:.4g} is {play.peak_cores:.2f} of {setting.capacity_cores:g} cores here",
    )


def _span(seconds: float) -> str:
    return f"{seconds / 60:.3g} min" if seconds >= 100 else f"{seconds:.3g} s"


def _conclude(setting: Setting, samples: list[Sample], options: Options, say: Say) -> None:
    from integration.demo.plot import draw  # here, because matplotlib costs time that only the end should pay

    words = in_words(summarise(samples, setting), setting)
    say("")
    for text in words:
        say(text)
    draw(samples, setting, options.plot, words[0])
    say(f"Plot: {options.plot}")


@contextlib.contextmanager
def cleaned(place: Place, say: Say) -> Iterator[None]:
    """Clean up whatever happens, undisturbed by further signals, and say so."""
    try:
        try:
            yield
        finally:
            _ignore_signals()
    finally:  # also when a signal came just before it would have been ignored
        start = time.monotonic()
        place.clear()
        with contextlib.suppress(OSError):  # the terminal may be gone
            say(
                f"Cleaned up in {time.monotonic() - start:.1f} s, and looked again: no process, mount, cgroup, socket "
                "or file of the demo is left."
            )


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Turn signals into `Stopped`."""
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, _frame: FrameType | None) -> Never:
    _ignore_signals()  # one is enough: from here on it is cleaning up
    raise Stopped(number)
