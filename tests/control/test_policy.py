"""The policy as data: tables of decisions with their reasons, and what holds for all inputs."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from criproxy.control.policy import (
    DynamicSettings,
    PolicySettings,
    PolicyState,
    ResourceState,
    StaticSettings,
    decide,
    safe_limits,
)
from criproxy.model import UNLIMITED, Limits, Prediction, Snapshot

no_deadline = hypothesis_settings(deadline=None)

GIB = 2**30
CPU = DynamicSettings(floor=0.1, watermark_ratio=0.9)
MEMORY = DynamicSettings(floor=GIB, watermark_ratio=0.9)
SETTINGS = PolicySettings(CPU, MEMORY)


def snapshot(t_s=1000.0, capacity=4.0, online=1.0):
    return Snapshot(
        t_s=t_s,
        capacity_cores=capacity,
        capacity_bytes=16 * GIB,
        node_cores=2.0,
        node_bytes=5 * GIB,
        box_cores=1.0,
        box_bytes=GIB,
        online_cores=online,
        online_bytes=4 * GIB,
        throttled_ratio=0.0,
    )


def holding(limit, since_s=0.0):
    return PolicyState(cpu=ResourceState(limit, since_s))


def cpu(taken, predicted, state=PolicyState(), settings=CPU, note=""):  # noqa: B008
    prediction = Prediction(predicted, float(4 * GIB), note, "")
    decision, after = decide(taken, prediction, state, PolicySettings(settings, MEMORY))
    return decision.limits.cpu_cores, decision.cpu_reason, after.cpu


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
            "set to 2.60 cores: 4.00 cores x 0.90 - online's present use, above the predicted 1.00 cores",
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


def test_decide_memory_is_in_bytes_and_words_in_gib():
    decision, _ = decide(snapshot(), Prediction(1.0, 6.4 * GIB), PolicyState(), SETTINGS)
    assert decision.limits.memory_bytes == int(16 * GIB * 0.9 - 6.4 * GIB)
    assert decision.memory_reason == "set to 8.00 GiB: 16.00 GiB x 0.90 - predicted 6.40 GiB"


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
    settings = PolicySettings(StaticSettings(1.5), StaticSettings(UNLIMITED))
    decision, state = decide(snapshot(), Prediction(None, None), PolicyState(), settings)
    assert decision.limits == Limits(1.5, UNLIMITED)
    assert decision.cpu_reason == "static, as configured: 1.50 cores"
    assert decision.memory_reason == "static, as configured: unlimited"
    assert decide(snapshot(2000.0, online=3.9), Prediction(3.9, 0.0), state, settings)[0].limits == decision.limits


def test_decide_from_static_to_dynamic_starts_afresh():
    static = PolicySettings(StaticSettings(0.5), MEMORY)
    _, state = decide(snapshot(), Prediction(1.0, 0.0), PolicyState(), static)
    assert cpu(snapshot(1001.0), 1.0, state)[0] == pytest.approx(2.6)


def test_decide_with_a_step_bound_raises_in_steps_but_lowers_at_once():
    settings = replace(CPU, max_raise_ratio=0.1)
    limit, words, after = cpu(snapshot(), 1.0, holding(1.0), settings)
    assert limit == pytest.approx(1.4)
    assert words.endswith(", at most 0.40 cores at a time")
    limit, _, after = cpu(snapshot(1001.0), 1.0, PolicyState(cpu=after), settings)
    assert limit == pytest.approx(1.8)
    assert cpu(snapshot(1002.0), 3.5, PolicyState(cpu=after), settings)[0] == pytest.approx(0.1)


def test_decide_a_limit_below_a_new_floor_is_raised_at_once():
    limit, _, after = cpu(snapshot(), 3.9, holding(0.05, 999), replace(CPU, max_raise_ratio=0.001))
    assert (limit, after.changed_s) == (0.1, 1000.0)


def test_decide_time_of_last_change_stays_while_held():
    assert cpu(snapshot(), 2.1, holding(1.5, 123.0))[2] == ResourceState(1.5, 123.0)
    assert cpu(snapshot(), 2.0, holding(1.5, 990.0))[2] == ResourceState(1.5, 990.0)


def test_safe_limits_are_floors_and_static_limits():
    assert safe_limits(SETTINGS) == Limits(0.1, GIB)
    assert safe_limits(PolicySettings(StaticSettings(2.0), StaticSettings(UNLIMITED))) == Limits(2.0, UNLIMITED)


@pytest.mark.parametrize(
    "changes",
    [
        {"floor": 0.0},
        {"floor": -1.0},
        {"floor": math.nan},
        {"floor": math.inf},
        {"floor": 2.0, "ceiling": 1.0},
        {"watermark_ratio": 0.0},
        {"watermark_ratio": 1.01},
        {"watermark_ratio": math.nan},
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(changes):
    with pytest.raises(ValueError, match=r"must be"):
        replace(CPU, **changes)


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
    raise_threshold_ratio=st.floats(0.0, 1.0),
    raise_after_s=st.floats(0.0, 600.0),
    max_raise_ratio=st.none() | st.floats(0.001, 1.0),
)


def limit_of(taken, predicted, state, settings):
    return cpu(taken, predicted, PolicyState(cpu=state), settings)[0]


@no_deadline
@given(st.tuples(wild, wild, wild), st.none() | wild, states, laws)
def test_decide_on_anything_stays_within_floor_and_ceiling(numbers, predicted, state, settings):
    limit = limit_of(snapshot(*numbers), predicted, state, settings)
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
@given(st.tuples(cores, cores), st.tuples(cores, cores), states, laws)
def test_decide_more_online_usage_never_gives_a_larger_box(now, more, state, settings):
    (online, predicted), (more_online, more_predicted) = now, more
    limit = limit_of(snapshot(online=online), predicted, state, settings)
    busier = limit_of(snapshot(online=online + more_online), predicted + more_predicted, state, settings)
    assert busier <= limit


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
        state = PolicyState(cpu=after)
        assert limit <= max(settings.floor, 4.0 * settings.watermark_ratio - predicted + 1e-9)
