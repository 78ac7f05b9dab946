"""The ledger of the connection window: what the client sees is never lost, and never more than will be covered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.fronts.http2.flow import Ledger
from criproxy.fronts.http2.frames import MAX_WINDOW, BrokenError

STEPS = st.lists(st.tuples(st.sampled_from(["pass", "hook", "take"]), st.integers(0, 9000), st.integers(0, 9000)))


@given(STEPS)
def test_client_and_upstream_agree_when_all_is_taken(steps: list[tuple[str, int, int]]) -> None:
    """A model: what was sent up, and each side's window counted by itself."""
    ledger = Ledger()
    client, untaken = ledger.real, 0
    for step, size, rewritten in steps:
        match step:
            case "pass" if size <= ledger.real and size <= client:
                ledger.real -= size
                client -= size
                untaken += size
            case "hook" if size <= client and rewritten <= ledger.real:
                ledger.pay(size)
                client -= size
                paid = min(size, rewritten)
                ledger.spend(rewritten, paid)
                untaken += rewritten
                client += ledger.forgive(size - paid)
            case "take" if untaken and size:
                taken = min(size, untaken)
                untaken -= taken
                client += ledger.credit(taken)
        assert client == ledger.shown
        assert ledger.debt >= 0
        assert ledger.real + untaken == 65_535
    if untaken:
        client += ledger.credit(untaken)
    assert (ledger.debt, ledger.waiting) == (0, 0)
    assert client == ledger.real == 65_535


def test_client_without_a_window_cannot_send() -> None:
    ledger = Ledger()
    ledger.pay(60_000)
    with pytest.raises(BrokenError, match="6000 bytes sent into a window of 5535"):
        ledger.pay(6000)


@pytest.mark.parametrize("size", [0, MAX_WINDOW])
def test_impossible_credit_is_an_error(size: int) -> None:
    with pytest.raises(BrokenError):
        Ledger().credit(size)
