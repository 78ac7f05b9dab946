"""Detectors and ladder put together: a tick's signals in, what holds from now on out. Pure: the caller acts."""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from criproxy.control.interference.detectors import DETECTORS, Detector, Monitor, MonitorState, by_name
from criproxy.control.interference.ladder import (
    LadderDecision,
    LadderSettings,
    LadderState,
    Signals,
    evicted,
    not_evicted,
    shifted,
    step,
)


class ResponderState(Struct, frozen=True):
    """A `Responder` for a checkpoint, ready for JSON."""

    monitors: dict[str, MonitorState]
    ladder: LadderState


class Responder:
    """Judges signals and climbs the ladder; nothing of it acts."""

    def __init__(self, settings: LadderSettings, detectors: Sequence[Detector] = DETECTORS) -> None:
        self._settings = settings
        self._detectors = by_name(tuple(detectors))
        self._monitors = {name: Monitor(one, settings.longest_gap_s) for name, one in self._detectors.items()}
        self._ladder = LadderState()

    @property
    def ladder(self) -> LadderState:
        return self._ladder

    def bars(self, t_s: float) -> Mapping[str, float]:
        """The value above which each signal is high, in its unit."""
        return {name: monitor.bar(t_s) for name, monitor in self._monitors.items()}

    def tick(
        self, t_s: float, values: Mapping[str, float], pods: int, over: AbstractSet[str] = frozenset()
    ) -> LadderDecision:
        """`values`: the signals that are known now, by detector, in its unit; `pods`: how many the box has; `over`:
        the resources of which it holds more than its bound.

        A value that is not finite, or of no detector, is not known.
        """
        readings = {
            name: monitor.observe(t_s, values[name])
            for name, monitor in self._monitors.items()
            if name in values and math.isfinite(values[name])
        }
        decision, self._ladder = step(
            Signals(t_s, readings, pods, frozenset(over)), self._ladder, self._detectors, self._settings
        )
        for name in decision.exonerated:
            self._monitors[name].exonerate(t_s)
        return decision

    def evicted(self, owner: str) -> None:
        """The pod that the last order asked for is going."""
        self._ladder = evicted(self._ladder, owner)

    def not_evicted(self) -> None:
        """Nobody went for the last order."""
        self._ladder = not_evicted(self._ladder)

    def state(self) -> ResponderState:
        return ResponderState({name: monitor.state() for name, monitor in self._monitors.items()}, self._ladder)

    def load(self, state: ResponderState, shift_s: float = 0.0) -> None:
        """Go on where a state ends whose clock was `shift_s` behind ours; a detector that it does not know starts anew.

        Raises ValueError when what a detector had learned does not fit; the ladder is on its rung all the same.
        """
        self._ladder = shifted(state.ladder, shift_s)
        for name, monitor in self._monitors.items():
            if name in state.monitors:
                monitor.load(state.monitors[name], shift_s)
