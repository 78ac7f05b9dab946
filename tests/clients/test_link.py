"""The link: ready when the runtime is to be relied upon, not a moment sooner or longer; and calls while it is away."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc import aio
from structlog.testing import capture_logs

from criproxy.clients.http2.connection import CallError
from criproxy.clients.link import BEAT_S, VERSION_TIMEOUT_S, RuntimeInfo, RuntimeLink
from criproxy.clients.runtime import PodsRuntime
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.messages import VersionResponse
from tests.fakes import runtime as fake_runtime
from tests.fakes.runtime import FakeRuntime, answer, fail
from tests.fakes.waiting import until
from tests.fronts.rig import WAYS, build_rig

V1 = "/runtime.v1.RuntimeService/Version"
V1ALPHA2 = "/runtime.v1alpha2.RuntimeService/Version"
LIST = "/runtime.v1alpha2.RuntimeService/ListPodSandbox"
UNIMPLEMENTED = fail(grpc.StatusCode.UNIMPLEMENTED, "unknown service")
FAKE = answer(VersionResponse(runtime_name=b"fake", runtime_version=b"1.2").SerializeToString())

pytestmark = pytest.mark.usefixtures("runner")


class Listing:
    """What `on_connected` lists anew; the first `failures` times it fails."""

    def __init__(self, failures: int = 0) -> None:
        self.lists: list[RuntimeInfo] = []
        self.failures = failures

    async def refresh(self, info: RuntimeInfo) -> None:
        self.lists.append(info)
        if len(self.lists) <= self.failures:
            raise ConnectionError("the list broke off")


@asynccontextmanager
async def watched(path: Path, inventory: Listing) -> AsyncIterator[RuntimeLink]:
    link = RuntimeLink(path, structlog.get_logger())
    watcher = asyncio.create_task(link.run(inventory.refresh))
    yield link
    assert not watcher.done()
    watcher.cancel()
    await asyncio.wait([watcher])
    assert not link.ready
    await link.close()


@asynccontextmanager
async def running(runtime: FakeRuntime) -> AsyncIterator[None]:
    await runtime.start()
    yield
    await runtime.stop()


@contextmanager
def runtime_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, fake_runtime.__file__, str(path)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def runtime(tmp_path: Path) -> FakeRuntime:
    runtime = FakeRuntime(tmp_path / "runtime.sock")
    runtime.script[V1] = FAKE
    return runtime


async def test_link_with_a_runtime_is_ready_after_version_and_inventory(runtime: FakeRuntime) -> None:
    inventory = Listing()
    async with running(runtime), watched(runtime.path, inventory) as link:
        assert not link.ready
        await until(lambda: link.ready)
        assert link.info == RuntimeInfo("fake", "1.2", "runtime.v1")
        assert inventory.lists == [link.info]
        assert [call.method for call in runtime.calls] == [V1]


async def test_link_to_an_old_runtime_falls_back_to_v1alpha2(runtime: FakeRuntime) -> None:
    runtime.script |= {V1: UNIMPLEMENTED, V1ALPHA2: FAKE, LIST: answer(b"listed")}
    async with running(runtime), watched(runtime.path, Listing()) as link:
        await until(lambda: link.ready)
        assert link.info == RuntimeInfo("fake", "1.2", "runtime.v1alpha2")
        assert await link.call("ListPodSandbox", b"", 20) == b"listed"
        with pytest.raises(CallError, match="Version: UNIMPLEMENTED: unknown service") as caught:
            await link._call("/runtime.v1.RuntimeService/Version", b"", 20)
        assert caught.value.code == 12


SERVICE = "/runtime.v1.RuntimeService"
TOO_LARGE = fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "grpc: trying to send message larger than max (16777217 vs. ...)")


async def test_lists_that_are_too_large_for_a_message_are_streamed(runtime: FakeRuntime) -> None:
    """As the kubelet of such a node has to read them (its feature gate CRIListStreaming)."""
    ids = (b"0", b"1", b"2")
    pods = [cri.ListPodSandboxResponse(items=[cri.PodSandbox(id=id)]).SerializeToString() for id in ids]
    containers = [cri.ListContainersResponse(containers=[cri.Container(id=id)]).SerializeToString() for id in ids]
    runtime.script |= {
        f"{SERVICE}/ListPodSandbox": TOO_LARGE,
        f"{SERVICE}/ListContainers": TOO_LARGE,
        f"{SERVICE}/StreamPodSandboxes": answer(*pods),
        f"{SERVICE}/StreamContainers": answer(*containers),
    }
    async with running(runtime), watched(runtime.path, Listing()) as link:
        await until(lambda: link.ready)
        listing = PodsRuntime(link)
        assert [one.id for one in await listing.sandboxes()] == ["0", "1", "2"]
        assert [one.id for one in await listing.containers()] == ["0", "1", "2"]


async def test_list_that_is_too_large_and_not_streamed_is_the_first_error(runtime: FakeRuntime) -> None:
    runtime.script |= {f"{SERVICE}/ListPodSandbox": TOO_LARGE, f"{SERVICE}/StreamPodSandboxes": UNIMPLEMENTED}
    async with running(runtime), watched(runtime.path, Listing()) as link:
        await until(lambda: link.ready)
        with pytest.raises(CallError, match="ListPodSandbox: RESOURCE_EXHAUSTED: grpc: trying to send"):
            await PodsRuntime(link).sandboxes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (UNIMPLEMENTED, "serves none of runtime.v1, runtime.v1alpha2"),
        (fail(grpc.StatusCode.UNAVAILABLE, "server is not initialized yet"), "not initialized"),
        (answer(b"\xff\xff"), "pars"),
    ],
    ids=["no-cri", "starting", "garbage"],
)
async def test_link_is_ready_only_once_version_is_answered(runtime: FakeRuntime, behaviour: Any, reason: str) -> None:
    runtime.script |= {V1: behaviour, V1ALPHA2: behaviour}
    inventory = Listing()
    started = time.monotonic()
    with capture_logs() as logs:
        async with running(runtime), watched(runtime.path, inventory) as link:
            await until(lambda: sum(call.method == V1 for call in runtime.calls) == 5)
            assert time.monotonic() - started > 1.4, "the pauses grow: 0.1 + 0.2 + 0.4 + 0.8 s"
            assert not link.ready
            assert inventory.lists == []
            runtime.script[V1] = FAKE
            await until(lambda: link.ready)
    complaints = [log["reason"] for log in logs if log["event"] == "runtime_not_ready"]
    assert [reason in complaint.lower() for complaint in complaints] == [True], "told once, not at each try"


async def test_link_is_ready_only_once_the_inventory_is_read(runtime: FakeRuntime) -> None:
    inventory = Listing(failures=3)
    async with running(runtime), watched(runtime.path, inventory) as link:
        await until(lambda: len(inventory.lists) == 3)
        assert not link.ready
        await until(lambda: link.ready)
        assert len(inventory.lists) == 4


async def test_link_whose_runtime_goes_and_comes_reads_the_inventory_again(runtime: FakeRuntime) -> None:
    inventory = Listing()
    async with watched(runtime.path, inventory) as link:
        for times in (1, 2, 3):
            async with running(runtime):
                await until(lambda: link.ready)
                assert len(inventory.lists) == times
            await until(lambda: not link.ready)


async def test_runtime_that_is_frozen_is_not_ready_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its connections."""
    monkeypatch.setattr("criproxy.clients.link.BEAT_S", 0.05)
    monkeypatch.setattr("criproxy.clients.link.VERSION_TIMEOUT_S", 1.0)
    inventory = Listing()
    with runtime_process(tmp_path / "r.sock") as process:
        async with watched(tmp_path / "r.sock", inventory) as link:
            await until(lambda: link.ready)
            process.send_signal(signal.SIGSTOP)
            await until(lambda: not link.ready)
            assert "no answer within 1 s" in link.problem
            process.send_signal(signal.SIGCONT)
            await until(lambda: link.ready)
            assert (len(inventory.lists), link.problem) == (2, "")


def test_runtime_that_is_frozen_is_told_within_10_s() -> None:
    """A beat, and what an answer to it may take; the test above has both shorter."""
    assert BEAT_S + VERSION_TIMEOUT_S < 10.0


async def test_call_while_the_runtime_is_away_fails_at_once(runtime: FakeRuntime) -> None:
    async with watched(runtime.path, Listing()) as link:
        for _ in range(20):
            with pytest.raises(CallError) as caught:
                await asyncio.wait_for(link.call("Version", b"", timeout_s=600), 20)
            assert caught.value.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert not link.ready
        assert link.info is None


async def test_call_ends_at_its_timeout(runtime: FakeRuntime) -> None:
    runtime.script[V1] = fake_runtime.never
    link = RuntimeLink(runtime.path, structlog.get_logger())
    async with running(runtime):
        with pytest.raises(CallError) as caught:
            await link.call("Version", b"", timeout_s=0.2)
        await link.close()
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_call_takes_answers_of_64_mib(runtime: FakeRuntime) -> None:
    runtime.script["/runtime.v1.RuntimeService/ListContainers"] = answer(b"x" * (64 * 1024 * 1024))
    link = RuntimeLink(runtime.path, structlog.get_logger())
    async with running(runtime):
        assert len(await link.call("ListContainers", b"", 60)) == 64 * 1024 * 1024
        await link.close()


async def test_socket_path_with_odd_characters_is_dialled_as_localhost(tmp_path: Path) -> None:
    path = tmp_path / "we ird%41#?é.sock"
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.setblocking(False)
        link = RuntimeLink(path, structlog.get_logger())
        call = asyncio.create_task(link.call("Version", b"", 60))
        connection, _ = await asyncio.wait_for(loop.sock_accept(server), 20)
        with connection:
            await loop.sock_sendall(connection, b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame
            received = b""
            while b":authority" not in received or b"user-agent" not in received:
                received += await asyncio.wait_for(loop.sock_recv(connection, 65536), 20)
            assert b":authority\x09localhost" in received
            call.cancel()
            await asyncio.wait([call])
        await link.close()


async def test_runtime_s_process_is_known_while_it_is_connected(tmp_path: Path, quiet_log: None) -> None:
    path = tmp_path / "runtime.sock"
    async with watched(path, Listing()) as link:
        assert link.pid == 0
        for _ in range(2):
            with runtime_process(path) as process:
                await until(lambda pid=process.pid: link.pid == pid)  # type: ignore[misc]
            await until(lambda: link.pid == 0)


# --- a runtime in a process of its own, killed --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", WAYS)
async def test_runtime_absent_killed_and_back(engine: str, tmp_path: Path, quiet_log: None) -> None:
    async with build_rig(engine, tmp_path, runtime_runs=False) as rig:

        async def code(method: str) -> grpc.StatusCode:
            try:
                await rig.unary(method)(b"", timeout=60)
            except aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        async def back() -> None:
            for _ in range(1000):
                if await code(V1) is grpc.StatusCode.OK:
                    return
                await asyncio.sleep(0.02)

        methods = [V1, "/runtime.v1.RuntimeService/GetContainerEvents", "/test.Service/Never"]
        for method in methods:
            assert await asyncio.wait_for(code(method), 20) is grpc.StatusCode.UNAVAILABLE
        for _ in range(2):
            with runtime_process(rig.runtime.path) as process:
                await asyncio.wait_for(back(), 20)
                waiting = [asyncio.create_task(code("/test.Service/Never")) for _ in range(20)]
                await asyncio.sleep(0.2)
                process.kill()
                process.wait()
                assert set(await asyncio.wait_for(asyncio.gather(*waiting), 20)) == {grpc.StatusCode.UNAVAILABLE}
            for method in methods:
                assert await asyncio.wait_for(code(method), 20) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("engine", WAYS)
@pytest.mark.parametrize("method", [V1, "/test.Service/Unheard"], ids=["unary", "unknown"])
async def test_calls_to_a_runtime_that_hangs_leave_nothing(
    engine: str, method: str, tmp_path: Path, quiet_log: None
) -> None:
    """It takes connections and never says a word."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "runtime.sock"))
        server.listen()
        server.setblocking(False)
        async with build_rig(engine, tmp_path, runtime_runs=False) as rig:
            before = len(asyncio.all_tasks())
            calls = [rig.unary(method)(b"x", timeout=60) for _ in range(50)]
            connection, _ = await asyncio.wait_for(loop.sock_accept(server), 20)
            with connection:
                await until(lambda: rig.metrics.in_flight == 50 or engine != "grpc")
                await asyncio.sleep(0.1)
                for call in calls:
                    call.cancel()
                await until(lambda: rig.metrics.in_flight == 0)
                await until(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.slow
async def test_runtime_away_for_long_is_found_within_seconds(runtime: FakeRuntime) -> None:
    """The pause between attempts to connect stays below 3 s; gRPC's own would have grown to 7 s by then."""
    async with watched(runtime.path, Listing()) as link:
        await asyncio.sleep(12.5)
        async with running(runtime):
            started = time.monotonic()
            await until(lambda: link.ready)
            assert time.monotonic() - started < 4.5


async def test_runtime_that_hangs_up_is_dialled_again_soon(tmp_path: Path) -> None:
    """The first pause is 0.1 s; gRPC's own is 1 s."""
    loop = asyncio.get_running_loop()
    path = tmp_path / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.setblocking(False)
        async with watched(path, Listing()):
            started = time.monotonic()
            for _ in range(5):
                connection, _ = await asyncio.wait_for(loop.sock_accept(server), 20)
                connection.close()
            assert time.monotonic() - started < 3
