"""Header blocks: follow each peer's HPACK context, and write blocks that touch none.

Source: RFC 7541; gRPC over HTTP/2.
"""

from collections import deque
from collections.abc import Iterable
from functools import cached_property
from typing import Final
from urllib.parse import quote

from hpack.exceptions import HPACKDecodingError
from hpack.hpack import encode_integer
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from msgspec import Struct

from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import BrokenError
from criproxy.fronts.http2.scanner import BLOCK_BYTES

TABLE_BYTES: Final = 1024 * 1024
"""The largest dynamic table that is kept, whatever is announced; gRPC's peers use 4 KiB."""

_FIRST_TABLE: Final = 4096
_ENTRY: Final = 32
_STATIC: Final = HeaderTable.STATIC_TABLE
_LAST_STATIC: Final = 0x80 + len(_STATIC)
_STATIC_LARGEST: Final = 64
_MEMO: Final = 256
_MEMO_BYTES: Final = 1024
"""Longer ones are texts of errors, which do not repeat."""
_INTEGER_BYTES: Final = 5

NO_TABLE: Final = b"\x20"
"""The update that empties the dynamic table, and keeps it so. It goes at the start of a block."""

_STATUS_200: Final = b"\x88"  # RFC 7541, appendix A: entry 8
_UNRESERVED: Final = "".join(chr(c) for c in range(0x20, 0x7F) if c != 0x25)  # gRPC: grpc-message

Field = tuple[bytes, bytes]


class Block(Struct, frozen=True, dict=True):
    """A decoded header block. `changes`: it has changed the peers' table, so its place among the blocks is fixed."""

    fields: list[Field]
    changes: bool

    @cached_property
    def path(self) -> str:
        """Of a request, the method that it calls."""
        return self.get(b":path").decode("utf-8", "replace")

    @cached_property
    def status(self) -> int:
        """Of trailers, the gRPC status code; UNKNOWN when there is none."""
        try:
            return int(self.get(b"grpc-status"))
        except ValueError:
            return Code.UNKNOWN

    def get(self, name: bytes) -> bytes:
        """The first value of the field; b"" when there is none."""
        for key, value in self.fields:
            if key == name:
                return value
        return b""


class BlockReader:
    """The decoder of one peer's header blocks, which must be shown all of them, in order.

    Most blocks repeat, kubelet's requests too: those that change no table are decoded once. hpack's own decoder knows
    neither that nor whether a block has changed the table, and takes twice the time.
    """

    def __init__(self) -> None:
        self._table: deque[Field] = deque()
        self._size = 0
        self._limit = self._allowed = _FIRST_TABLE
        self._memo: dict[bytes, Block] = {}

    def allow_table(self, size: int) -> bool:
        """The reading peer has announced SETTINGS_HEADER_TABLE_SIZE; returns whether it is less than before.

        Then the writing peer says so too, in its next block.
        """
        before = self._allowed
        self._allowed = max(before, min(size, TABLE_BYTES))
        return size < before

    def read(self, block: bytes) -> Block:
        """Raises BrokenError for what is no header block, or too large a one."""
        known = self._memo.get(block)
        if known is not None:
            return known
        try:
            read = self._decoded(block)
        except (HPACKDecodingError, IndexError) as error:
            raise BrokenError(f"a header block that is none: {error}") from error
        if read.changes:
            self._memo.clear()
        elif len(self._memo) < _MEMO and len(block) <= _MEMO_BYTES:
            self._memo[block] = read
        return read

    def _decoded(self, block: bytes) -> Block:
        """Source: RFC 7541, section 6. Raises BrokenError, HPACKDecodingError and IndexError."""
        fields: list[Field] = []
        changes, at, total, end = False, 0, 0, len(block)
        may_be_large = end * (self._allowed + _STATIC_LARGEST) > BLOCK_BYTES
        while at < end:
            first = block[at]
            if 0x80 < first < 0xFF:  # an indexed field of one byte, as most are
                at += 1
                field = _STATIC[first - 0x81] if first <= _LAST_STATIC else self._table[first - _LAST_STATIC - 1]
            elif first & 0x80:
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0x60 == 0x20:
                if fields:
                    raise BrokenError("a change of the header table's size amid a header block")
                size, at = _integer(block, at, 0x1F)
                self._resize(size)
                changes = True
                continue
            else:
                indexed = first & 0x40
                index, at = _integer(block, at, 0x3F if indexed else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                field = (name, value)
                if indexed:
                    self._add(field)
                    changes = True
            fields.append(field)
            if may_be_large:
                total += len(field[0]) + len(field[1]) + _ENTRY
                if total > BLOCK_BYTES:
                    raise BrokenError(f"headers of over {BLOCK_BYTES} bytes")
        if self._limit > self._allowed:
            raise BrokenError("a header table larger than announced")
        return Block(fields, changes)

    def _entry(self, index: int) -> Field:
        if index > len(_STATIC):
            return self._table[index - len(_STATIC) - 1]
        if not index:
            raise BrokenError("a reference to no header")
        return _STATIC[index - 1]

    def _add(self, field: Field) -> None:
        self._table.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + _ENTRY
        self._evict()

    def _resize(self, size: int) -> None:
        if size > self._allowed:
            raise BrokenError(f"a header table of {size} bytes, where {self._allowed} were announced")
        self._limit = size
        self._evict()

    def _evict(self) -> None:
        while self._size > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """The integer whose first bits are those of `mask`, and where it ends. Source: RFC 7541, section 5.1."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 7 * _INTEGER_BYTES, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BrokenError("an endless integer in a header block")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """The string, and where it ends. Raises HPACKDecodingError. Source: RFC 7541, section 5.2."""
    packed = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise BrokenError("a header block that is cut short")
    text = block[at:end]
    return (decode_huffman(text) if packed else text), end


def literal(fields: Iterable[Field]) -> bytes:
    """A block of these fields, none of them indexed: it may be put at any place among other blocks."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def refusal(code: int, message: str, *, headers_sent: bool) -> bytes:
    """The block that ends a call with a status: gRPC's Trailers-Only, or trailers when headers have been sent."""
    status = literal(
        (
            (b"grpc-status", b"%d" % code),
            (b"grpc-message", quote(message.encode("utf-8", "replace"), safe=_UNRESERVED).encode()),
        )
    )
    return status if headers_sent else _STATUS_200 + literal(((b"content-type", b"application/grpc"),)) + status


def _string(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), 7)) + text
