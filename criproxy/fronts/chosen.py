"""The engine that the config chooses, and what serves a client for a while whose relay breaks again and again."""

import asyncio
from pathlib import Path
from typing import Final, Literal

from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.fronts.engine import CallMetrics, Engine, Interceptor
from criproxy.fronts.nri.front import NriFront
from criproxy.fronts.relay.server import RelayServer
from criproxy.fronts.socket import ListenSocket, SocketError

EngineKind = Literal["grpc", "relay"]

_FALLBACK: Final = "grpc"
"""The fallback's socket lies beside the engine's own, under this name: a short one, as the kernel limits paths."""


class ChosenEngine:
    """The `engine.Engine` of `kind`. The relay's fallback is the gRPC engine, on a socket for our own user alone.

    `runtime` is the runtime's socket, `pid` our own. `nri`: the front that begins and ends with it.
    """

    def __init__(
        self,
        kind: EngineKind,
        runtime: Path,
        listen: ListenSocket,
        *,
        pid: int,
        interceptor: Interceptor,
        metrics: CallMetrics,
        clock: Clock,
        log: FilteringBoundLogger,
        nri: NriFront | None = None,
    ) -> None:
        self._nri = nri
        self.name: Final = kind
        """What carries new connections, but for those of clients that `problem` names."""
        self._runtime = runtime
        self._interceptor = interceptor
        self._clock = clock
        self._metrics = metrics
        self._log = log
        # An old process that drains may serve one beside ours: none is published, so they share no path.
        self._private = ListenSocket(listen.path.with_name(_FALLBACK), pid, succeeds=True)
        self._making = asyncio.Lock()
        self._fallback: Engine | None = None
        self._relay: RelayServer | None = None
        if kind == "relay":
            self._relay = RelayServer(
                interceptor, metrics, listen, runtime, clock=clock, log=log, fallback=self._fall_back
            )
        self._engine: Engine = self._relay or self._grpc(listen)

    @property
    def problem(self) -> str | None:
        """What an operator should know of it; None: nothing."""
        if self._relay is not None and (pids := self._relay.given_up):
            shown = ", ".join(map(str, pids[:5])) + (", ..." if len(pids) > 5 else "")
            return (
                f"the relay broke again and again for process{'es' if len(pids) > 1 else ''} {shown}, whose new "
                "connections go to the gRPC engine for now; it is tried again by itself: report it with the log's "
                "connection_broken"
            )
        return None

    async def start(self) -> None:
        await self._engine.start()
        if self.name == "relay":
            self._private.clear_leftovers()
        if self._nri is not None:
            self._nri.start()

    async def drain(self, limit_s: float) -> None:
        await asyncio.gather(*(one.drain(limit_s) for one in (self._engine, self._fallback, self._nri) if one))

    async def stop(self, grace_s: float) -> None:
        if self._nri is not None:
            await self._nri.stop(grace_s)
        if self._fallback is not None:  # first, as the relay cuts its pipes, whatever is under way in them
            await self._fallback.stop(grace_s)
        await self._engine.stop(grace_s)

    async def _fall_back(self) -> Path:
        """The fallback's socket; it is started once. Raises OSError, and is tried again with the next connection."""
        async with self._making:
            if self._fallback is None:
                try:
                    spare = self._grpc(self._private)
                    await spare.start()
                except (SocketError, ImportError) as error:  # an upgrade removes the files that are imported here
                    self._log.error("no_fallback", error=str(error), consequence="new connections fail")
                    raise OSError(str(error)) from error
                self._fallback = spare
                self._log.error("fallback_serves", engine="grpc", socket=str(self._private.own))
        return self._private.own

    def _grpc(self, listen: ListenSocket) -> Engine:
        from criproxy.fronts.grpc.server import GrpcServer  # gRPC costs 10 MB and 30 ms: only for whom it serves

        return GrpcServer(self._interceptor, self._metrics, listen, self._runtime, self._clock, self._log)
