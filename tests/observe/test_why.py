"""Why a limit was what it was: the answer as data, as text, and the moments that may be asked for."""

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from msgspec.structs import replace

from criproxy.control.history import DecisionRecord, History
from criproxy.control.interference.ladder import Rung, Transition
from criproxy.control.interference.responder import Move
from criproxy.model import GuardCeiling, ResourcePrediction
from criproxy.model.modes import Mode
from criproxy.observe.why import Why, answer, from_json, parse_moment, render, to_json
from tests.observe.status_samples import DECISION, GIB, SNAPSHOT

WALL = 1_773_061_200.0  # 2026-03-09 14:00:00 in Berlin


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def record(
    after_s: float, *, kept_by: Mode | None = None, of: dict[str, dict[str, object]] | None = None, **changes: object
) -> DecisionRecord:
    """`of`: what is else of a resource."""
    resources = {name: replace(one, **(of or {}).get(name, {})) for name, one in DECISION.resources.items()}
    decision = replace(DECISION, t_s=after_s, resources=resources, **changes)
    return DecisionRecord(WALL + after_s, SNAPSHOT, decision, kept_by)


def history(*records: DecisionRecord) -> History:
    kept = History()
    for each in records:
        kept.add(each)
    return kept


KEPT = history(
    record(
        0.0,
        of={
            "cpu": {"before": None, "limit": 2.0, "reason": "set to 2.00 cores: at first"},
            "memory": {"before": None},
        },
    ),
    record(180.0),
    record(190.0, of={"cpu": {"reason": "held at 1.50 cores: too soon"}}),
    record(
        200.0,
        of={"cpu": {"limit": 0.5}, "memory": {"limit": 2 * GIB}},
        guard=GuardCeiling(0.5, "online waits"),
        window="window night (dynamic)",
    ),
)


def test_answer_at_a_moment_has_the_decision_its_inputs_and_since_when() -> None:
    decision = answer(KEPT, WALL + 195.0).decision
    assert decision is not None
    cpu, memory = decision.resources["cpu"], decision.resources["memory"]
    assert (decision.decided_s, decision.applied, decision.guard) == (WALL + 190.0, True, None)
    assert (cpu.limit, cpu.before, cpu.since_s, cpu.since_reason) == (1.5, 2.0, WALL + 180.0, "lowered to 1.50 cores")
    assert (cpu.capacity, cpu.online, cpu.predicted, cpu.bounds) == (4.0, 1.75, 2.1, DECISION.resources["cpu"].bounds)
    assert (memory.limit, memory.predicted, memory.since_s) == ("unlimited", None, WALL)


def test_answer_for_now_is_the_last_decision() -> None:
    decision = answer(KEPT, None).decision
    assert decision is not None
    assert {name: one.limit for name, one in decision.resources.items()} == {"cpu": 0.5, "memory": 2 * GIB}
    assert decision.window == "window night (dynamic)"
    assert decision.guard == GuardCeiling(0.5, "online waits")


@pytest.mark.parametrize(
    ("kept", "asked_s", "first_s"), [(KEPT, WALL - 1.0, WALL), (History(), None, None), (History(), WALL, None)]
)
def test_answer_that_is_not_on_record_says_so(kept: History, asked_s: float | None, first_s: float | None) -> None:
    assert answer(kept, asked_s) == Why(asked_s, first_s, None)


@pytest.mark.parametrize("asked_s", [None, WALL + 195.0, WALL - 1.0])
def test_json_comes_back_as_it_went(asked_s: float | None) -> None:
    why = answer(KEPT, asked_s)
    assert from_json(to_json(why)) == why


@pytest.mark.parametrize(
    ("kept_by", "shown"),
    [
        pytest.param({}, "\nnot applied\n", id="of a version that does not name the mode"),
        pytest.param({"kept_by": "asleep"}, "\nnot applied (asleep)\n", id="a mode of a newer version"),
    ],
)
def test_answer_of_another_version_says_that_the_decision_is_not_applied(kept_by: dict[str, str], shown: str) -> None:
    """As while an upgrade is refused, and the old process goes on."""
    data = json.loads(to_json(answer(history(record(0.0, kept_by=Mode.DRY_RUN)), None)))
    del data["decision"]["kept_by"]
    data["decision"].update(kept_by)
    assert shown in render(from_json(json.dumps(data)))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"asked_s": "x"}'])
def test_json_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_text_answers_for_a_moment() -> None:
    assert (
        render(answer(KEPT, WALL + 195.0))
        == """\
at 2026-03-09 14:03:15 CET, by the decision of 2026-03-09 14:03:10 CET

CPU limit 1.50 cores, since 2026-03-09 14:03:00 CET
  then       lowered to 1.50 cores
  why        held at 1.50 cores: too soon
  capacity   4.00 cores, watermark 0.90, reserve 0.50 cores
  online     1.75 cores, predicted 2.10 cores
  limits     before 2.00 cores, after 1.50 cores
  bounds     floor 0.10 cores, ceiling 3.00 cores
  guard      at rest

memory limit unlimited, since 2026-03-09 14:00:00 CET
  why        not known
  capacity   8.00 GiB, reserve 0 KiB
  online     3.00 GiB, predicted not known
  limits     before unlimited, after unlimited
  bounds     floor 1.00 GiB, ceiling none
"""
    )


@pytest.mark.parametrize(
    ("kept", "asked_s", "shown"),
    [
        pytest.param(KEPT, None, "now, by the decision of", id="now"),
        pytest.param(KEPT, None, "  guard      0.50 cores (online waits)\n", id="guard"),
        pytest.param(KEPT, None, "  schedule   window night (dynamic)\n", id="window"),
        pytest.param(KEPT, WALL - 60.0, "record begins at 2026-03-09 14:00:00 CET\n", id="before-the-record"),
        pytest.param(History(), None, "no decision is on record\nnothing was decided yet\n", id="empty"),
        pytest.param(
            history(record(0.0, kept_by=Mode.DRY_RUN)),
            None,
            "\nnot applied (dry run): criproxy runs with --dry-run\n",
            id="dry-run",
        ),
        pytest.param(
            history(record(0.0, kept_by=Mode.HELD_OFF)),
            None,
            "\nnot applied (held off): an operator holds criproxy off the box (`criproxy hold-off`)\n",
            id="held-off",
        ),
        pytest.param(history(record(0.0)), None, "1.50 cores, since before the record begins\n", id="older"),
        pytest.param(
            history(record(0.0, of={"cpu": {"prediction": ResourcePrediction(4.0, "cold start\x1b[2J")}})),
            None,
            "predicted 4.00 cores (cold start\\x1b[2J)\n",
            id="cold-start",
        ),
    ],
)
def test_text_shows(kept: History, asked_s: float | None, shown: str) -> None:
    assert shown in render(answer(kept, asked_s))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param("14:03", "2026-03-09T14:03:00", id="today"),
        pytest.param("14:03:07", "2026-03-09T14:03:07", id="seconds"),
        pytest.param("14:05:30", "2026-03-09T14:05:30", id="this-very-second"),
        pytest.param("14:06", "2026-03-08T14:06:00", id="yesterday"),
        pytest.param("2026-03-09T13:59", "2026-03-09T13:59:00", id="iso"),
        pytest.param("2026-03-09 13:59:01", "2026-03-09T13:59:01", id="iso-with-a-blank"),
        pytest.param("2026-03-09T12:59:00Z", "2026-03-09T13:59:00", id="iso-utc"),
    ],
)
def test_moment_is_the_last_such_in_local_time(text: str, meant: str) -> None:
    now_s = datetime.fromisoformat("2026-03-09T14:05:30").timestamp()
    assert parse_moment(text, now_s) == datetime.fromisoformat(meant).timestamp()


@pytest.mark.parametrize(
    ("now", "text", "meant"),
    [
        pytest.param("2026-10-25T02:45:00+01:00", "02:40", "2026-10-25T02:40:00+01:00", id="the-second-of-two"),
        pytest.param("2026-10-25T02:45:00+01:00", "02:50", "2026-10-25T02:50:00+02:00", id="the-first-of-two"),
        pytest.param("2026-10-25T02:45:00+02:00", "02:50", "2026-10-24T02:50:00+02:00", id="neither-yet"),
        pytest.param("2026-10-26T01:00:00+01:00", "02:40", "2026-10-25T02:40:00+01:00", id="the-second-of-yesterday"),
    ],
)
def test_moment_in_the_night_when_clocks_go_back_is_the_last_such(now: str, text: str, meant: str) -> None:
    now_s = datetime.fromisoformat(now).timestamp()
    assert parse_moment(text, now_s) == datetime.fromisoformat(meant).timestamp()


@pytest.mark.parametrize("text", ["", "noon", "25:00", "14:60", "1:2:3:4", "2026-13-01T00:00", "99999999999999"])
def test_moment_that_is_none_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time: write 14:03, 14:03:07 or 2026-03-09T14:03:07"):
        parse_moment(text, WALL)


def test_text_says_what_pods_get_below_what_is_published() -> None:
    speed = "of 2 that want CPU, 50% below 90%, 0% below 50% of what they asked for; starved for five minutes: 0"
    why = replace(answer(KEPT, None), published="CPU 1.00 cores: the floor", pods_speed=speed)
    told = """
published to Kubernetes
  CPU 1.00 cores: the floor

what offline pods get of the CPU that is published
  of 2 that want CPU, 50% below 90%, 0% below 50% of what they asked for
  starved for five minutes: 0
"""
    assert render(why).endswith(told)
    assert from_json(to_json(why)) == why
    assert "what offline pods get" not in render(replace(why, pods_speed=""))


def test_text_has_the_ladders_last_step_before_the_moment() -> None:
    def move(after_s: float, after: Rung, reason: str) -> Move:
        return Move(WALL + after_s, Transition(1.0, "cpu", Rung.OPEN, after, "cpu_pressure", reason))

    moves = (move(192.0, Rung.SQUEEZED, "it helped"), move(188.0, Rung.TRIED, "online waits"))
    moments = (None, WALL + 191.0, WALL + 187.0)
    now, then, before = (answer(KEPT, moment, moves=moves) for moment in moments)

    assert "ladder     squeezed since 2026-03-09 14:03:12 CET: it helped" in render(now)
    assert "ladder     tried since 2026-03-09 14:03:08 CET: online waits" in render(then)
    assert "ladder" not in render(before)
    assert from_json(to_json(now)) == now
