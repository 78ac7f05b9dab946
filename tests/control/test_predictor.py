"""Both predictors against the recorded series, against the definition recomputed, and in every edge case."""

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.control.predictor_helpers import (
    CAPACITY,
    KINDS,
    T,
    feed,
    level_of,
    matured_probes,
    noisy,
    predictor,
    restored,
)
from tests.control.reference_predictor import Reference

no_deadline = hypothesis_settings(deadline=None)

VECTORS = json.loads((Path(__file__).parent / "data" / "predictor_vectors.json").read_text())


# --- the law ---


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == "dhp"], ids=lambda v: f"H={v['H']:g}")
def test_calibrated_recorded_series_gives_recorded_predictions_and_experts(vector):
    target = predictor(alpha_ratio=vector["alpha"], horizon_s=vector["H"])
    for (t, u), prediction, expert in zip(vector["series"], vector["pred"], vector["expert"], strict=True):
        assert target.observe(t, t, u, vector["capacity"]) == pytest.approx(prediction, rel=1e-9)
        assert target.spoke == expert


@pytest.mark.parametrize("horizon", [60.0, 300.0, 3600.0])
def test_calibrated_irregular_days_with_gaps_agree_with_the_definition(horizon):
    """A load with a time of day, so that expert S learns; two hours are missing."""
    target = predictor(alpha_ratio=0.05, horizon_s=horizon)
    reference, source, t = Reference(0.05, horizon, 24), random.Random(3), T
    spoke = set()
    for i in range(420):
        t += source.choice([200.0, 290.0, 310.0, 700.0]) + (7200.0 if i == 200 else 0.0)
        spike = 14.0 if t % 86400 // 3600 in (9, 10) else 0.0
        u = max(0.0, 4.0 + spike + source.gauss(0, 0.3))
        assert target.observe(t, t, u, CAPACITY) == pytest.approx(reference.observe(t, t, u, CAPACITY), rel=1e-9)
        assert target.spoke == reference.spoke
        spoke.add(reference.spoke)
    assert len(spoke) > 1 or horizon < 3600.0


def test_calibrated_daily_peak_is_expected_before_it_comes():
    """Expert S: at 8:50 of the fifth day the hour ahead holds the peak of 9 o'clock, which the level has forgotten."""

    def usage(t):
        return 20.0 if t % 86400 // 3600 == 9 else 4.0 + 0.1 * math.sin(t)

    target = predictor(alpha_ratio=0.05, horizon_s=3600.0)
    for t in range(0, 4 * 86400 + 8 * 3600 + 3000, 300):
        before = target.observe(T + t, T + t, usage(t), CAPACITY)
    assert level_of(target) < 6.0
    assert before > 15.0


def test_histogram_after_cold_start_is_the_larger_of_level_and_usage():
    target = predictor("histogram")
    feed(target, [4.0] * 600)
    level = level_of(target)
    assert target.observe(T + 600, T, 1.0, CAPACITY) == pytest.approx(level, rel=0.01)
    assert target.observe(T + 601, T, 9.0, CAPACITY) == 9.0


@pytest.mark.parametrize("kind", KINDS)
def test_predictor_first_three_samples_predict_capacity_and_say_so(kind):
    target = predictor(kind)
    notes = []
    for i in range(3):
        assert target.observe(T + i, T + i, 1.0, CAPACITY) == CAPACITY
        notes.append(target.note)
    assert notes[:2] == ["cold start, 1 of 3 samples", "cold start, 2 of 3 samples"]


def test_histogram_fourth_sample_is_no_longer_cold():
    assert feed(predictor("histogram"), [1.0] * 4)[-1] < 1.1


@pytest.mark.parametrize(
    ("usage", "expected"), [(4.0, 4.0 + 0.1 * CAPACITY), (20.0, 1.25 * 20.0)], ids=["tenth-of-capacity", "quarter"]
)
def test_calibrated_cold_start_keeps_the_larger_of_both_margins(usage, expected):
    prediction = feed(predictor(cold_start_probes=10_000, horizon_s=12.0), [usage] * 5000)[-1]
    assert prediction == pytest.approx(expected, rel=0.025)


def test_calibrated_step_up_is_never_predicted_below_the_usage():
    target = predictor(cold_start_probes=1, horizon_s=12.0)
    feed(target, noisy(5000))
    assert target.spoke == "A"
    assert target.observe(T + 5000, T + 5000, 30.0, CAPACITY) >= 30.0


def test_calibrated_until_enough_probes_keeps_a_margin_and_says_so():
    young, grown = (predictor(cold_start_probes=probes, horizon_s=12.0) for probes in (10_000, 24))
    cautious, learned = feed(young, [4.0] * 5000)[-1], feed(grown, [4.0] * 5000)[-1]
    assert cautious == pytest.approx(4.0 + 0.1 * CAPACITY)
    assert 4.0 <= learned < 4.0 + 0.03 * CAPACITY
    assert young.note == f"learning, {matured_probes(young)} of 10000 probes"
    assert grown.note == ""


def test_calibrated_after_a_peak_falls_with_the_release_half_life():
    target = predictor(horizon_s=60.0, cold_start_probes=1)
    feed(target, [4.0] * 50, step=60.0)
    peak = target.observe(T + 3000, T + 3000, 30.0, CAPACITY)
    assert target.observe(T + 3900, T + 3900, 1.0, CAPACITY) >= peak / 2


def test_calibrated_violations_stay_near_alpha_on_a_noisy_load():
    """The margin is learned: with alpha 5 % neither far more nor (uselessly) far fewer samples exceed it."""
    target = predictor(alpha_ratio=0.05, horizon_s=60.0)
    usages = noisy(6000, mean=8.0)
    predictions = feed(target, usages, step=60.0)
    exceeded = [usages[i + 1] > predictions[i] for i in range(1500, 5999)]
    assert 0.02 < sum(exceeded) / len(exceeded) < 0.065


# --- edge cases: one test per row of the table ---


@pytest.mark.parametrize("kind", KINDS)
def test_edge_no_sample_yet_predicts_capacity(kind):
    target = predictor(kind)
    assert level_of(target) is None
    assert target.observe(T, T, math.nan, CAPACITY) == CAPACITY
    assert target.checkpoint().prediction is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sample",
    [
        (math.nan, T, 9.0, CAPACITY),
        (T + 700, math.nan, 9.0, CAPACITY),
        (T + 700, T, math.nan, CAPACITY),
        (T + 700, T, math.inf, CAPACITY),
        (T + 700, T, -math.inf, CAPACITY),
        (T + 700, T, 9.0, math.nan),
        (T + 700, T, 9.0, math.inf),
        (T + 700, T, 9.0, 0.0),
        (T + 700, T, 9.0, -1.0),
    ],
    ids=["t-nan", "wall-nan", "nan", "inf", "minus-inf", "capacity-nan", "capacity-inf", "capacity-0", "capacity-neg"],
)
def test_edge_not_finite_is_rejected_and_the_prediction_held(kind, sample):
    target, twin = predictor(kind, horizon_s=200.0), predictor(kind, horizon_s=200.0)
    held = feed(target, [4.0] * 600)[-1]
    feed(twin, [4.0] * 600)
    assert target.observe(*sample) == held
    assert target.observe(T + 701, T + 701, 5.0, CAPACITY) == twin.observe(T + 701, T + 701, 5.0, CAPACITY)


@pytest.mark.parametrize("kind", KINDS)
def test_edge_negative_usage_counts_as_zero(kind):
    below, zero = predictor(kind), predictor(kind)
    assert feed(below, [-3.0, 1.0, -0.5] * 50) == feed(zero, [0.0, 1.0, 0.0] * 50)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", [0.0, -1.0, -1e6], ids=["same-time", "earlier", "far-earlier"])
def test_edge_time_not_after_the_last_is_ignored(kind, late):
    target = predictor(kind)
    held = feed(target, [4.0] * 600)[-1]
    before = target.checkpoint()
    assert target.observe(T + 599 + late, T, 30.0, CAPACITY) == held
    assert target.checkpoint() == before


@pytest.mark.parametrize("kind", KINDS)
def test_edge_forward_jump_of_the_clock_does_not_move_the_level(kind):
    target = predictor(kind)
    feed(target, [4.0] * 600)
    level = level_of(target)
    target.observe(T + 1e9, T + 1e9, 4.0, CAPACITY)
    assert level_of(target) == pytest.approx(level, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_edge_gap_holds_the_prediction_until_the_horizon_then_capacity(kind):
    target = predictor(kind, horizon_s=60.0)
    held = feed(target, [4.0] * 600)[-1]
    assert target.observe(T + 599 + 60, T, math.nan, CAPACITY) == held < CAPACITY
    assert target.observe(T + 599 + 61, T, math.nan, CAPACITY) == CAPACITY


def test_edge_probe_without_a_sample_in_its_horizon_is_dropped():
    target = predictor(horizon_s=60.0)
    feed(target, [4.0] * 3, step=5.0)
    target.observe(T + 1000, T + 1000, 30.0, CAPACITY)
    # The first probe saw two samples, the second one; the third saw none.
    assert matured_probes(target) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_edge_saturation_is_clamped_to_capacity(kind):
    target = predictor(kind)
    assert feed(target, [5000.0] * 50)[-1] == CAPACITY


def test_edge_late_sample_at_library_level_never_gets_here():
    """Late samples are the histogram's matter (its own test); a predictor takes time in order only."""
    target = predictor("histogram")
    feed(target, [4.0, 4.0])
    target.observe(T - 900.0, T, 1.0, CAPACITY)
    assert target.checkpoint().samples == 2


@pytest.mark.parametrize("kind", KINDS)
def test_edge_weights_never_overflow_in_years_of_samples(kind):
    target = predictor(kind)
    predictions = feed(target, noisy(3000), step=36_000.0)
    assert all(0.0 <= p <= CAPACITY for p in predictions)
    state = target.checkpoint()
    assert 0.0 < state.level.total < 2.0**70


def test_edge_bucket_at_an_exact_edge_is_not_off_by_one():
    target = predictor("histogram")
    feed(target, [0.0205] * 10)
    assert set(target.checkpoint().level.mass) == {2}


@pytest.mark.parametrize(
    ("capacity", "dropped"), [(32.0 * 1.04, False), (32.0 * 1.06, True), (16.0, True)], ids=["4%", "6%", "half"]
)
def test_edge_capacity_change_drops_the_scaled_errors_only(capacity, dropped):
    target = predictor(horizon_s=60.0)
    feed(target, noisy(2000))
    before = target.checkpoint()
    target.observe(T + 2000, T + 2000, 4.0, capacity)
    after = target.checkpoint()
    assert [errors.total > 0.0 for errors in after.learned.errors] == [not dropped, True, not dropped]
    assert after.level.total > before.level.total


@pytest.mark.parametrize("by", [1.1, 0.9], ids=["added", "removed"])
@pytest.mark.parametrize("horizon", [60.0, 3600.0])
def test_edge_capacity_change_leaves_the_prediction_to_experts_that_have_errors(horizon, by):
    """Memory that is added while expert A has the smallest loss must not take all of it from the box."""
    target, source = predictor(horizon_s=horizon, cold_start_probes=24), random.Random(5)
    usages = [4.0 + 0.1 * source.random() for _ in range(600)]
    before = feed(target, usages, step=horizon / 12)[-1]
    assert target.spoke != "B"
    start = T + 600 * horizon / 12
    after = feed(target, usages[:200], start=start, step=horizon / 12, capacity=CAPACITY * by)
    assert max(after) <= 1.2 * before


def test_edge_after_a_capacity_change_all_experts_learn_again():
    target = predictor(horizon_s=60.0)
    feed(target, noisy(2000))
    feed(target, noisy(200), start=T + 2000, capacity=16.0)
    assert all(errors.total > 0.0 for errors in target.checkpoint().learned.errors)


def test_edge_capacity_creeping_up_is_measured_from_where_the_errors_were_made():
    target = predictor(horizon_s=60.0)
    feed(target, noisy(2000))
    for i in range(3):
        target.observe(T + 2000 + i, T + 2000 + i, 4.0, 32.0 * (1.02 ** (i + 1)))
    assert target.checkpoint().learned.errors[0].total == 0.0


def test_edge_smaller_capacity_bounds_a_held_prediction():
    target = predictor("histogram")
    feed(target, [20.0] * 10)
    assert target.observe(T + 9, T, 20.0, 8.0) == 8.0


@pytest.mark.parametrize("kind", KINDS)
def test_edge_restart_continues_bit_for_bit_but_for_pending_probes(kind):
    target = predictor(kind, horizon_s=60.0)
    feed(target, noisy(3000))
    state = target.checkpoint()
    copy = predictor(kind, horizon_s=60.0)
    assert restored(copy, state, T + 3000) == ()
    assert copy.checkpoint() == state
    assert copy.observe(T + 3000, T + 3000, 4.0, CAPACITY) == target.observe(T + 3000, T + 3000, 4.0, CAPACITY)


# --- properties ---

anything = st.one_of(st.floats(0.0, 40.0), st.floats(allow_nan=True, allow_infinity=True))
samples = st.lists(st.tuples(st.floats(-5.0, 500.0), anything, st.sampled_from([32.0, 31.0, 8.0])), max_size=60)


@no_deadline
@given(st.sampled_from(KINDS), samples)
def test_prediction_of_anything_lies_between_usage_and_capacity(kind, steps):
    target, t = predictor(kind, horizon_s=120.0), T
    for dt, usage, capacity in steps:
        t += dt
        samples = target.checkpoint().samples
        prediction = target.observe(t, t, usage, capacity)
        assert 0.0 <= prediction <= capacity
        if target.checkpoint().samples > samples:
            assert prediction >= min(max(usage, 0.0), capacity)


@no_deadline
@given(st.sampled_from(KINDS), samples, samples)
def test_checkpoint_at_any_moment_continues_bit_for_bit_once_probes_are_gone(kind, before, after):
    """A restart loses the pending probes, so the comparison starts both from a moment without any."""
    target, copy, t = predictor(kind, horizon_s=30.0), predictor(kind, horizon_s=30.0), T
    for dt, usage, capacity in before:
        t += dt
        target.observe(t, t, min(usage, 8.0), capacity)  # what is above the last capacity is not kept
    state = target.checkpoint()
    now = T if state.last_s is None else state.last_s
    assert restored(copy, state, now) == ()
    twin = predictor(kind, horizon_s=30.0)
    restored(twin, copy.checkpoint(), now)
    for dt, usage, capacity in after:
        t += dt
        assert twin.observe(t, t, usage, capacity) == copy.observe(t, t, usage, capacity)
    assert twin.checkpoint() == copy.checkpoint()


@no_deadline
@given(st.sampled_from(KINDS), samples, st.integers(1, 400))
def test_prediction_does_not_depend_on_when_it_all_happens(kind, steps, days):
    here, there, t = predictor(kind), predictor(kind), T
    for dt, usage, capacity in steps:
        t += round(dt)
        shift = 86400.0 * days
        assert there.observe(t + shift, t + shift, usage, capacity) == here.observe(t, t, usage, capacity)
