"""The fuzzed connection's client: opens calls, sends and reads in pieces, resets, and notes what it sees."""

from dataclasses import dataclass

import h2.events

from tests.fronts.relay.fuzz.plan import Planner
from tests.fronts.relay.fuzz.world import HOOKED, PASSING, World


@dataclass
class Client:
    world: World
    planner: Planner
    calls_to_make: int
    resets: float
    settings_rate: float

    def open_call(self) -> None:
        world, rng = self.world, self.world.rng
        if not self.calls_to_make:
            return
        if world.tap.last_streams:
            self.calls_to_make = 0
            return
        if world.client.open_outbound_streams >= 80:
            return
        self.calls_to_make -= 1
        plan = self.planner.plan(world.client.get_next_available_stream_id())
        world.plans[plan.stream] = plan
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", HOOKED if plan.hooked else PASSING),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        if self.planner.headers_vary or plan.stream == 1:
            headers.append((b"grpc-timeout", b"%dm" % rng.randrange(100_000)))
        if plan.hooked and plan.request[:1] == b"\1":
            headers.append((b"grpc-encoding", b"gzip"))
        if rng.random() < 0.02:
            headers += [(b"baggage", rng.randbytes(5000).hex().encode())]
        ends = not plan.request and not plan.trailers and rng.random() < 0.5
        weight = 9 if rng.random() < 0.1 else None
        world.client.send_headers(plan.stream, headers, end_stream=ends, priority_weight=weight)
        plan.client_done = ends
        for _ in range(rng.choice((0, 0, 0, 2))):
            world.client.increment_flow_control_window(rng.randrange(1, 10_000), plan.stream)

    def sends(self) -> None:
        """Some of the DATA of some call."""
        world, rng, peer = self.world, self.world.rng, self.world.client
        plan = world.some_plan(lambda p: not (p.client_done or p.client_reset or p.seen_reset is not None))
        if plan is None:
            return
        left = len(plan.request) - plan.to_send
        window = min(peer.local_flow_control_window(plan.stream), peer.max_outbound_frame_size)
        if window < 0:
            return
        pad = rng.choice((None, None, None, 0, 3, 255))
        if pad is not None and pad + 1 > window:
            pad = None
        size = min(left, window - (0 if pad is None else pad + 1), world.most())
        ends = size == left and rng.random() < 0.6
        if left and not size and rng.random() < 0.98:
            return
        piece = plan.request[plan.to_send : plan.to_send + size]
        plan.to_send += size
        if ends and plan.trailers:
            if piece:
                peer.send_data(plan.stream, piece, pad_length=pad)
            peer.send_headers(plan.stream, plan.trailers, end_stream=True)
        else:
            peer.send_data(plan.stream, piece, end_stream=ends, pad_length=pad)
        plan.client_done = ends

    def reads(self) -> None:
        world = self.world
        if world.unread_client:
            stream, size = world.unread_client.pop(world.rng.randrange(len(world.unread_client)))
            world.client.acknowledge_received_data(size, stream)
        else:
            world.reopen(world.client)

    def moves(self) -> None:
        """What is not about a message."""
        world, rng, peer = self.world, self.world.rng, self.world.client
        if world.calm:
            return
        if rng.random() < self.resets:
            plan = world.some_plan(lambda p: not p.over)
            if plan is not None:
                plan.client_reset = True
                peer.reset_stream(plan.stream, rng.choice((8, 8, 0, 2)))
        if rng.random() < self.resets / 3:
            plan = world.some_plan(lambda p: p.started == 1 and not p.ended)
            if plan is not None and (actions := world.relay.end(plan.stream, "over")):
                plan.ended_here = True
                world.do(actions)
        if rng.random() < self.settings_rate:
            world.change_settings(peer)
        if rng.random() < 0.02:
            peer.ping(rng.randbytes(8))
        if rng.random() < 0.02:
            peer.increment_flow_control_window(rng.randrange(1, 10_000))
        if rng.random() < 0.05:
            world.widen(peer)

    def events(self, events: list[h2.events.Event]) -> None:
        plans = self.world.plans
        for event in events:
            match event:
                case h2.events.ResponseReceived():
                    plan = plans[event.stream_id]
                    assert plan.seen_headers is None
                    plan.seen_headers = [(name, value) for name, value in event.headers]
                case h2.events.DataReceived():
                    plans[event.stream_id].seen += event.data
                    if event.flow_controlled_length:
                        self.world.unread_client.append((event.stream_id, event.flow_controlled_length))
                case h2.events.TrailersReceived():
                    plans[event.stream_id].seen_trailers = [(name, value) for name, value in event.headers]
                case h2.events.StreamEnded():
                    plan = plans[event.stream_id]
                    plan.seen_end = True
                case h2.events.StreamReset():
                    plans[event.stream_id].seen_reset = event.error_code
                case h2.events.SettingsAcknowledged():
                    self.world.unacknowledged.discard(self.world.client)
                case h2.events.ConnectionTerminated():
                    raise AssertionError(event)
