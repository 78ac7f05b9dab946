"""The decayed histograms against the recorded vectors, their edges, and a plain recomputation."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from criproxy.control.histogram import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    DecayedMass,
    ErrorHistogram,
    LevelHistogram,
    MassState,
)

no_deadline = hypothesis_settings(deadline=None)

VECTORS = json.loads((Path(__file__).parent / "data" / "predictor_vectors.json").read_text())
T = 1_700_000_000.0


def vectors(kind):
    return [pytest.param(v, id=str(v.get("name", v.get("value", v.get("z"))))) for v in VECTORS if v["kind"] == kind]


def level(samples, percentile=0.9, half_life_s=900.0):
    histogram = LevelHistogram(CPU_BUCKETS, half_life_s, percentile)
    for sample in samples:
        histogram.add(*sample)
    return histogram


def upper(histogram):
    """The upper edge of the percentile's bucket."""
    return histogram.buckets.uppers[histogram.decayed.pointer]


def through_json(state):
    return msgspec.json.decode(msgspec.json.encode(state), type=MassState)


@pytest.mark.parametrize("vector", vectors("bucket"))
def test_buckets_index_of_recorded_value_is_exact(vector):
    assert CPU_BUCKETS.index(vector["value"]) == vector["index"]
    assert CPU_BUCKETS.edges[vector["index"]] == vector["start"]


@pytest.mark.parametrize("buckets", [CPU_BUCKETS, MEMORY_BUCKETS], ids=["cpu", "memory"])
def test_buckets_every_edge_belongs_to_the_bucket_above(buckets):
    for k, edge in enumerate(buckets.edges):
        assert buckets.index(edge) == k
        assert k == 0 or buckets.index(math.nextafter(edge, 0.0)) == k - 1


@pytest.mark.parametrize("vector", vectors("hist"))
@pytest.mark.parametrize(
    ("key", "percentile", "read"),
    [
        ("area_p90_upper", 0.9, upper),
        ("area_p90_interp", 0.9, LevelHistogram.percentile),
        ("area_p50_interp", 0.5, LevelHistogram.percentile),
    ],
    ids=["area-p90-upper", "area-p90", "area-p50"],
)
def test_level_recorded_samples_give_recorded_percentile(vector, key, percentile, read):
    histogram = level(vector["samples"], percentile, vector["half_life"])
    assert read(histogram) == pytest.approx(vector[key], rel=1e-9)


@pytest.mark.parametrize("vector", vectors("signed"))
def test_error_histogram_recorded_error_has_recorded_bucket_and_value(vector):
    histogram = ErrorHistogram(900.0, 0.5)
    histogram.add(T, vector["z"])
    assert histogram.decayed.pointer == ErrorHistogram.index(vector["z"]) == vector["index"]
    assert histogram.quantile() == pytest.approx(vector["value"], rel=1e-9)


@pytest.mark.parametrize(
    ("half_life_s", "up", "down"),
    [
        (900.0, 1, 77),
        (3600.0, 3, 307),
    ],
)
def test_level_step_flips_after_recorded_number_of_samples(half_life_s, up, down):
    histogram = level([(T + 60 * i, 2.0) for i in range(1440)], 0.9, half_life_s)
    at, flips = T + 60 * 1440, []
    for value, flipped in ((8.0, lambda p: p >= 5.0), (2.0, lambda p: p < 5.0)):
        count = 0
        for i in range(1440):
            histogram.add(at, value)
            at += 60
            if not count and flipped(upper(histogram)):
                count = i + 1
        flips.append(count)
    assert flips == [up, down]


def test_level_checkpoint_then_sample_gives_recorded_percentile():
    [vector] = [v for v in VECTORS if v["kind"] == "checkpoint"]
    saved = level([(T + 7 * i, (37 * i % 101) / 10) for i in range(500)])
    restored = level([])
    restored.decayed.load(through_json(saved.decayed.state()), 0.0)
    restored.add(T + 3600, 5.0)
    assert restored.percentile() == pytest.approx(vector["area_p90_interp"], rel=1e-9)


def test_level_without_sample_has_no_percentile():
    assert level([]).percentile() is None
    assert ErrorHistogram(900.0, 0.99).quantile() is None


def test_level_beyond_the_last_bucket_is_its_start():
    histogram = level([(T, 1.0), (T, 5000.0), (T, 1e300)])
    assert histogram.percentile() == CPU_BUCKETS.edges[-1]


def test_decayed_late_sample_weighs_less_and_leaves_last_alone():
    decayed = DecayedMass(4, 900.0, 0.5)
    decayed.add(T, 3, 1.0)
    decayed.add(T - 900.0, 1, 1.0)
    assert list(decayed.mass) == [0.0, 0.5, 0.0, 1.0]
    assert decayed.last_s == T


def test_decayed_sample_after_a_thousand_years_leaves_only_itself():
    decayed = DecayedMass(4, 900.0, 0.9)
    decayed.add(T, 3, 1.0)
    decayed.add(T + 3e10, 1, 1.0)
    assert decayed.mass[3] == 0.0
    assert decayed.pointer == 1


def test_decayed_shift_keeps_weights_below_the_exponent_and_is_exact():
    decayed = DecayedMass(2, 1.0, 0.5)
    for second in range(10_000):
        decayed.add(float(second), second % 2, 1.0)
    assert decayed.total < 2.0**62
    newest = 2.0 ** (9_999 - decayed.ref_s)
    assert decayed.mass[1] == pytest.approx(newest * 4 / 3, rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"half_life_s": 901.0},
        {"buckets": 3},
        {"mass": {0: float(1).hex(), 4: float(1).hex()}},
        {"mass": {-1: float(2).hex()}},
        {"mass": {0: "not hex"}},
        {"mass": {0: float(-1).hex(), 3: float(3).hex()}},
        {"mass": {0: float("nan").hex()}},
        {"mass": {0: float("inf").hex()}},
        {"total": 5.0},
        {"below": 1.5},
        {"pointer": 4},
        {"pointer": -1},
        {"ref_s": math.inf},
    ],
    ids=lambda change: "-".join(f"{k}={v}" for k, v in change.items()),
)
def test_decayed_load_of_a_bad_state_raises_and_changes_nothing(change):
    saved, target = DecayedMass(4, 900.0, 0.5), DecayedMass(4, 900.0, 0.5)
    saved.add(T, 0, 1.0)
    saved.add(T, 3, 1.0)
    target.add(T, 2, 1.0)
    before = target.state()
    with pytest.raises(ValueError, match=r"."):
        target.load(replace(saved.state(), **change), 0.0)
    assert target.state() == before


def test_decayed_load_for_another_quantile_seeks_its_place():
    saved, target = DecayedMass(10, 900.0, 0.9), DecayedMass(10, 900.0, 0.1)
    for bucket in range(10):
        saved.add(T, bucket, 1.0)
    target.load(saved.state(), 0.0)
    assert (saved.pointer, target.pointer) == (8, 0)


steps = st.lists(
    st.tuples(st.floats(0.0, 5000.0), st.one_of(st.floats(0.0, 30.0), st.floats(0.0, 2000.0))), min_size=1, max_size=60
)


@no_deadline
@given(steps, st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_level_any_samples_the_moving_pointer_agrees_with_a_full_scan(steps, percentile):
    histogram, t, samples = level([], percentile), 0.0, []
    for dt, value in steps:
        t += dt
        samples.append((t, value))
        histogram.add(t, value)
        mass = [0.0] * CPU_BUCKETS.count
        for at, seen in samples:
            k = CPU_BUCKETS.index(seen)
            mass[k] += 2.0 ** ((at - t) / 900.0) * CPU_BUCKETS.widths[k]
        target, below, k = percentile * math.fsum(mass), 0.0, 0
        while below + mass[k] < target * (1 - 1e-12):
            below += mass[k]
            k += 1
        share = min(max((target - below) / mass[k], 0.0), 1.0)
        expected = CPU_BUCKETS.edges[k] + share * (CPU_BUCKETS.uppers[k] - CPU_BUCKETS.edges[k])
        assert histogram.percentile() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@no_deadline
@given(steps, steps)
def test_decayed_checkpoint_at_any_moment_continues_bit_for_bit(before, after):
    original, restored, t = level([]), level([]), 0.0
    for dt, value in before:
        t += dt
        original.add(t, value)
    state = original.decayed.state()
    restored.decayed.load(through_json(state), 0.0)
    assert json.loads(json.dumps(asdict(state)))["total"] == state.total
    for dt, value in after:
        t += dt
        original.add(t, value)
        restored.add(t, value)
        assert restored.percentile() == original.percentile()
    assert restored.decayed.state() == original.decayed.state()


@no_deadline
@given(steps, st.integers(1, 2**20))
def test_level_percentile_does_not_depend_on_when_it_all_happens(steps, shift):
    here, there, t = level([]), level([]), 0.0
    for dt, value in steps:
        t += round(dt)
        here.add(t, value)
        there.add(t + shift, value)
        assert there.percentile() == here.percentile()
