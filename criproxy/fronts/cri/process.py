"""Asks the runtime for the first process of a sandbox or container: the verbose status, which is each runtime's own."""

from __future__ import annotations  # the messages in them are not imported yet

import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.codec import CodecError
from criproxy.pods.inventory import Query, Running

_HANDLER: Final = "io.kubernetes.cri-o.RuntimeHandler"
"""Source: CRI-O, pkg/annotations/internal.go."""


class Process(Struct, frozen=True):
    """`pid`: None when the runtime does not tell it (CRI-O of a sandbox that needs no process), 0 when nothing runs.

    `runtime_type` (`io.containerd.runc.v2`; containerd alone tells it) and `handler` (the RuntimeClass handler; CRI-O
    alone tells it, of sandboxes): "" when not told. `log`: the file with a container's output, "": none is told.
    """

    pid: int | None
    runtime_type: str = ""
    handler: str = ""
    log: str = ""


class _Spec(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Info(msgspec.Struct):
    """Source: SandboxInfo and ContainerInfo in containerd's CRI plugin; CRI-O's sandbox_status.go."""

    pid: int | None = None
    runtimeType: str = ""
    runtimeSpec: _Spec | None = None


async def process_of(query: Query, running: Running) -> Process:
    """Raises what `query` raises, and CodecError."""
    method = "ContainerStatus" if running.container else "PodSandboxStatus"
    request = (
        cri.ContainerStatusRequest(container_id=_wire(running.id), verbose=True)
        if running.container
        else cri.PodSandboxStatusRequest(pod_sandbox_id=_wire(running.id), verbose=True)
    )
    answer = await query(method, request.SerializeToString())
    try:
        if not running.container:
            return _process(cri.PodSandboxStatusResponse.FromString(answer).info)
        container = cri.ContainerStatusResponse.FromString(answer)
        return _process(container.info, container.status.log_path.decode("utf-8", "surrogateescape"))
    except DecodeError as error:
        raise CodecError(f"{len(answer)} bytes are no answer to {method}: {error}") from error


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
