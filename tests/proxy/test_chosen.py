"""Which engine serves, by the config's word, and what takes the relay's place: over real sockets and a fake runtime."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_runtime import OPTIONS, FakeRuntime, Seen, receive_all
from grpc import aio

from criproxy.proxy.chosen import ChosenEngine, Kind
from criproxy.proxy.engine import Forward
from criproxy.proxy.relay import frames
from criproxy.proxy.relay.frames import PREFACE, frame
from criproxy.proxy.socket import ListenSocket
from tests.proxy.conftest import FakeInterceptor, FakeMetrics, eventually
from tests.proxy.relay.talk import SETTINGS

VERSION = "/runtime.v1.RuntimeService/Version"
RUN = "/runtime.v1.RuntimeService/RunPodSandbox"
PID = 7


@dataclass
class Metrics(FakeMetrics):
    given_up: int = 0

    def on_given_up(self) -> None:
        self.given_up += 1


@dataclass
class Stage:
    directory: Path
    runtime: FakeRuntime
    listen: ListenSocket
    engine: ChosenEngine
    metrics: Metrics
    interceptor: FakeInterceptor = field(default_factory=FakeInterceptor)

    @property
    def private(self) -> Path:
        """The fallback's socket."""
        return self.directory / f"grpc.{PID}"

    def client(self) -> Any:
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        return aio.insecure_channel(f"unix:{self.listen.path}", options=options)

    async def break_relay(self) -> None:
        """A connection that begins as HTTP/2 and goes on as none."""
        reader, writer = await asyncio.open_unix_connection(str(self.listen.path))
        writer.write(PREFACE + SETTINGS + frame(frames.DATA, 0, 0, b"x"))
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()


@asynccontextmanager
async def stage(directory: Path, kind: Kind) -> AsyncIterator[Stage]:
    runtime = FakeRuntime(directory / "runtime.sock")
    await runtime.start()
    listen = ListenSocket(directory / "proxy.sock", PID)
    interceptor, metrics = FakeInterceptor({RUN: lambda message: Forward(message + b"!")}), Metrics()
    engine = ChosenEngine(
        kind, runtime.path, listen, pid=PID, interceptor=interceptor, metrics=metrics, clock=time.monotonic
    )
    await engine.start()
    listen.publish()
    try:
        yield Stage(directory, runtime, listen, engine, metrics, interceptor)
    finally:
        await engine.stop(0)
        await runtime.stop()


@pytest.mark.parametrize(
    ("kind", "answer", "calls", "problem"),
    [
        pytest.param("grpc", b"x!", [("RunPodSandbox", "OK", True)], None, id="grpc"),
        pytest.param("relay", b"x!", [("RunPodSandbox", "OK", True)], None, id="relay"),
        pytest.param("blind", b"x", [], "offline pods that start are not bounded", id="blind"),
    ],
)
def test_calls_are_carried_as_the_kind_says(
    tmp_path: Path, kind: Kind, answer: bytes, calls: list[tuple[str, str, bool]], problem: str | None
) -> None:
    async def run() -> None:
        async with stage(tmp_path, kind) as on:
            async with on.client() as client:
                assert await client.unary_unary(RUN)(b"x") == answer
            await eventually(lambda: on.metrics.calls == calls)
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
            assert (on.engine.name, on.engine.problem, on.metrics.given_up) == ("relay", None, 0)
            assert not on.private.exists()
            await on.break_relay()
            async with on.client() as first, on.client() as second:
                calls = (channel.unary_unary(RUN) for channel in (first, second))
                assert await asyncio.gather(*(call(b"2") for call in calls)) == [b"2!", b"2!"]
            assert on.private.stat().st_mode & 0o777 == 0o600
            assert (on.engine.name, on.metrics.given_up) == ("grpc", 1)
            assert "the relay broke again and again" in (on.engine.problem or "")

    asyncio.run(run())
    assert list(tmp_path.glob("grpc*")) == list(tmp_path.glob("proxy*")) == []


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
            go_on = asyncio.Event()

            async def slow(seen: Seen, context: Any) -> None:
                await receive_all(seen, context)
                await go_on.wait()
                await context.write(b"done")

            on.runtime.script[RUN] = slow
            for _ in range(5):
                await on.break_relay()
            call = client.unary_unary(RUN)(b"")
            await eventually(lambda: on.runtime.in_flight == 1)
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
