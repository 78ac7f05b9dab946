"""The CPU limit by evidence, as data: open, squeezed, at the floor, and where the prediction's law alone counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.evidence import LOST_S, CpuEvidence, bound_by_evidence
from criproxy.control.policy import DynamicSettings, PolicyState, StaticSettings, decide
from criproxy.model import UNLIMITED, Bounds, GuardCeiling, ResourceDecision, ResourcePrediction
from tests import rows

LAW = DynamicSettings(floor=0.1, watermark_ratio=0.9, reserve=0.25)
EVIDENCE = CpuEvidence(capacity_cores=4.0, cpu_idle=True, seen_s=1.0)
PREDICTED = "held at 1.10 cores: 4.00 cores x 0.90 - predicted 2.25 cores - reserve 0.25 cores"


def decided(limit=1.1, before=1.1, law=LAW, reason=PREDICTED):
    return ResourceDecision(limit, reason, law.bounds, ResourcePrediction(2.3), before)


def limit_of(decision, law, evidence):
    limit = bound_by_evidence(decision, law, evidence).limit
    assert limit is not UNLIMITED
    return limit


def bound(evidence, law=LAW, **of_decision):
    after = bound_by_evidence(decided(law=law, **of_decision), law, evidence)
    return after.limit, after.reason


OPEN = "open, as nothing tells of harm: all of 4.00 cores"


@pytest.mark.parametrize(
    ("law", "before", "limit", "reason"),
    [
        pytest.param(LAW, None, 3.75, f"set to 3.75 cores: {OPEN} - reserve 0.25 cores", id="first"),
        pytest.param(LAW, 1.1, 3.75, f"raised 1.10 cores -> 3.75 cores: {OPEN} - reserve 0.25 cores", id="raised"),
        pytest.param(LAW, 3.75, 3.75, f"held at 3.75 cores: {OPEN} - reserve 0.25 cores", id="held"),
        pytest.param(
            LAW, 8.0, 3.75, f"lowered 8.00 cores -> 3.75 cores: {OPEN} - reserve 0.25 cores", id="cpus-have-gone"
        ),
        pytest.param(
            LAW, UNLIMITED, 3.75, f"set to 3.75 cores: {OPEN} - reserve 0.25 cores", id="was-lifted"
        ),
        pytest.param(replace(LAW, reserve=0.0), None, 4.0, f"set to 4.00 cores: {OPEN}", id="no-reserve"),
        pytest.param(
            replace(LAW, ceiling=2.5), None, 2.5,
            f"set to 2.50 cores: {OPEN} - reserve 0.25 cores, at most the ceiling", id="ceiling",
        ),
        pytest.param(
            replace(LAW, reserve=5.0), None, 0.1, f"set to 0.10 cores: {OPEN} - reserve 5.00 cores, at least the floor",
            id="all-is-reserved",
        ),
        pytest.param(
            replace(LAW, max_raise_ratio=0.25), 1.1, 2.1,
            f"raised 1.10 cores -> 2.10 cores: {OPEN} - reserve 0.25 cores, at most 1.00 cores at a time",
            id="in-strides",
        ),
        pytest.param(
            replace(LAW, max_raise_ratio=0.25), 3.0, 3.75,
            f"raised 3.00 cores -> 3.75 cores: {OPEN} - reserve 0.25 cores", id="the-last-stride",
        ),
        pytest.param(
            replace(LAW, max_raise_ratio=0.25), None, 3.75, f"set to 3.75 cores: {OPEN} - reserve 0.25 cores",
            id="the-first-limit-at-once",
        ),
    ],
)  # fmt: skip
def test_box_is_open_while_nothing_tells_of_harm(law, before, limit, reason) -> None:
    assert bound(EVIDENCE, law, before=before) == (limit, reason)


@pytest.mark.parametrize(
    ("share", "limit", "words"),
    [
        (1.0, 1.1, "lowered 3.75 cores -> 1.10 cores: squeezed to the prediction"),
        (7.0, 1.1, "lowered 3.75 cores -> 1.10 cores: squeezed to the prediction"),
        (
            0.5,
            0.6,
            "lowered 3.75 cores -> 0.60 cores: squeezed to 50 % of the way from the floor to the prediction",
        ),
        (
            0.001,
            0.1,
            "lowered 3.75 cores -> 0.10 cores: squeezed to 0 % of the way from the floor to the prediction",
        ),
        (0.0, 0.1, "lowered 3.75 cores -> 0.10 cores: squeezed to the floor"),
        (-1.0, 0.1, "lowered 3.75 cores -> 0.10 cores: squeezed to the floor"),
        (math.nan, 0.1, "lowered 3.75 cores -> 0.10 cores: squeezed to the floor"),
    ],
)
def test_box_is_squeezed_between_prediction_and_floor(share, limit, words) -> None:
    assert bound(replace(EVIDENCE, share=share), before=3.75) == (pytest.approx(limit), f"{words} ({PREDICTED})")


def test_box_is_squeezed_at_once_and_has_at_once_what_the_ladder_gives_back_but_for_the_guard() -> None:
    """Seconds of a probe count, so that they must not pass before the box has what is probed."""
    slow, given_back = replace(LAW, max_raise_ratio=0.1), replace(EVIDENCE, given_back=True)

    assert bound(replace(EVIDENCE, share=0.0), slow, before=3.75)[0] == 0.1
    assert bound(replace(EVIDENCE, share=1.0), slow, before=0.1)[0] == 1.1
    assert bound(given_back, slow, before=0.1)[0] == 3.75
    assert bound(replace(given_back, guard=GuardCeiling(1.5, "a step")), slow, before=0.1)[0] == 1.5


def test_box_that_the_ladder_does_not_hold_is_raised_in_strides() -> None:
    assert bound(EVIDENCE, replace(LAW, max_raise_ratio=0.1), before=0.1)[0] == pytest.approx(0.5)


def test_box_that_is_squeezed_before_anything_is_predicted_has_the_floor() -> None:
    unknown = "held at 0.10 cores: the floor, as online usage can't be predicted"

    assert bound(replace(EVIDENCE, share=1.0), limit=0.1, before=0.1, reason=unknown) == (
        0.1,
        f"held at 0.10 cores: squeezed to the prediction ({unknown})",
    )


def test_box_is_open_also_before_anything_is_predicted() -> None:
    assert bound(EVIDENCE, limit=0.1, before=None)[0] == 3.75


def test_prediction_above_what_is_open_gives_no_more() -> None:
    """The last decision's law may have known more CPUs."""
    assert bound(replace(EVIDENCE, share=1.0), limit=7.0, before=7.0)[0] == 3.75


@pytest.mark.parametrize(
    ("ceiling", "limit", "words"),
    [
        (1.5, 1.5, "the guard's ceiling (online stepped up), below what is 3.75 cores: open"),
        (0.01, 0.1, "the guard's ceiling (online stepped up), below what is 3.75 cores: open"),
        (9.0, 3.75, ": open"),
        (math.nan, 3.75, ": open"),
    ],
    ids=["below", "below-the-floor", "above", "no-number"],
)
def test_guards_ceiling_holds_for_an_open_box(ceiling, limit, words) -> None:
    found, reason = bound(replace(EVIDENCE, guard=GuardCeiling(ceiling, "online stepped up")))

    assert found == limit
    assert words in reason


@pytest.mark.parametrize(
    ("changed", "is_open"),
    [
        ({}, True),
        ({"share": 1.0}, False),
        ({"share": 0.0}, False),
        ({"guard": GuardCeiling(1.5, "a step")}, False),
        ({"guard": GuardCeiling(9.0, "a step")}, True),
        ({"cpu_idle": False}, False),
        ({"seen_s": None}, False),
    ],
)
def test_decision_says_whether_the_box_is_open(changed, is_open) -> None:
    decided = ResourceDecision(1.0, PREDICTED, LAW.bounds, ResourcePrediction(2.3), 1.0)
    assert bound_by_evidence(decided, LAW, replace(EVIDENCE, **changed)).open is is_open


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cpu_idle": False}, "the kernel has no cpu.idle, which would let online run first"),
        ({"seen_s": None}, "no signal for CPU has had a value yet"),
        ({"seen_s": None, "cpu_idle": False}, "no signal for CPU has had a value yet"),
        ({"seen_s": LOST_S + 1.0}, "no signal for CPU has had a value for 31 s"),
        ({"seen_s": math.nan}, "no signal for CPU has had a value for nan s"),
        ({"capacity_cores": 0.0}, "the capacity is not known (0.0)"),
        ({"capacity_cores": math.nan}, "the capacity is not known (nan)"),
        ({"capacity_cores": math.inf}, "the capacity is not known (inf)"),
    ],
)
@pytest.mark.parametrize("share", [None, 0.0])
def test_prediction_alone_counts_without_evidence(changed, words, share) -> None:
    assert bound(replace(EVIDENCE, share=share, **changed)) == (1.1, f"{PREDICTED}; not by evidence, as {words}")


def test_evidence_that_is_a_little_old_still_counts() -> None:
    assert bound(replace(EVIDENCE, seen_s=LOST_S))[0] == 3.75


@pytest.mark.parametrize("limit", [2.0, UNLIMITED])
def test_a_static_limit_is_left_as_it_is_configured(limit) -> None:
    given_limit = ResourceDecision(limit, "static", Bounds(0.0, None, 0.0, None), ResourcePrediction(None))

    assert bound_by_evidence(given_limit, StaticSettings(limit), replace(EVIDENCE, share=0.0)) == given_limit


cores = st.floats(0.01, 256.0)
laws = st.builds(
    DynamicSettings,
    floor=st.just(0.1),
    watermark_ratio=st.floats(0.1, 1.0),
    ceiling=st.none() | st.floats(0.1, 64.0),
    reserve=st.floats(0.0, 8.0),
    max_raise_ratio=st.none() | st.floats(0.01, 1.0),
)
guards = st.none() | st.builds(GuardCeiling, cores, st.just("a step"))
evidences = st.builds(
    CpuEvidence,
    capacity_cores=cores,
    cpu_idle=st.booleans(),
    seen_s=st.none() | st.floats(0.0, 60.0),
    share=st.none() | st.floats(-0.5, 1.5),
    guard=guards,
    given_back=st.booleans(),
)


@given(laws, evidences, st.none() | cores, st.none() | cores)
def test_any_evidence_keeps_the_limit_within_its_bounds(law, evidence, predicted, before) -> None:
    capacity = evidence.capacity_cores
    snapshot = rows.snapshot(1000.0, (capacity, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    prediction = rows.predictions(predicted, None)
    decision, _ = decide(snapshot, prediction, PolicyState(), rows.laws(law, LAW), evidence.guard)
    by_prediction = replace(decision.resources["cpu"], before=before)

    limit = limit_of(by_prediction, law, evidence)

    assert limit >= law.floor
    assert limit <= max(law.floor, capacity - law.reserve) + 1e-9
    assert law.ceiling is None or limit <= law.ceiling
    assert evidence.guard is None or limit <= max(law.floor, evidence.guard.cores) + 1e-9
    if evidence.share is not None:
        assert by_prediction.limit is not UNLIMITED
        assert limit <= by_prediction.limit + 1e-9


@given(laws, evidences, cores, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_larger_share_never_gives_less(law, evidence, predicted, one, other) -> None:
    by_prediction = decided(limit=max(law.floor, min(predicted, law.ceiling or predicted)), before=None, law=law)
    lower, higher = (limit_of(by_prediction, law, replace(evidence, share=share)) for share in sorted((one, other)))
    opened = limit_of(by_prediction, law, replace(evidence, share=None))

    assert lower <= higher + 1e-9
    if evidence.cpu_idle and evidence.seen_s is not None and evidence.seen_s <= LOST_S:
        assert higher <= opened + 1e-9
