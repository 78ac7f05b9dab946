"""What an engine owes the interceptor and the metrics."""

import asyncio
from typing import Any

import grpc
import pytest
from conftest import Rig, eventually
from fake_runtime import fail, never, receive_all
from grpc import aio

from criproxy.proxy.engine import Forward, Refuse

RUN = "/runtime.v1.RuntimeService/RunPodSandbox"
RESTORE = "/runtime.v9.RuntimeService/RestorePod"
VERSION = "/runtime.v1.RuntimeService/Version"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
HOOKED = pytest.mark.parametrize("method", [RUN, RESTORE], ids=["known", "unknown"])


async def outcome(call: Any) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


@HOOKED
async def test_hooked_request_is_rewritten(proxied: Rig, method: str) -> None:
    proxied.interceptor.verdicts[method] = lambda message: Forward(message * 1000)
    assert await proxied.unary(method)(b"grow", metadata=(("k", "v"),), timeout=300) == b"grow" * 1000
    (seen,) = proxied.runtime.calls
    assert seen.messages == [b"grow" * 1000]
    assert ("k", "v") in seen.metadata
    assert seen.deadline_s is not None
    assert proxied.interceptor.learned == []


@HOOKED
async def test_hooked_request_may_become_empty(proxied: Rig, method: str) -> None:
    proxied.interceptor.verdicts[method] = lambda _: Forward(b"")
    assert await proxied.unary(method)(b"shrink") == b""
    assert proxied.runtime.calls[0].messages == [b""]


async def test_other_methods_are_not_opened(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda _: Refuse(grpc.StatusCode.ABORTED.value[0], "never")
    assert await proxied.unary("/runtime.v1alpha2.RuntimeService/RunPodSandbox")(b"1") == b"1"
    assert await proxied.unary(VERSION)(b"2") == b"2"


@HOOKED
@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_refused_request_does_not_reach_the_runtime(proxied: Rig, method: str, code: grpc.StatusCode) -> None:
    text = "pod ns/web: ü refused: " + "x" * 28_000
    proxied.interceptor.verdicts[method] = lambda _: Refuse(code.value[0], text)
    error = await outcome(proxied.unary(method)(b""))
    assert (error.code(), error.details()) == (code, text)
    assert all(seen.messages == [] for seen in proxied.runtime.calls)
    assert proxied.interceptor.learned == []


async def test_malformed_request_is_the_interceptors_to_refuse(proxied: Rig) -> None:
    def parse(message: bytes) -> Forward | Refuse:
        assert message == b"\xff\xff\xff"
        return Refuse(grpc.StatusCode.INVALID_ARGUMENT.value[0], "not a RunPodSandboxRequest")

    proxied.interceptor.verdicts[RUN] = parse
    assert (await outcome(proxied.unary(RUN)(b"\xff\xff\xff"))).code() is grpc.StatusCode.INVALID_ARGUMENT


@HOOKED
async def test_large_hooked_message_passes(proxied: Rig, method: str) -> None:
    proxied.interceptor.verdicts[method] = lambda message: Forward(message + b"!")
    message = b"x" * (64 * 1024 * 1024)
    assert await proxied.unary(method)(message) == message + b"!"


@HOOKED
async def test_hooked_request_without_a_message_is_an_error(proxied: Rig, method: str) -> None:
    proxied.interceptor.verdicts[method] = Forward
    call = proxied.channel.stream_stream(method)(timeout=60)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.INTERNAL
    assert "no message" in await call.details()
    assert all(seen.messages == [] for seen in proxied.runtime.calls)


@pytest.mark.parametrize("proxied", ["grpc"], indirect=True)  # to the relay's client, it is what it is directly
async def test_runtime_without_an_answer_is_an_error(proxied: Rig) -> None:
    proxied.runtime.script[VERSION] = receive_all
    error = await outcome(proxied.unary(VERSION)(b""))
    assert error.code() is grpc.StatusCode.INTERNAL


@HOOKED
async def test_answer_is_learned_before_the_client_has_it(proxied: Rig, method: str) -> None:
    proxied.interceptor.verdicts[method] = lambda message: Forward(message, ticket="t")
    proxied.interceptor.may_learn.clear()
    call = proxied.unary(method)(b"id")
    await asyncio.wait_for(proxied.interceptor.learning.wait(), 20)
    await asyncio.sleep(0.05)
    assert not call.done()
    proxied.interceptor.may_learn.set()
    assert await call == b"id"
    assert proxied.interceptor.learned == [("t", b"id")]


async def test_answer_is_learned_though_the_client_gives_up(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda message: Forward(message, ticket="t")
    proxied.interceptor.may_learn.clear()
    call = proxied.unary(RUN)(b"id")
    await asyncio.wait_for(proxied.interceptor.learning.wait(), 20)
    call.cancel()
    await eventually(lambda: proxied.metrics.in_flight == 0)
    proxied.interceptor.may_learn.set()
    await eventually(lambda: proxied.interceptor.learned == [("t", b"id")])


async def test_error_is_not_learned(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda message: Forward(message, ticket="t")
    proxied.runtime.script[RUN] = fail(grpc.StatusCode.UNAVAILABLE, "later")
    assert (await outcome(proxied.unary(RUN)(b""))).details() == "later"
    assert proxied.interceptor.learned == []


async def test_slow_interceptor_delays_no_other_call(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda message: Forward(message, ticket="t")
    proxied.interceptor.may_learn.clear()
    slow = [proxied.unary(RUN)(b"") for _ in range(20)]
    await asyncio.wait_for(proxied.interceptor.learning.wait(), 20)
    assert await proxied.unary(VERSION)(b"quick", timeout=20) == b"quick"
    proxied.interceptor.may_learn.set()
    assert await asyncio.gather(*slow) == [b""] * 20


async def test_calls_are_counted_by_method_code_and_hook(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = Forward
    proxied.runtime.script[EVENTS] = never
    proxied.runtime.script["/x.Y/Z"] = fail(grpc.StatusCode.UNIMPLEMENTED, "")
    await proxied.unary(RUN)(b"")
    await proxied.unary("/runtime.v1alpha2.RuntimeService/RunPodSandbox")(b"")
    await outcome(proxied.unary("/x.Y/Z")(b""))
    await proxied.unary("/x.Y/RunPodSandbox")(b"")
    events = proxied.channel.unary_stream(EVENTS)(b"")
    await eventually(lambda: proxied.runtime.in_flight == 1)
    assert proxied.metrics.in_flight == 1
    events.cancel()
    await eventually(lambda: proxied.metrics.in_flight == 0)
    assert sorted(proxied.metrics.calls) == [
        ("GetContainerEvents", "CANCELLED", False),
        ("RunPodSandbox", "OK", False),
        ("RunPodSandbox", "OK", True),
        ("other", "OK", False),
        ("other", "UNIMPLEMENTED", False),
    ]
