"""The node's busy time, whatever its CPUs' idle counters do."""

import itertools

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from criproxy.cgroup.busytime import BusyTime
from criproxy.control.sampler import Sampler
from criproxy.model import Capacity, Usage, UsageReading

DAY_S = 86_400.0


def after(*readings: tuple[float, dict[int, float]]) -> list[float]:
    busy = BusyTime()
    return [busy.add(t_s, idle_s) for t_s, idle_s in readings]


def test_busy_time_is_what_the_cpus_were_not_idle() -> None:
    assert after((10.0, {0: 5.0, 1: 5.0}), (12.0, {0: 5.5, 1: 7.0}), (13.0, {0: 6.5, 1: 7.0})) == [0.0, 1.5, 2.5]


@pytest.mark.parametrize(
    ("idle_s", "busy_s"),
    [
        ({0: 100.5, 1: 100.5, 2: 0.2}, 1.0),
        ({0: 100.5, 1: 100.5, 2: DAY_S}, 1.0),
        ({0: 100.5}, 0.5),
        ({0: 100.5, 1: 0.0}, 0.5),
        ({0: 100.5, 1: 100.0 + DAY_S}, 0.5),
        ({0: 101.02, 1: 101.02}, 0.0),
    ],
    ids=["cpu-plugged-in", "cpu-back-with-its-idle-time", "cpu-gone", "started-anew", "jumped", "rounded-up"],
)
def test_busy_time_goes_on_when_idle_time_is_no_steady_counter(idle_s: dict[int, float], busy_s: float) -> None:
    """After a day: a new CPU is no day of work, and neither is one whose idle time starts anew."""
    first, second = after((DAY_S, {0: 100.0, 1: 100.0}), (DAY_S + 1.0, idle_s))

    assert second - first == pytest.approx(busy_s)


def test_busy_time_counts_a_cpu_from_its_second_reading_on() -> None:
    assert after((0.0, {0: 0.0}), (1.0, {0: 1.0, 1: 9.0}), (2.0, {0: 2.0, 1: 9.0})) == [0.0, 0.0, 1.0]


def test_busy_time_of_which_nothing_can_be_told_starts_anew() -> None:
    assert after((0.0, {0: 0.0}), (1.0, {0: 0.0}), (2.0, {0: DAY_S}), (3.0, {0: DAY_S})) == [0.0, 1.0, 0.0, 1.0]


def test_busy_time_never_goes_back_by_what_ticks_round() -> None:
    told = after(*((t / 10, {0: round(t / 10 + (0.01 if t % 2 else 0.0), 2)}) for t in range(20)))

    assert all(later >= earlier for earlier, later in itertools.pairwise(told))


Steps = list[tuple[float, dict[int, float]]]

idle = st.dictionaries(st.integers(0, 5), st.floats(0.0, 1e7), max_size=6)
steps = st.lists(st.tuples(st.floats(0.001, 1e5), idle), min_size=2, max_size=20)


@hypothesis_settings(deadline=None)
@given(steps)
def test_busy_time_of_any_idle_times_makes_no_sample_above_the_cpus(steps: Steps) -> None:
    busy, sampler, t_s = BusyTime(), Sampler(), 0.0
    for elapsed_s, idle_s in steps:
        t_s += elapsed_s
        cores = float(max(1, len(idle_s)))
        usage = Usage(busy.add(t_s, idle_s), 0)
        snapshot = sampler.sample(t_s, UsageReading(usage, None, t_s), Capacity(cores, 1))
        assert snapshot is None or 0.0 <= snapshot.of["cpu"].online <= cores
