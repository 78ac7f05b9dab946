"""Senpai's law: a hundredth at most, and nothing where somebody waits for memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.proactive_reclaim import EVERY_S, ReclaimState, step
from criproxy.model.signals import Stall

GIB = 1 << 30


def taken(stalls_s: list[float], size_bytes: int = GIB) -> list[int]:
    """At each step, of a box that has waited for so long since the step before."""
    state, some_s, found = ReclaimState(), 0.0, []
    for number, stall_s in enumerate(stalls_s):
        some_s += stall_s
        size, state = step(Stall(1000.0 + number * EVERY_S, some_s), size_bytes, state)
        found.append(size)
    return found


@pytest.mark.parametrize(
    ("stall_s", "share"),
    [
        pytest.param(0.0, 0.01, id="no-pressure"),
        pytest.param(0.003, 0.005, id="half-the-threshold"),
        pytest.param(0.006, 0.0, id="the-threshold"),
        pytest.param(3.0, 0.0, id="far-above"),
    ],
)
def test_less_is_taken_the_longer_the_box_has_waited(stall_s: float, share: float) -> None:
    assert taken([0.0, stall_s])[1] == pytest.approx(GIB * share, abs=1)


def test_nothing_is_taken_before_pressure_is_known() -> None:
    assert taken([0.0]) == [0]


def test_pressure_of_the_last_minute_counts_after_it_has_ended() -> None:
    found = taken([0.0, 0.6, *[0.0] * 60])

    calm = found[2:]
    assert calm[:10] == [0] * 10, "for a minute at least"
    assert 0 < calm[-1] <= GIB // 100
    assert calm == sorted(calm)


def test_box_that_was_made_anew_is_looked_at_first() -> None:
    state = step(Stall(1000.0, 50.0), GIB, ReclaimState())[1]

    size, state = step(Stall(1006.0, 0.0), GIB, state)

    assert (size, step(Stall(1012.0, 0.0), GIB, state)[0]) == (0, GIB // 100)


@given(st.lists(st.floats(0.0, 6.0), max_size=30), st.integers(0, 1 << 45))
def test_any_pressure_takes_a_hundredth_at_most(stalls_s: list[float], size_bytes: int) -> None:
    assert all(0 <= size <= size_bytes * 0.01 for size in taken(stalls_s, size_bytes))
