"""The port of a clock, for those who do not know `control.clock`, where the one of the daemon is."""

from typing import Protocol


class MonotonicClock(Protocol):
    """In seconds, from any beginning."""

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC: it only grows, and stands still in a suspended machine."""
