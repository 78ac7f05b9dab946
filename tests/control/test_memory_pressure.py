"""When an offline pod goes, so that kubelet evicts no online one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.memory_pressure import (
    PAUSE_S,
    EvictionHard,
    Evidence,
    PressureState,
    decide,
    halfway_bytes,
    kept_free_bytes,
    margin_bytes,
)

MIB, GIB = 1 << 20, 1 << 30
HARD = EvictionHard()
CAPACITY = 4 * GIB  # margin 100 MiB: half-way at 150 MiB available


def evidence(available: float, box: float, bound: float | None = 128 * MIB, t_s: float = 100.0) -> Evidence:
    return Evidence(t_s, CAPACITY, CAPACITY - available, box, bound, HARD)


@pytest.mark.parametrize(
    ("hard", "capacity", "kept", "halfway"),
    [
        pytest.param(HARD, 4 * GIB, 200 * MIB, 150 * MIB, id="default"),
        pytest.param(EvictionHard(GIB), 100 * GIB, 3 * GIB, 2 * GIB, id="large-node"),
        pytest.param(EvictionHard(0, 0.05), 100 * GIB, 7 * GIB, 6 * GIB, id="ratio"),
        pytest.param(EvictionHard(0), 4 * GIB, 0, 0, id="kubelet-has-none"),
        pytest.param(EvictionHard(8 * GIB), 4 * GIB, 0, 0, id="more-than-there-is"),
    ],
)
def test_what_is_kept_free(hard: EvictionHard, capacity: float, kept: float, halfway: float) -> None:
    assert kept_free_bytes(hard, capacity) == pytest.approx(kept)
    assert halfway_bytes(hard, capacity) == pytest.approx(halfway)


@pytest.mark.parametrize(
    ("seen", "state", "over", "act"),
    [
        pytest.param(evidence(GIB, 500 * MIB), PressureState(90.0), False, False, id="far-from-kubelets-threshold"),
        pytest.param(
            evidence(149 * MIB, 500 * MIB), PressureState(90.0), True, True, id="past-half-way-and-above-its-bound"
        ),
        pytest.param(evidence(151 * MIB, 500 * MIB), PressureState(90.0), False, False, id="not-half-way"),
        pytest.param(evidence(149 * MIB, 500 * MIB), PressureState(), True, False, id="above-for-a-moment"),
        pytest.param(evidence(99 * MIB, 500 * MIB), PressureState(), True, True, id="threshold-crossed-at-once"),
        pytest.param(evidence(99 * MIB, 128 * MIB), PressureState(), False, False, id="online-alone-fills-the-node"),
        pytest.param(evidence(99 * MIB, 0), PressureState(), False, False, id="box-uses-nothing"),
        pytest.param(evidence(99 * MIB, 500 * MIB, None), PressureState(), False, False, id="no-bound"),
        pytest.param(
            evidence(149 * MIB, 500 * MIB), PressureState(90.0, 95.0), True, False, id="one-was-stopped-just-now"
        ),
        pytest.param(
            evidence(149 * MIB, 500 * MIB), PressureState(80.0, 90.0), True, True, id="still-over-after-the-pause"
        ),
    ],
)
def test_decision(seen: Evidence, state: PressureState, over: bool, act: bool) -> None:
    verdict, after = decide(seen, state)
    assert (verdict.over, verdict.act) == (over, act)
    assert after.acted_s == (seen.t_s if act else state.acted_s)


def test_box_that_was_within_its_bound_in_between_counts_from_anew() -> None:
    state = PressureState()
    seen = [(0.0, 500), (1.0, 500), (1.5, 100), (2.0, 500), (3.0, 500), (4.0, 500)]
    acts = []
    for t_s, box in seen:
        verdict, state = decide(evidence(140 * MIB, box * MIB, t_s=t_s), state)
        acts.append(verdict.act)
    assert acts == [False, False, False, False, False, True]


SIZES = st.floats(0, 8 * GIB)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), SIZES, SIZES, st.none() | SIZES), max_size=60))
def test_no_history_stops_a_pod_of_a_box_within_its_bound_or_two_at_once(
    samples: list[tuple[float, float, float, float | None]],
) -> None:
    state, t_s, last_s = PressureState(), 0.0, -math.inf
    for dt_s, node, box, bound in samples:
        t_s += dt_s
        verdict, state = decide(Evidence(t_s, CAPACITY, node, box, bound, HARD), state)
        if verdict.act:
            assert verdict.over
            assert bound is not None and box > bound
            assert CAPACITY - node < halfway_bytes(HARD, CAPACITY)
            assert t_s - last_s >= PAUSE_S
            last_s = t_s


@given(SIZES, st.floats(0, 2 * GIB), st.floats(256 * MIB, 1e13))
def test_box_at_the_limit_that_keeps_enough_free_is_never_past_half_way(
    online: float, hard: float, capacity: float
) -> None:
    """What the policy leaves, and where a pod is stopped, can't meet."""
    threshold = EvictionHard(int(hard))
    kept = kept_free_bytes(threshold, capacity)
    limit = capacity - kept - online
    if kept and limit > 0:
        available = capacity - online - limit
        assert available > halfway_bytes(threshold, capacity) - 1
        assert margin_bytes(capacity) / 2 < kept
