"""What runtimes say of a process in their verbose status, each in its own way."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.message import DecodeError

from criproxy.clients import runtime as pods_runtime
from criproxy.clients.runtime import PodsRuntime
from criproxy.fronts.cri import codec
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.codec import CodecError
from criproxy.model import PodRef, Sandbox
from criproxy.pods.runtime import ListedContainer, ListedSandbox, Process, Running


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

    assert [asyncio.run(go(size)) for size in (1000, 1 << 17)] == [0, 1]


SIZES = [0, 1, 100, codec._PIECE_BYTES - 3, codec._PIECE_BYTES, 3 * codec._PIECE_BYTES]


def sandboxes_of(count: int, size: int) -> list[cri.PodSandbox]:
    entries = [cri.StringEntry(key=b"app", value=b"x" * size), cri.StringEntry(key=b"team", value=b"\xff")]
    return [
        cri.PodSandbox(id=f"s{number}".encode(), labels=entries, annotations=entries[:1], created_at=number)
        for number in range(count)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_long_list_is_read_in_pieces_and_whole(count: int, size: int) -> None:
    items = sandboxes_of(count, size)
    data = cri.ListPodSandboxResponse(items=items).SerializeToString()

    assert [one.id for one in codec.listed_sandboxes(data)] == [f"s{number}" for number in range(count)]
    pieces = list(codec._pieces(data))
    assert b"".join(pieces) == data
    assert [item for piece in pieces for item in cri.ListPodSandboxResponse.FromString(piece).items] == items
    one = len(data) // max(1, count)
    assert max(map(len, pieces)) <= codec._PIECE_BYTES + one + 1, "a piece, and what its last item is more"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(b"\x12\x03abc", id="another-field"),
        pytest.param(b"\x10\x01", id="a-number"),
        pytest.param(b"\x8a\x00\x00", id="a-long-tag"),
        pytest.param(b"\x0a\x80\x80\x80\x80\x80\x00", id="a-long-length"),
    ],
)
def test_what_a_long_list_has_beside_its_items_is_protobufs_to_judge(other: bytes) -> None:
    half = cri.ListPodSandboxResponse(items=sandboxes_of(3, codec._PIECE_BYTES // 2)).SerializeToString()
    data = half + other + half
    try:
        whole = [item.id.decode() for item in cri.ListPodSandboxResponse.FromString(data).items]
    except DecodeError:
        with pytest.raises(CodecError):
            codec.listed_sandboxes(data)
    else:
        assert [one.id for one in codec.listed_sandboxes(data)] == whole


def test_long_list_that_is_cut_off_is_an_error() -> None:
    data = cri.ListPodSandboxResponse(items=sandboxes_of(5, codec._PIECE_BYTES // 2)).SerializeToString()
    for end in (len(data) - 1, len(data) - codec._PIECE_BYTES, codec._PIECE_BYTES + 1, codec._PIECE_BYTES + 2):
        with pytest.raises(CodecError):
            codec.listed_sandboxes(data[:end])


def test_what_a_new_list_says_again_is_not_held_twice() -> None:
    sandboxes = sandboxes_of(3, 10)
    containers = [cri.Container(id=f"c{number}".encode(), state=1) for number in range(3)]

    async def call(method: str, request: bytes, timeout_s: float) -> bytes:
        if method == "ListContainers":
            return cri.ListContainersResponse(containers=containers).SerializeToString()
        return cri.ListPodSandboxResponse(items=sandboxes).SerializeToString()

    async def go() -> None:
        runtime = PodsRuntime(Link(call))  # type: ignore[arg-type]
        first: list[ListedSandbox | ListedContainer] = [*await runtime.sandboxes(), *await runtime.containers()]
        sandboxes[1].state = 1
        containers[1].state = 2
        del sandboxes[2]
        again: list[ListedSandbox | ListedContainer] = [*await runtime.sandboxes(), *await runtime.containers()]

        by_id = {one.id: one for one in first}
        assert [one.id for one in again if one is by_id[one.id]] == ["s0", "c0", "c2"]
        assert [(one.id, one.running) for one in again if one is not by_id[one.id]] == [("s1", False), ("c1", False)]
        keys = {id(key) for one in first if isinstance(one, ListedSandbox) for key in one.labels if key == "app"}
        assert len(keys) == 1

    asyncio.run(go())


def test_notice_ends_in_its_time_and_the_runtime_kills_soon_after_it_and_not_before() -> None:
    """CRI-O holds the container's lock for StopContainer's own time, whether or not the call was cancelled."""
    asked: list[tuple[int, float]] = []

    async def call(method: str, request: bytes, timeout_s: float) -> bytes:
        asked.append((codec.decode(cri.StopContainerRequest, request).timeout, timeout_s))
        return b""

    asyncio.run(PodsRuntime(Link(call)).give_notice("c1", 30))  # type: ignore[arg-type]
    ((runtimes_s, ours_s),) = asked
    assert ours_s == 30
    assert 30 < runtimes_s <= 30 + 120
