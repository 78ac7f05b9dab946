"""How often something may be done in an hour, whichever replica leads. Pure.

A leader counts by a clock that only grows. For the next one it keeps the times of day, which that one reads when its
term begins. Others may write where these are kept, and clocks differ: so what is read may use up the budget, but for no
longer than an hour.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Final

HOUR_S: Final = 3600.0
SKEW_S: Final = 60.0
"""By so much the clocks of two replicas may differ."""


class Budget:
    """At most `per_hour`. `now_s` is of a clock that only grows, `wall_s` the time of day, in seconds since 1970."""

    def __init__(self, per_hour: int) -> None:
        self._per_hour = per_hour
        self._spent: deque[tuple[float, int]] = deque()

    def left(self, now_s: float) -> int:
        self._forget(now_s)
        return self._per_hour - len(self._spent)

    def spend(self, now_s: float, wall_s: float) -> None:
        self._spent.append((now_s, int(wall_s)))

    def times(self, now_s: float) -> list[int]:
        """The times of day of what was done within the hour, for the next leader."""
        self._forget(now_s)
        return [wall_s for _, wall_s in self._spent]

    def restore(self, times: Iterable[float], now_s: float, wall_s: float) -> None:
        """Goes on by the `times` of the leader before. What is of the future counts for nothing."""
        lately = [at_s for at_s in times if wall_s - HOUR_S < at_s <= wall_s + SKEW_S]
        for at_s in sorted(heapq.nlargest(self._per_hour, lately)):
            self.spend(now_s - max(wall_s - at_s, 0.0), at_s)

    def _forget(self, now_s: float) -> None:
        while self._spent and self._spent[0][0] <= now_s - HOUR_S:
            self._spent.popleft()
