"""The last hour of decisions: what is kept, for how long, and what held at a moment."""

import pytest
from msgspec.structs import replace

from criproxy.control.history import MAX_RECORDS, DecisionRecord, History
from criproxy.model import Bounds, Decision, ResourceDecision, ResourcePrediction
from tests.rows import snapshot

WALL = 1_700_006_400.0
BOUNDS = Bounds(0.1, None, 0.0, 0.9)


def record(t_s, cores=1.0, before=None, high=None):
    taken = snapshot(t_s, (4.0, 1.0, 0.0, 1.0), (100, 50, 0, 50))
    limits, before = {"cpu": cores, "memory": 10}, before or {}
    decided = {
        name: ResourceDecision(limit, "why", BOUNDS, ResourcePrediction(1.0), before.get(name))
        for name, limit in limits.items()
    }
    decided["memory"] = replace(decided["memory"], high=high)
    return DecisionRecord(WALL + t_s, taken, Decision(t_s, decided))


def filled(records):
    history = History()
    for entry in records:
        history.add(entry)
    return history


def times(history):
    return [entry.decision.t_s for entry in history.records()]


def test_history_unchanged_limits_are_kept_each_ten_seconds():
    assert times(filled(record(float(t)) for t in range(35))) == [0.0, 10.0, 20.0, 30.0]


def test_history_every_change_is_kept():
    assert times(filled(record(float(t), 1.0 if t < 3 else 2.0) for t in range(9))) == [0.0, 3.0]


def test_history_keeps_when_memory_was_brought_down_below_its_limit():
    assert times(filled(record(float(t), high=5 if 3 <= t < 6 else None) for t in range(9))) == [0.0, 3.0, 6.0]


def test_history_after_an_hour_forgets():
    kept = times(filled(record(float(t)) for t in range(0, 8000, 10)))
    assert kept[0] == 7990.0 - 3600.0
    assert len(kept) == 361


@pytest.mark.parametrize("interval_s", [0.1, 0.5, 0.6, 0.9])
def test_history_of_a_fast_loop_spans_the_hour_and_ends_with_the_last_change(interval_s):
    count = int(4000 / interval_s)
    history = filled(record(t * interval_s, cores=1.0 + t % 7) for t in range(count))
    assert len(history.records()) <= MAX_RECORDS
    assert times(history)[-1] - times(history)[0] > 3590.0
    assert history.at(WALL + 1e6).record.decision.limits["cpu"] == 1.0 + (count - 1) % 7


def test_history_at_a_moment_gives_the_decision_that_held():
    history = filled([record(0.0, 1.0), record(7.0, 2.0), record(9.0, 3.0)])
    assert history.at(WALL + 8.9).record.decision.limits["cpu"] == 2.0
    assert history.at(WALL + 1e6).record.decision.limits["cpu"] == 3.0
    assert history.at(WALL - 0.1) is None


def test_history_at_a_moment_tells_since_when_each_limit_held():
    history = filled([record(0.0, 1.0), record(7.0, 2.0), *(record(t, 2.0) for t in (17.0, 27.0, 37.0))])
    past = history.at(WALL + 30.0)
    assert past.record.decision.t_s == 27.0
    assert {name: since.decision.t_s for name, since in past.since.items()} == {"cpu": 7.0, "memory": 0.0}


def test_history_of_a_limit_from_before_the_record_does_not_tell_since_when():
    past = filled([record(0.0, 1.0, before={"cpu": 1.0, "memory": 10}), record(10.0)]).at(WALL + 10.0)
    assert past.since == {"cpu": None, "memory": None}
