"""The law of one quota: how much of what nodes lend is promised to a queue. Pure.

    low   = the 10th percentile of what was lent in the last 5 minutes
    quota = min(low, what is lent now)      where that is less than the quota: at once
          = the same                        where it is more: each minute, and once 5 minutes were seen

So the quota is never more than what is lent. What is lent for moments is not promised, and a dip that is over costs no
more than a minute of it. A quota that was in force before (another replica led until now) holds until 5 minutes were
seen; without one, the first reading is the first quota.
"""

from collections import deque
from typing import Final

WINDOW_S: Final = 300.0
RISE_S: Final = 60.0
LOW: Final = 0.10


class Law:
    """Of one resource of one flavor, in whole units of it (thousandths of a core, or bytes)."""

    def __init__(self, before: int | None = None) -> None:
        """`before`: the quota that is in force; None: there is none."""
        self._quota = before
        self._seen: deque[tuple[float, int]] = deque()
        self._began_s: float | None = None
        self._rose_s: float | None = None

    def step(self, lent: int, now_s: float) -> int:
        """The quota from now on. `now_s` is of a clock that only grows."""
        seen = self._seen
        seen.append((now_s, lent))
        while seen[0][0] < now_s - WINDOW_S:
            seen.popleft()
        if self._began_s is None:
            self._began_s = now_s
        low = min(sorted(amount for _, amount in seen)[int(LOW * len(seen))], lent)
        if self._quota is None:
            self._quota, self._began_s = low, now_s - WINDOW_S
        elif low < self._quota:
            self._quota = low
        elif low > self._quota and self._may_rise(now_s):
            self._quota, self._rose_s = low, now_s
        return self._quota

    def _may_rise(self, now_s: float) -> bool:
        assert self._began_s is not None
        rested = self._rose_s is None or now_s - self._rose_s >= RISE_S
        return rested and now_s - self._began_s >= WINDOW_S
