"""The runtime's side of NRI, as bytes: what it sends to a plugin, and what it reads of the answers. Pure.

It is written from the protocol's documents, apart from what it tests: frames and chunks are packed here anew.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from criproxy.fronts.nri import messages as nri

OFFLINE, ONLINE = {"class": "offline"}, {"class": "online"}
KUBELET = "/kubepods/besteffort/pod1"
BOXED = "/offline/pod1"

PACKAGE = b"nri.pkg.api.v1alpha1"


def entries(texts: Mapping[str, str]) -> list[Any]:
    return [nri.TextEntry(key=key.encode(), value=value.encode()) for key, value in texts.items()]


def sandbox(
    id: str = "s1",
    labels: Mapping[str, str] = OFFLINE,
    parent: str = KUBELET,
    namespaces: tuple[str, ...] = ("network", "pid", "ipc", "mount"),
    **annotations: str,
) -> Any:
    return nri.NriPodSandbox(
        id=id.encode(),
        name=b"job",
        uid=b"1",
        namespace=b"batch",
        labels=entries(labels),
        annotations=entries(annotations),
        linux={"cgroup_parent": parent.encode(), "namespaces": [{"type": kind.encode()} for kind in namespaces]},
    )


def container(id: str = "c1", path: str = "", name: str = "main", **more: Any) -> Any:
    """`path`: where the runtime is about to make it; "": below kubelet's cgroup of the pod."""
    linux = {"cgroups_path": (path or f"{KUBELET}/{id}").encode(), **more.pop("linux", {})}
    return nri.NriContainer(id=id.encode(), pod_sandbox_id=b"s1", name=name.encode(), linux=linux, **more)


def event(pod: Any, its: Any = None) -> bytes:
    return nri.PodEvent(pod=pod, container=its).SerializeToString()


def call(stream: int, method: str, payload: bytes = b"", service: bytes = PACKAGE + b".Plugin") -> bytes:
    """As it comes over the socket, in one chunk."""
    request = nri.TtrpcRequest(service=service, method=method.encode(), payload=payload).SerializeToString()
    return chunk(1, struct.pack(">IIBB", len(request), stream, 1, 0) + request)


def registered(code: int = 0, message: str = "") -> bytes:
    status = nri.TtrpcStatus(code=code, message=message.encode()) if code else None
    answer = nri.TtrpcResponse(status=status).SerializeToString()
    return chunk(2, struct.pack(">IIBB", len(answer), 1, 2, 0) + answer)


def chunk(connection: int, data: bytes) -> bytes:
    return struct.pack(">II", connection, len(data)) + data


class Answer:
    """What the plugin has sent: an answer on `stream` of `connection`, or a request of its own."""

    def __init__(self, connection: int, stream: int, kind: int, data: bytes) -> None:
        self.connection, self.stream, self.kind, self.data = connection, stream, kind, data

    @property
    def response(self) -> Any:
        return read(nri.TtrpcResponse(), self.data)

    @property
    def created(self) -> Any:
        """What is to be otherwise of the container."""
        return read(nri.CreateContainerAnswer(), self.response.payload).adjust.linux


def answers(sent: bytes) -> Iterator[Answer]:
    """All of it, which must be whole."""
    while sent:
        connection, size = struct.unpack(">II", sent[:8])
        data, sent = sent[8 : 8 + size], sent[8 + size :]
        length, stream, kind, flags = struct.unpack(">IIBB", data[:10])
        assert (len(data), flags) == (10 + length, 0)
        yield Answer(connection, stream, kind, data[10:])


def read(message: Message, data: bytes) -> Any:
    message.ParseFromString(data)
    return message
