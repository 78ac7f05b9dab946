"""What the relay's core does, told as conversations."""

from typing import Any

import pytest
from hpack import Decoder

from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import (
    CANCEL,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_STREAM,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
)
from criproxy.fronts.http2.headers import literal
from criproxy.fronts.relay.actions import Ask, Close, Ended, Forget, Learn, Started, ToClient, ToRuntime
from tests.fronts.relay.peers import split
from tests.fronts.relay.talk import HOOKED, PASSING, SETTINGS, SETTINGS_ACK, Talk, prefixed, setting


def test_passing_call_is_the_very_bytes_that_came() -> None:
    talk = Talk()
    request, answer = talk.request(1, PASSING, b"in"), talk.answer(1, b"out")
    talk.from_client(request)
    talk.from_runtime(answer)
    assert (talk.runtime, talk.client) == (request, answer)
    assert talk.actions == [Started(1, PASSING), Ended(1, PASSING, 0, False)]
    assert not talk.relay._state.calls


def test_what_grpc_in_go_sends_beside_a_call_passes_with_it_and_is_accounted_for() -> None:
    """Its estimator's PING, with the ACK of the peer's and a WINDOW_UPDATE: all in one piece with the call's frames."""
    talk = Talk()
    ping, ack = frames.frame(frames.PING, 0, 0, b"estimate"), frames.frame(frames.PING, frames.ACK, 0, b"estimate")
    request = ack + frames.window_update(0, 28) + ping + talk.request(1, PASSING)
    assert talk.relay.client_bytes(request) == [ToRuntime(request), Started(1, PASSING)]
    window = talk.relay._state.window.real
    assert window == frames.FIRST_WINDOW - 5
    answer = ack + frames.window_update(0, 5) + ping + talk.answer(1)
    assert talk.relay.runtime_bytes(answer) == [ToClient(answer), Ended(1, PASSING, 0, False)]
    assert talk.relay._state.window.real == frames.FIRST_WINDOW


def test_hooked_request_waits_for_its_verdict_but_its_headers_do_not() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b"in"))
    assert [kind for kind, _, _ in talk.runtime_sees()] == [HEADERS]
    assert talk.all(Ask) == [Ask(1, HOOKED, b"in")]
    talk.do(talk.relay.forward(1, b"other"))
    assert talk.runtime_sees() == [(DATA, 1, prefixed(b"other"))]


@pytest.mark.parametrize("field", [("grpc-trace-bin", "AAE"), ("user-agent", "kubelet/1.30"), ("grpc-timeout", "9S")])
def test_headers_of_a_hooked_call_are_the_very_bytes_that_came(field: tuple[str, str]) -> None:
    talk = Talk()
    headers = talk.request_headers(1, HOOKED, field)
    talk.from_client(headers)
    assert talk.runtime == headers


def test_incomplete_hooked_message_is_paid_back_at_once() -> None:
    talk = Talk()
    talk.from_client(talk.request_headers(1, HOOKED) + frames.frame(DATA, 0, 1, bytes(100)))
    assert talk.client == frames.window_update(0, 100) + frames.window_update(1, 100)


def test_grown_message_is_paid_by_later_window_updates() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b"x" * 10))
    talk.do(talk.relay.forward(1, b"x" * 110))
    talk.from_runtime(frames.window_update(0, 60))
    assert talk.client == b""
    talk.from_runtime(frames.window_update(0, 60))
    assert talk.client == frames.window_update(0, 20)


def test_shrunken_message_is_paid_back() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b"x" * 100))
    talk.do(talk.relay.forward(1, b"x" * 10))
    assert talk.client == frames.window_update(0, 90)


def test_held_messages_leave_the_client_a_window_for_other_calls() -> None:
    talk = Talk()
    for number in range(10):
        talk.from_client(talk.request(1 + 2 * number, HOOKED, bytes(15_000)))
        assert talk.relay._state.window.advertised >= 65_535 - 16_384
    for number in range(10):
        talk.do(talk.relay.forward(1 + 2 * number, bytes(15_000)))
        talk.from_runtime(frames.window_update(0, 15_005))
    assert talk.relay._state.window.advertised == 65_535 == talk.relay._state.window.real


def test_passing_data_waits_while_the_debt_has_used_up_the_window() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b""))
    talk.do(talk.relay.forward(1, bytes(65_535 - 5)))
    data = frames.frame(DATA, frames.END_STREAM, 3, bytes(100))
    talk.from_client(talk.request_headers(3, PASSING))
    talk.runtime.clear()
    talk.from_client(data)
    assert talk.runtime == b""
    talk.from_runtime(frames.window_update(0, 40))
    talk.from_runtime(frames.window_update(0, 80))
    assert talk.runtime_sees() == [(DATA, 3, bytes(40)), (DATA, 3, bytes(60))]


def held_data(talk: Talk, data: bytes) -> None:
    """Have a passing call's DATA wait for the runtime's window."""
    talk.from_client(talk.request(1, HOOKED, b""))
    talk.do(talk.relay.forward(1, bytes(65_535 - 5)))
    talk.from_client(talk.request_headers(3, PASSING))
    talk.clear()
    talk.from_client(data)
    assert talk.runtime == b""


def test_padding_of_held_data_is_paid_back_as_it_goes_no_further() -> None:
    talk = Talk()
    held_data(talk, frames.frame(DATA, frames.PADDED, 3, b"\x09" + b"data" + bytes(9)))
    assert talk.client == frames.window_update(3, 10)
    talk.from_runtime(frames.window_update(0, 1000))
    assert talk.runtime == frames.frame(DATA, 0, 3, b"data")


@pytest.mark.parametrize("by", ["client", "runtime"])
def test_held_data_of_a_reset_call_goes_nowhere(by: str) -> None:
    talk = Talk()
    held_data(talk, frames.frame(DATA, 0, 3, bytes(100)))
    if by == "client":
        talk.from_client(frames.rst_stream(3, CANCEL))
        assert talk.runtime == frames.rst_stream(3, CANCEL)
    else:
        talk.from_runtime(frames.rst_stream(3, CANCEL))
    talk.runtime.clear()
    talk.from_runtime(frames.window_update(0, 65_535))
    assert talk.runtime == b""
    assert (talk.relay._state.window.owed, talk.relay._state.window.waiting) == (0, 0)


def test_settings_ack_does_not_overtake_held_data() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b""))
    talk.do(talk.relay.forward(1, bytes(65_535 - 5)))
    talk.from_client(talk.request_headers(3, PASSING) + frames.frame(DATA, 0, 3, bytes(100)))
    talk.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 10))
    talk.runtime.clear()
    talk.from_client(SETTINGS_ACK)
    talk.from_client(SETTINGS_ACK)
    assert talk.runtime == b""
    talk.from_runtime(frames.window_update(0, 1000))
    assert talk.runtime == frames.frame(DATA, 0, 3, bytes(100)) + SETTINGS_ACK * 2


def test_window_lowered_with_a_hooked_call_open_holds_its_message() -> None:
    talk = Talk()
    talk.from_client(SETTINGS_ACK)
    talk.from_client(talk.request(1, HOOKED, b""))
    talk.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 0))
    talk.from_client(SETTINGS_ACK)
    talk.runtime.clear()
    talk.do(talk.relay.forward(1, b"more"))
    assert talk.runtime == b""
    talk.from_runtime(frames.window_update(1, 100))
    assert talk.runtime_sees() == [(DATA, 1, prefixed(b"more"))]


def test_client_can_send_a_hooked_request_whatever_the_runtimes_window() -> None:
    talk = Talk()
    talk.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 0))
    talk.from_client(SETTINGS_ACK * 2)
    talk.client.clear()
    talk.from_client(talk.request_headers(1, HOOKED))
    assert talk.client_sees() == [(WINDOW_UPDATE, 1, (65_535).to_bytes(4))]


def test_client_can_go_on_with_a_hooked_request_when_the_runtimes_window_shrinks() -> None:
    talk = Talk()
    talk.from_client(SETTINGS_ACK + talk.request_headers(1, HOOKED))
    talk.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 0))
    talk.client.clear()
    talk.from_client(SETTINGS_ACK)
    assert talk.client_sees() == [(WINDOW_UPDATE, 1, (65_535).to_bytes(4))]


@pytest.mark.parametrize("first", ["the call", "the SETTINGS"])
def test_client_s_window_never_grows_past_the_largest(first: str) -> None:
    """A hooked request's window is the relay's own to open, and the runtime's SETTINGS open it once more."""
    talk = Talk()
    talk.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 0))
    talk.from_client(SETTINGS_ACK * 2)
    if first == "the call":
        talk.from_client(talk.request_headers(1, HOOKED))
    talk.clear()
    talk.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW))
    assert talk.client_sees() == [(frames.SETTINGS, 0, b"\0\4" + (frames.MAX_WINDOW - 65_535).to_bytes(4))]
    if first == "the SETTINGS":
        talk.from_client(talk.request_headers(1, HOOKED))
        assert talk.client_sees() == [(WINDOW_UPDATE, 1, (65_535).to_bytes(4))]
    talk.from_client(SETTINGS_ACK)
    talk.from_client(frames.frame(DATA, END_STREAM, 1, prefixed(b"in")))
    talk.do(talk.relay.forward(1, bytes(60_000)))
    assert sum(len(data) for kind, _, data in talk.runtime_sees() if kind == DATA) == 60_005


def test_other_settings_pass_as_they_came() -> None:
    talk = Talk()
    settings = frames.settings_payload([(frames.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW - 65_535), (0xABC, 0xFFFFFFFF)])
    talk.from_runtime(frames.frame(frames.SETTINGS, 0, 0, settings))
    assert talk.client == frames.frame(frames.SETTINGS, 0, 0, settings)


@pytest.mark.parametrize("answered", [False, True], ids=["before headers", "after headers"])
def test_refusal_resets_the_runtime_and_answers_the_client(answered: bool) -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b"in"))
    if answered:
        talk.from_runtime(talk.answer_headers(1))
    talk.client_sees()
    talk.runtime.clear()
    talk.do(talk.relay.refuse(1, 9, "nö: 100 %"))
    assert talk.runtime == frames.rst_stream(1, CANCEL)
    [window, (kind, stream, fields)] = sorted(talk.client_sees(), reverse=True)
    assert window == (WINDOW_UPDATE, 0, (7).to_bytes(4))
    assert (kind, stream) == (HEADERS, 1)
    status = {"grpc-status": "9", "grpc-message": "n%C3%B6: 100 %25"}
    assert fields == (status if answered else {":status": "200", "content-type": "application/grpc", **status})
    assert talk.all(Ended) == [Ended(1, HOOKED, 9, True)]


def test_late_answer_to_a_refused_call_goes_nowhere_and_the_next_is_understood() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED) + talk.request(3, PASSING))
    talk.do(talk.relay.refuse(1, 9, ""))
    talk.client_sees()
    talk.runtime.clear()
    late = talk.answer_headers(1, ("x-new", "1")) + frames.frame(DATA, 0, 1, bytes(50))
    talk.from_runtime(late + talk.answer_headers(3, ("x-new", "1")))
    assert talk.client_sees() == [(HEADERS, 3, {":status": "200", "x-new": "1"})]
    assert talk.runtime == frames.window_update(0, 50)


def test_answer_is_learned_before_its_end_passes() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED))
    talk.do(talk.relay.forward(1, b"", print))
    talk.actions.clear()
    talk.from_runtime(talk.answer(1, b"id"))
    assert talk.actions == [Learn(print, b"id"), Ended(1, HOOKED, 0, True)]
    assert [kind for kind, _, _ in talk.client_sees()] == [HEADERS, DATA, HEADERS]


def test_what_is_to_be_learned_comes_first_whatever_came_before_it() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED) + talk.request(3, PASSING))
    talk.do(talk.relay.forward(1, b"", print))
    actions = talk.relay.runtime_bytes(talk.answer(3) + talk.answer(1, b"id"))
    assert [type(action) for action in actions] == [Learn, ToClient, Ended, Ended]


@pytest.mark.parametrize("status, message", [(5, b"id"), (0, None)], ids=["an error", "no message"])
def test_what_is_no_ok_answer_is_not_learned(status: int, message: bytes | None) -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED))
    talk.do(talk.relay.forward(1, b"", print))
    data = b"" if message is None else frames.frame(DATA, 0, 1, prefixed(message))
    talk.from_runtime(talk.answer_headers(1) + data + talk.trailers(1, status))
    assert talk.all(Learn) == []
    assert talk.all(Ended) == [Ended(1, HOOKED, status, True)]


def test_client_reset_forgets_the_question() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED, b"in"))
    talk.from_client(frames.rst_stream(1, CANCEL))
    assert talk.actions[-2:] == [Ended(1, HOOKED, 1, True), Forget(1)]
    assert talk.client == frames.window_update(0, 7)
    assert talk.relay.forward(1, b"late") == []
    assert not talk.relay._state.calls


@pytest.mark.parametrize("error, code", [(0, 13), (7, 14), (8, 1), (11, 8), (12, 7), (99, 13)], ids=str)
def test_runtimes_reset_is_counted_as_grpc_reads_it(error: int, code: int) -> None:
    talk = Talk()
    talk.from_client(talk.request(1, PASSING))
    talk.from_runtime(frames.rst_stream(1, error))
    assert talk.client == frames.rst_stream(1, error)
    assert talk.all(Ended) == [Ended(1, PASSING, code, False)]


# --- the end of a connection -----------------------------------------------------------------------------------------


def test_drain_asks_waits_for_the_calls_and_closes() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, PASSING))
    talk.do(talk.relay.drain())
    [(kind, _, last), (ping, _, opaque)] = talk.client_sees()
    assert (kind, last, ping) == (GOAWAY, MAX_STREAM.to_bytes(4) + bytes(4), PING)
    assert isinstance(opaque, bytes)
    talk.from_client(talk.request(3, PASSING))  # was on its way
    talk.runtime.clear()
    talk.from_client(frames.frame(PING, frames.ACK, 0, opaque))
    assert talk.runtime == b""
    assert talk.client_sees() == [(GOAWAY, 0, (3).to_bytes(4) + bytes(4))]
    talk.from_runtime(talk.answer(1))
    assert talk.all(Close) == []
    talk.from_runtime(talk.answer(3))
    assert talk.actions[-1] == Close("drained")


def test_drain_before_the_runtime_has_spoken_waits_for_it() -> None:
    talk = Talk(greet=False)
    talk.do(talk.relay.drain())
    assert talk.client == b""
    talk.from_client(frames.PREFACE + SETTINGS)
    talk.from_runtime(SETTINGS)
    assert [kind for kind, _, _ in talk.client_sees()] == [frames.SETTINGS, GOAWAY, PING]


def test_runtimes_goaway_passes_and_never_grows() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, PASSING))
    talk.do(talk.relay.drain())
    talk.from_client(frames.frame(PING, frames.ACK, 0, b"hand-off"))
    talk.client_sees()
    talk.from_runtime(frames.goaway(MAX_STREAM, 2, b"why") + frames.goaway(0, 0))
    assert talk.client == frames.goaway(1, 2, b"why") + frames.goaway(0, 0)


def test_drain_after_the_runtimes_goaway_does_not_grow_it() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, PASSING) + talk.request(3, PASSING))
    talk.from_runtime(frames.goaway(1, 0))
    talk.do(talk.relay.drain())
    talk.from_client(frames.frame(PING, frames.ACK, 0, b"hand-off"))
    assert [payload for kind, _, payload in talk.client_sees() if kind == GOAWAY] == [(1).to_bytes(4) + bytes(4)] * 2


def test_client_gone_cancels_its_calls() -> None:
    talk = Talk()
    talk.from_client(talk.request(1, PASSING) + talk.request(3, HOOKED))
    talk.clear()
    talk.do(talk.relay.client_closed())
    assert talk.all(Ended) == [Ended(1, PASSING, 1, False), Ended(3, HOOKED, 1, True)]
    assert talk.actions[-2:] == [Forget(3), Close("the client has closed")]
    assert talk.relay.client_bytes(b"more") == talk.relay.runtime_bytes(b"more") == []


def test_call_can_be_ended_at_any_moment() -> None:
    talk = Talk()
    talk.from_client(talk.request_headers(1, PASSING))
    talk.from_runtime(talk.answer_headers(1) + frames.frame(DATA, 0, 1, b"half"))
    talk.client_sees()
    talk.runtime.clear()
    talk.do(talk.relay.end(1, "going"))
    assert talk.client_sees() == [
        (HEADERS, 1, {"grpc-status": "14", "grpc-message": "going"}),
        (RST_STREAM, 1, bytes(4)),
    ]
    assert talk.runtime == frames.rst_stream(1, CANCEL)


def test_call_turned_away_never_reaches_the_runtime() -> None:
    talk = Talk()
    talk.relay.turn_away("going")
    talk.from_client(talk.request(1, PASSING, b"in"))
    assert talk.runtime == b""
    [(kind, _, fields), *_] = talk.client_sees()
    assert (kind, fields["grpc-status"]) == (HEADERS, "14")  # type: ignore[index]
    assert talk.all(Started) == []


def trailers(talk: Talk, stream: int) -> bytes:
    """A request's end, with fields that repeat from call to call."""
    return talk.request_headers(stream, PASSING, ("x-some", "new"), ("x-end", "1"), flags=END_STREAM)


@pytest.mark.parametrize("path", [PASSING, HOOKED])
def test_request_with_trailers_that_is_turned_away_leaves_nothing(path: str) -> None:
    talk = Talk()
    talk.relay.turn_away("going")
    talk.from_client(talk.request_headers(1, path) + frames.frame(DATA, 0, 1, prefixed(b"in")) + trailers(talk, 1))
    assert talk.runtime == b""
    [(kind, _, fields), reset, paid_back] = talk.client_sees()
    assert (kind, fields["grpc-status"]) == (HEADERS, "14")  # type: ignore[index]
    assert (reset, paid_back) == ((RST_STREAM, 1, bytes(4)), (WINDOW_UPDATE, 0, (7).to_bytes(4)))
    assert (talk.actions, talk.relay._state.calls) == ([], {})
    assert talk.relay._state.window.advertised == talk.relay._state.window.real == 65_535


def runtime_reads(talk: Talk, decoder: Decoder) -> list[tuple[int, bool, dict[Any, Any]]]:
    """(stream, whether it ends, fields) of the header blocks that came, as a peer understands them."""
    blocks = [raw for raw in split(talk.runtime) if raw[3] == HEADERS]
    return [
        (int.from_bytes(raw[5:9]), bool(raw[4] & END_STREAM), dict[Any, Any](list(decoder.decode(raw[9:]))))
        for raw in blocks
    ]


@pytest.mark.parametrize("by", ["turned away", "ended"])
def test_headers_after_those_that_went_nowhere_are_understood(by: str) -> None:
    """Those that the runtime never saw have changed the client's table, to which what comes after them refers."""
    talk, runtime = Talk(), Decoder()
    talk.from_client(talk.request_headers(1, PASSING) + talk.request_headers(3, PASSING))
    assert [stream for stream, _, _ in runtime_reads(talk, runtime)] == [1, 3]
    if by == "turned away":
        talk.relay.turn_away("going")
        talk.from_client(talk.request_headers(5, PASSING, ("x-some", "new")))
    else:
        talk.do(talk.relay.end(1, "over"))
        talk.from_client(trailers(talk, 1))
    assert runtime_reads(talk, runtime) == []
    talk.from_client(trailers(talk, 3))
    [(stream, ends, fields)] = runtime_reads(talk, runtime)
    assert (stream, ends, fields["x-some"], fields["x-end"]) == (3, True, "new", "1")


@pytest.mark.parametrize(("rewritten", "passes"), [(b"in", True), (b"out!", False)], ids=["unchanged", "changed"])
def test_request_that_tells_its_length_is_not_changed(rewritten: bytes, passes: bool) -> None:
    talk = Talk()
    talk.from_client(talk.request_headers(1, HOOKED, ("content-length", "7")))
    talk.from_client(frames.frame(DATA, END_STREAM, 1, prefixed(b"in")))
    talk.do(talk.relay.forward(1, rewritten))
    assert ((DATA, 1, prefixed(b"in")) in talk.runtime_sees()) is passes
    assert talk.all(Ended) == ([] if passes else [Ended(1, HOOKED, 13, True)])


# --- held up ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Talk:
    """A rewritten message has used up the runtime's window, and the DATA of another call waits."""
    talk = Talk()
    talk.from_client(talk.request(1, HOOKED))
    talk.do(talk.relay.forward(1, bytes(frames.FIRST_WINDOW - 5)))
    talk.from_client(talk.request_headers(3, PASSING) + frames.frame(DATA, 0, 3, b"x"))
    talk.clear()
    return talk


def test_window_of_a_stream_does_not_overtake_its_headers(held: Talk) -> None:
    held.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 100_000))
    held.from_client(SETTINGS_ACK + held.request_headers(5, PASSING) + frames.window_update(5, 1000))
    assert held.runtime_sees() == []
    held.from_runtime(frames.window_update(0, 1000))
    assert [(kind, stream) for kind, stream, _ in held.runtime_sees()] == [
        (DATA, 3),
        (frames.SETTINGS, 0),
        (HEADERS, 5),
        (WINDOW_UPDATE, 5),
    ]


@pytest.mark.parametrize(
    ("added", "passed"),
    [
        pytest.param([5] * 1000, [5000], id="many"),
        pytest.param([frames.MAX_WINDOW], [frames.MAX_WINDOW], id="all there is"),
        pytest.param([frames.MAX_WINDOW, 1], [frames.MAX_WINDOW, 1], id="too much by one"),
        pytest.param([frames.MAX_WINDOW] * 1000, [frames.MAX_WINDOW] * 2, id="too much by far"),
    ],
)
@pytest.mark.parametrize("path", [PASSING, HOOKED])
def test_windows_of_a_stream_wait_for_its_headers_as_one_sum(
    held: Talk, path: str, added: list[int], passed: list[int]
) -> None:
    held.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 100_000))
    held.from_client(SETTINGS_ACK + held.request_headers(5, path))
    waiting = len(held.relay._outbox.queue)
    for increment in added:
        held.from_client(frames.window_update(5, increment))
    assert len(held.relay._outbox.queue) == waiting
    assert held.runtime_sees() == []
    held.from_runtime(frames.window_update(0, 1000))
    seen = held.runtime_sees()
    assert [(kind, stream) for kind, stream, _ in seen[:3]] == [(DATA, 3), (frames.SETTINGS, 0), (HEADERS, 5)]
    assert seen[3:] == [(WINDOW_UPDATE, 5, increment.to_bytes(4)) for increment in passed]


def test_calls_that_are_reset_while_they_wait_are_held_up_to_a_bound(held: Talk) -> None:
    """They cost the client no window."""
    held.from_runtime(setting(frames.INITIAL_WINDOW_SIZE, 100_000))
    held.from_client(SETTINGS_ACK)
    block = literal([(b"x", bytes(1 << 20))])
    calls = 0
    while not held.all(Close) and calls < 100:
        stream = 5 + 2 * calls
        held.from_client(frames.header_frames(stream, block, end_stream=False) + frames.rst_stream(stream, CANCEL))
        calls += 1
    assert held.all(Close) == [
        Close("the client sent over 67108864 bytes of frames that wait for windows", broken=True)
    ]
    assert calls == 64  # and a little more than 1 MiB each
    assert held.runtime == b""


@pytest.mark.slow
def test_ends_of_calls_that_never_were_are_held_up_to_a_bound(held: Talk) -> None:
    end = frames.frame(DATA, frames.END_STREAM, 77)
    for _ in range(300):
        held.from_client(end * 1000)
    assert held.all(Close) == [
        Close("the client sent over 67108864 bytes of frames that wait for windows", broken=True)
    ]


def test_data_that_went_or_was_dropped_waits_no_more_and_counts_no_more(held: Talk) -> None:
    waiting = held.relay._outbox._unpaid_bytes
    held.from_client(held.request_headers(5, PASSING) + frames.frame(DATA, 0, 5, b"x") * 10)
    assert held.relay._outbox._unpaid_bytes > waiting
    held.from_client(frames.rst_stream(5, CANCEL))
    held.from_runtime(frames.window_update(0, 1000))
    assert not held.relay._outbox.queue
    assert held.relay._outbox._unpaid_bytes == 0


def test_window_of_a_stream_whose_headers_have_gone_waits_for_nothing(held: Talk) -> None:
    held.from_client(frames.window_update(3, 1000))
    assert [(kind, stream) for kind, stream, _ in held.runtime_sees()] == [(WINDOW_UPDATE, 3)]


@pytest.mark.parametrize("padding", [None, 0, 3], ids=["bare", "padded-with-nothing", "padded"])
def test_empty_data_that_would_wait_is_dropped_and_paid_back(held: Talk, padding: int | None) -> None:
    flags, payload = (0, b"") if padding is None else (frames.PADDED, bytes([padding]) + bytes(padding))
    held.from_client(frames.frame(DATA, flags, 3, payload) * 1000)
    sizes = [int.from_bytes(raw[9:]) for raw in split(held.client) if raw[8] == 3]
    assert len(held.relay._outbox.queue) == 1
    assert sum(sizes) == 1000 * len(payload)  # the connection's share goes to what the grown message owes
    held.from_client(frames.frame(DATA, END_STREAM, 3))
    held.from_runtime(frames.window_update(0, 1000))
    assert b"".join(data for kind, stream, data in held.runtime_sees() if (kind, stream) == (DATA, 3)) == b"x"
