"""The law of a quota: never above what is lent, down at once, up slowly."""

from hypothesis import given
from hypothesis import strategies as st

from criproxy_cluster.quota.law import LOW, RISE_S, WINDOW_S, Law

SECONDS = st.floats(0.5, 90.0)
STEPS = st.lists(st.tuples(SECONDS, st.integers(0, 100_000)), min_size=1, max_size=80)


def walk(steps, before=None):
    """Each moment, what is lent, and the quota."""
    law, now_s = Law(before), 1000.0
    for pause_s, lent in steps:
        now_s += pause_s
        yield now_s, lent, law.step(lent, now_s)


@given(STEPS, st.none() | st.integers(0, 100_000))
def test_quota_is_never_above_what_is_lent(steps, before):
    assert all(quota <= lent for _, lent, quota in walk(steps, before))


@given(STEPS, st.integers(0, 100_000))
def test_quota_in_force_before_does_not_rise_until_the_window_was_seen(steps, before):
    found = list(walk(steps, before))
    began_s = found[0][0]
    early = [quota for now_s, _, quota in found if now_s < began_s + WINDOW_S]
    assert early == sorted(early, reverse=True) and early[0] <= before


@given(STEPS)
def test_quota_rises_each_minute_at_most_and_never_above_the_low_percentile(steps):
    seen: list[tuple[float, int]] = []
    before, rose_s = None, None
    for now_s, lent, quota in walk(steps):
        seen = [(at_s, amount) for at_s, amount in [*seen, (now_s, lent)] if at_s >= now_s - WINDOW_S]
        amounts = sorted(amount for _, amount in seen)
        assert quota <= amounts[int(LOW * len(amounts))]
        if before is not None and quota > before:
            assert rose_s is None or now_s - rose_s >= RISE_S
            rose_s = now_s
        before = quota


@given(st.integers(0, 100_000), st.none() | st.integers(0, 100_000))
def test_quota_comes_to_what_is_lent_all_the_time(lent, before):
    steady = [(5.0, lent)] * int((WINDOW_S + RISE_S) / 5.0 + 2)
    assert list(walk(steady, before))[-1][2] == lent


def test_dip_of_a_moment_costs_a_minute():
    steps = [(1.0, 10_000)] * 400 + [(1.0, 4_000)] * 2 + [(1.0, 10_000)] * 61
    quotas = [quota for _, _, quota in walk(steps)]
    assert quotas[399] == 10_000 and quotas[400] == 4_000, "at once"
    assert quotas[-1] == 10_000, "of 300 readings, two are not a tenth"


def test_peak_of_a_moment_is_not_promised():
    steps = [(1.0, 4_000)] * 400 + [(1.0, 10_000)] * 200
    assert {quota for _, _, quota in walk(steps)} == {4_000}


def test_first_reading_is_the_first_quota_where_none_was_in_force():
    assert [quota for _, _, quota in walk([(1.0, 700)])] == [700]
