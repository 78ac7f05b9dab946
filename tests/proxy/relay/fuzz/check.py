"""What must hold when all calls of a fuzzed connection are over: every byte, window and count, and no state left."""

from urllib.parse import unquote_to_bytes

from tests.proxy.relay.fuzz.plan import Plan
from tests.proxy.relay.fuzz.world import World


def check(world: World) -> None:
    """Raises AssertionError."""
    wire = world.relay._wire
    assert not wire.calls
    assert world.relay._outbox.idle
    assert (wire.ledger.debt, wire.ledger.waiting) == (0, 0), wire.ledger.shown
    seen = world.server._inbound_flow_control_window_manager.current_window_size
    assert world.client.outbound_flow_control_window == seen == wire.ledger.real
    assert (
        world.server.outbound_flow_control_window
        == world.client._inbound_flow_control_window_manager.current_window_size
    )
    assert world.tap.last_streams == sorted(world.tap.last_streams, reverse=True)
    for plan in world.plans.values():
        _check_plan(plan)


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
    if plan.ticket and not plan.status and plan.answer_message is not None:
        assert plan.learned == plan.answer_message
    if plan.ticket and plan.status:
        assert plan.learned is None


def _check_refusal(plan: Plan, code: int) -> None:
    assert plan.seen_headers is not None
    assert plan.seen_end
    shown = dict(plan.seen_headers)
    assert int(shown[b"grpc-status"]) == code == plan.ended[0].code
    if plan.refused is not None:
        assert unquote_to_bytes(shown[b"grpc-message"]).decode() == f"nö % {plan.stream}"
