"""The numbers of a finished play, and the same in plain words. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Final

from integration.demo.sample import Sample, Setting, clock

_NOTABLE_RATIO: Final = 0.1
"""A change of the limit by less than this share of the machine is not worth a word."""
_BUSY_RATIO: Final = 0.15
"""Other programs that take more than this share of the machine distort the play."""


@dataclass(frozen=True, slots=True)
class Squeeze:
    """The limit went down from `before_cores` to `after_cores`, between `start_s` and `end_s`."""

    start_s: float
    end_s: float
    before_cores: float
    after_cores: float

    @property
    def depth_cores(self) -> float:
        return self.before_cores - self.after_cores


@dataclass(frozen=True, slots=True)
class Overlap:
    """The limit still promised CPU to the box that the rest of the node was using already."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Summary:
    """Core-seconds over the whole play, and what happened to the limit. `open_ratio`: of the time, the box was open.

    `other_core_s` is what ran besides online and offline pods; `shortfall` is the worst sample for online.
    """

    capacity_core_s: float
    offline_core_s: float
    idle_core_s: float
    wanted_core_s: float
    online_core_s: float
    other_core_s: float
    shortfall_cores: float
    shortfall_at_s: float
    throttled_ratio: float
    open_ratio: float
    squeezes: tuple[Squeeze, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def idle_share(self) -> float:
        """The share of the capacity that online left, that offline work got."""
        return self.offline_core_s / self.idle_core_s if self.idle_core_s else 0.0

    @property
    def utilisation(self) -> float:
        """The share of the machine's CPU that was used, by whomever."""
        return (self.offline_core_s + self.online_core_s + self.other_core_s) / self.capacity_core_s

    @property
    def online_share(self) -> float:
        """The share of what online wanted that it got; a little above 1 is start-up and noise."""
        return self.online_core_s / self.wanted_core_s if self.wanted_core_s else 1.0


def summarise(samples: Sequence[Sample], setting: Setting) -> Summary:
    """The numbers of a play. Raises ValueError for fewer than two samples."""
    if len(samples) < 2:
        raise ValueError(f"{len(samples)} samples make no summary: at least 2 are needed")
    worst = max(samples[1:], key=lambda sample: sample.wanted_cores - sample.online_cores)
    return Summary(
        capacity_core_s=setting.capacity_cores * (samples[-1].t_s - samples[0].t_s),
        offline_core_s=_integral(samples, lambda sample: sample.box_cores),
        idle_core_s=_integral(samples, lambda sample: max(setting.capacity_cores - sample.rest_cores, 0.0)),
        wanted_core_s=_integral(samples, lambda sample: sample.wanted_cores),
        online_core_s=_integral(samples, lambda sample: sample.online_cores),
        other_core_s=_integral(samples, lambda sample: max(sample.rest_cores - sample.online_cores, 0.0)),
        shortfall_cores=max(worst.wanted_cores - worst.online_cores, 0.0),
        shortfall_at_s=worst.t_s,
        throttled_ratio=mean(sample.throttled_ratio for sample in samples),
        open_ratio=mean(sample.is_open(setting.capacity_cores) for sample in samples),
        squeezes=squeezes(samples, setting.capacity_cores * _NOTABLE_RATIO),
        overlaps=overlaps(samples, setting.capacity_cores, setting.floor_cores),
    )


def squeezes(samples: Sequence[Sample], least_cores: float) -> tuple[Squeeze, ...]:
    """The runs of samples in which the limit only fell, by `least_cores` or more in all; a slow drift is none."""
    step_cores = least_cores / 4
    found: list[Squeeze] = []
    run: Squeeze | None = None
    for before, after in pairwise(samples):
        if before.limit_cores is None or after.limit_cores is None or after.limit_cores > before.limit_cores:
            run = None
        elif after.limit_cores <= before.limit_cores - step_cores:
            if run is None or after.t_s - run.end_s > 2 * (after.t_s - before.t_s) + 1:
                run = Squeeze(before.t_s, after.t_s, before.limit_cores, after.limit_cores)
                found.append(run)
            else:
                run = found[-1] = Squeeze(run.start_s, after.t_s, run.before_cores, after.limit_cores)
    return tuple(squeeze for squeeze in found if squeeze.depth_cores >= least_cores)


def overlaps(samples: Sequence[Sample], capacity_cores: float, floor_cores: float) -> tuple[Overlap, ...]:
    """The runs of samples in which limit and the rest's usage together were more than the machine has.

    Not where the limit is at its floor already.
    """
    found: list[Overlap] = []
    start_s: float | None = None
    for before, after in pairwise(samples):
        if after.reaches_into_box(capacity_cores, floor_cores):
            start_s = before.t_s if start_s is None else start_s
        elif start_s is not None:
            found.append(Overlap(start_s, before.t_s))
            start_s = None
    if start_s is not None:
        found.append(Overlap(start_s, samples[-1].t_s))
    return tuple(found)


def in_words(summary: Summary, setting: Setting) -> tuple[str, ...]:
    """The summary, one sentence or two per line."""
    return (
        f"Offline work got {summary.offline_core_s:.1f} core-seconds in {setting.seconds:g} s: "
        f"{summary.idle_share:.0%} of the {summary.idle_core_s:.1f} that all else left idle on "
        f"{setting.capacity_cores:g} cores.",
        f"Online wanted {summary.wanted_core_s:.1f} core-seconds and used {summary.online_core_s:.1f} "
        f"({summary.online_share:.0%}); {_shortfall(summary)}",
        _others(summary, setting),
        _openness(summary.open_ratio),
        _squeezes(summary.squeezes),
        _overlaps(summary.overlaps),
        f"Its limit held the box back (it was throttled) for {summary.throttled_ratio:.0%} of the CPUs' time.",
        f"In short: {summary.utilisation:.0%} of the CPU was used; offline got {summary.idle_share:.0%} of what "
        f"was left, and online lost {max(0.0, 1.0 - summary.online_share):.0%} of what it wanted.",
    )


def _shortfall(summary: Summary) -> str:
    if summary.shortfall_cores < 0.005:
        return "it was never short of anything."
    return (
        f"at worst it was {summary.shortfall_cores:.2f} cores short for a moment, at {clock(summary.shortfall_at_s)}."
    )


def _others(summary: Summary, setting: Setting) -> str:
    used = f"Everything else on this machine used {summary.other_core_s:.1f} core-seconds"
    if summary.other_core_s < _BUSY_RATIO * setting.capacity_cores * setting.seconds:
        return f"{used}."
    return (
        f"{used}, which is a lot: criproxy counts it as online, so the box got that much less, and the online "
        "pod had to share with it."
    )


def _openness(ratio: float) -> str:
    if not ratio:
        return "The box was bounded by what online was predicted to use, all the time."
    return f"For {ratio:.0%} of the time nothing told of harm, and the box could use all that online left."


def _squeezes(found: Sequence[Squeeze]) -> str:
    if not found:
        return "The box was never squeezed."
    deepest = max(found, key=lambda squeeze: squeeze.depth_cores)
    times = "once" if len(found) == 1 else f"{len(found)} times, most"
    return (
        f"The box was squeezed {times} at {clock(deepest.start_s)}: from {deepest.before_cores:.2f} to "
        f"{deepest.after_cores:.2f} cores within {deepest.end_s - deepest.start_s:.1f} s."
    )


def _overlaps(found: Sequence[Overlap]) -> str:
    if not found:
        return "Online never reached into what a limit below the node still gave to the box."
    lengths = [overlap.length_s for overlap in found]
    times = "Once" if len(found) == 1 else f"{len(found)} times"
    worst = f"; {max(lengths):.1f} s at the slowest" if len(found) > 1 else ""
    return (
        f"{times} online rose faster than predicted, into CPU that the limit still gave to the box; the limit was out "
        f"of its way after {mean(lengths):.1f} s{' on average' if len(found) > 1 else ''}{worst} (until then the box's "
        "lower priority alone let online go first)."
    )


def _integral(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return sum(value(after) * (after.t_s - before.t_s) for before, after in pairwise(samples))
