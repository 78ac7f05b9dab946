import pytest

from criproxy_cluster.controller.leader import REQUEST_S
from criproxy_cluster.controller.lease_law import (
    DURATION_S,
    RENEW_WITHIN_S,
    RETRY_S,
    Seen,
    Turn,
    looked,
    still_leads,
    turn,
)

TURNS = {
    "nobody's": (Seen("", "1", 15.0, 0.0), 0.0, Turn.RENEW),
    "mine": (Seen("me", "1", 15.0, 0.0), 100.0, Turn.RENEW),
    "another's": (Seen("you", "1", 15.0, 0.0), 14.9, Turn.WAIT),
    "a silent one's": (Seen("you", "1", 15.0, 0.0), 15.0, Turn.RENEW),
}


@pytest.mark.parametrize(("seen", "now_s", "wanted"), TURNS.values(), ids=TURNS)
def test_the_lease_is_taken_from_who_is_silent_only(seen, now_s, wanted):
    assert turn(seen, "me", now_s) is wanted


def test_silence_is_counted_from_the_last_change_by_the_own_clock():
    first = looked(None, "you", "1", 15.0, 100.0)
    assert looked(first, "you", "1", 15.0, 110.0).since_s == 100.0
    assert looked(first, "you", "2", 15.0, 110.0).since_s == 110.0


def test_a_leader_has_stopped_before_another_may_begin():
    assert not still_leads(None, 0.0)
    assert still_leads(0.0, RENEW_WITHIN_S - 0.1)
    assert not still_leads(0.0, RENEW_WITHIN_S)
    assert RENEW_WITHIN_S + REQUEST_S < DURATION_S, "its last look may take so long"
    assert RETRY_S + REQUEST_S < RENEW_WITHIN_S, "one look may fail"
