"""Sweeps: what may be swept, and what is recommended in which words."""

import pytest
from msgspec.structs import replace

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.sweep import Point, advice, parse_sweep, recommended
from tests.commands.simulate.simulate_helpers import PLAN, summary


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("watermark=0.6..0.9", (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)),
        ("watermark=0.9..1", (0.9, 0.95, 1.0)),
        ("watermark=0.81..0.9", (0.81, 0.825, 0.84, 0.855, 0.87, 0.885, 0.9)),
        ("watermark=0.1..1.0", (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)),
        ("alpha=0.005..0.1", (0.005, 0.0082, 0.014, 0.022, 0.037, 0.061, 0.1)),
    ],
)
def test_sweep_goes_from_low_to_high(text, values):
    assert parse_sweep(text).values == values


@pytest.mark.parametrize(
    "text",
    ["watermark", "watermark=0.6", "watermark=0.9..0.6", "watermark=0..1", "watermark=0.5..1.1", "alpha=0..0.1",
     "alpha=0.1..1", "alpha=a..b", "alpha=nan..0.1", "half_life=1..2", ""],
)  # fmt: skip
def test_sweep_of_anything_else_is_one_clear_error(text):
    with pytest.raises(SimulateError, match="such as watermark=0"):
        parse_sweep(text)


def test_sweep_changes_its_setting_alone():
    assert parse_sweep("alpha=0.01..0.1").plans(PLAN)[-1] == replace(PLAN, alpha_ratio=0.1)
    assert parse_sweep("watermark=0.6..0.9").plans(PLAN)[0] == replace(PLAN, watermark_ratio=0.6)


def points(*rows):
    """(value, what offline gets, hard violations)"""
    return [Point(value, summary(limit_ratio=gain, hard_ratio=hard)) for value, gain, hard in rows]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0.7, 0.2, 0.0), (0.8, 0.3, 0.001), (0.9, 0.4, 0.003)], 0.8),
        ([(0.7, 0.2, 0.0), (0.8, 0.3, 0.001), (0.9, 0.4, 0.002)], 0.9),
        ([(0.01, 0.2, 0.0), (0.02, 0.30, 0.0), (0.05, 0.31, 0.0)], 0.02),
        ([(0.7, 0.2, 0.01), (0.8, 0.3, 0.02)], None),
        ([(0.7, 0.0, 0.0), (0.8, 0.0, 0.0)], 0.7),
    ],
    ids=["most-within-the-budget", "exactly-the-budget", "nearly-the-most-is-enough", "none", "nothing-to-gain"],
)
def test_recommended_is_the_most_careful_that_gives_nearly_the_most(rows, expected):
    best = recommended(points(*rows), PLAN)
    assert (best and best.value) == expected


def test_recommended_for_a_longer_horizon_may_be_exceeded_more_often():
    tried = points((0.7, 0.2, 0.01))
    assert recommended(tried, PLAN) is None
    assert recommended(tried, replace(PLAN, horizon_s=3600.0)) is tried[0]


def test_advice_says_what_to_set_why_and_what_the_neighbours_do():
    sweep, tried = parse_sweep("watermark=0.6..0.9"), points((0.7, 0.2, 0.0), (0.8, 0.3, 0.001), (0.9, 0.4, 0.003))
    first, rule, higher, lower = advice(sweep, tried, PLAN)
    assert first.startswith("Recommended: watermark 0.8: offline gets 30.0% of a node on average;")
    assert first.endswith("not enough for it 0.10% (1.4 min a day).")
    assert "at most 0.2% of the time (2.9 min a day)" in rule
    assert higher.startswith("Next higher, 0.9: offline gets 40.0%")
    assert lower.startswith("Next lower, 0.7: offline gets 20.0%")


def test_advice_at_the_highest_value_says_that_more_may_do():
    sweep, tried = parse_sweep("watermark=0.6..0.9"), points((0.8, 0.3, 0.0), (0.9, 0.4, 0.0))
    assert advice(sweep, tried, PLAN)[2] == "It is the highest value tried; a higher one may do as well."


@pytest.mark.parametrize(("text", "other"), [("watermark=0.6..0.9", "alpha"), ("alpha=0.01..0.1", "watermark")])
def test_advice_where_all_is_too_risky_names_the_most_careful_and_the_other_setting(text, other):
    lines = advice(parse_sweep(text), points((0.7, 0.2, 0.01), (0.8, 0.3, 0.02)), PLAN)
    assert lines[0].startswith("No value tried can be recommended")
    assert " 0.7: " in lines[1]
    assert lines[2].startswith(f"Lower {other} as well")


def test_advice_for_a_longer_horizon_counts_no_minutes():
    """Its violations are of promises, not of moments."""
    lines = advice(parse_sweep("alpha=0.01..0.1"), points((0.01, 0.2, 0.001)), replace(PLAN, horizon_s=3600.0))
    assert "min a day" not in " ".join(lines)
