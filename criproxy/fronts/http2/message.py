"""gRPC's length-prefixed messages: open one, and wrap one. Source: gRPC over HTTP/2."""

import struct
import zlib
from typing import Final

from criproxy.fronts.http2.codes import Code

PREFIX_BYTES: Final = 5
MESSAGE_BYTES: Final = 128 * 1024 * 1024
"""The largest message that is opened, packed or not. Runtimes take 16 MiB (containerd, cri-o)."""

NO_MESSAGE: Final = "no message, or only a part of one, in a unary call"

_PREFIX: Final = struct.Struct(">BL")

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}  # Source: zlib, inflateInit2


class MessageError(Exception):
    """A hooked call's message that must not pass unopened. `code` is a gRPC status code number."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def opened(data: bytes | bytearray, encoding: bytes, most_bytes: int | None = None) -> bytes:
    """The one message in `data`, unpacked as `grpc-encoding` says, to `most_bytes` (None: `MESSAGE_BYTES`).

    Raises MessageError.
    """
    flag, end = _first(data, 0)
    if len(data) > end:
        raise MessageError(Code.INTERNAL, "more than one message in a unary call")
    return _opened(flag, memoryview(data)[PREFIX_BYTES:], encoding, most_bytes or MESSAGE_BYTES)


def all_opened(data: bytes | bytearray, encoding: bytes, most_bytes: int | None = None) -> bytes:
    """The messages of a stream in `data`, one behind the other, of `most_bytes` together; else as `opened`."""
    most, found, at = most_bytes or MESSAGE_BYTES, bytearray(), 0
    while at < len(data):
        flag, end = _first(data, at)
        found += _opened(flag, memoryview(data)[at + PREFIX_BYTES : end], encoding, most)
        if error := too_large(len(found), most):
            raise error
        at = end
    return bytes(found)


def _first(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """The flag of the message that begins `at`, and where it ends. Raises MessageError: only a part of it is there."""
    if len(data) < at + PREFIX_BYTES:
        raise MessageError(Code.INTERNAL, NO_MESSAGE)
    flag, size = _PREFIX.unpack_from(data, at)
    if len(data) < at + PREFIX_BYTES + size:
        raise MessageError(Code.INTERNAL, NO_MESSAGE)
    return flag, at + PREFIX_BYTES + size


def _opened(flag: int, content: memoryview, encoding: bytes, most_bytes: int) -> bytes:
    if flag > 1:
        raise MessageError(Code.INTERNAL, f"a message with flags {flag}, but gRPC has only 0 and 1")
    message = bytes(content)
    return _unpacked(message, encoding, most_bytes) if flag else message


def wrapped(message: bytes) -> bytes:
    """The message as it goes on the wire, unpacked."""
    return _PREFIX.pack(0, len(message)) + message


def _unpacked(message: bytes, encoding: bytes, most_bytes: int) -> bytes:
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise MessageError(
            Code.UNIMPLEMENTED, f"grpc-encoding {encoding.decode('ascii', 'replace')!r} is not supported"
        )
    packed = zlib.decompressobj(bits)
    try:
        data = packed.decompress(message, most_bytes + 1)
    except zlib.error as error:
        raise MessageError(Code.INTERNAL, f"a message that is no {encoding.decode()}: {error}") from error
    if len(data) > most_bytes:
        raise MessageError(Code.RESOURCE_EXHAUSTED, f"a message of over {most_bytes} bytes, unpacked")
    if not packed.eof or packed.unused_data:
        raise MessageError(Code.INTERNAL, f"a message that does not end as its {encoding.decode()} does")
    return data


def too_large(size: int, most_bytes: int | None = None) -> MessageError | None:
    """The error of a message of `size` bytes or more; None while it may grow on."""
    most = most_bytes or MESSAGE_BYTES
    if size <= most + PREFIX_BYTES:
        return None
    return MessageError(Code.RESOURCE_EXHAUSTED, f"a message of over {most} bytes")
