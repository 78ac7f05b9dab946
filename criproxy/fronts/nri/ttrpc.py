"""ttrpc's frames, of which NRI uses the simplest: a request, and the one response to it. Pure: bytes in, bytes out.

    4 bytes  length of what follows the head, at most 4 MiB
    4 bytes  number of the stream: odd, as the client chooses it, and the response has its request's
    1 byte   1: a request, 2: a response, 3: data of a stream
    1 byte   flags: 0 for what NRI uses

Source: containerd/ttrpc, PROTOCOL.md.
"""

import struct
from typing import Final

from msgspec import Struct

from criproxy.fronts.nri.mux import WireError

REQUEST: Final = 1
RESPONSE: Final = 2

MOST_BYTES: Final = 4 << 20

_HEADER: Final = struct.Struct(">IIBB")


class TtrpcFrame(Struct, frozen=True):
    """One frame, without its length."""

    stream: int
    kind: int
    data: bytes


def frame(stream: int, kind: int, data: bytes) -> bytes:
    """As it goes into the connection. `data` is at most `MOST_BYTES`."""
    return _HEADER.pack(len(data), stream, kind, 0) + data


class FrameReader:
    """Takes a connection's bytes apart, wherever they are cut."""

    def __init__(self) -> None:
        self._left = bytearray()

    @property
    def whole(self) -> bool:
        """Whether nothing is left of a frame that is not."""
        return not self._left

    def feed(self, data: bytes) -> list[TtrpcFrame]:
        """The frames that are whole by now. Raises WireError."""
        left, found, at = self._left, list[TtrpcFrame](), 0
        left += data
        while len(left) - at >= _HEADER.size:
            size, stream, kind, _ = _HEADER.unpack_from(left, at)
            if size > MOST_BYTES:
                raise WireError(f"a frame of {size} bytes, more than {MOST_BYTES}")
            begin = at + _HEADER.size
            if len(left) - begin < size:
                break
            found.append(TtrpcFrame(stream, kind, bytes(left[begin : begin + size])))
            at = begin + size
        del left[:at]
        return found
