"""An NRI runtime as containerd is one: the bytes that it sends to a plugin, its end of a connection, and how it asks
all of its plugins.

Frames and chunks are packed here anew, apart from what is tested.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from criproxy.fronts.nri import messages as nri

OFFLINE, ONLINE = {"class": "offline"}, {"class": "online"}
KUBELET = "/kubepods/besteffort/pod1"
BOXED = "/offline/pod1"

PLUGIN, RUNTIME = 1, 2
"""The connections within the connection, by whom is called."""

PACKAGE = b"nri.pkg.api.v1alpha1"


def entries(texts: Mapping[str, str]) -> list[Any]:
    return [nri.TextEntry(key=key.encode(), value=value.encode()) for key, value in texts.items()]


def sandbox(
    id: str = "s1",
    *,
    labels: Mapping[str, str] = OFFLINE,
    parent: str = KUBELET,
    namespaces: tuple[str, ...] = ("network", "pid", "ipc", "mount"),
    annotations: Mapping[str, str] = {},
    name: str = "job",
    namespace: str = "batch",
) -> Any:
    return nri.NriPodSandbox(
        id=id.encode(),
        name=name.encode(),
        uid=b"1",
        namespace=namespace.encode(),
        labels=entries(labels),
        annotations=entries(annotations),
        linux={"cgroup_parent": parent.encode(), "namespaces": [{"type": kind.encode()} for kind in namespaces]},
    )


def container(id: str = "c1", path: str = "", name: str = "main", **more: Any) -> Any:
    """`path`: where the runtime is about to make it; "": below kubelet's cgroup of the pod."""
    linux = {"cgroups_path": (path or f"{KUBELET}/{id}").encode(), **more.pop("linux", {})}
    return nri.NriContainer(id=id.encode(), pod_sandbox_id=b"s1", name=name.encode(), linux=linux, **more)


def create(path: str = "", **pod: Any) -> bytes:
    """An event of a container's creation, with a field of another kind; `pod` as `sandbox` takes it."""
    its = container(path=path).SerializeToString() + b"\x70\x80\x80\x80\x80\x80\x80\x80\x80\x40"
    return event(sandbox(**pod), nri.NriContainer.FromString(its))


def event(pod: Any, its: Any = None) -> bytes:
    return nri.PodEvent(pod=pod, container=its).SerializeToString()


def frame(stream: int, method: str, payload: bytes = b"", service: bytes = PACKAGE + b".Plugin") -> bytes:
    """A call, which is no chunk yet."""
    asked = nri.TtrpcRequest(service=service, method=method.encode(), payload=payload, timeout_nano=2_000_000_000)
    request = asked.SerializeToString()
    return struct.pack(">IIBB", len(request), stream, 1, 0) + request


def call(stream: int, method: str, payload: bytes = b"", service: bytes = PACKAGE + b".Plugin") -> bytes:
    """As it comes over the socket, in one chunk."""
    return chunk(PLUGIN, frame(stream, method, payload, service))


def registered(code: int = 0, message: str = "") -> bytes:
    status = nri.TtrpcStatus(code=code, message=message.encode()) if code else None
    answer = nri.TtrpcResponse(status=status).SerializeToString()
    return chunk(RUNTIME, struct.pack(">IIBB", len(answer), 1, 2, 0) + answer)


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


# --- ends of a connection -------------------------------------------------------------------------------------------


class BlockingNri:
    """The runtime's end of a socket pair; the plugin has `plugins`. Raises TimeoutError when it does not answer."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self._socket, self.plugins = socket.socketpair()
        self._socket.settimeout(timeout_s)
        self._stream = -1

    def registration(self) -> bytes:
        """The frame by which the plugin registers, which is answered."""
        frame = self._frame(RUNTIME)
        answer = b"\0\0\0\0" + frame[4:8] + b"\x02\0"
        self._socket.sendall(chunk(RUNTIME, answer))
        return frame

    def ask(self, method: str, payload: bytes = b"") -> bytes:
        """The Response: b"" is an empty one."""
        self._stream += 2
        self._socket.sendall(call(self._stream, method, payload))
        frame = self._frame(PLUGIN)
        assert int.from_bytes(frame[4:8], "big") == self._stream
        assert frame[8] == 2
        return frame[10:]

    def closed(self, within_s: float = 30.0) -> float | None:
        """After how many seconds the plugin has hung up; None: it has not."""
        began = time.monotonic()
        self._socket.settimeout(within_s)
        try:
            came = self._socket.recv(1)
        except ConnectionResetError:  # with something of ours unread
            came = b""
        except TimeoutError:
            return None
        return None if came else time.monotonic() - began

    def close(self) -> None:
        self._socket.close()
        self.plugins.close()

    def _frame(self, connection: int) -> bytes:
        head = self._read(8)
        assert int.from_bytes(head[:4], "big") == connection
        return self._read(int.from_bytes(head[4:], "big"))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the plugin has hung up"
            data += more
        return data


class AsyncNri:
    """The runtime's end of one connection, in an event loop."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.end.setblocking(False)

    async def register(self, version: bytes = b"v0.12.3", *pods: Any, containers: Sequence[Any] = ()) -> None:
        """Take the registration, configure and synchronize."""
        assert (await self.answer()).connection == 2
        self.send(registered())
        asked = nri.ConfigureRequest(runtime_name=b"containerd", runtime_version=b"2.4", NRI_version=version)
        await self.ask(1, "Configure", asked.SerializeToString())
        await self.ask(3, "Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers).SerializeToString())

    def send(self, data: bytes) -> None:
        self.end.send(data)

    async def ask(self, stream: int, method: str, payload: bytes = b"") -> Answer:
        self.send(call(stream, method, payload))
        return await self.answer()

    async def answer(self) -> Answer:
        loop = asyncio.get_running_loop()
        (one,) = answers(await asyncio.wait_for(loop.sock_recv(self.end, 65536), 5))
        return one

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.end, 65536), 5) == b""


class AsyncPlugins:
    """The runtime's plugins in their order. One that is late is closed, and asked no more: what is made is made as if
    it had not been there. Source: containerd/nri, pkg/adaptation, createContainer, isFatalError, removeClosedPlugins.
    """

    def __init__(self, *plugins: AsyncNri) -> None:
        self.plugins = list(plugins)
        self._stream = 3

    async def run(self, pod: Any, late: Collection[AsyncNri] = ()) -> str:
        """Why the pod may not start; "": it does."""
        return (await self._asked("RunPodSandbox", pod, None, late))[1]

    async def create(self, pod: Any, its: Any, late: Collection[AsyncNri] = ()) -> tuple[Any, str]:
        """The container as it is made, and why it is not ("": it is)."""
        made, refusal = await self._asked("CreateContainer", pod, its, late)
        made.state = 3
        return made, refusal

    async def _asked(self, method: str, pod: Any, its: Any, late: Collection[AsyncNri]) -> tuple[Any, str]:
        made = nri.NriContainer()
        if its is not None:
            made.CopyFrom(its)
        for one in list(self.plugins):
            if one in late:
                one.end.close()
                self.plugins.remove(one)
                continue
            self._stream += 2
            answer = await one.ask(self._stream, method, event(pod, None if its is None else made))
            if answer.response.HasField("status"):
                return made, answer.response.status.message.decode()
            if method == "CreateContainer" and (path := answer.created.cgroups_path):
                made.linux.cgroups_path = path
        return made, ""
