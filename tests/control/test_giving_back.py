"""The box's memory limit waits for what is to be given back: how long at most, and never for what online uses."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from criproxy.control.policy import DynamicSettings, PolicyState, decide
from criproxy.model import UNLIMITED, GivingBack
from tests import rows

GIB = 1 << 30
MIB = 1 << 20
CAPACITY = 16 * GIB
WAIT_S = 33.0
LAW = rows.laws(DynamicSettings(floor=0.1), DynamicSettings(floor=GIB, watermark_ratio=0.9, reserve=GIB))
YARN = GivingBack(3.0 * GIB, WAIT_S)


class Box:
    """One node, a look a second. What online uses and is expected to use are in GiB."""

    def __init__(self, kept=0.0):
        self.t_s, self.state, self.kept = 1000.0, PolicyState(), kept

    def look(self, online, predicted, giving_back=None, cores=(1.0, 1.0), seconds=1.0):
        """The limit on memory in GiB, and its reason."""
        self.t_s += seconds
        taken = rows.snapshot(self.t_s, (4.0, 2.0, 0.5, cores[0]), (CAPACITY, 5 * GIB, GIB, online * GIB))
        expected = rows.predictions(cores[1], None if predicted is None else predicted * GIB)
        decision, self.state = decide(
            taken, expected, self.state, LAW, kept={"memory": self.kept * GIB}, giving_back=giving_back
        )
        self.cores = decision.limits["cpu"], decision.resources["cpu"].reason
        limit = decision.limits["memory"]
        assert limit is not UNLIMITED
        return limit / GIB, decision.resources["memory"].reason


def law(predicted):
    return math.floor((CAPACITY * 0.9 - GIB - predicted * GIB) / MIB) * MIB / GIB


def test_limit_waits_for_what_is_to_be_given_back_and_no_longer_than_that_may_take():
    box = Box()
    assert box.look(2.0, 2.0, YARN)[0] == law(2.0)
    limit, reason = box.look(2.0, 6.0, YARN)
    assert limit == law(6.0) + 3.0
    assert reason.endswith("and 3.00 GiB more for 33 s at most, as it is to be given back first")
    for _ in range(32):
        assert box.look(2.0, 6.0, YARN)[0] == law(6.0) + 3.0
    assert box.look(2.0, 6.0, YARN)[0] == law(6.0)
    assert box.look(2.0, 6.0, YARN)[0] == law(6.0)


def test_limit_follows_as_it_is_given_back():
    box = Box()
    box.look(2.0, 2.0, YARN)
    assert [box.look(2.0, 6.0, GivingBack(left * GIB, WAIT_S))[0] - law(6.0) for left in (3.0, 2.0, 0.5, 0.0)] == [
        3.0,
        2.0,
        0.5,
        0.0,
    ]


def test_what_was_given_back_is_waited_for_no_more_though_somebody_has_it_still():
    box = Box()
    box.look(2.0, 2.0, YARN)
    box.look(2.0, 6.0, YARN)
    assert box.look(2.0, 6.0, GivingBack(1.0 * GIB, WAIT_S))[0] == law(6.0) + 1.0
    assert box.look(2.0, 6.0, YARN)[0] == law(6.0) + 1.0
    assert box.look(2.0, 6.0, GivingBack(0.0, WAIT_S))[0] == law(6.0)
    assert box.look(2.0, 6.0, YARN)[0] == law(6.0)


def test_another_note_prolongs_no_wait_but_may_shorten_it():
    box = Box()
    box.look(2.0, 2.0, YARN)
    limits = [box.look(2.0, 6.0, GivingBack(3.0 * GIB + step, WAIT_S))[0] for step in range(40)]
    assert [one > law(6.0) for one in limits] == [True] * 33 + [False] * 7
    box = Box()
    box.look(2.0, 2.0, YARN)
    box.look(2.0, 6.0, YARN)
    assert box.look(2.0, 6.0, GivingBack(3.0 * GIB, 1.0))[0] == law(6.0)


@pytest.mark.parametrize(
    ("online", "predicted", "kept"),
    [(6.0, 6.0, 0.0), (math.nan, 6.0, 0.0), (2.0, None, 0.0), (2.0, 6.0, 8.0)],
    ids=["online uses it", "nobody knows", "nothing is predicted", "it must stay free"],
)
def test_nothing_waits_where(online, predicted, kept):
    waiting, plain = Box(), Box()
    for box in (waiting, plain):
        box.look(2.0, 2.0, YARN)
        box.kept = kept
    limit = waiting.look(online, predicted, YARN)[0]
    assert limit <= max(1.0, 16.0 - kept - online) or math.isnan(online)
    assert limit == plain.look(online, predicted)[0] or kept


def test_no_wait_is_longer_than_the_moment_at_which_online_needs_it():
    box = Box()
    box.look(2.0, 2.0, YARN)
    assert box.look(2.0, 6.0, YARN)[0] == law(6.0) + 3.0
    assert box.look(5.0, 6.0, YARN)[0] == law(5.0)
    assert box.look(6.5, 6.0, YARN)[0] == law(6.5)


def test_who_is_to_give_back_keeps_cpu_that_online_does_not_use():
    box = Box()
    box.look(2.0, 2.0, YARN, (1.0, 3.55))
    box.look(2.0, 6.0, YARN, (1.0, 3.55))
    assert box.cores[0] == pytest.approx(0.1), "as the law has it"
    box.look(2.0, 6.0, YARN, (1.0, 3.55))
    assert box.cores[0] == pytest.approx(1.1)
    assert "the floor while memory is given back" in box.cores[1]
    box.look(2.0, 6.0, YARN, (3.8, 3.8))
    assert box.cores[0] == pytest.approx(0.2), "online has the rest"
    box.look(2.0, 6.0, GivingBack(0.0, WAIT_S), (1.0, 3.55))
    box.look(2.0, 6.0, GivingBack(0.0, WAIT_S), (1.0, 3.55))
    assert box.cores[0] == pytest.approx(0.1)


amounts = st.floats(0.0, 16.0)
looks = st.tuples(
    st.floats(0.1, 20.0),
    amounts,
    st.none() | amounts,
    st.none() | st.builds(GivingBack, st.floats(0.0, 16.0 * GIB), st.floats(0.1, WAIT_S)),
)


@settings(deadline=None)
@given(st.lists(looks, max_size=40), st.floats(0.0, 2.0))
def test_limit_is_never_more_than_the_law_gave_within_the_wait_nor_than_online_leaves(steps, kept):
    box = Box(kept)
    gave = []
    for seconds, online, predicted, giving_back in steps:
        limit, _ = box.look(online, predicted, giving_back, seconds=seconds)
        alone = Box(kept)
        alone.t_s = box.t_s - 1.0
        gave.append((box.t_s, alone.look(online, predicted)[0]))
        # the wait begins with the first look at which the law gives less: until then the one before it holds
        first = next((at for at, (t_s, _) in enumerate(gave) if t_s > box.t_s - WAIT_S), 0)
        assert limit <= max(most for _, most in gave[max(0, first - 1) :])
        if limit > gave[-1][1]:
            assert limit <= 16.0 - kept - online
            assert limit <= 16.0 * 0.9 - 1.0 - online
            assert giving_back is not None and predicted is not None
