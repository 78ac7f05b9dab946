from typing import Any

import pytest

from integration.demo import DemoError
from integration.demo.spark.report import Run, check, in_words
from integration.lab.spark import Work

WORK = Work(rows=4, parts=2, rounds=1)
RIGHT = {"rows": 4, "ids": 6, "hashes": 77, "seconds": 10.0}


def ended(reason: str, **more: Any) -> dict[str, Any]:
    return {"Task End Reason": {"Reason": reason, **more}}


def removed(number: str, reason: str) -> dict[str, str]:
    return {"Executor ID": number, "Removed Reason": reason}


BESIDE = Run.of(
    {**RIGHT, "seconds": 15.0},
    [removed("1", "Executor decommission: 1"), removed("2", "exited with 137"), removed("1", "deleted by a user")],
    [
        ended("Success"),
        ended("Resubmitted"),
        ended("FetchFailed"),
        ended("ExecutorLostFailure", **{"Exit Caused By App": True}),
        ended("ExecutorLostFailure", **{"Exit Caused By App": False}),
    ],
)


def test_run_counts_tasks_by_how_they_ended_and_executors_by_why_they_went_first() -> None:
    assert BESIDE.removed == {"1": "Executor decommission: 1", "2": "exited with 137"}
    assert (BESIDE.lost, BESIDE.again, BESIDE.counted) == (3, 1, 1)


@pytest.mark.parametrize("wrong", [{"rows": 3}, {"ids": 7}, {"hashes": 78}], ids=lambda wrong: next(iter(wrong)))
def test_wrong_answer_of_either_run_is_an_error(wrong: dict[str, int]) -> None:
    right, other = Run.of(RIGHT, [], []), Run.of({**RIGHT, **wrong}, [], [])
    check(WORK, right, right)
    for alone, beside in ((right, other), (other, right)):
        with pytest.raises(DemoError, match="The answer is wrong"):
            check(WORK, alone, beside)


def test_words_have_the_figures() -> None:
    latencies = {"alone": [0.002] * 100, "beside the job": []}
    said = "\n".join(in_words(Run.of(RIGHT, [], []), BESIDE, ["exec-1"], "exec-2", latencies))
    assert "10.0 s, in what online left 15.0 s: 1.50 x" in said
    assert "Evicted: 1 of its executors; killed: exec-2." in said
    assert "1 as decommissioned; 3 tasks were run in vain, 1 again as their output was lost, 1 counted" in said
    assert "alone                         100     2 ms     2 ms" in said
