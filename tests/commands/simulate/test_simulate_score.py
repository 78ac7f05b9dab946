"""The metric against numbers computed by hand."""

import math

import pytest

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.score import first_scored, mean_score, outlook, summarise
from criproxy.commands.simulate.score import score as score_of
from tests.commands.simulate.simulate_helpers import HOUR, score, trace

NAN = math.nan


@pytest.mark.parametrize(
    ("usages", "times", "horizon", "whole", "expected"),
    [
        ([1, 5, 2, 3], None, 1.5 * HOUR, False, [5, 2, 3, NAN]),
        ([1, 5, 2, 3], None, HOUR, True, [5, 2, 3, NAN]),
        ([1, 5, 2, 3, 1], None, 2 * HOUR, True, [5, 3, 3, NAN, NAN]),
        ([1, 5, 2, 3, 1], None, 2 * HOUR, False, [5, 3, 3, 1, NAN]),
        ([9, 1, 1, 1], None, 3 * HOUR, True, [1, NAN, NAN, NAN]),
        ([1, 2, 3, 4], [0, HOUR, 2 * HOUR, 5 * HOUR], 1.5 * HOUR, False, [2, 3, NAN, NAN]),
        ([1, 2, 3, 4, 5], [0, HOUR, 2 * HOUR, 3 * HOUR, 6.5 * HOUR], 2 * HOUR, True, [3, 4, NAN, NAN, NAN]),
        ([1, 2, 3, 4, 5], [0, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR], 2 * HOUR, True, [3, 4, 4, NAN, NAN]),
        ([7], None, HOUR, True, [NAN]),
        ([], None, HOUR, True, []),
    ],
    ids=[
        "next-sample",
        "the-end-of-the-horizon-is-in-it",
        "several",
        "several-to-the-end",
        "the-sample-itself-is-not-in-it",
        "pause-without-a-sample",
        "gap-hides-a-part",
        "pause-of-3-steps-hides-nothing",
        "single",
        "empty",
    ],
)
def test_outlook_of_a_trace_is_the_highest_usage_ahead(usages, times, horizon, whole, expected):
    assert list(outlook(trace(usages, times), horizon, whole=whole)) == pytest.approx(expected, nan_ok=True)


USAGES = [1.0] * 6 + [2.0, 4.0, 9.0, 3.0, 1.0]
PREDICTIONS = [0.0] * 6 + [3.0, 5.0, 12.0, 2.0, 0.0]
LIMITS = [99.0] * 6 + [6.0, 4.0, 1.0, 7.0, 99.0]
"""Scored are the samples 6 to 9: y is 4, 9, 3, 1 against p = 3, 5, 10 (clipped), 2."""


def judged(limits=LIMITS, watermark=0.9, usages=USAGES, predictions=PREDICTIONS):
    course = trace(usages)
    return score_of(course, predictions, limits, outlook(course, 1.5 * HOUR, whole=False), watermark)


def test_score_of_four_samples_is_what_the_hand_computes():
    found = judged()
    assert found.violation_ratio == 2 / 4
    assert found.severity_ratio == pytest.approx((1 + 4) / 2 / 10)
    assert found.severity_p99_ratio == pytest.approx(4 / 10)
    assert found.hard_ratio == 1 / 4  # only the excess of 4 is more than the slack of 1
    assert found.share_ratio == pytest.approx((6 + 4 + 0 + 7) / (5 + 0 + 6 + 8))
    assert found.churn_ratio == pytest.approx((3 + 2 + 5 + 8) / 4 / 10)
    assert found.limit_ratio == pytest.approx((6 + 4 + 1 + 7) / 4 / 10)


def test_score_without_slack_counts_every_violation_as_hard():
    assert judged(watermark=1.0).hard_ratio == judged().violation_ratio


def test_score_without_violations_has_no_severity():
    found = judged(predictions=[10.0] * len(USAGES))
    assert (found.violation_ratio, found.hard_ratio) == (0.0, 0.0)
    assert (found.severity_ratio, found.severity_p99_ratio) == (None, None)
    assert found.share_ratio == 0.0


def test_score_with_perfect_foresight_is_all_of_it_without_violation():
    course = trace(USAGES)
    highest = outlook(course, 1.5 * HOUR, whole=False)
    found = score_of(course, [0.0 if math.isnan(y) else y for y in highest], LIMITS, highest, 0.9)
    assert (found.share_ratio, found.violation_ratio) == (1.0, 0.0)


def test_score_of_a_full_node_has_no_share():
    assert judged(usages=[10.0] * len(USAGES)).share_ratio is None


def test_score_of_a_trace_within_the_warm_up_is_none():
    assert judged(LIMITS[:7], usages=USAGES[:7], predictions=PREDICTIONS[:7]) is None


@pytest.mark.parametrize(
    ("samples", "first"),
    [(24 * 3 + 1, 6), (24 * 3 + 2, 24), (7, 6), (6, 6), (0, 0)],
    ids=["three-days", "longer", "first-at-the-end", "all-warm-up", "empty"],
)
def test_warm_up_is_a_day_or_six_hours_of_a_short_trace(samples, first):
    assert first_scored(trace([1.0] * samples)) == first


def test_mean_score_leaves_out_what_is_not_defined():
    mean = mean_score([score(share_ratio=0.5, severity_ratio=None), score(share_ratio=None, severity_ratio=0.2)])
    assert (mean.share_ratio, mean.severity_ratio, mean.violation_ratio) == (0.5, 0.2, pytest.approx(0.01))
    assert mean_score([score(share_ratio=None)]).share_ratio is None


def test_summary_of_nothing_is_refused():
    with pytest.raises(SimulateError, match="nothing to score"):
        summarise([trace([])], [None], alpha_ratio=0.01)


def test_summary_is_the_mean_of_family_means_and_counts_nodes_that_hold():
    scored = [
        (trace([], family="a"), score(violation_ratio=0.00)),
        (trace([], family="a"), score(violation_ratio=0.015)),
        (trace([], family="a"), score(violation_ratio=0.03)),
        (trace([], family="b"), score(violation_ratio=0.005)),
    ]
    traces, scores = zip(*scored, strict=True)
    found = summarise(traces, scores, alpha_ratio=0.01)
    assert found.families["a"].score.violation_ratio == pytest.approx(0.015)
    assert found.overall.score.violation_ratio == pytest.approx((0.015 + 0.005) / 2)
    assert (found.families["a"].nodes, found.families["a"].holding) == (3, 2)
    assert (found.overall.nodes, found.overall.holding) == (4, 3)
