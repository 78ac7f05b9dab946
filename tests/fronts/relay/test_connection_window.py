"""The window of the connection window: what the client sees is never lost, and never more than will be covered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.fronts.http2.frames import MAX_WINDOW, BrokenError
from criproxy.fronts.relay.state import ConnectionWindow

STEPS = st.lists(st.tuples(st.sampled_from(["pass", "hook", "take"]), st.integers(0, 9000), st.integers(0, 9000)))


@given(STEPS)
def test_client_and_runtime_agree_when_all_is_taken(steps: list[tuple[str, int, int]]) -> None:
    """A model: what was sent up, and each side's window counted by itself."""
    window = ConnectionWindow()
    client, untaken = window.real, 0
    for step, size, rewritten in steps:
        match step:
            case "pass" if size <= window.real and size <= client:
                window.real -= size
                client -= size
                untaken += size
            case "hook" if size <= client and rewritten <= window.real:
                window.pay(size)
                client -= size
                paid = min(size, rewritten)
                window.spend(rewritten, paid)
                untaken += rewritten
                client += window.forgive(size - paid)
            case "take" if untaken and size:
                taken = min(size, untaken)
                untaken -= taken
                client += window.credit(taken)
        assert client == window.advertised
        assert window.owed >= 0
        assert window.real + untaken == 65_535
    if untaken:
        client += window.credit(untaken)
    assert (window.owed, window.waiting) == (0, 0)
    assert client == window.real == 65_535


def test_client_without_a_window_cannot_send() -> None:
    window = ConnectionWindow()
    window.pay(60_000)
    with pytest.raises(BrokenError, match="6000 bytes sent into a window of 5535"):
        window.pay(6000)


@pytest.mark.parametrize("size", [0, MAX_WINDOW])
def test_impossible_credit_is_an_error(size: int) -> None:
    with pytest.raises(BrokenError):
        ConnectionWindow().credit(size)
