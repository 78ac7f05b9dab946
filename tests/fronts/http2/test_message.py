"""gRPC's messages as hooked calls carry them."""

import gzip
import zlib

import pytest

from criproxy.fronts.http2 import message
from criproxy.fronts.http2.message import MessageError, opened, wrapped


def packed(data: bytes) -> bytes:
    return b"\1" + len(data).to_bytes(4) + data


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 100_000], ids=len)
def test_message_comes_back_however_it_was_packed(data: bytes) -> None:
    assert opened(wrapped(data), b"") == data
    assert opened(bytearray(packed(gzip.compress(data))), b"gzip") == data
    assert opened(packed(zlib.compress(data)), b"deflate") == data


REFUSED = {
    "nothing": (b"", b"", 13),
    "half a prefix": (b"\0\0\0", b"", 13),
    "half a message": (wrapped(b"abc")[:-1], b"", 13),
    "two messages": (wrapped(b"a") * 2, b"", 13),
    "an unknown flag": (b"\2\0\0\0\0", b"", 13),
    "packed, who knows how": (packed(b"a"), b"", 12),
    "an unknown packing": (packed(b"a"), b"snappy", 12),
    "no gzip": (packed(b"abc"), b"gzip", 13),
    "half a gzip": (packed(gzip.compress(b"abc")[:-4]), b"gzip", 13),
    "more after the gzip": (packed(gzip.compress(b"abc") + b"x"), b"gzip", 13),
}


@pytest.mark.parametrize("data, encoding, code", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_opened_is_refused(data: bytes, encoding: bytes, code: int) -> None:
    with pytest.raises(MessageError) as caught:
        opened(data, encoding)
    assert caught.value.code == code


def test_bomb_is_not_unpacked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "MESSAGE_BYTES", 1000)
    assert len(opened(packed(gzip.compress(bytes(1000))), b"gzip")) == 1000
    with pytest.raises(MessageError) as caught:
        opened(packed(gzip.compress(bytes(1001))), b"gzip")
    assert caught.value.code == 8
