"""The last hour of decisions: what is kept, for how long, and what held at a moment."""

from criproxy.control.history import MAX_RECORDS, History, Record
from criproxy.model import Decision, Limits, Prediction, Snapshot

WALL = 1_700_006_400.0


def record(t_s, cores=1.0):
    snapshot = Snapshot(t_s, 4.0, 100, 1.0, 50, 0.0, 0, 1.0, 50, 0.0)
    return Record(WALL + t_s, snapshot, Decision(t_s, Limits(cores, 10), Prediction(1.0, 1.0), "why", "why"))


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


def test_history_after_an_hour_forgets():
    kept = times(filled(record(float(t)) for t in range(0, 8000, 10)))
    assert kept[0] == 7990.0 - 3600.0
    assert len(kept) == 361


def test_history_of_a_fast_loop_is_bounded():
    assert len(times(filled(record(t / 10, cores=1.0 + t % 2) for t in range(6000)))) == MAX_RECORDS


def test_history_at_a_moment_gives_the_decision_that_held():
    history = filled([record(0.0, 1.0), record(7.0, 2.0), record(9.0, 3.0)])
    assert history.at(WALL + 8.9).decision.limits.cpu_cores == 2.0
    assert history.at(WALL + 1e6).decision.limits.cpu_cores == 3.0
    assert history.at(WALL - 0.1) is None
