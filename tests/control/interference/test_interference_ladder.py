"""The ladder: its table as data, the experiment, the budget of evictions, and what holds of any signals."""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.interference.detectors import (
    DETECTORS,
    FIRST_PATIENCE_S,
    IO,
    Assessment,
    Detector,
    Monitor,
    OnlineUse,
    by_name,
    queueing_percent,
)
from criproxy.control.interference.ladder import (
    ALL,
    TABLE,
    Budget,
    Case,
    Hold,
    HoldMode,
    LadderDecision,
    LadderSettings,
    LadderState,
    Mean,
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


def stand(rung, resource=CPU, signal=None, held=None, **clocks):
    """A state in which this resource stands there: by an experiment, unless its signal is a stock."""
    signal = signal or f"{resource}_pressure"
    given: dict[str, Any] = {}
    if rung in (SQUEEZED, CLOSED, EVICTING):
        given = {"signal": signal, "share": 0.0 if rung is not SQUEEZED else 1.0}
        if not BY_NAME[signal].stock:
            given["held"] = Hold(**{"wait_s": 5.0, "look_s": 5.0} | (held or {}))
    return LadderState(100.0, {resource: RungState(rung, **given | clocks)})


def trying(resource=CPU, detector="cpu_pressure", **case):
    """An experiment whose phase of 2 s is 1 s old; the signal was at 40 before."""
    given: dict[str, Any] = {"before": 40.0, "age_s": 1.0, "long_s": 2.0, "seen": 1, "high": Mean(80.0, 2)}
    return replace(stand(TRIED, resource), case=Case(detector, on=resource, **given | case))


def low(*values):
    return Mean(sum(values), len(values))


PROVED = {"returns": 1}
BOUND_EXCEEDED = frozenset({MEMORY})
OVER = reading(98.5, bar=98.0)
SHORTAGE = {"memory_shortage": reading(99.5, bar=98.0, emergency=True)}
BY_SHORTAGE = {"signal": "memory_shortage"}

CASES = [
    pytest.param(stand(OPEN), {"cpu_pressure": HARM}, CPU, When.ACCUSED, TRIED, id="alarm"),
    pytest.param(stand(OPEN), {"cpu_pressure": reading(40.0, alarm=False)}, CPU, None, OPEN, id="not held yet"),
    pytest.param(stand(OPEN), {"cpu_pressure": CALM}, CPU, None, OPEN, id="calm"),
    pytest.param(stand(OPEN), {}, CPU, None, OPEN, id="no signal at all"),
    pytest.param(replace(stand(OPEN), pauses={"cpu_pressure": 5.0}), {"cpu_pressure": HARM}, CPU, None, OPEN,
                 id="the detector pauses"),
    pytest.param(replace(stand(OPEN), spent_s={CPU: 31.0}), {"cpu_pressure": HARM}, CPU, None, OPEN,
                 id="its budget for experiments is spent"),
    pytest.param(replace(stand(OPEN, guilty=True), spent_s={CPU: 31.0}), {"cpu_pressure": HARM}, CPU, When.ACCUSED,
                 TRIED, id="and is larger where the box was surely guilty"),
    pytest.param(trying(age_s=0.5), {"cpu_pressure": HARM}, CPU, None, TRIED, id="squeeze goes on"),
    pytest.param(trying(), {"cpu_pressure": reading(4.0)}, CPU, None, TRIED, id="a fall alone convicts nobody"),
    pytest.param(trying(squeezed=False, returns=0), {"cpu_pressure": reading(30.0)}, CPU, None, TRIED,
                 id="it comes back"),
    pytest.param(trying(squeezed=False, age_s=2.0), {"cpu_pressure": reading(15.0)}, CPU, When.ENDED, OPEN,
                 id="it does not come back"),
    pytest.param(trying(squeezed=False, age_s=1.0), {"cpu_pressure": reading(15.0)}, CPU, None, TRIED,
                 id="it may still come back"),
    pytest.param(trying(returns=1, low=low(4.0)), {"cpu_pressure": reading(4.0)}, CPU, When.GUILTY, SQUEEZED,
                 id="fell, came back and fell"),
    pytest.param(trying(returns=6, low=low(20.0)), {"cpu_pressure": reading(20.0)}, CPU, When.GUILTY, SQUEEZED,
                 id="by half, six times"),
    pytest.param(trying(returns=1, low=low(20.0)), {"cpu_pressure": reading(24.0)}, CPU, None, TRIED,
                 id="by about half: once more"),
    pytest.param(trying(returns=6, low=low(24.0)), {"cpu_pressure": reading(24.0)}, CPU, When.KEPT, OPEN,
                 id="by less than half, six times"),
    pytest.param(trying(), {"cpu_pressure": HARM}, CPU, When.KEPT, OPEN, id="did not fall"),
    pytest.param(trying(seen=0), {}, CPU, When.CALLED_OFF, OPEN, id="signal lost during the experiment"),
    pytest.param(replace(trying(), case=None), {}, CPU, When.CALLED_OFF, OPEN, id="experiment without its case"),
    pytest.param(trying(), SHORTAGE, CPU, When.CALLED_OFF, OPEN, id="emergency during the experiment"),
    pytest.param(stand(OPEN, MEMORY), {"memory_shortage": OVER}, MEMORY, When.ACCOUNTED, SQUEEZED,
                 id="above its bound"),
    pytest.param(stand(OPEN, MEMORY), {"pids_shortage": reading(95.0, bar=90.0)}, MEMORY, None, OPEN,
                 id="another stock"),
    pytest.param(stand(CLOSED, MEMORY, harm_s=4.0, **BY_SHORTAGE), {"memory_shortage": OVER}, MEMORY, When.LASTS,
                 EVICTING, id="closed, and still above its bound after 5 s"),
    *(
        pytest.param(stand(rung, MEMORY), SHORTAGE, MEMORY, When.EMERGENCY, EVICTING, id=f"emergency, {rung}")
        for rung in (OPEN, SQUEEZED, CLOSED)
    ),
    pytest.param(trying(MEMORY, "memory_pressure"), SHORTAGE, MEMORY, When.EMERGENCY, EVICTING, id="emergency, tried"),
    pytest.param(stand(SQUEEZED, held=PROVED, harm_s=8.0), {"cpu_pressure": HARM}, CPU, None, SQUEEZED,
                 id="harm for 9 s"),
    pytest.param(stand(SQUEEZED, held=PROVED, harm_s=9.0), {"cpu_pressure": HARM}, CPU, When.LASTS, CLOSED,
                 id="harm for 10 s"),
    pytest.param(stand(SQUEEZED, harm_s=9.0), {"cpu_pressure": HARM}, CPU, None, SQUEEZED,
                 id="harm for 10 s that was not seen to return with the box"),
    pytest.param(stand(SQUEEZED, held=PROVED, harm_s=9.0), {"cpu_pressure": WITHIN_HYSTERESIS}, CPU, None, SQUEEZED,
                 id="within the hysteresis nothing gets stricter"),
    pytest.param(stand(SQUEEZED, held={"innocent": 2}), {"cpu_pressure": HARM}, CPU, When.NO_HELP, OPEN,
                 id="twice another's"),
    pytest.param(stand(SQUEEZED, held={"mode": HoldMode.PROBE, "at": ALL, "age_s": 1.0}), {"cpu_pressure": CALM}, CPU,
                 None, SQUEEZED, id="probed for 2 s"),
    pytest.param(stand(SQUEEZED, held={"mode": HoldMode.PROBE, "at": ALL, "age_s": 2.0}), {"cpu_pressure": CALM}, CPU,
                 When.CALM, OPEN, id="calm at open for 3 s"),
    pytest.param(stand(SQUEEZED, MEMORY, calm_s=8.0, **BY_SHORTAGE), {"memory_shortage": CALM}, MEMORY, None, SQUEEZED,
                 id="by account, calm for 9 s"),
    pytest.param(stand(SQUEEZED, MEMORY, calm_s=9.0, **BY_SHORTAGE), {"memory_shortage": CALM}, MEMORY, When.CALM, OPEN,
                 id="by account, calm for 10 s"),
    pytest.param(stand(SQUEEZED, MEMORY, calm_s=9.0, share=0.5, **BY_SHORTAGE), {"memory_shortage": CALM}, MEMORY, None,
                 SQUEEZED, id="by account, calm, and not given back yet"),
    pytest.param(stand(SQUEEZED, MEMORY, calm_s=18.0, convictions=2, **BY_SHORTAGE), {"memory_shortage": CALM}, MEMORY,
                 None, SQUEEZED, id="by account again: calm for 19 s"),
    pytest.param(stand(SQUEEZED, MEMORY, calm_s=9.5, silent_s=20.0, **BY_SHORTAGE), {}, MEMORY, None, SQUEEZED,
                 id="by account, silent for 21 s"),
    pytest.param(stand(SQUEEZED, MEMORY, calm_s=9.0, silent_s=29.0, **BY_SHORTAGE), {}, MEMORY, When.CALM, OPEN,
                 id="by account, silent for 30 s"),
    pytest.param(stand(CLOSED, calm_s=58.0, closings=1), {"cpu_pressure": CALM}, CPU, None, CLOSED, id="closed, 59 s"),
    pytest.param(stand(CLOSED, calm_s=59.0, closings=1), {"cpu_pressure": CALM}, CPU, When.CALM, SQUEEZED,
                 id="closed, calm for 60 s"),
    pytest.param(stand(CLOSED, calm_s=119.0, closings=3), {"cpu_pressure": CALM}, CPU, None, CLOSED,
                 id="closed a third time: calm for 120 s"),
    pytest.param(stand(CLOSED, calm_s=599.0, closings=9), {"cpu_pressure": CALM}, CPU, When.CALM, SQUEEZED,
                 id="closed often: calm for 10 minutes"),
    pytest.param(stand(CLOSED, held=PROVED, harm_s=118.0), {"cpu_pressure": HARM}, CPU, None, CLOSED,
                 id="closed, harm for 119 s"),
    pytest.param(stand(CLOSED, held=PROVED, harm_s=119.0), {"cpu_pressure": HARM}, CPU, When.LASTS, EVICTING,
                 id="closed, harm for 120 s"),
    pytest.param(stand(CLOSED, harm_s=119.0), {"cpu_pressure": HARM}, CPU, None, CLOSED,
                 id="nobody goes for what did not return with the box"),
    pytest.param(stand(CLOSED, MEMORY, held=PROVED, harm_s=30.0), {"memory_pressure": HARM}, MEMORY, None, CLOSED,
                 id="5 s are the shortage's alone"),
    pytest.param(stand(CLOSED, MEMORY, held=PROVED, harm_s=119.0), {"memory_pressure": HARM}, MEMORY, When.LASTS,
                 EVICTING, id="closed for memory, harm for 120 s"),
    pytest.param(stand(CLOSED, held={"innocent": 2} | PROVED), {"cpu_pressure": HARM}, CPU, When.NO_HELP, OPEN,
                 id="closed, and twice another's"),
    pytest.param(stand(EVICTING, held={"innocent": 2} | PROVED), {"cpu_pressure": HARM}, CPU, When.NO_HELP, OPEN,
                 id="evicting, and twice another's"),
    pytest.param(stand(EVICTING, MEMORY, **BY_SHORTAGE), {"memory_shortage": OVER}, MEMORY, None, EVICTING,
                 id="a stock comes back no sooner than pods go"),
    pytest.param(stand(EVICTING), {"cpu_pressure": reading(15.0)}, CPU, None, EVICTING, id="evicting goes on"),
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


@pytest.mark.parametrize(("rung", "harm_s", "words"), [
    (SQUEEZED, 9.0, "is at 40 %, after 10 s of harm with the box's CPU held back: no new offline pod"),
    (CLOSED, 119.0, "is at 40 %, after 120 s of harm with the box closed: one pod goes"),
])  # fmt: skip
def test_reason_says_how_long_harm_has_lasted_and_not_how_long_the_box_is_there(rung, harm_s, words):
    state = stand(rung, held=PROVED, harm_s=harm_s)
    decision, _ = step(Signals(101.0, {"cpu_pressure": HARM}, 3), state, BY_NAME, SETTINGS)
    (transition,) = decision.transitions
    assert transition.reason == f"online's waiting for CPU (cpu_pressure) {words}"


def test_reason_names_signal_value_and_bar():
    decision, _ = step(Signals(101.0, {"cpu_pressure": HARM}, 3), stand(OPEN), BY_NAME, SETTINGS)
    (transition,) = decision.transitions
    assert transition.reason == (
        "online's waiting for CPU (cpu_pressure) is at 40 %, above its bar of 10 %: the box's CPU is squeezed to its "
        "floor, given back, and squeezed again, to see whether it is the cause"
    )


RETURNED = trying(squeezed=False, age_s=0.0)
PROBED = stand(SQUEEZED, held={"mode": HoldMode.PROBE, "at": ALL})


@pytest.mark.parametrize(
    ("state", "share", "closed"),
    [
        pytest.param(stand(OPEN), None, False, id="open"),
        pytest.param(trying(age_s=0.0), 0.0, False, id="squeezed in an experiment"),
        pytest.param(RETURNED, None, False, id="given back in an experiment"),
        pytest.param(stand(SQUEEZED), 0.0, False, id="convicted"),
        pytest.param(stand(SQUEEZED, held={"level": 0.5, "at": 0.5}), 0.5, False, id="at a good level"),
        pytest.param(PROBED, None, False, id="probed"),
        pytest.param(stand(SQUEEZED, MEMORY, **BY_SHORTAGE), 1.0, False, id="by account"),
        pytest.param(stand(CLOSED), 0.0, True, id="closed"),
        pytest.param(stand(EVICTING), 0.0, True, id="evicting"),
    ],
)
def test_state_says_what_holds(state, share, closed):
    (resource,) = state.resources or {CPU: None}
    readings = {"cpu_pressure": reading(15.0, alarm=False)}
    decision, after = step(Signals(100.0, readings, 3), state, BY_NAME, SETTINGS)
    assert decision.shares.get(resource) == share
    assert bool(decision.closed) is closed
    assert in_force(after, SETTINGS) == LadderDecision(decision.shares, decision.closed)


def test_squeeze_by_account_goes_to_the_prediction_at_once_then_towards_the_floor_and_slowly_back():
    state, shares = stand(SQUEEZED, MEMORY, **BY_SHORTAGE), []
    for second in range(60):
        signals = Signals(100.0 + second, {"memory_shortage": OVER if second < 6 else CALM}, 3, BOUND_EXCEEDED)
        decision, state = step(signals, state, BY_NAME, SETTINGS)
        shares.append(decision.shares.get(MEMORY))
    assert shares[:6] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert shares[6:8] == pytest.approx([1 / 30, 2 / 30], abs=1e-4)
    assert shares[34:37] == [pytest.approx(29 / 30, abs=1e-4), pytest.approx(1.0, abs=1e-4), None]


# --- the experiment ---------------------------------------------------------------------------------------------------

PROBE = Detector("probe", "a service's own measure", "ms", 10.0, 2.0, (CPU, IO, MEMORY), hysteresis=2.0, most=1000.0)
FULL = 1.5
"""What the box uses of a resource that is not held, where the prediction is 1."""


class Node:
    """Signals that answer to the box: each of `causes` adds its part as far as the box's resource is not held back.

    `others`: what is harmed by others, by the time.
    """

    def __init__(self, causes, *, own=0.0, settings=SETTINGS, detectors=(PROBE,), pods=5, seed=0, others=None):
        self.causes, self.own, self.pods, self.others = dict(causes), own, pods, others
        self.responder = Responder(settings, detectors, seed=seed)
        self.name = detectors[0].name
        self.t_s = 0.0
        self.shares: Mapping[str, float] = {}
        self.transitions, self.evictions, self.decisions, self.values = [], [], [], []
        self.unused, self.rose = frozenset[str](), frozenset[str]()
        self.use: OnlineUse | None = None

    def value(self):
        by_others = self.others(self.t_s) if self.others else 0.0
        mine = sum(part * self.shares.get(resource, FULL) / FULL for resource, part in self.causes.items())
        return self.own + by_others + mine

    def run(self, seconds):
        end_s = self.t_s + seconds
        while self.t_s < end_s:
            self.t_s += self.responder.look_s
            value = self.value()
            decision = self.responder.tick(
                self.t_s, {self.name: value}, self.pods, unused=self.unused, others=self.rose, use=self.use
            )
            self.shares = decision.shares
            self.values.append((self.t_s, value))
            self.transitions += decision.transitions
            self.decisions.append((self.t_s, decision))
            if decision.eviction:
                self.evictions.append(self.t_s)
                self.responder.evicted((f"job-{len(self.evictions)}",))
        return self

    def path(self, resource=CPU):
        return [one.after for one in self.transitions if one.resource == resource]

    def held_s(self, resource):
        """For how long it was held back."""
        times = [t_s for t_s, _ in self.decisions]
        spans = [after - before for before, after in pairwise(times)]
        return sum(span for (_, one), span in zip(self.decisions, spans, strict=False) if resource in one.shares)

    def at_s(self, share, resource=CPU):
        """For how long it had this share."""
        spans = [(after - before, one) for (before, one), (after, _) in pairwise(self.decisions)]
        return sum(span for span, one in spans if one.shares.get(resource) == share)

    def harmed_s(self, above=10.0):
        spans = [(after - before, value) for (before, _), (after, value) in pairwise(self.values)]
        return sum(span for span, value in spans if value > above)


CPU_ALONE = (replace(PROBE, suspects=(CPU,)),)


@pytest.mark.parametrize("seed", range(5))
def test_guilty_resource_is_convicted_once_the_harm_went_came_back_and_went(seed):
    node = Node({CPU: 60.0}, detectors=CPU_ALONE, seed=seed).run(10)
    assert node.path() == [TRIED, SQUEEZED]
    held = [CPU in one.shares for _, one in node.decisions]
    turns = [after for before, after in pairwise(held) if before != after]
    assert turns == [True, False, True], "squeezed, given back, and held since"
    assert node.harmed_s() <= 4.0


@pytest.mark.parametrize("length_s", [2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.5, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_harm_that_others_bring_for_seconds_convicts_nobody_whenever_it_ends(length_s, seed):
    node = Node({}, detectors=CPU_ALONE, seed=seed, others=lambda t_s: 50.0 if 5.0 < t_s <= 5.0 + length_s else 1.0)
    node.run(60)
    assert SQUEEZED not in node.path()
    assert node.held_s(CPU) <= 4.0


def test_guilty_resource_alone_is_convicted():
    node = Node({IO: 60.0}).run(20)
    assert node.path(CPU) == [TRIED, OPEN]
    assert node.path(IO)[:2] == [TRIED, SQUEEZED]
    assert node.path(MEMORY) == []


def test_innocents_are_exonerated_and_given_back():
    node = Node({}, own=50.0).run(30)
    assert [node.path(one) for one in (CPU, IO, MEMORY)] == [[TRIED, OPEN]] * 3
    assert node.shares == {}
    assert node.evictions == []


def test_box_that_causes_a_bit_more_than_half_of_the_harm_is_convicted():
    node = Node({CPU: 30.0}, own=20.0, detectors=CPU_ALONE).run(20)
    assert SQUEEZED in node.path()


def test_what_keeps_more_than_half_however_often_it_is_tried_is_acquitted():
    node = Node({CPU: 21.0}, own=29.0, detectors=CPU_ALONE).run(25)
    assert node.path() == [TRIED, OPEN]
    assert [name for _, one in node.decisions for name in one.exonerated] == ["probe"]


def test_acquittal_of_all_suspects_makes_the_detector_more_patient_and_leaves_its_bar():
    node = Node({}, own=50.0, detectors=CPU_ALONE)
    node.run(10)
    assert any(one.exonerated for _, one in node.decisions)
    assert node.responder.bars()["probe"] == 10.0
    node.own = 0.0
    node.run(40)
    node.causes = {CPU: 60.0}
    node.run(20)
    assert node.path()[-1] is SQUEEZED, "it is not deaf"


def test_innocent_box_loses_almost_nothing_in_hours_of_steady_harm():
    node = Node({}, own=2000.0).run(4 * 3600)
    for resource in (CPU, IO, MEMORY):
        assert 0.0 < node.held_s(resource) < 0.013 * 4 * 3600, "one in a hundred, and 30 s that were saved up"


def test_conviction_is_no_charge_on_the_budget_for_experiments():
    node = Node({CPU: 60.0}, detectors=CPU_ALONE).run(20)
    assert node.responder.ladder.spent_s == {}


def test_one_experiment_at_a_time():
    node = Node({IO: 60.0}, own=5.0).run(60)
    assert all(len(one.shares) <= 1 for t_s, one in node.decisions if t_s <= 12.0)


def test_looks_are_twice_a_second_while_a_signal_is_high_or_something_is_tried():
    node = Node({CPU: 60.0}, detectors=CPU_ALONE)
    paces = []
    for _ in range(30):
        paces.append(node.responder.look_s)
        node.run(0.1)
    assert paces[:2] == [1.0, 0.5]
    assert 1.0 in paces[10:], "and no longer, once it is convicted and calm"


def test_harm_with_a_period_does_not_keep_step_with_the_experiment():
    lengths = set()
    for seed in range(20):
        node = Node({}, own=50.0, detectors=CPU_ALONE, seed=seed).run(10)
        lengths.add(node.held_s(CPU))
    assert lengths == {1.0, 1.5, 2.0}


def test_resource_that_the_box_did_not_use_is_not_tried():
    node = Node({}, own=50.0, detectors=CPU_ALONE)
    node.unused = frozenset({CPU})
    node.run(120)
    assert node.path() == []


def test_experiment_is_spared_for_half_a_minute_where_others_rose_with_the_harm():
    node = Node({}, detectors=CPU_ALONE, others=lambda t_s: 50.0)
    node.rose = frozenset({CPU})
    node.run(28)
    assert node.path() == []
    node.run(10)
    assert node.path() == [TRIED, OPEN]


def test_suspect_is_not_tried_while_another_resource_goes_to_its_floor():
    for harm_s, share, rung in ((1.0, 0.8, OPEN), (5.0, 0.0, TRIED)):
        by_account = RungState(SQUEEZED, "memory_shortage", share, harm_s=harm_s)
        signals = Signals(101.0, {"memory_shortage": OVER, "cpu_pressure": HARM}, 3, BOUND_EXCEEDED)
        _, state = step(signals, LadderState(100.0, {MEMORY: by_account}), BY_NAME, SETTINGS)
        assert state.of(CPU).rung is rung


def test_suspect_is_not_tried_while_another_resource_is_probed():
    probed = stand(SQUEEZED, IO, held={"mode": HoldMode.PROBE, "at": ALL}).of(IO)
    signals = Signals(101.0, {"io_pressure": CALM, "cpu_pressure": HARM}, 3)
    _, state = step(signals, LadderState(100.0, {IO: probed}), BY_NAME, SETTINGS)
    assert state.of(CPU).rung is OPEN


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
    state = stand(EVICTING, MEMORY, **BY_SHORTAGE)
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


@pytest.mark.parametrize(("spent_s", "exonerated"), [(0.0, ("memory_pressure",)), (31.0, ())])
def test_box_whose_memory_could_not_be_tried_is_not_known_to_be_innocent(spent_s, exonerated):
    """Else what it does by memory would be learned to be usual."""
    acquitted = (IO,) if spent_s else (MEMORY, IO)
    state = replace(stand(OPEN), case=Case("memory_pressure", acquitted, before=40.0), spent_s={MEMORY: spent_s})
    decision, after = step(Signals(101.0, {"memory_pressure": HARM}, 3), state, BY_NAME, SETTINGS)
    assert (decision.exonerated, tuple(decision.explained)) == (exonerated, exonerated)
    assert 0.75 * SETTINGS.pause_s <= after.pauses["memory_pressure"] <= SETTINGS.pause_s


@pytest.mark.parametrize(
    ("state", "others"),
    [(stand(SQUEEZED, held={"level": 1.0, "at": 1.0}), frozenset()), (stand(OPEN), frozenset({CPU}))],
    ids=["convicted by another signal", "spared as others rose"],
)
def test_box_whose_cpu_was_not_tried_for_a_signal_is_not_known_to_be_innocent_of_it(state, others):
    state = replace(state, case=Case("service_check", (MEMORY,), before=100.0))
    readings = {"service_check": reading(200.0, bar=100.0), "cpu_pressure": CALM}
    signals = Signals(101.0, readings, 3, unused=frozenset({IO}), others=others)
    decision, after = step(signals, state, BY_NAME, SETTINGS)
    assert (after.case, decision.exonerated, dict(decision.explained)) == (None, (), {})


def test_suspect_of_which_no_experiment_can_be_made_keeps_no_box_from_being_acquitted():
    untried = tuple(replace(one, phase_s=None) if one.name in (MEMORY, IO) else one for one in SETTINGS.resources)
    state = replace(stand(OPEN), case=Case("service_check", (CPU,), before=100.0))
    signals = Signals(101.0, {"service_check": reading(200.0, bar=100.0)}, 3)
    decision, _ = step(signals, state, BY_NAME, replace(SETTINGS, resources=untried))
    assert decision.exonerated == ("service_check",)


def test_no_other_suspect_is_squeezed_while_one_is_spared():
    signals = Signals(101.0, {"service_check": reading(200.0, bar=100.0)}, 3, others=frozenset({CPU}))
    _, state = step(signals, LadderState(100.0), BY_NAME, SETTINGS)
    assert (state.case, state.resources) == (None, {})


def test_empty_box_is_not_suspected():
    node = Node({}, own=50.0, pods=0).run(60)
    assert node.transitions == []


SLOW_MEMORY = (Detector("thrash", "pages read again", "/s", 10.0, 2.0, (MEMORY,), hysteresis=2.0, most=1000.0),)


class PageCache(Node):
    """What the box gets of memory takes `up_s` to fill, and online reads its pages again for `down_s` after."""

    def __init__(self, up_s, down_s, *, slow=False, **given):
        super().__init__({}, detectors=tuple(replace(one, slow=slow) for one in SLOW_MEMORY), **given)
        self.up_s, self.down_s, self.filled, self.seen_s = up_s, down_s, 1.0, 0.0

    def value(self):
        seconds, self.seen_s = self.t_s - self.seen_s, self.t_s
        change = seconds / self.up_s if MEMORY not in self.shares else -seconds / self.down_s
        self.filled = min(1.0, max(0.0, self.filled + change))
        return self.own + (60.0 if self.filled > 0.5 else 2.0)


def test_memory_is_judged_by_longer_phases_as_it_comes_back_slowly():
    node = PageCache(up_s=20.0, down_s=8.0).run(60)
    assert node.path(MEMORY) == [TRIED, SQUEEZED]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("own", [4.0, 8.0])
def test_what_is_seen_before_the_box_has_filled_its_memory_again_does_not_acquit_it(own, slow):
    node = PageCache(up_s=30.0, down_s=8.0, own=own, slow=slow).run(200)
    assert node.path(MEMORY)[:2] == [TRIED, SQUEEZED]
    assert OPEN not in node.path(MEMORY)


def test_harm_at_the_floor_of_memory_is_compared_with_that_of_a_box_that_has_filled_its_own():
    """Online's pages are read again at a rate above the bar at the floor, and at thirty times that once it has."""
    node = PageCache(up_s=24.0, down_s=6.0, own=18.0).run(300)
    assert node.path(MEMORY) == [TRIED, SQUEEZED, CLOSED, EVICTING]


@pytest.mark.parametrize("spike_at", range(4, 30))
def test_spike_of_a_second_in_a_test_of_memory_does_not_convict(spike_at):
    """Whenever it comes: what is seen after it counts, too."""
    state = stand(SQUEEZED, MEMORY, held={"harm": Mean(120.0, 10), "harm_s": 5.0, "look_s": 5.0, "age_s": 6.0})
    for look in range(1, 80):
        value = 50.0 if look - spike_at in (0, 1) else 14.0
        signals = Signals(100.0 + 0.5 * look, {"memory_pressure": reading(value)}, 3)
        _, state = step(signals, state, BY_NAME, SETTINGS)
    assert state.of(MEMORY).held is None or state.of(MEMORY).held.returns == 0


def test_memory_that_the_box_does_not_take_again_in_time_is_given_back_with_no_verdict():
    node = PageCache(up_s=200.0, down_s=8.0).run(60)
    assert node.path(MEMORY) == [TRIED, OPEN]
    assert not any(one.exonerated for _, one in node.decisions)


def test_resource_without_an_experiment_is_passed_over_and_judged_by_account_alone():
    untried = tuple(replace(one, phase_s=None) if one.name == MEMORY else one for one in SETTINGS.resources)
    settings = replace(SETTINGS, resources=untried)
    signals = {"memory_pressure": HARM}
    _, state = step(Signals(101.0, signals, 3), LadderState(100.0), BY_NAME, settings)
    assert (state.of(MEMORY).rung, state.of(IO).rung) == (OPEN, TRIED)
    signals = {"memory_shortage": OVER}
    _, state = step(Signals(101.0, signals, 3, BOUND_EXCEEDED), LadderState(100.0), BY_NAME, settings)
    assert state.of(MEMORY).rung is SQUEEZED


def test_experiment_that_is_none_any_more_by_the_settings_is_called_off():
    untried = tuple(replace(one, phase_s=None) for one in SETTINGS.resources)
    _, state = step(Signals(101.0, {"cpu_pressure": HARM}, 3), trying(), BY_NAME, replace(SETTINGS, resources=untried))
    assert (state.of(CPU).rung, state.case) == (OPEN, None)


def test_nothing_is_probed_while_another_resource_is_tried():
    calm = stand(SQUEEZED, IO, held={"calm_s": 60.0}).of(IO)
    state = replace(trying(age_s=0.0), resources={CPU: trying().of(CPU), IO: calm})
    _, state = step(Signals(101.0, {"cpu_pressure": HARM, "io_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(IO).held.mode is HoldMode.REST
    _, state = step(Signals(102.0, {"cpu_pressure": HARM, "io_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is OPEN
    _, state = step(Signals(103.0, {"cpu_pressure": HARM, "io_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(IO).held.mode is HoldMode.PROBE


def test_what_is_proved_by_account_needs_no_experiment():
    readings = {"memory_shortage": OVER, "memory_pressure": HARM}
    decision, state = step(Signals(101.0, readings, 3, BOUND_EXCEEDED), LadderState(100.0), BY_NAME, SETTINGS)
    assert (state.of(MEMORY).rung, state.of(IO).rung) == (SQUEEZED, TRIED)
    assert [one.signal for one in decision.transitions] == ["memory_shortage", "memory_pressure"]


@pytest.mark.parametrize(("emergency_s", "rung"), [(10.0, OPEN), (20.0, TRIED)], ids=["begins", "lasts"])
def test_emergency_keeps_experiments_from_being_made_at_its_beginning_alone(emergency_s, rung):
    state = replace(stand(EVICTING, MEMORY, **BY_SHORTAGE), emergency_s=emergency_s, evictions=gone(6))
    signals = {**SHORTAGE, "cpu_pressure": HARM}
    _, state = step(Signals(101.0, signals, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is rung
    _, state = step(Signals(101.5, signals, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is rung
    assert state.emergency_s == emergency_s + 1.5
    _, state = step(Signals(103.0, {}, 3), state, BY_NAME, SETTINGS)
    assert state.emergency_s == 0.0


@pytest.mark.parametrize(("pods", "kept"), [(0, False), (3, True)], ids=["empty", "with-pods"])
def test_empty_box_that_nothing_is_held_of_begins_anew(pods, kept):
    before = LadderState(100.0, case=Case("cpu_pressure", acquitted=(CPU,)), pauses={"cpu_pressure": 200.0})
    _, after = step(Signals(101.0, {"cpu_pressure": CALM}, pods), before, BY_NAME, SETTINGS)
    assert bool(after.pauses) is kept
    assert after.case is None


# --- after a conviction -----------------------------------------------------------------------------------------------


def convicted(**given):
    """A node whose box is guilty and held at its floor; it is calm there."""
    node = Node({CPU: 60.0}, detectors=CPU_ALONE, **given).run(10)
    assert node.path()[-1] is SQUEEZED
    return node


def test_guilty_box_is_probed_more_and_more_rarely_and_harms_for_two_seconds_each_time():
    node = convicted().run(600)
    begun = node.t_s
    node.values.clear()
    node.run(3600)
    probes = sum(value > 10.0 and before <= 10.0 for (_, before), (_, value) in pairwise(node.values))
    assert 36 <= probes <= 42
    assert node.harmed_s() <= 2.0 * probes
    assert node.t_s > begun
    assert node.path()[-1] is SQUEEZED


def test_level_that_does_not_harm_is_found_by_halving():
    node = convicted()
    node.causes, node.others = {}, lambda t_s: 60.0 if node.shares.get(CPU, FULL) > 0.6 else 1.0
    node.run(90)
    held = node.responder.ladder.of(CPU).held
    assert 0.45 <= held.level <= 0.6
    assert node.shares[CPU] == held.level


@pytest.mark.parametrize(
    ("detector", "calm", "harm", "use"),
    [
        pytest.param("cpu_pressure", queueing_percent(OnlineUse(1.0, 2)), 90.0, OnlineUse(1.0, 2), id="online queues"),
        pytest.param("service_check", 85.0, 250.0, None, id="a service is near to its threshold"),
    ],
)
def test_level_is_found_where_the_signal_is_near_to_its_bar_without_the_box(detector, calm, harm, use):
    node = Node({}, detectors=(BY_NAME[detector],))
    node.others = lambda t_s: harm if CPU not in node.shares else calm
    node.use, node.unused = use, frozenset({IO, MEMORY})
    node.run(120)
    assert node.responder.ladder.of(CPU).held.level == 1.0


class TwoHarmed(Node):
    """A pod is harmed above the prediction, and from a minute on another signal tells of harm above `from_`."""

    def __init__(self, other, high, from_):
        super().__init__({}, detectors=tuple(BY_NAME[name] for name in ("pod_pressure", other)))
        self.other, self.high, self.from_, self.unused = other, high, from_, frozenset({IO, MEMORY})

    def signals(self):
        share = self.shares.get(CPU, FULL)
        harmed = self.t_s > 60.0 and share > self.from_
        return {"pod_pressure": 300.0 if share > 1.0 else 10.0, self.other: self.high if harmed else 1.0}

    def run(self, seconds):
        end_s, harmed_s = self.t_s + seconds, 0.0
        while self.t_s < end_s:
            self.t_s += self.responder.look_s
            signals = self.signals()
            harmed_s += self.responder.look_s * (signals[self.other] == self.high)
            decision = self.responder.tick(self.t_s, signals, 3, unused=self.unused)
            self.shares = decision.shares
            self.decisions.append((self.t_s, decision))
        return harmed_s


@pytest.mark.parametrize(("other", "high"), [("cpu_pressure", 40.0), ("service_check", 250.0)])
def test_harm_to_others_at_the_level_that_the_first_victim_can_bear_has_a_lower_one_found(other, high):
    node = TwoHarmed(other, high, 0.3)
    assert node.run(3600) < 180.0
    assert 0.1 < node.responder.ladder.of(CPU).held.level <= 0.3


@pytest.mark.parametrize(("other", "high"), [("cpu_pressure", 40.0), ("service_check", 250.0)])
def test_harm_to_others_that_is_not_the_boxs_leaves_the_level_to_the_first_victim(other, high):
    node = TwoHarmed(other, high, -1.0)
    node.run(3600)
    assert node.responder.ladder.of(CPU).held.level == 1.0
    assert node.responder.ladder.of(CPU).signal == "pod_pressure"
    assert node.at_s(0.0) <= 360.0
    assert other in {name for _, one in node.decisions for name in one.exonerated}


@pytest.mark.parametrize("after_s", [5, 60, 300, 900])
def test_all_is_given_back_within_100_s_of_the_end_of_guilt(after_s):
    node = convicted().run(after_s)
    node.causes = {}
    node.run(100)
    assert node.path()[-1] is OPEN


@pytest.mark.parametrize("every_s", [5, 8, 12, 20, 30, 45, 60, 90])
def test_spikes_of_a_second_keep_nothing_held(every_s):
    """One look is never harm, and only pauses calm."""
    node = convicted()
    node.causes, node.others = {}, lambda t_s: 30.0 if t_s % every_s < 1.0 else 1.0
    node.run(120)
    assert node.path()[-1] is OPEN


def test_harm_at_the_floor_that_is_anothers_acquits_the_box_after_two_looks_at_it():
    node = convicted()
    node.causes, node.own = {}, 50.0
    node.run(45)
    assert node.path()[-1] is OPEN
    assert node.transitions[-1].reason.startswith("a service's own measure (probe) is as high with the box's CPU at")
    assert [name for _, one in node.decisions for name in one.exonerated] == ["probe"]
    assert node.evictions == []


def test_harm_at_the_floor_that_was_anothers_has_all_probed_soon():
    node = convicted().run(600)
    node.causes, node.own = {}, 50.0
    node.run(15)
    node.own = 0.0
    node.run(25)
    assert node.path()[-1] is OPEN
    assert node.transitions[-1].reason.endswith("it is held back no longer")


@pytest.mark.parametrize(("guilty_s", "patient"), [(0, True), (300, False)], ids=["perhaps an error", "for sure"])
def test_patience_does_not_grow_for_a_box_that_was_surely_guilty_of_late(guilty_s, patient):
    """It was seen to harm at three probes. Others harm for a while thereafter, and it is acquitted of that."""
    node = convicted().run(guilty_s)
    node.causes = {}
    node.run(100)
    for _ in range(4):
        node.own = 60.0
        node.run(30)
        node.own = 0.0
        node.run(60)
    assert node.path()[-4:] == [TRIED, OPEN, TRIED, OPEN]
    assert (node.responder.state().monitors["probe"].patience_s > FIRST_PATIENCE_S) is patient


def test_lasting_harm_of_the_box_climbs_all_rungs_and_comes_back():
    # Its floor does not suffice, as when one tenth of what a pod does can't be held back.
    node = Node({CPU: 60.0}, own=12.0, detectors=CPU_ALONE).run(200)
    assert node.path() == [TRIED, SQUEEZED, CLOSED, EVICTING]
    assert len(node.evictions) >= 1
    node.own, node.causes = 0.0, {}
    node.run(100)
    assert node.path()[-1] is OPEN


@pytest.mark.parametrize(("helps", "pods"), [(True, 2), (False, 1)])
def test_no_other_pod_goes_where_the_last_one_did_not_help(helps, pods):
    node = Node({CPU: 60.0}, own=25.0, detectors=CPU_ALONE)
    while len(node.evictions) < pods and node.t_s < 600:
        node.run(0.1)
        node.own = 25.0 * 0.7 ** len(node.evictions) if helps else 25.0
    assert len(node.evictions) == pods
    node.run(300)
    assert helps or len(node.evictions) == pods


def harmed_at_floor(value, seconds, state, leaving=()):
    """How many pods had to go in this time, of harm at the floor, and the state after it."""
    orders, t_s = 0, state.t_s
    for look in range(1, round(2 * seconds) + 1):
        signals = Signals(t_s + 0.5 * look, {"cpu_pressure": reading(value)}, 3, leaving=frozenset(leaving))
        decision, state = step(signals, state, BY_NAME, SETTINGS)
        orders += decision.eviction is not None
    return orders, state


ORDERED = stand(EVICTING, held={"look_s": 90.0, "harm": Mean(60.0, 4), "harm_s": 2.0} | PROVED)


def test_order_for_which_nobody_went_says_nothing_of_whether_it_would_have_helped():
    orders, state = harmed_at_floor(25.0, 0.5, ORDERED)
    assert orders == 1
    orders, _ = harmed_at_floor(25.0, 60, not_evicted(state))
    assert orders >= 1


@pytest.mark.parametrize("calm_s", [2, 5])
@pytest.mark.parametrize("later", [25.0, 90.0])
def test_pod_that_has_helped_altogether_is_not_judged_by_later_harm(later, calm_s):
    _, state = harmed_at_floor(25.0, 0.5, ORDERED)
    _, state = harmed_at_floor(0.0, calm_s, evicted(state, ()))
    orders, state = harmed_at_floor(later, 300, state)
    assert orders > 0


@pytest.mark.parametrize("grace_s", [5, 30])
@pytest.mark.parametrize(("left", "others"), [(11.0, True), (25.0, False)], ids=["helps", "in vain"])
def test_pod_that_went_is_judged_by_the_harm_after_its_end(left, others, grace_s):
    _, state = harmed_at_floor(25.0, 0.5, ORDERED)
    orders, state = harmed_at_floor(25.0, grace_s, evicted(state, ()), leaving={CPU})
    assert (orders, state.of(CPU).vain) == (0, False)
    orders, state = harmed_at_floor(left, 30, state)
    assert (orders > 0, state.of(CPU).vain) == (others, not others)


def test_pod_that_takes_longer_than_a_minute_to_end_keeps_no_other_from_going():
    _, state = harmed_at_floor(25.0, 0.5, ORDERED)
    orders, state = harmed_at_floor(25.0, 59, evicted(state, ()), leaving={CPU})
    assert orders == 0
    orders, state = harmed_at_floor(25.0, 10, state, leaving={CPU})
    assert (orders, state.of(CPU).vain) == (1, False)


@pytest.mark.parametrize("other", [MEMORY, ""])
def test_pod_that_went_is_judged_while_one_leaves_for_something_else(other):
    _, state = harmed_at_floor(25.0, 0.5, ORDERED)
    state = evicted(state, ())
    state = replace(state, evictions=(*state.evictions, PastEviction(101.0, resource=other)))
    orders, state = harmed_at_floor(25.0, 90, state, leaving={other})
    assert (orders, state.of(CPU).vain) == (0, True)


def test_later_pod_for_something_else_gives_the_one_that_leaves_no_more_time():
    _, state = harmed_at_floor(25.0, 0.5, ORDERED)
    _, state = harmed_at_floor(25.0, 50, evicted(state, ()), leaving={CPU})
    state = replace(state, evictions=(*state.evictions, PastEviction(state.t_s, resource=MEMORY)))
    orders, _ = harmed_at_floor(25.0, 15, state, leaving={CPU, MEMORY})
    assert orders == 1


def test_pod_that_has_helped_is_not_judged_again_by_later_harm():
    _, state = harmed_at_floor(25.0, 0.5, ORDERED)
    state = replace(evicted(state, ()), ordered_s=state.t_s)
    orders, state = harmed_at_floor(11.0, 5, state)
    assert (orders, state.of(CPU).vain) == (0, False)
    orders, state = harmed_at_floor(90.0, 10, state)
    assert (orders, state.of(CPU).vain) == (1, False)


@pytest.mark.parametrize(("value", "mode"), [(0.0, HoldMode.PROBE), (25.0, HoldMode.TEST)], ids=["calm", "harm"])
def test_pod_that_leaves_for_something_else_keeps_no_probe_nor_test_from_being_made(value, mode):
    state = stand(CLOSED, held={"wait_s": 5.0, "look_s": 5.0, "ordered": 20.0} | PROVED)
    state = replace(state, evictions=(PastEviction(95.0),))
    while state.of(CPU).held.mode is HoldMode.REST and state.t_s < 150.0:
        _, state = harmed_at_floor(value, 0.5, state, leaving={""})
    assert state.of(CPU).held.mode is mode


def test_nobody_goes_while_all_is_given_back_for_a_test():
    state = stand(EVICTING, held={"mode": HoldMode.TEST, "at": ALL, "long_s": 2.0} | PROVED)
    decision, _ = step(Signals(100.5, {"cpu_pressure": HARM}, 3), state, BY_NAME, SETTINGS)
    assert decision.eviction is None


def test_signal_that_is_lost_holds_nothing_for_ever():
    state = stand(SQUEEZED, held={"wait_s": 90.0})
    for second in range(150):
        decision, state = step(Signals(101.0 + second, {}, 3), state, BY_NAME, SETTINGS)
        assert second > 29 or decision.shares == {CPU: 0.0}
    assert state.of(CPU).rung is OPEN


def test_status_says_when_more_is_given_back():
    node = convicted()
    soon = node.responder.probe_in_s(CPU)
    assert 0.0 <= soon <= 5.0
    assert Node({}).responder.probe_in_s(CPU) is None


@pytest.mark.parametrize(("rung", "probe_in_s"), [(SQUEEZED, 4.0), (CLOSED, 4.0), (EVICTING, None)])
def test_status_says_on_each_rung_whether_a_probe_is_to_come(rung, probe_in_s):
    responder = Responder(SETTINGS)
    responder.load(ResponderState({}, stand(rung, held={"calm_s": 1.0})))
    assert responder.probe_in_s(CPU) == probe_in_s


def test_calm_needed_doubles_up_to_ten_minutes():
    needed = [doubled_s(SETTINGS.closed_calm_s, times, SETTINGS.longest_calm_s) for times in range(8)]
    assert needed == [60.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 600.0]


def test_open_for_half_an_hour_forgets_how_often_it_was_convicted():
    state = LadderState(100.0, {CPU: RungState(convictions=3, closings=2, open_s=1799.5)})
    _, state = step(Signals(101.0, {"cpu_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU) == RungState()


# --- evictions --------------------------------------------------------------------------------------------------------


def evicting(**state):
    return replace(stand(EVICTING, MEMORY, held=PROVED), **state)


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


def test_owner_of_a_pod_that_went_is_barred_for_a_minute():
    over, state = {"memory_shortage": OVER}, stand(EVICTING, MEMORY, **BY_SHORTAGE)
    _, state = step(Signals(101.0, over, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
    state = evicted(state, ("job-1", "uid-1"))
    for t_s, barred in ((121.0, {"job-1", "uid-1"}), (162.0, set())):
        decision, _ = step(Signals(t_s, over, 3, BOUND_EXCEEDED), state, BY_NAME, SETTINGS)
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
    again = Responder(SETTINGS, seed=99)
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
        if responder.at_rest:
            break
    assert (decision.shares, decision.closed, decision.eviction) == ({}, "", None)
    assert all(one.rung is OPEN for one in responder.ladder.resources.values())


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
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
        assert set(decision.shares) <= {name for name, rung in rungs.items() if rung is not OPEN}
        assert all(0.0 <= share <= 1.0 for share in decision.shares.values())
        assert bool(decision.closed) is any(rung in (CLOSED, EVICTING) for rung in rungs.values())


def test_state_moves_to_another_clock():
    _, state = step(Signals(101.0, {"memory_pressure": HARM}, 3), evicting(), BY_NAME, SETTINGS)
    moved = shifted(state, -50.0)
    assert (moved.t_s, moved.ordered_s, [one.t_s for one in moved.evictions]) == (51.0, 51.0, [51.0])
    assert moved.resources == state.resources


@pytest.mark.parametrize("gap_s", [1.0, 30.0, 3600.0])
def test_gap_in_the_samples_counts_neither_as_calm_nor_as_harm(gap_s):
    state = stand(CLOSED, calm_s=30.0, closings=1, held={"wait_s": 600.0, "searching": False})
    _, state = step(Signals(100.0 + gap_s, {"cpu_pressure": CALM}, 3), state, BY_NAME, SETTINGS)
    assert state.of(CPU).rung is CLOSED
    assert state.of(CPU).calm_s <= 35.0


def test_bars_are_worked_out_once_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look asks for them three times."""
    asked, really = list[str](), Monitor.bar

    def bar(monitor: Monitor) -> float:
        asked.append(monitor.detector.name)
        return really(monitor)

    responder = Responder(SETTINGS)
    monkeypatch.setattr(Monitor, "bar", bar)
    for _ in range(3):
        responder.bars()
    assert sorted(asked) == sorted(responder.detectors)
    before = responder.bars()
    responder.tick(1.0, {"cpu_pressure": 50.0}, pods=1, use=OnlineUse(1.9, 2))
    assert responder.bars()["cpu_pressure"] > before["cpu_pressure"]


def test_conviction_ends_what_an_acquittal_has_said_of_the_same_harm():
    """The box joins in others' harm that has not ended yet. What it does at probes must not be learned to be usual."""
    node = Node({}, detectors=CPU_ALONE, own=30.0).run(10)
    assert node.responder.has_acquitted("probe")
    node.own, node.causes = 12.0, {CPU: 60.0}
    while SQUEEZED not in node.path() and node.t_s < 120.0:
        node.run(0.1)
    assert node.path()[-1] is SQUEEZED
    assert not node.responder.has_acquitted("probe")


def test_pod_that_goes_in_an_emergency_is_not_judged_by_the_height_of_that():
    """It is another signal than the one that memory is held for, in a unit of its own."""
    readings = {"memory_pressure": WITHIN_HYSTERESIS, **SHORTAGE}
    decision, state = step(Signals(100.5, readings, 3, BOUND_EXCEEDED), stand(EVICTING, MEMORY), BY_NAME, SETTINGS)
    assert decision.eviction.emergency
    assert evicted(state, ()).of(MEMORY).held.ordered is None


class Fading(Node):
    """The harm of a box that has more memory than the prediction; it fades with `fades_s` when that is taken back."""

    def __init__(self, fades_s):
        super().__init__({}, detectors=SLOW_MEMORY)
        self.fades_s, self.filled, self.seen_s = fades_s, 0.0, 0.0

    def value(self):
        seconds, self.seen_s = self.t_s - self.seen_s, self.t_s
        open_, fading = MEMORY not in self.shares, math.exp(-seconds / self.fades_s)
        self.filled = min(1.0, self.filled + seconds / 3.0) if open_ else self.filled * fading
        return 60.0 * self.filled


@pytest.mark.parametrize("fades_s", [2.0, 4.0, 5.0])
def test_harm_that_fades_after_a_probe_of_all_is_not_blamed_on_the_level(fades_s):
    node = Fading(fades_s).run(3600)
    assert node.responder.ladder.of(MEMORY).held.level == 1.0
    assert node.at_s(0.0, MEMORY) <= 180.0
