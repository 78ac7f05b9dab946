"""GOAWAY amid calls, from the runtime and from the client: no call that may end well ends otherwise."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from criproxy.fronts.engine import Forward
from criproxy.fronts.grpc.server import accepted
from criproxy.fronts.http2 import frames
from tests.fakes.runtime import Seen, receive_all
from tests.fakes.waiting import until
from tests.fronts.handmade import HandmadeRuntime, connect
from tests.fronts.rig import Rig

VERSION = "/runtime.v1.RuntimeService/Version"
RUN = "/runtime.v1.RuntimeService/RunPodSandbox"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
MIB = 1 << 20
ALONE = {"use_local_subchannel_pool": 1}
METHODS = pytest.mark.parametrize("method", [VERSION, RUN], ids=["passing", "hooked"])


def waiting(go_on: asyncio.Event, message: bytes = b"done") -> Callable[[Seen, Any], Any]:
    async def behave(seen: Seen, context: Any) -> None:
        await receive_all(seen, context)
        await go_on.wait()
        await context.write(message)

    return behave


async def answered(client: Any) -> Any:
    """Called until it is: gRPC's engine says UNAVAILABLE for as long as the runtime is away, whoever waits."""
    while True:
        try:
            return await client.unary_unary(VERSION)(b"back", wait_for_ready=True, timeout=60)
        except aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0.05)


# --- the runtime's, by hand ------------------------------------------------------------------------------------------


@METHODS
async def test_call_that_the_runtime_s_goaway_leaves_open_ends_well_and_the_next_goes_elsewhere(
    bare: Rig, method: str
) -> None:
    bare.interceptor.verdicts[RUN] = Forward
    async with HandmadeRuntime(bare.runtime.path) as runtime, bare.client(**ALONE) as client:
        first = client.unary_unary(method)(b"1", timeout=60)
        peer = await runtime.got(1)
        (stream,) = peer.asked()
        peer.goaway(stream)
        second = client.unary_unary(method)(b"2", wait_for_ready=True, timeout=60)
        new = await runtime.got(1, on=1)
        new.answer(new.asked()[0], b"two")
        assert await second == b"two"
        peer.answer(stream, b"one")
        assert await first == b"one"
        assert (peer.wrong, new.wrong) == ([], [])


async def test_call_that_the_runtime_s_goaway_does_not_count_is_made_again(bare: Rig) -> None:
    """gRPC's clients repeat by themselves what the runtime says it has not touched."""
    async with HandmadeRuntime(bare.runtime.path) as runtime, bare.client(**ALONE) as client:
        calls = [client.unary_unary(VERSION)(b"%d" % number, timeout=60) for number in range(2)]
        peer = await runtime.got(2)
        first, _ = sorted(peer.asked())
        peer.goaway(first)
        again = await runtime.got(1, on=1)
        again.answer(again.asked()[0], b"again")
        peer.answer(first, b"first")
        assert sorted(await asyncio.gather(*calls)) == [b"again", b"first"]


async def test_goaway_in_two_steps_as_grpc_servers_send_it_loses_no_call(bare: Rig) -> None:
    """A first one that counts all, a PING, and the last word once its answer is there: the calls between count."""
    async with HandmadeRuntime(bare.runtime.path) as runtime, bare.client(**ALONE) as client:
        calls = [client.unary_unary(VERSION)(b"1", timeout=60)]
        peer = await runtime.got(1)
        peer.say(frames.goaway(frames.MAX_STREAM) + frames.frame(frames.PING, 0, 0, b"shutdown"))
        await until(lambda: any(type(event).__name__ == "PingAckReceived" for event in peer.events) or bool(peer.wrong))
        peer.goaway(max(peer.asked()))
        calls.append(client.unary_unary(VERSION)(b"2", wait_for_ready=True, timeout=60))
        new = await runtime.got(1, on=1)
        new.answer(new.asked()[0], b"two")
        peer.answer(peer.asked()[0], b"one")
        assert await asyncio.gather(*calls) == [b"one", b"two"]


async def test_goaway_for_an_error_reaches_the_client_with_its_words(bare: Rig) -> None:
    """gRPC's engine is the runtime's client itself: it is the one who is told off."""
    async with HandmadeRuntime(bare.runtime.path) as runtime:
        client = await connect(bare.path)
        stream = client.call(VERSION, b"1")
        peer = await runtime.got(1)
        peer.goaway(0 if bare.engine == "grpc" else stream, 11, b"too_many_pings")
        if bare.engine == "grpc":
            again = await runtime.got(1, on=1)  # by that engine's own client, which repeats what was not counted
            again.answer(again.asked()[0], b"one")
        else:
            await until(lambda: client.tap.last_streams == [stream])
            peer.answer(peer.asked()[0], b"one")
        await until(lambda: client.ended(stream))
        assert (client.status(stream), client.data(stream)[5:]) == (0, b"one")
        client.close()


@pytest.mark.parametrize("proxied", ["relay"], indirect=True)  # gRPC's engine sends no headers before the verdict
async def test_goaway_while_a_call_is_held_leaves_it_to_be_repeated_by_the_client(proxied: Rig) -> None:
    """What the runtime does not count it ignores, and does not get once the client has left; the client calls anew."""
    proxied.interceptor.verdicts[RUN] = Forward
    proxied.interceptor.may_decide.clear()
    await proxied.runtime.stop()
    async with HandmadeRuntime(proxied.runtime.path) as runtime, proxied.client(**ALONE) as client:
        call = client.unary_unary(RUN)(b"x", timeout=60)
        await asyncio.wait_for(proxied.interceptor.asked.wait(), 20)
        old = runtime.connections[0]
        old.goaway(0)
        await until(lambda: len(runtime.connections) == 2 and old.lost)  # until the client has left it, too
        proxied.interceptor.may_decide.set()
        new = await runtime.got(1, on=1)
        new.answer(new.asked()[0], b"x")
        assert await call == b"x"
        assert old.asked() == []


# --- the runtime's, by a real server ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_runtime_that_closes_its_connections_of_age_fails_no_call(bare: Rig) -> None:
    """The age is long beside a call: a client repeats a call that a GOAWAY has overtaken once, not for ever."""
    await bare.runtime.start(max_connection_age_ms=1000, max_connection_age_grace_ms=60_000)
    go_on = asyncio.Event()
    bare.runtime.script[RUN] = waiting(go_on)
    bare.interceptor.verdicts[RUN] = Forward
    peers: set[int] = set()
    async with bare.client(**ALONE) as client:
        long = client.unary_unary(RUN)(b"", timeout=60)
        for number in range(2000):
            assert await client.unary_unary(VERSION)(b"%d" % number, timeout=60) == b"%d" % number
            peers |= {os.fstat(one.fileno()).st_ino for one in accepted(bare.runtime.path)}
            if len(peers) > 2:
                break
            await asyncio.sleep(0.025)
        go_on.set()
        assert await long == b"done"
    assert len(peers) > 2, "the connections did not age"


async def test_runtime_that_stops_gracefully_finishes_its_calls_and_takes_no_more(bare: Rig) -> None:
    await bare.runtime.start()
    go_on = asyncio.Event()
    bare.runtime.script[RUN] = waiting(go_on, b"x" * MIB)
    bare.interceptor.verdicts[RUN] = Forward
    async with bare.client(**ALONE) as client:
        call = client.unary_unary(RUN)(b"", timeout=60)
        await until(lambda: bare.runtime.in_flight == 1)
        stopping = asyncio.create_task(bare.runtime.stop(60))
        await asyncio.sleep(0.1)
        with pytest.raises(aio.AioRpcError) as caught:
            await client.unary_unary(VERSION)(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        go_on.set()
        assert await call == b"x" * MIB
        await stopping
        await bare.runtime.start()
        assert await answered(client) == b"back"


# --- the client's ----------------------------------------------------------------------------------------------------


@METHODS
async def test_call_of_a_client_that_has_said_goaway_ends_well(rig: Rig, method: str) -> None:
    go_on = asyncio.Event()
    rig.runtime.script[method] = waiting(go_on, b"x" * MIB)
    rig.interceptor.verdicts[RUN] = Forward
    client = await connect(rig.path)
    stream = client.call(method, b"x")
    await until(lambda: rig.runtime.in_flight == 1)
    client.goaway(0, why=b"going")
    await asyncio.sleep(0.05)
    go_on.set()
    await until(lambda: client.ended(stream) or client.lost)
    assert client.status(stream) == 0
    assert client.data(stream)[5:] == b"x" * MIB
    assert client.wrong == []
    client.close()
    await until(lambda: rig.metrics.in_flight == 0)


async def test_runtime_hears_the_client_s_goaway(bare: Rig) -> None:
    """Not of gRPC's engine's clients: it is the runtime's one client itself."""
    async with HandmadeRuntime(bare.runtime.path) as runtime:
        client = await connect(bare.path)
        stream = client.call(VERSION, b"x")
        peer = await runtime.got(1)
        client.goaway(0, why=b"going")
        peer.answer(peer.asked()[0], b"one")
        await until(lambda: client.ended(stream))
        assert peer.tap.last_streams == ([] if bare.engine == "grpc" else [0])
        client.close()
