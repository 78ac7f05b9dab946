"""The replay is the daemon's own predictor and policy; and what holds for the box's limit whatever online does."""

import math
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.commands.simulate.replay import limit, predict
from criproxy.commands.simulate.trace import example
from criproxy.control.histogram import CPU_BUCKETS, MEMORY_BUCKETS
from criproxy.control.policy import DynamicSettings, PolicySettings, PolicyState, decide
from criproxy.control.predictor import make_predictor
from criproxy.control.series import PredictorSettings
from criproxy.model import ResourcePrediction, ResourceSample, Snapshot
from tests.commands.simulate.simulate_helpers import PLAN, trace

no_deadline = hypothesis_settings(deadline=None)
GIB = 2.0**30
T = 1_700_006_400.0  # midnight, UTC


def test_predictions_are_those_of_the_daemons_predictor():
    course = example()[1]
    predictor = make_predictor(PredictorSettings(alpha_ratio=0.03, horizon_s=90.0), CPU_BUCKETS)
    expected = [predictor.observe(t, t, u, 16.0) for t, u in zip(course.times_s, course.usages, strict=True)]
    assert list(predict(course, replace(PLAN, alpha_ratio=0.03))) == expected


def test_predictions_of_memory_are_made_in_bytes_and_given_in_the_unit():
    course = trace([60.0 + i % 5 for i in range(200)], capacity=128.0, step=60.0)
    plan = replace(PLAN, resource="memory", floor=GIB, unit=GIB, horizon_s=600.0, cold_start_probes=5)
    settings = PredictorSettings(horizon_s=600.0, cold_start_probes=5)
    predictor = make_predictor(settings, MEMORY_BUCKETS)
    expected = [
        predictor.observe(t, t, u * GIB, 128.0 * GIB) for t, u in zip(course.times_s, course.usages, strict=True)
    ]
    predictions = predict(course, plan)
    assert list(predictions) == [p / GIB for p in expected]
    assert limit(course, predictions, plan)[-1] == pytest.approx(0.9 * 128.0 - predictions[-1], abs=0.05 * 128.0)


@pytest.mark.parametrize("kind", ["histogram", "calibrated"])
def test_kind_of_the_plan_is_the_kind_of_predictor(kind):
    course = example()[0]
    predictor = make_predictor(PredictorSettings(kind=kind, horizon_s=90.0), CPU_BUCKETS)
    expected = [predictor.observe(t, t, u, 16.0) for t, u in zip(course.times_s, course.usages, strict=True)]
    assert list(predict(course, replace(PLAN, kind=kind))) == expected


def test_horizon_until_the_next_sample_follows_the_step_of_the_trace():
    assert PLAN.horizon_of(trace([1.0] * 9, step=300.0)) == 450.0
    assert PLAN.horizon_of(trace([1.0] * 5, [0, 15, 30, 400, 415])) == 22.5
    assert PLAN.horizon_of(trace([1.0])) > 0.0
    assert replace(PLAN, horizon_s=3600.0).horizon_of(trace([1.0] * 9, step=300.0)) == 3600.0


def test_limits_are_lowered_at_once_and_raised_with_the_policys_patience():
    course = trace([0.0] * 6, step=20.0)
    limits = limit(course, [2.0, 4.0, 3.9, 3.9, 3.9, 3.0], PLAN)
    assert list(limits) == pytest.approx([7.0, 5.0, 5.0, 5.0, 5.1, 6.0])


def test_limits_never_fall_below_the_floor():
    assert list(limit(trace([9.0] * 3, step=60.0), [10.0] * 3, PLAN)) == [0.1] * 3


# --- what holds for any course of usage ---

usages = st.lists(st.floats(0.0, 32.0), min_size=2, max_size=80)
steps = st.lists(st.integers(1, 600), min_size=80, max_size=80)
plans = st.builds(
    replace,
    st.just(PLAN),
    kind=st.sampled_from(["histogram", "calibrated"]),
    floor=st.floats(0.01, 4.0),
    watermark_ratio=st.floats(0.1, 1.0),
    alpha_ratio=st.floats(0.001, 0.2),
    horizon_s=st.sampled_from([None, 60.0, 900.0]),
    cold_start_probes=st.integers(0, 30),
)


def irregular(used, paces, start=T):
    times, t = [], start
    for pace, _ in zip(paces, used, strict=False):
        t += pace
        times.append(t)
    return trace(used, times, capacity=32.0)


@no_deadline
@given(usages, steps, plans)
def test_limit_is_within_the_floor_and_what_the_watermark_leaves(used, paces, plan):
    course = irregular(used, paces)
    predictions = predict(course, plan)
    for usage, predicted, bound in zip(used, predictions, limit(course, predictions, plan), strict=True):
        assert usage <= predicted <= 32.0
        assert plan.floor <= bound <= max(plan.floor, 32.0 * plan.watermark_ratio - predicted + 1e-9)


@no_deadline
@given(usages, steps, plans, st.integers(-400, 400))
def test_replay_on_another_day_is_the_same(used, paces, plan, days):
    here, there = irregular(used, paces), irregular(used, paces, start=T + 86400.0 * days)
    predictions = predict(here, plan)
    assert predict(there, plan) == predictions
    assert limit(there, predictions, plan) == limit(here, predictions, plan)


@no_deadline
@given(usages, steps, plans, st.integers(0, 79), st.floats(0.0, 32.0))
def test_prediction_does_not_know_what_comes(used, paces, plan, at, other):
    """Another future changes nothing before it: neither a prediction nor a limit."""
    at = min(at, len(used))
    changed = used[:at] + [other] * (len(used) - at)
    plan = replace(plan, horizon_s=60.0)
    one, two = irregular(used, paces), irregular(changed, paces)
    predictions, others = predict(one, plan), predict(two, plan)
    assert predictions[:at] == others[:at]
    assert limit(one, predictions, plan)[:at] == limit(two, others, plan)[:at]


@pytest.mark.slow
@no_deadline
@given(usages, steps, plans, st.integers(0, 79), st.booleans())
def test_limit_after_a_restart_at_any_sample_is_safe(used, paces, plan, at, kept):
    """The policy's state is lost, the predictor's is restored (`kept`) or lost as well."""
    course, at = irregular(used, paces), min(at, len(used) - 1)
    settings = PredictorSettings(
        kind=plan.kind, alpha_ratio=plan.alpha_ratio, horizon_s=60.0, cold_start_probes=plan.cold_start_probes
    )
    predictor = make_predictor(settings, CPU_BUCKETS)
    policy = PolicySettings({"cpu": DynamicSettings(plan.floor, plan.watermark_ratio)})
    state = PolicyState()
    for i, (t, usage) in enumerate(zip(course.times_s, course.usages, strict=True)):
        if i == at:
            checkpoint, predictor, state = predictor.checkpoint(), make_predictor(settings, CPU_BUCKETS), PolicyState()
            if kept:
                predictor.restore(deepcopy(checkpoint), t, 0.0)
        predicted = predictor.observe(t, t, usage, 32.0)
        assert usage <= predicted
        if i == at and not kept:
            assert predicted == 32.0
        snapshot = Snapshot(t, {"cpu": ResourceSample(32.0, usage, 0.0, usage)}, 0.0)
        decision, state = decide(snapshot, {"cpu": ResourcePrediction(predicted)}, state, policy)
        assert plan.floor <= decision.limits["cpu"] <= max(plan.floor, 32.0 * plan.watermark_ratio - usage + 1e-9)


def test_example_is_three_nodes_of_two_days_and_always_the_same():
    courses = example()
    assert [course.id for course in courses] == ["web-node", "shop-node", "steady-node"]
    for course in courses:
        assert (course.step_s, len(course.times_s)) == (60.0, 2880)
        assert all(0.0 <= usage <= course.capacity for usage in course.usages)
    assert [round(math.fsum(course.usages), 3) for course in courses] == [
        round(math.fsum(course.usages), 3) for course in example()
    ]
