"""The header block decoder against hpack's, and the blocks that the relay writes."""

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from criproxy.fronts.http2.frames import BrokenError
from criproxy.fronts.http2.headers import NO_TABLE, BlockReader, literal, refusal

NAMES = st.sampled_from([b":path", b":status", b"grpc-timeout", b"grpc-status", b"x-a", b"x-b", b"cookie"])
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=300) | st.sampled_from([b"", b"0", b"200", b"/"])), max_size=12)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(FIELDS, st.booleans(), st.none() | st.integers(0, 4096)), max_size=8))
def test_blocks_of_an_encoder_are_read_as_it_meant_them(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]],
) -> None:
    encoder, reader = Encoder(), BlockReader()
    for fields, huffman, table in blocks:
        if table is not None:
            encoder.header_table_size = table
        assert list(reader.read(encoder.encode(fields, huffman=huffman)).fields) == fields


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_read_as_hpack_reads_them(blocks: list[bytes]) -> None:
    reader, other = BlockReader(), Decoder()
    for block in blocks:
        try:
            expected = [tuple(field) for field in other.decode(block, raw=True)]
        except (HPACKError, IndexError):
            with pytest.raises(BrokenError):
                reader.read(block)
            return
        assert list(reader.read(block).fields) == expected


def test_block_that_changes_no_table_may_move() -> None:
    encoder, reader = Encoder(), BlockReader()
    fields = [(b":status", b"200"), (b"grpc-status", b"0")]
    assert reader.read(encoder.encode(fields)).changes
    again = encoder.encode(fields)
    assert not reader.read(again).changes
    assert reader.read(again) is reader.read(again)
    assert reader.read(b"\x3f\xe1\x1f").changes


def test_repeated_block_means_what_the_table_says_by_then() -> None:
    reader = BlockReader()
    reader.read(b"\x40\x01a\x011")
    assert reader.read(b"\xbe").get(b"a") == b"1"
    reader.read(b"\x40\x01a\x012")
    assert reader.read(b"\xbe").get(b"a") == b"2"


def test_table_grows_only_as_far_as_announced() -> None:
    reader = BlockReader()
    with pytest.raises(BrokenError, match="4096 were announced"):
        reader.read(b"\x3f\xe2\x1f")
    reader = BlockReader()
    assert not reader.allow_table(10_000)
    reader.read(b"\x3f\xe2\x1f")
    assert reader.allow_table(0)


@settings(max_examples=100, deadline=None)
@given(FIELDS)
def test_literal_block_is_understood_with_any_table_and_leaves_it(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder()
    assert [tuple(field) for field in decoder.decode(literal(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries
    assert [tuple(field) for field in decoder.decode(NO_TABLE + literal(fields), raw=True)] == fields
    assert decoder.header_table_size == 0


def test_refusal_says_code_and_text_as_grpc_writes_them() -> None:
    text = "pod ns/wëb: 100 % full\n" + "x" * 30_000
    whole = dict(Decoder(1 << 20).decode(refusal(9, text, headers_sent=False)))
    encoded = "pod ns/w%C3%ABb: 100 %25 full%0A" + "x" * 30_000
    assert whole == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "9",
        "grpc-message": encoded,
    }
    trailers = dict(Decoder(1 << 20).decode(refusal(9, text, headers_sent=True)))
    assert trailers == {"grpc-status": "9", "grpc-message": encoded}
