"""What stands in a relay's place while the gRPC engine serves its client: bytes pass as they come."""

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import HEADER_BYTES, Bytes
from criproxy.fronts.relay.actions import Action, Close, ToClient, ToRuntime


class FallbackPipe:
    """As `core.Relay`, but without hooks and counts, to an HTTP/2 server of our own, which can send its client away.

    GOAWAY goes between two frames of the server's, and not amid a header block: so these are followed, and nothing else
    is. It names no call, so those under way end here; a client that is done with them closes. Source: RFC 9113, 6.8.
    """

    greeted = False

    def __init__(self) -> None:
        self._frame = bytearray()
        """What has come of the frame that is not whole yet."""
        self._between = False
        self._amid_block = False
        self._wanted = False
        self._announced = False

    def client_bytes(self, chunk: Bytes) -> list[Action]:
        return [ToRuntime(bytes(chunk))]

    def runtime_bytes(self, chunk: Bytes) -> list[Action]:
        data = bytes(chunk)
        gap = None if self._announced else self._followed(data)
        if not self._wanted or self._announced or gap is None:
            return [ToClient(data)]
        return [ToClient(data[:gap] + self._goaway() + data[gap:])]

    def drain(self) -> list[Action]:
        self._wanted = True
        return [ToClient(self._goaway())] if self._between and not self._announced else []

    def _nothing(self, *_: object) -> list[Action]:
        return []

    forward = refuse = end = _nothing

    def turn_away(self, message: str) -> None:
        pass

    def client_closed(self) -> list[Action]:
        return [Close("the client has closed")]

    def runtime_closed(self) -> list[Action]:
        return [Close("the runtime has closed")]

    def _goaway(self) -> bytes:
        self._announced = True
        return frames.goaway(frames.MAX_STREAM)

    def _followed(self, data: bytes) -> int | None:
        """Where the last place between two frames is; None: there is none in these bytes."""
        self._frame += data
        gap = None
        while len(self._frame) >= HEADER_BYTES:
            high, low, kind, flags, _ = frames.unpack_header(self._frame)
            size = HEADER_BYTES + (high << 8 | low)
            if len(self._frame) < size:
                break
            del self._frame[:size]
            if kind in (frames.HEADERS, frames.PUSH_PROMISE, frames.CONTINUATION):
                self._amid_block = not flags & frames.END_HEADERS
            self._announced |= kind == frames.GOAWAY  # a later one may name no more calls than this
            if not self._amid_block:
                gap = len(data) - len(self._frame)
        self._between = gap == len(data)
        return gap
