"""The core of our own calls: against a strict HTTP/2 server (h2), and against frames that h2 would not send."""

import gzip
import random
from collections.abc import Iterable

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from criproxy.clients.http2.core import CallOutcome, Client
from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import BrokenError
from tests.fronts.relay.peers import split
from tests.fronts.relay.talk import SETTINGS, prefixed, setting

VERSION = "/runtime.v1.RuntimeService/Version"
MIB = 1024 * 1024
_FIRST_WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
_MOST_STREAMS = h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS


class Server:
    """h2 on the other side. `requests`: headers and body of each stream; `reset`: the streams that the client reset."""

    def __init__(self, client: Client, seed: int = 0, **settings: int) -> None:
        self.client = client
        self.random = random.Random(seed)
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        first = {getattr(h2.settings.SettingCodes, key): value for key, value in settings.items()}
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=first)
        self.h2.initiate_connection()
        self.requests: dict[int, tuple[dict[bytes, bytes], bytearray]] = {}
        self.ended: list[int] = []
        self.reset: list[int] = []
        self.outcomes: list[CallOutcome] = []
        self._answers: dict[int, bytes] = {}
        self._trailers: dict[int, list[tuple[str, str]]] = {}

    def run(self) -> list[CallOutcome]:
        """Carry bytes in pieces of any size until neither side has more to say; returns what has ended."""
        quiet = False
        while not quiet:
            sent = bytes(self.client.take())
            for piece in self._pieces(sent):
                for event in self.h2.receive_data(piece):
                    self._on(event)
            self._pump()
            back = self.h2.data_to_send()
            for piece in self._pieces(back):
                self.outcomes += self.client.feed(memoryview(piece))
            quiet = not sent and not back
        done, self.outcomes = self.outcomes, []
        return done

    def answer(self, stream: int, message: bytes, *trailers: tuple[str, str], encoding: str = "") -> None:
        headers = [(":status", "200"), ("content-type", "application/grpc")]
        self.h2.send_headers(stream, headers + ([("grpc-encoding", encoding)] if encoding else []))
        self._answers[stream] = message
        self._trailers[stream] = list(trailers or (("grpc-status", "0"),))

    def _pieces(self, data: bytes) -> Iterable[bytes]:
        at = 0
        while at < len(data):
            size = self.random.choice((1, 9, 100, 5000, MIB))
            yield data[at : at + size]
            at += size

    def _pump(self) -> None:
        for stream in list(self._answers):
            while rest := self._answers[stream]:
                size = min(len(rest), self.h2.local_flow_control_window(stream), 16384)
                if size <= 0:
                    break
                self.h2.send_data(stream, rest[:size])
                self._answers[stream] = rest[size:]
            if not self._answers[stream]:
                del self._answers[stream]
                self.h2.send_headers(stream, self._trailers[stream], end_stream=True)

    def _on(self, event: object) -> None:
        match event:
            case h2.events.RequestReceived():
                self.requests[event.stream_id] = dict(event.headers), bytearray()
            case h2.events.DataReceived():
                self.requests[event.stream_id][1].extend(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.ended.append(event.stream_id)
            case h2.events.StreamReset():
                self.reset.append(event.stream_id)
                self._answers.pop(event.stream_id, None)


class Frames:
    """A server that says just what a test has it say."""

    def __init__(self) -> None:
        self.client = Client()
        self._encoder = Encoder()
        assert self.client.feed(SETTINGS) == []
        self.call = self.client.call(VERSION, b"", 5)
        self.sent()

    def block(self, *fields: tuple[str, str], stream: int = 1, end: bool = True) -> bytes:
        return frames.header_frames(stream, self._encoder.encode(fields), end_stream=end)

    def data(self, data: bytes, *, stream: int = 1, end: bool = False) -> bytes:
        return frames.frame(frames.DATA, frames.END_STREAM if end else 0, stream, data)

    def says(self, *data: bytes) -> list[CallOutcome]:
        return self.client.feed(b"".join(data))

    def sent(self) -> list[tuple[int, int, bytes]]:
        """(type, stream, payload) of what the client has sent since."""
        raw = bytearray(bytes(self.client.take()).removeprefix(frames.PREFACE))
        return [(one[3], int.from_bytes(one[5:9]), bytes(one[9:])) for one in split(raw)]


OK = (("grpc-status", "0"),)
TEXT = ((":status", "200"), ("grpc-status", "5"))
HEADERS = ((":status", "200"), ("content-type", "application/grpc"))


@given(st.integers(0, 2**32), st.lists(st.integers(0, 200_000), min_size=1, max_size=5))
def test_calls_in_any_pieces_arrive_and_are_answered_byte_exact(seed: int, sizes: list[int]) -> None:
    client = Client()
    server = Server(client, seed)
    chosen = random.Random(seed)
    messages = {client.call(VERSION, (body := chosen.randbytes(size)), 5): body for size in sizes}
    assert server.run() == []
    assert [bytes(body) for _, body in server.requests.values()] == [prefixed(body) for body in messages.values()]
    assert sorted(server.ended) == list(server.requests)
    for stream in server.requests:
        server.answer(stream, prefixed(b"answer to " + bytes(server.requests[stream][1])))
    done = {outcome.call: outcome for outcome in server.run()}
    assert done == {
        number: CallOutcome(number, Code.OK, "", b"answer to " + prefixed(body)) for number, body in messages.items()
    }
    assert client.idle


def test_request_has_the_headers_that_gRPC_demands() -> None:
    client = Client()
    server = Server(client)
    client.call(VERSION, b"", 1.5)
    server.run()
    assert server.requests[1][0] == {
        b":method": b"POST",
        b":scheme": b"http",
        b":authority": b"localhost",
        b":path": VERSION.encode(),
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"user-agent": b"grpc-criproxy",
        b"grpc-timeout": b"1500m",
    }


@pytest.mark.parametrize(("timeout_s", "told"), [(0.0001, b"1m"), (30, b"30000m"), (1e9, b"99999999m")])
def test_deadline_is_told_in_eight_digits(timeout_s: float, told: bytes) -> None:
    client = Client()
    server = Server(client)
    client.call(VERSION, b"", timeout_s)
    server.run()
    assert server.requests[1][0][b"grpc-timeout"] == told


@pytest.mark.slow
def test_answer_of_16_mib_arrives_and_the_windows_are_given_back() -> None:
    client = Client()
    server = Server(client, seed=3)
    for number in (1, 2, 3):  # more than the connection's window, so it must be refilled
        client.call(VERSION, b"", 60)
        server.run()
        server.answer(2 * number - 1, prefixed(bytes(16 * MIB)))
        (outcome,) = server.run()
        assert (outcome.code, len(outcome.message)) == (Code.OK, 16 * MIB)


def test_request_waits_for_the_windows_of_the_runtime() -> None:
    client = Client()
    server = Server(client, INITIAL_WINDOW_SIZE=10)
    server.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]  # nothing is given back
    client.feed(server.h2.data_to_send())
    client.call(VERSION, bytes(100), 5)
    server.run()
    assert len(server.requests[1][1]) == 10
    server.h2.increment_flow_control_window(95, 1)
    server.run()
    assert len(server.requests[1][1]) == 105
    assert server.ended == [1]


def test_window_that_shrinks_and_grows_with_settings_is_followed() -> None:
    server = Frames()
    server.says(setting(_FIRST_WINDOW, 0))
    server.client.call(VERSION, bytes(20), 5)
    assert [kind for kind, _, _ in server.sent()] == [frames.SETTINGS, frames.HEADERS]
    server.says(setting(_FIRST_WINDOW, 15))
    assert [(kind, len(data)) for kind, _, data in server.sent()] == [(frames.SETTINGS, 0), (frames.DATA, 15)]
    server.says(setting(_FIRST_WINDOW, 5), frames.window_update(3, 12))  # 15 are gone: 5 - 15 + 12 = 2
    assert [len(data) for kind, _, data in server.sent() if kind == frames.DATA] == [2]


def test_calls_over_the_runtimes_limit_wait_for_a_place() -> None:
    client = Client()
    server = Server(client, MAX_CONCURRENT_STREAMS=2)
    client.feed(server.h2.data_to_send())
    numbers = [client.call(VERSION, b"", 5) for _ in range(4)]
    server.run()
    assert list(server.requests) == [1, 3]
    client.give_up(numbers[2])  # it never began
    client.give_up(numbers[0])
    server.run()
    assert list(server.requests) == [1, 3, 5]
    assert server.reset == [1]
    for stream in (3, 5):
        server.answer(stream, prefixed(b"."))
    assert [outcome.call for outcome in server.run()] == [numbers[1], numbers[3]]


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        pytest.param([(*TEXT, ("grpc-message", "no%20pod%3A %E2%82%AC"))], 5, "no pod: €", id="only-trailers"),
        pytest.param([(("grpc-status", "14"),)], 14, "", id="no-message"),
        pytest.param([((":status", "404"),)], 12, "404", id="http"),
        pytest.param([((":status", "503"), ("content-type", "text/html"))], 14, "503", id="http-unavailable"),
        pytest.param([((":status", "200"),)], 2, "200", id="no-status"),
        pytest.param([((":status", "200"), ("grpc-status", "?"))], 2, "200", id="bad-status"),
        pytest.param([((":status", "200"), *OK)], 13, "no message", id="ok-without-a-message"),
    ],
)
def test_error_of_the_runtime_is_the_outcome(said: list[tuple[tuple[str, str], ...]], code: int, text: str) -> None:
    server = Frames()
    (outcome,) = server.says(*(server.block(*fields) for fields in said))
    assert (outcome.call, outcome.code) == (server.call, code)
    assert text in outcome.text
    assert server.client.idle


@pytest.mark.parametrize(
    ("data", "encoding", "code", "answer"),
    [
        pytest.param(prefixed(b"x"), "", 0, b"x", id="plain"),
        pytest.param(b"\1" + prefixed(gzip.compress(b"x" * 99))[1:], "gzip", 0, b"x" * 99, id="packed"),
        pytest.param(b"\1" + prefixed(b"x")[1:], "snappy", 12, b"", id="packed-as-never-asked-for"),
        pytest.param(prefixed(b"x") * 2, "", 13, b"", id="two"),
        pytest.param(prefixed(b"x")[:-1], "", 13, b"", id="cut"),
    ],
)
def test_answer_is_one_message(data: bytes, encoding: str, code: int, answer: bytes) -> None:
    server = Frames()
    headers = server.block(*HEADERS, *([("grpc-encoding", encoding)] if encoding else []), end=False)
    (outcome,) = server.says(headers, server.data(data), server.block(*OK))
    assert (outcome.code, outcome.message) == (code, answer)


@pytest.mark.parametrize(
    ("data", "code", "answer"),
    [
        pytest.param(b"", 0, b"", id="none"),
        pytest.param(prefixed(b"x"), 0, b"x", id="one"),
        pytest.param(prefixed(b"x") + prefixed(b"") + prefixed(b"yz"), 0, b"xyz", id="several"),
        pytest.param(b"\1" + prefixed(gzip.compress(b"x" * 9))[1:] + prefixed(b"y"), 0, b"x" * 9 + b"y", id="packed"),
        pytest.param((b"\1" + prefixed(gzip.compress(bytes(MIB)))[1:]) * 2, 8, b"", id="too-much-unpacked"),
        pytest.param(prefixed(b"x") + prefixed(b"y")[:-1], 13, b"", id="cut"),
        pytest.param(prefixed(b"x") + b"\0\0", 13, b"", id="cut-early"),
    ],
)
def test_answer_that_is_a_stream_is_its_messages_one_behind_the_other(
    data: bytes, code: int, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("criproxy.fronts.http2.message.MESSAGE_BYTES", MIB)
    server = Frames()
    number = server.client.call(VERSION, b"", 5, streamed=True)
    headers = server.block(*HEADERS, ("grpc-encoding", "gzip"), stream=3, end=False)
    (outcome,) = server.says(headers, server.data(data, stream=3), server.block(*OK, stream=3))
    assert (outcome.call, outcome.code, outcome.message) == (number, code, answer)


def test_stream_that_ends_with_an_error_is_no_answer() -> None:
    server = Frames()
    server.client.call(VERSION, b"", 5, streamed=True)
    headers = server.block(*HEADERS, stream=3, end=False)
    (outcome,) = server.says(
        headers, server.data(prefixed(b"x"), stream=3), server.block(("grpc-status", "14"), stream=3)
    )
    assert (outcome.code, outcome.message) == (Code.UNAVAILABLE, b"")


def test_answer_that_ends_without_trailers_is_no_success() -> None:
    server = Frames()
    (outcome,) = server.says(server.block(*HEADERS, end=False), server.data(prefixed(b"x"), end=True))
    assert (outcome.code, outcome.message) == (Code.UNKNOWN, b"")


def test_answer_over_the_bound_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("criproxy.fronts.http2.message.MESSAGE_BYTES", 1000)
    server = Frames()
    (outcome,) = server.says(server.block(*HEADERS, end=False), server.data(bytes(1006)))
    assert (outcome.code, outcome.call) == (Code.RESOURCE_EXHAUSTED, server.call)
    assert (frames.RST_STREAM, 1, frames.CANCEL.to_bytes(4)) in server.sent()
    assert server.says(server.data(bytes(500)), server.block(*OK)) == []


@pytest.mark.parametrize(("error", "code"), [(7, 14), (8, 1), (11, 8), (12, 7), (2, 13)])
def test_reset_by_the_runtime_ends_the_call(error: int, code: int) -> None:
    server = Frames()
    (outcome,) = server.says(frames.rst_stream(1, error))
    assert (outcome.code, server.client.idle) == (code, True)


def test_answer_before_the_request_has_gone_stops_the_request() -> None:
    server = Frames()
    number = server.client.call(VERSION, bytes(100_000), 5)
    (outcome,) = server.says(server.block((":status", "200"), ("grpc-status", "8"), stream=3))
    assert (outcome.call, outcome.code) == (number, 8)
    assert server.sent()[-1] == (frames.RST_STREAM, 3, frames.CANCEL.to_bytes(4))
    server.says(frames.window_update(0, 100_000))
    assert server.sent() == []


def test_call_given_up_is_reset_and_its_late_answer_harmless() -> None:
    server = Frames()
    server.client.give_up(server.call)
    assert server.sent() == [(frames.RST_STREAM, 1, frames.CANCEL.to_bytes(4))]
    other = server.client.call(VERSION, b"", 5)
    # The late block fills the header table, to which the other's refers.
    late = server.block((":status", "200"), ("x-late", "1"), end=False), server.data(prefixed(b"late"))
    again = server.block((":status", "200"), ("x-late", "1"), stream=3, end=False)
    (outcome,) = server.says(*late, again, server.data(prefixed(b"x"), stream=3), server.block(*OK, stream=3))
    assert outcome == CallOutcome(other, Code.OK, "", b"x")


def test_data_that_nobody_wants_is_given_back_to_the_connection() -> None:
    server = Frames()
    server.client.give_up(server.call)
    server.sent()
    server.says(*(server.data(bytes(16384)) for _ in range(64)))
    assert server.sent() == [(frames.WINDOW_UPDATE, 0, MIB.to_bytes(4))]


def test_padding_counts_for_the_windows() -> None:
    server = Frames()
    padded = frames.frame(frames.DATA, frames.PADDED, 1, b"\xff" + prefixed(b"x") + bytes(255))
    (outcome,) = server.says(server.block(*HEADERS, end=False), padded, server.block(*OK))
    assert outcome.message == b"x"


def test_ping_is_answered_and_an_ack_is_not() -> None:
    server = Frames()
    server.says(frames.frame(frames.PING, 0, 0, b"12345678"), frames.frame(frames.PING, frames.ACK, 0, b"12345678"))
    assert server.sent() == [(frames.PING, 0, b"12345678")]


def test_goaway_ends_what_was_never_looked_at_and_leaves_the_rest() -> None:
    server = Frames()
    late = server.client.call(VERSION, b"", 5)
    assert [(o.call, o.code) for o in server.says(frames.goaway(1))] == [(late, Code.UNAVAILABLE)]
    assert not server.client.usable
    assert not server.client.idle
    (outcome,) = server.says(server.block(*HEADERS, end=False), server.data(prefixed(b"x")), server.block(*OK))
    assert (outcome.call, outcome.message) == (server.call, b"x")
    assert server.client.idle


def test_call_that_ends_makes_room_for_one_that_waits() -> None:
    server = Frames()
    server.says(setting(_MOST_STREAMS, 1))
    server.client.call(VERSION, b"", 5)
    server.sent()
    server.says(server.block((":status", "200"), ("grpc-status", "5")))
    assert [(kind, stream) for kind, stream, _ in server.sent()] == [(frames.HEADERS, 3), (frames.DATA, 3)]


def test_goaway_ends_what_waits_for_a_place() -> None:
    server = Frames()
    server.says(setting(_MOST_STREAMS, 1))
    waiting = server.client.call(VERSION, b"", 5)
    assert [outcome.call for outcome in server.says(frames.goaway(1))] == [waiting]
    server.says(server.block((":status", "200"), ("grpc-status", "5")))
    assert server.client.idle


def test_unknown_frames_and_priority_are_passed_over() -> None:
    server = Frames()
    said = frames.frame(0xEE, 0xFF, 1, b"?"), frames.frame(frames.PRIORITY, 0, 1, bytes(5))
    assert server.says(*said) == []
    assert server.sent() == []


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(frames.window_update(0, 0), id="no-increment"),
        pytest.param(frames.window_update(0, frames.MAX_WINDOW), id="connection-window-overflows"),
        pytest.param(frames.window_update(1, frames.MAX_WINDOW), id="window-overflows"),
        pytest.param(setting(_FIRST_WINDOW, frames.MAX_WINDOW + 1), id="window-of-settings"),
        pytest.param(frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(8)), id="push"),
        pytest.param(frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), id="bad-block"),
        pytest.param(frames.frame(frames.DATA, frames.PADDED, 1, b"\x09"), id="padding"),
        pytest.param(b"\xff\xff\xff" + bytes(6), id="too-large-a-frame"),
    ],
)
def test_what_is_no_http2_is_broken(said: bytes) -> None:
    server = Frames()
    with pytest.raises(BrokenError):
        server.says(said)


def test_garbage_instead_of_settings_is_broken() -> None:
    with pytest.raises(BrokenError):
        Client().feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


PING = b"\x00\x00\x08\x06\x01\x00\x00\x00\x00" + bytes(8)
"""With ACK, so that no answer is due."""


@pytest.mark.parametrize("most", [None, 100])
def test_peer_that_is_not_trusted_sends_so_many_frames_and_no_more(most: int | None) -> None:
    client = Client(most_frames=most)
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    client.feed(memoryview(settings + 99 * PING))
    if most is None:
        client.feed(memoryview(PING))
    else:
        with pytest.raises(BrokenError, match="more than 100 frames"):
            client.feed(memoryview(PING))
