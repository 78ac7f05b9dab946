"""The fuzzed connection's runtime: reads and answers in pieces, resets, says GOAWAY, and notes what it gets."""

from dataclasses import dataclass

import h2.events

from criproxy.fronts.http2 import frames
from tests.fronts.relay.fuzz.plan import Plan
from tests.fronts.relay.fuzz.world import World


@dataclass
class Server:
    world: World
    resets: float
    settings_rate: float
    goaways: int = 0

    def reads(self) -> None:
        world = self.world
        if world.unread_server:
            stream, size = world.unread_server.pop(world.rng.randrange(len(world.unread_server)))
            world.server.acknowledge_received_data(size, stream)
        else:
            world.reopen(world.server)

    def moves(self) -> None:
        world = self.world
        if not world.calm:
            self._surprises()
        plan = world.some_plan(
            lambda p: self._known(p) and not (p.server_done or p.server_reset) and (p.got_end or p.early)
        )
        if plan is not None:
            self._answers(plan)

    def _surprises(self) -> None:
        world, rng = self.world, self.world.rng
        if rng.random() < self.settings_rate:
            world.change_settings(world.server)
        if rng.random() < 0.01:
            world.server.ping(rng.randbytes(8))
        if rng.random() < 0.01:
            world.server.increment_flow_control_window(rng.randrange(1, 10_000))
        if rng.random() < 0.02:
            world.widen(world.server)
        if rng.random() < 0.0005 and world.server_out.started:
            self.goaways += 1
            last = frames.MAX_STREAM if self.goaways == 1 else max(world.plans, default=0)
            world.flush()
            if not world.server_out.rest:
                world.from_server.put(frames.goaway(last, 0, b"bye"))
        if rng.random() < self.resets / 2:
            plan = world.some_plan(lambda p: self._known(p) and not (p.server_done or p.server_reset))
            if plan is not None:
                plan.server_reset = True
                world.server.reset_stream(plan.stream, rng.choice((0, 2, 7, 8, 11)))

    def _known(self, plan: Plan) -> bool:
        stream = self.world.server.streams.get(plan.stream)
        return stream is not None and not stream.closed

    def _answers(self, plan: Plan) -> None:
        """The next piece of an answer."""
        rng, peer = self.world.rng, self.world.server
        status = [(b"grpc-status", b"%d" % plan.status), *plan.initial]
        head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
        if not plan.server_headers:
            plan.server_headers = True
            if plan.status and rng.random() < 0.5:
                peer.send_headers(plan.stream, head + status, end_stream=True)
                plan.server_done = True
                plan.answer = b""
            else:
                peer.send_headers(plan.stream, head + plan.initial)
            return
        if len(plan.answer) > plan.answered:
            self._sends(plan)
            return
        if rng.random() < 0.1 and peer.local_flow_control_window(plan.stream) >= 0:
            peer.send_data(plan.stream, b"")
            return
        peer.send_headers(plan.stream, status, end_stream=True)
        plan.server_done = True
        if not plan.got_end and rng.random() < 0.7:
            peer.reset_stream(plan.stream, 0)

    def _sends(self, plan: Plan) -> None:
        rng, peer = self.world.rng, self.world.server
        left = len(plan.answer) - plan.answered
        window = min(peer.local_flow_control_window(plan.stream), peer.max_outbound_frame_size)
        pad = rng.choice((None, None, None, 0, 200))
        if pad is not None and pad + 1 > window:
            pad = None
        size = min(left, window - (0 if pad is None else pad + 1), self.world.most())
        if size > 0 or (window >= 0 and rng.random() < 0.01):
            size = max(size, 0)
            piece = plan.answer[plan.answered : plan.answered + size]
            peer.send_data(plan.stream, piece, pad_length=pad)
            plan.answered += size

    def events(self, events: list[h2.events.Event]) -> None:
        world = self.world
        for event in events:
            match event:
                case h2.events.DataReceived():
                    world.plans[event.stream_id].got_request += event.data
                    if event.flow_controlled_length:
                        world.unread_server.append((event.stream_id, event.flow_controlled_length))
                case h2.events.StreamEnded():
                    world.plans[event.stream_id].got_end = True
                case h2.events.SettingsAcknowledged():
                    world.unacknowledged.discard(world.server)
                case h2.events.ConnectionTerminated():
                    raise AssertionError(event)
