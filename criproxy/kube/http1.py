"""One HTTP/1.1 response, from bytes as they come: its head, then its body. Pure.

Source: RFC 9112, 6 (message body) and 7 (chunked).
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 4096
"""Of a chunk's size and its extensions, or of a trailer."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: .*)?")
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?")


class ResponseError(Exception):
    """What came is no HTTP/1.1 response, or not a whole one. It is the server's fault, or of whatever answers there."""


class Head(Struct, frozen=True):
    """Names of headers are in lower case; of several with one name, the last counts."""

    status: int
    headers: Mapping[str, str]


class ResponseReader:
    """Takes the bytes of one response to a GET, PATCH or POST. After an error it is of no more use.

    `head` is None until it has come. `done`: the response is whole, and whatever follows is not looked at.
    """

    def __init__(self) -> None:
        self.head: Head | None = None
        self.done = False
        self._held = b""
        self._read = self._read_head
        self._left = 0
        """Bytes of the body, or of the chunk, that are to come."""

    def feed(self, data: bytes) -> bytes:
        """The part of the body that is in `data`. Raises ResponseError."""
        self._held += data
        body = []
        while not self.done and (part := self._read()) is not None:
            body.append(part)
        return b"".join(body)

    def end(self) -> None:
        """The connection has ended. Raises ResponseError when the response has not."""
        if self.head is not None and self._read == self._read_until_end:
            self.done = True
        if not self.done:
            where = "in its head" if self.head is None else "in its body"
            raise ResponseError(f"the response ended {where}")

    # Each of these takes what it can of the buffer. None: more has to come.

    def _read_head(self) -> bytes | None:
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD_BYTES:
            raise ResponseError(f"its head has more than {MAX_HEAD_BYTES} bytes")
        if not self._held.startswith(b"HTTP/1."[: len(self._held)]):
            raise ResponseError(f"it begins with {self._held[:20]!r}, not with HTTP/1.1")
        if not found:
            return None
        self._held = rest
        head_read = _parsed(head)
        if head_read.status < 200:  # 100 Continue and the like: the response itself is to come
            return b""
        self.head = head_read
        self._begin_body(head_read)
        return b""

    def _begin_body(self, head: Head) -> None:
        length = head.headers.get("content-length")
        if head.status in (204, 304):
            self.done = True
        elif "transfer-encoding" in head.headers:
            if head.headers["transfer-encoding"].lower() != "chunked":
                raise ResponseError(f"its transfer-encoding {head.headers['transfer-encoding'][:40]!r} is not known")
            self._read = self._read_size
        elif length is None:
            self._read = self._read_until_end
        elif not (length.isascii() and length.isdigit() and len(length) < 16):
            raise ResponseError(f"its content-length is {length[:40]!r}")
        else:
            self._left = int(length)
            self.done = self._left == 0
            self._read = self._read_counted

    def _read_counted(self) -> bytes | None:
        part = self._take()
        self.done = self._left == 0
        return part

    def _read_until_end(self) -> bytes | None:
        part, self._held = self._held, b""
        return part or None

    def _read_size(self) -> bytes | None:
        line = self._line()
        if line is None:
            return None
        size = _SIZE.fullmatch(line)
        if size is None:
            raise ResponseError(f"a chunk's size is {line[:40]!r}")
        self._left = int(size[1], 16)
        self._read = self._read_chunk if self._left else self._read_trailer
        return b""

    def _read_chunk(self) -> bytes | None:
        part = self._take()
        if not self._left:
            self._read = self._read_chunks_end
        return part

    def _read_chunks_end(self) -> bytes | None:
        line = self._line()
        if line:
            raise ResponseError(f"a chunk is followed by {line[:40]!r}")
        if line is not None:
            self._read = self._read_size
        return line

    def _read_trailer(self) -> bytes | None:
        line = self._line()
        self.done = line == b""
        return None if line is None else b""

    def _take(self) -> bytes | None:
        part, self._held = self._held[: self._left], self._held[self._left :]
        self._left -= len(part)
        return part or None

    def _line(self) -> bytes | None:
        line, found, rest = self._held.partition(b"\r\n")
        if len(line) > MAX_LINE_BYTES:
            raise ResponseError(f"a line between its chunks has more than {MAX_LINE_BYTES} bytes")
        if not found:
            return None
        self._held = rest
        return line


def _parsed(head: bytes) -> Head:
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise ResponseError(f"its first line is {first[:60]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise ResponseError(f"{line[:60]!r} is no header")
        headers[name.strip().decode("latin-1").lower()] = value.strip().decode("latin-1")
    return Head(int(status[1]), headers)
