"""Peers of the relay's core that say just what a test has them say."""

from collections.abc import Iterable
from typing import TypeVar

from hpack import Decoder, Encoder

from criproxy.fronts.http2 import frames
from criproxy.fronts.relay.actions import Action, ToClient, ToRuntime
from criproxy.fronts.relay.core import Relay
from tests.fronts.relay.peers import split

HOOKED = "/test.Hooked/Call"
PASSING = "/test.Passing/Call"
SETTINGS = frames.frame(frames.SETTINGS, 0, 0)
SETTINGS_ACK = frames.frame(frames.SETTINGS, frames.ACK, 0)

_A = TypeVar("_A", bound=Action)


def setting(identifier: int, value: int) -> bytes:
    return frames.frame(frames.SETTINGS, 0, 0, identifier.to_bytes(2) + value.to_bytes(4))


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4) + message


class Talk:
    """A relay between a client and a runtime, greeted on both sides; what it sent is in `client` and `runtime`."""

    def __init__(self, *, greet: bool = True) -> None:
        self.relay = Relay(lambda path: path == HOOKED)
        self.client = bytearray()
        self.runtime = bytearray()
        self.actions: list[Action] = []
        self._client_encoder, self._runtime_encoder = Encoder(), Encoder()
        self._decoder = Decoder()
        if greet:
            self.from_client(frames.PREFACE + SETTINGS)
            self.from_runtime(SETTINGS)
            self.clear()

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case ToClient(data):
                    self.client += data
                case ToRuntime(data):
                    self.runtime += data
                case _:
                    self.actions.append(action)

    def from_client(self, data: bytes) -> None:
        self.do(self.relay.client_bytes(data))

    def from_runtime(self, data: bytes) -> None:
        self.do(self.relay.runtime_bytes(data))

    def clear(self) -> None:
        self.client.clear()
        self.runtime.clear()
        self.actions.clear()

    def all(self, kind: type[_A]) -> list[_A]:
        return [action for action in self.actions if isinstance(action, kind)]

    def request_headers(self, stream: int, path: str, *extra: tuple[str, str], flags: int = 0) -> bytes:
        fields = [(":method", "POST"), (":path", path), *extra]
        return frames.frame(frames.HEADERS, frames.END_HEADERS | flags, stream, self._client_encoder.encode(fields))

    def request(self, stream: int, path: str, message: bytes = b"") -> bytes:
        data = frames.frame(frames.DATA, frames.END_STREAM, stream, prefixed(message))
        return self.request_headers(stream, path) + data

    def answer_headers(self, stream: int, *extra: tuple[str, str]) -> bytes:
        block = self._runtime_encoder.encode([(":status", "200"), *extra])
        return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)

    def trailers(self, stream: int, status: int, *extra: tuple[str, str]) -> bytes:
        block = self._runtime_encoder.encode([("grpc-status", str(status)), *extra])
        return frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block)

    def answer(self, stream: int, message: bytes = b"", *extra: tuple[str, str]) -> bytes:
        data = frames.frame(frames.DATA, 0, stream, prefixed(message))
        return self.answer_headers(stream) + data + self.trailers(stream, 0, *extra)

    def client_sees(self) -> list[tuple[int, int, object]]:
        """(type, stream, payload) of the frames sent to the client; of header blocks, what a client makes of them."""
        out: list[tuple[int, int, object]] = []
        for raw in split(self.client):
            kind, stream = raw[3], int.from_bytes(raw[5:9])
            out.append((kind, stream, dict(self._decoder.decode(raw[9:])) if kind == frames.HEADERS else raw[9:]))
        return out

    def runtime_sees(self) -> list[tuple[int, int, bytes]]:
        return [(raw[3], int.from_bytes(raw[5:9]), raw[9:]) for raw in split(self.runtime)]
