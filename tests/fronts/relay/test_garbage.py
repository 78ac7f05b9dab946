"""What is no HTTP/2 ends the connection, with a reason, and costs no memory."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import CONTINUATION, DATA, END_HEADERS, HEADERS, PADDED, PREFACE, WITH_PRIORITY, frame
from criproxy.fronts.http2.headers import literal
from criproxy.fronts.relay.actions import Close, Ended, Started
from tests.fronts.relay.fuzz import Fuzz
from tests.fronts.relay.talk import HOOKED, PASSING, SETTINGS, SETTINGS_ACK, Talk, setting

REQUEST = b"\x83\x86\x44\x02/x"
BOMB = b"\x40\x01x\x7f\x80\x1e" + bytes(3967) + b"\xbe" * 6000
MIB = 1 << 20

FROM_CLIENT = {
    "data on the connection": frame(DATA, 0, 0, b"x"),
    "headers on the connection": frame(HEADERS, END_HEADERS, 0, REQUEST),
    "headers on an even stream": frame(HEADERS, END_HEADERS, 2, REQUEST),
    "more than was announced": b"\x00\x40\x01\x00\x00\x00\x00\x00\x01",
    "padding over all": frame(DATA, PADDED, 1, b"\x05abc"),
    "no room for the padding's length": frame(DATA, PADDED, 1, b""),
    "no room for the priority": frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"abc"),
    "a frame amid a header block": frame(HEADERS, 0, 1, REQUEST) + frame(DATA, 0, 1, b""),
    "a header block of another stream": frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, END_HEADERS, 3, b""),
    "a continuation of nothing": frame(CONTINUATION, END_HEADERS, 1, b""),
    "endless continuation": frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, 0, 1, b"") * 5000,
    "a header bomb": frame(HEADERS, END_HEADERS, 1, BOMB),
    "no header block": frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
    "a header block cut short": frame(HEADERS, END_HEADERS, 1, b"\x40\x0aabc"),
    "a push": frame(frames.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"),
    "a ping of 7": frame(frames.PING, 0, 0, bytes(7)),
    "a reset of the connection": frame(frames.RST_STREAM, 0, 0, bytes(4)),
    "settings of 5": frame(frames.SETTINGS, 0, 0, bytes(5)),
    "settings of a stream": frame(frames.SETTINGS, 0, 1, bytes(6)),
    "an ack for nothing": SETTINGS_ACK * 2,
    "a goaway of 4": frame(frames.GOAWAY, 0, 0, bytes(4)),
    "data after the end": frame(HEADERS, 5, 1, REQUEST) + frame(DATA, 0, 1, b"x"),
    "headers after the end": frame(HEADERS, 5, 1, REQUEST) + frame(HEADERS, 5, 1, REQUEST),
}
FROM_UPSTREAM = {
    "data before settings": frame(DATA, 0, 1, b"x"),
    "no settings": frame(frames.PING, 0, 0, bytes(8)),
    "a window over all": SETTINGS + frames.window_update(0, 0x7FFFFFFF),
    "a window of nothing": SETTINGS + frames.window_update(0, 0),
    "an impossible window": SETTINGS + setting(frames.INITIAL_WINDOW_SIZE, 1 << 31),
    "settings without end": SETTINGS * 1001,
}


@pytest.mark.parametrize("data", FROM_CLIENT.values(), ids=FROM_CLIENT)
def test_nonsense_of_the_client_closes(data: bytes) -> None:
    talk = Talk()
    talk.from_client(data)
    closed = talk.actions[-1]
    assert isinstance(closed, Close)
    assert closed.broken
    assert closed.reason.startswith("the client sent ")
    assert len(talk.all(Started)) == len(talk.all(Ended))
    assert talk.relay.client_bytes(PREFACE) == []


@pytest.mark.parametrize("data", FROM_UPSTREAM.values(), ids=FROM_UPSTREAM)
def test_nonsense_of_the_runtime_closes(data: bytes) -> None:
    talk = Talk(greet=False)
    talk.from_runtime(data)
    closed = talk.actions[-1]
    assert isinstance(closed, Close)
    assert closed.broken
    assert closed.reason.startswith("the runtime sent ")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nXX"])
def test_what_is_not_http2_closes_at_its_first_odd_byte(data: bytes) -> None:
    talk = Talk(greet=False)
    talk.from_client(data)
    assert talk.actions == [Close("the client sent no HTTP/2 preface", broken=True)]
    assert talk.runtime == b""


def test_frame_cut_short_is_kept_and_nothing_of_it_passes() -> None:
    talk = Talk()
    whole = talk.request(1, PASSING, b"message")
    for size in range(len(whole)):
        cut = Talk()
        cut.from_client(whole[:size])
        assert whole.startswith(cut.runtime)
        cut.do(cut.relay.client_closed())
        assert len(cut.all(Started)) == len(cut.all(Ended))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=300)), st.lists(st.binary(max_size=300)))
def test_garbage_never_raises(client: list[bytes], runtime: list[bytes]) -> None:
    talk = Talk()
    for data in client:
        talk.from_client(data)
    for data in runtime:
        talk.from_runtime(data)


@pytest.mark.slow
def test_garbage_costs_no_memory() -> None:
    rng = random.Random(1)
    tracemalloc.start()
    try:
        for _ in range(100):
            talk = Talk()
            for _ in range(20):
                talk.from_client(rng.randbytes(50_000))
                talk.from_runtime(rng.randbytes(50_000))
            talk.clear()
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_long_error_texts_cost_no_memory_once_they_have_gone() -> None:
    talk = Talk()
    tracemalloc.start()
    try:
        for number in range(100):
            text = b"%06d" % number * 5_000
            talk.from_client(talk.request(1 + 2 * number, PASSING))
            block = literal(((b":status", b"200"), (b"grpc-status", b"2"), (b"grpc-message", text)))
            talk.from_runtime(frames.header_frames(1 + 2 * number, block, end_stream=True))
            talk.clear()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_message_over_the_bound_is_refused_and_dropped() -> None:
    talk = Talk()
    talk.from_client(talk.request_headers(1, HOOKED) + frame(DATA, 0, 1, b"\0\x7f\xff\xff\xff"))
    piece = frame(DATA, 0, 1, bytes(16_384)) * 64
    tracemalloc.start()
    try:
        for _ in range(140):
            talk.from_client(piece)
            talk.client.clear()
        assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    finally:
        tracemalloc.stop()
    assert talk.all(Ended) == [Ended(1, HOOKED, 8, True)]


@pytest.mark.parametrize("seed", range(60))
def test_spoilt_connection_ends_or_goes_on_but_never_raises(seed: int) -> None:
    """The bytes of a good connection, some of them changed or lost, on both sides."""
    good, rng = Recorder(seed), random.Random(seed)
    good.run()
    relay = Talk(greet=False).relay
    for side, data in good.pieces:
        spoilt = bytearray(data)
        if rng.random() < 0.02:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        actions = (relay.client_bytes if side == "client" else relay.runtime_bytes)(bytes(spoilt))
        if actions and isinstance(actions[-1], Close):
            break


class Recorder(Fuzz):
    """Remembers what came in."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pieces: list[tuple[str, bytes]] = []
        relay = self.world.relay
        client_bytes, runtime_bytes = relay.client_bytes, relay.runtime_bytes

        def client(chunk: bytes) -> object:
            self.pieces.append(("client", bytes(chunk)))
            return client_bytes(chunk)

        def runtime(chunk: bytes) -> object:
            if chunk:
                self.pieces.append(("runtime", bytes(chunk)))
            return runtime_bytes(chunk)

        relay.client_bytes, relay.runtime_bytes = client, runtime  # type: ignore[method-assign,assignment]
