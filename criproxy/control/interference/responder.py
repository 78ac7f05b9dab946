"""Detectors and ladder put together: a tick's signals in, what holds from now on out. Pure: the caller acts."""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct

from criproxy.control.interference.detectors import (
    DETECTORS,
    Detector,
    Monitor,
    MonitorState,
    OnlineUse,
    by_name,
)
from criproxy.control.interference.ladder import (
    LOOK_S,
    HoldMode,
    LadderDecision,
    LadderResource,
    LadderSettings,
    LadderState,
    Rung,
    Signals,
    Transition,
    evicted,
    in_force,
    not_evicted,
    phases,
    shifted,
    step,
)

_ALL: Final = by_name(DETECTORS)


class ResponderState(Struct, frozen=True):
    """A `Responder` for a checkpoint, ready for JSON."""

    monitors: dict[str, MonitorState]
    ladder: LadderState


class Move(Struct, frozen=True):
    """A transition, and when it was (UTC)."""

    wall_s: float
    transition: Transition


class SignalStatus(Struct, frozen=True):
    """A signal for people, in its `unit`. `bar`: it is harm above this. `here`: this node has it.

    `why`: why it is not here, or has no value now; "": it has one. `note`: what a person should know of the value.
    """

    name: str
    unit: str
    value: float | None
    bar: float
    here: bool
    why: str = ""
    note: str = ""


class RungStatus(Struct, frozen=True):
    """Where a resource stands, since when (UTC, None: not known), and why ("": nothing has happened yet).

    `share`: how far from its floor (0) to its prediction (1) the box may go; None: it is not held. `untried`: why no
    experiment is made of it; "": one is. `probe_in_s`: after so much more calm, all of it or more is given back to see
    whether online is harmed; None: no such probe is to come.
    """

    resource: str
    rung: str
    since_s: float | None
    reason: str
    share: float | None
    untried: str = ""
    probe_in_s: float | None = None


class DiskBound(Struct, frozen=True):
    """A disk that the box uses, by its name in /dev: what it may read, and write, in a second; None: all it can.

    `calm_bytes_per_s`, `calm_operations_per_s`: what the disk was seen to do while online was calm.
    """

    name: str
    bytes_per_s: float | None
    operations_per_s: float | None
    calm_bytes_per_s: float
    calm_operations_per_s: float


class InterferenceStatus(Struct, frozen=True):
    """`resting`: why no signal is looked at now; "": they are. `closed`: why no new offline pod is let in; "": it is.

    `evictions`: how many pods went within the budget's window, of `most`, of which `kept` go in an emergency only.
    `moves`: the latest, the last one first.
    """

    resting: str
    signals: tuple[SignalStatus, ...]
    rungs: tuple[RungStatus, ...]
    closed: str
    evictions: int
    most: int
    moves: tuple[Move, ...] = ()
    disks: tuple[DiskBound, ...] = ()
    kept: int = 0


class Responder:
    """Judges signals and climbs the ladder; nothing of it acts. What is random comes of `seed`, once for all."""

    def __init__(self, settings: LadderSettings, detectors: Sequence[Detector] = DETECTORS, *, seed: int = 0) -> None:
        self._settings = settings
        self._detectors = by_name(tuple(detectors))
        self._monitors = {name: Monitor(one, settings.longest_gap_s) for name, one in self._detectors.items()}
        self._ladder = LadderState(random_state=seed % 2**64)
        self._unused: Mapping[str, MonitorState] = {}
        """Of detectors that are not at work now, what they had learned."""
        self._high = False
        self._bars: Mapping[str, float] | None = None
        """Since the last tick; None: they are to be worked out."""

    @property
    def detectors(self) -> Mapping[str, Detector]:
        return self._detectors

    @property
    def at_rest(self) -> bool:
        """Nothing is restricted, and no experiment runs."""
        return all(self._ladder.of(one.name).rung is Rung.OPEN for one in self._settings.resources)

    @property
    def remembers(self) -> bool:
        """Whether there is anything of past harm that is forgotten with the ticks."""
        past = self._ladder
        return bool(
            past.resources or past.case or past.pauses or past.spent_s or past.emergency_s or past.irreducible_s
        )

    @property
    def look_s(self) -> float:
        """When the next tick should be, in s from the last: sooner while a signal is high, or something is tried."""
        modes = (state.held.mode for state in self._ladder.resources.values() if state.held is not None)
        goes_on = self._high or self._ladder.case is not None or any(mode is not HoldMode.REST for mode in modes)
        return LOOK_S if goes_on else 2.0 * LOOK_S

    @property
    def is_calm(self) -> bool:
        """No signal was high at the last tick, and nothing is tried or held."""
        return not self._high and self.at_rest

    def is_harmed_by(self, resource: str) -> bool:
        """Whether the resource is being tried, or the harm that it was convicted of goes on."""
        state = self._ladder.of(resource)
        return state.rung is Rung.TRIED or state.harm_s > 0.0 or (state.held is not None and state.held.harm_s > 0.0)

    def answers(self, detector: str) -> bool:
        """Whether a resource is tried or convicted by this signal, so that the signal must go on being judged."""
        case = self._ladder.case
        states = self._ladder.resources.values()
        convicted = any(detector in (one.signal, one.held.by if one.held else "") for one in states)
        return (case is not None and case.detector == detector) or convicted

    def has_acquitted(self, detector: str) -> bool:
        """Whether the box was found not to be the cause of the signal, which has been harm since."""
        return detector in self._monitors and self._monitors[detector].acquitted

    def trial_counts_from_s(self, detector: str) -> float | None:
        """From when on (the clock of the ticks) its signal counts in what goes on: a phase of an experiment for it, a
        probe or a test; None: there is none.
        """
        ladder, case = self._ladder, self._ladder.case
        if ladder.t_s is None:
            return None
        if case is not None and case.detector == detector and case.on:
            return ladder.t_s - case.age_s + self._settle_s(case.on, detector)
        for name, state in ladder.resources.items():
            if state.held is None or state.held.mode is HoldMode.REST:
                continue
            if (state.held.by or state.signal) == detector:
                return ladder.t_s - state.held.age_s + self._settle_s(name, detector)
        return None

    def _settle_s(self, resource: str, detector: str) -> float:
        row = next((one for one in self._settings.resources if one.name == resource), LadderResource(resource, ""))
        return phases(row, self._detectors.get(detector), self._settings).settle_s

    def probe_in_s(self, resource: str) -> float | None:
        """After so many more seconds of calm, more of it is given back; None: no probe is to come."""
        state, settings = self._ladder.of(resource), self._settings
        if state.held is None or state.held.mode is not HoldMode.REST or state.rung is Rung.EVICTING:
            return None
        return max(0.0, state.held.wait_of_probe_s(settings) - state.held.calm_s)

    def in_force(self) -> LadderDecision:
        """What holds before the next tick."""
        return in_force(self._ladder, self._settings)

    @property
    def ladder(self) -> LadderState:
        return self._ladder

    def bars(self) -> Mapping[str, float]:
        """The value above which each signal is high, in its unit."""
        if self._bars is None:
            self._bars = {name: monitor.bar() for name, monitor in self._monitors.items()}
        return self._bars

    def tick(
        self,
        t_s: float,
        values: Mapping[str, float],
        pods: int,
        over: AbstractSet[str] = frozenset(),
        unused: AbstractSet[str] = frozenset(),
        *,
        irreducible: Mapping[str, str] | None = None,
        others: AbstractSet[str] = frozenset(),
        use: OnlineUse | None = None,
        leaving: frozenset[str] = frozenset(),
    ) -> LadderDecision:
        """`values`: the signals that are known now, by detector, in its unit; `pods`: how many the box has; `over`,
        `unused`, `others`, `irreducible` and `leaving`: see `Signals`. `use`: what online uses of the node's CPUs.

        A value that is not finite, or of no detector, is not known.
        """
        readings = {
            name: monitor.observe(t_s, values[name], use, explained=unused >= set(monitor.detector.suspects))
            for name, monitor in self._monitors.items()
            if name in values and math.isfinite(values[name])
        }
        decision, self._ladder = step(
            Signals(
                t_s, readings, pods, frozenset(over), frozenset(unused), frozenset(others), irreducible or {}, leaving
            ),
            self._ladder,
            self._detectors,
            self._settings,
        )
        for one in decision.transitions:
            if one.before is Rung.TRIED and one.after is Rung.SQUEEZED:
                self._monitors[one.signal].forget_acquittal()
            if one.after is Rung.OPEN and one.signal in self._monitors and self._ladder.of(one.resource).guilty:
                self._monitors[one.signal].convict(t_s)
        for name in decision.exonerated:
            self._monitors[name].acquit(t_s, lately_guilty=self._was_guilty(name))
        for name, excess in decision.explained.items():
            self._monitors[name].explain(t_s, excess)
        self._high = any(one.value > one.bar for one in readings.values())
        self._bars = None
        return decision

    def _was_guilty(self, detector: str) -> bool:
        """Whether one of its suspects was the cause for sure, and that is not forgotten yet."""
        return any(self._ladder.of(name).guilty for name in self._detectors[detector].suspects)

    def evicted(self, owners: tuple[str, ...]) -> None:
        """The pod that the last order asked for is going."""
        self._ladder = evicted(self._ladder, owners)

    def not_evicted(self) -> None:
        """Nobody went for the last order."""
        self._ladder = not_evicted(self._ladder)

    def state(self) -> ResponderState:
        at_work = {name: monitor.state() for name, monitor in self._monitors.items()}
        return ResponderState({**self._unused, **at_work}, self._ladder)

    def load(self, state: ResponderState, shift_s: float = 0.0) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours; a detector that it does not know starts anew.

        Raises ValueError when what a detector had learned does not fit; the ladder is on its rung all the same.
        """
        self._ladder, self._bars = shifted(state.ladder, shift_s), None
        others = _ALL.keys() - self._monitors.keys() if shift_s == 0.0 else frozenset[str]()
        self._unused = {name: one for name, one in state.monitors.items() if name in others}
        for name, monitor in self._monitors.items():
            if name in state.monitors:
                monitor.load(state.monitors[name], shift_s)
