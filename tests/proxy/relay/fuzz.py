"""Random calls through the relay's core, between strict peers: every byte, window and count must come out right.

`python -m tests.proxy.relay.fuzz [--seconds N] [--seed S]` runs until the time is over, or one seed.
"""

import argparse
import gzip
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

import h2.events
import h2.exceptions
import h2.settings

from criproxy.proxy.relay import frames
from criproxy.proxy.relay.actions import Action, Ask, Close, Ended, Forget, Learn, Started, ToClient, ToUpstream
from criproxy.proxy.relay.core import Relay
from tests.proxy.relay.peers import Mangler, Pipe, Tap, connection

HOOKED = b"/test.Hooked/Call"
PASSING = b"/test.Passing/Call"
WINDOWS = (0, 1, 100, 5000, 16_384, 65_535, 65_535, 200_000, 1 << 20)
CODES = ("reset", "refused")


@dataclass(repr=False)
class Plan:
    """What is to happen in one call, and what has come of it."""

    stream: int
    hooked: bool
    request: bytes
    message: bytes | None
    """The one message in `request`, unpacked; None when there is none, or more."""
    trailers: list[tuple[bytes, bytes]]
    status: int
    answer: bytes
    answer_message: bytes | None
    initial: list[tuple[bytes, bytes]]
    verdict: str
    early: bool
    unasked: str = ""
    """Why a hooked request is refused, or passes, without a hook: its status code, or "passes"."""

    empty: bool = False
    """The client's HEADERS are its end."""
    to_send: int = 0
    client_done: bool = False
    asked: bool = False
    forwarded: bytes | None = None
    ticket: bool = False
    refused: int | None = None
    learned: bytes | None = None
    got_request: bytearray = field(default_factory=bytearray)
    got_end: bool = False
    server_headers: bool = False
    answered: int = 0
    server_done: bool = False
    ended_here: bool = False
    client_reset: bool = False
    server_reset: bool = False
    late_server_reset: bool = False
    seen_headers: list[tuple[bytes, bytes]] | None = None
    seen: bytearray = field(default_factory=bytearray)
    seen_trailers: list[tuple[bytes, bytes]] | None = None
    seen_end: bool = False
    seen_reset: int | None = None
    started: int = 0
    ended: list[Ended] = field(default_factory=list)

    def __repr__(self) -> str:
        return str({key: f"{len(v)} B" if isinstance(v, (bytes, bytearray)) else v for key, v in vars(self).items()})


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4) + message


class Fuzz:
    """One connection, from `seed`. Raises AssertionError, or what h2 raises when it is sent what it must not be."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.client = connection(client=True)
        self.server = connection(client=False)
        self.relay = Relay(lambda path: path.encode() == HOOKED)
        self.from_client, self.to_server, self.from_server, self.to_client = (Pipe(rng) for _ in range(4))
        self.client_out, self.server_out = Mangler(rng), Mangler(rng)
        self.tap, self.server_tap = Tap(), Tap()
        self.table_changed: set[h2.connection.H2Connection] = set()
        self.plans: dict[int, Plan] = {}
        self.asks: list[Ask] = []
        self.learns: list[Learn] = []
        self.unread_client: list[tuple[int, int]] = []
        self.unread_server: list[tuple[int, int]] = []
        self.closed: Close | None = None
        self.goaways = 0
        self.unacknowledged = {self.client, self.server}
        """Whose SETTINGS are under way: h2 takes one ACK for an ACK of all."""
        self.drained = False
        self.calm = False
        self.calls_to_make = rng.randrange(1, 25)
        self.big = rng.random() < 0.3
        self.resets = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.settings_rate = rng.choice((0.0, 0.02, 0.1))
        self.hooked_ratio = rng.choice((0.0, 0.3, 0.7, 1.0))
        self.headers_vary = rng.random() < 0.5

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for peer in (self.client, self.server):
            peer.initiate_connection()
        if self.rng.random() < 0.2:
            self.server.increment_flow_control_window(self.rng.randrange(1, 1 << 20))
        steps: list[Callable[[], object]] = [
            self.open_call,
            self.client_sends,
            self.client_sends,
            self.client_sends,
            self.client_reads,
            self.client_moves,
            self.server_moves,
            self.server_moves,
            self.server_reads,
            self.answer_ask,
            self.finish_learning,
            self.client_to_relay,
            self.client_to_relay,
            self.relay_to_server,
            self.relay_to_server,
            self.server_to_relay,
            self.server_to_relay,
            self.relay_to_client,
            self.relay_to_client,
        ]
        limit = 80_000
        while limit and (self.calls_to_make or not all(self.over(plan) for plan in self.plans.values())):
            limit -= 1
            self.rng.choice(steps)()
            if limit == 50_000:
                self.calm_down()
        assert limit, f"calls do not end: {[p for p in self.plans.values() if not self.over(p)][:1]}"
        self.calm_down()
        self.settle(steps)
        self.check()
        self.drain()

    def over(self, plan: Plan) -> bool:
        if plan.client_reset or plan.seen_reset is not None:
            return True
        return plan.seen_end and plan.client_done

    def calm_down(self) -> None:
        """No more surprises: windows open, nothing is reset."""
        if self.calm:
            return
        self.calm = True
        for pipe in (self.from_client, self.to_server, self.from_server, self.to_client):
            pipe.sizes = (1 << 20,)
        while self.unacknowledged:
            self.move()
        for peer in (self.client, self.server):
            peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
            self.unacknowledged.add(peer)

    def move(self) -> None:
        self.client_to_relay()
        self.server_to_relay()
        self.relay_to_client()
        self.relay_to_server()
        self.finish_learning()

    def settle(self, steps: list[Callable[[], object]]) -> None:
        for _ in range(10_000):
            for step in steps:
                step()
            self.flush()
            waits = [pipe.data for pipe in (self.from_client, self.to_server, self.from_server, self.to_client)]
            waits += [self.unread_client, self.unread_server, self.asks, self.learns]
            if not self.unacknowledged and not any(waits) and not self.top_up():
                return
        raise AssertionError("it does not settle")

    def top_up(self) -> bool:
        """Have the server say all that it has read: h2 waits until it is half a window."""
        windows = self.server._inbound_flow_control_window_manager
        windows._bytes_processed = 0
        left = windows.max_window_size - windows.current_window_size
        if left:
            self.server.increment_flow_control_window(left)
        return bool(left)

    # --- moving bytes ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.from_client.put(self.client_out(self.client.data_to_send()))
        self.from_server.put(self.server_out(self.server.data_to_send()))

    def client_to_relay(self) -> None:
        self.flush()
        if self.from_client.data and self.closed is None:
            self.do(self.relay.client_bytes(memoryview(self.from_client.some())))

    def server_to_relay(self) -> None:
        self.flush()
        if self.from_server.data and self.closed is None:
            self.do(self.relay.upstream_bytes(memoryview(self.from_server.some())))

    def relay_to_server(self) -> None:
        if self.to_server.data:
            for raw in self.server_tap(self.to_server.some()):
                self.server_events(self.server.receive_data(raw))

    def relay_to_client(self) -> None:
        if self.to_client.data:
            for raw in self.tap(self.to_client.some()):
                self.client_events(self.client.receive_data(raw))

    def do(self, actions: list[Action]) -> None:
        for number, action in enumerate(actions):
            match action:
                case ToClient(data):
                    assert data
                    self.to_client.put(data)
                case ToUpstream(data):
                    assert data
                    self.to_server.put(data)
                case Ask(stream, method, message):
                    plan = self.plans[stream]
                    assert method.encode() == HOOKED
                    assert not plan.asked
                    assert message == plan.message
                    plan.asked = True
                    self.asks.append(action)
                case Forget(stream):
                    self.asks = [ask for ask in self.asks if ask.stream != stream]
                case Learn(stream, ticket, message):
                    assert number == len(actions) - 1
                    assert ticket == f"ticket {stream}"
                    self.plans[stream].learned = message
                    self.learn(action)
                case Started(stream):
                    self.plans[stream].started += 1
                case Ended(stream, method, _, hooked):
                    plan = self.plans[stream]
                    assert method.encode() == (HOOKED if plan.hooked else PASSING)
                    assert hooked == plan.hooked
                    plan.ended.append(action)
                case Close():
                    self.closed = action
                    assert not action.broken, action

    # --- the interceptor ---------------------------------------------------------------------------------------------

    def answer_ask(self) -> None:
        if not self.asks or self.closed:
            return
        ask = self.asks.pop(self.rng.randrange(len(self.asks)))
        plan = self.plans[ask.stream]
        match plan.verdict:
            case "refuse":
                plan.refused = self.rng.randrange(1, 17)
                self.do(self.relay.refuse(ask.stream, plan.refused, f"nö % {ask.stream}"))
                return
            case "same":
                message = bytes(bytearray(ask.message))
            case "shrink":
                message = ask.message[: len(ask.message) // 3]
            case "grow":
                message = ask.message + self.rng.randbytes(self.rng.choice((1, 100, 70_000)))
            case _:
                message = b""
        plan.forwarded = plan.request if message == ask.message else prefixed(message)
        plan.ticket = self.rng.random() < 0.6
        self.do(self.relay.forward(ask.stream, message, f"ticket {ask.stream}" if plan.ticket else None))

    def learn(self, action: Learn) -> None:
        if self.rng.random() < 0.5:
            self.do(self.relay.learned(action.stream))
        else:
            self.learns.append(action)
            if self.rng.random() < 0.7:
                self.do(self.relay.resume())

    def finish_learning(self) -> None:
        if self.learns:
            action = self.learns.pop(self.rng.randrange(len(self.learns)))
            assert not self.plans[action.stream].seen_end
            self.do(self.relay.learned(action.stream))

    # --- the client --------------------------------------------------------------------------------------------------

    def open_call(self) -> None:
        if not self.calls_to_make:
            return
        if self.tap.last_streams:
            self.calls_to_make = 0
            return
        if self.client.open_outbound_streams >= 80:
            return
        self.calls_to_make -= 1
        plan = self.plan(self.client.get_next_available_stream_id())
        self.plans[plan.stream] = plan
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", HOOKED if plan.hooked else PASSING),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        if self.headers_vary or plan.stream == 1:
            headers.append((b"grpc-timeout", b"%dm" % self.rng.randrange(100_000)))
        if plan.hooked and plan.request[:1] == b"\1":
            headers.append((b"grpc-encoding", b"gzip"))
        if self.rng.random() < 0.02:
            headers += [(b"baggage", self.rng.randbytes(5000).hex().encode())]
        ends = not plan.request and not plan.trailers and self.rng.random() < 0.5
        priority = {"priority_weight": 9} if self.rng.random() < 0.1 else {}
        self.client.send_headers(plan.stream, headers, end_stream=ends, **priority)
        plan.client_done = ends

    def plan(self, stream: int) -> Plan:
        rng = self.rng
        hooked = rng.random() < self.hooked_ratio
        answer_message, answer = self.some_message()
        status = 0 if rng.random() < 0.8 else rng.randrange(1, 17)
        if status:
            answer_message, answer = None, b""
        elif rng.random() < 0.2:
            answer_message, answer = None, b"".join(self.some_message()[1] for _ in range(rng.randrange(4)))
        plan = Plan(
            stream,
            hooked,
            *(self.some_hooked_request() if hooked else self.some_passing_request()),
            status=status,
            answer=answer,
            answer_message=answer_message,
            initial=self.some_metadata(),
            verdict=rng.choice(("same", "shrink", "grow", "empty", "refuse")),
            early=rng.random() < 0.05,
            trailers=[] if rng.random() < (0.97 if hooked else 0.9) else [(b"x-end", rng.randbytes(4).hex().encode())],
        )
        if hooked and (plan.message is None or plan.trailers):
            plan.unasked = 13
        return plan

    def some_metadata(self) -> list[tuple[bytes, bytes]]:
        if not self.headers_vary or self.rng.random() < 0.5:
            return []
        return [(b"x-some", self.rng.randbytes(self.rng.randrange(1, 30)).hex().encode())]

    def some_bytes(self) -> bytes:
        most = self.rng.choice((0, 1, 100, 3000, 20_000))
        if self.big and self.rng.random() < 0.2:
            most = 300_000
        return self.rng.randbytes(self.rng.randint(0, most))

    def some_message(self) -> tuple[bytes, bytes]:
        message = self.some_bytes()
        return message, prefixed(message)

    def some_passing_request(self) -> tuple[bytes, bytes | None]:
        return b"".join(self.some_message()[1] for _ in range(self.rng.choice((0, 1, 1, 1, 3)))), None

    def some_hooked_request(self) -> tuple[bytes, bytes | None]:
        message, request = self.some_message()
        packed = prefixed(gzip.compress(message), 1)
        odd = (b"", request[:-1], request[:4], request + request, prefixed(b"no gzip" + message, 1), packed[:-3])
        choice = self.rng.randrange(14)
        if choice < len(odd):
            return odd[choice], None
        return (packed if choice < 9 else request), message

    def client_sends(self) -> None:
        """Some of the DATA of some call."""
        plan = self.some_plan(lambda p: not (p.client_done or p.client_reset or p.seen_reset is not None))
        if plan is None:
            return
        left = len(plan.request) - plan.to_send
        window = min(self.client.local_flow_control_window(plan.stream), self.client.max_outbound_frame_size)
        if window < 0:
            return
        pad = self.rng.choice((None, None, None, 0, 3, 255))
        if pad is not None and pad + 1 > window:
            pad = None
        size = min(left, window - (0 if pad is None else pad + 1), self.most())
        ends = size == left and self.rng.random() < 0.6
        if left and not size and self.rng.random() < 0.98:
            return
        piece = plan.request[plan.to_send : plan.to_send + size]
        plan.to_send += size
        if ends and plan.trailers:
            if piece:
                self.client.send_data(plan.stream, piece, pad_length=pad)
            self.client.send_headers(plan.stream, plan.trailers, end_stream=True)
        else:
            self.client.send_data(plan.stream, piece, end_stream=ends, pad_length=pad)
        plan.client_done = ends

    def most(self) -> int:
        return 1 << 20 if self.calm else self.rng.choice((1, 50, 10_000, 1 << 20))

    def some_plan(self, which: Callable[[Plan], bool]) -> Plan | None:
        plans = [plan for plan in self.plans.values() if which(plan)]
        return self.rng.choice(plans) if plans else None

    def client_reads(self) -> None:
        if self.unread_client:
            stream, size = self.unread_client.pop(self.rng.randrange(len(self.unread_client)))
            self.client.acknowledge_received_data(size, stream)

    def client_moves(self) -> None:
        """What is not about a message."""
        if self.calm:
            return
        if self.rng.random() < self.resets:
            plan = self.some_plan(lambda p: not self.over(p))
            if plan is not None:
                plan.client_reset = True
                self.client.reset_stream(plan.stream, self.rng.choice((8, 8, 0, 2)))
        if self.rng.random() < self.resets / 3:
            plan = self.some_plan(lambda p: p.started == 1 and not p.ended)
            if plan is not None and (actions := self.relay.end(plan.stream, "over")):
                plan.ended_here = True
                self.do(actions)
        if self.rng.random() < self.settings_rate:
            self.change_settings(self.client)
        if self.rng.random() < 0.02:
            self.client.ping(self.rng.randbytes(8))
        if self.rng.random() < 0.02:
            self.client.increment_flow_control_window(self.rng.randrange(1, 10_000))

    def change_settings(self, peer: h2.connection.H2Connection) -> None:
        code = h2.settings.SettingCodes
        setting, value = self.rng.choice(
            (
                (code.INITIAL_WINDOW_SIZE, self.rng.choice(WINDOWS)),
                (code.INITIAL_WINDOW_SIZE, self.rng.choice(WINDOWS)),
                (code.MAX_FRAME_SIZE, self.rng.choice((16_384, 30_000, 1 << 20))),
                (code.HEADER_TABLE_SIZE, self.rng.choice((0, 100, 4096, 4096, 10_000))),
                (code.MAX_CONCURRENT_STREAMS, 1000),
            )
        )
        if setting == code.HEADER_TABLE_SIZE:
            if peer in self.table_changed:  # hpack's encoder tells two changes as two, though the first is over
                return
            self.table_changed.add(peer)
        if peer not in self.unacknowledged:
            peer.update_settings({setting: value})
            self.unacknowledged.add(peer)

    def client_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            match event:
                case h2.events.ResponseReceived():
                    plan = self.plans[event.stream_id]
                    assert plan.seen_headers is None
                    plan.seen_headers = list(map(tuple, event.headers))
                case h2.events.DataReceived():
                    self.plans[event.stream_id].seen += event.data
                    if event.flow_controlled_length:
                        self.unread_client.append((event.stream_id, event.flow_controlled_length))
                case h2.events.TrailersReceived():
                    self.plans[event.stream_id].seen_trailers = list(map(tuple, event.headers))
                case h2.events.StreamEnded():
                    plan = self.plans[event.stream_id]
                    plan.seen_end = True
                    if plan.learned is not None:
                        assert all(learn.stream != plan.stream for learn in self.learns)
                case h2.events.StreamReset():
                    self.plans[event.stream_id].seen_reset = event.error_code
                case h2.events.SettingsAcknowledged():
                    self.unacknowledged.discard(self.client)
                case h2.events.ConnectionTerminated():
                    raise AssertionError(event)

    # --- the server --------------------------------------------------------------------------------------------------

    def server_reads(self) -> None:
        if self.unread_server:
            stream, size = self.unread_server.pop(self.rng.randrange(len(self.unread_server)))
            self.server.acknowledge_received_data(size, stream)

    def server_moves(self) -> None:
        if not self.calm:
            if self.rng.random() < self.settings_rate:
                self.change_settings(self.server)
            if self.rng.random() < 0.01:
                self.server.ping(self.rng.randbytes(8))
            if self.rng.random() < 0.01:
                self.server.increment_flow_control_window(self.rng.randrange(1, 10_000))
            if self.rng.random() < 0.0005 and self.server_out.started:
                self.goaways += 1
                last = frames.MAX_STREAM if self.goaways == 1 else max(self.plans, default=0)
                self.flush()
                if not self.server_out.rest:
                    self.from_server.put(frames.goaway(last, 0, b"bye"))
            if self.rng.random() < self.resets / 2:
                plan = self.some_plan(lambda p: self.known(p) and not (p.server_done or p.server_reset))
                if plan is not None:
                    self.server_resets(plan)
        plan = self.some_plan(
            lambda p: self.known(p) and not (p.server_done or p.server_reset) and (p.got_end or p.early)
        )
        if plan is not None:
            self.server_answers(plan)

    def known(self, plan: Plan) -> bool:
        stream = self.server.streams.get(plan.stream)
        return stream is not None and not stream.closed

    def server_resets(self, plan: Plan) -> None:
        plan.server_reset = True
        self.server.reset_stream(plan.stream, self.rng.choice((0, 2, 7, 8, 11)))

    def server_answers(self, plan: Plan) -> None:
        status = [(b"grpc-status", b"%d" % plan.status), *plan.initial]
        head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        if not plan.server_headers:
            plan.server_headers = True
            if plan.status and self.rng.random() < 0.5:
                self.server.send_headers(plan.stream, head + status, end_stream=True)
                plan.server_done = True
                plan.answer = b""
            else:
                self.server.send_headers(plan.stream, head + plan.initial)
            return
        left = len(plan.answer) - plan.answered
        if left:
            window = min(self.server.local_flow_control_window(plan.stream), self.server.max_outbound_frame_size)
            pad = self.rng.choice((None, None, None, 0, 200))
            if pad is not None and pad + 1 > window:
                pad = None
            size = min(left, window - (0 if pad is None else pad + 1), self.most())
            if size > 0 or (window >= 0 and self.rng.random() < 0.01):
                size = max(size, 0)
                piece = plan.answer[plan.answered : plan.answered + size]
                self.server.send_data(plan.stream, piece, pad_length=pad)
                plan.answered += size
            return
        if self.rng.random() < 0.1 and self.server.local_flow_control_window(plan.stream) >= 0:
            self.server.send_data(plan.stream, b"")
            return
        self.server.send_headers(plan.stream, status, end_stream=True)
        plan.server_done = True
        if not plan.got_end and self.rng.random() < 0.7:
            plan.late_server_reset = True
            self.server.reset_stream(plan.stream, 0)

    def server_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            match event:
                case h2.events.DataReceived():
                    self.plans[event.stream_id].got_request += event.data
                    if event.flow_controlled_length:
                        self.unread_server.append((event.stream_id, event.flow_controlled_length))
                case h2.events.StreamEnded():
                    self.plans[event.stream_id].got_end = True
                case h2.events.StreamReset():
                    pass
                case h2.events.SettingsAcknowledged():
                    self.unacknowledged.discard(self.server)
                case h2.events.ConnectionTerminated():
                    raise AssertionError(event)

    # --- the outcome -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        wire = self.relay._wire
        assert not wire.calls
        assert self.relay._outbox.idle
        assert not self.relay._down._held_blocks
        assert (wire.ledger.debt, wire.ledger.waiting) == (0, 0), wire.ledger.shown
        seen = self.server._inbound_flow_control_window_manager.current_window_size
        assert self.client.outbound_flow_control_window == seen == wire.ledger.real
        assert (
            self.server.outbound_flow_control_window
            == self.client._inbound_flow_control_window_manager.current_window_size
        )
        assert self.tap.last_streams == sorted(self.tap.last_streams, reverse=True)
        for plan in self.plans.values():
            self.check_plan(plan)

    def check_plan(self, plan: Plan) -> None:
        assert plan.started == 1
        assert len(plan.ended) == 1, plan
        code = plan.ended[0].code
        expected = plan.forwarded if plan.hooked else plan.request
        if plan.hooked and expected is None:
            assert not plan.got_request, "the runtime has seen what no hook has"
            expected = b""
        assert expected is not None and expected.startswith(plan.got_request)
        if plan.got_end and plan.hooked:
            assert plan.got_request == expected
        if plan.ended_here:
            assert code == 14
        if plan.client_reset or plan.server_reset:
            return
        if plan.ended_here:
            trailers = plan.seen_trailers or plan.seen_headers
            assert trailers is not None
            assert (b"grpc-status", b"14") in trailers
            return
        refused = plan.refused or plan.unasked or None
        if refused is not None and not plan.server_headers:
            assert plan.seen_headers is not None
            assert plan.seen_end
            shown = dict(plan.seen_headers)
            assert int(shown[b"grpc-status"]) == refused == code
            if plan.refused is not None:
                assert unquote_to_bytes(shown[b"grpc-message"]).decode() == f"nö % {plan.stream}"
            return
        if plan.early or refused is not None:
            assert plan.seen_end or plan.seen_reset is not None
            return
        assert plan.got_end
        assert plan.got_request == expected
        assert plan.seen_end
        assert plan.seen_reset is None
        assert plan.seen == plan.answer
        assert code == plan.status
        trailers = plan.seen_trailers or plan.seen_headers
        assert trailers is not None
        assert {(b"grpc-status", b"%d" % plan.status), *plan.initial} <= set(trailers)
        if plan.ticket and not plan.status and plan.answer_message is not None:
            assert plan.learned == plan.answer_message
        if plan.ticket and plan.status:
            assert plan.learned is None

    def drain(self) -> None:
        """A hand-over at the end: GOAWAY in two steps, and the connection closes."""
        self.do(self.relay.drain())
        for _ in range(10_000):
            if self.closed:
                break
            self.move()
        assert self.closed is not None and self.closed.reason == "drained"
        self.to_client.put(b"")
        while self.to_client.data:
            self.relay_to_client()
        assert self.tap.last_streams == sorted(self.tap.last_streams, reverse=True)
        assert self.tap.last_streams[-1] <= max(self.plans, default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="only this one")
    options = parser.parse_args()
    if options.seed is not None:
        Fuzz(options.seed).run()
        return 0
    seed, count, end = random.randrange(1 << 40), 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        try:
            Fuzz(seed + count).run()
        except Exception:
            traceback.print_exc()
            print(f"seed {seed + count}")
            return 1
        count += 1
    print(f"{count} connections without an error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
