"""How much is published, and when a change is worth a report: as data and by properties."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.publication import (
    RECENT_S,
    OpenBoxSettings,
    RecentMean,
    by_forecast,
    by_open_box,
    falls,
    lendable,
    within,
)
from criproxy.control.resources import RESOURCES
from criproxy.model import CPU, UNLIMITED, Bounds, ResourceDecision, ResourcePrediction, ResourceSample

BOUNDS = Bounds(floor=0.1, ceiling=None, reserve=0.0, watermark_ratio=0.9)
SAMPLE = ResourceSample(capacity=16.0, node=4.0, box=1.0, online=3.0)
SETTINGS = OpenBoxSettings()


def decided(hour=6.0, limit=9.0, recent=3.0, is_open=False, **bounds):
    prediction = ResourcePrediction(5.0, hour=hour, recent=recent)
    return ResourceDecision(limit, "so", replace(BOUNDS, **bounds), prediction, open=is_open)


def opened(hour=6.0, recent=3.0, **bounds):
    return decided(hour, recent=recent, is_open=True, **bounds)


# --- how much --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "amount", "words"),
    [
        pytest.param(decided(), 16 * 0.9 - 6, "16.00 cores x 0.90 - 6.00 cores that online may use", id="the law"),
        pytest.param(decided(reserve=1.0), 16 * 0.9 - 7, "1.00 cores reserved", id="reserve"),
        pytest.param(decided(kept=4.0), 16 - 4 - 6, "4.00 cores kept free", id="kept free"),
        pytest.param(decided(hour=15.0), 0.1, "the floor, above", id="floor"),
        pytest.param(decided(ceiling=2.0), 2.0, "the ceiling, below", id="ceiling"),
        pytest.param(opened(hour=12.0), (16 - 12) / 0.5, "2.00 x (16.00 cores - 12.00 cores that", id="open, by speed"),
        pytest.param(opened(hour=12.0), (16 - 12) / 0.5, "pods keep 50% of what they asked for", id="open, speed"),
        pytest.param(
            opened(), 16 * 0.95 - 3, "free now: 16.00 cores x 0.95 - 3.00 cores that online", id="open, by free"
        ),
        pytest.param(opened(reserve=1.0), 16 * 0.95 - 4, "1.00 cores reserved", id="open, reserve"),
        pytest.param(opened(hour=12.0, reserve=1.0), 6.0, "1.00 cores reserved)", id="open, by speed, reserve"),
        pytest.param(opened(hour=16.0), 0.1, "the floor, above", id="open, floor"),
        pytest.param(opened(ceiling=2.0), 2.0, "the ceiling, below", id="open, ceiling"),
        pytest.param(opened(hour=None), 0.1, "can't be predicted", id="open, hour not known"),
        pytest.param(opened(recent=None), 16 * 0.9 - 6, "may use within the hour", id="open, nothing recent"),
        pytest.param(opened(watermark_ratio=None), 9.0, "the box's limit", id="open, static"),
        pytest.param(replace(decided(limit=9.0), waits=2.0), 7.0, "without what is given back: so", id="what waits"),
        pytest.param(replace(decided(limit=12.0), waits=2.0), 16 * 0.9 - 6, "x 0.90", id="what waits, above the law"),
        pytest.param(decided(hour=None), 0.1, "can't be predicted", id="hour not known"),
        pytest.param(decided(hour=math.nan), 0.1, "can't be predicted", id="no number"),
        pytest.param(decided(watermark_ratio=None, limit=3.0), 3.0, "the box's limit", id="static"),
        pytest.param(decided(watermark_ratio=None, limit=99.0), 16.0, "the box's limit", id="static beyond the node"),
        pytest.param(decided(watermark_ratio=None, limit=UNLIMITED, reserve=2.0), 14.0, "the box's", id="unlimited"),
    ],
)
def test_lendable(one, amount, words):
    found = lendable(RESOURCES[CPU], SAMPLE, one, SETTINGS)
    assert found.amount == pytest.approx(amount)
    assert words in found.why


@pytest.mark.parametrize(
    ("one", "for_box", "amount", "words"),
    [
        pytest.param(opened(1.0, recent=0.0), 2.0, 1.9, "2.00 cores that the box may run on x 0.95", id="open"),
        pytest.param(decided(1.0), 2.0, 1.8, "2.00 cores that the box may run on x 0.90", id="by forecast"),
        pytest.param(decided(1.0), 0.0, 0.1, "the floor, above 0.00 cores that", id="none"),
        pytest.param(decided(watermark_ratio=None, limit=9.0), 2.0, 2.0, "the box's limit", id="static"),
        pytest.param(decided(14.0), 2.0, 0.4, "online may use within the hour", id="the law gives less"),
        pytest.param(decided(1.0), None, 16 * 0.9 - 1, "online may use within the hour", id="all of them"),
    ],
)
def test_no_more_is_published_than_the_box_may_run_on(one, for_box, amount, words):
    found = lendable(RESOURCES[CPU], replace(SAMPLE, for_box=for_box), one, SETTINGS)
    assert found.amount == pytest.approx(amount)
    assert words in found.why


def test_measured_factor_stands_in_place_of_the_speed():
    found = lendable(RESOURCES[CPU], SAMPLE, opened(hour=12.0), SETTINGS, factor=1.5)
    assert found.amount == pytest.approx(1.5 * (16 - 12))
    assert "1.50 x" in found.why
    assert "by what they got" in found.why


def test_lendable_of_an_unknown_capacity_is_nothing():
    assert lendable(RESOURCES[CPU], replace(SAMPLE, capacity=math.nan), decided(), SETTINGS).amount == 0.0


FIGURES = st.floats(allow_nan=True, allow_infinity=True)


@given(FIGURES, st.none() | FIGURES, st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0.1, 1.0))
def test_lendable_is_never_more_than_the_node_has_left(capacity, hour, reserve, kept, watermark):
    one = decided(hour=hour, reserve=reserve, kept=kept, watermark_ratio=watermark)
    amount = lendable(RESOURCES[CPU], replace(SAMPLE, capacity=capacity), one, SETTINGS).amount
    assert 0.0 <= amount < math.inf
    if amount > 0.1:
        assert amount <= capacity - hour - reserve + 1e-6 * capacity
        assert amount <= capacity - hour - kept + 1e-6 * capacity


CORES, RATIOS = st.floats(0.0, 1e3), st.floats(0.1, 1.0)


@given(FIGURES, st.none() | FIGURES, st.none() | FIGURES, CORES, st.builds(OpenBoxSettings, RATIOS, RATIOS))
def test_open_box_lends_no_more_than_is_free_now_and_leaves_pods_their_speed(capacity, hour, recent, reserve, settings):
    one = opened(hour, recent, reserve=reserve)
    amount = lendable(RESOURCES[CPU], replace(SAMPLE, capacity=capacity), one, settings).amount
    assert 0.0 <= amount < math.inf
    if amount > 0.1 and recent is not None and 0.0 <= recent < math.inf:
        assert amount <= capacity - recent - reserve + 1e-6 * capacity
        assert amount * settings.speed_ratio <= capacity - hour - reserve + 1e-6 * capacity


@given(CORES, CORES, CORES, CORES, st.floats(0.0, 10.0))
def test_open_box_lends_less_as_online_uses_more(capacity, recent, hour, reserve, more):
    law = partial(by_open_box, capacity, watermark_ratio=0.95, factor=2.0, reserve=reserve)
    assert law(recent + more, hour) <= law(recent, hour)
    assert law(recent, hour + more) <= law(recent, hour)


@given(CORES, CORES, RATIOS, CORES, CORES)
def test_forecast_lends_no_more_than_without_what_is_kept_free(capacity, hour, watermark, reserve, kept):
    law = partial(by_forecast, capacity, hour, watermark_ratio=watermark, reserve=reserve)
    assert law(kept=kept) <= law()


@given(st.floats(-1e3, 1e3), CORES, CORES, st.none() | CORES)
def test_within_holds_floor_and_ceiling(amount, capacity, floor, ceiling):
    held = within(amount, capacity, floor, ceiling)
    assert held >= min(floor, capacity)
    assert ceiling is None or held <= max(ceiling, min(floor, capacity))


# --- recent use ------------------------------------------------------------------------------------------------------


def test_recent_mean_of_nothing_is_not_known():
    assert RecentMean().value() is None


def test_recent_mean_forgets_what_is_older_than_five_minutes():
    mean = RecentMean()
    for t_s in range(300):
        mean.observe(float(t_s), 8.0)
    for t_s in range(300, 450):
        mean.observe(float(t_s), 2.0)
    assert mean.value() == pytest.approx(5.0)
    for t_s in range(450, 600):
        mean.observe(float(t_s), 2.0)
    assert mean.value() == pytest.approx(2.0)


def test_recent_mean_weighs_by_time_and_leaves_out_what_is_no_number():
    mean = RecentMean()
    for t_s, rate in [(0.0, 1.0), (10.0, 1.0), (20.0, math.nan), (20.0, -1.0), (40.0, 4.0)]:
        mean.observe(t_s, rate)
    assert mean.value() == pytest.approx((10 * 1.0 + 30 * 4.0) / 40)


@given(st.lists(st.tuples(st.floats(0.01, 500.0), st.floats(0.0, 1e3)), min_size=1, max_size=50))
def test_recent_mean_is_within_what_was_seen_recently(steps):
    mean, t_s, seen = RecentMean(), 1e6, []
    for step_s, rate in steps:
        t_s += step_s
        mean.observe(t_s, rate)
        seen.append((t_s, rate))
        recent = [one for at_s, one in seen if at_s > t_s - RECENT_S]
        assert min(recent) - 1e-6 <= mean.value() <= max(recent) + 1e-6


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "reported", "expected"),
    [(4.0, 4.0, False), (3.6, 4.0, False), (3.59, 4.0, True), (9.0, 4.0, False), (0.0, 0.0, False), (1.0, 0.0, False)],
)
def test_only_a_fall_by_more_than_a_tenth_can_not_wait(amount, reported, expected):
    assert falls(amount, reported) is expected
