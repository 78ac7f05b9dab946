"""The engine that the config chooses, and what serves in the relay's place when that breaks again and again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import structlog

from criproxy.proxy.engine import Engine, Interceptor
from criproxy.proxy.relay.server import RelayServer
from criproxy.proxy.relay.shell import RelayMetrics
from criproxy.proxy.socket import ListenSocket, SocketError

Kind = Literal["grpc", "relay", "blind"]

_FALLBACK: Final = "grpc"
"""The fallback's socket lies beside the engine's own, under this name: a short one, as the kernel limits paths."""


class Metrics(RelayMetrics, Protocol):
    """Where calls are counted, and that the relay has given way."""

    def on_given_up(self) -> None: ...


class ChosenEngine:
    """The `engine.Engine` of `kind`. The relay's fallback is the gRPC engine, on a socket for our own user alone.

    `runtime` is the runtime's socket, `pid` our own. `clock` counts seconds.
    """

    def __init__(
        self,
        kind: Kind,
        runtime: Path,
        listen: ListenSocket,
        *,
        pid: int,
        interceptor: Interceptor,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._kind = kind
        self._runtime = runtime
        self._interceptor = interceptor
        self._clock = clock
        self._metrics = metrics
        self._log = structlog.get_logger()
        self._private = ListenSocket(listen.path.with_name(_FALLBACK), pid)
        self._making = asyncio.Lock()
        self._spare: Engine | None = None
        self._fallback: Engine | None = None
        self._engine: Engine
        if kind == "grpc":
            self._engine = self._grpc(listen)
        else:
            blind = kind == "blind"
            self._engine = RelayServer(
                interceptor, metrics, listen, runtime, clock, blind=blind, fallback=self._fall_back
            )

    @property
    def name(self) -> Kind:
        """What carries new connections."""
        return "grpc" if self._fallback is not None else self._kind

    @property
    def problem(self) -> str | None:
        """What an operator should know of it; None: nothing."""
        if self._kind == "blind":
            return "proxy.blind is on, so calls pass unseen: offline pods that start are not bounded"
        if self._fallback is not None:
            return (
                "the relay broke again and again, so new connections go to the gRPC engine: report it with the log's "
                'connection_broken, and set proxy.engine = "grpc"'
            )
        return None

    async def start(self) -> None:
        await self._engine.start()
        if self._kind == "blind":
            self._log.error("blind", consequence="calls pass unseen: offline pods that start are not bounded")
        if self._kind == "relay":
            self._private.clear_leftovers()

    async def drain(self, limit_s: float) -> None:
        engines = (self._engine, self._fallback) if self._fallback is not None else (self._engine,)
        await asyncio.gather(*(engine.drain(limit_s) for engine in engines))

    async def stop(self, grace_s: float) -> None:
        if self._fallback is not None:  # first, as the relay cuts its pipes, whatever is under way in them
            await self._fallback.stop(grace_s)
        await self._engine.stop(grace_s)

    async def _fall_back(self) -> Path:
        """The fallback's socket; it is started once. Raises OSError, and is tried again with the next connection."""
        async with self._making:
            if self._fallback is None:
                try:
                    self._spare = self._spare or self._grpc(self._private)
                    await self._spare.start()
                except (SocketError, ImportError) as error:  # an upgrade removes the files that are imported here
                    self._log.error("no_fallback", error=str(error), consequence="new connections fail")
                    raise OSError(str(error)) from error
                self._fallback = self._spare
                self._metrics.on_given_up()
                self._log.error("fallback_serves", engine="grpc", socket=str(self._private.own))
        return self._private.own

    def _grpc(self, listen: ListenSocket) -> Engine:
        from criproxy.proxy.server import Carrier, ProxyServer  # gRPC costs 10 MB and 30 ms: only for whom it serves

        return ProxyServer(Carrier(self._runtime, self._interceptor, self._metrics, self._clock), listen)
