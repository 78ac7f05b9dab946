"""The guard's law, look by look, as data."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.guardlaw import GuardLaw, GuardState, Outlook, UsageSample, watch
from criproxy.model import GuardCeiling

SETTINGS = GuardLaw(floor_cores=0.1, watermark_ratio=0.9, hold_s=2.0)
OUTLOOK = Outlook(capacity_cores=4.0, limit_cores=3.0, predicted_cores=0.6)
LOOK_S = 0.05


class Node:
    """Looks at a node each 50 ms; the box takes what its limit leaves to it."""

    def __init__(self, outlook=OUTLOOK, settings=SETTINGS):
        self.outlook, self.settings = outlook, settings
        self.state = GuardState()
        self.t_s = 100.0

    def looks(self, online_cores, seconds=LOOK_S, pressure=False, box_cores=None):
        for _ in range(max(1, round(seconds / LOOK_S))):
            self.t_s += LOOK_S
            box = self.limit if box_cores is None else box_cores
            sample = UsageSample(self.t_s, LOOK_S, online_cores, box)
            self.state = watch(sample, pressure, self.outlook, self.state, self.settings)
        return self.state

    @property
    def limit(self):
        ceiling = self.state.ceiling
        return min(self.outlook.limit_cores, ceiling.cores if ceiling else math.inf)


@pytest.fixture
def node():
    node = Node()
    node.looks(0.6, seconds=1.0)
    return node


def test_guard_steady_load_as_predicted_rests(node):
    assert node.looks(0.6, seconds=60.0).ceiling is None
    assert node.state.squeezes == 0


def test_guard_step_up_squeezes_at_the_first_look_to_what_fits(node):
    ceiling = node.looks(2.0).ceiling
    assert ceiling.cores == pytest.approx(4 * 0.9 - 2.0)
    assert ceiling.reason == "online stepped up to 2.00 cores, 0.60 were expected"
    assert node.state.squeezes == 1


def test_guard_second_look_at_a_step_squeezes_further(node):
    node.looks(1.2)
    assert node.looks(4.0).ceiling.cores == SETTINGS.floor_cores


@pytest.mark.parametrize(
    ("outlook", "settings", "online", "alarm"),
    [
        pytest.param(OUTLOOK, SETTINGS, 0.79, False, id="within-the-noise"),
        pytest.param(OUTLOOK, SETTINGS, 0.82, True, id="just-above-it"),
        pytest.param(OUTLOOK, replace(SETTINGS, watermark_ratio=0.5), 0.82, False, id="a-watermark-leaves-more-slack"),
        pytest.param(replace(OUTLOOK, predicted_cores=2.0), SETTINGS, 2.1, False, id="predicted"),
        pytest.param(replace(OUTLOOK, predicted_cores=None), SETTINGS, 0.7, False, id="unpredicted-but-left-free"),
        pytest.param(replace(OUTLOOK, limit_cores=0.1), SETTINGS, 4.0, False, id="nothing-to-take-at-the-floor"),
        pytest.param(replace(OUTLOOK, limit_cores=0.05), SETTINGS, 4.0, False, id="a-limit-below-the-floor-stays"),
        pytest.param(replace(OUTLOOK, limit_cores=math.inf), SETTINGS, 1.0, True, id="an-unlimited-box-is-all-cpus"),
        pytest.param(OUTLOOK, replace(SETTINGS, reserve_cores=0.5), 0.7, False, id="reserve-not-in-the-limit-yet"),
        pytest.param(Outlook(64.0, 50.0, 7.6), SETTINGS, 10.7, False, id="noise-grows-with-the-node"),
        pytest.param(Outlook(64.0, 50.0, 7.6), SETTINGS, 10.9, True, id="large-node"),
    ],
)
def test_guard_alarm_needs_more_than_was_expected(outlook, settings, online, alarm):
    node = Node(outlook, settings)
    node.looks(online)
    assert (node.state.ceiling is not None) == alarm


def test_guard_ceiling_holds_then_rises_by_steps_then_goes(node):
    node.looks(3.0, seconds=1.2)
    node.outlook = replace(OUTLOOK, predicted_cores=3.0)
    held = node.looks(0.5).ceiling.cores
    assert node.looks(0.5, seconds=0.7).ceiling.cores == held == pytest.approx(0.6)
    rising = node.looks(0.5, seconds=1.5).ceiling
    assert held < rising.cores < held + 0.2 * 4.0 * 1.5
    assert rising.reason.startswith("giving back, online stepped up")
    assert node.looks(0.5, seconds=8.0).ceiling is None


def test_guard_does_not_give_back_what_online_uses_beyond_the_prediction(node):
    node.looks(3.0, seconds=10.0)
    assert node.state.ceiling.cores == pytest.approx(0.6)
    assert node.state.squeezes == 1


def test_guard_ceiling_above_the_policys_limit_goes(node):
    node.looks(2.0)
    node.outlook = replace(OUTLOOK, limit_cores=1.0)
    assert node.looks(2.0).ceiling is None


def test_guard_false_alarm_is_given_back_without_holding(node):
    node.looks(1.0)
    assert node.looks(0.6, seconds=0.3).ceiling.cores == pytest.approx(2.6)
    assert node.looks(0.6, seconds=0.2).false_alarms == 1
    assert 2.6 < node.state.ceiling.cores < 2.9


@pytest.fixture
def pulsing():
    """On and off, ten times a second; the ticks see the mean alone, and predict it."""
    return Node(replace(OUTLOOK, predicted_cores=1.5, limit_cores=2.1))


def pulse(node, seconds):
    for _ in range(round(seconds / 0.1)):
        node.looks(2.8)
        node.looks(0.0)


def test_guard_load_that_pulses_is_a_false_alarm_once(pulsing):
    pulse(pulsing, 60.0)
    assert pulsing.state.false_alarms == 1
    assert pulsing.state.ceiling is None


def test_guard_load_that_pulses_is_alarming_again_when_that_is_forgotten(pulsing):
    pulse(pulsing, 1800.0)
    assert 2 <= pulsing.state.false_alarms <= 6


def test_guard_step_beneath_learned_pulses_is_seen_by_the_average(pulsing):
    pulse(pulsing, 60.0)
    pulsing.looks(4.0, seconds=0.5)
    assert pulsing.state.ceiling is not None


def test_guard_true_alarm_teaches_nothing(node):
    node.looks(3.0, seconds=2.0)
    assert (node.state.false_alarms, node.state.threshold, node.state.pending) == (0, 0.0, None)


# --- pressure ------------------------------------------------------------------------------------------------------


def test_guard_pressure_on_a_full_node_halves_what_the_box_uses():
    node = Node(replace(OUTLOOK, predicted_cores=1.0))
    node.looks(1.0, seconds=1.0, box_cores=2.9)
    ceiling = node.looks(1.0, pressure=True, box_cores=2.9).ceiling
    assert ceiling.cores == pytest.approx(1.45, abs=0.02)
    assert ceiling.reason == "online waits for CPU on a full node"


def test_guard_pressure_again_and_again_ends_at_the_floor():
    node = Node(replace(OUTLOOK, predicted_cores=3.9))
    node.looks(3.9, seconds=1.0, box_cores=1.0)
    for _ in range(8):
        node.looks(3.9, pressure=True, box_cores=1.0)
    assert node.state.ceiling.cores == SETTINGS.floor_cores


def test_guard_pressure_on_a_node_with_idle_cpus_is_not_the_boxs_doing(node):
    assert node.looks(0.6, pressure=True, box_cores=2.0).ceiling is None


# --- properties ----------------------------------------------------------------------------------------------------

cores = st.floats(0.0, 8.0)
outlooks = st.builds(Outlook, st.floats(1.0, 8.0), cores | st.just(math.inf), st.none() | cores)
settings = st.builds(GuardLaw, st.floats(0.01, 1.0), st.floats(0.1, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 5.0))
steps = st.lists(st.tuples(cores, cores, st.booleans(), st.floats(0.005, 2.0)), max_size=40)


def limit_after(state, outlook):
    return min(outlook.limit_cores, outlook.capacity_cores, state.ceiling.cores if state.ceiling else math.inf)


def walk(steps, outlook, settings):
    state, t_s = GuardState(), 0.0
    for online, box, pressure, seconds in steps:
        t_s += seconds
        state = watch(UsageSample(t_s, seconds, online, box), pressure, outlook, state, settings)
        yield state, t_s


@given(steps, outlooks, settings)
def test_guard_ceiling_is_never_below_the_floor_nor_above_the_limit(steps, outlook, settings):
    for state, _ in walk(steps, outlook, settings):
        if state.ceiling is not None:
            assert min(settings.floor_cores, outlook.limit_cores) <= state.ceiling.cores < outlook.limit_cores


@given(steps, outlooks, settings, st.tuples(cores, cores), st.tuples(cores, st.booleans()))
def test_guard_more_online_never_leaves_more_to_the_box(steps, outlook, settings, online, rest):
    less, more = sorted(online)
    box, pressure = rest
    state, t_s = GuardState(), 0.0
    for state, t_s in walk(steps, outlook, settings):  # noqa: B007
        pass
    quiet, busy = (
        limit_after(watch(UsageSample(t_s + LOOK_S, LOOK_S, cores, box), pressure, outlook, state, settings), outlook)
        for cores in (less, more)
    )
    assert busy <= quiet + 1e-9


@given(steps, outlooks, settings)
def test_guard_recovers_to_rest_when_online_is_as_predicted(steps, outlook, settings):
    state, t_s = GuardState(), 0.0
    for state, t_s in walk(steps, outlook, settings):  # noqa: B007
        pass
    for _ in range(400):
        t_s += LOOK_S * 2
        sample = UsageSample(t_s, LOOK_S * 2, 0.0, 0.0)
        state = watch(sample, False, replace(outlook, predicted_cores=outlook.predicted_cores or 0.0), state, settings)
    assert state.ceiling is None


@given(st.floats(0.0, 4.0), st.floats(0.0, 4.0))
def test_guard_at_rest_keeps_no_ceiling_that_takes_nothing(predicted, online):
    outlook = Outlook(4.0, 0.2, predicted)
    state = watch(UsageSample(1.0, LOOK_S, online, 0.0), False, outlook, GuardState(), SETTINGS)
    assert state.ceiling is None or state.ceiling == GuardCeiling(SETTINGS.floor_cores, state.ceiling.reason)
