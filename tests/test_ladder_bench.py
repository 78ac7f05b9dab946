"""The aims of `python -m benchmarks.ladder.aims`."""

import math

import pytest

from benchmarks.ladder.aims import verdicts

INNOCENT = {
    "scenario": "innocent, hot, no episodes", "seed": 1, "false %": 0.0, "stray/day": 0.0, "lost %": 0.3,
    "pods/day": 0.0, "missed %": 0.0, "episodes": 0, "phases": 0,
}  # fmt: skip
GUILTY = {
    "scenario": "guilty, 10 min of 20", "seed": 1, "false %": 0.0, "stray/day": 0.0, "lost %": 50.0, "pods/day": 0.0,
    "missed %": 0.0, "harm s p50": 3.5, "cure s p50": 6.0, "back s p90": 80.0, "harm s/guilty h": 180.0,
    "episodes": 0, "phases": 59,
}  # fmt: skip


def missed(*rows: dict[str, object]) -> list[str]:
    return [one.aim for one in verdicts(rows) if one.met == "NO"]


def test_rows_that_meet_the_aims_miss_none() -> None:
    assert missed(INNOCENT, GUILTY) == []


def test_innocent_box_that_is_convicted_without_an_episode_misses_an_aim() -> None:
    assert len(missed(INNOCENT, {**INNOCENT, "stray/day": 200.0})) == 1


@pytest.mark.parametrize(
    ("scenario", "harm_s"),
    [("guilty, 10 min of 20", 400.0), ("guilty, 30 s of 330", 1500.0), ("guilty, always", 300.0)],
)
def test_harm_of_a_guilty_box_is_bounded_for_an_hour_of_guilt(scenario: str, harm_s: float) -> None:
    assert missed({**GUILTY, "scenario": scenario, "harm s/guilty h": 90.0}) == []
    assert len(missed({**GUILTY, "scenario": scenario, "harm s/guilty h": harm_s})) == 1


@pytest.mark.parametrize("column", ["back s p90", "harm s p50", "harm s/guilty h"])
def test_figure_that_is_missing_of_one_row_misses_its_aim(column: str) -> None:
    (aim,) = missed(GUILTY, {**GUILTY, column: math.nan}, GUILTY)
    assert missed({name: value for name, value in GUILTY.items() if name != column}) == [aim]


def test_single_phase_may_end_amid_a_probe_so_that_nothing_is_given_back() -> None:
    always = {**GUILTY, "scenario": "guilty, always", "phases": 1, "harm s/guilty h": 90.0}
    assert missed(GUILTY, {**always, "back s p90": math.nan}) == []
    assert len(missed(GUILTY, {**always, "back s p90": 900.0})) == 1
