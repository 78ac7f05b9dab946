"""The rig of the engines' tests: client, engine and fake runtime, all on one event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from grpc import aio

from criproxy.clients.link import RuntimeInfo
from criproxy.concurrency.clock import Clock
from criproxy.fronts.engine import AnswerError, Engine, Forward, Verdict
from criproxy.fronts.grpc.server import GrpcServer
from criproxy.fronts.relay.server import RelayServer
from criproxy.fronts.socket import ListenSocket, grpc_target
from tests.fakes.runtime import OPTIONS, FakeRuntime

WAYS = ("direct", "grpc", "relay")


@dataclass
class FakeInterceptor:
    """Wants the methods of `verdicts`, and does with their messages what is written there."""

    verdicts: dict[str, Callable[[bytes], Forward | AnswerError]] = field(default_factory=dict)
    learned: list[bytes] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_decide: asyncio.Event = field(default_factory=asyncio.Event)
    on_learn: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.may_decide.set()

    def wants(self, method: str) -> bool:
        return method in self.verdicts

    def request(self, method: str, message: bytes) -> Verdict | Awaitable[Verdict]:
        self.asked.set()
        return self.verdicts[method](message) if self.may_decide.is_set() else self._later(method, message)

    async def _later(self, method: str, message: bytes) -> Verdict:
        await self.may_decide.wait()
        return self.verdicts[method](message)

    def learn(self, message: bytes) -> None:
        self.on_learn()
        self.learned.append(message)


@dataclass
class FakeMetrics:
    in_flight: int = 0
    calls: list[tuple[str, str, bool]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    given_up: int = 0

    def on_start(self) -> None:
        self.in_flight += 1

    def on_call(self, method: str, code: str, seconds: float, hooked: bool) -> None:
        assert seconds >= 0
        self.in_flight -= 1
        self.calls.append((method, code, hooked))

    def on_broken(self, reason: str) -> None:
        self.broken.append(reason)

    def on_given_up(self, clients: int) -> None:
        self.given_up = clients


@dataclass
class Rig:
    """A client's `channel` to the fake `runtime`, through the engine or directly."""

    engine: str
    runtime: FakeRuntime
    channel: Any
    path: Path
    interceptor: FakeInterceptor
    metrics: FakeMetrics

    def unary(self, method: str) -> Any:
        return self.channel.unary_unary(method)

    def client(self, **options: Any) -> Any:
        return aio.insecure_channel(
            f"unix:{self.path}", options=(*OPTIONS, *((f"grpc.{key}", value) for key, value in options.items()))
        )


async def outcome(call: Any) -> aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


async def ignore(_info: RuntimeInfo) -> None:
    pass


@asynccontextmanager
async def build_rig(engine: str, directory: Path, runtime_runs: bool = True) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        runtime = FakeRuntime(directory / "runtime.sock")
        stack.push_async_callback(runtime.stop)
        if runtime_runs:
            await runtime.start()
        interceptor, metrics = FakeInterceptor(), FakeMetrics()
        listen = ListenSocket(directory / "proxy.sock", pid=1)
        server: Engine
        if engine == "relay":
            server = RelayServer(interceptor, metrics, listen, runtime.path, clock=Clock(), log=structlog.get_logger())
        else:
            server = GrpcServer(interceptor, metrics, listen, runtime.path, Clock(), structlog.get_logger())
        await server.start()
        stack.push_async_callback(server.stop, 0)
        listen.publish()
        path = runtime.path if engine == "direct" else listen.path
        channel = await stack.enter_async_context(aio.insecure_channel(grpc_target(path), options=OPTIONS))
        yield Rig(engine, runtime, channel, path, interceptor, metrics)
