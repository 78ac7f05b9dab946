"""Detectors: what is high, what is an alarm, and what a bar learns."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.interference.detectors import DETECTORS, FORGET_HALF_LIFE_S, Detector, Monitor, MonitorState
from criproxy.control.interference.ladder import RESOURCES_IN_TURN

PLAIN = Detector("wait", "waiting", "%", 10.0, 2.0, ("cpu",), hysteresis=2.0, most=60.0)
LEVEL = Detector(
    "level", "what is in use", "%", 98.0, 1.0, ("memory",), hysteresis=2.0, most=99.0, rest=94.0, emergency=99.0
)


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


def test_emergency_is_one_at_once_whatever_the_bar():
    monitor = Monitor(LEVEL)
    monitor.exonerate(0.0)
    assert [one.emergency for one in fed(monitor, [98.9, 99.0])] == [False, True]


def test_exoneration_doubles_the_bar_above_rest_and_is_forgotten_by_half():
    monitor = Monitor(replace(LEVEL, most=200.0, emergency=None))
    monitor.exonerate(100.0)
    assert monitor.bar(100.0) == pytest.approx(102.0)
    assert monitor.bar(100.0 + FORGET_HALF_LIFE_S) == pytest.approx(100.0)
    assert monitor.bar(100.0 + 2 * FORGET_HALF_LIFE_S) == pytest.approx(99.0)


def test_bar_that_is_doubled_again_and_again_stays_below_its_most():
    monitor = Monitor(PLAIN)
    for t_s in range(20):
        monitor.exonerate(float(t_s))
    assert monitor.bar(20.0) <= 60.0
    assert monitor.bar(20.0 + FORGET_HALF_LIFE_S) == pytest.approx(35.0, rel=0.02)


def test_aggressor_that_grows_slowly_does_not_teach_the_bar():
    monitor = Monitor(PLAIN)
    fed(monitor, [i / 400 for i in range(20_000)])
    assert monitor.bar(20_000.0) <= 10.6  # the bucket's upper edge


def test_what_was_exonerated_is_learned_as_usual():
    monitor = Monitor(PLAIN)
    fed(monitor, [15.0] * 10)
    monitor.exonerate(10.0)
    fed(monitor, [15.0] * 7200, t_s=11.0)
    assert 15.0 <= monitor.bar(7211.0) < 16.5
    assert not monitor.observe(7212.0, 15.0).high


def test_what_comes_after_it_was_harmless_again_is_not_learned():
    monitor = Monitor(PLAIN)
    monitor.exonerate(0.0)
    fed(monitor, [5.0] * 60, t_s=1.0)
    before = monitor.state().usual
    fed(monitor, [15.0] * 600, t_s=61.0)
    assert monitor.state().usual == before


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


samples = st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 200.0), st.booleans()), max_size=60)


@given(samples)
def test_bar_lies_between_threshold_and_most_and_state_goes_on_after_a_round_trip(samples):
    straight, again, t_s = Monitor(PLAIN), Monitor(PLAIN), 0.0
    for seconds, value, exonerated in samples:
        t_s += seconds
        text = msgspec.json.encode(again.state())
        again = Monitor(PLAIN)
        again.load(msgspec.json.decode(text, type=MonitorState))
        assert again.observe(t_s, value) == straight.observe(t_s, value)
        if exonerated:
            straight.exonerate(t_s)
            again.exonerate(t_s)
        assert PLAIN.threshold <= straight.bar(t_s) <= PLAIN.most
        assert again.state() == straight.state()
