"""Find the frames in one peer's bytes, and leave in one run all that pass as they came."""

from typing import Final, Protocol

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADER_BYTES,
    HEADERS,
    MAX_STREAM,
    PADDED,
    SETTINGS,
    WITH_PRIORITY,
    BrokenError,
    Bytes,
    unpack_header,
)

BLOCK_BYTES: Final = 16 * 1024 * 1024
"""The largest header block: as much as gRPC-Go takes (http_util.go, defaultServerMaxHeaderListSize)."""

_BLOCK_FRAMES: Final = 4096
"""The most frames of one header block: 16 KiB each are enough for the largest. A flood of empty ones ends here."""


_BLOCK_FLAGS: Final = END_HEADERS | PADDED | WITH_PRIORITY
_NOTHING: Final = memoryview(b"")


class Outgoing:
    """Bytes on their way to one peer, in order. A run is the part `start` to `end` of the piece that is being read."""

    __slots__ = ("_view", "end", "parts", "start")

    def __init__(self) -> None:
        self.parts: list[Bytes] = []
        """What is to be sent by now: not empty pieces, in order."""
        self._view = _NOTHING
        self.start = 0
        self.end = 0

    def open(self, view: memoryview) -> None:
        self._view = view
        self.start = self.end = 0

    def cut(self) -> None:
        """The run so far goes; what is sent next comes after it."""
        if self.end > self.start:
            self.parts.append(self._view[self.start : self.end])
            self.start = self.end

    def send(self, data: Bytes) -> None:
        self.cut()
        if data:
            self.parts.append(data)

    def close(self) -> None:
        self.cut()
        self._view = _NOTHING
        self.start = self.end = 0

    def take(self) -> Bytes:
        """All of `parts`, in one piece; it stays valid."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Handler(Protocol):
    """What becomes of each frame; True: it passes as it came. All raise BrokenError."""

    def data(self, flags: int, stream: int, payload: memoryview) -> bool: ...

    def block(self, stream: int, end_stream: bool, block: bytes, raw: Bytes) -> bool:
        """A whole header block, without padding and priority. `raw`: its frames."""
        ...

    def frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> bool:
        """A frame of another type, of a size that its type allows."""
        ...


class Scanner:
    """Reads whole frames, shows each to the `handler`, and lets those that pass into the `outgoing`.

    A large DATA frame goes on in smaller ones, as it comes: gRPC's C core makes frames of 16 MB. A header block is one
    piece, however many frames it has. `max_frame` is the largest payload that the reading peer has announced.
    `greeted`: the first SETTINGS have come.
    """

    def __init__(self, outgoing: Outgoing, handler: Handler) -> None:
        self.max_frame = FRAME_BYTES
        self._outgoing = outgoing
        self._handler = handler
        self._rest = bytearray()
        self._need = HEADER_BYTES
        self.greeted = False
        self._block: list[bytes] = []
        self._block_raw: list[bytes] = []
        self._block_bytes = 0
        self._block_stream = 0
        self._block_ends = False

    def feed(self, chunk: Bytes) -> None:
        """Raises BrokenError."""
        data = self._joined(chunk)
        if not data:
            return
        outgoing, view = self._outgoing, memoryview(data)
        data_frame, block = self._handler.data, self._handler.block
        outgoing.open(view)
        size, at = len(data), 0
        need = HEADER_BYTES
        while size - at >= HEADER_BYTES:
            high, low, kind, flags, stream = unpack_header(data, at)
            length = high << 8 | low
            if length > self.max_frame:
                raise BrokenError(f"a frame of {length} bytes, where {self.max_frame} were announced")
            end = at + HEADER_BYTES + length
            if end > size:
                need = end - at
                if kind == DATA and length > FRAME_BYTES and not flags & PADDED:
                    need = HEADER_BYTES + FRAME_BYTES
                    if size - at >= need:
                        outgoing.end = at
                        self._part(flags, stream & MAX_STREAM, view[at:], end - size)
                        outgoing.start = at = size
                        need = HEADER_BYTES + min(end - size, FRAME_BYTES)
                break
            outgoing.end = at
            stream &= MAX_STREAM
            usual = stream and self.greeted and not self._block_stream
            if usual and kind == DATA:
                passes = data_frame(flags, stream, view[at + HEADER_BYTES : end])
            elif usual and kind == HEADERS and flags & _BLOCK_FLAGS == END_HEADERS:
                passes = block(stream, flags & END_STREAM != 0, data[at + HEADER_BYTES : end], view[at:end])
            else:
                passes = self._one(kind, flags, stream, view[at:end])
            if not passes:
                outgoing.cut()
                outgoing.start = end
            at = end
        outgoing.end = at
        outgoing.close()
        self._rest += view[at:]
        if self._rest:
            self._need = need

    def _part(self, flags: int, stream: int, raw: memoryview, left: int) -> None:
        """What has come of a DATA frame, as a frame of its own; the `left` bytes of it will be another."""
        begins = flags & ~END_STREAM
        passes = self._one(DATA, begins, stream, raw)
        self._outgoing.cut()
        if passes:
            self._outgoing.send(frames.frame(DATA, begins, stream, raw[HEADER_BYTES:]))
        self._rest += frames.header(DATA, flags, stream, left)

    def _joined(self, chunk: Bytes) -> bytes:
        """What was left and what came, copied once; empty when that is less than a frame."""
        size = len(self._rest) + len(chunk)
        if size < self._need:
            self._rest += chunk
            return b""
        if not self._rest:
            return bytes(chunk)
        data = b"".join((self._rest, chunk))
        self._rest = bytearray()
        self._need = HEADER_BYTES
        return data

    def _one(self, kind: int, flags: int, stream: int, raw: memoryview) -> bool:
        """Any frame; `feed` itself looks at most of those that a call has."""
        payload = raw[HEADER_BYTES:]
        if self._block_stream:
            if kind != CONTINUATION or stream != self._block_stream:
                raise BrokenError(f"frame of type {kind} amid a header block")
            return self._more_block(flags, payload, raw)
        if kind == DATA:
            if not stream or not self.greeted:
                raise BrokenError("DATA on the connection, or before SETTINGS")
            return self._handler.data(flags, stream, payload)
        if kind == HEADERS:
            if not stream or not self.greeted:
                raise BrokenError("HEADERS on the connection, or before SETTINGS")
            fragment = frames.header_fragment(flags, payload)
            if flags & END_HEADERS:
                return self._handler.block(stream, bool(flags & END_STREAM), bytes(fragment), raw)
            self._block_stream, self._block_ends = stream, bool(flags & END_STREAM)
            return self._more_block(0, fragment, raw)
        if error := frames.error_in_size(kind, flags, stream, len(payload)):
            raise BrokenError(error)
        if not self.greeted:
            if kind != SETTINGS or flags:
                raise BrokenError("no SETTINGS at first")
            self.greeted = True
        return self._handler.frame(kind, flags, stream, payload)

    def _more_block(self, flags: int, fragment: Bytes, raw: Bytes) -> bool:
        """A part of a header block that has more than one frame: they are kept, and go on together."""
        self._block.append(bytes(fragment))
        self._block_raw.append(bytes(raw))
        self._block_bytes += len(raw)
        if self._block_bytes > BLOCK_BYTES or len(self._block) > _BLOCK_FRAMES:
            raise BrokenError(f"a header block of over {self._block_bytes} bytes in {len(self._block)} frames")
        if flags & END_HEADERS:
            stream, block, frames_raw = self._block_stream, b"".join(self._block), b"".join(self._block_raw)
            self._block, self._block_raw, self._block_bytes, self._block_stream = [], [], 0, 0
            if self._handler.block(stream, self._block_ends, block, frames_raw):
                self._outgoing.send(frames_raw)
        return False
