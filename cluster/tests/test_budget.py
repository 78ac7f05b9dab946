"""How often something may be done in an hour, over terms of leaders."""

import pytest

from criproxy_cluster.budget import HOUR_S, SKEW_S, Budget

WALL_S = 1_700_000_000.0


def test_what_was_done_counts_for_an_hour():
    budget = Budget(2)
    budget.spend(0.0, WALL_S)
    budget.spend(100.0, WALL_S + 100)
    assert (budget.left(101.0), budget.times(101.0)) == (0, [WALL_S, WALL_S + 100])
    assert (budget.left(HOUR_S), budget.times(HOUR_S)) == (1, [WALL_S + 100])


def test_next_leader_goes_on_by_the_times_of_day_whatever_its_own_clock_says():
    budget = Budget(2)
    budget.restore([WALL_S, WALL_S - 600], 5.0, WALL_S)
    assert (budget.left(5.0), budget.times(5.0)) == (0, [WALL_S - 600, WALL_S])
    assert budget.left(5.0 + HOUR_S - 600) == 1
    assert budget.left(5.0 + HOUR_S) == 2


@pytest.mark.parametrize(
    ("times", "left"),
    [
        pytest.param([WALL_S - HOUR_S], 3, id="old"),
        pytest.param([WALL_S + SKEW_S], 2, id="a clock that is ahead"),
        pytest.param([WALL_S + SKEW_S + 1, 1e300, float("inf"), float("nan")], 3, id="the future"),
        pytest.param([WALL_S - index / 100 for index in range(10_000)], 0, id="too many"),
    ],
)
def test_what_is_read_is_bounded(times, left):
    budget = Budget(3)
    budget.restore(times, 0.0, WALL_S)
    assert (budget.left(0.0), len(budget.times(0.0))) == (left, 3 - left)
    assert budget.left(HOUR_S) == 3


def test_nothing_is_read_where_nothing_may_be_done():
    budget = Budget(0)
    budget.restore([WALL_S], 0.0, WALL_S)
    assert budget.times(0.0) == []
