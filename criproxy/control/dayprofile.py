"""The highest usage that each half hour of the day has seen, averaged over days with a preference for recent ones."""

from array import array
from typing import Final

from msgspec import Struct

SLOT_S: Final = 1800.0
SLOTS: Final = 48
DAY_HALF_LIFE: Final = 2.0
_NEW_DAY: Final = 1.0 - 2.0 ** (-1.0 / DAY_HALF_LIFE)


class DayProfileState(Struct, frozen=True):
    """A `DayProfile` for a checkpoint: the slot under way, and per slot the weighted sum of maxima and its weight."""

    slot: int | None
    slot_max: float
    sums: list[float]
    weights: list[float]


class DayProfile:
    """Slots are cut by wall time in UTC. A slot counts once it has ended."""

    __slots__ = ("_slot", "_slot_max", "_sums", "_weights")

    def __init__(self) -> None:
        self._slot: int | None = None
        self._slot_max = 0.0
        self._sums = array("d", bytes(8 * SLOTS))
        self._weights = array("d", bytes(8 * SLOTS))

    def add(self, wall_s: float, usage: float) -> None:
        slot = int(wall_s % 86400.0 // SLOT_S)
        if slot == self._slot:
            self._slot_max = max(self._slot_max, usage)
            return
        if self._slot is not None:
            self._fold(self._slot)
        self._slot, self._slot_max = slot, usage

    def _fold(self, slot: int) -> None:
        self._sums[slot] += _NEW_DAY * (self._slot_max - self._sums[slot])
        self._weights[slot] += _NEW_DAY * (1.0 - self._weights[slot])

    def peak(self, wall_s: float, horizon_s: float) -> float:
        """The highest slot that (wall_s, wall_s + horizon_s] touches; 0 where no such slot has been seen."""
        first = int(wall_s // SLOT_S)
        last = min(int((wall_s + horizon_s) // SLOT_S), first + SLOTS - 1)
        peak = 0.0
        for slot in range(first, last + 1):
            weight = self._weights[slot % SLOTS]
            if weight > 0.0:
                peak = max(peak, self._sums[slot % SLOTS] / weight)
        return peak

    def state(self) -> DayProfileState:
        return DayProfileState(self._slot, self._slot_max, list(self._sums), list(self._weights))

    def load(self, state: DayProfileState) -> None:
        """Raises ValueError, changing nothing, when the state is none of this profile's."""
        values = [state.slot_max, *state.sums, *state.weights]
        right_size = len(state.sums) == len(state.weights) == SLOTS and (state.slot is None or 0 <= state.slot < SLOTS)
        if not right_size or not all(0.0 <= value < float("inf") for value in values):
            raise ValueError("the day profile's slots are out of bounds")
        self._slot, self._slot_max = state.slot, state.slot_max
        self._sums, self._weights = array("d", state.sums), array("d", state.weights)
