"""HTTP/2 peers by hand, for what gRPC's own never do on demand: a runtime, and a client of one connection.

They are strict: what the other side may not send is an error (h2's), which `Peer.wrong` keeps.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from criproxy.fronts.http2 import frames
from tests.fakes.waiting import until
from tests.fronts.relay.peers import Headers, Tap, connection
from tests.fronts.relay.talk import prefixed

_E = TypeVar("_E", bound=h2.events.Event)


class Peer(asyncio.Protocol):
    """One end of a connection: notes what comes, and gives the window back for it. Says only what it is told to."""

    def __init__(self, *, client: bool) -> None:
        self.h2 = connection(client=client)
        self.tap = Tap()
        """Has the GOAWAYs that came."""
        self.events: list[h2.events.Event] = []
        self.wrong: list[h2.exceptions.ProtocolError] = []
        self.lost = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for piece in self.tap(data):
                for event in self.h2.receive_data(piece):
                    self.events.append(event)
                    if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        except h2.exceptions.ProtocolError as error:
            self.wrong.append(error)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def flush(self) -> None:
        self._transport.write(self.h2.data_to_send())

    def say(self, raw: bytes) -> None:
        """A frame that h2 would not make, or after which it would make no more (GOAWAY)."""
        self.flush()
        self._transport.write(raw)

    def hang(self) -> None:
        """Read nothing more, so that not even a PING is answered."""
        self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()

    def all(self, kind: type[_E]) -> list[_E]:
        return [event for event in self.events if isinstance(event, kind)]

    def data(self, stream: int) -> bytes:
        return b"".join(event.data for event in self.all(h2.events.DataReceived) if event.stream_id == stream)

    def ended(self, stream: int) -> bool:
        return any(event.stream_id == stream for event in self.all(h2.events.StreamEnded))

    # --- as a client -------------------------------------------------------------------------------------------------

    def call(self, path: str, message: bytes, *, packed: bool = False, more: Headers | None = None) -> int:
        """A unary call with `more` headers; `packed` is only said. Returns its stream."""
        stream: int = self.h2.get_next_available_stream_id()
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *(more or []),
        ]
        self.h2.send_headers(stream, headers)
        self.h2.send_data(stream, bytes((packed,)) + prefixed(message)[1:], end_stream=True)
        self.flush()
        return stream

    def open_windows(self) -> None:
        """Let the other side send without end."""
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW})
        self.h2.increment_flow_control_window(frames.MAX_WINDOW - frames.FIRST_WINDOW)
        self.flush()

    def status(self, stream: int) -> int | None:
        """The gRPC status with which a call of ours ended; None while there is none."""
        blocks: list[Any] = [*self.all(h2.events.ResponseReceived), *self.all(h2.events.TrailersReceived)]
        found: list[dict[bytes, bytes]] = [
            dict(map(tuple, event.headers)) for event in blocks if event.stream_id == stream
        ]
        return next((int(fields[b"grpc-status"]) for fields in found if b"grpc-status" in fields), None)

    # --- as a runtime ------------------------------------------------------------------------------------------------

    def asked(self) -> list[int]:
        """The calls whose requests have come in full, and were not reset."""
        reset = {event.stream_id for event in self.all(h2.events.StreamReset)}
        return [event.stream_id for event in self.all(h2.events.StreamEnded) if event.stream_id not in reset]

    def answer(self, stream: int, message: bytes) -> None:
        self.h2.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        self.h2.send_data(stream, prefixed(message))
        self.h2.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
        self.flush()

    def goaway(self, last: int, code: int = frames.NO_ERROR, why: bytes = b"") -> None:
        self.say(frames.goaway(last, code, why))


@dataclass
class HandmadeRuntime:
    """Accepts at `path`; `connections` in the order in which they came."""

    path: Path
    connections: list[Peer] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> "HandmadeRuntime":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.connections:
            peer.close()
        self.path.unlink()

    def _accept(self) -> Peer:
        self.connections.append(Peer(client=False))
        return self.connections[-1]

    async def got(self, calls: int, *, on: int = 0) -> Peer:
        """The connection of this number, once so many requests have come on it."""
        await until(lambda: len(self.connections) > on and len(self.connections[on].asked()) >= calls)
        return self.connections[on]


async def connect(path: Path) -> Peer:
    """A client."""
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_unix_connection(lambda: Peer(client=True), str(path))
    return peer
