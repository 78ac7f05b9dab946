"""A connection's own business, which a client must find as at the runtime itself: by every way there.

Calls, metadata, deadlines, statuses and sizes are in test_server, hooked calls in test_server_hooked, GOAWAY in
test_goaway. Where gRPC's engine, which ends one connection and has another, can't be as the runtime is, the table of
the test says so and why.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import h2.events
import pytest
from grpc import aio

from tests.fakes.runtime import FakeRuntime, Seen, never, receive, receive_all
from tests.fakes.waiting import until
from tests.fronts.handmade import HandmadeRuntime, connect
from tests.fronts.rig import Rig

pytestmark = pytest.mark.slow

VERSION = "/runtime.v1.RuntimeService/Version"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
UPLOAD = "/runtime.v2.FutureService/Upload"
NEVER = "/test.Service/Never"
MIB = 1 << 20
GZIP = 2  # gRPC core, GRPC_COMPRESS_GZIP
ALONE = {"use_local_subchannel_pool": 1}


@asynccontextmanager
async def runtime_process(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A fake runtime that can be stopped and killed, once it listens."""
    code = Path(sys.modules[FakeRuntime.__module__].__file__ or "")
    process = await asyncio.create_subprocess_exec(sys.executable, str(code), str(path))
    try:
        await until(path.exists)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass
class Flood:
    """Sends for as long as somebody takes it."""

    sent: int = 0

    async def __call__(self, seen: Seen, context: Any) -> None:
        with contextlib.suppress(Exception):  # the client goes amid a write
            while True:
                await context.write(b"x" * 50_000)
                self.sent += 50_000


# --- streams ---------------------------------------------------------------------------------------------------------


async def test_events_of_a_while_arrive_each_at_once_and_in_order(rig: Rig) -> None:
    """For minutes, and beside all else: `./bench soak`."""
    arrived = asyncio.Event()

    async def tell(seen: Seen, context: Any) -> None:
        await receive_all(seen, context)
        for number in range(100):
            arrived.clear()
            await context.write(b"%d" % number)
            await asyncio.wait_for(arrived.wait(), 20)
            await asyncio.sleep(0.02)

    rig.runtime.script[EVENTS] = tell
    events = []
    async for event in rig.channel.unary_stream(EVENTS)(b""):
        events.append(int(event))
        arrived.set()
    assert events == list(range(100))


@pytest.mark.parametrize("mib", [4, 16, 64])
async def test_large_messages_of_a_stream_pass_both_ways(rig: Rig, mib: int) -> None:
    call = rig.channel.stream_stream(UPLOAD)(timeout=120)
    for number in range(2):
        message = bytes((number,)) * (mib * MIB)
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_message_of_4_mib_passes_both_ways(rig: Rig) -> None:
    """The most that koordinator's proxy takes."""
    message = os.urandom(4 * MIB)
    assert await rig.unary(VERSION)(message, timeout=60) == message


async def test_stream_that_is_not_read_holds_up_no_call_of_the_same_client(rig: Rig) -> None:
    flood = Flood()
    rig.runtime.script[EVENTS] = flood
    stalled = rig.channel.unary_stream(EVENTS)(b"")
    await until(lambda: flood.sent > 0)
    for number in range(100):
        assert await rig.unary(VERSION)(b"%d" % number * 1000, timeout=60) == b"%d" % number * 1000
    assert flood.sent < 20 * MIB, "nothing holds the runtime back"
    stalled.cancel()
    await until(lambda: rig.runtime.in_flight == 0)


async def test_client_that_does_not_read_holds_up_no_other(rig: Rig) -> None:
    flood = Flood()
    rig.runtime.script[EVENTS] = flood
    stalled = await connect(rig.path)
    stalled.open_windows()
    stalled.hang()
    stalled.call(EVENTS, b"")
    await until(lambda: flood.sent > 0)
    async with rig.client(**ALONE) as busy:
        for number in range(100):
            assert await busy.unary_unary(VERSION)(b"%d" % number, timeout=60) == b"%d" % number
    assert flood.sent < 20 * MIB
    stalled.close()
    await until(lambda: rig.runtime.in_flight == 0)


async def test_runtime_that_does_not_read_an_upload_holds_up_no_other_call(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def reluctant(seen: Seen, context: Any) -> None:
        await receive(seen, context)
        await go_on.wait()
        await receive_all(seen, context)
        await context.write(b"%d" % sum(map(len, seen.messages)))

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 100_000

    rig.runtime.script[UPLOAD] = reluctant
    upload = rig.channel.stream_unary(UPLOAD)(requests(), timeout=120)
    await until(lambda: rig.runtime.in_flight == 1)
    await asyncio.sleep(0.1)
    for number in range(20):
        assert await rig.unary(VERSION)(b"%d" % number, timeout=60) == b"%d" % number
    go_on.set()
    assert await upload == b"6400000"


# --- packing ---------------------------------------------------------------------------------------------------------


async def test_packed_answers_pass(bare: Rig) -> None:
    await bare.runtime.start(default_compression_algorithm=GZIP)
    assert await bare.unary(VERSION)(b"a" * 100_000, timeout=60) == b"a" * 100_000
    call = bare.channel.unary_stream(EVENTS)(b"b" * 100_000, timeout=60)
    assert [message async for message in call] == [b"b" * 100_000]


PACKED = {
    "direct": b"\1",
    "relay": b"\1",
    "grpc": b"\0",  # it has unpacked the message, and has no way to know that it came packed
}


async def test_packed_request_stays_packed(bare: Rig) -> None:
    async with (
        HandmadeRuntime(bare.runtime.path) as runtime,
        aio.insecure_channel(f"unix:{bare.path}", compression=grpc.Compression.Gzip) as client,
    ):
        call = client.unary_unary(VERSION)(b"a" * 10_000, timeout=60)
        peer = await runtime.got(1)
        assert peer.data(peer.asked()[0])[:1] == PACKED[bare.engine]
        peer.answer(peer.asked()[0], b"done")
        assert await call == b"done"


# --- resets ----------------------------------------------------------------------------------------------------------

CODES_OF_RESETS = {
    "internal": (2, grpc.StatusCode.INTERNAL),
    "refused": (7, grpc.StatusCode.UNAVAILABLE),
    "cancel": (8, grpc.StatusCode.CANCELLED),
    "enhance your calm": (11, grpc.StatusCode.RESOURCE_EXHAUSTED),
    "inadequate security": (12, grpc.StatusCode.PERMISSION_DENIED),
}


@pytest.mark.parametrize(("error", "code"), CODES_OF_RESETS.values(), ids=CODES_OF_RESETS)
async def test_reset_by_the_runtime_is_the_client_s_status(bare: Rig, error: int, code: grpc.StatusCode) -> None:
    async with HandmadeRuntime(bare.runtime.path) as runtime, bare.client(enable_retries=0, **ALONE) as client:
        call = asyncio.ensure_future(client.unary_unary(VERSION)(b"", timeout=60))
        peer = await runtime.got(1)
        while peer.asked():  # a refused call is repeated by gRPC's clients, which see the end of it at last
            (stream,) = peer.asked()
            peer.h2.reset_stream(stream, error)
            peer.flush()
            peer.events.clear()
            await asyncio.wait({call}, timeout=0.3)
        with pytest.raises(aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is code


# --- keepalive -------------------------------------------------------------------------------------------------------

KEEPALIVE = {"keepalive_time_ms": 200, "http2.ping_timeout_ms": 2000, "http2.max_pings_without_data": 0}
PATIENT = {**KEEPALIVE, "http2.ping_timeout_ms": 20_000}
"""Where every ping is answered, however busy the machine is."""
HUNG = {
    "direct": "ping timeout",
    "relay": "ping timeout",
    "grpc": "Too many pings",  # it answers them itself, whatever its runtime does, and in the end minds their number
}


async def test_client_s_keepalive_finds_a_runtime_that_hangs(bare: Rig) -> None:
    options = PATIENT if bare.engine == "grpc" else KEEPALIVE
    async with runtime_process(bare.runtime.path) as runtime, bare.client(**options, **ALONE) as client:
        assert await client.unary_unary(VERSION)(b"x", wait_for_ready=True, timeout=60) == b"x"
        runtime.send_signal(signal.SIGSTOP)
        with pytest.raises(aio.AioRpcError) as caught:
            await client.unary_unary(NEVER)(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert HUNG[bare.engine] in str(caught.value.details())


async def test_client_s_keepalive_leaves_a_slow_call_alone(bare: Rig) -> None:
    async with HandmadeRuntime(bare.runtime.path) as runtime, bare.client(**PATIENT, **ALONE) as client:
        call = client.unary_unary(VERSION)(b"", timeout=60)
        peer = await runtime.got(1)
        if bare.engine == "grpc":  # the pings are its own to answer
            await asyncio.sleep(1)
        else:
            await until(lambda: len(peer.all(h2.events.PingReceived)) >= 3)
        peer.answer(peer.asked()[0], b"done")
        assert await call == b"done"


async def test_runtime_s_ping_is_answered(bare: Rig) -> None:
    async with HandmadeRuntime(bare.runtime.path) as runtime, bare.client(**ALONE) as client:
        call = client.unary_unary(VERSION)(b"", timeout=60)
        peer = await runtime.got(1)
        peer.h2.ping(b"runtimes")
        peer.flush()
        await until(lambda: [event.ping_data for event in peer.all(h2.events.PingAckReceived)] == [b"runtimes"])
        peer.answer(peer.asked()[0], b"done")
        assert await call == b"done"


async def test_runtime_s_keepalive_closes_on_a_client_that_hangs(bare: Rig) -> None:
    """But not on gRPC's engine, which is alive; that the client is not is seen when it is cut off, or reads again."""
    timeout_ms = 5000 if bare.engine == "grpc" else 2000
    await bare.runtime.start(**{**KEEPALIVE, "http2.ping_timeout_ms": timeout_ms})
    bare.runtime.script = {NEVER: never, EVENTS: never}
    client = await connect(bare.path)
    client.call(NEVER, b"")
    await until(lambda: bare.runtime.in_flight == 1)
    client.hang()
    client.call(EVENTS, b"")
    await until(lambda: any(seen.method == EVENTS for seen in bare.runtime.calls))
    if bare.engine == "grpc":
        await asyncio.sleep(7)
        assert bare.runtime.in_flight == 2
    else:
        await until(lambda: bare.runtime.in_flight == 0)
    client.close()
    await until(lambda: bare.runtime.in_flight == 0)


# --- the runtime goes ------------------------------------------------------------------------------------------------


async def test_runtime_killed_amid_calls_makes_them_unavailable_and_is_served_again_when_back(bare: Rig) -> None:
    async with bare.client(max_reconnect_backoff_ms=200, **ALONE) as client:
        for _ in range(2):
            async with runtime_process(bare.runtime.path) as runtime:
                while True:  # gRPC's engine says UNAVAILABLE while its back-off lasts, to a client that would wait, too
                    try:
                        assert await client.unary_unary(VERSION)(b"x", wait_for_ready=True, timeout=60) == b"x"
                        break
                    except aio.AioRpcError as error:
                        assert error.code() is grpc.StatusCode.UNAVAILABLE
                        await asyncio.sleep(0.05)
                calls = [client.unary_unary(NEVER)(b"", timeout=60) for _ in range(10)]
                stream = client.unary_stream(NEVER)(b"", timeout=60)
                await asyncio.sleep(0.3)  # most are under way by then; a call that is not ends in the same way
                runtime.kill()
                await runtime.wait()
                for call in calls:
                    with pytest.raises(aio.AioRpcError) as caught:
                        await call
                    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                with pytest.raises(aio.AioRpcError) as caught:
                    await stream.read()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                await until(lambda: bare.metrics.in_flight == 0)
            bare.runtime.path.unlink(missing_ok=True)
