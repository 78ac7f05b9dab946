"""What an engine owes the interceptor and the metrics."""

import asyncio
import random

import grpc
import pytest
import structlog
from grpc import aio

from criproxy.fronts.engine import AnswerError, Forward
from tests.fakes.runtime import OPTIONS, fail, never, receive_all
from tests.fakes.waiting import until
from tests.fronts.handmade import connect
from tests.fronts.rig import Rig, outcome

RUN = "/runtime.v1.RuntimeService/RunPodSandbox"
RESTORE = "/runtime.v9.RuntimeService/RestorePod"
VERSION = "/runtime.v1.RuntimeService/Version"
RESIZE = "/runtime.v1.RuntimeService/UpdatePodSandboxResources"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
GZIP = 2  # gRPC core, GRPC_COMPRESS_GZIP
HOOKED = pytest.mark.parametrize("method", [RUN, RESTORE], ids=["known", "unknown"])


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


@pytest.mark.parametrize("later", [False, True], ids=["at-once", "awaited"])
async def test_call_on_which_the_interceptor_raises_passes_as_it_came(proxied: Rig, later: bool) -> None:
    def fails(_: bytes) -> Forward:
        raise RuntimeError("a bug")

    async def fails_later(_: bytes) -> Forward:
        await asyncio.sleep(0.01)
        return fails(_)

    proxied.interceptor.verdicts[RUN] = fails_later if later else fails  # type: ignore[assignment]
    with structlog.testing.capture_logs() as logs:
        assert await proxied.unary(RUN)(b"x" * 100_000) == b"x" * 100_000
    assert [(line["event"], line["method"]) for line in logs] == [("interceptor_failed", RUN)]
    assert proxied.runtime.calls[-1].messages == [b"x" * 100_000]
    assert await proxied.unary(VERSION)(b"2") == b"2"


async def test_path_without_its_slash_is_asked_for_as_it_came(proxied: Rig) -> None:
    path = RUN.removeprefix("/")
    proxied.interceptor.verdicts[path] = lambda message: Forward(message + b"!")
    assert await proxied.unary(path)(b"x") == b"x!"
    assert proxied.runtime.calls[-1].method == path


async def test_other_methods_are_not_opened(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda _: AnswerError(grpc.StatusCode.ABORTED.value[0], "never")
    assert await proxied.unary("/runtime.v1alpha2.RuntimeService/RunPodSandbox")(b"1") == b"1"
    assert await proxied.unary(VERSION)(b"2") == b"2"


@HOOKED
@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_refused_request_does_not_reach_the_runtime(proxied: Rig, method: str, code: grpc.StatusCode) -> None:
    text = "pod ns/web: ü refused: " + "x" * 28_000
    proxied.interceptor.verdicts[method] = lambda _: AnswerError(code.value[0], text)
    error = await outcome(proxied.unary(method)(b""))
    assert (error.code(), error.details()) == (code, text)
    assert all(seen.messages == [] for seen in proxied.runtime.calls)
    assert proxied.interceptor.learned == []


async def test_malformed_request_is_the_interceptors_to_refuse(proxied: Rig) -> None:
    def parse(message: bytes) -> Forward | AnswerError:
        assert message == b"\xff\xff\xff"
        return AnswerError(grpc.StatusCode.INVALID_ARGUMENT.value[0], "not a RunPodSandboxRequest")

    proxied.interceptor.verdicts[RUN] = parse
    assert (await outcome(proxied.unary(RUN)(b"\xff\xff\xff"))).code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.slow
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
    proxied.interceptor.verdicts[method] = lambda message: Forward(message, proxied.interceptor.learn)
    call = proxied.unary(method)(b"id")
    had = []
    proxied.interceptor.on_learn = lambda: had.append(call.done())
    assert await call == b"id"
    assert proxied.interceptor.learned == [b"id"]
    assert had == [False]


async def test_error_is_not_learned(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda message: Forward(message, proxied.interceptor.learn)
    proxied.runtime.script[RUN] = fail(grpc.StatusCode.UNAVAILABLE, "later")
    assert (await outcome(proxied.unary(RUN)(b""))).details() == "later"
    assert proxied.interceptor.learned == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(grpc.StatusCode.UNKNOWN, "not implemented yet", id="as-containerd-2.2"),
        pytest.param(grpc.StatusCode.UNIMPLEMENTED, "unknown method UpdatePodSandboxResources", id="as-gRPC"),
    ],
)
async def test_kubelet_learns_that_the_runtime_lacks_a_method_whose_request_was_rewritten(
    proxied: Rig, code: grpc.StatusCode, text: str
) -> None:
    """Kubelet since 1.36 lets a resize go on for these two alone: by code and, where that says nothing, by the text.

    Source: kubernetes/pkg/kubelet/kuberuntime/kuberuntime_container.go, updatePodSandboxResources.
    """
    trailing = (("grpc-status-details-bin", b"\x08\x0c\x12\x02no\xff"), ("t", "1"))
    proxied.runtime.script[RESIZE] = fail(code, text, trailing=trailing)
    proxied.interceptor.verdicts[RESIZE] = lambda message: Forward(message * 2, proxied.interceptor.learn)

    error = await outcome(proxied.unary(RESIZE)(b"cpu", timeout=60))

    assert (error.code(), error.details(), tuple(error.trailing_metadata())) == (code, text, trailing)
    assert proxied.runtime.calls[0].messages == [b"cpucpu"]
    assert proxied.interceptor.learned == []


async def test_slow_interceptor_delays_no_other_call(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = lambda message: Forward(message, proxied.interceptor.learn)
    proxied.interceptor.may_decide.clear()
    slow = [proxied.unary(RUN)(b"") for _ in range(20)]
    await asyncio.wait_for(proxied.interceptor.asked.wait(), 20)
    assert await proxied.unary(VERSION)(b"quick", timeout=20) == b"quick"
    proxied.interceptor.may_decide.set()
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
    await until(lambda: proxied.runtime.in_flight == 1)
    assert proxied.metrics.in_flight == 1
    events.cancel()
    await until(lambda: proxied.metrics.in_flight == 0)
    assert sorted(proxied.metrics.calls) == [
        ("GetContainerEvents", "CANCELLED", False),
        ("RunPodSandbox", "OK", False),
        ("RunPodSandbox", "OK", True),
        ("other", "OK", False),
        ("other", "UNIMPLEMENTED", False),
    ]


# --- what a client does while a call is held -------------------------------------------------------------------------


def hold(rig: Rig) -> None:
    """The verdict on a RunPodSandbox waits for `may_decide`."""
    rig.interceptor.verdicts[RUN] = lambda message: Forward(message + b"!", rig.interceptor.learn)
    rig.interceptor.may_decide.clear()


async def assert_unseen(rig: Rig) -> None:
    """Also once the verdict would be there: the runtime got no message, and nothing is left of the call."""
    await until(lambda: rig.metrics.in_flight == 0)
    rig.interceptor.may_decide.set()
    assert await rig.unary(VERSION)(b"next", timeout=20) == b"next"
    await until(lambda: rig.runtime.in_flight == 0)
    assert [message for seen in rig.runtime.calls for message in seen.messages] == [b"next"]
    assert rig.interceptor.learned == []


async def test_call_cancelled_while_held_does_not_reach_the_runtime(proxied: Rig) -> None:
    hold(proxied)
    call = proxied.unary(RUN)(b"x" * 200_000)
    await asyncio.wait_for(proxied.interceptor.asked.wait(), 20)
    call.cancel()
    await assert_unseen(proxied)
    assert proxied.metrics.calls[0] == ("RunPodSandbox", "CANCELLED", True)


async def test_call_whose_deadline_passes_while_held_does_not_reach_the_runtime(proxied: Rig) -> None:
    hold(proxied)
    error = await outcome(proxied.unary(RUN)(b"x" * 200_000, timeout=0.5))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await assert_unseen(proxied)


async def test_client_that_vanishes_while_its_call_is_held_leaves_nothing(proxied: Rig) -> None:
    hold(proxied)
    client = await connect(proxied.path)
    client.call(RUN, b"x")
    await asyncio.wait_for(proxied.interceptor.asked.wait(), 20)
    client.close()
    await assert_unseen(proxied)


async def test_held_calls_by_the_hundred_leave_room_for_others(proxied: Rig) -> None:
    """Each has used up a client's first window, and the windows of all together are over the connection's."""
    hold(proxied)
    message = b"x" * 100_000
    calls = [proxied.unary(RUN)(message) for _ in range(100)]
    await asyncio.wait_for(proxied.interceptor.asked.wait(), 20)
    assert await proxied.unary(VERSION)(b"y" * 1_000_000, timeout=20) == b"y" * 1_000_000
    proxied.interceptor.may_decide.set()
    assert await asyncio.gather(*calls) == [message + b"!"] * 100


async def test_runtime_that_stops_while_a_call_is_held_ends_it(proxied: Rig) -> None:
    """Python's server cancels what it has heard of, or closes first: the relay passes on whichever comes."""
    hold(proxied)
    call = proxied.unary(RUN)(b"x")
    await asyncio.wait_for(proxied.interceptor.asked.wait(), 20)
    await proxied.runtime.stop()
    proxied.interceptor.may_decide.set()
    assert (await outcome(call)).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert proxied.interceptor.learned == []


# --- packed messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 100_000, 8_000_000], ids=["empty", "100 KB", "8 MB"])
@pytest.mark.parametrize("more", [b"", b"!"], ids=["as it came", "rewritten"])
async def test_packed_request_is_opened(proxied: Rig, compression: grpc.Compression, size: int, more: bytes) -> None:
    message = random.Random(size).randbytes(size)
    asked = []

    def verdict(opened: bytes) -> Forward:
        asked.append(opened)
        return Forward(opened + more)

    proxied.interceptor.verdicts[RUN] = verdict
    async with aio.insecure_channel(f"unix:{proxied.path}", options=OPTIONS, compression=compression) as channel:
        assert await channel.unary_unary(RUN)(message, timeout=60) == message + more
    assert asked == [message]
    assert proxied.runtime.calls[-1].messages == [message + more]


async def test_packed_answer_is_learned_unpacked(proxied: Rig) -> None:
    await proxied.runtime.stop()
    await proxied.runtime.start(default_compression_algorithm=GZIP)
    proxied.interceptor.verdicts[RUN] = lambda message: Forward(message, proxied.interceptor.learn)
    assert await proxied.unary(RUN)(b"id" * 1000, wait_for_ready=True, timeout=60) == b"id" * 1000
    assert proxied.interceptor.learned == [b"id" * 1000]


async def test_request_packed_in_an_unknown_way_is_refused(proxied: Rig) -> None:
    proxied.interceptor.verdicts[RUN] = Forward
    client = await connect(proxied.path)
    stream = client.call(RUN, b"x", packed=True, more=[(b"grpc-encoding", b"snappy")])
    await until(lambda: client.ended(stream))
    code = {  # gRPC's server in Python says so of any call's packing that it does not know
        "grpc": grpc.StatusCode.INTERNAL,
        "relay": grpc.StatusCode.UNIMPLEMENTED,  # Source: gRPC, compression.md
    }[proxied.engine]
    assert client.status(stream) == code.value[0]
    assert all(seen.messages == [] for seen in proxied.runtime.calls)
    client.close()
