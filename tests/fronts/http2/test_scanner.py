"""Frames are found wherever the bytes are cut, and the runs of those that pass are whole."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from criproxy.fronts.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    BrokenError,
    Bytes,
    frame,
    window_update,
)
from criproxy.fronts.http2.scanner import Outgoing, Scanner

FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=60).map(lambda data: frame(DATA, 0, 1, data)),
        st.binary(min_size=9, max_size=9).map(lambda data: frame(DATA, PADDED, 3, b"\x03" + data)),
        st.binary(max_size=9).map(lambda block: frame(HEADERS, END_HEADERS, 5, block)),
        st.lists(st.binary(max_size=9), min_size=1, max_size=4).map(
            lambda parts: (
                frame(HEADERS, 0, 7, b"first")
                + b"".join(frame(CONTINUATION, 0, 7, part) for part in parts)
                + frame(CONTINUATION, END_HEADERS, 7, b"last")
            )
        ),
        st.integers(1, 9).map(lambda increment: window_update(0, increment)),
        st.binary(min_size=8, max_size=8).map(lambda data: frame(PING, 0, 0, data)),
        st.binary(max_size=20).map(lambda data: frame(0xAA, 0xFF, 9, data)),
    ),
    max_size=12,
)


class Sieve:
    """Lets through what is on no stream of `drop`, and notes what it saw."""

    def __init__(self, drop: set[int]) -> None:
        self.drop = drop
        self.seen: list[tuple[Any, ...]] = []

    def data(self, flags: int, stream: int, payload: memoryview) -> bool:
        self.seen.append((DATA, flags, stream, bytes(payload)))
        return stream not in self.drop

    def block(self, stream: int, end_stream: bool, block: bytes, raw: Bytes) -> bool:
        self.seen.append((HEADERS, stream, end_stream, block, bytes(raw)))
        return stream not in self.drop

    def credit(self, increment: int) -> bool:
        self.seen.append((WINDOW_UPDATE, increment))
        return increment not in self.drop

    def frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> bool:
        self.seen.append((kind, flags, stream, bytes(payload)))
        return stream not in self.drop


def passing(raw: bytes, drop: set[int]) -> bool:
    """Of a WINDOW_UPDATE of the connection, the increment says what is dropped."""
    stream = int.from_bytes(raw[5:9])
    return (int.from_bytes(raw[9:13]) if raw[3] == WINDOW_UPDATE and not stream else stream) not in drop


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(FRAMES, st.lists(st.integers(1, 60), min_size=1), st.sets(st.sampled_from([1, 3, 5, 7, 9])))
def test_what_passes_is_the_same_wherever_it_is_cut(pieces: list[bytes], cuts: list[int], drop: set[int]) -> None:
    pieces = [frame(SETTINGS, 0, 0), *pieces]
    expected = b"".join(piece for piece in pieces if passing(piece, drop))
    whole, cut = Sieve(drop), Sieve(drop)
    outgoing = Outgoing()
    Scanner(outgoing, whole).feed(b"".join(pieces))
    assert bytes(outgoing.take()) == expected
    outgoing, data, out, number = Outgoing(), b"".join(pieces), b"", 0
    scanner = Scanner(outgoing, cut)
    while data:
        size = cuts[number % len(cuts)]
        scanner.feed(data[:size])
        data, number = data[size:], number + 1
        sent = bytes(outgoing.take())
        assert any((out + sent) == expected[:end] for end in ends(expected)), "a frame was cut in two"
        out += sent
    assert out == expected
    assert whole.seen == cut.seen


def ends(data: bytes) -> list[int]:
    out, at = [0], 0
    while at < len(data):
        at += 9 + int.from_bytes(data[at : at + 3])
        out.append(at)
    return out


def test_pings_pass_unseen_and_among_others_where_they_are_nobodys_business() -> None:
    outgoing, sieve = Outgoing(), Sieve({1})
    scanner = Scanner(outgoing, sieve, pings_pass=True)
    scanner.feed(frame(SETTINGS, 0, 0))
    sieve.seen.clear()
    outgoing.take()
    ping, other = frame(PING, 0, 0, b"12345678"), frame(DATA, 0, 1, b"dropped")
    scanner.feed(ping + other + ping + window_update(0, 2) + ping)
    assert bytes(outgoing.take()) == ping * 2 + window_update(0, 2) + ping
    assert sieve.seen == [(DATA, 0, 1, b"dropped"), (WINDOW_UPDATE, 2)]
    scanner.show_pings()
    scanner.feed(ping)
    assert sieve.seen[2:] == [(PING, 0, 0, b"12345678")]


@pytest.mark.parametrize(
    "raw", [frame(PING, 0, 1, b"12345678"), frame(PING, 0, 0, b"1234567"), frame(WINDOW_UPDATE, 0, 0, b"123")]
)
def test_what_is_no_ping_or_window_update_is_still_refused(raw: bytes) -> None:
    scanner = Scanner(Outgoing(), Sieve(set()), pings_pass=True)
    scanner.feed(frame(SETTINGS, 0, 0))
    with pytest.raises(BrokenError):
        scanner.feed(raw)


def test_credits_pass_unseen_but_those_of_a_stream_are_shown() -> None:
    outgoing, sieve = Outgoing(), Sieve(set())
    scanner = Scanner(outgoing, sieve, credits_pass=True)
    with pytest.raises(BrokenError):
        Scanner(Outgoing(), Sieve(set()), credits_pass=True).feed(window_update(0, 2))
    scanner.feed(frame(SETTINGS, 0, 0))
    sieve.seen.clear()
    outgoing.take()
    scanner.feed(window_update(0, 2) + window_update(1, 3) + window_update(0, 4)[:-1])
    scanner.feed(window_update(0, 4)[-1:])
    assert bytes(outgoing.take()) == window_update(0, 2) + window_update(1, 3) + window_update(0, 4)
    assert [seen[0] for seen in sieve.seen] == [WINDOW_UPDATE]
    assert len(sieve.seen[0]) == 4


def test_ping_before_settings_or_amid_a_header_block_is_refused() -> None:
    ping = frame(PING, 0, 0, b"12345678")
    with pytest.raises(BrokenError):
        Scanner(Outgoing(), Sieve(set()), pings_pass=True).feed(ping)
    scanner = Scanner(Outgoing(), Sieve(set()), pings_pass=True)
    with pytest.raises(BrokenError):
        scanner.feed(frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, b"") + ping)


def test_run_of_passing_frames_is_one_piece_of_what_came() -> None:
    outgoing = Outgoing()
    scanner = Scanner(outgoing, Sieve(set()))
    data = frame(SETTINGS, 0, 0) + frame(DATA, 0, 1, bytes(16_384)) * 10
    scanner.feed(data)
    assert outgoing.take() == data
    outgoing.send(b"before")
    scanner.feed(data[9:])
    assert [bytes(part) for part in outgoing.parts] == [b"before", data[9:]]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(16_385, 200_000), st.lists(st.integers(1, 40_000), min_size=1), st.booleans())
def test_large_data_frame_goes_on_as_it_comes_in_smaller_ones(size: int, cuts: list[int], passes: bool) -> None:
    outgoing, sieve = Outgoing(), Sieve(set() if passes else {1})
    scanner = Scanner(outgoing, sieve)
    outgoing.max_frame = 1 << 20
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    data = frame(SETTINGS, 0, 0) + frame(DATA, END_STREAM, 1, message) + frame(0xAA, 0, 9, b"next")
    out, at, number = b"", 0, 0
    while at < len(data):
        step = cuts[number % len(cuts)]
        scanner.feed(data[at : at + step])
        at, number = at + step, number + 1
        out += bytes(outgoing.take())
        assert len(scanner._rest) <= 16_384 + 9, "more is kept than a frame of the smallest bound"
        assert ends(out)[-1] == len(out), "a frame was cut in two"
    _, *pieces, last = sieve.seen
    assert last == (0xAA, 0, 9, b"next")
    assert b"".join(piece[3] for piece in pieces) == message
    assert [piece[1] for piece in pieces] == [0] * (len(pieces) - 1) + [END_STREAM]
    advertised = b"".join(frame(DATA, flags, 1, data) for _, flags, _, data in pieces) if passes else b""
    assert out == frame(SETTINGS, 0, 0) + advertised + frame(0xAA, 0, 9, b"next")
