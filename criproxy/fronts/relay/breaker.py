"""Circuit breakers, one per client: when a client's relay connections break again and again, it is served otherwise.

While the breaker is closed, the relay serves. Five breaks within a minute open it for a minute, and then the relay is
tried again. The trial lasts as long as the breaker was open: a break in it opens the breaker for twice as long, up to
an hour.
Pure: times are seconds of any clock that only grows. Source: Nygard, Release It!, "Circuit Breaker".
"""

from collections import deque
from typing import Final

from msgspec import Struct, field

BREAKS: Final = 5
WITHIN_S: Final = 60.0
"""So many connections of one client that break within this time say that the relay, not chance, is wrong with it."""

_OPEN_S: Final = 60.0
_LONGEST_OPEN_S: Final = 3600.0

_CLIENTS: Final = 256
"""So many clients are remembered, those whose connections broke last: whoever makes more has its own forgotten."""


class _Breaker(Struct):
    breaks_s: deque[float] = field(default_factory=lambda: deque(maxlen=BREAKS))
    open_s: float = 0.0
    """For how long it was opened last; 0: it was not, or the relay has been found well since."""
    until_s: float = 0.0


Client = tuple[int, int]
"""A process: its pid and uid, as the kernel tells them of a connection."""


class Breakers:
    """The breakers of all clients."""

    def __init__(self) -> None:
        self._breakers: dict[Client, _Breaker] = {}

    def is_open(self, client: Client, now_s: float) -> bool:
        """Whether a new connection of this client is not the relay's."""
        breaker = self._breakers.get(client)
        return breaker is not None and now_s < breaker.until_s

    def open(self, now_s: float) -> tuple[Client, ...]:
        """The clients whose breakers are open. Safe to ask for from any thread."""
        return tuple(client for client, breaker in tuple(self._breakers.items()) if now_s < breaker.until_s)

    def broke(self, client: Client, now_s: float) -> float | None:
        """A relay connection of this client broke. For how many seconds that opens its breaker; None: it does not."""
        breaker = self._breakers.pop(client, None) or _Breaker()
        self._breakers[client] = breaker
        while len(self._breakers) > _CLIENTS:
            del self._breakers[next(iter(self._breakers))]
        if now_s < breaker.until_s:  # one that was made before
            return None
        if breaker.open_s and now_s < breaker.until_s + breaker.open_s:
            breaker.open_s = min(breaker.open_s * 2, _LONGEST_OPEN_S)
        else:
            if breaker.open_s:
                breaker.open_s = 0.0
                breaker.breaks_s.clear()
            breaker.breaks_s.append(now_s)
            if len(breaker.breaks_s) < BREAKS or now_s - breaker.breaks_s[0] > WITHIN_S:
                return None
            breaker.open_s = _OPEN_S
        breaker.until_s = now_s + breaker.open_s
        return breaker.open_s
