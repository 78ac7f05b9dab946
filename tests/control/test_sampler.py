"""Rates and online usage from counters, through everything that happens to counters."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import structs

from criproxy.control.sampler import Sampler
from criproxy.model import Capacity, Usage, UsageReading

no_deadline = hypothesis_settings(deadline=None)


@dataclass(frozen=True)
class CounterReading:
    t_s: float
    read_s: float
    node: Usage
    box: Usage | None
    capacity: Capacity


def sample(sampler, reading):
    usages = UsageReading(reading.node, reading.box, reading.read_s)
    return sampler.sample(reading.t_s, usages, reading.capacity)


FOUR = Capacity(4.0, 1000)
FIRST = CounterReading(100.0, 90.0, Usage(50.0, 700), Usage(20.0, 200, throttled_s=3.0), FOUR)


def second(**changes):
    """The snapshot of a reading 2 s after the first, at which the node used 6 s and the box 4 s more."""
    reading = CounterReading(102.0, 92.0, Usage(56.0, 800), Usage(24.0, 300, throttled_s=5.0), FOUR)
    sampler = Sampler()
    assert sample(sampler, FIRST) is None
    return sample(sampler, replace(reading, **changes))


def test_sampler_two_readings_give_mean_rates():
    snapshot = second()
    assert (snapshot.of["cpu"].node, snapshot.of["cpu"].box, snapshot.of["cpu"].online) == (3.0, 2.0, 1.0)
    assert (snapshot.of["memory"].node, snapshot.of["memory"].box, snapshot.of["memory"].online) == (800, 300, 500)
    assert (snapshot.of["cpu"].capacity, snapshot.of["memory"].capacity) == (4.0, 1000)
    assert snapshot.throttled_ratio == 2.0 / (2.0 * 4.0)
    assert snapshot.t_s == 102.0


@pytest.mark.parametrize(("box", "anon_bytes"), [(Usage(24.0, 300, anon_bytes=90), 90), (None, 0)], ids=["box", "none"])
def test_sampler_has_the_boxs_anonymous_memory(box, anon_bytes):
    assert second(box=box).box_anon_bytes == anon_bytes


@pytest.mark.parametrize(
    ("changes", "box_cores", "online_cores"),
    [
        ({"box": Usage(2.0, 300)}, 1.0, 2.0),
        ({"box": Usage(24.0, 300, throttled_s=0.0)}, 2.0, 1.0),
        ({"box": None}, 0.0, 3.0),
        ({"box": Usage(27.0, 900, throttled_s=3.0)}, 3.5, 0.0),
    ],
    ids=["made-anew", "throttling-counter-gone-back", "vanished", "box-above-node-by-skew"],
)
def test_sampler_box_case_keeps_online_at_or_above_zero(changes, box_cores, online_cores):
    snapshot = second(**changes)
    assert (snapshot.of["cpu"].box, snapshot.of["cpu"].online) == (box_cores, online_cores)
    assert snapshot.of["memory"].online == max(0, 800 - snapshot.of["memory"].box)


def test_sampler_box_that_appears_has_used_what_it_shows():
    sampler = Sampler()
    sample(sampler, replace(FIRST, box=None))
    snapshot = sample(sampler, CounterReading(102.0, 92.0, Usage(56.0, 800), Usage(4.0, 300), FOUR))
    assert snapshot.of["cpu"].box == 2.0


def test_sampler_box_that_appears_and_is_old_gives_no_sample_and_is_nothing_to_tell_of():
    """After a restart of criproxy: what it has used in its life is no rate, and online's is not 0."""
    sampler = Sampler()
    sample(sampler, replace(FIRST, box=None))
    old = CounterReading(102.0, 92.0, Usage(56.0, 800), Usage(9e6, 300), FOUR)
    assert (sample(sampler, old), sampler.discarded) == (None, "")
    later = replace(old, t_s=103.0, read_s=93.0, node=Usage(59.0, 800), box=Usage(9e6 + 2.0, 300))
    assert sample(sampler, later).of["cpu"].online == 1.0


@pytest.mark.parametrize(
    ("t_s", "read_s"),
    [(100.0, 91.0), (99.0, 91.0), (101.0, 90.0), (101.0, 89.0)],
    ids=["same-time", "earlier", "read-at-the-same-time", "read-earlier"],
)
def test_sampler_reading_not_newer_is_ignored(t_s, read_s):
    sampler = Sampler()
    sample(sampler, FIRST)
    assert sample(sampler, replace(FIRST, t_s=t_s, read_s=read_s, node=Usage(99.0, 1))) is None
    assert sample(sampler, replace(FIRST, t_s=102.0, read_s=91.0, node=Usage(51.0, 700))).of["cpu"].node == 1.0


def test_sampler_node_counter_gone_back_starts_anew_from_it():
    sampler = Sampler()
    sample(sampler, FIRST)
    assert sample(sampler, replace(FIRST, t_s=101.0, read_s=91.0, node=Usage(1.0, 700))) is None
    assert sampler.discarded == "the node's CPU counter has gone back"
    assert sample(sampler, replace(FIRST, t_s=102.0, read_s=92.0, node=Usage(3.0, 700))).of["cpu"].node == 2.0
    assert sampler.discarded == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": Usage(2.6e6, 800)}, "the node's CPU counter says 1299975.00 cores, of 4.00"),
        ({"node": Usage(60.5, 800)}, "the node's CPU counter says 5.25 cores, of 4.00"),
        ({"box": Usage(9e6, 300)}, "the box's CPU counter says 4499990.00 cores, of 4.00"),
        ({"box": Usage(24.0, 2000)}, "the box's working set is 2000 bytes, of 1000"),
    ],
    ids=["cpu-plugged-in", "above-by-more-than-clocks-differ", "box", "memory"],
)
def test_sampler_reading_above_what_the_machine_has_is_no_sample(changes, why):
    sampler = Sampler()
    sample(sampler, FIRST)
    reading = replace(CounterReading(102.0, 92.0, Usage(56.0, 800), Usage(24.0, 300), FOUR), **changes)
    assert sample(sampler, reading) is None
    assert sampler.discarded == why
    node, box = reading.node, reading.box
    assert box is not None
    later = replace(
        reading,
        t_s=103.0,
        read_s=93.0,
        node=structs.replace(node, cpu_usage_s=node.cpu_usage_s + 1.0),
        box=structs.replace(box, working_set_bytes=300),
    )
    assert sample(sampler, later).of["cpu"].online == 1.0
    assert sampler.discarded == ""


def test_sampler_reading_slightly_above_capacity_is_cut_to_it():
    snapshot = second(node=Usage(59.5, 1100), box=None)
    assert (snapshot.of["cpu"].node, snapshot.of["cpu"].online) == (4.0, 4.0)
    assert (snapshot.of["memory"].node, snapshot.of["memory"].online) == (1000, 1000)


def test_sampler_isolated_cpus_count_as_the_nodes_and_online_is_at_most_the_capacity():
    snapshot = second(capacity=Capacity(4.0, 1000, outside_cores=8.0), node=Usage(50.0 + 2 * 11.0, 800))
    assert snapshot.of["cpu"].online == 4.0


def test_sampler_usage_of_cpus_that_have_gone_meanwhile_is_cut_to_those_that_are_left():
    snapshot = second(capacity=Capacity(1.0, 1000))
    assert (snapshot.of["cpu"].node, snapshot.of["cpu"].box, snapshot.of["cpu"].online) == (1.0, 1.0, 1.0)


def test_sampler_suspended_machine_was_not_idle_meanwhile():
    assert second(t_s=102.0 + 3600.0).of["cpu"].online == 1.0


@pytest.mark.parametrize("capacity", [Capacity(2.0, 500), Capacity(8.0, 2000)], ids=["unplugged", "plugged"])
def test_sampler_capacity_is_that_of_the_newest_reading(capacity):
    snapshot = second(capacity=capacity)
    assert (snapshot.of["cpu"].capacity, snapshot.of["memory"].capacity) == (capacity.cores, capacity.memory_bytes)


counter = st.floats(0.0, 1e6)
usages = st.builds(Usage, counter, st.integers(0, 2**40), counter)
capacities = st.builds(Capacity, st.floats(1.0, 512.0), st.integers(1, 2**42), st.sampled_from([0.0, 8.0]))
times = st.floats(0.0, 1e6)
readings = st.lists(st.builds(CounterReading, times, times, usages, st.none() | usages, capacities), max_size=20)


@no_deadline
@given(readings)
def test_sampler_any_readings_give_rates_that_the_node_can_have(readings):
    sampler = Sampler()
    for reading in readings:
        snapshot = sample(sampler, reading)
        if snapshot is not None:
            rates = (snapshot.of["cpu"].node, snapshot.of["cpu"].box, snapshot.of["cpu"].online)
            sizes = (snapshot.of["memory"].node, snapshot.of["memory"].box, snapshot.of["memory"].online)
            assert 0.0 <= min(rates) <= max(rates) <= reading.capacity.cores == snapshot.of["cpu"].capacity
            assert 0 <= min(sizes) <= max(sizes) <= reading.capacity.memory_bytes == snapshot.of["memory"].capacity
            assert 0.0 <= snapshot.throttled_ratio <= 1.0
