"""Which engine serves, by the config's word, and what takes the relay's place: over real sockets and a fake runtime."""

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

from criproxy.fronts.chosen import ChosenEngine, EngineKind
from criproxy.fronts.engine import Forward
from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import PREFACE, frame
from criproxy.fronts.socket import ListenSocket
from tests.fakes.clock import ClockAhead
from tests.fakes.runtime import OPTIONS, FakeRuntime, Seen, receive_all
from tests.fakes.waiting import until
from tests.fronts.relay.talk import SETTINGS
from tests.fronts.rig import FakeInterceptor, FakeMetrics

VERSION = "/runtime.v1.RuntimeService/Version"
RUN = "/runtime.v1.RuntimeService/RunPodSandbox"
PID = 7


BREAK = PREFACE + SETTINGS + frame(frames.DATA, 0, 0, b"x")
"""A connection that begins as HTTP/2 and goes on as none."""

BREAKER = """
import socket, sys
for _ in range(5):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
        one.sendall(bytes.fromhex(sys.argv[2]))
        try:
            while one.recv(65536):
                pass
        except ConnectionError:
            pass
"""


@dataclass
class Stage:
    directory: Path
    runtime: FakeRuntime
    listen: ListenSocket
    engine: ChosenEngine
    metrics: FakeMetrics
    clock: ClockAhead
    interceptor: FakeInterceptor = field(default_factory=FakeInterceptor)

    @property
    def private(self) -> Path:
        """The fallback's socket."""
        return self.directory / f"grpc.{PID}"

    @property
    def fallbacks(self) -> int:
        """Connections that are led to the fallback."""
        return self._connections(is_fallback=True)

    @property
    def relayed(self) -> int:
        return self._connections(is_fallback=False)

    def _connections(self, *, is_fallback: bool) -> int:
        assert self.engine._relay is not None
        return sum((one.fallback is not None) is is_fallback for one in self.engine._relay._connections)

    def client(self) -> Any:
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        return aio.insecure_channel(f"unix:{self.listen.path}", options=options)

    async def break_relay(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self.listen.path))
        writer.write(BREAK)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()

    async def break_relay_of_another(self) -> int:
        """Another process breaks five connections. Returns its pid."""
        arguments = (sys.executable, "-c", BREAKER, str(self.listen.path), BREAK.hex())
        other = await asyncio.create_subprocess_exec(*arguments)
        assert await other.wait() == 0
        return other.pid

    def time_passes(self, seconds: float) -> None:
        self.clock.ahead_s += seconds
        relay = self.engine._relay
        assert relay is not None
        for client in relay._breakers._breakers:
            relay._try_again(client)


@asynccontextmanager
async def stage(directory: Path, kind: EngineKind) -> AsyncIterator[Stage]:
    runtime = FakeRuntime(directory / "runtime.sock")
    await runtime.start()
    listen = ListenSocket(directory / "proxy.sock", PID)
    interceptor, metrics = FakeInterceptor({RUN: lambda message: Forward(message + b"!")}), FakeMetrics()
    clock = ClockAhead()
    engine = ChosenEngine(
        kind,
        runtime.path,
        listen,
        pid=PID,
        interceptor=interceptor,
        metrics=metrics,
        clock=clock,
        log=structlog.get_logger(),
    )
    await engine.start()
    listen.publish()
    try:
        yield Stage(directory, runtime, listen, engine, metrics, clock, interceptor)
    finally:
        await engine.stop(0)
        await runtime.stop()


@pytest.mark.parametrize(
    ("kind", "answer", "calls", "problem"),
    [
        pytest.param("grpc", b"x!", [("RunPodSandbox", "OK", True)], None, id="grpc"),
        pytest.param("relay", b"x!", [("RunPodSandbox", "OK", True)], None, id="relay"),
    ],
)
def test_calls_are_carried_as_the_kind_says(
    tmp_path: Path, kind: EngineKind, answer: bytes, calls: list[tuple[str, str, bool]], problem: str | None
) -> None:
    async def run() -> None:
        async with stage(tmp_path, kind) as on:
            async with on.client() as client:
                assert await client.unary_unary(RUN)(b"x") == answer
            await until(lambda: on.metrics.calls == calls)
            assert on.engine.name == kind
            assert (on.engine.problem is None) if problem is None else (problem in (on.engine.problem or ""))

    asyncio.run(run())


def test_connection_that_breaks_is_counted_and_alone_no_reason_to_give_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on:
            await on.break_relay()
            assert (len(on.metrics.broken), on.engine.name, on.engine.problem) == (1, "relay", None)

    asyncio.run(run())


def test_relay_that_breaks_again_and_again_gives_way_to_the_grpc_engine_and_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on:
            for _ in range(4):
                await on.break_relay()
            async with on.client() as client:
                assert await client.unary_unary(RUN)(b"1") == b"1!"
            assert (on.engine.problem, on.metrics.given_up) == (None, 0)
            assert not on.private.exists()
            await on.break_relay()
            async with on.client() as first, on.client() as second:
                calls = (channel.unary_unary(RUN) for channel in (first, second))
                assert await asyncio.gather(*(call(b"2") for call in calls)) == [b"2!", b"2!"]
            assert on.private.stat().st_mode & 0o777 == 0o600
            assert (on.engine.name, on.metrics.given_up) == ("relay", 1)
            assert f"again and again for process {os.getpid()}, whose" in (on.engine.problem or "")

    asyncio.run(run())
    assert list(tmp_path.glob("grpc*")) == list(tmp_path.glob("proxy*")) == []


def test_client_that_breaks_its_connections_takes_no_other_client_s_relay_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on:
            pid = await on.break_relay_of_another()
            assert (len(on.metrics.broken), on.metrics.given_up) == (5, 1)
            assert f"process {pid}, whose" in (on.engine.problem or "")
            async with on.client() as client:
                assert await client.unary_unary(RUN)(b"1") == b"1!"
            assert not on.private.exists(), "all that is served goes by the relay"

    asyncio.run(run())


async def call_in_the_fallback(on: Stage, client: aio.Channel) -> tuple[Any, asyncio.Event]:
    """A call that is under way there, and what has the runtime finish it."""
    go_on = asyncio.Event()

    async def slow(seen: Seen, context: Any) -> None:
        await receive_all(seen, context)
        await go_on.wait()
        await context.write(b"done")

    on.runtime.script[RUN] = slow
    for _ in range(5):
        await on.break_relay()
    call = client.unary_unary(RUN)(b"")
    await until(lambda: on.runtime.in_flight == 1)
    return call, go_on


def test_relay_is_tried_again_and_its_client_moves_without_a_failed_call(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on, on.client() as client:
            under_way, go_on = await call_in_the_fallback(on, client)
            assert on.fallbacks == 1
            on.time_passes(59)
            assert on.metrics.given_up == 1
            on.time_passes(1)
            assert (on.engine.problem, on.metrics.given_up) == (None, 0)
            for number in range(50):  # the client connects anew by itself, and the call goes on where it is
                assert await client.unary_unary(VERSION)(b"%d" % number) == b"%d" % number
            assert on.relayed == 1
            go_on.set()
            assert await under_way == b"done"
            await on.break_relay()
            assert on.metrics.given_up == 1, "the trial has failed"

    asyncio.run(run())


def test_fallback_that_cannot_be_had_fails_new_connections_and_is_tried_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on:
            in_the_way = tmp_path / "grpc"
            in_the_way.mkdir()
            for _ in range(5):
                await on.break_relay()
            async with on.client() as client:
                with pytest.raises(aio.AioRpcError) as caught:
                    await client.unary_unary(VERSION)(b"1")
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                in_the_way.rmdir()
                assert await client.unary_unary(VERSION)(b"2", wait_for_ready=True, timeout=30) == b"2"

    asyncio.run(run())


def test_calls_in_the_fallback_are_finished_by_a_stop(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on, on.client() as client:
            call, go_on = await call_in_the_fallback(on, client)
            stopping = asyncio.create_task(on.engine.stop(20))
            await asyncio.sleep(0.1)
            go_on.set()
            assert await call == b"done"
            await stopping

    asyncio.run(run())


def test_leftover_of_a_fallback_that_was_killed_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "grpc.5"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    assert left.is_socket()

    async def run() -> None:
        async with stage(tmp_path, "relay"):
            pass

    asyncio.run(run())
    assert not left.exists()


def test_fallback_begins_while_the_one_of_an_old_process_that_drains_serves(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, "relay") as on, on.client() as client:
            call, go_on = await call_in_the_fallback(on, client)
            successor = ChosenEngine(
                "relay",
                on.runtime.path,
                ListenSocket(on.listen.path, PID + 1, succeeds=True),
                pid=PID + 1,
                interceptor=on.interceptor,
                metrics=on.metrics,
                clock=on.clock,
                log=structlog.get_logger(),
            )
            await successor.start()
            draining = asyncio.create_task(on.engine.drain(20))
            try:
                assert await successor._fall_back() == tmp_path / f"grpc.{PID + 1}"
                assert on.private.exists()
                go_on.set()
                assert await call == b"done"
                await draining
            finally:
                await successor.stop(0)

    asyncio.run(run())
