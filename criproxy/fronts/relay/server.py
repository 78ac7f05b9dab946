"""Accept clients, and relay each to a connection of its own to the runtime."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.fronts.engine import FLUSH_S, GONE, CallMetrics, Interceptor
from criproxy.fronts.http2.side import PeerIds, ReadBuffer
from criproxy.fronts.relay.connection import RelayConnection, RelayShared
from criproxy.fronts.socket import ListenSocket

_BACKLOG: Final = 128

_AWAY_S: Final = 20.0
"""How long a client without calls may take to answer a GOAWAY, as with gRPC's own servers."""

_AFTER_S: Final = 1.0
"""How long after a breaker has closed its client gets a GOAWAY, so that it connects anew."""


BREAKS: Final = 5
WITHIN_S: Final = 60.0
"""When this many connections of one client break within this time, it is the relay's fault, and no chance."""

_OPEN_S: Final = 60.0
_LONGEST_OPEN_S: Final = 3600.0

_CLIENTS: Final = 256
"""How many clients are remembered: those whose connections broke last."""


class _Breaker(Struct):
    breaks_s: deque[float] = field(default_factory=lambda: deque(maxlen=BREAKS))
    open_s: float = 0.0
    """For how long it was opened last; 0: it was not, or the relay has been found well since."""
    until_s: float = 0.0


class Breakers:
    """Circuit breakers, one per client whose relay connections break.

    While the breaker is closed, the relay serves. Five breaks within a minute open it for a minute, and then the relay
    is tried again. The trial lasts as long as the breaker was open: a break in it opens the breaker for twice as long,
    up to an hour. Pure: times are seconds of any clock that only grows. Source: Nygard, Release It!, "Circuit Breaker".
    """

    def __init__(self) -> None:
        self._breakers: dict[PeerIds, _Breaker] = {}

    def is_open(self, client: PeerIds, now_s: float) -> bool:
        """Whether a new connection of this client is not the relay's."""
        breaker = self._breakers.get(client)
        return breaker is not None and now_s < breaker.until_s

    def open(self, now_s: float) -> tuple[PeerIds, ...]:
        """The clients whose breakers are open. Safe to ask for from any thread."""
        return tuple(client for client, breaker in tuple(self._breakers.items()) if now_s < breaker.until_s)

    def broke(self, client: PeerIds, now_s: float) -> float | None:
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


class RelayServer:
    """The `engine.Engine` that forwards HTTP/2 frames.

    A client, which is a process, whose connections break again and again has its new ones piped to the socket that
    `fallback` returns (or raises OSError), until its breaker closes: then the client gets a GOAWAY, and connects anew.
    Without a `fallback`, it goes on as before.
    """

    def __init__(
        self,
        interceptor: Interceptor,
        metrics: CallMetrics,
        listen: ListenSocket,
        runtime: Path,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        fallback: Callable[[], Awaitable[Path]] | None = None,
    ) -> None:
        self._listen = listen
        self._changed = asyncio.Event()
        self._fallback = fallback
        self._clock = clock
        self._log = log
        self._shared = RelayShared(
            interceptor, metrics, clock, log, ReadBuffer(), runtime, self._made, self._changed.set, self._gone
        )
        self._breakers = Breakers()
        self._connections: set[RelayConnection] = set()
        self._draining = self._stopping = False
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._listen.claim()
        loop, own = asyncio.get_running_loop(), str(self._listen.own)
        with self._listen.private():  # nothing else runs within it, as nobody is served yet
            self._server = await loop.create_unix_server(self._accept, own, backlog=_BACKLOG, start_serving=False)
        await self._server.start_serving()

    async def drain(self, limit_s: float) -> None:
        self._draining = True
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._until(lambda: not self._busy)
                self._end_endless()
                async with asyncio.timeout(_AWAY_S):
                    await self._until(lambda: not self._connections)
        self._end_endless()

    async def stop(self, grace_s: float) -> None:
        self._listen.release()
        if self._server is not None:
            self._server.close()
        self._stopping = True
        for connection in self._connections:
            connection.turn_away(GONE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._until(lambda: not self._busy)
        self._end_endless()
        for connection in list(self._connections):
            connection.cut()
        await asyncio.sleep(FLUSH_S)

    @property
    def _busy(self) -> bool:
        return any(connection.busy for connection in self._connections)

    @property
    def given_up(self) -> tuple[int, ...]:
        """The pids of the clients whose new connections go to the fallback."""
        return tuple(pid for pid, _ in self._breakers.open(self._clock.monotonic_s()))

    def _accept(self) -> asyncio.BaseProtocol:
        connection = RelayConnection(self._shared)
        self._connections.add(connection)
        return connection.client

    def _made(self, connection: RelayConnection) -> None:
        if self._fallback is not None and self._breakers.is_open(connection.peer, self._clock.monotonic_s()):
            connection.fall_back(self._fallback)
        if self._draining:
            connection.drain()
        if self._stopping:
            connection.turn_away(GONE)

    def _gone(self, connection: RelayConnection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._changed.set()
        if connection.broken and self._fallback is not None:
            self._count_broken(connection.peer)

    def _count_broken(self, peer: PeerIds) -> None:
        open_s = self._breakers.broke(peer, self._clock.monotonic_s())
        if open_s is None:
            return
        self._shared.metrics.on_given_up(len(self.given_up))
        self._log.error("relay_given_up", pid=peer[0], for_s=open_s, consequence="the fallback serves this client")
        asyncio.get_running_loop().call_later(open_s + _AFTER_S, self._try_again, peer)

    def _try_again(self, peer: PeerIds) -> None:
        """The breaker has closed, if it was not opened anew meanwhile."""
        if self._breakers.is_open(peer, self._clock.monotonic_s()):
            return
        self._shared.metrics.on_given_up(len(self.given_up))
        self._log.info("relay_tried_again", pid=peer[0])
        for connection in list(self._connections):
            if connection.peer == peer and connection.fallback:
                connection.drain()

    def _end_endless(self) -> None:
        for connection in list(self._connections):
            connection.end_endless(GONE)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
