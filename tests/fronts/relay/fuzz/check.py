"""What must hold when a fuzzed connection is over: every byte, window and count, and no state left."""

from urllib.parse import unquote_to_bytes

from tests.fronts.relay.fuzz.plan import Plan
from tests.fronts.relay.fuzz.world import World


def check(world: World) -> None:
    """Raises AssertionError."""
    state = world.relay._state
    _check_no_state(world)
    assert not state.windows_to_come
    assert (state.window.owed, state.window.waiting) == (0, 0), state.window.advertised
    assert world.client.outbound_flow_control_window == _server_window(world) == state.window.real
    assert (
        world.server.outbound_flow_control_window
        == world.client._inbound_flow_control_window_manager.current_window_size
    )
    _check_goaways(world)
    for plan in world.plans.values():
        if world.turned_away and not plan.started:
            _check_turned_away(plan)
        else:
            _check_plan(plan)
        if plan.whole:
            sent, got = world.client_out.windows[plan.stream], world.server_tap.windows[plan.stream]
            assert sent == got, plan


def check_drained(world: World) -> None:
    """The relay has closed the connection: after the last call, whatever else was under way. Raises AssertionError."""
    window = world.relay._state.window
    _check_no_state(world)
    _check_silent(world)
    assert not window.waiting
    assert window.real <= _server_window(world)
    assert world.client.outbound_flow_control_window <= window.advertised
    _check_goaways(world)
    assert world.tap.last_streams[-1] <= max(world.plans, default=0)
    for plan in world.plans.values():
        if world.turned_away and not plan.started:
            _check_turned_away(plan)
        else:
            assert plan.over or plan.seen_end, plan
            _check_plan(plan)


def check_closed(world: World) -> None:
    """A peer has closed the connection: each call that had begun is ended, once. Raises AssertionError."""
    state = world.relay._state
    assert not state.calls
    assert not world.asks
    _check_nothing_waits(world)
    _check_silent(world)
    for plan in world.plans.values():
        assert len(plan.ended) == plan.started <= 1, plan


def _check_no_state(world: World) -> None:
    state, outbox = world.relay._state, world.relay._outbox
    assert not state.calls
    assert not outbox.queue
    assert not outbox._unpaid_bytes
    assert outbox.idle
    _check_nothing_waits(world)


def _check_nothing_waits(world: World) -> None:
    state = world.relay._state
    assert not state.learned
    assert not state.events
    for outgoing in (state.to_client, state.to_runtime):
        assert not outgoing.parts
        assert not len(outgoing._view)


def _check_silent(world: World) -> None:
    relay = world.relay
    assert relay.client_bytes(b"x") == relay.runtime_bytes(b"x") == relay.drain() == []
    assert relay.client_closed() == relay.runtime_closed() == []
    for stream in world.plans:
        assert relay.forward(stream, b"") == relay.refuse(stream, 3, "") == relay.end(stream, "") == []


def _check_goaways(world: World) -> None:
    assert world.tap.last_streams == sorted(world.tap.last_streams, reverse=True)


def _server_window(world: World) -> int:
    window: int = world.server._inbound_flow_control_window_manager.current_window_size
    return window


def _check_turned_away(plan: Plan) -> None:
    assert not plan.got_request
    assert not plan.got_end
    assert not plan.ended
    if not plan.client_reset:
        assert plan.seen_headers is not None
        assert (b"grpc-status", b"14") in plan.seen_headers
        assert plan.seen_end


def _check_plan(plan: Plan) -> None:
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
        _check_refusal(plan, refused)
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
    if plan.learns and not plan.status and plan.answer_message is not None:
        assert plan.learned == plan.answer_message
    if plan.learns and plan.status:
        assert plan.learned is None


def _check_refusal(plan: Plan, code: int) -> None:
    assert plan.seen_headers is not None
    assert plan.seen_end
    advertised = dict(plan.seen_headers)
    assert int(advertised[b"grpc-status"]) == code == plan.ended[0].code
    if plan.refused is not None:
        assert unquote_to_bytes(advertised[b"grpc-message"]).decode() == f"nö % {plan.stream}"
