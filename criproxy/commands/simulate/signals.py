"""The replay of a record of signals of harm through the daemon's own detectors and ladder; pure.

A record can't answer to the box as a node does. What it would have done is either taken from the record alone, where an
experiment convicts only if the signal happened to fall, or supposed: with `guilty`, that resource of the box is the
cause, and each signal that suspects it loses `HELPS` of its excess while the box is at its floor, and in proportion
while it is on its way there. Of stocks, which a squeeze does not bring down, the box has more than its bound then.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.trace import GAP_STEPS, LATEST_S, Findings, Flaw
from criproxy.control.interference.detectors import DETECTORS, LONGEST_GAP_S, by_name
from criproxy.control.interference.ladder import EvictionOrder, LadderSettings, Rung, Transition
from criproxy.control.interference.responder import Responder

DEFAULTS: Final = LadderSettings()

TICK_S: Final = 0.5
"""Lines that are no further apart are of one tick: the signals are read one after the other."""

HELPS: Final = 0.6
"""A little more than the half that convicts."""

PODS: Final = 1
"""There always is a pod that may go; each is of another owner."""


class SignalLine(Struct, frozen=True):
    """A line of a record. `value` None: the signal was not known."""

    t_s: float
    signal: str
    value: float | None = None


class Tick(Struct, frozen=True):
    """What is known at one moment, by signal."""

    t_s: float
    values: Mapping[str, float]


class PodGone(Struct, frozen=True):
    """A pod would have had to go."""

    t_s: float
    order: EvictionOrder


class SignalSummary(Struct, frozen=True):
    """A signal of the record: how many values it has, the greatest, its threshold, and its bar at the end."""

    signal: str
    unit: str
    samples: int
    greatest: float
    threshold: float
    bar: float


class SignalReplay(Struct, frozen=True):
    """What a replay found. `rungs_s`: for how long each resource stood on each rung."""

    span_s: float
    transitions: tuple[Transition, ...]
    gone: tuple[PodGone, ...]
    rungs_s: Mapping[str, Mapping[Rung, float]]
    signals: tuple[SignalSummary, ...]


def read_record(lines: Iterable[str], name: str, findings: Findings) -> list[Tick]:
    """The ticks of a record of JSON lines, in the order of time; what is no line of one is noted and left out.

    Raises SimulateError on a signal that no detector has, and when nothing is left.
    """
    decode, known = msgspec.json.Decoder(SignalLine).decode, by_name(DETECTORS)
    found: list[SignalLine] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decode(text)
        except msgspec.DecodeError:
            line = None
        if line is None or not math.isfinite(line.t_s + (line.value or 0.0)):
            findings.note(Flaw.NOT_A_SIGNAL, f"{name}:{number}")
            continue
        if line.signal not in known:
            listed = ", ".join(known)
            raise SimulateError(f"{name}:{number}: no detector has the signal {line.signal!r}; there are {listed}")
        if line.t_s > LATEST_S:
            raise SimulateError(f"{name}:{number}: t_s is {line.t_s:g}; give seconds, not milliseconds")
        if found and line.t_s < found[-1].t_s:
            findings.note(Flaw.UNSORTED, f"{name}:{number}")
        found.append(line)
    if not found:
        raise SimulateError(
            f'{name}: no usable line; give lines of {{"t_s": 0.0, "signal": "cpu_pressure", "value": 1}}'
        )
    return list(_ticks(sorted(found, key=lambda line: line.t_s)))


def _ticks(lines: Sequence[SignalLine]) -> Iterator[Tick]:
    t_s, values = lines[0].t_s, dict[str, float]()
    for line in lines:
        if line.t_s - t_s > TICK_S:
            yield Tick(t_s, values)
            t_s, values = line.t_s, {}
        if line.value is not None:
            values[line.signal] = line.value
    yield Tick(t_s, values)


def replay_signals(ticks: Sequence[Tick], guilty: str = "", ladder: LadderSettings = DEFAULTS) -> SignalReplay:
    """What would have been done, by the numbers of `ladder`, but for its longest gap, which is the record's.

    `guilty`: the resource that is supposed to be the cause, "": none is.
    """
    steps = [later.t_s - earlier.t_s for earlier, later in pairwise(ticks)]
    longest_gap_s = max(LONGEST_GAP_S, GAP_STEPS * median(steps)) if steps else LONGEST_GAP_S
    settings = replace(ladder, longest_gap_s=longest_gap_s)
    responder, detectors = Responder(settings), by_name(DETECTORS)
    transitions: list[Transition] = []
    gone: list[PodGone] = []
    rungs_s: dict[str, dict[Rung, float]] = {resource.name: {} for resource in settings.resources}
    counts: dict[str, int] = {}
    greatest: dict[str, float] = {}
    share: float | None = None
    for tick, seconds in zip(ticks, [*steps, 0.0], strict=True):
        values = _answering(tick.values, guilty, share)
        for signal, value in tick.values.items():
            counts[signal] = counts.get(signal, 0) + 1
            greatest[signal] = max(greatest.get(signal, value), value)
        decision = responder.tick(tick.t_s, values, PODS, {guilty} if guilty else frozenset())
        share = decision.shares.get(guilty)
        transitions += decision.transitions
        if decision.eviction is not None:
            gone.append(PodGone(tick.t_s, decision.eviction))
            responder.evicted((f"pod {len(gone)}",))  # at once, and no two of one owner
        for name, stood_s in rungs_s.items():
            rung = responder.ladder.of(name).rung
            stood_s[rung] = stood_s.get(rung, 0.0) + min(seconds, longest_gap_s)
    bars = responder.bars()
    summaries = tuple(
        SignalSummary(name, one.unit, counts[name], greatest[name], one.threshold, bars[name])
        for name, one in detectors.items()
        if name in counts
    )
    return SignalReplay(ticks[-1].t_s - ticks[0].t_s, tuple(transitions), tuple(gone), rungs_s, summaries)


def _answering(values: Mapping[str, float], guilty: str, share: float | None) -> Mapping[str, float]:
    """The values as they would be with the box's guilty resource held back to `share`; None: it is not held."""
    if share is None:
        return values
    left, detectors = 1.0 - HELPS * (1.0 - share), by_name(DETECTORS)
    return {
        name: detectors[name].rest + left * (value - detectors[name].rest)
        if guilty in detectors[name].suspects and not detectors[name].stock and value > detectors[name].rest
        else value
        for name, value in values.items()
    }
