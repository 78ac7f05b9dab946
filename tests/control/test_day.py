"""The last day in numbers: what is kept, how large it is, and what is answered."""

import json
import math
import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.control.day import DAY_MINUTES, HOUR_S, MOST_MARKS, Day, Kind, Ring
from criproxy.control.policy import PolicyState, StaticSettings, decide
from criproxy.model import UNLIMITED, Decision, GuardCeiling, Snapshot
from tests.rows import laws, predictions, snapshot

GIB = 1 << 30
WALL_S = 1_700_000_000.0


def sample(t_s: float, online: float, box: float = 0.5, cores: float = 4.0) -> Snapshot:
    return snapshot(t_s, (cores, online + box, box, online), (8 * GIB, 4 * GIB, GIB, 3 * GIB))


def decided(one: Snapshot, limit: float = 1.5) -> Decision:
    settings = laws(cpu=StaticSettings(limit), memory=StaticSettings(GIB))
    return decide(one, predictions(None, None), PolicyState(), settings)[0]


def lived(day: Day, first_s: int, last_s: int, online: float = 1.0) -> None:
    one = sample(float(first_s), online)
    decision = decided(one)
    for t_s in range(first_s, last_s):
        day.sampled(replace(one, t_s=float(t_s)), decision, "")


def answer(day: Day, now_s: float, since_s: float = -math.inf) -> Any:
    return json.loads(day.to_json(now_s, WALL_S, since_s))


# --- a ring ----------------------------------------------------------------------------------------------------------


def test_ring_forgets_what_is_older_and_what_was_left_out() -> None:
    ring = Ring(4)
    for step in (10, 11, 13):
        ring.put(step, float(step))
    assert [value for value in ring.between(10, 14) if not math.isnan(value)] == [10.0, 11.0, 13.0]
    ring.put(15, 15.0)
    assert [value for value in ring.between(0, 20) if not math.isnan(value)] == [13.0, 15.0]
    ring.put(12, 99.0)
    assert 99.0 not in ring.between(0, 20)


# --- what is answered ------------------------------------------------------------------------------------------------


def test_hour_of_seconds_has_what_was_sampled() -> None:
    day = Day()
    for t_s, online in ((1000.0, 1.0), (1001.0, 2.0), (1003.0, 3.0)):
        one = sample(t_s, online)
        day.sampled(one, decided(one), "")
    found = answer(day, 1004.0)
    seconds = found["seconds"]
    at = round(WALL_S - 4 - seconds["first_s"])
    assert seconds["cpu"]["online"][at:] == [1000, 2000, None, 3000, None]
    assert seconds["cpu"]["limit"][at] == 1500
    assert seconds["cpu"]["prediction"][at] is None
    assert seconds["memory"]["capacity"][at] == 8 * 1024
    assert found["scales"] == {"cores": 0.001, "bytes": 1 << 20}
    assert found["now_s"] == WALL_S


def test_minute_has_its_least_mean_and_most() -> None:
    day = Day()
    for t_s, online in ((600.0, 1.0), (601.0, 2.0), (602.0, 3.0), (660.0, 3.0)):
        one = sample(t_s, online)
        day.sampled(one, decided(one), "")
    minutes = answer(day, 661.0)["minutes"]
    assert {kind: numbers[-1] for kind, numbers in minutes["cpu"]["online"].items()} == {
        "least": 1000,
        "mean": 2000,
        "most": 3000,
    }
    assert minutes["first_s"] + 60 * (len(minutes["cpu"]["online"]["mean"]) - 1) == WALL_S - 61.0


def test_limit_that_is_none_has_no_number() -> None:
    day, one = Day(), sample(1000.0, 1.0)
    decision = decided(one)
    cpu = replace(decision.resources["cpu"], limit=UNLIMITED)
    day.sampled(one, replace(decision, resources={**decision.resources, "cpu": cpu}), "")
    seconds = answer(day, 1000.0)["seconds"]["cpu"]
    assert (seconds["limit"][-1], seconds["online"][-1]) == (None, 1000)


def test_who_asks_again_gets_what_is_newer() -> None:
    day = Day()
    lived(day, 100_000, 100_200)
    day.mark(100_010.0, Kind.LEAVING, "a", "batch/a", "stopped")
    day.mark(100_190.0, Kind.LEAVING, "b", "batch/b", "stopped")
    whole, newer = answer(day, 100_200.0), answer(day, 100_200.0, WALL_S - 60.0)
    assert (len(whole["seconds"]["cpu"]["online"]), len(newer["seconds"]["cpu"]["online"])) == (HOUR_S, 61)
    assert (len(whole["minutes"]["cpu"]["online"]["mean"]), len(newer["minutes"]["cpu"]["online"]["mean"])) == (
        DAY_MINUTES,
        1,
    )
    assert [one["of"] for one in newer["marks"]] == ["batch/b"]
    assert len(answer(day, 100_200.0, WALL_S)["seconds"]["cpu"]["online"]) == 1


# --- marks -----------------------------------------------------------------------------------------------------------


def test_squeeze_and_closing_have_marks_when_they_begin_and_end() -> None:
    day, one = Day(), sample(1000.0, 1.0)
    calm, squeezed = decided(one), replace(decided(one), guard=GuardCeiling(0.5, "online waits"))
    for decision, closed in (
        (calm, ""),
        (squeezed, ""),
        (squeezed, "it is night"),
        (calm, "it is night"),
        (calm, ""),
        (squeezed, ""),
    ):
        day.sampled(one, decision, closed)
    marks = answer(day, 1000.0)["marks"]
    assert [(mark["kind"], mark["reason"]) for mark in marks] == [
        ("squeeze", "online waits"),
        ("closing", "it is night"),
        ("opening", "new offline pods are let in"),
        ("squeeze", "online waits"),
    ]
    assert (marks[0]["of"], marks[0]["state"], marks[0]["t_s"]) == ("cpu", "0.50 cores", WALL_S)


# --- how large it is -------------------------------------------------------------------------------------------------


def test_full_day_of_a_large_machine_is_no_more_than_a_mebibyte_and_memory_is_bounded() -> None:
    tracemalloc.start()
    day = Day()
    one = snapshot(0.0, (1024.0, 1000.0, 500.0, 511.111), (float(4 << 40),) * 4)
    decision = decided(one, 1000.0)
    for series in day._series.values():
        for each in series.values():
            for step in range(HOUR_S):
                each.seconds.put(step, 1023.999 if each in day._series["cpu"].values() else float(4 << 40))
            for ring in each.minutes.values():
                for step in range(DAY_MINUTES):
                    ring.put(step, 1023.999 if each in day._series["cpu"].values() else float(4 << 40))
    day.sampled(replace(one, t_s=86399.0), decision, "")
    for number in range(2 * MOST_MARKS):
        day.mark(86399.0, Kind.LEAVING, "\u00e9" * 4000 + str(number), "batch/" + "x" * 4000, "stopped")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 900_000
    assert len(day.to_json(86400.0, WALL_S)) <= 1 << 20


@pytest.mark.parametrize("text", ["\x00\x1b", "\udcff", '"</script>'])
def test_mark_is_ascii_whatever_it_says(text: str) -> None:
    day = Day()
    day.mark(1.0, Kind.LEAVING, text, text, text)
    assert day.to_json(2.0, WALL_S).isascii()
