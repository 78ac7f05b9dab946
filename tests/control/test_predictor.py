"""Both predictors against the recorded series, against the definition recomputed, and in every edge case."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_predictor import Reference

from criproxy.control.histogram import CPU_BUCKETS, MEMORY_BUCKETS
from criproxy.control.predictor import LEARNED_MAX_AGE_S, make_predictor
from criproxy.control.series import PredictorSettings, PredictorState

VECTORS = json.loads((Path(__file__).parent / "data" / "predictor_vectors.json").read_text())
T = 1_700_006_400.0  # midnight, UTC
CAPACITY = 32.0
KINDS = ("histogram", "calibrated")


def predictor(kind="calibrated", buckets=CPU_BUCKETS, **changes):
    return make_predictor(replace(PredictorSettings(kind=kind), **changes), buckets)


def feed(target, usages, start=T, step=1.0, capacity=CAPACITY):
    """Predictions for samples `step` apart; the wall clock is the monotonic one."""
    return [target.observe(start + i * step, start + i * step, u, capacity) for i, u in enumerate(usages)]


def noisy(count, mean=4.0, seed=7):
    source = random.Random(seed)
    return [max(0.0, source.gauss(mean, 0.3 * mean)) for _ in range(count)]


def through_json(state):
    return msgspec.json.decode(msgspec.json.encode(state), type=PredictorState)


def restored(target, state, now, shift=0.0):
    return target.restore(through_json(state), now, shift)


# --- the law ---


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == "dhp"], ids=lambda v: f"H={v['H']:g}")
def test_calibrated_recorded_series_gives_recorded_predictions_and_experts(vector):
    target = predictor(alpha_ratio=vector["alpha"], horizon_s=vector["H"])
    for (t, u), prediction, expert in zip(vector["series"], vector["pred"], vector["expert"], strict=True):
        assert target.observe(t, t, u, vector["capacity"]) == pytest.approx(prediction, rel=1e-9)
        assert target.describe().expert == expert


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
        assert target.describe().expert == reference.spoke
        spoke.add(reference.spoke)
    assert len(spoke) > 1 or horizon < 3600.0


def test_calibrated_daily_peak_is_expected_before_it_comes():
    """Expert S: at 8:50 of the fifth day the hour ahead holds the peak of 9 o'clock, which the level has forgotten."""

    def usage(t):
        return 20.0 if t % 86400 // 3600 == 9 else 4.0 + 0.1 * math.sin(t)

    target = predictor(alpha_ratio=0.05, horizon_s=3600.0)
    for t in range(0, 4 * 86400 + 8 * 3600 + 3000, 300):
        before = target.observe(T + t, T + t, usage(t), CAPACITY)
    assert target.describe().level < 6.0
    assert before > 15.0


def test_histogram_after_cold_start_is_the_larger_of_level_and_usage():
    target = predictor("histogram")
    feed(target, [4.0] * 600)
    level = target.describe().level
    assert target.observe(T + 600, T, 1.0, CAPACITY) == pytest.approx(level, rel=0.01)
    assert target.observe(T + 601, T, 9.0, CAPACITY) == 9.0


@pytest.mark.parametrize("kind", KINDS)
def test_predictor_first_three_samples_predict_capacity_and_say_so(kind):
    target = predictor(kind)
    notes = []
    for i in range(3):
        assert target.observe(T + i, T + i, 1.0, CAPACITY) == CAPACITY
        notes.append(target.describe().note)
    assert notes[:2] == ["cold start, 1 of 3 samples", "cold start, 2 of 3 samples"]


def test_histogram_fourth_sample_is_no_longer_cold():
    assert feed(predictor("histogram"), [1.0] * 4)[-1] < 1.1


def test_calibrated_until_enough_probes_keeps_a_margin_and_says_so():
    young, grown = (predictor(cold_start_probes=probes, horizon_s=12.0) for probes in (10_000, 24))
    cautious, learned = feed(young, [4.0] * 5000)[-1], feed(grown, [4.0] * 5000)[-1]
    assert cautious == pytest.approx(4.0 + 0.1 * CAPACITY)
    assert 4.0 <= learned < 4.0 + 0.03 * CAPACITY
    assert young.describe().note == f"learning, {young.describe().matured_probes} of 10000 probes"
    assert grown.describe().note == ""


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
    assert target.describe().level is None
    assert target.observe(T, T, math.nan, CAPACITY) == CAPACITY
    assert target.describe().prediction == math.inf


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
    assert target.describe().rejected_samples == 1
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
    level = target.describe().level
    target.observe(T + 1e9, T + 1e9, 4.0, CAPACITY)
    assert target.describe().level == pytest.approx(level, rel=0.05)


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
    assert target.describe().matured_probes == 2


@pytest.mark.parametrize("kind", KINDS)
def test_edge_saturation_is_clamped_to_capacity_and_counted(kind):
    target = predictor(kind)
    assert feed(target, [5000.0] * 50)[-1] == CAPACITY
    assert target.describe().saturated_samples == 50


def test_edge_late_sample_at_library_level_never_gets_here():
    """Late samples are the histogram's matter (its own test); a predictor takes time in order only."""
    target = predictor("histogram")
    feed(target, [4.0, 4.0])
    target.observe(T - 900.0, T, 1.0, CAPACITY)
    assert target.describe().samples == 2


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


# --- restore ---


def saved(kind="calibrated", **changes):
    target = predictor(kind, horizon_s=60.0, **changes)
    feed(target, noisy(3000))
    return target.checkpoint()


@pytest.mark.parametrize("age", [0.0, 3600.0, 3601.0, LEARNED_MAX_AGE_S, LEARNED_MAX_AGE_S + 1.0, -1.0])
def test_restore_by_age_keeps_level_for_four_half_lives_and_errors_for_a_week(age):
    state, target = saved(), predictor(horizon_s=60.0)
    lost = restored(target, state, T + 2999 + age)
    keeps_level, keeps_errors = 0.0 <= age <= 3600.0, 0.0 <= age <= LEARNED_MAX_AGE_S
    assert (target.describe().level is not None) == keeps_level
    assert (target.describe().matured_probes > 0) == keeps_errors
    assert len(lost) == (not keeps_level) + (not keeps_errors)


def test_restore_without_the_level_starts_cold_again():
    target = predictor(horizon_s=60.0)
    restored(target, saved(), T + 2999 + 5000)
    predictions = feed(target, [4.0] * 5, start=T + 8000)
    assert predictions[:3] == [CAPACITY] * 3


def test_restore_after_a_reboot_moves_all_times():
    """The new boot's clock is far behind: what is kept continues as if it had not been."""
    state, here, there = saved(), predictor(horizon_s=60.0), predictor(horizon_s=60.0)
    shift = -(2.0**30)
    restored(here, state, T + 3030)
    assert restored(there, state, T + 3030 + shift, shift) == ()
    for i, u in enumerate(noisy(300, seed=8)):
        now = T + 3030 + i
        assert there.observe(now + shift, now, u, CAPACITY) == pytest.approx(
            here.observe(now, now, u, CAPACITY), rel=1e-9
        )


@pytest.mark.parametrize(
    ("changes", "kept_level", "kept_errors"),
    [
        ({"alpha_ratio": 0.05}, True, True),
        ({"percentile_ratio": 0.95}, True, True),
        ({"cold_start_probes": 288}, True, True),
        ({"horizon_s": 120.0}, True, False),
        ({"half_life_s": 600.0}, False, True),
    ],
    ids=str,
)
def test_restore_under_other_settings_keeps_what_still_fits(changes, kept_level, kept_errors):
    target = predictor(**{"horizon_s": 60.0, **changes})
    restored(target, saved(), T + 3000)
    assert (target.describe().level is not None) == kept_level
    assert (target.describe().matured_probes > 0) == kept_errors


def test_restore_between_the_kinds_keeps_the_level():
    calibrated, histogram = predictor(horizon_s=60.0), predictor("histogram", horizon_s=60.0)
    restored(histogram, saved(), T + 3000)
    restored(calibrated, saved("histogram"), T + 3000)
    assert histogram.describe().level == calibrated.describe().level is not None


def test_restore_of_other_buckets_starts_cold():
    target = predictor(buckets=MEMORY_BUCKETS, horizon_s=60.0)
    [lost] = restored(target, saved("histogram"), T + 3000)
    assert lost == "level: made with 176 buckets and a half-life of 900 s, now 205 and 900 s"


@pytest.mark.parametrize(
    "break_it",
    [
        lambda learned: replace(learned, losses=[0.0, 0.0]),
        lambda learned: replace(learned, losses=[0.0, 0.0, -1.0]),
        lambda learned: replace(learned, errors=learned.errors[:2]),
        lambda learned: replace(learned, volatility=-1.0),
        lambda learned: replace(learned, matured=-1),
        lambda learned: replace(learned, scale_capacity=0.0),
        lambda learned: replace(learned, errors=[replace(e, total=7.0) for e in learned.errors]),
        lambda learned: replace(learned, day=replace(learned.day, sums=[0.0])),
        lambda learned: replace(learned, day=replace(learned.day, slot=48)),
        lambda learned: replace(learned, day=replace(learned.day, weights=[-1.0] * 48)),
    ],
    ids=[
        "two-losses",
        "negative-loss",
        "two-errors",
        "volatility",
        "matured",
        "capacity",
        "totals",
        "day-size",
        "day-slot",
        "day-weight",
    ],
)
def test_restore_of_a_contradicting_margin_keeps_the_level_only(break_it):
    state, target = saved(), predictor(horizon_s=60.0)
    lost = target.restore(replace(state, learned=break_it(state.learned)), T + 3000, 0.0)
    assert [words.split(":")[0] for words in lost] == ["learned margin"]
    assert target.describe().level is not None
    assert target.describe().matured_probes == 0


@pytest.mark.parametrize("change", [{"usage": -1.0}, {"prediction": -1.0}, {"capacity": 0.0}, {"samples": -1}], ids=str)
def test_restore_of_a_contradicting_level_starts_without(change):
    target = predictor("histogram", horizon_s=60.0)
    assert len(target.restore(replace(saved("histogram"), **change), T + 3000, 0.0)) == 1
    assert target.describe().samples == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"horizon_s": 0.0},
        {"horizon_s": math.inf},
        {"alpha_ratio": 0.0},
        {"alpha_ratio": 1.0},
        {"percentile_ratio": 1.0},
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(changes):
    with pytest.raises(ValueError, match=r"must"):
        predictor(**changes)


# --- properties ---

anything = st.one_of(st.floats(0.0, 40.0), st.floats(allow_nan=True, allow_infinity=True))
samples = st.lists(st.tuples(st.floats(-5.0, 500.0), anything, st.sampled_from([32.0, 31.0, 8.0])), max_size=60)


@given(st.sampled_from(KINDS), samples)
def test_prediction_of_anything_lies_between_usage_and_capacity(kind, steps):
    target, t = predictor(kind, horizon_s=120.0), T
    for dt, usage, capacity in steps:
        t += dt
        rejected = target.describe().rejected_samples
        prediction = target.observe(t, t, usage, capacity)
        assert 0.0 <= prediction <= capacity
        if target.describe().rejected_samples == rejected:
            assert prediction >= min(max(usage, 0.0), capacity)


@given(st.sampled_from(KINDS), samples, samples)
@settings(deadline=None)
def test_checkpoint_at_any_moment_continues_bit_for_bit_once_probes_are_gone(kind, before, after):
    """A restart loses the pending probes, so the comparison starts both from a moment without any."""
    target, copy, t = predictor(kind, horizon_s=30.0), predictor(kind, horizon_s=30.0), T
    for dt, usage, capacity in before:
        t += dt
        target.observe(t, t, usage, capacity)
    state = target.checkpoint()
    now = T if state.last_s is None else state.last_s
    assert restored(copy, state, now) == ()
    twin = predictor(kind, horizon_s=30.0)
    restored(twin, copy.checkpoint(), now)
    for dt, usage, capacity in after:
        t += dt
        assert twin.observe(t, t, usage, capacity) == copy.observe(t, t, usage, capacity)
    assert twin.checkpoint() == copy.checkpoint()


@given(st.sampled_from(KINDS), samples, st.integers(1, 400))
@settings(deadline=None)
def test_prediction_does_not_depend_on_when_it_all_happens(kind, steps, days):
    here, there, t = predictor(kind), predictor(kind), T
    for dt, usage, capacity in steps:
        t += round(dt)
        shift = 86400.0 * days
        assert there.observe(t + shift, t + shift, usage, capacity) == here.observe(t, t, usage, capacity)
