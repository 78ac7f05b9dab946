"""A relay that looks at nothing: for the day that something is wrong with the one that does."""

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import HEADER_BYTES, Bytes
from criproxy.fronts.relay.actions import Action, Close, ToClient, ToRuntime


class BlindRelay:
    """As `core.Relay`, but bytes pass as they come: no hooks, no counts, and no end but the peers'."""

    greeted = False

    def client_bytes(self, chunk: Bytes) -> list[Action]:
        return [ToRuntime(bytes(chunk))]

    def runtime_bytes(self, chunk: Bytes) -> list[Action]:
        return [ToClient(bytes(chunk))]

    def drain(self) -> list[Action]:
        return []

    def _nothing(self, *_: object) -> list[Action]:
        return []

    forward = refuse = end = _nothing

    def turn_away(self, message: str) -> None:
        pass

    def client_closed(self) -> list[Action]:
        return [Close("the client has closed")]

    def runtime_closed(self) -> list[Action]:
        return [Close("the runtime has closed")]


class FallbackPipe(BlindRelay):
    """A blind relay to an HTTP/2 server of our own, whose client can be asked to go.

    GOAWAY goes between two frames of the server's, and not amid a header block: so these are followed, and nothing else
    is. It names no call, so those under way end here; a client that is done with them closes. Source: RFC 9113, 6.8.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self._between = False
        self._amid_block = False
        self._wanted = False
        self._announced = False

    def runtime_bytes(self, chunk: Bytes) -> list[Action]:
        data = bytes(chunk)
        if self._announced:
            return [ToClient(data)]
        gap = self._followed(data)
        if not self._wanted or self._announced or gap is None:
            return [ToClient(data)]
        return [ToClient(data[:gap] + self._goaway() + data[gap:])]

    def drain(self) -> list[Action]:
        self._wanted = True
        return [ToClient(self._goaway())] if self._between and not self._announced else []

    def _goaway(self) -> bytes:
        self._announced = True
        return frames.goaway(frames.MAX_STREAM)

    def _followed(self, data: bytes) -> int | None:
        """Where the last place between two frames is; None: there is none in these bytes."""
        at, gap = 0, None
        while at < len(data):
            self._between = False
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(HEADER_BYTES - len(self._header), len(data) - at)
                self._header += data[at : at + step]
                if len(self._header) == HEADER_BYTES:
                    self._begin_frame()
            at += step
            if not self._left and not self._header and not self._amid_block:
                self._between, gap = True, at
        return gap

    def _begin_frame(self) -> None:
        high, low, kind, flags, _ = frames.unpack_header(self._header)
        self._header.clear()
        self._left = high << 8 | low
        if kind in (frames.HEADERS, frames.PUSH_PROMISE, frames.CONTINUATION):
            self._amid_block = not flags & frames.END_HEADERS
        self._announced |= kind == frames.GOAWAY  # a later one may name no more calls than this
