"""A relay's two sockets: what comes goes into the core, and what the core says is done.

No side is read while the other is behind with taking what was read.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.fronts.cri.methods import is_endless, label
from criproxy.fronts.engine import AnswerError, CallMetrics, Forward, Interceptor, Verdict
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.side import PeerIds, ReadBuffer, Side
from criproxy.fronts.relay.actions import Action, Ask, Close, Ended, Forget, Learn, Started, ToClient, ToRuntime
from criproxy.fronts.relay.core import Relay
from criproxy.fronts.relay.fallback_pipe import FallbackPipe

_MOST_WAITING: Final = 16 * 1024 * 1024
"""Bytes for a client that takes nothing: not the runtime's answers, which are read no further then, but the relay's own
to what the client goes on to send."""


class RelayShared(Struct, frozen=True):
    """What all connections of a server have in common.

    `on_made`: a client is connected, and nothing has come of it yet. `on_change`: a call has ended. `on_closed`: the
    connection has closed; it may come more than once.
    """

    interceptor: Interceptor
    metrics: CallMetrics
    clock: Clock
    log: FilteringBoundLogger
    buffer: ReadBuffer
    runtime: Path
    on_made: Callable[["RelayConnection"], None]
    on_change: Callable[[], None]
    on_closed: Callable[["RelayConnection"], None]


class RelayConnection:
    """One client, one connection to the runtime of its own, and the `core` between them.

    `peer` is the client, once it is connected. `broken`: it was closed as what a peer sent could not be followed,
    though it began as HTTP/2. `fallback` finds the socket that stands in the runtime's place; None: none does.
    """

    def __init__(self, shared: RelayShared) -> None:
        self.core: Relay | FallbackPipe = Relay(shared.interceptor.wants)
        self.fallback: Callable[[], Awaitable[Path]] | None = None
        self._shared = shared
        self.broken = False
        self.peer: PeerIds = (0, 0)
        self._calls: dict[int, tuple[float, str]] = {}
        self._asking: dict[int, asyncio.Task[None] | None] = {}
        """The calls that wait for a verdict; None: the interceptor has had no call yet."""
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self.client = Side(
            shared.buffer,
            on_made=self._accepted,
            on_bytes=self._from_client,
            on_lost=self._client_lost,
            on_behind=lambda behind: self._runtime.block("behind", behind),
            most_waiting=_MOST_WAITING,
        )
        self._runtime = Side(
            shared.buffer,
            on_made=lambda: self.client.block("connecting", False),
            on_bytes=self._from_runtime,
            on_lost=lambda: self._run(self.core.runtime_closed),
            on_behind=lambda behind: self.client.block("behind", behind),
        )
        self.client.block("connecting", True)

    @property
    def busy(self) -> bool:
        """Whether a call is under way that will end by itself."""
        return any(not is_endless(method) for _, method in self._calls.values())

    def fall_back(self, fallback: Callable[[], Awaitable[Path]]) -> None:
        """Put a pipe in the relay's place, and `fallback` in the runtime's. `on_made` may, nobody later."""
        self.core, self.fallback = FallbackPipe(), fallback

    def drain(self) -> None:
        """Ask the client to go; the connection closes with its last call."""
        self._run(self.core.drain)

    def end_endless(self, message: str) -> None:
        """End the calls that never end by themselves."""
        for stream, (_, method) in list(self._calls.items()):
            if is_endless(method):
                self._run(self.core.end, stream, message)

    def turn_away(self, message: str) -> None:
        """Answer all further calls with UNAVAILABLE."""
        self.core.turn_away(message)

    def cut(self) -> None:
        """Close both sides; the client's calls end with UNAVAILABLE."""
        self._run(self.core.runtime_closed)
        self._close()

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _accepted(self) -> None:
        self.peer = self.client.peer
        self._shared.on_made(self)
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            path = self._shared.runtime if self.fallback is None else await self.fallback()
            await loop.create_unix_connection(lambda: self._runtime, str(path))
        except Exception as error:
            if not isinstance(error, OSError):  # a runtime that is away
                self._shared.log.exception("relay_failed")
            self._close()  # as the runtime's own socket would
        else:
            if self._closed:
                self._runtime.close()

    def _from_client(self, view: memoryview) -> None:
        """As `_run` does it, but without a call more: this is what each frame costs."""
        try:
            actions = self.core.client_bytes(view)
        except Exception:
            self._failed()
        else:
            self._do(actions)

    def _from_runtime(self, view: memoryview) -> None:
        try:
            actions = self.core.runtime_bytes(view)
        except Exception:
            self._failed()
        else:
            self._do(actions)

    def _run(self, step: Callable[..., list[Action]], *arguments: Any) -> None:
        """Have the core take a step, and do what it says."""
        try:
            actions = step(*arguments)
        except Exception:
            self._failed()
        else:
            self._do(actions)

    def _failed(self) -> None:
        """An error of the core's own is the end of this connection alone."""
        self._shared.log.exception("relay_failed")
        self._break("the relay failed")
        self._close()

    def _break(self, reason: str) -> None:
        self.broken = self.core.greeted
        self._complain(reason)

    def _complain(self, reason: str) -> None:
        self._shared.metrics.on_broken(reason)
        self._shared.log.warning("connection_broken", reason=reason)

    # --- actions -----------------------------------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        shared, asks = self._shared, []
        for action in actions:
            if type(action) is ToRuntime:
                self._runtime.write(action.data, wait=type(actions[-1]) is Ask)
            elif type(action) is ToClient:
                self.client.write(action.data)
            elif type(action) is Started:
                self._calls[action.stream] = (shared.clock.monotonic_s(), action.method)
                shared.metrics.on_start()
            elif type(action) is Ended:
                self._ended(action)
            elif type(action) is Ask:
                self._asking[action.stream] = None
                asks.append(action)
            else:
                self._rarely(action)
        if asks:
            for ask in asks:
                if ask.stream in self._asking:
                    self._ask(ask)
            self._runtime.flush()

    def _rarely(self, action: Action) -> None:
        match action:
            case Learn():
                self._learn(action)
            case Forget(stream):
                if (task := self._asking.pop(stream, None)) is not None:
                    task.cancel()
            case Close(reason, broken):
                if broken:
                    self._break(reason)
                    self._close()
                else:
                    self._finish()

    def _ended(self, call: Ended) -> None:
        if (begun := self._calls.pop(call.stream, None)) is None:
            return
        self._shared.metrics.on_call(
            label(call.method), Code.name_of(call.code), self._shared.clock.monotonic_s() - begun[0], call.hooked
        )
        self._shared.on_change()

    def _ask(self, ask: Ask) -> None:
        try:
            verdict = self._shared.interceptor.request(ask.method, ask.message)
        except Exception:
            verdict = self._unjudged(ask)
        if isinstance(verdict, Verdict):
            self._decided(ask, verdict)
        else:
            self._asking[ask.stream] = asyncio.create_task(self._wait_for(ask, verdict))

    async def _wait_for(self, ask: Ask, verdict: Awaitable[Verdict]) -> None:
        try:
            decided = await verdict
        except Exception:
            decided = self._unjudged(ask)
        self._decided(ask, decided)

    def _unjudged(self, ask: Ask) -> Forward:
        self._shared.log.exception("interceptor_failed", method=ask.method)
        return Forward(ask.message)

    def _decided(self, ask: Ask, verdict: Verdict) -> None:
        self._asking.pop(ask.stream, None)
        if isinstance(verdict, AnswerError):
            self._run(self.core.refuse, ask.stream, verdict.code, verdict.message)
        else:
            self._run(self.core.forward, ask.stream, verdict.message, verdict.learn)

    def _learn(self, learn: Learn) -> None:
        try:
            learn.learn(learn.message)
        except Exception:
            self._shared.log.exception("interceptor_failed")

    def _client_lost(self) -> None:
        if self.client.overrun:
            self._complain("the client takes nothing of what it is sent")
        self._run(self.core.client_closed)
        if self._closed:
            self._shared.on_closed(self)

    def _finish(self) -> None:
        """Done with both; the client may take what it was sent, and closes first."""
        self._end()
        if self.client.transport is None:
            self._shared.on_closed(self)
        else:
            self.client.finish()

    def _close(self) -> None:
        """Close both at once, also a client that was to close first."""
        self._end()
        self.client.close()
        self._shared.on_closed(self)

    def _end(self) -> None:
        self._closed = True
        for stream in list(self._calls):  # the core has not ended them when it failed, or is cut while it learns
            self._ended(Ended(stream, self._calls[stream][1], Code.UNAVAILABLE, hooked=False))
        self._runtime.close()
