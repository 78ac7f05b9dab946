"""HTTP/2 frames as bytes: what the relay reads of them, and the few that it makes itself.

Source: RFC 9113, sections 4 and 6.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
PING_BYTES: Final = 8
WINDOW_UPDATE_BYTES: Final = 4
FRAME_BYTES: Final = 16_384
"""What a frame may carry whatever a peer's SETTINGS say; no frame that the relay makes is larger."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

NO_ERROR: Final = 0
CANCEL: Final = 8

MAX_STREAM: Final = 0x7FFFFFFF
MAX_WINDOW: Final = 0x7FFFFFFF
FIRST_WINDOW: Final = 65_535

Bytes = bytes | memoryview

_HEADER: Final = struct.Struct(">HBBBL")
_KIND: Final = struct.Struct(">LBL")
_SETTING: Final = struct.Struct(">HL")
_LONG: Final = struct.Struct(">L")
_LONGS: Final = struct.Struct(">LL")

unpack_header: Final = _HEADER.unpack_from
"""(length >> 8, length & 255, type, flags, stream with its reserved bit) of the frame at an offset."""

unpack_kind: Final = _KIND.unpack_from
"""(length << 8 | type, flags, stream with its reserved bit): one comparison tells a type of one length."""


class BrokenError(Exception):
    """A peer has sent what is no HTTP/2, or more than is good: its connection can't be followed any further."""


def header(kind: int, flags: int, stream: int, size: int) -> bytes:
    """The header of a frame whose payload has `size` bytes."""
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: Bytes = b"") -> bytes:
    return b"".join((header(kind, flags, stream, len(payload)), payload))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _LONG.pack(increment))


def rst_stream(stream: int, error: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _LONG.pack(error))


def goaway(last_stream: int, error: int = NO_ERROR, debug: Bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, _LONGS.pack(last_stream, error) + bytes(debug))


def header_frames(stream: int, block: bytes, *, end_stream: bool) -> bytes:
    """HEADERS, and CONTINUATION for what does not fit."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    first, *more, last = (block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES))
    amid = (frame(CONTINUATION, 0, stream, piece) for piece in more)
    return b"".join((frame(HEADERS, flags, stream, first), *amid, frame(CONTINUATION, END_HEADERS, stream, last)))


def long(payload: Bytes, at: int = 0) -> int:
    """The four bytes of an error code, or of a stream id or window increment with its reserved bit."""
    value: int = _LONG.unpack_from(payload, at)[0]
    return value


def settings(payload: Bytes) -> Iterator[tuple[int, int]]:
    """(identifier, value) of each setting of a SETTINGS frame whose size has been found possible."""
    return _SETTING.iter_unpack(payload)


def settings_payload(values: Iterable[tuple[int, int]]) -> bytes:
    """The inverse of `settings`."""
    return b"".join(_SETTING.pack(setting, value) for setting, value in values)


def unpadded(flags: int, payload: Bytes) -> Bytes:
    """A DATA frame's data, or a HEADERS frame's rest. Raises BrokenError when the padding is longer than the frame."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenError(f"padding fills a frame of {len(payload)} bytes")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(flags: int, payload: Bytes) -> Bytes:
    """A HEADERS frame's part of its block. Raises BrokenError when there is no room for what its flags promise."""
    fragment = unpadded(flags, payload)
    if not flags & WITH_PRIORITY:
        return fragment
    if len(fragment) < 5:
        raise BrokenError("HEADERS without room for its priority")
    return fragment[5:]


def error_in_size(kind: int, flags: int, stream: int, size: int) -> str:
    """What is wrong with a frame that is not as its type demands; "" when all is well, and for unknown types."""
    right = True
    match kind:
        case 2:
            right = size == 5 and stream != 0
        case 3:
            right = size == 4 and stream != 0
        case 4:
            right = stream == 0 and (size == 0 if flags & ACK else size % _SETTING.size == 0)
        case 5:
            return "PUSH_PROMISE, which gRPC does not have"
        case 6:
            right = size == PING_BYTES and stream == 0
        case 7:
            right = size >= 8 and stream == 0
        case 8:
            right = size == WINDOW_UPDATE_BYTES
        case 9:
            return "CONTINUATION without HEADERS"
    return "" if right else f"frame of type {kind} with {size} bytes on stream {stream}"
