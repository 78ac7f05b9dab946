"""HTTP/2 on blocking sockets, without a gRPC library: as quick as kubelet and the runtime, so that the way is measured.

The peers send what gRPC in Go sends: indexed header blocks, kubelet's timeout, a PING and a WINDOW_UPDATE with the
first DATA that they get (its estimator of bandwidth and delay), WINDOW_UPDATEs as they read, and the ACKs of PINGs.
Between two Go peers, half of these go along with a call's own frames, and half alone: three writes per call, where two
would do. Windows are kept.

Source: grpc-go 1.33, internal/transport, bdp_estimator.go, flowcontrol.go and http2_client.go, handleData.
"""

import contextlib
import itertools
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from hpack import Decoder, Encoder

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    FRAME_BYTES,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_STREAM,
    MAX_WINDOW,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from criproxy.fronts.http2.message import opened, wrapped
from integration.lab.process import LabError

_READ_BYTES: Final = 256 * 1024
_UPDATE_BYTES: Final = 112 * 1024
"""How much gRPC in Go reads before it tells the other side, once its windows have grown to large answers."""

_ESTIMATE: Final = frames.frame(PING, 0, 0, bytes((2, 4, 16, 16, 9, 14, 7, 7)))
_OK, _UNIMPLEMENTED = "0", "12"
TIMEOUT: Final = "120000m"
"""Kubelet's two minutes, less a few microseconds: gRPC in Go rounds up to a unit in which they have eight digits.

Source: grpc-go, internal/grpcutil/encode_duration.go.
"""

Fields = Sequence[tuple[str, str]]
Answer = Callable[[str, bytes], bytes | None]
"""Of a path and a message, the answer's message; None: UNIMPLEMENTED."""


class _Peer:
    """One end of a connection: what gRPC answers by itself is answered, the other frames come out."""

    def __init__(self, connection: socket.socket, greeting: bytes) -> None:
        self._socket = connection
        self._data = bytearray()
        self._answers = bytearray()
        self._unread = 0
        self._unread_of: dict[int, int] = {}
        self._estimating = False
        window = struct.pack(">HL", INITIAL_WINDOW_SIZE, MAX_WINDOW)
        raised = frames.window_update(0, MAX_WINDOW - FIRST_WINDOW)
        connection.sendall(greeting + frames.frame(SETTINGS, 0, 0, window) + raised)

    def close(self) -> None:
        self._socket.close()

    def skip(self, size: int) -> None:
        while len(self._data) < size:
            self._read()
        del self._data[:size]

    def send(self, data: bytes) -> None:
        """Together with what is to be answered by now."""
        self._answers += data
        self._socket.sendall(self._answers)
        self._answers.clear()

    def flush(self) -> None:
        """Send what is to be answered by now."""
        if self._answers:
            self.send(b"")

    def receive_waiting(self) -> None:
        """What has come by now. Raises ConnectionError at the end of the connection."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._read(socket.MSG_DONTWAIT)

    def frame_bytes(self) -> int:
        """Of the next frame; 0: it has not come whole."""
        if len(self._data) < HEADER_BYTES:
            return 0
        high, low, *_ = frames.unpack_header(self._data)
        size: int = HEADER_BYTES + (high << 8 | low)
        return size if len(self._data) >= size else 0

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """(type, flags, stream, payload) of each. Raises ConnectionError at the end of the connection."""
        data = self._data
        while True:
            while end := self.frame_bytes():
                _, _, kind, flags, stream = frames.unpack_header(data)
                payload = bytes(data[HEADER_BYTES:end])
                del data[:end]
                if kind == DATA and payload:
                    self._count(stream & MAX_STREAM, len(payload))
                elif kind in (SETTINGS, PING) and not flags & ACK:
                    self._answers += frames.frame(kind, ACK, 0, payload if kind == PING else b"")
                elif kind == PING:
                    self._estimating = False
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    self._unread_of.pop(stream & MAX_STREAM, None)
                yield kind, flags, stream & MAX_STREAM, payload
            self.flush()
            self._read()

    def _count(self, stream: int, size: int) -> None:
        """So much DATA has come."""
        self._unread += size
        if not self._estimating or self._unread >= _UPDATE_BYTES:
            self._answers += frames.window_update(0, self._unread)
            self._unread = 0
        if not self._estimating:
            self._answers += _ESTIMATE
            self._estimating = True
        unread = self._unread_of.get(stream, 0) + size
        if unread >= _UPDATE_BYTES:
            self._answers += frames.window_update(stream, unread)
            unread = 0
        self._unread_of[stream] = unread

    def _read(self, flags: int = 0) -> None:
        if not (received := self._socket.recv(_READ_BYTES, flags)):
            raise ConnectionResetError("the peer has closed")
        self._data += received


class Client:
    """One connection; `requests` are made before they are needed, and sent in that order."""

    def __init__(self, path: Path) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        self._peer = _Peer(connection, PREFACE)
        self._frames = self._peer.frames()
        self._encoder, self._decoder = Encoder(), Decoder()
        self._streams = itertools.count(1, 2)
        self._alone = itertools.cycle((True, False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close()

    def requests(self, method: str, messages: Iterable[bytes]) -> list[bytes]:
        """The bytes of calls of a path."""
        return [self._request(method, message, next(self._streams)) for message in messages]

    def _request(self, method: str, message: bytes, stream: int) -> bytes:
        block = self._encoder.encode(
            (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method),
                (":authority", "localhost"),
                ("content-type", "application/grpc"),
                ("user-agent", "benchmark"),
                ("te", "trailers"),
                ("grpc-timeout", TIMEOUT),
            )
        )
        data = frames.frame(DATA, END_STREAM, stream, wrapped(message))
        return frames.header_frames(stream, block, end_stream=False) + data

    def call(self, request: bytes) -> list[bytes]:
        """Send it, and read its answer to the end; returns the answer's header blocks, for `check`."""
        self.send(request)
        return self.answers(1)

    def send(self, requests: bytes) -> None:
        """Of several calls, one behind the other, at once."""
        self._peer.send(requests)

    def answer_pings(self) -> None:
        """Those that came while no call was open: gRPC closes a connection that leaves one unanswered for a minute."""
        self._peer.receive_waiting()
        while self._peer.frame_bytes():
            next(self._frames)
        self._peer.flush()

    def answers(self, count: int) -> list[bytes]:
        """Read so many answers to their ends; returns their header blocks, as they came."""
        blocks = []
        for kind, flags, _, payload in self._frames:
            if kind == HEADERS:
                blocks.append(payload)
            elif kind in (RST_STREAM, GOAWAY):
                raise LabError(f"a frame of type {kind} in the place of an answer")
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                count -= 1
                if not count:
                    break
        return blocks

    def check(self, blocks: Sequence[bytes]) -> None:
        """All blocks, in order, and go on with what they have brought. Raises LabError for an answer that is not OK."""
        if next(self._alone):
            self._peer.flush()
        for block in blocks:
            fields = dict(self._decoder.decode(block, raw=True))
            if fields.get(b"grpc-status", _OK.encode()) != _OK.encode():
                raise LabError(f"the call failed: {fields}")


class _Served:
    """A connection of the runtime's."""

    def __init__(self, connection: socket.socket, answer: Answer) -> None:
        self._peer = _Peer(connection, b"")
        self._answer = answer
        self._encoder, self._decoder = Encoder(), Decoder()
        self._window, self._first_window = FIRST_WINDOW, FIRST_WINDOW
        self._windows: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self._messages: dict[int, bytearray] = {}
        self._outgoing: dict[int, memoryview] = {}

    def serve(self) -> None:
        """Until the client goes: raises ConnectionError then."""
        self._peer.skip(len(PREFACE))
        for kind, flags, stream, payload in self._peer.frames():
            match kind:
                case frames.HEADERS:
                    fragment = bytes(frames.header_fragment(flags, payload))
                    self._paths[stream] = dict(self._decoder.decode(fragment, raw=True))[b":path"].decode()
                    self._messages[stream] = bytearray()
                    self._windows[stream] = self._first_window
                case frames.DATA if stream in self._paths:
                    self._messages[stream] += frames.unpadded(flags, payload)
                case frames.RST_STREAM:
                    self._forget(stream)
                case frames.SETTINGS if not flags & ACK:
                    self._settings(payload)
                case frames.WINDOW_UPDATE:
                    self._credit(stream, frames.long(payload) & MAX_WINDOW)
            if kind in (HEADERS, DATA) and flags & END_STREAM and stream in self._paths:
                self._begin(stream)
            elif kind in (SETTINGS, WINDOW_UPDATE) and self._outgoing:
                self._peer.send(b"".join(self._sendable()))

    def _settings(self, payload: bytes) -> None:
        for setting, value in frames.settings(payload):
            if setting == INITIAL_WINDOW_SIZE:
                by, self._first_window = value - self._first_window, value
                self._windows = {stream: window + by for stream, window in self._windows.items()}

    def _credit(self, stream: int, size: int) -> None:
        if not stream:
            self._window += size
        elif stream in self._windows:
            self._windows[stream] += size

    def _begin(self, stream: int) -> None:
        message = self._answer(self._paths[stream], opened(self._messages[stream], b""))
        head = [(":status", "200"), ("content-type", "application/grpc")]
        if message is None:
            self._forget(stream)
            self._peer.send(self._headers(stream, [*head, ("grpc-status", _UNIMPLEMENTED)], ends=True))
            return
        self._outgoing[stream] = memoryview(wrapped(message))
        self._peer.send(self._headers(stream, head, ends=False) + b"".join(self._sendable()))

    def _headers(self, stream: int, fields: Fields, *, ends: bool) -> bytes:
        block = self._encoder.encode(fields)
        return frames.frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, block)

    def _sendable(self) -> Iterator[bytes]:
        """What the windows allow of all answers, with the trailers of those that end."""
        for stream, message in list(self._outgoing.items()):
            at = 0
            while (size := min(len(message) - at, self._windows[stream], self._window, FRAME_BYTES)) > 0:
                yield frames.frame(DATA, 0, stream, message[at : at + size])
                at += size
                self._windows[stream] -= size
                self._window -= size
            if at < len(message):
                self._outgoing[stream] = message[at:]
            else:
                self._forget(stream)
                yield self._headers(stream, [("grpc-status", _OK), ("grpc-message", "")], ends=True)

    def _forget(self, stream: int) -> None:
        for of in (self._paths, self._messages, self._windows, self._outgoing):
            of.pop(stream, None)


def serve(connection: socket.socket, answer: Answer) -> None:
    """Answer the calls of one client until it goes."""
    with connection:
        try:
            _Served(connection, answer).serve()
        except ConnectionError:
            return
