"""The carrier against a fake runtime: a client must not be able to tell it from the runtime itself."""

import asyncio
import contextlib
import socket
import sys
import time
from typing import Any

import grpc
import pytest
from grpc import aio

from tests.fakes.runtime import FakeRuntime, Seen, answer, fail, never, receive, receive_all
from tests.fakes.waiting import until
from tests.fronts.rig import Rig, outcome

MIB = 1024 * 1024
VERSION = "/runtime.v1.RuntimeService/Version"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
RUNTIME_CONFIG = "/runtime.v1.RuntimeService/RuntimeConfig"
UNKNOWN = "/runtime.v2.FutureService/Unheard"
ALONE = {"use_local_subchannel_pool": 1}
KINDS = pytest.mark.parametrize("method", [VERSION, EVENTS, UNKNOWN], ids=["unary", "streaming", "unknown"])

RUNTIME_UNARY = [
    "Version",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "ContainerStatus",
    "UpdateContainerResources",
    "ReopenContainerLog",
    "ExecSync",
    "Exec",
    "Attach",
    "PortForward",
    "ContainerStats",
    "ListContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "UpdateRuntimeConfig",
    "Status",
    "CheckpointContainer",
    "CheckpointPod",
    "RestorePod",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "RuntimeConfig",
    "UpdatePodSandboxResources",
]
RUNTIME_STREAMING = [
    "StreamPodSandboxes",
    "StreamContainers",
    "StreamContainerStats",
    "StreamPodSandboxStats",
    "GetContainerEvents",
    "StreamPodSandboxMetrics",
]
IMAGE_UNARY = ["ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"]
IMAGE_STREAMING = ["StreamImages"]
ALL_UNARY = [("RuntimeService", name) for name in RUNTIME_UNARY] + [("ImageService", name) for name in IMAGE_UNARY]
ALL_STREAMING = [("RuntimeService", name) for name in RUNTIME_STREAMING] + [
    ("ImageService", name) for name in IMAGE_STREAMING
]


async def collect(call: Any) -> list[bytes]:
    return [message async for message in call]


# --- every method, of every arity ----------------------------------------------------------------------------------


def test_table_of_methods_holds_all_43() -> None:
    assert len(ALL_UNARY) + len(ALL_STREAMING) == 43


@pytest.mark.parametrize("api", ["runtime.v1", "runtime.v1alpha2"])
async def test_unary_methods_of_cri_pass(rig: Rig, api: str) -> None:
    for service, name in ALL_UNARY:
        method = f"/{api}.{service}/{name}"
        assert await rig.unary(method)(name.encode()) == name.encode()
        assert rig.runtime.calls[-1].method == method


@pytest.mark.parametrize("api", ["runtime.v1", "runtime.v1alpha2"])
async def test_streaming_methods_of_cri_pass(rig: Rig, api: str) -> None:
    for service, name in ALL_STREAMING:
        method = f"/{api}.{service}/{name}"
        rig.runtime.script[method] = answer(b"1", b"", b"3")
        assert await collect(rig.channel.unary_stream(method)(b"go")) == [b"1", b"", b"3"]
        assert rig.runtime.calls[-1].messages == [b"go"]


async def test_unknown_unary_method_passes(rig: Rig) -> None:
    assert await rig.unary(UNKNOWN)(b"ping") == b"ping"
    assert await rig.unary("/runtime.v1.RuntimeService/Unheard")(b"ping") == b"ping"


async def test_unknown_server_stream_passes(rig: Rig) -> None:
    rig.runtime.script[UNKNOWN] = answer(*(b"%d" % i for i in range(500)))
    assert await collect(rig.channel.unary_stream(UNKNOWN)(b"go")) == [b"%d" % i for i in range(500)]


async def test_unknown_client_stream_passes(rig: Rig) -> None:
    async def count(seen: Seen, context: Any) -> None:
        await receive_all(seen, context)
        await context.write(b"%d" % len(seen.messages))

    rig.runtime.script[UNKNOWN] = count
    assert await rig.channel.stream_unary(UNKNOWN)(iter([b"a", b"", b"c"])) == b"3"
    assert rig.runtime.calls[-1].messages == [b"a", b"", b"c"]


async def test_unknown_conversation_passes_each_message_at_once(rig: Rig) -> None:
    call = rig.channel.stream_stream(UNKNOWN)()
    for i in range(20):
        await call.write(b"%d" % i)
        assert await call.read() == b"%d" % i
    assert not rig.runtime.calls[-1].half_closed
    await call.done_writing()
    assert await call.read() is aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_stream_that_the_runtime_ends_first_ends(rig: Rig) -> None:
    async def first_only(seen: Seen, context: Any) -> None:
        await context.write(await receive(seen, context))

    rig.runtime.script[UNKNOWN] = first_only
    call = rig.channel.stream_stream(UNKNOWN)()
    await call.write(b"1")
    assert await call.read() == b"1"
    assert await call.read() is aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await until(lambda: rig.metrics.in_flight == 0)


# --- metadata ------------------------------------------------------------------------------------------------------


@KINDS
async def test_metadata_passes_both_ways(rig: Rig, method: str) -> None:
    sent = (("traceparent", "00-4bf9-00f0-01"), ("k", "1"), ("k", "2"), ("b-bin", b"\x00\xff"), ("b-bin", b""))
    initial = (("i", "1"), ("i", "2"), ("i-bin", b"\x80"))
    trailing = (("t", "1"), ("t", "2"), ("t-bin", b"\x80\x00"))
    rig.runtime.script[method] = answer(b"x", initial=initial, trailing=trailing)
    call = rig.unary(method)(b"", metadata=sent)
    assert await call == b"x"
    assert tuple(await call.initial_metadata()) == initial
    assert tuple(await call.trailing_metadata()) == trailing
    seen = [entry for entry in rig.runtime.calls[-1].metadata if entry[0] != "user-agent"]
    assert sorted(map(repr, seen)) == sorted(map(repr, sent))
    assert [value for key, value in seen if key == "k"] == ["1", "2"]


@KINDS
async def test_metadata_of_an_error_passes(rig: Rig, method: str) -> None:
    rig.runtime.script[method] = fail(grpc.StatusCode.ABORTED, "no", initial=(("i", "1"),), trailing=(("t", "2"),))
    error = await outcome(rig.unary(method)(b""))
    assert tuple(error.initial_metadata()) == (("i", "1"),)
    assert tuple(error.trailing_metadata()) == (("t", "2"),)


@pytest.mark.parametrize("metadata", [(), (("i", "1"),)], ids=["empty", "one"])
@pytest.mark.parametrize("method", [EVENTS, UNKNOWN])
async def test_initial_metadata_arrives_before_any_message(rig: Rig, method: str, metadata: Any) -> None:
    go_on = asyncio.Event()

    async def headers_first(seen: Seen, context: Any) -> None:
        await context.send_initial_metadata(metadata)
        await go_on.wait()
        await context.write(b"late")

    rig.runtime.script[method] = headers_first
    call = rig.channel.unary_stream(method)(b"")
    assert tuple(await asyncio.wait_for(call.initial_metadata(), 20)) == metadata
    go_on.set()
    assert await collect(call) == [b"late"]


@KINDS
async def test_large_metadata_passes_both_ways(rig: Rig, method: str) -> None:
    large = (("baggage", "x" * 60_000),)
    rig.runtime.script[method] = answer(b"x", initial=large, trailing=large)
    call = rig.unary(method)(b"", metadata=large)
    assert await call == b"x"
    assert tuple(await call.initial_metadata()) == large
    assert tuple(await call.trailing_metadata()) == large
    assert large[0] in rig.runtime.calls[-1].metadata


@pytest.mark.parametrize(
    "authority", ["localhost", "/run/containerd/containerd.sock", "%2Frun%2Fcrio.sock", "unix:///run/x.sock", "x" * 300]
)
async def test_odd_authority_is_served(rig: Rig, authority: str) -> None:
    async with rig.client(default_authority=authority) as channel:
        assert await channel.unary_unary(VERSION)(b"1") == b"1"
        assert await channel.unary_unary(UNKNOWN)(b"2") == b"2"


# --- deadlines and cancellation ------------------------------------------------------------------------------------


@KINDS
async def test_deadline_arrives_at_the_runtime(rig: Rig, method: str) -> None:
    await rig.unary(method)(b"", timeout=300)
    left = rig.runtime.calls[-1].deadline_s
    assert left is not None
    assert 240 < left < 310  # gRPC rounds it up on the wire


@KINDS
async def test_no_deadline_stays_none(rig: Rig, method: str) -> None:
    await rig.unary(method)(b"")
    assert rig.runtime.calls[-1].deadline_s is None


@KINDS
async def test_deadline_of_a_year_passes(rig: Rig, method: str) -> None:
    await rig.unary(method)(b"", timeout=365 * 86400)
    left = rig.runtime.calls[-1].deadline_s
    assert left is not None
    assert 364 * 86400 < left < 366 * 86400


@pytest.mark.slow
@KINDS
async def test_deadline_passed_ends_the_call_at_both_ends(rig: Rig, method: str) -> None:
    rig.runtime.script[method] = never
    error = await outcome(rig.unary(method)(b"", timeout=0.5))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)


@KINDS
async def test_cancellation_by_the_client_arrives_at_the_runtime(rig: Rig, method: str) -> None:
    rig.runtime.script[method] = never
    call = rig.unary(method)(b"")
    await until(lambda: rig.runtime.in_flight == 1)
    call.cancel()
    await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)
    assert rig.runtime.calls[-1].cancelled


async def test_cancellation_amid_a_stream_arrives_at_the_runtime(rig: Rig) -> None:
    async def flood(seen: Seen, context: Any) -> None:
        while True:
            await context.write(b"x" * 100_000)

    rig.runtime.script[EVENTS] = flood
    call = rig.channel.unary_stream(EVENTS)(b"")
    assert await call.read() == b"x" * 100_000
    call.cancel()
    await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)


VANISHING_CLIENT = """
import grpc, sys
channel = grpc.insecure_channel("unix:" + sys.argv[1])
channel.unary_unary(sys.argv[2])(b"x")
"""


@KINDS
async def test_client_killed_cancels_at_the_runtime(rig: Rig, method: str) -> None:
    rig.runtime.script[method] = never
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", VANISHING_CLIENT, str(rig.path), method)
    try:
        await until(lambda: rig.runtime.in_flight == 1)
    finally:
        client.kill()
        await client.wait()
    await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)
    assert rig.runtime.calls[-1].cancelled


@pytest.mark.slow
@KINDS
async def test_thousand_cancelled_calls_leave_nothing(rig: Rig, method: str) -> None:
    rig.runtime.script[method] = never
    before = len(asyncio.all_tasks())
    for _ in range(10):
        calls = [rig.unary(method)(b"") for _ in range(100)]
        await until(lambda: rig.runtime.in_flight == 100)
        for call in calls:
            call.cancel()
        await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)
    assert len(rig.runtime.calls) == 1000
    await until(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.slow
@KINDS
async def test_calls_cancelled_at_any_moment_leave_nothing(rig: Rig, method: str) -> None:
    before = len(asyncio.all_tasks())
    for i in range(300):
        call = rig.unary(method)(b"x" * 1000)
        await asyncio.sleep(i % 30 / 10_000)
        call.cancel()
    await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_two_hundred_slow_calls_leave_room_for_a_quick_one(rig: Rig) -> None:
    slow = "/runtime.v1.RuntimeService/ExecSync"
    rig.runtime.script[slow] = never
    calls = [rig.unary(method)(b"") for method in [slow] * 200]
    await until(lambda: rig.runtime.in_flight == 200)
    assert await rig.unary(VERSION)(b"quick", timeout=20) == b"quick"
    for call in calls:
        call.cancel()
    await until(lambda: rig.runtime.in_flight == 0 and rig.metrics.in_flight == 0)


# --- a runtime that is away ----------------------------------------------------------------------------------------


@KINDS
async def test_call_to_a_runtime_that_is_away_fails_at_once(bare: Rig, method: str) -> None:
    began_s = time.monotonic()
    error = await outcome(bare.unary(method)(b"", timeout=60))

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - began_s < 30, "nobody waits for a runtime to come: kubelet is started anew"


async def test_first_call_once_the_runtime_has_come_is_answered(bare: Rig) -> None:
    """Kubelet ends when its first call fails, and asks RuntimeConfig three times: all that it asks must be answered.

    Each time it starts, it connects anew, so that no attempt before is a reason for it to wait.
    """
    for _ in range(4):
        for _ in range(4):  # as kubelets of before, so that the next attempt is further and further away
            async with bare.client(**ALONE) as kubelet:
                await outcome(kubelet.unary_unary(VERSION)(b"", timeout=60))
            await asyncio.sleep(0.1)
        await bare.runtime.start()
        async with bare.client(**ALONE) as kubelet:
            assert await kubelet.unary_unary(VERSION)(b"up", timeout=60) == b"up"
            for _ in range(3):
                assert await kubelet.unary_unary(RUNTIME_CONFIG)(b"", timeout=60) == b""
        await bare.runtime.stop()


async def test_call_to_a_runtime_that_listens_and_is_not_ready_yet_waits_for_it(bare: Rig) -> None:
    ready, real = asyncio.Event(), FakeRuntime(bare.runtime.path.with_name("real.sock"))
    await real.start()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ready.wait()
        answers, requests = await asyncio.open_unix_connection(real.path)
        await asyncio.gather(pass_on(reader, requests), pass_on(answers, writer))
        for end in (requests, writer):
            end.close()
            with contextlib.suppress(ConnectionError):  # of an end that is never asked, asyncio complains
                await end.wait_closed()

    server = await asyncio.start_unix_server(accept, bare.runtime.path)
    async with bare.client(**ALONE) as kubelet:
        calls = [asyncio.ensure_future(kubelet.unary_unary(VERSION)(b"up", timeout=60)) for _ in range(3)]
        await asyncio.sleep(1)
        waited = not any(call.done() for call in calls)
        ready.set()
        assert await asyncio.gather(*calls) == [b"up"] * 3
    assert waited
    server.close()
    await real.stop()


# --- status --------------------------------------------------------------------------------------------------------


@KINDS
async def test_every_status_code_passes_with_text_and_details(rig: Rig, method: str) -> None:
    trailing = (("grpc-status-details-bin", b"\x08\x05\x12\x02no\xff"), ("t", "1"))
    for code in grpc.StatusCode:
        if code is grpc.StatusCode.OK:
            continue
        rig.runtime.script[method] = fail(code, f"text of {code}", trailing=trailing)
        error = await outcome(rig.unary(method)(b""))
        assert (error.code(), error.details()) == (code, f"text of {code}")
        assert tuple(error.trailing_metadata()) == trailing


@KINDS
@pytest.mark.parametrize(
    "text", ["", "ü 漢字\n\t%25 100%", "x" * 28_000, "é" * 28_000], ids=["empty", "odd", "28k", "56k"]
)
async def test_error_text_passes(rig: Rig, method: str, text: str) -> None:
    rig.runtime.script[method] = fail(
        grpc.StatusCode.UNKNOWN, text, trailing=(("grpc-status-details-bin", b"d" * 9000),)
    )
    error = await outcome(rig.unary(method)(b""))
    assert error.details() == text
    assert dict(error.trailing_metadata()) == {"grpc-status-details-bin": b"d" * 9000}


async def test_messages_before_an_error_pass(rig: Rig) -> None:
    rig.runtime.script[EVENTS] = fail(grpc.StatusCode.DATA_LOSS, "then lost", after=(b"1", b"2", b"3"))
    call = rig.channel.unary_stream(EVENTS)(b"")
    assert [await call.read() for _ in range(3)] == [b"1", b"2", b"3"]
    error = await outcome(call.read())
    assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "then lost")


@KINDS
async def test_error_before_the_request_is_read_passes(rig: Rig, method: str) -> None:
    async def refuse(seen: Seen, context: Any) -> None:
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details("too much")

    rig.runtime.script[method] = refuse
    for _ in range(10):
        error = await outcome(rig.unary(method)(b"x" * 8 * MIB))
        assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")


async def test_error_amid_a_stream_of_requests_ends_the_call(rig: Rig) -> None:
    """grpc.aio's own client, with no proxy, reports such an error as INTERNAL when it comes amid a write."""

    async def enough(seen: Seen, context: Any) -> None:
        await receive(seen, context)
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details("enough")

    async def requests() -> Any:
        for _ in range(50):
            yield b"x" * 100_000

    rig.runtime.script[UNKNOWN] = enough
    for _ in range(40):
        error = await outcome(rig.channel.stream_unary(UNKNOWN)(requests()))
        assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
    await until(lambda: rig.metrics.in_flight == 0)


async def test_error_without_messages_leaves_headers_out(rig: Rig) -> None:
    """gRPC's "Trailers-Only" answer, on which a client may try again."""
    rig.runtime.script[EVENTS] = fail(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
    error = await outcome(rig.channel.unary_stream(EVENTS)(b"").read())
    assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "unknown method")
    assert tuple(error.initial_metadata()) == ()


# --- messages ------------------------------------------------------------------------------------------------------


@KINDS
async def test_empty_message_passes(rig: Rig, method: str) -> None:
    assert await rig.unary(method)(b"") == b""
    assert rig.runtime.calls[-1].messages == [b""]


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("mib", [16, 64])
async def test_large_message_passes_both_ways(rig: Rig, method: str, mib: int) -> None:
    message = bytes(range(256)) * (mib * MIB // 256)
    assert await rig.unary(method)(message) == message


@KINDS
async def test_compressed_message_passes(rig: Rig, method: str) -> None:
    async with aio.insecure_channel(f"unix:{rig.path}", compression=grpc.Compression.Gzip) as channel:
        assert await channel.unary_unary(method)(b"a" * 100_000) == b"a" * 100_000
    assert rig.runtime.calls[-1].messages == [b"a" * 100_000]


@pytest.mark.parametrize("method", [VERSION, UNKNOWN], ids=["unary", "unknown"])
async def test_request_without_a_message_ends(rig: Rig, method: str) -> None:
    call = rig.channel.stream_stream(method)(timeout=60)
    await call.done_writing()
    assert await call.code() in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL)
    await until(lambda: rig.metrics.in_flight == 0)


async def test_junk_on_the_socket_harms_no_other_client(rig: Rig) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000, b"\0" * 100):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(rig.path))
            client.sendall(junk)
        assert await rig.unary(VERSION)(b"fine", timeout=20) == b"fine"
