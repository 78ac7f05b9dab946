"""Carry every gRPC call to the runtime and back as the bytes that came, and show some to the interceptor.

Deadline, metadata, cancellation, status and trailers are end to end: nothing here adds a deadline, a limit or a lock.
"""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc._utilities  # gRPC does so with the first call, when an upgrade may have removed the file
from grpc import aio
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.clock import Clock
from criproxy.fronts.cri.methods import is_endless, is_server_streaming, is_unary, label
from criproxy.fronts.engine import FLUSH_S, GONE, AnswerError, CallMetrics, Forward, Interceptor, Verdict
from criproxy.fronts.socket import ListenSocket, SocketError, accepts, grpc_target

_STATUS_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 16 * 1024 * 1024),  # as gRPC-Go, on which kubelet and the runtimes stand (http_util.go)
)

_CHANNEL_OPTIONS: Final = (
    *_OPTIONS,
    ("grpc.default_authority", "localhost"),  # else it is the socket's path, which strict servers (Rust's h2) refuse
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2500),  # gRPC adds up to a fifth at random: 3 s
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to a runtime share their wait after a failed attempt
)

_LONGEST_CALL_S: Final = 3600.0
"""How long a call may still last on a channel that another one has replaced."""


class _CallStatus(Struct):
    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN


class _Failure(Struct, frozen=True):
    """The end of a call that has no answer. It is for `abort`: with a code set, an empty message would be sent too."""

    code: grpc.StatusCode
    details: str
    trailing: tuple[Any, ...] = ()


_ONLY_S: Final = 1.0
"""How long the end of an unknown method's requests is awaited, in s: one that has a single request sends it at once."""


class GrpcServer(Struct, eq=False):
    """The `engine.Engine` of gRPC's own server, and its generic handler for all methods of all services.

    A method that CRI knows as unary, or that is hooked, is one message each way, which costs 40 % less than streams.
    One that CRI knows to answer with a stream, or an unknown one whose client sends one message, is one there and a
    stream back: with two streams, a runtime that answers at once could become INTERNAL (see `_pass_requests`).
    Everything else is two streams, which every arity fits. `runtime` is a socket.

    It cannot ask clients to connect anew without harm: its own stop cancels what comes meanwhile, and a connection that
    it closes of age takes large answers with it (their client's last window update meets a closed socket). So `drain`
    waits for a moment without a call, and `stop` cuts the connections.
    """

    interceptor: Interceptor
    metrics: CallMetrics
    listen: ListenSocket
    runtime: Path
    clock: Clock
    log: FilteringBoundLogger
    _channel: Any = None
    _replaced: set[asyncio.Task[None]] = field(default_factory=set)
    """The ends of the channels that have been replaced."""
    _server: Any = None
    _stopping: bool = False
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    """The calls that never end by themselves are to end now."""
    _calls: int = 0
    _endless: int = 0
    _call_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._channel = self._new_channel()

    async def start(self) -> None:
        self.listen.claim()
        # Not before: a server that is made and never stopped can hold up the interpreter's end.
        self._server = aio.server(handlers=(self,), options=_OPTIONS)
        try:
            with self.listen.private():
                self._server.add_insecure_port(grpc_target(self.listen.own))
        except SocketError:
            await self._server.stop(None)
            raise
        await self._server.start()

    async def drain(self, limit_s: float) -> None:
        await self._quiet(limit_s, but_endless=True)

    async def stop(self, grace_s: float) -> None:
        self.listen.release()
        self._stopping = True
        await self._quiet(grace_s, but_endless=True)
        self._over.set()
        await self._quiet(FLUSH_S, but_endless=False)
        await asyncio.sleep(FLUSH_S)
        # gRPC neither lists its connections nor closes them but by cancelling what comes meanwhile, which clients see
        # as CANCELLED: an end that says nothing of the server. Calls on a broken connection end with UNAVAILABLE.
        for connection in accepted(self.listen.own):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        await self._server.stop(None)
        for task in self._replaced:
            task.cancel()
        await self._channel.close()

    def _new_channel(self) -> Any:
        return aio.insecure_channel(grpc_target(self.runtime), options=_CHANNEL_OPTIONS)

    def _to_runtime(self) -> Any:
        """The channel to the runtime. It has another one in its place once a runtime that was away is back.

        After a failed attempt, gRPC waits up to 3 s for the next one, and meanwhile fails all calls. But kubelet ends
        when its first call fails, and would be well with a new connection to the runtime's own socket: so the first
        call that finds the runtime listening again has a new channel, which connects at once.
        """
        if self._channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE and accepts(self.runtime):
            task = asyncio.create_task(self._channel.close(_LONGEST_CALL_S))
            self._replaced.add(task)
            task.add_done_callback(self._replaced.discard)
            self._channel = self._new_channel()
        return self._channel

    async def _quiet(self, timeout_s: float, *, but_endless: bool) -> None:
        """Wait until no call is under way, or none but the endless ones, or until `timeout_s` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._calls > (self._endless if but_endless else 0):
                    self._call_ended.clear()
                    await self._call_ended.wait()

    def service(self, details: Any) -> Any:
        """The handler of one call. Source: grpc.GenericRpcHandler."""
        method: str = details.method
        if self._stopping:
            return grpc.stream_unary_rpc_method_handler(_refuse)
        hooked = self.interceptor.wants(method)
        if hooked or is_unary(method):
            return grpc.stream_unary_rpc_method_handler(partial(self._unary, method, hooked))
        return grpc.stream_stream_rpc_method_handler(partial(self._stream, method))

    async def _unary(self, method: str, hooked: bool, _requests: object, context: Any) -> bytes:
        # gRPC keeps what `abort` raises, and with it this frame, until the garbage collector comes: the messages, of
        # any size, are in the frames below, which have ended by then.
        with self._counted(method, hooked) as outcome:
            answer = await self._answer(method, hooked, context)
            if isinstance(answer, _Failure):
                outcome.code = answer.code
                await context.abort(answer.code, answer.details, answer.trailing)
                raise AssertionError("abort returned")
            outcome.code = grpc.StatusCode.OK
            return answer

    async def _answer(self, method: str, hooked: bool, context: Any) -> bytes | _Failure:
        """Carry a call of one message each way, but for its end."""
        message = await context.read()
        if message is aio.EOF:
            return _Failure(grpc.StatusCode.INTERNAL, f"{method}: no message in the request")
        learn = None
        if hooked:
            try:
                verdict = self.interceptor.request(method, message)
                if not isinstance(verdict, Verdict):
                    verdict = await verdict
            except Exception:
                self.log.exception("interceptor_failed", method=method)
                verdict = Forward(message)
            if isinstance(verdict, AnswerError):
                return _Failure(_STATUS_CODES[verdict.code], verdict.message)
            message, learn = verdict.message, verdict.learn
        call = self._to_runtime().unary_unary(method)(message, **_ends(context))
        try:
            answer: bytes | None = await call
        except aio.AioRpcError as error:
            await _send_initial_metadata(context, error.initial_metadata())
            return _Failure(error.code(), error.details(), tuple(error.trailing_metadata()))
        if answer is None:
            return _Failure(grpc.StatusCode.INTERNAL, f"{method}: no message in the answer")
        if learn is not None:
            learn(answer)
        await _send_initial_metadata(context, await call.initial_metadata())
        context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        return answer

    async def _stream(self, method: str, _requests: object, context: Any) -> None:
        with self._counted(method, hooked=False) as outcome, contextlib.ExitStack() as ends:
            ahead: list[asyncio.Task[Any]] = []
            while len(ahead) < 2:  # as far as it takes to tell a single message from a stream
                ahead.append(asyncio.create_task(context.read()))
                ends.callback(ahead[-1].cancel)
                await asyncio.wait(ahead[-1:], timeout=None if is_server_streaming(method) else _ONLY_S)
                if not ahead[-1].done() or ahead[-1].result() is aio.EOF:
                    break
            if len(ahead) == 2 and ahead[1].done() and ahead[1].result() is aio.EOF:
                call = self._to_runtime().unary_stream(method)(ahead[0].result(), **_ends(context))
            else:
                call = self._to_runtime().stream_stream(method)(**_ends(context))
                ends.callback(asyncio.create_task(_pass_requests(ahead, context, call)).cancel)
            ends.callback(call.cancel)
            if is_endless(method):
                outcome.code = await self._until_over(call, context)
            else:
                outcome.code = await _pass_answers(call, context)

    async def _until_over(self, call: Any, context: Any) -> grpc.StatusCode:
        passing = asyncio.create_task(_pass_answers(call, context))
        over = asyncio.create_task(self._over.wait())
        self._endless += 1
        self._call_ended.set()
        try:
            await asyncio.wait((passing, over), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                return passing.result()
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details(GONE)
            return grpc.StatusCode.UNAVAILABLE
        finally:
            self._endless -= 1
            self._call_ended.set()
            over.cancel()
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    @contextlib.contextmanager
    def _counted(self, method: str, hooked: bool) -> Iterator[_CallStatus]:
        started = self.clock.monotonic_s()
        self.metrics.on_start()
        self._calls += 1
        outcome = _CallStatus()
        try:
            yield outcome
        except asyncio.CancelledError:
            outcome.code = grpc.StatusCode.CANCELLED
            raise
        finally:
            self._calls -= 1
            self._call_ended.set()
            self.metrics.on_call(label(method), outcome.code.name, self.clock.monotonic_s() - started, hooked)


async def _pass_requests(ahead: Sequence[asyncio.Task[Any]], context: Any, call: Any) -> None:
    # What fails here ends the call, and `_pass_answers` learns how; but grpc.aio reports an error that comes amid a
    # write as INTERNAL. Only a client that streams its requests can meet that, and CRI has none.
    reads = itertools.chain(ahead, iter(context.read, None))
    while (message := await next(reads)) is not aio.EOF:
        await call.write(message)
    await call.done_writing()


async def _pass_answers(call: Any, context: Any) -> grpc.StatusCode:
    initial = await call.initial_metadata()
    if not call.done():
        await context.send_initial_metadata(tuple(initial))
    else:  # an answer without headers of its own (gRPC's "Trailers-Only") stays one
        await _send_initial_metadata(context, initial)
    try:
        while (message := await call.read()) is not aio.EOF:
            try:
                await context.write(message)
            except aio.InternalError:  # the client has gone; a moment later, this would have been cancelled
                return grpc.StatusCode.CANCELLED
    except aio.AioRpcError as error:
        context.set_code(error.code())
        context.set_details(error.details())
        context.set_trailing_metadata(tuple(error.trailing_metadata()))
        code: grpc.StatusCode = error.code()
        return code
    context.set_trailing_metadata(tuple(await call.trailing_metadata()))
    return grpc.StatusCode.OK


def _ends(context: Any) -> dict[str, Any]:
    return {"timeout": context.time_remaining(), "metadata": context.invocation_metadata()}


async def _send_initial_metadata(context: Any, metadata: Any) -> None:
    if metadata:
        await context.send_initial_metadata(tuple(metadata))


async def _refuse(_requests: object, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, GONE)
    raise AssertionError("abort returned")


def accepted(path: Path) -> Iterator[socket.socket]:
    """The open connections that this process has accepted at `path`, each a duplicate that is closed with the next."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed; a listening socket has no peer
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as one:
                if one.family is socket.AF_UNIX and one.getsockname() == str(path):
                    one.getpeername()
                    yield one
