"""What runtimes say of a process in their verbose status, each in its own way."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri import pods_runtime
from criproxy.fronts.cri.codec import CodecError
from criproxy.fronts.cri.pods_runtime import PodsRuntime
from criproxy.model import PodRef, Sandbox
from criproxy.pods.runtime import Process, Running


class Link:
    ready, pid = True, 7

    def __init__(self, call: Callable[[str, bytes, float], Awaitable[bytes]]) -> None:
        self._call = call

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        return await self._call(method, request, timeout_s)


SANDBOX = Sandbox("s1", PodRef("1", "batch", "job"), "/offline/pod1")
RUNC = "io.containerd.runc.v2"
HANDLER = {"io.kubernetes.cri-o.RuntimeHandler": "kata", "other": "x"}


def asked(container: str, **info: str) -> tuple[str, bytes, Process]:
    """The method and request of the question, and what was made of an answer with this info."""
    seen = []

    async def call(method: str, request: bytes, timeout_s: float) -> bytes:
        seen.append((method, request))
        entries = [cri.StringEntry(key=key.encode(), value=value.encode()) for key, value in info.items()]
        if method == "ContainerStatus":
            return cri.ContainerStatusResponse(info=entries).SerializeToString()
        return cri.PodSandboxStatusResponse(info=entries).SerializeToString()

    process = asyncio.run(PodsRuntime(Link(call)).process_of(Running(SANDBOX, "id-of-it", container)))  # type: ignore[arg-type]
    return (*seen[0], process)


@pytest.mark.parametrize(
    ("info", "pid", "kind"),
    [
        pytest.param(
            {"pid": 7, "runtimeType": RUNC, "runtimeSpec": {"process": {"env": ["A=1"]}}}, 7, RUNC, id="containerd"
        ),
        pytest.param({"sandboxID": "s1", "pid": 7, "privileged": False}, 7, "", id="cri-o"),
        pytest.param({"pid": 0, "runtimeType": RUNC}, 0, RUNC, id="ended"),
        pytest.param({"runtimeSpec": {}}, None, "", id="without-pid"),
        pytest.param({"pid": 7, "runtimeSpec": None}, 7, "", id="without-spec"),
        pytest.param({"pid": "7"}, None, "", id="of-another-type"),
        pytest.param([7], None, "", id="a-list"),
    ],
)
def test_process_is_read_from_the_info(info: object, pid: int | None, kind: str) -> None:
    assert asked("main", info=json.dumps(info))[2] == Process(pid, kind)


@pytest.mark.parametrize("info", [{}, {"info": ""}, {"info": "{"}, {"other": '{"pid": 7}'}], ids=str)
def test_process_without_info_that_can_be_read_is_not_told(info: dict[str, str]) -> None:
    assert asked("main", **info)[2] == Process(None)


def test_containers_and_sandboxes_are_asked_for_verbosely_each_by_its_method() -> None:
    method, request, _ = asked("main")
    assert (method, cri.ContainerStatusRequest.FromString(request)) == (
        "ContainerStatus",
        cri.ContainerStatusRequest(container_id=b"id-of-it", verbose=True),
    )
    method, request, process = asked("", info=json.dumps({"pid": 8, "runtimeSpec": {"annotations": HANDLER}}))
    assert (method, cri.PodSandboxStatusRequest.FromString(request)) == (
        "PodSandboxStatus",
        cri.PodSandboxStatusRequest(pod_sandbox_id=b"id-of-it", verbose=True),
    )
    assert process == Process(8, "", "kata")


@pytest.mark.parametrize("container", ["main", ""])
def test_answer_that_is_no_message_is_an_error(container: str) -> None:
    async def call(method: str, request: bytes, timeout_s: float) -> bytes:
        return b"\xff\xff\xff"

    with pytest.raises(CodecError, match="3 bytes are no"):
        asyncio.run(PodsRuntime(Link(call)).process_of(Running(SANDBOX, "x", container)))  # type: ignore[arg-type]


def test_log_of_a_container_is_told() -> None:
    async def call(method: str, request: bytes, timeout_s: float) -> bytes:
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(log_path=b"/l/\xff.log")).SerializeToString()

    process = asyncio.run(PodsRuntime(Link(call)).process_of(Running(SANDBOX, "c1", "main")))  # type: ignore[arg-type]
    assert process.log == "/l/\udcff.log"


def test_memory_is_given_back_after_a_large_list_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_runtime, "_READ_S", 0.0)
    trims: list[int] = []

    async def go(size: int) -> int:
        async def call(method: str, request: bytes, timeout_s: float) -> bytes:
            return cri.ListContainersResponse(containers=[cri.Container(id=b"x" * size)]).SerializeToString()

        await PodsRuntime(Link(call), lambda: trims.append(size)).containers()  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        return len(trims)

    assert [asyncio.run(go(size)) for size in (1000, 1 << 20)] == [0, 1]
