"""Two connections in one: how the runtime and its plugin share a socket. Pure: bytes in, bytes out.

    4 bytes  number of the connection   1: the runtime calls the plugin; 2: the plugin calls the runtime
    4 bytes  length of what follows     both big endian
    ...      some bytes of that connection, which end anywhere

Source: containerd/nri, pkg/net/multiplex.
"""

import struct
from typing import Final

PLUGIN: Final = 1
RUNTIME: Final = 2

MOST_BYTES: Final = 10 + (4 << 20)
"""Of one chunk: the largest frame of ttrpc."""

_HEADER: Final = struct.Struct(">II")


class WireError(ValueError):
    """The runtime's bytes can't be followed: nothing after them makes sense."""


def chunk(connection: int, data: bytes) -> bytes:
    """As it goes over the socket. `data` is at most `MOST_BYTES`."""
    return _HEADER.pack(connection, len(data)) + data


class Demultiplexer:
    """Takes the socket's bytes apart, wherever they are cut."""

    def __init__(self) -> None:
        self._left = bytearray()

    @property
    def whole(self) -> bool:
        """Whether nothing is left of a chunk that is not."""
        return not self._left

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The chunks that are whole by now, each with its connection. Raises WireError."""
        left, found, at = self._left, list[tuple[int, bytes]](), 0
        left += data
        while len(left) - at >= _HEADER.size:
            connection, size = _HEADER.unpack_from(left, at)
            if size > MOST_BYTES:
                raise WireError(f"a chunk of {size} bytes for connection {connection}, more than {MOST_BYTES}")
            begin = at + _HEADER.size
            if len(left) - begin < size:
                break
            found.append((connection, bytes(left[begin : begin + size])))
            at = begin + size
        del left[:at]
        return found
