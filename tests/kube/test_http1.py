"""One HTTP/1.1 response, however its bytes are cut."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.kube.http1 import ResponseError, ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"


def read(data, cuts=()):
    reader, body = ResponseReader(), b""
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        body += reader.feed(data[start:end])
    return reader, body


def chunked(parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.data())
def test_response_cut_anywhere_is_read_the_same(parts, data):
    body = b"".join(parts)
    for sent in (
        OK + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        OK + b"transfer-encoding: chunked\r\n\r\n" + chunked(parts),
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    ):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
        reader, found = read(sent, cuts)
        assert (found, reader.done, reader.head.status) == (body, True, 200)
        reader.end()


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=3), st.data())
def test_response_that_is_cut_off_is_an_error(parts, data):
    sent = OK + b"transfer-encoding: chunked\r\n\r\n" + chunked(parts)
    reader, _ = read(sent[: data.draw(st.integers(0, len(sent) - 1))])
    assert not reader.done
    with pytest.raises(ResponseError, match="ended in its"):
        reader.end()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_response_or_an_error(data):
    for begun in (b"", OK, OK + b"transfer-encoding: chunked\r\n\r\n"):
        with suppress(ResponseError):
            read(begun + data)


def test_without_a_length_the_body_goes_to_the_end_of_the_connection():
    reader, body = read(OK + b"\r\nabc")
    assert (body, reader.done) == (b"abc", False)
    reader.end()
    assert reader.done


def test_a_chunks_extension_and_trailers_are_passed_over():
    reader, body = read(OK + b"Transfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nTrailer: 1\r\n\r\n")
    assert (body, reader.done) == (b"abc", True)


def test_204_has_no_body():
    assert read(b"HTTP/1.1 204 No Content\r\n\r\n")[0].done
