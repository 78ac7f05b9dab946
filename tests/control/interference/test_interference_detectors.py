"""Detectors: what is high, what is an alarm, and what a bar learns."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.interference.detectors import (
    DETECTORS,
    FORGET_HALF_LIFE_S,
    LONGEST_PATIENCE_S,
    Detector,
    Monitor,
    MonitorState,
    OnlineUse,
    by_name,
    queueing_percent,
)
from criproxy.control.interference.ladder import RESOURCES_IN_TURN

PLAIN = Detector("wait", "waiting", "%", 10.0, 2.0, ("cpu",), hysteresis=2.0, most=60.0)
LEVEL = Detector(
    "level", "what is in use", "%", 98.0, 1.0, ("memory",), hysteresis=2.0, most=99.0, rest=94.0, emergency=99.0,
    stock=True,
)  # fmt: skip


def fed(monitor, values, t_s=0.0, step_s=1.0):
    return [monitor.observe(t_s + i * step_s, value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "high", "alarm"),
    [
        pytest.param([0, 10, 10], [0, 0, 0], [0, 0, 0], id="at the bar"),
        pytest.param([11, 11, 11, 11], [1, 1, 1, 1], [0, 0, 1, 1], id="held for 2 s"),
        pytest.param([11, 9, 9, 9], [1, 1, 1, 1], [0, 0, 1, 1], id="within the hysteresis it stays high"),
        pytest.param([9, 9, 9], [0, 0, 0], [0, 0, 0], id="from below it does not become high there"),
        pytest.param([11, 7.9, 11, 11, 11], [1, 0, 1, 1, 1], [0, 0, 0, 0, 1], id="a pause begins the hold anew"),
    ],
)
def test_signal_is_high_with_hysteresis_and_an_alarm_when_held(values, high, alarm):
    readings = fed(Monitor(PLAIN), values)
    assert [one.high for one in readings] == list(map(bool, high))
    assert [one.alarm for one in readings] == list(map(bool, alarm))


def test_mean_is_that_of_the_values_since_it_is_high():
    assert [one.mean for one in fed(Monitor(PLAIN), [5, 20, 40, 30, 3])] == [5, 20, 30, 30, 3]


def test_gap_counts_as_little_of_the_hold():
    patient = replace(PLAIN, hold_s=20.0)
    readings = fed(Monitor(patient), [50] * 6, step_s=3600.0)
    assert [one.alarm for one in readings] == [False, False, False, False, True, True]


def test_harm_is_taken_to_begin_in_the_middle_of_the_first_sample_that_shows_it():
    readings = fed(Monitor(replace(PLAIN, hold_s=1.5)), [0, 50, 50, 50], step_s=1.0)
    assert [one.high_s for one in readings] == [0.0, 0.5, 1.5, 2.5]
    assert [one.alarm for one in readings] == [False, False, True, True]


def test_emergency_is_one_at_once_whatever_the_bar():
    monitor = Monitor(LEVEL)
    monitor.acquit(0.0)
    assert [one.emergency for one in fed(monitor, [98.9, 99.0])] == [False, True]


def test_acquittal_doubles_the_patience_up_to_half_a_minute_and_half_is_forgotten_in_ten():
    monitor, found = Monitor(PLAIN), []
    for _ in range(6):
        monitor.acquit(100.0)
        found.append(monitor.patience_s(100.0))
    assert found == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert monitor.patience_s(100.0 + FORGET_HALF_LIFE_S) == pytest.approx(15.0)
    assert monitor.patience_s(100.0 + 10 * FORGET_HALF_LIFE_S) < 0.1


def test_patience_does_not_grow_while_the_box_was_lately_guilty():
    monitor = Monitor(PLAIN)
    for _ in range(4):
        monitor.acquit(100.0)
    monitor.convict(100.0)
    found = [monitor.patience_s(100.0)]
    for _ in range(3):
        monitor.acquit(100.0, lately_guilty=True)
        found.append(monitor.patience_s(100.0))
    assert found == [2.0] * 4


def test_patient_detector_waits_out_harm_of_seconds_and_hears_what_lasts():
    monitor = Monitor(PLAIN)
    monitor.acquit(0.0)
    monitor.acquit(0.0)
    readings = fed(monitor, [0.0] + [50.0] * 10)
    assert [one.alarm for one in readings].index(True) == 7, "half a second, and six more: 2 and 4 are waited for"
    assert monitor.bar() == 10.0


def test_aggressor_that_grows_slowly_does_not_teach_the_bar():
    monitor = Monitor(PLAIN)
    fed(monitor, [i / 400 for i in range(20_000)])
    assert monitor.bar() <= 11.1  # the bucket's upper edge


def steady(monitor, value, hours, t_s=0.0, **how):
    """An hour is 720 samples, one each 5 s."""
    for step in range(720 * hours):
        monitor.observe(t_s + 5.0 * step, value, **how)
    return t_s + 3600.0 * hours


def test_what_goes_on_after_an_acquittal_is_learned_as_usual():
    monitor = Monitor(PLAIN)
    fed(monitor, [15.0] * 10)
    monitor.acquit(10.0)
    steady(monitor, 15.0, 2, t_s=11.0)
    assert 15.0 <= monitor.bar() < 17.0


def test_what_is_more_than_twice_as_high_as_what_was_acquitted_is_not_learned():
    monitor = Monitor(PLAIN)
    fed(monitor, [15.0] * 10)
    monitor.acquit(10.0)
    steady(monitor, 31.0, 4, t_s=11.0)
    assert monitor.bar() == 10.0


def test_what_was_seen_while_the_box_used_nothing_is_learned():
    monitor = Monitor(PLAIN)
    steady(monitor, 25.0, 4, explained=True)
    assert 25.0 <= monitor.bar() < 28.0


def test_episodes_of_others_in_less_than_a_quarter_of_the_time_do_not_make_it_deaf():
    monitor = Monitor(PLAIN)
    for turn in range(200):
        fed(monitor, [2.0] * 60, t_s=75.0 * turn)
        fed(monitor, [40.0] * 15, t_s=75.0 * turn + 60.0)
        monitor.acquit(75.0 * turn + 74.9)
    assert monitor.bar() == 10.0


def test_what_comes_after_it_was_harmless_again_is_not_learned():
    monitor = Monitor(PLAIN)
    fed(monitor, [15.0] * 3)
    monitor.acquit(3.0)
    fed(monitor, [5.0] * 60, t_s=4.0)
    before = monitor.state().usual
    fed(monitor, [15.0] * 600, t_s=64.0)
    assert monitor.state().usual == before


# --- pressure by online's own use -------------------------------------------------------------------------------------

CPU_PRESSURE = by_name()["cpu_pressure"]


@pytest.mark.parametrize(
    ("cpus", "percents"),
    [
        (2, (6.3, 16.0, 25.0, 36.0, 49.0, 64.0)),
        (4, (0.7, 3.7, 8.2, 15.6, 27.1, 44.0)),
        (8, (0, 0.4, 1.5, 4.3, 10.6, 23.8)),
        (32, (0, 0, 0, 0, 0.4, 2.5)),
    ],
)
def test_pressure_of_an_ideal_machine(cpus, percents):
    """As simulated state by state: see benchmarks/ladder/world.py."""
    uses = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8)
    assert [queueing_percent(OnlineUse(cpus * use, cpus)) for use in uses] == pytest.approx(percents, abs=0.06)


@pytest.mark.parametrize(("cores", "percent"), [(0.0, 0.0), (2.0, 100.0), (9.0, 100.0), (-1.0, 0.0)])
def test_pressure_at_the_ends_of_use(cores, percent):
    assert queueing_percent(OnlineUse(cores, 2)) == percent
    assert queueing_percent(OnlineUse(cores, 0)) == 0.0


def test_small_node_has_a_higher_bar_by_its_use_alone():
    monitor = Monitor(CPU_PRESSURE)
    monitor.observe(0.0, 0.0, OnlineUse(1.2, 2))
    assert monitor.bar() == pytest.approx(54.0)
    monitor.observe(1.0, 0.0, OnlineUse(0.2, 2))
    assert monitor.bar() == 10.0
    monitor.observe(2.0, 0.0)
    assert monitor.bar() == 10.0


def test_what_is_usual_is_learned_for_each_tenth_of_use_and_kept_for_weeks():
    monitor, busy = Monitor(CPU_PRESSURE), OnlineUse(8.0, 16)
    now_s = steady(monitor, 18.0, 4, use=busy, explained=True)
    assert monitor.bar() > 18.0
    monitor.observe(now_s + 1.0, 3.0, OnlineUse(2.0, 16))
    assert monitor.bar() == 10.0
    rebooted = Monitor(CPU_PRESSURE)
    rebooted.load(monitor.state(), -now_s)
    rebooted.observe(20 * 86400.0, 3.0, busy)
    assert rebooted.bar() > 18.0


def test_state_of_another_shape_is_refused_and_changes_nothing():
    monitor = Monitor(CPU_PRESSURE)
    steady(monitor, 18.0, 4, explained=True)
    before = monitor.state()
    (mass,) = before.usual.values()
    for usual in ({99: mass}, {0: replace(mass, half_life_s=1.0)}):
        with pytest.raises(ValueError):
            monitor.load(replace(before, usual=usual))
        assert monitor.state() == before


@pytest.mark.parametrize(
    "values",
    [
        {"threshold": 70.0},
        {"rest": 10.0},
        {"hysteresis": 10.0},
        {"hysteresis": -1.0},
        {"suspects": ()},
        {"hold_s": -1.0},
        {"hold_s": math.inf},
        {"emergency": 59.0},
        {"emergency": 70.0},
        {"threshold": math.nan},
    ],
)
def test_detector_that_contradicts_itself_is_refused(values):
    with pytest.raises(ValueError, match="wait"):
        replace(PLAIN, **values)


def test_each_suspect_is_a_resource_of_the_ladder():
    known = {resource.name for resource in RESOURCES_IN_TURN}
    assert all(known.issuperset(detector.suspects) for detector in DETECTORS)
    assert len({detector.name for detector in DETECTORS}) == len(DETECTORS)


uses = st.none() | st.builds(OnlineUse, st.floats(0.0, 3.0), st.just(2))
samples = st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 200.0), uses, st.booleans()), max_size=60)


@given(samples)
def test_bar_lies_between_threshold_and_most_and_state_goes_on_after_a_round_trip(samples):
    straight, again, t_s = Monitor(CPU_PRESSURE), Monitor(CPU_PRESSURE), 0.0
    for seconds, value, use, acquitted in samples:
        t_s += seconds
        text = msgspec.json.encode(again.state())
        again = Monitor(CPU_PRESSURE)
        again.load(msgspec.json.decode(text, type=MonitorState))
        assert again.observe(t_s, value, use) == straight.observe(t_s, value, use)
        if acquitted:
            straight.acquit(t_s)
            again.acquit(t_s)
        assert CPU_PRESSURE.threshold <= straight.bar() <= CPU_PRESSURE.most
        assert 0.0 <= straight.patience_s(t_s) <= LONGEST_PATIENCE_S
        assert again.state() == straight.state()
