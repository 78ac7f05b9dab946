"""An NRI runtime as containerd is one, with one plugin on one socket: it has an encoder of its own."""

import socket
import time
from collections.abc import Mapping

API = "nri.pkg.api.v1alpha1"
PLUGIN, RUNTIME = 1, 2


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def message(*fields: tuple[int, object]) -> bytes:
    """By number: an int, a str, bytes or a map of str."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number * 8) + varint(value)
        elif isinstance(value, Mapping):
            out += message(*((number, message((1, key), (2, one))) for key, one in value.items()))
        else:
            encoded = value.encode() if isinstance(value, str) else value
            assert isinstance(encoded, bytes)
            out += varint(number * 8 + 2) + varint(len(encoded)) + encoded
    return out


def create(
    *,
    name: str = "job",
    namespace: str = "batch",
    labels: Mapping[str, str] = {},
    annotations: Mapping[str, str] = {},
    path: str = "/kubepods/besteffort/podu1/c1",
) -> bytes:
    """A CreateContainerRequest."""
    pod = message((1, "s1"), (2, name), (3, "u1"), (4, namespace), (5, labels), (6, annotations))
    linux = message((3, message((1, b""))), (4, message((1, 985))), (5, path))
    container = message(
        (1, "c1"),
        (2, "s1"),
        (3, "main"),
        (6, {"io.kubernetes.container.hash": "1"}),
        (7, "sleep"),
        (11, linux),
        (14, 1 << 62),
    )
    return message((1, pod), (2, container))


def chunk(connection: int, data: bytes) -> bytes:
    return connection.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


def call(stream: int, method: str, payload: bytes = b"") -> bytes:
    """A frame of ttrpc, which is no chunk yet."""
    request = message((1, f"{API}.Plugin"), (2, method), (3, payload), (4, 2_000_000_000))
    return len(request).to_bytes(4, "big") + stream.to_bytes(4, "big") + b"\x01\0" + request


class FakeNri:
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
        self._socket.sendall(chunk(PLUGIN, call(self._stream, method, payload)))
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
