"""What the box has to answer for, so that kubelet evicts no online pod."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.memory_pressure import (
    EvictionHard,
    Evidence,
    MemoryVerdict,
    halfway_bytes,
    judge,
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
        pytest.param(EvictionHard(soft_bytes=GIB), 100 * GIB, 3 * GIB, 2 * GIB, id="soft-is-larger"),
        pytest.param(EvictionHard(0, soft_ratio=0.05), 100 * GIB, 7 * GIB, 6 * GIB, id="soft-alone"),
        pytest.param(EvictionHard(0), 4 * GIB, 0, 0, id="kubelet-has-none"),
        pytest.param(EvictionHard(8 * GIB), 4 * GIB, 0, 0, id="more-than-there-is"),
    ],
)
def test_what_is_kept_free(hard: EvictionHard, capacity: float, kept: float, halfway: float) -> None:
    assert kept_free_bytes(hard, capacity) == pytest.approx(kept)
    assert halfway_bytes(hard, capacity) == pytest.approx(halfway)


@pytest.mark.parametrize(
    ("seen", "since_s", "above", "over"),
    [
        pytest.param(evidence(GIB, 500 * MIB), 90.0, True, False, id="far-from-kubelets-threshold"),
        pytest.param(evidence(149 * MIB, 500 * MIB), 90.0, True, True, id="past-half-way-and-above-its-bound"),
        pytest.param(evidence(151 * MIB, 500 * MIB), 90.0, True, False, id="not-half-way"),
        pytest.param(evidence(149 * MIB, 500 * MIB), None, False, True, id="above-for-a-moment"),
        pytest.param(evidence(99 * MIB, 500 * MIB), None, True, True, id="threshold-crossed-at-once"),
        pytest.param(evidence(99 * MIB, 128 * MIB), None, False, False, id="online-alone-fills-the-node"),
        pytest.param(evidence(99 * MIB, 0), None, False, False, id="box-uses-nothing"),
        pytest.param(evidence(99 * MIB, 500 * MIB, None), None, False, False, id="no-bound"),
    ],
)
def test_verdict(seen: Evidence, since_s: float | None, above: bool, over: bool) -> None:
    verdict, after = judge(seen, since_s)
    assert verdict == MemoryVerdict(above, over)
    within = seen.bound is None or seen.box <= seen.bound
    assert after == (None if within else since_s or seen.t_s)


def test_box_that_was_within_its_bound_in_between_counts_from_anew() -> None:
    since_s: float | None = None
    above = []
    for t_s, box in [(0.0, 500), (1.0, 500), (1.5, 100), (2.0, 500), (3.0, 500), (4.0, 500)]:
        verdict, since_s = judge(evidence(140 * MIB, box * MIB, t_s=t_s), since_s)
        above.append(verdict.above)
    assert above == [False, False, False, False, False, True]


SIZES = st.floats(0, 8 * GIB)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), SIZES, SIZES, st.none() | SIZES), max_size=60))
def test_no_history_has_a_box_within_its_bound_answer_for_anything(
    samples: list[tuple[float, float, float, float | None]],
) -> None:
    since_s, t_s = None, 0.0
    for dt_s, node, box, bound in samples:
        t_s += dt_s
        verdict, since_s = judge(Evidence(t_s, CAPACITY, node, box, bound, HARD), since_s)
        if verdict.above or verdict.over:
            assert bound is not None and box > bound
        if verdict.over:
            assert CAPACITY - node < halfway_bytes(HARD, CAPACITY)


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
