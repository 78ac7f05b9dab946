"""What pods want and get of the CPU, who starves, and how that moves what is published."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.pod_speed import (
    MOST_SLOW_RATIO,
    RELIEF_S,
    START,
    STEPS,
    Feedback,
    PodSpeed,
    Starvation,
    below,
    pod_speed,
    restored,
)
from criproxy.model.signals import PodCpuTimes

LOOK_S = 10.0
NOTHING = PodCpuTimes(0.0, {0: 0.0})
HUNGRY, SLOW, FULL = (PodSpeed(1.0, got, 1.0) for got in (0.3, 0.7, 0.99))
ASLEEP = PodSpeed(1.0, 0.01, 0.01)


def speed(asked: float, used: float, waiting: float) -> PodSpeed | None:
    return pod_speed(asked, NOTHING, PodCpuTimes(LOOK_S * used, {0: LOOK_S * waiting}), LOOK_S)


# --- one pod ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "used", "waiting", "wanted"),
    [
        pytest.param(1.0, 0.3, 0.7, 1.0, id="one thread that always runs or waits"),
        pytest.param(1.0, 0.2, 0.2, 0.4, id="one thread that sleeps most of the time"),
        pytest.param(1.0, 0.0, 0.0, 0.0, id="sleeps"),
        pytest.param(1.0, 1.0, 1.0, 1.0, id="more threads than it asked for"),
        pytest.param(1.0, 3.0, 1.0, 1.0, id="uses more than it asked for"),
        pytest.param(4.0, 1.0, 1.0, 4.0, id="four threads that wait all the time"),
        pytest.param(4.0, 0.1, 0.1, 0.2, id="four cores, wakes now and then"),
        pytest.param(0.1, 0.05, 0.5, 0.1, id="a tenth of a core"),
        pytest.param(1.0, 0.5, 7.0, 1.0, id="a counter that runs too fast"),
    ],
)
def test_pod_wants_what_it_got_and_what_it_waited_for(asked, used, waiting, wanted):
    one = speed(asked, used, waiting)
    assert one is not None
    assert one.wanted == pytest.approx(wanted)
    assert one.got == pytest.approx(min(asked, used))


@given(st.floats(0.001, 256.0), st.floats(0.0, 300.0), st.floats(0.0, 1.0))
def test_pod_never_wants_less_than_it_got_nor_more_than_it_asked_for(asked, used, waiting):
    one = speed(asked, used, waiting)
    assert one is not None
    assert one.got - 1e-9 <= one.wanted <= asked
    assert 0.0 <= one.ratio <= 1.0


@given(st.floats(0.01, 64.0), st.floats(0.0, 0.99), st.floats(0.0, 1.0))
def test_pod_that_never_waits_has_its_full_speed(asked, part, waiting):
    assert speed(asked, part * asked, 0.0).ratio == 1.0
    assert speed(asked, part * asked, waiting).ratio <= 1.0


@pytest.mark.parametrize(
    ("asked", "before", "now", "seconds"),
    [
        pytest.param(0.0, NOTHING, PodCpuTimes(1.0, {0: 1.0}), 10.0, id="asked for nothing"),
        pytest.param(1.0, NOTHING, PodCpuTimes(1.0, {0: 1.0}), 0.0, id="no time"),
        pytest.param(1.0, PodCpuTimes(2.0, {0: 0.0}), PodCpuTimes(1.0, {0: 1.0}), 10.0, id="another cgroup"),
        pytest.param(1.0, PodCpuTimes(0.0, {7: 0.0}), PodCpuTimes(1.0, {8: 1.0}), 10.0, id="other threads"),
        pytest.param(1.0, PodCpuTimes(0.0, {}), PodCpuTimes(1.0, {}), 10.0, id="nothing counts"),
    ],
)
def test_speed_is_not_known(asked, before, now, seconds):
    assert pod_speed(asked, before, now, seconds) is None


def test_of_several_threads_the_one_that_waits_most_counts():
    one = pod_speed(1.0, PodCpuTimes(0.0, {7: 0.0, 8: 0.0, 9: 5.0}), PodCpuTimes(3.0, {7: 1.0, 8: 7.0}), 10.0)
    assert one is not None
    assert one.ratio == pytest.approx(0.3)


def test_pods_that_want_next_to_nothing_do_not_count():
    assert below({"a": HUNGRY, "b": FULL, "c": ASLEEP}, 0.5) == 0.5
    assert below({"c": ASLEEP}, 0.5) == below({}, 0.5) == 0.0


# --- starving --------------------------------------------------------------------------------------------------------


def looks(starvation: Starvation, speeds: dict[str, PodSpeed], seconds: float, t_s: float = 0.0, ratio=0.5) -> float:
    for _ in range(round(seconds / LOOK_S) + 1):
        starvation.look(t_s, speeds, ratio)
        t_s += LOOK_S
    return t_s


def test_pod_starves_after_five_minutes_below_half():
    starvation = Starvation()
    t_s = looks(starvation, {"a": HUNGRY, "b": FULL, "c": ASLEEP}, 290.0)
    assert starvation.starved == {}
    starvation.look(t_s, {"a": HUNGRY, "b": FULL, "c": ASLEEP}, 0.5)
    assert starvation.starved == {"a": pytest.approx(0.3)}


def test_one_better_look_ends_no_starvation_and_minutes_do():
    starvation = Starvation()
    t_s = looks(starvation, {"a": HUNGRY}, 300.0)
    starvation.look(t_s, {"a": FULL}, 0.5)
    assert starvation.starved
    looks(starvation, {"a": FULL}, 150.0, t_s + LOOK_S)
    assert not starvation.starved


@pytest.mark.parametrize(("ratio", "starved"), [(0.2, False), (0.5, True), (0.9, True)])
def test_speed_that_is_promised_below_half_is_the_bar(ratio, starved):
    starvation = Starvation()
    looks(starvation, {"a": HUNGRY}, 300.0, ratio=ratio)
    assert bool(starvation.starved) is starved


def test_pod_that_gets_all_below_a_promised_speed_above_half_does_not_starve():
    starvation = Starvation()
    looks(starvation, {"a": PodSpeed(1.0, 0.7, 1.0)}, 300.0, ratio=0.9)
    assert not starvation.starved


def test_pod_that_was_away_or_forgotten_begins_anew():
    starvation = Starvation()
    t_s = looks(starvation, {"a": HUNGRY}, 300.0)
    starvation.look(t_s, {}, 0.5)
    t_s = looks(starvation, {"a": HUNGRY}, 290.0, t_s)
    assert not starvation.starved
    looks(starvation, {"a": HUNGRY}, 0.0, t_s)
    starvation.forget()
    assert not starvation.starved


def test_one_must_go_once_a_pod_starves_and_then_one_after_the_other_until_the_rest_have_their_full_speed():
    starvation = Starvation()
    t_s = looks(starvation, {"a": HUNGRY, "b": HUNGRY, "c": HUNGRY}, 300.0)
    first = starvation.one_must_go
    starvation.one_went()
    t_s = looks(starvation, {"a": SLOW, "b": SLOW}, 50.0, t_s)
    early = starvation.one_must_go
    t_s = looks(starvation, {"a": SLOW, "b": SLOW}, 0.0, t_s)
    second = starvation.one_must_go
    starvation.one_went()
    t_s = looks(starvation, {"a": FULL}, 60.0, t_s)
    third = starvation.one_must_go
    looks(starvation, {"a": SLOW}, 600.0, t_s)

    assert (first, early, second, third) == (True, False, True, False)
    assert not starvation.one_must_go, "it is slow again, and does not starve"


def test_pod_that_lacks_cpu_alone_costs_no_other():
    starvation = Starvation()
    looks(starvation, {"a": HUNGRY, **{f"b{n}": FULL for n in range(9)}}, 600.0)
    assert starvation.starved
    assert not starvation.one_must_go


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=200))
def test_no_two_must_go_within_a_minute(steps):
    starvation, t_s, went = Starvation(), 0.0, []
    for got, goes in steps:
        starvation.look(t_s, {"a": PodSpeed(1.0, got, 1.0), "b": PodSpeed(1.0, got / 2, 1.0)}, 0.5)
        if starvation.one_must_go and goes:
            went.append(t_s)
            starvation.one_went()
        t_s += LOOK_S
    assert all(later - sooner >= RELIEF_S for sooner, later in pairwise(went))


# --- feedback --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("speed_ratio", "factor"), [(0.5, 2.0), (0.8, 1.25), (1.0, 1.0)])
def test_feedback_begins_at_the_speed_that_is_promised(speed_ratio, factor):
    assert Feedback(speed_ratio).factor == pytest.approx(factor)


def test_hour_of_starving_ends_it_and_a_day_of_calm_gives_back_two_steps_and_a_half():
    assert Feedback(0.5).adjusted(1.0, 1.0).factor == 0.0
    assert Feedback(0.5).adjusted(0.0, 24.0).position == pytest.approx(START + 2.4)


def test_feedback_stands_still_where_it_measures_what_it_aims_at():
    assert Feedback(0.5, 3.3).adjusted(MOST_SLOW_RATIO, 100.0) == Feedback(0.5, 3.3)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 50.0))), st.floats(0.1, 1.0))
def test_feedback_stays_within_its_steps_and_moves_the_right_way(steps, speed_ratio):
    feedback = Feedback(speed_ratio)
    for slow, hours in steps:
        after = feedback.adjusted(slow, hours)
        assert after.is_sane
        assert 0.0 <= after.factor <= STEPS[-1] / speed_ratio
        if slow > MOST_SLOW_RATIO:
            assert after.factor <= feedback.factor
        else:
            assert after.factor >= feedback.factor
        feedback = after


@given(st.floats(0.0, 8.9), st.floats(0.0, 0.1))
def test_factor_grows_with_the_position(position, more):
    assert Feedback(0.5, position + more).factor >= Feedback(0.5, position).factor


@pytest.mark.parametrize(
    "saved",
    [
        None,
        Feedback(0.5, math.nan),
        Feedback(0.5, math.inf),
        Feedback(0.5, -1.0),
        Feedback(0.5, 9.1),
        Feedback(math.nan, 3.0),
        Feedback(0.8, 3.0),
        Feedback(0.0, 3.0),
    ],
)
def test_saved_feedback_that_makes_no_sense_or_is_of_another_speed_begins_anew(saved):
    assert restored(saved, 0.5) == Feedback(0.5)


def test_saved_feedback_goes_on():
    assert restored(Feedback(0.5, 6.5), 0.5) == Feedback(0.5, 6.5)
