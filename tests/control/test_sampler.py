"""Rates and online usage from counters, through everything that happens to counters."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.capacity import Capacity
from criproxy.control.sampler import Reading, Sampler
from criproxy.model import Usage

no_deadline = hypothesis_settings(deadline=None)

FOUR = Capacity(4.0, 1000)
FIRST = Reading(100.0, Usage(50.0, 700), Usage(20.0, 200, throttled_s=3.0), FOUR)


def second(**changes):
    """The snapshot of a reading 2 s after the first, at which the node used 6 s and the box 4 s more."""
    reading = Reading(102.0, Usage(56.0, 800), Usage(24.0, 300, throttled_s=5.0), FOUR)
    sampler = Sampler()
    assert sampler.sample(FIRST) is None
    return sampler.sample(replace(reading, **changes))


def test_sampler_two_readings_give_mean_rates():
    snapshot = second()
    assert (snapshot.node_cores, snapshot.box_cores, snapshot.online_cores) == (3.0, 2.0, 1.0)
    assert (snapshot.node_bytes, snapshot.box_bytes, snapshot.online_bytes) == (800, 300, 500)
    assert (snapshot.capacity_cores, snapshot.capacity_bytes) == (4.0, 1000)
    assert snapshot.throttled_ratio == 2.0 / (2.0 * 4.0)
    assert snapshot.t_s == 102.0


@pytest.mark.parametrize(
    ("changes", "box_cores", "online_cores"),
    [
        ({"box": Usage(2.0, 300)}, 1.0, 2.0),
        ({"box": Usage(24.0, 300, throttled_s=0.0)}, 2.0, 1.0),
        ({"box": None}, 0.0, 3.0),
        ({"box": Usage(30.0, 900, throttled_s=3.0)}, 5.0, 0.0),
    ],
    ids=["made-anew", "throttling-counter-gone-back", "vanished", "box-above-node-by-skew"],
)
def test_sampler_box_case_keeps_online_at_or_above_zero(changes, box_cores, online_cores):
    snapshot = second(**changes)
    assert (snapshot.box_cores, snapshot.online_cores) == (box_cores, online_cores)
    assert snapshot.online_bytes == max(0, 800 - snapshot.box_bytes)


def test_sampler_box_that_appears_has_used_what_it_shows():
    sampler = Sampler()
    sampler.sample(replace(FIRST, box=None))
    snapshot = sampler.sample(Reading(102.0, Usage(56.0, 800), Usage(4.0, 300), FOUR))
    assert snapshot.box_cores == 2.0


@pytest.mark.parametrize("t_s", [100.0, 99.0], ids=["same-time", "earlier"])
def test_sampler_reading_not_newer_is_ignored(t_s):
    sampler = Sampler()
    sampler.sample(FIRST)
    assert sampler.sample(replace(FIRST, t_s=t_s, node=Usage(99.0, 1))) is None
    assert sampler.sample(replace(FIRST, t_s=101.0, node=Usage(51.0, 700))).node_cores == 1.0


def test_sampler_node_counter_gone_back_starts_anew_from_it():
    sampler = Sampler()
    sampler.sample(FIRST)
    assert sampler.sample(replace(FIRST, t_s=101.0, node=Usage(1.0, 700))) is None
    assert sampler.sample(replace(FIRST, t_s=102.0, node=Usage(3.0, 700))).node_cores == 2.0


@pytest.mark.parametrize("capacity", [Capacity(2.0, 500), Capacity(8.0, 2000)], ids=["unplugged", "plugged"])
def test_sampler_capacity_is_that_of_the_newest_reading(capacity):
    snapshot = second(capacity=capacity)
    assert (snapshot.capacity_cores, snapshot.capacity_bytes) == (capacity.cores, capacity.memory_bytes)


counter = st.floats(0.0, 1e6)
usages = st.builds(Usage, counter, st.integers(0, 2**40), counter)
readings = st.lists(
    st.builds(
        Reading,
        st.floats(0.0, 1e6),
        usages,
        st.none() | usages,
        st.builds(Capacity, st.floats(1.0, 512.0), st.integers(1, 2**42)),
    ),
    max_size=20,
)


@no_deadline
@given(readings)
def test_sampler_any_readings_give_rates_at_or_above_zero(readings):
    sampler = Sampler()
    for reading in readings:
        snapshot = sampler.sample(reading)
        if snapshot is not None:
            assert min(snapshot.node_cores, snapshot.box_cores, snapshot.online_cores, snapshot.online_bytes) >= 0.0
            assert 0.0 <= snapshot.throttled_ratio <= 1.0
