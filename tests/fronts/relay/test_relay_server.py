"""The relay's sockets, between a real gRPC client and a fake runtime that is a real gRPC server."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc import aio

from criproxy.concurrency.clock import Clock
from criproxy.fronts.engine import Forward
from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import PREFACE, frame
from criproxy.fronts.relay.server import RelayServer
from criproxy.fronts.socket import ListenSocket
from tests.fakes.runtime import OPTIONS, FakeRuntime, Seen, never
from tests.fronts.relay.talk import SETTINGS, Talk
from tests.fronts.rig import FakeInterceptor, FakeMetrics, eventually

VERSION = "/runtime.v1.RuntimeService/Version"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
RUN = "/runtime.v1.RuntimeService/RunPodSandbox"


@dataclass
class Stage:
    directory: Path
    runtime: FakeRuntime
    server: RelayServer
    listen: ListenSocket
    interceptor: FakeInterceptor
    metrics: FakeMetrics
    fallbacks: list[Path] = field(default_factory=list)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Any]:
        more = tuple((f"grpc.{key}", value) for key, value in options.items())
        pool = (("grpc.use_local_subchannel_pool", 1),)
        async with aio.insecure_channel(f"unix:{self.listen.path}", options=(*OPTIONS, *pool, *more)) as channel:
            yield channel


@asynccontextmanager
async def stage(directory: Path, *, falls_back: bool = False) -> AsyncIterator[Stage]:
    runtime = FakeRuntime(directory / "runtime.sock")
    await runtime.start()
    interceptor, metrics = FakeInterceptor(), FakeMetrics()
    listen = ListenSocket(directory / "relay.sock", pid=1)
    fallbacks: list[Path] = []

    async def fallback() -> Path:
        fallbacks.append(directory / "fallback.sock")
        return fallbacks[-1]

    server = RelayServer(
        interceptor,
        metrics,
        listen,
        runtime.path,
        clock=Clock(),
        log=structlog.get_logger(),
        fallback=fallback if falls_back else None,
    )
    await server.start()
    listen.publish()
    on = Stage(directory, runtime, server, listen, interceptor, metrics, fallbacks)
    try:
        yield on
    finally:
        await server.stop(0)
        await on.runtime.stop()


def give_up(server: RelayServer) -> None:
    """As if five connections of this process had broken just now."""
    for _ in range(5):
        server._count_broken((os.getpid(), os.getuid()))


async def raw_exchange(path: Path, data: bytes) -> bytes:
    """What comes back until the end."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    got = b""
    with contextlib.suppress(ConnectionError):
        got = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return got


async def test_what_comes_before_the_runtime_s_socket_is_open_waits_also_with_an_asyncio_that_reads_at_once(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CPython 3.11.2's: a transport reads after connection_made, though it was paused there."""

    def add_reader(self: Any, fd: int, callback: Any, *args: Any) -> None:
        if not self._closing:
            self._loop._add_reader(fd, callback, *args)

    monkeypatch.setattr("asyncio.selector_events._SelectorTransport._add_reader", add_reader)
    opened = asyncio.Event()
    async with stage(tmp_path, falls_back=True) as on:

        async def slow() -> Path:
            await opened.wait()
            return on.runtime.path

        on.server._fallback = slow
        give_up(on.server)
        async with on.client() as client:
            call = client.unary_unary(VERSION)(b"")
            await asyncio.sleep(0.1)
            opened.set()
            assert await asyncio.wait_for(call, 10) is not None


async def test_stopped_server_leaves_no_socket_and_no_connection(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        async with on.client() as client:
            on.runtime.script[VERSION] = never
            call = client.unary_unary(VERSION)(b"")
            await eventually(lambda: on.runtime.in_flight == 1)
            await on.server.stop(0)
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not on.listen.own.exists()
        await eventually(lambda: on.runtime.in_flight == 0)
        assert on.metrics.in_flight == 0
        assert on.metrics.calls == [("Version", "UNAVAILABLE", False)]


async def test_stop_waits_for_calls_and_turns_new_ones_away(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.client() as client:
        go_on = asyncio.Event()

        async def slow(seen: Seen, context: Any) -> None:
            await go_on.wait()
            await context.write(b"done")

        on.runtime.script[RUN] = slow
        first = client.unary_unary(RUN)(b"")
        await eventually(lambda: on.runtime.in_flight == 1)
        stopping = asyncio.create_task(on.server.stop(20))
        await asyncio.sleep(0)
        with pytest.raises(aio.AioRpcError) as caught:
            await client.unary_unary(VERSION)(b"")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert [seen.method for seen in on.runtime.calls] == [RUN]
        go_on.set()
        assert await first == b"done"
        await stopping


async def test_drain_loses_no_call_and_ends_when_the_last_has(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.client() as client:
        go_on = asyncio.Event()

        async def slow(seen: Seen, context: Any) -> None:
            await go_on.wait()
            await context.write(b"done")

        on.runtime.script[RUN], on.runtime.script[EVENTS] = slow, never
        events = client.unary_stream(EVENTS)(b"")
        first = client.unary_unary(RUN)(b"")
        await eventually(lambda: on.runtime.in_flight == 2)
        listen = ListenSocket(on.listen.path, pid=2, succeeds=True)
        heir = RelayServer(
            on.interceptor, on.metrics, listen, on.runtime.path, clock=Clock(), log=structlog.get_logger()
        )
        await heir.start()
        listen.publish()
        draining = asyncio.create_task(on.server.drain(30))
        for number in range(50):  # the client connects anew by itself
            assert await client.unary_unary(VERSION)(b"%d" % number) == b"%d" % number
        assert heir._connections
        assert not draining.done()
        go_on.set()
        assert await first == b"done"
        with pytest.raises(aio.AioRpcError) as caught:
            await events.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await draining
        assert not on.server._connections
        assert {code for name, code, _ in on.metrics.calls if name != "GetContainerEvents"} == {"OK"}
        await heir.stop(0)


async def test_drain_gives_up_at_its_limit(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.client() as client:
        on.runtime.script[RUN] = never
        call = client.unary_unary(RUN)(b"")
        await eventually(lambda: on.runtime.in_flight == 1)
        await asyncio.wait_for(on.server.drain(0.1), 20)
        call.cancel()


async def test_runtime_sees_who_the_client_is(runner: asyncio.Runner, tmp_path: Path) -> None:
    """gRPC's own engine names itself."""
    async with stage(tmp_path) as on, on.client(primary_user_agent="kubelet/1.30") as client:
        await client.unary_unary(VERSION)(b"x")
        assert str(dict(on.runtime.calls[-1].metadata)["user-agent"]).startswith("kubelet/1.30 ")


async def test_runtime_away_is_unavailable_and_back_is_served(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.client(max_reconnect_backoff_ms=100) as client:
        assert await client.unary_unary(VERSION)(b"1") == b"1"
        await on.runtime.stop()
        with pytest.raises(aio.AioRpcError) as caught:
            await client.unary_unary(VERSION)(b"2")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        on.runtime = FakeRuntime(on.runtime.path)
        await on.runtime.start()
        assert await client.unary_unary(VERSION)(b"3", wait_for_ready=True, timeout=20) == b"3"


async def test_runtime_killed_amid_calls_ends_them_as_unavailable(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.client() as client:
        await on.runtime.stop()
        runtime = Path(sys.modules[FakeRuntime.__module__].__file__ or "")
        process = await asyncio.create_subprocess_exec(sys.executable, str(runtime), str(on.runtime.path))
        call = client.unary_unary("/test.Service/Never")(b"", wait_for_ready=True, timeout=60)
        await eventually(lambda: on.metrics.in_flight == 1)
        process.kill()
        await process.wait()
        with pytest.raises(aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: on.metrics.in_flight == 0)


async def test_keepalive_pings_are_answered_by_the_runtime(runner: asyncio.Runner, tmp_path: Path) -> None:
    options = {"keepalive_time_ms": 100, "keepalive_timeout_ms": 5000, "http2.max_pings_without_data": 0}
    async with stage(tmp_path) as on, on.client(**options) as client:
        go_on = asyncio.Event()

        async def slow(seen: Seen, context: Any) -> None:
            await go_on.wait()
            await context.write(b"done")

        on.runtime.script[RUN] = slow
        call = client.unary_unary(RUN)(b"")
        await asyncio.sleep(0.5)
        go_on.set()
        assert await call == b"done"


async def test_stalled_reader_holds_up_no_other_client_and_no_memory(runner: asyncio.Runner, tmp_path: Path) -> None:
    """A client that never reads has its answers wait at the runtime, not here."""
    async with stage(tmp_path) as on:
        sent = 0

        async def flood(seen: Seen, context: Any) -> None:
            nonlocal sent
            while True:
                await context.write(b"x" * 50_000)
                sent += 50_000

        on.runtime.script[EVENTS] = flood
        with socket.socket(socket.AF_UNIX) as stalled:
            stalled.connect(str(on.listen.own))
            wide = (frames.INITIAL_WINDOW_SIZE).to_bytes(2) + (0x7FFFFFFF).to_bytes(4)
            block = b"\x83\x86\x44" + bytes((len(EVENTS),)) + EVENTS.encode() + b"\x41\x09localhost"
            block += b"\x40\x0ccontent-type\x10application/grpc\x40\x02te\x08trailers"
            stalled.sendall(
                PREFACE
                + frame(frames.SETTINGS, 0, 0, wide)
                + frames.window_update(0, 0x7FFF0000)
                + frame(frames.HEADERS, frames.END_HEADERS, 1, block)
                + frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
            )
            await eventually(lambda: sent > 0)
            async with on.client() as client:
                for number in range(50):
                    assert await client.unary_unary(VERSION)(b"%d" % number) == b"%d" % number
            assert sent < 20_000_000
        await eventually(lambda: on.runtime.in_flight == 0)


async def test_client_that_sends_and_never_reads_is_closed(runner: asyncio.Runner, tmp_path: Path) -> None:
    """Each byte of a call that is opened here is paid back in two frames."""
    piece = frame(frames.DATA, 0, 1, b"x") * 20_000
    async with stage(tmp_path) as on:
        on.interceptor.verdicts[RUN] = Forward
        reader, writer = await asyncio.open_unix_connection(str(on.listen.path))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(
            PREFACE + SETTINGS + Talk().request_headers(1, RUN) + frame(frames.DATA, 0, 1, b"\0\x07\xff\xff\xff")
        )
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), 20)
        assert on.metrics.broken == ["the client takes nothing of what it is sent"]
        assert not on.server.given_up
        async with on.client() as client:
            assert await client.unary_unary(VERSION)(b"") is not None
        del reader
        writer.close()


async def test_way_that_fails_in_whatever_way_closes_the_client(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path, falls_back=True) as on:

        async def fails() -> Path:
            raise RuntimeError("it could not start")

        on.server._fallback = fails
        give_up(on.server)
        assert await raw_exchange(on.listen.path, PREFACE) == b""
        await eventually(lambda: not on.server._connections)


async def test_call_that_is_given_up_with_its_request_is_not_judged(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.interceptor.verdicts[RUN] = Forward
        talk = Talk()
        _, writer = await asyncio.open_unix_connection(str(on.listen.path))
        writer.write(PREFACE + SETTINGS + talk.request(1, RUN) + frames.rst_stream(1, frames.CANCEL))
        await eventually(lambda: on.metrics.calls == [("RunPodSandbox", "CANCELLED", True)])
        await asyncio.sleep(0.05)
        assert not on.interceptor.asked.is_set()
        writer.close()


async def test_nonsense_is_counted_and_harms_no_other(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.client() as client:
        assert await client.unary_unary(VERSION)(b"1") == b"1"
        await raw_exchange(on.listen.own, b"GET / HTTP/1.1\r\n\r\n")
        await raw_exchange(on.listen.own, PREFACE + frame(frames.DATA, 0, 0, b"x"))
        assert on.metrics.broken == [
            "the client sent no HTTP/2 preface",
            "the client sent DATA on the connection, or before SETTINGS",
        ]
        assert await client.unary_unary(VERSION)(b"2") == b"2"


async def test_relay_that_breaks_again_and_again_gives_way(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path, falls_back=True) as on:
        other = FakeRuntime(on.directory / "fallback.sock")
        await other.start()
        for _ in range(10):
            await raw_exchange(on.listen.own, b"GET / HTTP/1.1\r\n\r\n")  # whoever asks for a page says nothing of us
        assert not on.server.given_up
        for _ in range(5):
            await raw_exchange(on.listen.own, PREFACE + SETTINGS + frame(frames.DATA, 0, 0, b"x"))
        assert on.server.given_up == (os.getpid(),)
        on.interceptor.verdicts[RUN] = lambda message: Forward(message + b"!")
        async with on.client() as client:
            assert await client.unary_unary(RUN)(b"1") == b"1"
        assert [seen.method for seen in other.calls] == [RUN]
        assert on.runtime.calls == []
        await other.stop()


async def test_error_of_the_relays_own_ends_its_connection_alone(
    runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as on, on.client() as client:

        def wants(_: str) -> bool:
            raise RuntimeError("a bug")

        assert await client.unary_unary(VERSION)(b"1") == b"1"
        async with on.client() as second:
            await second.unary_unary(VERSION)(b"1")
            with monkeypatch.context() as patch:
                for connection in on.server._connections:
                    patch.setattr(connection.core._client_to_runtime, "_wants", wants)
                with pytest.raises(aio.AioRpcError) as caught:
                    await second.unary_unary(VERSION)(b"1")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert on.metrics.broken[0] == "the relay failed"
        await eventually(lambda: on.metrics.in_flight == 0)


async def test_client_that_connects_and_goes_leaves_nothing(runner: asyncio.Runner, tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(on.listen.own))
        await eventually(lambda: not on.server._connections)
