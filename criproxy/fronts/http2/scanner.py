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
    MAX_WINDOW,
    PADDED,
    PING,
    PING_BYTES,
    SETTINGS,
    WINDOW_UPDATE,
    WINDOW_UPDATE_BYTES,
    WITH_PRIORITY,
    BrokenError,
    Bytes,
    long,
    unpack_header,
    unpack_kind,
)

BLOCK_BYTES: Final = 16 * 1024 * 1024
"""The largest header block: as much as gRPC-Go takes (http_util.go, defaultServerMaxHeaderListSize)."""

_BLOCK_FRAMES: Final = 4096
"""The most frames of one header block: 16 KiB each are enough for the largest. A flood of empty ones ends here."""


_BLOCK_FLAGS: Final = END_HEADERS | PADDED | WITH_PRIORITY
_NOTHING: Final = memoryview(b"")

_PING: Final = PING_BYTES << 8 | PING
_CREDIT: Final = WINDOW_UPDATE_BYTES << 8 | WINDOW_UPDATE
"""As `unpack_kind` reads them."""


class Outgoing:
    """Bytes on their way to one peer, in order. A run is the part `start` to `end` of the piece that is being read."""

    __slots__ = ("_view", "end", "max_frame", "parts", "start")

    def __init__(self) -> None:
        self.parts: list[Bytes] = []
        """What is to be sent by now: not empty pieces, in order."""
        self.max_frame = FRAME_BYTES
        """The largest payload that the peer has announced to take."""
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

    def credit(self, increment: int) -> bool:
        """A WINDOW_UPDATE of the connection."""
        ...

    def frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> bool:
        """A frame of another type, of a size that its type allows."""
        ...


class Scanner:
    """Reads whole frames, shows each to the `handler`, and lets those that pass into the `outgoing`.

    A large DATA frame goes on in smaller ones, as it comes: gRPC's C core makes frames of 16 MB. A header block is one
    piece, however many frames it has. `greeted`: the first SETTINGS have come. With `pings_pass`, the handler is not
    shown PINGs; with `credits_pass`, no WINDOW_UPDATEs of the connection.
    """

    def __init__(
        self, outgoing: Outgoing, handler: Handler, *, pings_pass: bool = False, credits_pass: bool = False
    ) -> None:
        self._passing = {_PING: HEADER_BYTES + PING_BYTES} if pings_pass else {}
        """Of frames that pass unseen: their bytes, by what `unpack_kind` reads of them."""
        if credits_pass:
            self._passing[_CREDIT] = HEADER_BYTES + WINDOW_UPDATE_BYTES
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

    def show_pings(self) -> None:
        """From now on, the handler is shown PINGs."""
        self._passing.pop(_PING, None)

    def feed(self, chunk: Bytes) -> None:
        """Raises BrokenError."""
        data = self._joined(chunk) if self._rest or len(chunk) < HEADER_BYTES else bytes(chunk)
        if not data:
            return
        outgoing, handler, view = self._outgoing, self._handler, memoryview(data)
        outgoing.open(view)
        size, at = len(data), 0
        need = HEADER_BYTES
        orderly = self.greeted and not self._block_stream
        passing = self._passing if orderly else {}
        while size - at >= HEADER_BYTES:
            length, flags, stream = unpack_kind(data, at)
            if not stream and (whole := passing.get(length)) is not None and size - at >= whole:
                at += whole
                continue
            kind = length & 0xFF
            length >>= 8
            if length > outgoing.max_frame:
                raise BrokenError(f"a frame of {length} bytes, where {outgoing.max_frame} were announced")
            end = at + HEADER_BYTES + length
            if end > size:
                outgoing.end = at
                done, need = self._begun(view[at:], end - size)
                at += done
                break
            outgoing.end = at
            stream &= MAX_STREAM
            if orderly and kind == DATA and stream:
                passes = handler.data(flags, stream, view[at + HEADER_BYTES : end])
            elif orderly and kind == HEADERS and stream and flags & _BLOCK_FLAGS == END_HEADERS:
                passes = handler.block(stream, flags & END_STREAM != 0, data[at + HEADER_BYTES : end], view[at:end])
            elif orderly and kind == WINDOW_UPDATE and length == WINDOW_UPDATE_BYTES and not stream:
                passes = handler.credit(long(data, at + HEADER_BYTES) & MAX_WINDOW)
            else:
                passes = self._one(kind, flags, stream, view[at:end])
                orderly = self.greeted and not self._block_stream
                passing = self._passing if orderly else {}
            if not passes:
                outgoing.cut()
                outgoing.start = end
            at = end
        outgoing.end = at
        if at == size and not outgoing.start and not outgoing.parts:
            outgoing.parts.append(data)
            outgoing.start = at
        else:
            self._rest += view[at:]
            self._need = need
        outgoing.close()

    def _begun(self, raw: memoryview, missing: int) -> tuple[int, int]:
        """A frame that has not come as a whole: how much of `raw` is done with, and how much makes the next step.

        What has come of a large DATA frame goes on as a frame of its own; the missing bytes will be another.
        """
        _, _, kind, flags, stream = unpack_header(raw)
        size = len(raw)
        if kind != DATA or size + missing <= HEADER_BYTES + FRAME_BYTES or flags & PADDED:
            return 0, size + missing
        if size < HEADER_BYTES + FRAME_BYTES:
            return 0, HEADER_BYTES + FRAME_BYTES
        stream &= MAX_STREAM
        begins = flags & ~END_STREAM
        passes = self._one(DATA, begins, stream, raw)
        self._outgoing.cut()
        if passes:
            self._outgoing.send(frames.frame(DATA, begins, stream, raw[HEADER_BYTES:]))
        self._outgoing.start += size
        self._rest += frames.header(DATA, flags, stream, missing)
        return size, HEADER_BYTES + min(missing, FRAME_BYTES)

    def _joined(self, chunk: Bytes) -> bytes:
        """What was left and what came, copied once; empty when that is less than a frame, or than a piece of one."""
        if len(self._rest) + len(chunk) < self._need:
            self._rest += chunk
            return b""
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
        if kind in (DATA, HEADERS) and not (stream and self.greeted):
            raise BrokenError(f"{'HEADERS' if kind else 'DATA'} on the connection, or before SETTINGS")
        if kind == DATA:
            return self._handler.data(flags, stream, payload)
        if kind == HEADERS:
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
        if kind == WINDOW_UPDATE and not stream:
            return self._handler.credit(long(payload) & MAX_WINDOW)
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
