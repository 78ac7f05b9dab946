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
LAW = rows.laws(DynamicSettings(floor=0.1), DynamicSettings(floor=GIB, watermark_ratio=0.9, reserve=GIB))


class Box:
    """One node, a look a second. What online uses and is expected to use are in GiB."""

    def __init__(self, kept=0.0):
        self.t_s, self.state, self.kept = 1000.0, PolicyState(), kept

    def look(self, online, predicted, giving_back=None, cores=(1.0, 1.0), *, seconds=1.0, held=None):
        """The limit on memory in GiB, and its reason."""
        self.t_s += seconds
        taken = rows.snapshot(self.t_s, (4.0, 2.0, 0.5, cores[0]), (CAPACITY, 5 * GIB, GIB, online * GIB))
        expected = rows.predictions(cores[1], None if predicted is None else predicted * GIB)
        decision, self.state = decide(
            taken,
            expected,
            self.state,
            LAW,
            kept={"memory": self.kept * GIB},
            giving_back=giving_back,
            held=None if held is None else held * GIB,
        )
        self.cores = decision.limits["cpu"], decision.resources["cpu"].reason
        limit = decision.limits["memory"]
        assert limit is not UNLIMITED
        self.waits = decision.resources["memory"].waits / GIB
        return limit / GIB, decision.resources["memory"].reason


def law(predicted):
    return math.floor((CAPACITY * 0.9 - GIB - predicted * GIB) / MIB) * MIB / GIB


LENT = law(2.0)
"""GiB, of which all is published where online is expected to use 2."""


def lent(size, published=0.0, lately=LENT):
    """All in GiB: what somebody has still, and what the node has published of memory."""
    return GivingBack(size * GIB, published * GIB, lately * GIB)


def test_limit_stays_at_what_is_published_until_less_is_and_then_for_what_is_given_back():
    box = Box()
    assert box.look(2.0, 2.0, lent(3.0, LENT))[0] == law(2.0)
    for _ in range(400):
        limit, reason = box.look(2.0, 2.5, lent(3.0, LENT))
        assert limit == LENT, "nobody was told of less"
    assert reason.endswith("and 512.00 MiB more, as it is to be given back first")
    assert box.waits == LENT - law(2.5)
    assert [box.look(2.0, 2.5, lent(left, law(2.5)))[0] - law(2.5) for left in (3.0, 0.05, 0.0)] == [
        LENT - law(2.5),
        pytest.approx(0.05, abs=1 / 1024),
        0.0,
    ]


def test_first_limit_of_a_process_waits_for_what_was_promised_by_the_one_before():
    limit, reason = Box().look(2.0, 2.5, lent(3.0, law(2.5)))
    assert limit == LENT
    assert reason.endswith("and 512.00 MiB more, as it is to be given back first")


def test_limit_waits_for_no_more_than_is_to_be_given_back():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, LENT))
    assert [box.look(2.0, 6.0, lent(left, law(6.0)))[0] - law(6.0) for left in (3.0, 2.0, 0.5, 0.0)] == [
        3.0,
        2.0,
        0.5,
        0.0,
    ]


def test_what_was_given_back_is_waited_for_no_more_though_somebody_has_it_still():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, LENT))
    box.look(2.0, 6.0, lent(3.0, law(6.0)))
    assert box.look(2.0, 6.0, lent(1.0, law(6.0)))[0] == law(6.0) + 1.0
    assert box.look(2.0, 6.0, lent(3.0, law(6.0)))[0] == law(6.0) + 1.0
    assert box.look(2.0, 6.0, lent(0.0, law(6.0)))[0] == law(6.0)
    assert box.look(2.0, 6.0, lent(3.0, law(6.0)))[0] == law(6.0)


def test_what_is_not_published_yet_waits_though_all_that_was_asked_for_before_is_given_back():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, LENT))
    box.look(2.0, 6.0, lent(3.0, law(6.0)))
    assert box.look(2.0, 6.2, lent(0.0, law(6.0)))[0] == law(6.0)


@pytest.mark.parametrize(
    ("online", "predicted", "kept", "held", "limit"),
    [
        pytest.param(2.0, 16.0, 0.0, 8.0, 8.0, id="all that it has"),
        pytest.param(2.0, 4.0, 0.0, 8.0, law(4.0), id="less than the law gives"),
        pytest.param(9.0, 16.0, 0.0, 8.0, law(9.0), id="what online leaves"),
        pytest.param(2.0, 16.0, 7.0, 8.0, 7.0, id="what kubelet must find free"),
        pytest.param(2.0, None, 0.0, 8.0, 1.0, id="nothing is predicted"),
        pytest.param(2.0, 16.0, 0.0, None, 1.0, id="enough is known"),
    ],
)
def test_box_keeps_its_memory_while_too_little_is_known_of_online(online, predicted, kept, held, limit):
    box = Box(kept)
    given, reason = box.look(online, predicted, held=held)
    assert (given, box.waits) == (pytest.approx(limit), 0.0)
    if given > 1.0 and predicted == 16.0:
        assert reason.endswith(" more that it has, until more is known of online")


def test_what_nobody_was_promised_waits_for_nobody():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, 5.0, 5.0))
    assert box.look(2.0, 6.0, lent(3.0, 5.0, 5.0))[0] == law(6.0), "5 GiB were published, and are there"
    assert box.look(2.0, 9.0, lent(3.0, 5.0, 5.0))[0] == 5.0


def test_wait_ends_with_what_was_published_lately():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, LENT))
    box.look(2.0, 6.0, lent(3.0, law(6.0)))
    assert box.look(2.0, 6.0, lent(3.0, law(6.0), 8.0))[0] == 8.0
    assert box.look(2.0, 6.0, lent(3.0, law(6.0), law(6.0)))[0] == law(6.0)


@pytest.mark.parametrize(
    ("online", "predicted", "kept"),
    [(6.0, 6.0, 0.0), (math.nan, 6.0, 0.0), (2.0, None, 0.0), (2.0, 6.0, 8.0)],
    ids=["online uses it", "nobody knows", "nothing is predicted", "it must stay free"],
)
def test_nothing_waits_where(online, predicted, kept):
    waiting, plain = Box(), Box()
    for box in (waiting, plain):
        box.look(2.0, 2.0, lent(3.0, LENT))
        box.kept = kept
    limit = waiting.look(online, predicted, lent(3.0))[0]
    assert limit <= max(1.0, 16.0 - kept - online) or math.isnan(online)
    assert limit == plain.look(online, predicted)[0] or kept


def test_no_wait_is_longer_than_the_moment_at_which_online_needs_it():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, LENT))
    assert box.look(2.0, 6.0, lent(3.0))[0] == law(6.0) + 3.0
    assert box.look(5.0, 6.0, lent(3.0))[0] == law(5.0)
    assert box.look(6.5, 6.0, lent(3.0))[0] == law(6.5)


def test_who_is_to_give_back_keeps_cpu_that_online_does_not_use():
    box = Box()
    box.look(2.0, 2.0, lent(3.0, LENT), (1.0, 3.55))
    box.look(2.0, 6.0, lent(3.0), (1.0, 3.55))
    assert box.cores[0] == pytest.approx(0.1), "as the law has it"
    box.look(2.0, 6.0, lent(3.0), (1.0, 3.55))
    assert box.cores[0] == pytest.approx(1.1)
    assert "the floor while memory is given back" in box.cores[1]
    box.look(2.0, 6.0, lent(3.0), (3.8, 3.8))
    assert box.cores[0] == pytest.approx(0.2), "online has the rest"
    box.look(2.0, 6.0, lent(0.0), (1.0, 3.55))
    box.look(2.0, 6.0, lent(0.0), (1.0, 3.55))
    assert box.cores[0] == pytest.approx(0.1)


amounts = st.floats(0.0, 16.0)
looks = st.tuples(amounts, st.none() | amounts, st.none() | st.builds(lent, amounts, amounts, amounts))


@settings(deadline=None)
@given(st.lists(looks, max_size=40), st.floats(0.0, 2.0))
def test_limit_is_never_more_than_the_law_gives_or_was_published_nor_than_online_leaves(steps, kept):
    box = Box(kept)
    before = math.inf
    for online, predicted, giving_back in steps:
        limit, _ = box.look(online, predicted, giving_back)
        alone = Box(kept)
        alone.t_s = box.t_s - 1.0
        gives = alone.look(online, predicted)[0]
        if limit > gives:
            assert giving_back is not None and predicted is not None
            assert limit <= before
            assert limit * GIB <= giving_back.published_lately_bytes
            assert limit <= 16.0 - kept - online
            assert limit <= 16.0 * 0.9 - 1.0 - online
        before = limit
