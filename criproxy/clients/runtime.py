"""The port by which pods/ speaks with the runtime, over CRI.

The first process of a sandbox or container is in the verbose status, which is each runtime's own.
"""

from __future__ import annotations  # the messages in them are not imported yet

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from google.protobuf.message import Message

from criproxy.clients.http2.connection import CallError
from criproxy.clients.link import RuntimeLink
from criproxy.fronts.cri import codec
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.http2.codes import Code
from criproxy.pods.runtime import ListedContainer, ListedSandbox, Process, Running, UnknownError

_LARGE_BYTES: Final = 64 * 1024
_READ_S: Final = 2.0
"""Once a large list has been read, it leaves as much memory behind as it has bytes, or twice that: its messages were
small blocks. To give that back takes 0.1 to 0.3 ms.
"""

_LIST_TIMEOUT_S: Final = 30.0
_STATUS_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 120.0
_KILLED_AFTER_S: Final = 60
"""How long after its notice CRI-O kills a container whose notice was called off. It goes on with a StopContainer that
was cancelled, and its statistics and NRI wait for the container's lock until that has ended.
"""

_NODE: Final = 2
"""Source: CRI NamespaceMode."""

_LOOPBACK: Final = "127.0.0.1"

_HANDLER: Final = "io.kubernetes.cri-o.RuntimeHandler"
"""Source: CRI-O, pkg/annotations/internal.go."""


class _RuntimeSpec(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Info(msgspec.Struct):
    """Source: SandboxInfo and ContainerInfo in containerd's CRI plugin; CRI-O's sandbox_status.go."""

    pid: int | None = None
    runtimeType: str = ""
    runtimeSpec: _RuntimeSpec | None = None


class PodsRuntime(msgspec.Struct, eq=False):
    """A `pods.runtime.Runtime` over CRI. `trim` gives memory back to the kernel; called after a large list."""

    link: RuntimeLink
    trim: Callable[[], None] = lambda: None
    _sandboxes: dict[str, ListedSandbox] = {}
    """Those of the last list of all, as `_containers`: whoever has them keeps them, and a new list, each minute, does
    not hold all of it twice meanwhile.
    """
    _containers: dict[str, ListedContainer] = {}

    @property
    def ready(self) -> bool:
        return self.link.ready

    @property
    def pid(self) -> int:
        return self.link.pid

    async def sandboxes(self, sandbox_id: str = "") -> list[ListedSandbox]:
        request = cri.ListPodSandboxRequest(filter={"id": codec.wire(sandbox_id)} if sandbox_id else None)
        answer = await self._list("ListPodSandbox", "StreamPodSandboxes", request)
        found = codec.listed_sandboxes(answer, self._sandboxes)
        if not sandbox_id:
            self._sandboxes = {one.id: one for one in found}
        return found

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        request = cri.ListContainersRequest(filter={"id": codec.wire(container_id)} if container_id else None)
        answer = await self._list("ListContainers", "StreamContainers", request)
        found = codec.listed_containers(answer, self._containers)
        if not container_id:
            self._containers = {one.id: one for one in found}
        return found

    async def process_of(self, running: Running) -> Process:
        request: Message
        one = codec.wire(running.id)
        if running.container:
            method, request = "ContainerStatus", cri.ContainerStatusRequest(container_id=one, verbose=True)
        else:
            method, request = "PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=one, verbose=True)
        try:
            answer = await self._call(method, request, _STATUS_TIMEOUT_S)
        except CallError as error:
            if error.code == Code.NOT_FOUND:
                raise UnknownError(str(error)) from error
            raise
        if not running.container:
            return _process(codec.decode(cri.PodSandboxStatusResponse, answer).info)
        container = codec.decode(cri.ContainerStatusResponse, answer)
        return _process(container.info, codec.text(container.status.log_path))

    async def stop(self, sandbox_id: str) -> None:
        await self._call(
            "StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=codec.wire(sandbox_id)), _STOP_TIMEOUT_S
        )

    async def give_notice(self, container_id: str, notice_s: int) -> None:
        request = cri.StopContainerRequest(container_id=codec.wire(container_id), timeout=notice_s + _KILLED_AFTER_S)
        await self._call("StopContainer", request, notice_s)

    async def execute(self, container_id: str, command: Sequence[str], timeout_s: float) -> tuple[int, bytes]:
        """Run a command in a container; its exit status and what it printed. Raises CallError, or CodecError."""
        request = cri.ExecSyncRequest(
            container_id=codec.wire(container_id), cmd=map(codec.wire, command), timeout=math.ceil(timeout_s)
        )
        answer = await self._call("ExecSync", request, timeout_s)
        said = codec.decode(cri.ExecSyncResponse, answer)
        return said.exit_code, said.stdout

    async def answers(self, timeout_s: float) -> bool:
        """Whether it answers a call that waits for nothing. One that is frozen keeps its connections."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call("Version", cri.VersionRequest(), timeout_s)
        except TimeoutError:
            return False
        except CallError as error:
            return error.code not in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE)
        return True

    async def address(self, sandbox_id: str) -> str:
        """The pod's IP address; that of the loopback, for one on the host's network.

        Raises CallError, CodecError or ValueError: it has none.
        """
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=codec.wire(sandbox_id))
        answer = await self._call("PodSandboxStatus", request, _STATUS_TIMEOUT_S)
        status = codec.decode(cri.PodSandboxStatusResponse, answer).status
        if status.linux.namespaces.options.network == _NODE:
            return _LOOPBACK
        address = codec.text(status.network.ip)
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError, ValueError):
                socket.inet_pton(family, address)
                return address
        raise ValueError(f"the runtime tells no address of the pod ({address!r})")

    async def _list(self, method: str, by_stream: str, request: Message) -> bytes:
        """The list, as `method` answers with it.

        Runtimes send no message of more than 16 MiB. What they stream beyond it are messages of the same form, and
        messages of a list that follow each other are a message of it.
        Source: cri-api, StreamPodSandboxesRequest; protobuf.dev, encoding (Message Structure).
        """
        try:
            return await self._call(method, request, _LIST_TIMEOUT_S)
        except CallError as error:
            if error.code != Code.RESOURCE_EXHAUSTED:
                raise
            try:
                asked = request.SerializeToString()
                return self._trimmed(await self.link.call(by_stream, asked, _LIST_TIMEOUT_S, streamed=True))
            except CallError as unknown:
                if unknown.code != Code.UNIMPLEMENTED:
                    raise
                raise error from unknown

    async def _call(self, method: str, request: Message, timeout_s: float) -> bytes:
        return self._trimmed(await self.link.call(method, request.SerializeToString(), timeout_s))

    def _trimmed(self, answer: bytes) -> bytes:
        if len(answer) > _LARGE_BYTES:
            asyncio.get_running_loop().call_later(_READ_S, self.trim)
        return answer


def _process(info: Iterable[cri.StringEntry], log: str = "") -> Process:
    """What can't be read of the info is not known."""
    known = _Info()
    for entry in info:
        if entry.key == b"info":
            with contextlib.suppress(msgspec.DecodeError):
                known = msgspec.json.decode(entry.value, type=_Info)
    handler = known.runtimeSpec.annotations.get(_HANDLER, "") if known.runtimeSpec else ""
    return Process(known.pid, known.runtimeType, handler, log)
