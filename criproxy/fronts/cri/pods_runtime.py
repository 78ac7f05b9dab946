"""The port by which pods/ speaks with the runtime, over CRI.

The first process of a sandbox or container is in the verbose status, which is each runtime's own.
"""

from __future__ import annotations  # the messages in them are not imported yet

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from criproxy.fronts.cri import codec
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.codec import CodecError
from criproxy.fronts.http2.client.connection import CallError
from criproxy.pods.runtime import ListedContainer, ListedSandbox, Process, Running, UnknownError

Query = Callable[[str, bytes, float], Awaitable[bytes]]
"""Calls a RuntimeService method of the runtime, bytes in and out, within so many s.

Raises ConnectionError when it gives no answer, CallError when that is an error.
"""

_LIST_TIMEOUT_S: Final = 30.0
_STATUS_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 120.0

_NOT_FOUND: Final = 5

_HANDLER: Final = "io.kubernetes.cri-o.RuntimeHandler"
"""Source: CRI-O, pkg/annotations/internal.go."""


class _Spec(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Info(msgspec.Struct):
    """Source: SandboxInfo and ContainerInfo in containerd's CRI plugin; CRI-O's sandbox_status.go."""

    pid: int | None = None
    runtimeType: str = ""
    runtimeSpec: _Spec | None = None


class PodsRuntime:
    """A `pods.runtime.Runtime` over CRI. `query` as `Query` says."""

    def __init__(self, query: Query) -> None:
        self._query: Final = query

    async def sandboxes(self, sandbox_id: str = "") -> list[ListedSandbox]:
        answer = await self._query("ListPodSandbox", codec.list_sandboxes(sandbox_id), _LIST_TIMEOUT_S)
        return codec.listed_sandboxes(answer)

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        answer = await self._query("ListContainers", codec.list_containers(container_id), _LIST_TIMEOUT_S)
        return codec.listed_containers(answer)

    async def process_of(self, running: Running) -> Process:
        method = "ContainerStatus" if running.container else "PodSandboxStatus"
        request = (
            cri.ContainerStatusRequest(container_id=_wire(running.id), verbose=True)
            if running.container
            else cri.PodSandboxStatusRequest(pod_sandbox_id=_wire(running.id), verbose=True)
        )
        try:
            answer = await self._query(method, request.SerializeToString(), _STATUS_TIMEOUT_S)
        except CallError as error:
            if error.code == _NOT_FOUND:
                raise UnknownError(str(error)) from error
            raise
        try:
            if not running.container:
                return _process(cri.PodSandboxStatusResponse.FromString(answer).info)
            container = cri.ContainerStatusResponse.FromString(answer)
            return _process(container.info, container.status.log_path.decode("utf-8", "surrogateescape"))
        except DecodeError as error:
            raise CodecError(f"{len(answer)} bytes are no answer to {method}: {error}") from error

    async def stop(self, sandbox_id: str) -> None:
        await self._query("StopPodSandbox", codec.stop_sandbox(sandbox_id), _STOP_TIMEOUT_S)


def _process(info: Iterable[cri.StringEntry], log: str = "") -> Process:
    """What can't be read of the info is not told."""
    told = _Info()
    for entry in info:
        if entry.key == b"info":
            with contextlib.suppress(msgspec.DecodeError):
                told = msgspec.json.decode(entry.value, type=_Info)
    handler = told.runtimeSpec.annotations.get(_HANDLER, "") if told.runtimeSpec else ""
    return Process(told.pid, told.runtimeType, handler, log)


def _wire(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
