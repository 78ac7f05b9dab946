"""The highest usage that each half hour of the day has seen, averaged over days with a preference for recent ones."""

from typing import Final

from msgspec import Struct, field

SLOT_S: Final = 1800.0
SLOTS: Final = 48
DAY_HALF_LIFE: Final = 2.0
_NEW_DAY: Final = 1.0 - 2.0 ** (-1.0 / DAY_HALF_LIFE)


class DayProfile(Struct):
    """Slots are cut by wall time in UTC. A slot counts once it has ended.

    The `slot` under way and its highest usage; and per slot the weighted sum of maxima, and its weight.
    """

    slot: int | None = None
    slot_max: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    weights: list[float] = field(default_factory=lambda: [0.0] * SLOTS)

    def add(self, wall_s: float, usage: float) -> None:
        slot = int(wall_s % 86400.0 // SLOT_S)
        if slot == self.slot:
            self.slot_max = max(self.slot_max, usage)
            return
        if self.slot is not None:
            self._fold(self.slot)
        self.slot, self.slot_max = slot, usage

    def _fold(self, slot: int) -> None:
        self.sums[slot] += _NEW_DAY * (self.slot_max - self.sums[slot])
        self.weights[slot] += _NEW_DAY * (1.0 - self.weights[slot])

    def peak(self, wall_s: float, horizon_s: float) -> float:
        """The highest slot that (wall_s, wall_s + horizon_s] touches; 0 where no such slot has been seen."""
        first = int(wall_s // SLOT_S)
        last = min(int((wall_s + horizon_s) // SLOT_S), first + SLOTS - 1)
        peak = 0.0
        for slot in range(first, last + 1):
            weight = self.weights[slot % SLOTS]
            if weight > 0.0:
                peak = max(peak, self.sums[slot % SLOTS] / weight)
        return peak

    def copy(self) -> "DayProfile":
        """Raises ValueError when the numbers, which may be of a checkpoint, are none of a day's."""
        values = [self.slot_max, *self.sums, *self.weights]
        right_size = len(self.sums) == len(self.weights) == SLOTS and (self.slot is None or 0 <= self.slot < SLOTS)
        if not right_size or not all(0.0 <= value < float("inf") for value in values):
            raise ValueError("the day profile's slots are out of bounds")
        return DayProfile(self.slot, self.slot_max, [*self.sums], [*self.weights])
