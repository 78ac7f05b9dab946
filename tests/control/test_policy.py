"""The policy as data: tables of decisions with their reasons, and what holds for all inputs."""

import math

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.policy import (
    DynamicSettings,
    PolicyState,
    ResourceState,
    StaticSettings,
    decide,
    safe_limits,
)
from criproxy.control.resources import RESOURCES
from criproxy.model import UNLIMITED, Bounds, GuardCeiling
from tests import rows
from tests.rows import predictions

no_deadline = hypothesis_settings(deadline=None)

GIB = 2**30
CPU = DynamicSettings(floor=0.1, watermark_ratio=0.9)
MEMORY = DynamicSettings(floor=GIB, watermark_ratio=0.9)
SETTINGS = rows.laws(CPU, MEMORY)


def snapshot(t_s=1000.0, capacity=4.0, online=1.0, capacity_bytes=16 * GIB, online_bytes=4 * GIB):
    return rows.snapshot(t_s, (capacity, 2.0, 1.0, online), (capacity_bytes, 5 * GIB, GIB, online_bytes))


def holding(limit, since_s=0.0):
    return PolicyState({"cpu": ResourceState(limit, since_s)})


def cpu(taken, predicted, state=PolicyState(), settings=CPU, note="", guard=None, starting=0):  # noqa: B008, PLR0917
    prediction = predictions(predicted, float(4 * GIB), note, "")
    decision, after = decide(taken, prediction, state, rows.laws(settings, MEMORY), guard, starting=starting)
    return decision.limits["cpu"], decision.resources["cpu"].reason, after.resources["cpu"]


@pytest.mark.parametrize(
    ("state", "predicted", "limit", "reason"),
    [
        (PolicyState(), 2.28, 1.32, "set to 1.32 cores: 4.00 cores x 0.90 - predicted 2.28 cores"),
        (holding(2.1), 2.28, 1.32, "lowered 2.10 cores -> 1.32 cores: 4.00 cores x 0.90 - predicted 2.28 cores"),
        (holding(1.0, 990), 2.28, 1.32, "raised 1.00 cores -> 1.32 cores: 4.00 cores x 0.90 - predicted 2.28 cores"),
        (holding(1.3, 940), 2.28, 1.32, "raised 1.30 cores -> 1.32 cores: 4.00 cores x 0.90 - predicted 2.28 cores"),
        (
            holding(1.3, 941),
            2.28,
            1.3,
            "held at 1.30 cores: 4.00 cores x 0.90 - predicted 2.28 cores, as the raise by 0.02 cores is not more than "
            "0.20 cores and the last change 59 s old, not 60",
        ),
        (holding(1.5), 2.1, 1.5, "held at 1.50 cores: 4.00 cores x 0.90 - predicted 2.10 cores"),
        (
            holding(0.5),
            3.9,
            0.1,
            "lowered 0.50 cores -> 0.10 cores: the floor, above 4.00 cores x 0.90 - predicted 3.90 cores",
        ),
        (holding(0.1), None, 0.1, "held at 0.10 cores: the floor, as online usage can't be predicted"),
        (
            PolicyState(),
            0.5,
            2.6,
            "set to 2.60 cores: 4.00 cores x 0.90 - 1.00 cores that online uses now, more than the "
            "predicted 0.50 cores",
        ),
    ],
    ids=[
        "first",
        "lowered",
        "raised-beyond-threshold",
        "raised-after-60s",
        "held-young",
        "unchanged",
        "floor",
        "unknown",
        "above",
    ],
)
def test_decide_cpu_case_gives_limit_and_reason(state, predicted, limit, reason):
    decided, words, after = cpu(snapshot(), predicted, state)
    assert (decided, words) == (pytest.approx(limit), reason)
    assert after.limit == decided


def test_decide_what_is_above_the_capacity_counts_and_is_told_as_the_capacity():
    assert cpu(snapshot(capacity=2.0, online=9.0), 7.0) == (
        0.1,
        "set to 0.10 cores: the floor, above 2.00 cores x 0.90 - predicted 2.00 cores",
        ResourceState(0.1, 1000.0),
    )
    assert cpu(snapshot(capacity=2.0, online=9.0), 1.0)[1] == (
        "set to 0.10 cores: the floor, above 2.00 cores x 0.90 - 2.00 cores that online uses now, more than the "
        "predicted 1.00 cores"
    )


@pytest.mark.parametrize(
    ("starting", "online", "changes", "limit", "words"),
    [
        (0, 1.0, {}, 0.1, "the floor"),
        (1, 1.0, {}, 0.2, "the floor for 1 pod that starts"),
        (10, 1.0, {}, 1.1, "the floor for 10 pods that start"),
        (1000, 1.0, {}, 1.1, "the floor for 1000 pods that start"),
        (10, 3.5, {}, 0.5, "the floor for 10 pods that start"),
        (10, 1.0, {"reserve": 2.75}, 0.25, "the floor for 10 pods that start"),
        (10, 1.0, {"ceiling": 0.75}, 0.75, "the floor for 10 pods that start"),
        (10, 3.95, {}, 0.1, "the floor"),
        (10, 9.0, {}, 0.1, "the floor"),
    ],
    ids=["none", "one", "ten", "thousand", "busy", "reserve", "ceiling", "full", "impossible"],
)
def test_decide_floor_grows_with_pods_that_start_within_what_online_leaves(starting, online, changes, limit, words):
    given_cores, reason, _ = cpu(snapshot(online=online), 3.9, holding(0.1), replace(CPU, **changes), starting=starting)
    assert given_cores == pytest.approx(limit)
    assert f": {words}, above 4.00 cores x 0.90 - " in reason


def test_decide_floor_for_pods_that_start_is_given_at_once_and_taken_back_with_them():
    settings = replace(CPU, max_raise_ratio=0.01)
    limit, words, after = cpu(snapshot(), 3.9, holding(0.1, 999.0), settings, starting=4)
    assert words.startswith("raised 0.10 cores -> 0.50 cores: the floor for 4 pods that start")
    assert limit == pytest.approx(0.5)
    assert cpu(snapshot(1001.0), 3.9, PolicyState({"cpu": after}), settings)[0] == 0.1


def test_decide_pods_that_start_change_nothing_where_there_is_room():
    assert cpu(snapshot(), 1.0, starting=10) == cpu(snapshot(), 1.0)


def test_decide_guard_goes_before_pods_that_start():
    assert cpu(snapshot(), 3.9, guard=GuardCeiling(0.0, "online waits"), starting=10)[0] == 0.1


def test_decide_move_that_is_too_small_to_be_seen_tells_its_size():
    state = PolicyState({"memory": ResourceState(float(8 * GIB), 0.0)})
    decision, _ = decide(snapshot(), predictions(1.0, 6.4 * GIB - 4 * 2**20), state, SETTINGS)
    assert decision.resources["memory"].reason.startswith(
        "raised by 4.00 MiB to 8.00 GiB: 16.00 GiB x 0.90 - predicted 6.40 GiB"
    )


def test_decide_memory_is_in_bytes_and_words_in_gib():
    decision, _ = decide(snapshot(), predictions(1.0, 6.4 * GIB), PolicyState(), SETTINGS)
    assert decision.limits["memory"] == int(16 * GIB * 0.9 - 6.4 * GIB)
    assert decision.resources["memory"].reason == "set to 8.00 GiB: 16.00 GiB x 0.90 - predicted 6.40 GiB"


def test_decide_ceiling_bounds_the_limit_and_is_named():
    limit, words, _ = cpu(snapshot(), 1.0, settings=replace(CPU, ceiling=1.5))
    assert (limit, words) == (
        1.5,
        "set to 1.50 cores: the ceiling, below 4.00 cores x 0.90 - predicted 1.00 cores",
    )


def test_decide_note_of_the_prediction_is_in_the_reason():
    assert cpu(snapshot(), 4.0, note="cold start, 1 of 3 samples")[1].endswith("(cold start, 1 of 3 samples)")
    assert cpu(snapshot(), None, note="no sample for 61 s")[1].endswith("can't be predicted (no sample for 61 s)")


def test_decide_static_limits_never_move():
    settings = rows.laws(StaticSettings(1.5), StaticSettings(UNLIMITED))
    decision, state = decide(snapshot(), predictions(None, None), PolicyState(), settings)
    assert decision.limits == {"cpu": 1.5, "memory": UNLIMITED}
    assert decision.resources["cpu"].reason == "static, as configured: 1.50 cores"
    assert decision.resources["memory"].reason == "static, as configured: unlimited"
    assert decide(snapshot(2000.0, online=3.9), predictions(3.9, 0.0), state, settings)[0].limits == decision.limits


def test_decide_from_static_to_dynamic_starts_afresh():
    static = rows.laws(StaticSettings(0.5), MEMORY)
    _, state = decide(snapshot(), predictions(1.0, 0.0), PolicyState(), static)
    assert cpu(snapshot(1001.0), 1.0, state)[0] == pytest.approx(2.6)


def test_decide_with_a_step_bound_raises_in_steps_but_lowers_at_once():
    settings = replace(CPU, max_raise_ratio=0.1)
    limit, words, after = cpu(snapshot(), 1.0, holding(1.0), settings)
    assert limit == pytest.approx(1.4)
    assert words.endswith(", at most 0.40 cores at a time")
    limit, _, after = cpu(snapshot(1001.0), 1.0, PolicyState({"cpu": after}), settings)
    assert limit == pytest.approx(1.8)
    assert cpu(snapshot(1002.0), 3.5, PolicyState({"cpu": after}), settings)[0] == pytest.approx(0.1)


def test_decide_a_limit_below_a_new_floor_is_raised_at_once():
    limit, _, after = cpu(snapshot(), 3.9, holding(0.05, 999), replace(CPU, max_raise_ratio=0.001))
    assert (limit, after.changed_s) == (0.1, 1000.0)


# --- the guard's ceiling ---


def squeezed_to(limit, given):
    return PolicyState({"cpu": ResourceState(limit, 0.0, given)})


@pytest.mark.parametrize(
    ("state", "ceiling", "limit", "reason"),
    [
        pytest.param(holding(1.3), 0.5, 0.5, "lowered 1.30 cores -> 0.50 cores: the guard's ceiling (online waits), "
                     "below what the policy gives, 1.30 cores: 4.00 cores x 0.90 - predicted 2.30 cores", id="lowers"),
        pytest.param(PolicyState(), 0.5, 0.5, "set to 0.50 cores: the guard's ceiling (online waits), "
                     "below what the policy gives, 1.30 cores: 4.00 cores x 0.90 - predicted 2.30 cores", id="first"),
        pytest.param(holding(1.3), 0.01, 0.1, "lowered 1.30 cores -> 0.10 cores: the guard's ceiling (online waits), "
                     "below what the policy gives, 1.30 cores: 4.00 cores x 0.90 - predicted 2.30 cores", id="floor"),
        pytest.param(squeezed_to(1.3, 0.5), 0.51, 0.51, "raised 0.50 cores -> 0.51 cores: the guard's ceiling (online "
                     "waits), below what the policy gives, 1.30 cores: 4.00 cores x 0.90 - predicted 2.30 cores",
                     id="recovers-by-less-than-the-threshold"),
        pytest.param(squeezed_to(1.3, 0.5), 9.0, 1.3, "raised 0.50 cores -> 1.30 cores: 4.00 cores x 0.90 - predicted "
                     "2.30 cores", id="is-over"),
        pytest.param(holding(1.3), math.nan, 1.3, "held at 1.30 cores: 4.00 cores x 0.90 - predicted 2.30 cores",
                     id="not-a-number"),
    ],
)  # fmt: skip
def test_decide_guard_case_gives_limit_and_reason(state, ceiling, limit, reason):
    decided, words, after = cpu(snapshot(), 2.3, state, guard=GuardCeiling(ceiling, "online waits"))
    assert (decided, words) == (pytest.approx(limit), reason)
    assert (after.limit, after.given) == (pytest.approx(1.3), decided)


def test_decide_guard_that_squeezes_does_not_make_the_law_forget_or_wait():
    """The law goes on beneath the ceiling, so that its end is its own matter."""
    state, guard = holding(1.0, 999.0), GuardCeiling(0.2, "x")
    for t_s in range(1000, 1100):
        _, _, after = cpu(snapshot(float(t_s)), 2.3, state, guard=guard)
        state = PolicyState({"cpu": after})
    assert (after.limit, after.given) == (pytest.approx(1.3), 0.2)
    assert cpu(snapshot(1100.0), 2.3, state)[0] == pytest.approx(1.3)


def test_decide_guard_squeezes_a_static_limit_too_and_lets_go_of_it():
    static = StaticSettings(1.5, floor=0.1)
    limit, words, after = cpu(snapshot(), 1.0, PolicyState(), static, guard=GuardCeiling(0.4, "online waits"))
    assert limit == 0.4
    assert words.endswith("what the policy gives, 1.50 cores: static, as configured: 1.50 cores")
    limit, words, _ = cpu(snapshot(1001.0), 1.0, PolicyState({"cpu": after}), static)
    assert (limit, words) == (1.5, "raised 0.40 cores -> 1.50 cores: static, as configured: 1.50 cores")


def test_decide_guard_squeezes_a_box_without_a_limit():
    static = StaticSettings(UNLIMITED, floor=0.1)
    limit, words, after = cpu(snapshot(), 1.0, PolicyState(), static, guard=GuardCeiling(0.4, "online waits"))
    assert (limit, "what the policy gives, no limit" in words) == (0.4, True)
    assert cpu(snapshot(1001.0), 1.0, PolicyState({"cpu": after}), static)[0] is UNLIMITED


def test_decide_guard_does_not_touch_memory():
    state = PolicyState()
    decision, _ = decide(snapshot(), predictions(1.0, 6.4 * GIB), state, SETTINGS, GuardCeiling(0.01, "x"))
    assert decision.limits["memory"] == int(8 * GIB)


# --- the reserve, capacity and steps ---


def test_decide_reserve_is_taken_off_and_named():
    limit, words, _ = cpu(snapshot(), 1.0, settings=replace(CPU, reserve=1.5))
    assert limit == pytest.approx(1.1)
    assert words == "set to 1.10 cores: 4.00 cores x 0.90 - predicted 1.00 cores - reserve 1.50 cores"


def test_decide_reserve_beyond_the_node_leaves_the_floor():
    assert cpu(snapshot(), 0.0, settings=replace(CPU, reserve=99.0))[0] == 0.1


@pytest.mark.parametrize(
    ("settings", "limit", "reason"),
    [
        (StaticSettings(3.0), 3.0, "static, as configured: 3.00 cores"),
        (StaticSettings(3.0, reserve=1.0), 3.0, "static, as configured: 3.00 cores"),
        (
            StaticSettings(3.0, reserve=1.5),
            2.5,
            "all of 4.00 cores - reserve 1.50 cores, below static, as configured: 3.00 cores",
        ),
        (StaticSettings(9.0), 4.0, "all of 4.00 cores, below static, as configured: 9.00 cores"),
        (StaticSettings(9.0, floor=0.2, reserve=4.0), 0.2, "all of 4.00 cores - reserve 4.00 cores, below static, as "
         "configured: 9.00 cores"),
        (StaticSettings(0.1, why="the floor, as the schedule is off"), 0.1,
         "the floor, as the schedule is off: 0.10 cores"),
    ],
    ids=["as-configured", "beside-the-reserve", "less-the-reserve", "capacity", "floor", "off"],
)  # fmt: skip
def test_decide_static_case_gives_limit_and_reason(settings, limit, reason):
    assert cpu(snapshot(), 1.0, PolicyState(), settings)[:2] == (limit, reason)


@pytest.mark.parametrize("settings", [SETTINGS, rows.laws(StaticSettings(3.0), StaticSettings(12 * GIB))])
def test_decide_capacity_that_shrinks_lowers_both_limits_in_the_same_tick(settings):
    _, state = decide(snapshot(), predictions(0.5, 1.0 * GIB), PolicyState(), settings)
    less = snapshot(1001.0, 1.0, 0.5, 4 * GIB)
    decision, _ = decide(less, predictions(0.5, 1.0 * GIB), state, settings)
    assert decision.limits["cpu"] <= 1.0  # type: ignore[operator]
    assert decision.limits["memory"] <= 4 * GIB  # type: ignore[operator]
    assert decision.resources["cpu"].reason.startswith("lowered")
    assert decision.resources["memory"].reason.startswith("lowered")


def test_decide_capacity_that_grows_raises_at_once_but_in_strides():
    settings = replace(CPU, max_raise_ratio=0.1)
    limit, words, _ = cpu(snapshot(capacity=8.0), 1.0, holding(2.6, 999.0), settings)
    assert limit == pytest.approx(3.4)
    assert words.endswith("8.00 cores x 0.90 - predicted 1.00 cores, at most 0.80 cores at a time")


def test_decide_memory_moves_in_whole_mib_downwards():
    predicted = 16 * GIB * 0.9 - (8 * GIB + 3 * 2**20 - 1)
    decision, _ = decide(snapshot(), predictions(1.0, predicted), PolicyState(), SETTINGS)
    assert decision.limits["memory"] == 8 * GIB + 2 * 2**20


def test_decide_memory_does_not_move_for_a_few_kib_each_second():
    state, limits = PolicyState(), set()
    for t_s in range(50):
        prediction = predictions(1.0, 6.4 * GIB + 2**19 + (t_s % 7) * 4096)
        decision, state = decide(snapshot(float(t_s)), prediction, state, SETTINGS)
        limits.add(decision.limits["memory"])
    assert limits == {8 * GIB - 2**20}


# --- what a decision carries ---


def test_decide_decision_carries_its_inputs():
    settings = rows.laws(replace(CPU, reserve=0.5, ceiling=3.0), StaticSettings(GIB), "window night (dynamic)")
    guard = GuardCeiling(0.5, "online waits")
    first, state = decide(snapshot(), predictions(1.0, None, "careful"), PolicyState(), settings)
    second, _ = decide(snapshot(1001.0), predictions(1.0, None), state, settings, guard)
    assert {decided.before for decided in first.resources.values()} == {None}
    assert {name: decided.before for name, decided in second.resources.items()} == first.limits
    assert (first.guard, second.guard) == (None, guard)
    assert first.resources["cpu"].bounds == Bounds(floor=0.1, ceiling=3.0, reserve=0.5, watermark_ratio=0.9)
    assert first.resources["memory"].bounds == Bounds(floor=0.0, ceiling=None, reserve=0.0, watermark_ratio=None)
    assert (first.window, first.resources["cpu"].prediction.note) == ("window night (dynamic)", "careful")


def test_decide_time_of_last_change_stays_while_held():
    assert cpu(snapshot(), 2.1, holding(1.5, 123.0))[2] == ResourceState(1.5, 123.0)
    assert cpu(snapshot(), 2.0, holding(1.5, 990.0))[2] == ResourceState(1.5, 990.0)


def test_safe_limits_are_floors_and_static_limits():
    assert safe_limits(SETTINGS) == {"cpu": 0.1, "memory": GIB}
    assert safe_limits(rows.laws(StaticSettings(2.0), StaticSettings(UNLIMITED))) == {
        "cpu": 2.0,
        "memory": UNLIMITED,
    }


# --- properties ---

cores = st.floats(0.0, 64.0)
wild = st.floats(allow_nan=True, allow_infinity=True)
states = st.builds(ResourceState, st.one_of(st.none(), st.floats(0.1, 60.0)), st.floats(0.0, 1000.0)) | st.just(
    ResourceState()
)
laws = st.builds(
    DynamicSettings,
    floor=st.floats(0.01, 2.0),
    watermark_ratio=st.floats(0.1, 1.0),
    ceiling=st.none() | st.floats(2.0, 32.0),
    reserve=st.just(0.0) | st.floats(0.0, 5.0),
    raise_threshold_ratio=st.floats(0.0, 1.0),
    raise_after_s=st.floats(0.0, 600.0),
    max_raise_ratio=st.none() | st.floats(0.001, 1.0),
)


guards = st.none() | st.builds(GuardCeiling, st.floats(0.0, 16.0), st.just("online waits"))
wild_guards = st.none() | st.builds(GuardCeiling, wild, st.just("online waits"))


def limit_of(taken, predicted, state, settings, guard=None):
    return cpu(taken, predicted, PolicyState({"cpu": state}), settings, guard=guard)[0]


@no_deadline
@given(st.tuples(wild, wild, wild), st.none() | wild, states, laws, wild_guards)
def test_decide_on_anything_stays_within_floor_and_ceiling(numbers, predicted, state, settings, guard):
    limit = limit_of(snapshot(*numbers), predicted, state, settings, guard)
    within = max(settings.ceiling or 0.0, settings.floor) if settings.ceiling else math.inf
    assert settings.floor <= limit <= within


@no_deadline
@given(wild, wild, st.none() | wild, states, laws)
def test_decide_on_what_is_not_known_gives_the_floor(capacity, online, predicted, state, settings):
    known = (
        0.0 < capacity < math.inf and predicted is not None and 0.0 <= predicted < math.inf and math.isfinite(online)
    )
    if not known:
        assert limit_of(snapshot(1000.0, capacity, online), predicted, state, settings) <= max(
            settings.floor, state.limit or 0.0
        )
        assert limit_of(snapshot(1000.0, capacity, online), predicted, ResourceState(), settings) == settings.floor


@no_deadline
@given(st.tuples(cores, cores), st.tuples(cores, cores), states, laws, guards)
def test_decide_more_online_usage_never_gives_a_larger_box(now, more, state, settings, guard):
    (online, predicted), (more_online, more_predicted) = now, more
    limit = limit_of(snapshot(online=online), predicted, state, settings, guard)
    busier = limit_of(snapshot(online=online + more_online), predicted + more_predicted, state, settings, guard)
    assert busier <= limit


@no_deadline
@given(st.tuples(cores, cores), states, laws, guards, st.floats(0.0, 16.0))
def test_decide_a_lower_guard_never_gives_a_larger_box_and_none_gives_the_largest(usage, state, settings, guard, least):
    predicted, taken = usage[1], snapshot(online=usage[0])
    limit = limit_of(taken, predicted, state, settings, guard)
    lower = GuardCeiling(min(least, guard.cores if guard else math.inf), "lower")
    assert limit_of(taken, predicted, state, settings, lower) <= limit <= limit_of(taken, predicted, state, settings)
    assert limit <= max(settings.floor, guard.cores if guard else math.inf)


@no_deadline
@given(st.lists(st.tuples(st.floats(0.1, 90.0), cores, guards), max_size=40), laws)
def test_decide_any_past_of_the_guard_leaves_the_law_as_it_would_be(steps, settings):
    with_guard = without = PolicyState()
    t_s = 1000.0
    for dt_s, predicted, guard in steps:
        t_s += dt_s
        _, _, squeezed = cpu(snapshot(t_s, online=0.0), predicted, with_guard, settings, guard=guard)
        _, _, free = cpu(snapshot(t_s, online=0.0), predicted, without, settings)
        with_guard, without = PolicyState({"cpu": squeezed}), PolicyState({"cpu": free})
        assert (squeezed.limit, squeezed.changed_s) == (free.limit, free.changed_s)


@no_deadline
@given(cores, st.tuples(st.floats(0.5, 64.0), st.floats(0.0, 64.0)), states, laws)
def test_decide_less_capacity_never_gives_a_larger_box_in_the_first_tick(predicted, capacities, state, settings):
    capacity, less = capacities[0], min(capacities)
    if less > 0.0:
        here = snapshot(capacity=capacity, online=0.0)
        there = snapshot(capacity=less, online=0.0)
        known = replace(settings, max_raise_ratio=None, raise_threshold_ratio=0.0)
        assert limit_of(there, predicted, state, known) <= limit_of(here, predicted, state, known)
        assert limit_of(there, predicted, state, settings) <= max(settings.floor, less)


@no_deadline
@given(cores, cores, states, laws)
def test_decide_never_gives_the_reserve(predicted, online, state, settings):
    limit = limit_of(snapshot(online=online), predicted, state, settings)
    assert limit <= max(settings.floor, 4.0 - settings.reserve)


@no_deadline
@given(states, st.floats(0.001, 1.0), cores, laws)
def test_decide_a_raise_is_at_most_a_stride(state, ratio, predicted, law):
    settings = replace(law, max_raise_ratio=ratio)
    limit = limit_of(snapshot(online=0.0), predicted, state, settings)
    if state.limit is not None:
        assert limit <= max(settings.floor, state.limit + max(0.01, 4.0 * ratio))


@no_deadline
@given(cores, cores, states, laws, guards, st.integers(0, 200))
def test_decide_pods_that_start_get_no_less_and_never_what_online_uses_or_the_reserve(  # noqa: PLR0917
    predicted, online, state, settings, guard, starting
):
    taken = snapshot(online=online)
    with_them = cpu(taken, predicted, PolicyState({"cpu": state}), settings, guard=guard, starting=starting)[0]
    without = cpu(taken, predicted, PolicyState({"cpu": state}), settings, guard=guard)[0]
    left = taken.of["cpu"].capacity - settings.reserve - online
    assert without <= with_them <= max(without, left, settings.floor)
    assert with_them <= max(without, settings.floor + RESOURCES["cpu"].start_most)


@no_deadline
@given(cores, cores, states, laws)
def test_decide_lowering_is_never_delayed(predicted, online, state, settings):
    taken = snapshot(online=online)
    target = limit_of(taken, predicted, ResourceState(), settings)
    if state.limit is not None and target <= state.limit:
        assert limit_of(taken, predicted, state, settings) == target


@no_deadline
@given(st.tuples(st.integers(0, 900), st.integers(-(10**6), 10**6)), st.tuples(cores, cores), states, laws)
def test_decide_does_not_depend_on_when_it_happens(times, usage, state, settings):
    (since, shift), (online, predicted) = times, usage
    here = replace(state, changed_s=float(1000 - since))
    there = replace(state, changed_s=float(1000 - since + shift))
    assert limit_of(snapshot(1000.0, 4.0, online), predicted, here, settings) == limit_of(
        snapshot(1000.0 + shift, 4.0, online), predicted, there, settings
    )


@no_deadline
@given(st.lists(st.tuples(st.floats(0.0, 120.0), cores), max_size=50), laws)
def test_decide_over_any_day_never_leaves_more_than_the_watermark(steps, settings):
    """In every tick: box + prediction <= capacity x watermark, but for the floor."""
    state, t = PolicyState(), 1000.0
    for dt, predicted in steps:
        t += dt
        limit, _, after = cpu(snapshot(t, online=0.0), predicted, state, settings)
        state = PolicyState({"cpu": after})
        assert limit <= max(settings.floor, 4.0 * settings.watermark_ratio - predicted + 1e-9)


# --- what kubelet must find free -------------------------------------------------------------------------------------


def memory(kept, settings=MEMORY, predicted=5.0 * GIB, *, online=4 * GIB):
    taken = snapshot(online_bytes=online)
    prediction = predictions(1.0, predicted)
    decision, _ = decide(taken, prediction, PolicyState(), rows.laws(CPU, settings), kept={"memory": kept})
    return decision.limits["memory"], decision.resources["memory"].reason, decision.resources["memory"].bounds.kept


@pytest.mark.parametrize(
    ("kept", "settings", "limit", "reason"),
    [
        pytest.param(0, MEMORY, 9.4 * GIB, "16.00 GiB x 0.90 - predicted 5.00 GiB", id="nothing"),
        pytest.param(GIB, MEMORY, 9.4 * GIB, "16.00 GiB x 0.90 - predicted 5.00 GiB", id="less-than-the-watermark"),
        pytest.param(
            4 * GIB,
            MEMORY,
            7 * GIB,
            "16.00 GiB - 4.00 GiB kept free, lest kubelet evict pods - predicted 5.00 GiB",
            id="more-than-the-watermark",
        ),
        pytest.param(
            GIB,
            replace(MEMORY, watermark_ratio=1.0),
            10 * GIB,
            "16.00 GiB - 1.00 GiB kept free, lest kubelet evict pods - predicted 5.00 GiB",
            id="watermark-1",
        ),
        pytest.param(
            GIB, replace(MEMORY, reserve=3 * GIB), 6.4 * GIB, "- predicted 5.00 GiB - reserve 3.00 GiB", id="reserve"
        ),
        pytest.param(11 * GIB, MEMORY, GIB, "the floor, above 16.00 GiB - 11.00 GiB kept free", id="the-floor-stays"),
        pytest.param(
            11.5 * GIB,
            MEMORY,
            0.5 * GIB,
            "what online leaves of the floor, above 16.00 GiB - 11.50 GiB kept free",
            id="the-floor-gives-way",
        ),
        pytest.param(15 * GIB, MEMORY, GIB / 8, "what online leaves of the floor", id="but-for-128-MiB"),
        pytest.param(15 * GIB, replace(MEMORY, floor=GIB / 16), GIB / 16, "the floor, above", id="or-less"),
        pytest.param(
            2 * GIB,
            StaticSettings(12 * GIB, GIB),
            10 * GIB,
            "lest kubelet evict pods - online's present use 4.00 GiB, below static, as configured: 12.00 GiB",
            id="static",
        ),
        pytest.param(
            2 * GIB, StaticSettings(8 * GIB, GIB), 8 * GIB, "static, as configured: 8.00 GiB", id="static-fits"
        ),
        pytest.param(
            11.5 * GIB, StaticSettings(8 * GIB, GIB), 0.5 * GIB, "online's present use 4.00 GiB", id="static-floor"
        ),
        pytest.param(
            2 * GIB, StaticSettings(UNLIMITED, GIB), 10 * GIB, "below static, as configured: unlimited", id="unlimited"
        ),
    ],
)
def test_memory_that_kubelet_must_find_free_is_not_given(kept, settings, limit, reason):
    size, words, told = memory(kept, settings)
    assert size == int(limit) // 2**20 * 2**20
    assert reason in words
    assert told == kept


def test_static_limit_that_gives_way_to_online_comes_back_by_steps() -> None:
    def limit(online: int, state: PolicyState) -> tuple[float, PolicyState]:
        taken = snapshot(online_bytes=online)
        settings = rows.laws(CPU, StaticSettings(12 * GIB, GIB))
        decision, after = decide(taken, predictions(1.0, None), state, settings, kept={"memory": 2 * GIB})
        return decision.limits["memory"], after  # type: ignore[return-value]

    first, state = limit(4 * GIB, PolicyState())
    nearly, state = limit(4 * GIB - 100 * 2**20, state)
    lower, state = limit(5 * GIB, state)
    more, state = limit(4 * GIB, state)
    whole, _ = limit(GIB, state)
    assert (first, nearly, lower, more, whole) == (10 * GIB, 10 * GIB, 9 * GIB, 10 * GIB, 12 * GIB)


def test_static_limit_does_not_wait_for_the_predictor() -> None:
    """Which expects the whole node of online when it has just begun."""
    assert memory(2 * GIB, StaticSettings(8 * GIB, GIB), 16 * GIB)[0] == 8 * GIB


@no_deadline
@given(
    st.floats(0, 20 * GIB),
    st.integers(0, 20 * GIB),
    st.none() | st.floats(0, 20 * GIB),
    st.sampled_from(
        [MEMORY, replace(MEMORY, watermark_ratio=1.0), StaticSettings(12 * GIB, GIB), StaticSettings(UNLIMITED)]
    ),
)
def test_limit_and_online_never_take_what_is_kept(kept, online, predicted, settings):
    size, _, _ = memory(kept, settings, predicted, online=online)
    if kept:
        assert size <= max(settings.floor, 16 * GIB - kept - online) + 1
