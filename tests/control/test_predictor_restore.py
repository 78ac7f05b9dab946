"""What of a checkpoint a predictor takes over: by age, by settings, and when it contradicts itself."""

import pytest
from msgspec.structs import replace

from criproxy.control.histogram import MEMORY_BUCKETS
from criproxy.control.predictor import LEARNED_MAX_AGE_S
from tests.control.predictor_helpers import CAPACITY, T, feed, level_of, matured_probes, noisy, predictor, restored


def saved(kind="calibrated", **changes):
    target = predictor(kind, horizon_s=60.0, **changes)
    feed(target, noisy(3000))
    return target.checkpoint()


@pytest.mark.parametrize("age", [0.0, 3600.0, 3601.0, LEARNED_MAX_AGE_S, LEARNED_MAX_AGE_S + 1.0, -1.0])
def test_restore_by_age_keeps_level_for_four_half_lives_and_errors_for_a_week(age):
    state, target = saved(), predictor(horizon_s=60.0)
    lost = restored(target, state, T + 2999 + age)
    keeps_level, keeps_errors = 0.0 <= age <= 3600.0, 0.0 <= age <= LEARNED_MAX_AGE_S
    assert (level_of(target) is not None) == keeps_level
    assert (matured_probes(target) > 0) == keeps_errors
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
    assert (level_of(target) is not None) == kept_level
    assert (matured_probes(target) > 0) == kept_errors


def test_restore_between_the_kinds_keeps_the_level():
    calibrated, histogram = predictor(horizon_s=60.0), predictor("histogram", horizon_s=60.0)
    restored(histogram, saved(), T + 3000)
    restored(calibrated, saved("histogram"), T + 3000)
    assert level_of(histogram) == level_of(calibrated) is not None


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
    assert level_of(target) is not None
    assert matured_probes(target) == 0


@pytest.mark.parametrize("change", [{"usage": -1.0}, {"prediction": -1.0}, {"capacity": 0.0}, {"samples": -1}], ids=str)
def test_restore_of_a_contradicting_level_starts_without(change):
    target = predictor("histogram", horizon_s=60.0)
    assert len(target.restore(replace(saved("histogram"), **change), T + 3000, 0.0)) == 1
    assert target.checkpoint().samples == 0
