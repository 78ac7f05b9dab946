"""The ladder: its table as data, the experiment, the budget of evictions, and what holds of any signals."""

import json
import math
from collections.abc import Mapping
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.interference.detectors import DETECTORS, IO, Assessment, Detector, by_name
from criproxy.control.interference.ladder import (
    TABLE,
    Budget,
    Case,
    Conviction,
    LadderDecision,
    LadderSettings,
    LadderState,
    PastEviction,
    Rung,
    RungState,
    Signals,
    When,
    doubled_s,
    evicted,
    in_force,
    not_evicted,
    shifted,
    step,
)
from criproxy.control.interference.responder import Responder, ResponderState
from criproxy.model import CPU, MEMORY

SETTINGS = LadderSettings()
BY_NAME = by_name(DETECTORS)
OPEN, TRIED, SQUEEZED, CLOSED, EVICTING = Rung


def reading(value, *, bar=10.0, high=None, alarm=None, emergency=False, mean=None):
    high = value > bar if high is None else high
    return Assessment(value, bar, high, high if alarm is None else alarm, emergency, value if mean is None else mean)


CALM = reading(0.0)
HARM = reading(40.0)
WITHIN_HYSTERESIS = reading(9.0, high=True)


# --- the table --------------------------------------------------------------------------------------------------------


def stand(rung, resource=CPU, **clocks):
    """A state in which this resource stands there, convicted by its pressure when it is."""
    by = (Conviction(f"{resource}_pressure", 40.0),) if rung in (SQUEEZED, CLOSED, EVICTING) else ()
    at_floor = rung in (TRIED, CLOSED, EVICTING)
    given = {"by": by, "share": 0.0 if at_floor else 1.0} | clocks
    return LadderState(100.0, {resource: RungState(rung, **given)})


def trying(resource=CPU, detector="cpu_pressure", **case):
    return replace(stand(TRIED, resource), case=Case(detector, on=resource, before=40.0, **case))


def helped(at_floor, detector="cpu_pressure"):
    return (Conviction(detector, 40.0, at_floor),)


BOUND_EXCEEDED = frozenset({MEMORY})
JUDGED = {"seconds": 2.0, "samples": 1}
OVER = reading(98.5, bar=98.0)
SHORTAGE = {"memory_shortage": reading(99.5, bar=98.0, emergency=True)}

CASES = [
    pytest.param(stand(OPEN), {"cpu_pressure": HARM}, CPU, When.ACCUSED, TRIED, id="alarm"),
    pytest.param(stand(OPEN), {"cpu_pressure": reading(40.0, alarm=False)}, CPU, None, OPEN, id="not held yet"),
    pytest.param(stand(OPEN), {"cpu_pressure": CALM}, CPU, None, OPEN, id="calm"),
    pytest.param(stand(OPEN), {}, CPU, None, OPEN, id="no signal at all"),
    pytest.param(replace(stand(OPEN), pauses={"cpu_pressure": 5.0}), {"cpu_pressure": HARM}, CPU, None, OPEN,
                 id="the detector pauses"),
    pytest.param(trying(seconds=1.0, samples=1), {"cpu_pressure": HARM}, CPU, None, TRIED, id="experiment goes on"),
    pytest.param(trying(**JUDGED, total=12.0), {"cpu_pressure": reading(20.0)}, CPU, When.GUILTY, SQUEEZED,
                 id="fell by more than half"),
    pytest.param(trying(**JUDGED, total=20.0), {"cpu_pressure": reading(20.0)}, CPU, When.GUILTY, SQUEEZED,
                 id="fell by half"),
    pytest.param(trying(**JUDGED, total=22.0), {"cpu_pressure": reading(20.0)}, CPU, When.EXONERATED, OPEN,
                 id="fell by less than half"),
    pytest.param(trying(**JUDGED, total=40.0), {"cpu_pressure": HARM}, CPU, When.EXONERATED, OPEN, id="did not fall"),
    pytest.param(trying(seconds=2.0), {}, CPU, When.CALLED_OFF, OPEN, id="signal lost during the experiment"),
    pytest.param(replace(trying(), case=None), {}, CPU, When.CALLED_OFF, OPEN, id="experiment without its case"),
    pytest.param(trying(seconds=1.0), SHORTAGE, CPU, When.CALLED_OFF, OPEN, id="emergency during the experiment"),
    pytest.param(stand(OPEN, MEMORY), {"memory_shortage": OVER}, MEMORY, When.ACCOUNTED, SQUEEZED,
                 id="above its bound"),
    pytest.param(stand(OPEN, MEMORY, by=()), {"pids_shortage": reading(95.0, bar=90.0)}, MEMORY, None, OPEN,
                 id="another stock"),
    pytest.param(stand(CLOSED, MEMORY, harm_s=4.0, by=helped(5.0, "memory_shortage")), {"memory_shortage": OVER},
                 MEMORY, When.LASTS, EVICTING, id="closed, and still above its bound after 5 s"),
    *(
        pytest.param(stand(rung, MEMORY), SHORTAGE, MEMORY, When.EMERGENCY, EVICTING, id=f"emergency, {rung}")
        for rung in (OPEN, SQUEEZED, CLOSED)
    ),
    pytest.param(trying(MEMORY, "memory_pressure"), SHORTAGE, MEMORY, When.EMERGENCY, EVICTING, id="emergency, tried"),
    pytest.param(stand(SQUEEZED, harm_s=8.0), {"cpu_pressure": HARM}, CPU, None, SQUEEZED, id="harm for 9 s"),
    pytest.param(stand(SQUEEZED, harm_s=9.0), {"cpu_pressure": HARM}, CPU, When.LASTS, CLOSED, id="harm for 10 s"),
    pytest.param(stand(SQUEEZED, harm_s=9.0), {"cpu_pressure": WITHIN_HYSTERESIS}, CPU, None, SQUEEZED,
                 id="within the hysteresis nothing gets stricter"),
    pytest.param(stand(SQUEEZED, calm_s=8.0), {"cpu_pressure": CALM}, CPU, None, SQUEEZED, id="calm for 9 s"),
    pytest.param(stand(SQUEEZED, calm_s=9.0), {"cpu_pressure": CALM}, CPU, When.CALM, OPEN, id="calm for 10 s"),
    pytest.param(stand(SQUEEZED, calm_s=9.0, share=0.5), {"cpu_pressure": CALM}, CPU, None, SQUEEZED,
                 id="calm, and not given back yet"),
    pytest.param(stand(SQUEEZED, calm_s=18.0, convictions=2), {"cpu_pressure": CALM}, CPU, None, SQUEEZED,
                 id="squeezed again: calm for 19 s"),
    pytest.param(stand(SQUEEZED, calm_s=19.0, convictions=2), {"cpu_pressure": CALM}, CPU, When.CALM, OPEN,
                 id="squeezed again: calm for 20 s"),
    pytest.param(stand(SQUEEZED, calm_s=9.5, silent_s=20.0), {}, CPU, None, SQUEEZED, id="silent for 21 s"),
    pytest.param(stand(SQUEEZED, calm_s=9.0, silent_s=29.0), {}, CPU, When.CALM, OPEN, id="silent for 30 s"),
    pytest.param(stand(CLOSED, calm_s=58.0, closings=1), {"cpu_pressure": CALM}, CPU, None, CLOSED, id="closed, 59 s"),
    pytest.param(stand(CLOSED, calm_s=59.0, closings=1), {"cpu_pressure": CALM}, CPU, When.CALM, SQUEEZED,
                 id="closed, calm for 60 s"),
    pytest.param(stand(CLOSED, calm_s=119.0, closings=3), {"cpu_pressure": CALM}, CPU, None, CLOSED,
                 id="closed a third time: calm for 120 s"),
    pytest.param(stand(CLOSED, calm_s=239.0, closings=3), {"cpu_pressure": CALM}, CPU, When.CALM, SQUEEZED,
                 id="closed a third time: calm for 240 s"),
    pytest.param(stand(CLOSED, calm_s=599.0, closings=9), {"cpu_pressure": CALM}, CPU, When.CALM, SQUEEZED,
                 id="closed often: calm for 10 minutes"),
    pytest.param(stand(CLOSED, harm_s=118.0, by=helped(15.0)), {"cpu_pressure": HARM}, CPU, None, CLOSED,
                 id="closed, harm for 119 s"),
    pytest.param(stand(CLOSED, harm_s=119.0, by=helped(15.0)), {"cpu_pressure": reading(15.0)}, CPU, When.LASTS,
                 EVICTING, id="closed, harm for 120 s"),
    pytest.param(stand(CLOSED, harm_s=119.0, by=helped(39.0)), {"cpu_pressure": HARM}, CPU, When.NO_HELP, OPEN,
                 id="closed, and the floor does not help"),
    pytest.param(stand(CLOSED, MEMORY, harm_s=4.0, by=helped(15.0, "memory_pressure")),
                 {"memory_pressure": reading(15.0)}, MEMORY, When.LASTS, EVICTING,
                 id="closed for memory, harm for 5 s"),
    pytest.param(stand(CLOSED, MEMORY, harm_s=4.0, by=helped(39.0, "memory_pressure")), {"memory_pressure": HARM},
                 MEMORY, When.NO_HELP, OPEN, id="closed for memory, and the floor does not help"),
    pytest.param(stand(EVICTING, MEMORY, by=helped(4.5, "memory_shortage")), {"memory_shortage": OVER}, MEMORY, None,
                 EVICTING, id="a stock comes back no sooner than pods go"),
    pytest.param(stand(CLOSED, IO, harm_s=119.0, by=helped(15.0, "io_pressure")), {"io_pressure": reading(15.0)}, IO,
                 When.LASTS, EVICTING, id="closed for IO, harm for 120 s"),
    pytest.param(stand(EVICTING, by=helped(15.0)), {"cpu_pressure": reading(15.0)}, CPU, None, EVICTING,
                 id="evicting goes on"),
    pytest.param(stand(EVICTING, by=helped(39.0)), {"cpu_pressure": HARM}, CPU, When.NO_HELP, OPEN,
                 id="evicting, and the floor does not help any more"),
    pytest.param(stand(EVICTING), {"cpu_pressure": WITHIN_HYSTERESIS}, CPU, None, EVICTING, id="evicting, hysteresis"),
    pytest.param(stand(EVICTING), {"cpu_pressure": reading(7.9)}, CPU, When.RELIEVED, CLOSED, id="below by 2 points"),
]  # fmt: skip


def row_of(transition):
    for row in TABLE:
        if transition.before in row.at and row.to is transition.after and starts_alike(row.reason, transition.reason):
            return row
    raise AssertionError(transition)


def starts_alike(template, text):
    """Whether the text is the template filled in: its longest constant part is in it."""
    parts = [part.rpartition("}")[2] for part in template.split("{")]
    return max(parts, key=len) in text


@pytest.mark.parametrize(("state", "readings", "resource", "when", "rung"), CASES)
def test_table_row_leads_where_it_says(state, readings, resource, when, rung):
    decision, after = step(Signals(101.0, readings, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert after.of(resource).rung is rung
    of_it = [one for one in decision.transitions if one.resource == resource]
    assert [row_of(one).when for one in of_it] == ([] if when is None else [when])


def test_table_is_covered_by_the_cases():
    reached = {(case.values[3], case.values[4]) for case in CASES if case.values[3]}
    assert reached == {(row.when, row.to) for row in TABLE}


@pytest.mark.parametrize(("state", "readings", "resource", "when", "rung"), CASES)
def test_reason_of_a_transition_is_a_filled_in_sentence(state, readings, resource, when, rung):
    decision, _ = step(Signals(101.0, readings, 3), state, BY_NAME, SETTINGS)
    for transition in decision.transitions:
        assert "{" not in transition.reason
        assert "None" not in transition.reason
        assert transition.signal in transition.reason


def test_reason_names_signal_value_and_bar():
    decision, _ = step(Signals(101.0, {"cpu_pressure": HARM}, 3), stand(OPEN), BY_NAME, SETTINGS)
    (transition,) = decision.transitions
    assert transition.reason == (
        "online's waiting for CPU (cpu_pressure) is at 40 %, above its bar of 10 %: the box's CPU is squeezed to its "
        "floor for 3 s, to see whether it is the cause"
    )


@pytest.mark.parametrize(
    ("rung", "share", "closed"),
    [(OPEN, None, False), (TRIED, 0.0, False), (SQUEEZED, 1.0, False), (CLOSED, 0.0, True), (EVICTING, 0.0, True)],
)
def test_rung_says_what_holds(rung, share, closed):
    state = trying() if rung is TRIED else stand(rung, by=helped(15.0)) if rung is EVICTING else stand(rung)
    decision, _ = step(Signals(100.0, {"cpu_pressure": reading(15.0, alarm=False)}, 3), state, BY_NAME, SETTINGS)
    assert decision.shares.get(CPU) == share
    assert bool(decision.closed) is closed


def test_squeeze_goes_to_the_prediction_at_once_and_then_towards_the_floor_and_slowly_back():
    state, shares = stand(SQUEEZED), []
    for second in range(60):
        value = reading(15.0) if second < 6 else CALM
        decision, state = step(Signals(100.0 + second, {"cpu_pressure": value}, 3), state, BY_NAME, SETTINGS)
        shares.append(decision.shares.get(CPU))
    assert shares[:6] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert shares[6:8] == pytest.approx([1 / 30, 2 / 30], abs=1e-4)
    assert shares[34:37] == [pytest.approx(29 / 30, abs=1e-4), pytest.approx(1.0, abs=1e-4), None]


# --- the experiment ---------------------------------------------------------------------------------------------------

PROBE = Detector("probe", "a service's own measure", "ms", 10.0, 2.0, (CPU, IO, MEMORY), hysteresis=2.0, most=1000.0)


class Node:
    """Signals that answer to the box: each of `causes` adds its part as far as the box's resource is not held back."""

    def __init__(self, causes, own=0.0, settings=SETTINGS, detectors=(PROBE,), pods=5):
        self.causes, self.own, self.pods = dict(causes), own, pods
        self.responder = Responder(settings, detectors)
        self.name = detectors[0].name
        self.t_s = 0.0
        self.shares: Mapping[str, float] = {}
        self.transitions, self.evictions, self.decisions = [], [], []

    def value(self):
        return self.own + sum(part * self.shares.get(resource, 1.5) / 1.5 for resource, part in self.causes.items())

    def run(self, seconds):
        for _ in range(seconds):
            self.t_s += 1.0
            decision = self.responder.tick(self.t_s, {self.name: self.value()}, self.pods)
            self.shares = decision.shares
            self.transitions += decision.transitions
            self.decisions.append(decision)
            if decision.eviction:
                self.evictions.append(self.t_s)
                self.responder.evicted((f"job-{len(self.evictions)}",))
        return self

    def path(self, resource=CPU):
        return [one.after for one in self.transitions if one.resource == resource]


def test_guilty_resource_alone_is_convicted():
    node = Node({IO: 60.0}).run(20)
    assert node.path(CPU) == [TRIED, OPEN]
    assert node.path(IO)[:2] == [TRIED, SQUEEZED]
    assert node.path(MEMORY) == []


def test_innocents_are_exonerated_and_given_back():
    node = Node({}, own=50.0).run(40)
    assert [node.path(one) for one in (CPU, IO, MEMORY)] == [[TRIED, OPEN]] * 3
    assert node.shares == {}
    assert node.evictions == []


def test_exoneration_of_all_suspects_doubles_the_bar_which_is_forgotten_by_half_in_10_minutes():
    node = Node({}, own=15.0)
    while not node.run(1).decisions[-1].exonerated:
        assert node.t_s < 30.0
    assert node.decisions[-1].exonerated == ("probe",)
    now_s = node.t_s
    assert node.responder.bars(now_s)["probe"] == pytest.approx(20.0, rel=0.01)
    assert node.responder.bars(now_s + 600.0)["probe"] == pytest.approx(15.0, rel=0.01)


def test_innocent_box_loses_almost_nothing_in_an_hour_of_steady_harm():
    node = Node({}, own=2000.0).run(3600)  # above what the bar can rise to
    for resource in (CPU, IO, MEMORY):
        held = sum(1 for one in node.decisions if resource in one.shares)
        assert 0.0 < held / 3600 < 0.05


def test_one_experiment_at_a_time():
    node = Node({IO: 60.0}, own=5.0).run(60)
    assert all(len(one.shares) <= 1 for one in node.decisions[:12])


def test_suspect_is_not_tried_while_another_resource_goes_to_its_floor():
    state = LadderState(100.0, {IO: RungState(SQUEEZED, 0.8, (Conviction("io_pressure", 40.0),), harm_s=1.0)})
    signals = Signals(101.0, {"io_pressure": reading(15.0), "cpu_pressure": HARM}, 3)
    _, state = step(signals, state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is OPEN
    signals = Signals(105.0, {"io_pressure": reading(15.0), "cpu_pressure": HARM}, 3)
    _, state = step(signals, state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is TRIED


@pytest.mark.parametrize(("pods", "over"), [(3, frozenset()), (0, BOUND_EXCEEDED)], ids=["within", "empty"])
def test_box_within_its_bound_or_empty_is_not_convicted_of_a_shortage(pods, over):
    signals = Signals(101.0, {"memory_shortage": OVER}, pods, over)
    _, state = step(signals, stand(OPEN, MEMORY), BY_NAME, SETTINGS)
    assert state.of(MEMORY).rung is OPEN


@pytest.mark.parametrize(("rung", "closings"), [(OPEN, 1), (SQUEEZED, 1), (CLOSED, 0)])
def test_emergency_closes_the_box_which_counts_as_a_closing(rung, closings):
    _, state = step(Signals(101.0, SHORTAGE, 3, BOUND_EXCEEDED), stand(rung, MEMORY), BY_NAME, SETTINGS)
    assert state.of(MEMORY).closings == closings


def test_shortage_is_not_the_boxs_any_more_once_it_is_within_its_bound():
    state = stand(EVICTING, MEMORY, by=(Conviction("memory_shortage", 4.5),))
    _, above = step(Signals(101.0, {"memory_shortage": OVER}, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    decision, within = step(Signals(101.0, {"memory_shortage": OVER}, 3), state, BY_NAME, SETTINGS)
    assert (above.of(MEMORY).rung, within.of(MEMORY).rung, decision.eviction) == (EVICTING, CLOSED, None)
    _, emergency = step(Signals(101.0, SHORTAGE, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert emergency.of(MEMORY).rung is EVICTING


def test_emergency_of_a_stock_takes_nothing_from_a_box_within_its_bound():
    decision, state = step(Signals(101.0, SHORTAGE, 3), LadderState(100.0), BY_NAME, SETTINGS)
    assert (decision, state.resources) == (LadderDecision({}, ""), {})


def test_what_holds_by_a_state_is_what_the_step_said_that_led_to_it():
    decision, state = step(Signals(101.0, SHORTAGE, 3, BOUND_EXCEEDED), LadderState(100.0), BY_NAME, SETTINGS)
    assert in_force(state, SETTINGS) == LadderDecision(decision.shares, decision.closed)
    assert decision.shares == {MEMORY: 0.0}
    assert "memory" in decision.closed


def test_empty_box_is_not_suspected():
    node = Node({}, own=50.0, pods=0).run(60)
    assert node.transitions == []


def test_first_second_of_an_experiment_does_not_count_as_signals_lag():
    state = trying()
    for t_s, value in ((101.0, 40.0), (102.0, 19.0), (103.0, 19.0)):
        _, state = step(Signals(t_s, {"cpu_pressure": reading(value)}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is SQUEEZED


def test_memory_is_tried_for_as_long_as_online_needs_to_read_its_pages_again():
    state, detector = trying(MEMORY, "refaults"), {"refaults": reading(4000.0, bar=500.0)}
    state = replace(state, case=replace(state.case, before=4000.0))
    rungs = []
    for second in range(1, 11):
        if second == 6:
            detector = {"refaults": reading(300.0, bar=500.0)}
        _, state = step(Signals(100.0 + second, detector, 3), state, BY_NAME, SETTINGS)
        rungs.append(state.of(MEMORY).rung)
    assert rungs == [TRIED] * 9 + [SQUEEZED]


def test_resource_without_an_experiment_is_passed_over_and_judged_by_account_alone():
    untried = tuple(replace(one, trial_s=None) if one.name == MEMORY else one for one in SETTINGS.resources)
    settings = replace(SETTINGS, resources=untried)
    signals = {"memory_pressure": HARM}
    _, state = step(Signals(101.0, signals, 3), LadderState(100.0), BY_NAME, settings)
    assert (state.of(MEMORY).rung, state.of(IO).rung) == (OPEN, TRIED)
    signals = {"memory_shortage": OVER}
    _, state = step(Signals(101.0, signals, 3, BOUND_EXCEEDED), LadderState(100.0), BY_NAME, settings)
    assert state.of(MEMORY).rung is SQUEEZED


def test_experiment_that_is_none_any_more_by_the_settings_is_called_off():
    untried = tuple(replace(one, trial_s=None) for one in SETTINGS.resources)
    _, state = step(Signals(101.0, {"cpu_pressure": HARM}, 3), trying(), BY_NAME, replace(SETTINGS, resources=untried))
    assert (state.of(CPU).rung, state.case) == (OPEN, None)


def test_nothing_is_given_back_by_calm_while_another_resource_is_tried():
    calm = stand(SQUEEZED, IO, calm_s=60.0).of(IO)
    state = replace(trying(), resources={CPU: trying().of(CPU), IO: calm})
    signals = {"cpu_pressure": HARM, "io_pressure": CALM}
    for t_s, expected in ((101.0, (TRIED, SQUEEZED)), (102.0, (TRIED, SQUEEZED)), (103.0, (OPEN, OPEN))):
        _, state = step(Signals(t_s, signals, 3), state, BY_NAME, SETTINGS)
        assert (state.of(CPU).rung, state.of(IO).rung) == expected


def test_nothing_goes_towards_the_floor_while_another_resource_is_tried():
    state = replace(trying(), resources={CPU: trying().of(CPU), IO: stand(SQUEEZED, IO).of(IO)})
    for t_s, share in ((101.0, 1.0), (102.0, 1.0), (103.0, 1.0), (104.0, 0.8)):
        decision, state = step(Signals(t_s, {"cpu_pressure": HARM, "io_pressure": HARM}, 3), state, BY_NAME, SETTINGS)
        assert decision.shares[IO] == share


def test_what_is_proved_by_account_needs_no_experiment():
    readings = {"memory_shortage": OVER, "memory_pressure": HARM}
    decision, state = step(Signals(101.0, readings, 3, BOUND_EXCEEDED), LadderState(100.0), BY_NAME, SETTINGS)
    assert (state.of(MEMORY).rung, state.of(IO).rung) == (SQUEEZED, TRIED)
    assert [one.signal for one in decision.transitions] == ["memory_shortage", "memory_pressure"]


def test_nothing_is_acquitted_in_an_emergency():
    detectors = {**BY_NAME, "urgent": replace(PROBE, name="urgent", emergency=2000.0)}
    signals = {"cpu_pressure": HARM, "urgent": reading(3000.0, bar=10.0, emergency=True)}
    decision, state = step(Signals(101.0, signals, 3), stand(EVICTING, by=helped(39.0)), detectors, SETTINGS)
    assert state.of(CPU).rung is EVICTING
    assert decision.eviction.emergency


def test_shortage_that_is_over_does_not_keep_the_box_from_being_acquitted_of_what_goes_on():
    """It was an emergency, and the box is back within its bound: online thrashes by itself."""
    by = (Conviction("memory_shortage", 5.5, 1.0), *helped(39.0, "memory_pressure"))
    signals = {"memory_pressure": HARM, "memory_shortage": OVER}
    decision, state = step(Signals(101.0, signals, 3), stand(EVICTING, MEMORY, by=by), BY_NAME, SETTINGS)
    assert (state.of(MEMORY).rung, decision.eviction) == (OPEN, None)
    assert decision.exonerated == ("memory_pressure",)
    assert "memory_pressure" in decision.transitions[0].reason


def test_shortage_that_goes_on_needs_no_proof_by_another_signal():
    by = (Conviction("memory_shortage", 5.5, 1.0), *helped(39.0, "memory_pressure"))
    signals = {"memory_pressure": HARM, "memory_shortage": OVER}
    _, state = step(Signals(101.0, signals, 3, BOUND_EXCEEDED), stand(EVICTING, MEMORY, by=by), BY_NAME, SETTINGS)
    assert state.of(MEMORY).rung is EVICTING


@pytest.mark.parametrize(("emergency_s", "rung"), [(10.0, OPEN), (20.0, TRIED)], ids=["begins", "lasts"])
def test_emergency_keeps_experiments_from_being_made_at_its_beginning_alone(emergency_s, rung):
    state = replace(stand(EVICTING, MEMORY), emergency_s=emergency_s, evictions=gone(6))
    signals = {**SHORTAGE, "cpu_pressure": HARM}
    _, state = step(Signals(101.0, signals, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is rung
    _, state = step(Signals(102.0, signals, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is rung
    assert state.emergency_s == emergency_s + 2.0
    _, state = step(Signals(103.0, {}, 3), state, BY_NAME, SETTINGS)
    assert state.emergency_s == 0.0


@pytest.mark.parametrize(("pods", "kept"), [(0, False), (3, True)], ids=["empty", "with-pods"])
def test_empty_box_that_nothing_is_held_of_begins_anew(pods, kept):
    case = Case("cpu_pressure", exonerated=(CPU,))
    before = LadderState(100.0, case=case, pauses={"cpu_pressure": 200.0}, fruitless={"cpu_pressure": 3})
    _, after = step(Signals(101.0, {"cpu_pressure": CALM}, pods), before, BY_NAME, SETTINGS)
    assert (bool(after.pauses), bool(after.fruitless)) == (kept, kept)
    assert after.case is None


def test_acquitted_resource_is_at_rest_and_the_bar_doubles():
    state = stand(CLOSED, harm_s=119.0, by=helped(39.0), convictions=3, closings=2)
    decision, state = step(Signals(101.0, {"cpu_pressure": HARM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU) == RungState()
    assert decision.exonerated == ("cpu_pressure",)


def test_resource_is_not_acquitted_of_one_signal_while_squeezing_helps_another():
    by = (*helped(39.0), Conviction("service_check", 400.0, 115.0))
    signals = {"cpu_pressure": HARM, "service_check": reading(115.0, bar=100.0)}
    _, state = step(Signals(101.0, signals, 3), stand(CLOSED, harm_s=119.0, by=by), BY_NAME, SETTINGS)
    assert state.of(CPU).rung is EVICTING


def test_false_conviction_is_revised_before_a_pod_goes():
    node = Node({}, own=50.0).run(3)
    assert node.path() == [TRIED]
    node.own = 5.0  # falls by itself during the experiment, and comes back
    node.run(4)
    node.own = 50.0
    node.run(150)
    assert node.path()[:4] == [TRIED, SQUEEZED, CLOSED, OPEN]
    assert node.evictions == []


def test_pod_goes_for_memory_only_where_its_floor_helps_once_the_box_was_reclaimed_to_it():
    """Online reads its pages again for some seconds after the box has its floor; who thrashes by itself goes on."""
    for later, rung in ((15.0, EVICTING), (40.0, OPEN)):
        state = replace(stand(SQUEEZED, MEMORY, harm_s=5.0, share=0.2), case=None)
        for second in range(1, 12):
            value = 40.0 if second <= 6 else later
            _, state = step(Signals(100.0 + second, {"memory_pressure": reading(value)}, 3), state, BY_NAME, SETTINGS)
        assert state.of(MEMORY).rung is rung


def test_harm_that_comes_back_with_what_is_given_back_comes_back_more_and_more_rarely():
    """As with page cache: a box that is a little above its floor fills all memory, and online must read again."""
    state, harmful = stand(SQUEEZED, MEMORY), list[bool]()
    for second in range(3600):
        harms = state.of(MEMORY).share > 0.1 or any(harmful[-3:])
        harmful.append(state.of(MEMORY).share > 0.1)
        value = HARM if harms else CALM
        _, state = step(Signals(101.0 + second, {"memory_pressure": value}, 3), state, BY_NAME, SETTINGS)
        assert state.of(MEMORY).rung is SQUEEZED
    hours = [sum(harmful[at : at + 600]) for at in range(0, 3600, 600)]
    assert hours[0] > hours[-1]
    assert sum(hours[1:]) < 0.01 * 3000


def test_lasting_harm_of_the_box_climbs_all_rungs_and_comes_back():
    # Its floor does not suffice, as when one tenth of what a pod does can't be held back.
    node = Node({CPU: 60.0}, own=12.0).run(160)
    assert node.path() == [TRIED, SQUEEZED, CLOSED, EVICTING]
    assert len(node.evictions) >= 1
    node.own, node.causes = 0.0, {}
    node.run(160)
    assert node.path() == [TRIED, SQUEEZED, CLOSED, EVICTING, CLOSED, SQUEEZED, OPEN]


def test_calm_needed_doubles_up_to_ten_minutes():
    needed = [doubled_s(SETTINGS.closed_calm_s, times, SETTINGS.longest_calm_s) for times in range(8)]
    assert needed == [60.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 600.0]


def test_open_for_half_an_hour_forgets_how_often_it_was_convicted():
    state = LadderState(100.0, {CPU: RungState(convictions=3, closings=2, open_s=1799.5)})
    _, state = step(Signals(101.0, {"cpu_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU) == RungState()


# --- evictions --------------------------------------------------------------------------------------------------------


def evicting(**state):
    return replace(stand(EVICTING, MEMORY), **state)


def gone(pods, first_s=0):
    return tuple(PastEviction(first_s + n) for n in range(pods))


@pytest.mark.parametrize(
    ("state", "readings", "ordered"),
    [
        pytest.param({}, {"memory_pressure": HARM}, True, id="the first"),
        pytest.param({"ordered_s": 92.0}, {"memory_pressure": HARM}, False, id="after 9 s"),
        pytest.param({"ordered_s": 91.0}, {"memory_pressure": HARM}, True, id="after 10 s"),
        pytest.param({"ordered_s": 100.0}, SHORTAGE, False, id="emergency after 1 s"),
        pytest.param({"ordered_s": 99.0}, SHORTAGE, True, id="emergency after 2 s"),
        pytest.param({"evictions": gone(4)}, {"memory_pressure": HARM}, False,
                     id="four in ten minutes: two of six are an emergency's"),
        pytest.param({"evictions": gone(3)}, {"memory_pressure": HARM}, True, id="three in ten minutes"),
        pytest.param({"evictions": gone(4)}, SHORTAGE, True, id="four in ten minutes, for an emergency"),
        pytest.param({"evictions": gone(6)}, SHORTAGE, False, id="six in ten minutes, for an emergency as well"),
        pytest.param({"evictions": gone(4, first_s=-499)}, {"memory_pressure": HARM}, True,
                     id="one of four is older"),
    ],
)  # fmt: skip
def test_budget_of_evictions(state, readings, ordered):
    decision, _ = step(Signals(101.0, readings, 3, BOUND_EXCEEDED), evicting(**state), BY_NAME, SETTINGS)
    assert (decision.eviction is not None) is ordered


@pytest.mark.parametrize(("most", "others"), [(6, 4), (3, 1), (2, 1), (1, 1)])
def test_emergencies_keep_two_of_the_budget_and_others_have_one_at_least(most, others):
    budget = Budget(most=most)
    assert (budget.of(emergency=True), budget.of(emergency=False)) == (most, others)


def test_emergency_waits_no_longer_than_others_where_these_wait_less():
    assert Budget(pause_s=1.0).pause(emergency=True) == 1.0


@pytest.mark.parametrize(
    ("over", "pressure", "signal"),
    [
        pytest.param(BOUND_EXCEEDED, HARM, "memory_shortage", id="above its bound"),
        pytest.param(frozenset(), HARM, "memory_pressure", id="within its bound"),
    ],
)
def test_pod_goes_by_the_shortage_first_which_has_a_setting_of_its_own(over, pressure, signal):
    by = (Conviction("memory_pressure", 80.0), Conviction("memory_shortage", 4.5))
    readings = {"memory_pressure": pressure, "memory_shortage": OVER}
    decision, _ = step(Signals(101.0, readings, 3, over), stand(EVICTING, MEMORY, by=by), BY_NAME, SETTINGS)
    assert decision.eviction.signal == signal


def test_owner_of_a_pod_that_went_is_barred_for_a_minute():
    fallen = {"memory_pressure": reading(15.0)}
    _, state = step(Signals(101.0, fallen, 3), evicting(), BY_NAME, SETTINGS)
    state = evicted(state, ("job-1", "uid-1"))
    for t_s, barred in ((121.0, {"job-1", "uid-1"}), (162.0, set())):
        decision, _ = step(Signals(t_s, fallen, 3), state, BY_NAME, SETTINGS)
        assert decision.eviction.barred == barred
    decision, _ = step(Signals(121.0, SHORTAGE, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert (decision.eviction.emergency, decision.eviction.barred) == (True, set())


def test_order_for_which_nobody_went_does_not_count_but_its_pause_does():
    _, state = step(Signals(101.0, {"memory_pressure": HARM}, 3), evicting(), BY_NAME, SETTINGS)
    state = not_evicted(state)
    assert state.evictions == ()
    decision, _ = step(Signals(105.0, {"memory_pressure": HARM}, 3), state, BY_NAME, SETTINGS)
    assert decision.eviction is None


def test_emergency_orders_at_once_from_open():
    decision, _ = step(Signals(101.0, SHORTAGE, 3, BOUND_EXCEEDED), LadderState(100.0), BY_NAME, SETTINGS)
    assert decision.eviction.emergency
    assert decision.eviction.resource == MEMORY


def over_for(seconds, state=None, pods=3, **readings):
    """So long the box holds more memory than its bound that can't be reclaimed; what was ordered, by when."""
    state, orders = state or LadderState(100.0), {}
    for second in range(seconds + 1):
        signals = Signals(101.0 + second, readings, pods, irreducible={MEMORY: "too much of it"})
        decision, state = step(signals, state, BY_NAME, SETTINGS)
        if decision.eviction:
            orders[second] = decision.eviction
    return orders, state


def test_pod_goes_where_the_box_is_above_its_bound_by_what_can_not_be_taken_back():
    orders, state = over_for(16)
    assert list(orders) == [5, 15]
    assert (orders[5].resource, orders[5].signal, orders[5].emergency) == (MEMORY, "", False)
    assert orders[5].reason == "too much of it, for 5 s by now"
    assert state.of(MEMORY).rung is OPEN, "nobody is harmed"


def test_pod_goes_for_harm_before_it_does_for_what_can_not_be_taken_back():
    state = replace(stand(EVICTING, CPU), irreducible_s={MEMORY: 9.0})
    signals = Signals(101.0, {"cpu_pressure": HARM}, 3, irreducible={MEMORY: "too much of it"})
    decision, _ = step(signals, state, BY_NAME, SETTINGS)
    assert (decision.eviction.resource, decision.eviction.signal) == (CPU, "cpu_pressure")


def test_what_can_not_be_taken_back_keeps_to_the_budget_and_to_its_own_time():
    assert len(over_for(590)[0]) == 4, "two of six are an emergency's"
    assert over_for(30, pods=0)[0] == {}
    _, state = over_for(4)
    _, state = step(Signals(106.0, {}, 3), state, BY_NAME, SETTINGS)
    assert over_for(4, replace(state, t_s=100.0))[0] == {}, "it begins anew"


def test_nobody_is_ordered_out_of_an_empty_box():
    decision, state = step(Signals(101.0, SHORTAGE, 0), LadderState(100.0), BY_NAME, SETTINGS)
    assert (decision.eviction, decision.transitions, state.of(MEMORY).rung) == (None, (), OPEN)


# --- properties -------------------------------------------------------------------------------------------------------

TRACED = ("memory_shortage", "cpu_pressure", "memory_pressure", "io_pressure", "service_check")


def episodes(name):
    """A signal over some time: levels, each for some steps; None: it is not reported.

    Some are as harm of the box is seen: they fall when it is squeezed, and stay above the bar, or rise again.
    """
    detector = BY_NAME[name]
    above = detector.threshold - detector.rest
    most = detector.rest + 4.0 * above
    level = st.floats(detector.rest, most) | st.sampled_from([detector.rest, detector.rest + 1.01 * above, most])
    any_level = st.tuples(st.none() | level, st.integers(1, 40)).map(lambda one: [one])
    first, fallen = (most, int(detector.hold_s) + 1), detector.rest + 1.3 * above
    lasting = st.integers(140, 200).map(lambda steps: [first, (fallen, steps)])
    rising = st.integers(140, 200).map(lambda steps: [first, (fallen, 3), (most, steps)])
    parts = st.lists(any_level | any_level | lasting | rising, min_size=1, max_size=4)
    return parts.map(lambda parts: [one for part in parts for one in part])


@st.composite
def traces(draw):
    """Steps of seconds: values by detector, pods, and of what the box is above its bound, and irreducibly."""
    courses = {
        name: [value for value, steps in draw(episodes(name)) for _ in range(steps)]
        for name in draw(st.sets(st.sampled_from(TRACED), min_size=1))
    }
    pods = draw(st.sampled_from([0, 1, 30, 30, 30]))
    over = draw(st.sampled_from([frozenset(), frozenset({MEMORY})]))
    stuck = draw(st.sampled_from([{}, {}, {MEMORY: "too much of it"}]))
    pace = draw(st.sampled_from([1.0, 1.0, 1.0, 0.5, 3.0, 8.0]))
    jumps = draw(st.lists(st.tuples(st.integers(0, 100), st.sampled_from([-5.0, 0.0, 60.0, 700.0])), max_size=3))
    t_s, moments = 1000.0, []
    for i in range(max(map(len, courses.values()))):
        t_s += pace + sum(by for at, by in jumps if at == i)
        values = {name: course[i] for name, course in courses.items() if i < len(course) and course[i] is not None}
        moments.append((t_s, values, pods, over, stuck if i % 50 else {}))
    return moments


def unchanged(responder):
    return responder


def ladder_restarted(responder):
    """The same, with a ladder that was written and read: nothing of it is another, nor in another order."""
    before = responder.ladder
    text = msgspec.json.encode(before)
    responder.load(ResponderState({}, msgspec.json.decode(text, type=LadderState)))
    assert responder.ladder == before
    assert msgspec.json.encode(responder.ladder) == text
    return responder


def restarted(responder):
    """A new one, from what this one wrote."""
    text = msgspec.json.encode(responder.state())
    json.loads(text, parse_constant=pytest.fail)
    again = Responder(SETTINGS)
    again.load(msgspec.json.decode(text, type=ResponderState))
    return again


def played(trace, between=unchanged):
    """The decisions, and the responder at the end; `between` says what becomes of it after each step."""
    responder, decisions = Responder(SETTINGS), list[LadderDecision]()
    for t_s, values, pods, over, stuck in trace:
        decision = responder.tick(t_s, values, pods, over, irreducible=stuck)
        if decision.eviction:
            responder.evicted((f"owner-{len(decisions) % 7}",))
        decisions.append(decision)
        responder = between(responder)
    return decisions, responder


def assert_within_budget(trace, decisions):
    budget = Budget()
    latest, went = -math.inf, []
    for (t_s, _, pods, *_), decision in zip(trace, decisions, strict=True):
        latest = max(latest, t_s)
        if decision.eviction:
            went.append((latest, decision.eviction.emergency))
            assert pods
            assert decision.closed or not decision.eviction.signal
    for (before_s, _), (after_s, emergency) in pairwise(went):
        assert after_s - before_s >= (budget.emergency_pause_s if emergency else budget.pause_s)
    for at, (last_s, emergency) in enumerate(went):
        within = [s for s, _ in went[: at + 1] if last_s - s < budget.window_s]
        assert len(within) <= budget.of(emergency=emergency)


def assert_calm_leads_to_open(trace, responder):
    t_s = max(t_s for t_s, *_ in trace)
    calm = {name: BY_NAME[name].rest for name in TRACED}
    for _ in range(1300):
        t_s += 1.0
        decision = responder.tick(t_s, calm, 30)
        if not decision.shares:
            break
    assert (decision.shares, decision.closed, decision.eviction) == ({}, "", None)
    assert all(one.rung is OPEN for one in responder.ladder.resources.values())


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(traces())
def test_any_signals_keep_the_invariants(trace):
    """All three of one trace, which is long to play. What is the same after each restart goes on the same."""
    decisions, responder = played(trace, ladder_restarted)
    assert_within_budget(trace, decisions)
    before = responder.state()
    assert ladder_restarted(responder).state() == before
    assert_calm_leads_to_open(trace, responder)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(traces())
def test_responder_that_is_restarted_at_every_step_goes_on_the_same(trace):
    straight, responder = played(trace)
    again, after = played(trace, restarted)
    assert again == straight
    assert after.state() == responder.state()


@settings(max_examples=100, deadline=None)
@given(traces())
def test_each_transition_is_a_row_and_nothing_holds_without_a_reason(trace):
    decisions, _ = played(trace)
    rungs: dict[str, Rung] = {}
    for decision in decisions:
        for one in decision.transitions:
            assert rungs.get(one.resource, OPEN) is one.before
            assert row_of(one)
            rungs[one.resource] = one.after
        assert set(decision.shares) == {name for name, rung in rungs.items() if rung is not OPEN}
        assert all(0.0 <= share <= 1.0 for share in decision.shares.values())
        assert bool(decision.closed) is any(rung in (CLOSED, EVICTING) for rung in rungs.values())


def test_state_moves_to_another_clock():
    _, state = step(Signals(101.0, {"memory_pressure": HARM}, 3), evicting(), BY_NAME, SETTINGS)
    moved = shifted(state, -50.0)
    assert (moved.t_s, moved.ordered_s, moved.evictions) == (51.0, 51.0, (PastEviction(51.0),))
    assert moved.resources == state.resources


@pytest.mark.parametrize("gap_s", [1.0, 30.0, 3600.0])
def test_gap_in_the_samples_counts_neither_as_calm_nor_as_harm(gap_s):
    state = stand(CLOSED, calm_s=30.0, closings=1)
    _, state = step(Signals(100.0 + gap_s, {"cpu_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is CLOSED
    assert state.of(CPU).calm_s <= 35.0
