"""How an engine ends: the relay's drain loses no call, a stop none but with UNAVAILABLE, endless streams go last."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc import aio

from criproxy.concurrency.clock import Clock
from criproxy.fronts.engine import Engine
from criproxy.fronts.grpc.server import GrpcServer, accepted
from criproxy.fronts.relay.server import RelayServer
from criproxy.fronts.socket import ListenSocket, grpc_target
from tests.fakes.runtime import FakeRuntime, Seen, receive_all
from tests.fakes.waiting import until
from tests.fronts.rig import FakeInterceptor, FakeMetrics

VERSION = "/runtime.v1.RuntimeService/Version"
EXEC = "/runtime.v1.RuntimeService/ExecSync"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


def count(path: Path) -> int:
    """How many connections to `path` are open."""
    return sum(1 for _ in accepted(path))


def taking(seconds: float) -> Callable[[Seen, Any], Awaitable[None]]:
    async def behave(seen: Seen, context: Any) -> None:
        await receive_all(seen, context)
        await asyncio.sleep(seconds)
        await context.write(b"done")

    return behave


async def events(seen: Seen, context: Any) -> None:
    await receive_all(seen, context)
    while True:
        await context.write(b"event")
        await asyncio.sleep(0.01)


@dataclass
class Node:
    """A runtime, and the engines before it in the order of their start, all of which are stopped at the end."""

    directory: Path
    runtime: Path
    relay: bool
    engines: list[Engine] = field(default_factory=list)

    async def serve(self) -> tuple[Engine, ListenSocket]:
        """A further engine takes the public name."""
        listen = ListenSocket(self.directory / "proxy.sock", 1 + len(self.engines), succeeds=True)
        engine: Engine
        parts = FakeInterceptor(), FakeMetrics(), listen, self.runtime
        if self.relay:
            engine = RelayServer(*parts, clock=Clock(), log=structlog.get_logger())
        else:
            engine = GrpcServer(*parts, Clock(), structlog.get_logger())
        await engine.start()
        listen.publish()
        self.engines.append(engine)
        return engine, listen


@asynccontextmanager
async def runtime(directory: Path, *, relay: bool = False) -> AsyncIterator[Node]:
    fake = FakeRuntime(directory / "runtime.sock")
    fake.script = {EXEC: taking(1.0), EVENTS: events}
    await fake.start()
    node = Node(directory, fake.path, relay)
    yield node
    for engine in node.engines:
        await engine.stop(1)
    await fake.stop()


def client(directory: Path) -> Any:
    return aio.insecure_channel(grpc_target(directory / "proxy.sock"), options=OPTIONS)


async def call_on(channel: Any, ended: asyncio.Event, codes: Counter[str]) -> None:
    call = channel.unary_unary(VERSION)
    while not ended.is_set():
        try:
            await call(b"x")
        except aio.AioRpcError as error:
            codes[error.code().name] += 1
            await asyncio.sleep(0.005)
        else:
            codes["OK"] += 1


async def end_of(stream: Any) -> grpc.StatusCode:
    try:
        while await stream.read() is not aio.EOF:
            pass
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(("relay", "failures"), [(True, set()), (False, {"UNAVAILABLE"})], ids=["relay", "grpc"])
async def test_engines_that_take_turns_under_load_fail_no_call_over_the_relay(
    runner: object, tmp_path: Path, relay: bool, failures: set[str]
) -> None:
    codes: Counter[str] = Counter()
    ended = asyncio.Event()
    async with runtime(tmp_path, relay=relay) as node:
        old, _ = await node.serve()
        channels = [client(tmp_path) for _ in range(3)]
        calling = [asyncio.create_task(call_on(channel, ended, codes)) for channel in channels]
        for _ in range(6):
            enough = codes["OK"] + 20
            await asyncio.sleep(0.1)
            await until(lambda: codes["OK"] > enough)  # noqa: B023 - it is awaited here
            new, _ = await node.serve()
            await old.drain(10 if relay else 0.1)
            await old.stop(1)
            old = new
        ended.set()
        await asyncio.gather(*calling)
        for channel in channels:
            await channel.close()
    assert set(codes) - failures == {"OK"}
    assert codes["OK"] > 100
    assert [name for name in os.listdir(tmp_path) if name.startswith("proxy")] == []


async def test_drain_waits_for_calls_and_ends_event_streams_last(runner: object, tmp_path: Path) -> None:
    async with runtime(tmp_path) as node, client(tmp_path) as one, client(tmp_path) as other:
        engine, listen = await node.serve()
        stream = one.unary_stream(EVENTS)(b"")
        await stream.read()
        slow = asyncio.ensure_future(other.unary_unary(EXEC)(b"x"))
        await until(lambda: count(listen.own) == 2)
        await node.serve()
        draining = asyncio.create_task(engine.drain(10))
        assert await slow == b"done"
        ended = asyncio.create_task(end_of(stream))
        await draining
        assert not ended.done()
        await engine.stop(1)
        assert await ended is grpc.StatusCode.UNAVAILABLE
        await until(lambda: count(listen.own) == 0)  # gRPC's own thread closes them


async def test_drain_past_its_limit_gives_up(runner: object, tmp_path: Path) -> None:
    async with runtime(tmp_path) as node, client(tmp_path) as channel:
        engine, _ = await node.serve()
        slow = asyncio.ensure_future(channel.unary_unary(EXEC)(b"x"))
        await asyncio.sleep(0.1)
        await node.serve()
        began_s = time.monotonic()
        await engine.drain(0.1)
        assert time.monotonic() - began_s < 10
        assert await slow == b"done"


@pytest.mark.parametrize("grace_s", [0.0, 3.0])
async def test_stop_finishes_calls_within_the_grace_and_fails_the_rest_with_unavailable(
    runner: object, tmp_path: Path, grace_s: float
) -> None:
    codes: Counter[str] = Counter()
    ended = asyncio.Event()
    async with runtime(tmp_path) as node, client(tmp_path) as one, client(tmp_path) as other:
        engine, listen = await node.serve()
        stream = one.unary_stream(EVENTS)(b"")
        await stream.read()
        slow = asyncio.ensure_future(one.unary_unary(EXEC)(b"x"))
        calling = asyncio.create_task(call_on(other, ended, codes))
        await asyncio.sleep(0.3)
        streaming = asyncio.create_task(end_of(stream))
        await engine.stop(grace_s)
        await until(lambda: count(listen.own) == 0)
        if grace_s:
            assert await slow == b"done"
        else:
            with pytest.raises(aio.AioRpcError) as cut:
                await slow
            assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await streaming is grpc.StatusCode.UNAVAILABLE
        ended.set()
        await calling
    assert set(codes) == {"OK", "UNAVAILABLE"}
