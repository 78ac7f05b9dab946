"""What a policy says of owners, and what follows for one pod."""

import pytest

from criproxy_cluster.controller.policies import PolicyError, parsed, selecting
from criproxy_cluster.owners.rules import (
    MOST_ALONE_S,
    Asked,
    Overflow,
    OwnersSpec,
    Past,
    Rule,
    Slo,
    alone_s,
    deadline_s,
    kept,
    overflows,
    rule_of,
)

NOW = 1_000_000.0
ALL = Overflow(pods=5, evictions=3, wait_seconds=600, deadline_margin_seconds=100)


@pytest.mark.parametrize(
    ("rule", "past", "asked", "why"),
    [
        (ALL, Past(), Asked(), ""),
        (ALL, Past(2, 599.0), Asked(), ""),
        (ALL, Past(3), Asked(), "lost 3 pods"),
        (ALL, Past(0, 600.0), Asked(), "waited for 600 s"),
        (ALL, Past(), Asked(NOW + 101), ""),
        (ALL, Past(), Asked(NOW + 100), "deadline is 100 s away"),
        (ALL, Past(), Asked(NOW + 400, 300.0), "deadline is 400 s away"),
        (ALL, Past(), Asked(NOW - 5), "deadline is 0 s away"),
        (ALL, Past(), Asked(None, 1e9), ""),
        (Overflow(pods=5, evictions=3), Past(0, 1e9), Asked(NOW), ""),
        (Overflow(pods=5, wait_seconds=1), Past(9), Asked(NOW), ""),
        (Overflow(pods=5, deadline_margin_seconds=0), Past(9, 1e9), Asked(NOW), "deadline"),
    ],
)
def test_each_condition_alone_makes_a_pod_overflow_and_none_by_itself(rule, past, asked, why):
    found = overflows(rule, past, asked, NOW)
    assert why in found and bool(why) == bool(found)


@pytest.mark.parametrize("text", [None, 5, "", "tomorrow", "2026-13-01T00:00:00Z", "2026-01-01", "9" * 5000, ["x"]])
def test_a_deadline_that_can_not_be_read_is_none(text):
    assert deadline_s(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60.0), ("0", 0.0), (None, 0.0), (60, 0.0), ("-1", 0.0), ("1e9", 0.0), ("٣", 0.0), ("9" * 9, 0.0)],
)
def test_the_time_alone_is_a_whole_number_or_not_known(text, seconds):
    assert alone_s(text) == seconds


def test_the_time_alone_is_bounded():
    assert alone_s("99999999") == MOST_ALONE_S


@pytest.mark.parametrize(("took_s", "is_kept"), [(99.0, True), (120.0, True), (120.5, False)])
def test_an_slo_is_times_the_time_alone(took_s, is_kept):
    assert kept(Slo(times=2.0), took_s, 60.0) is is_kept


def test_the_first_rule_that_has_the_namespace_counts():
    first, second = Rule("a", OwnersSpec(("batch",))), Rule("b", OwnersSpec())
    assert rule_of((first, second), "batch") is first
    assert rule_of((first, second), "other") is second
    assert rule_of((first,), "other") is None


OVERFLOW = {"pods": 5, "waitSeconds": 60}


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ({"overflow": OVERFLOW}, "name the namespaces"),
        ({"namespaces": ["a"], "overflow": {"pods": 5}}, "no condition"),
        ({"namespaces": ["a"], "overflow": {"waitSeconds": 60}}, "pods"),
        ({"namespaces": ["a"], "overflow": {**OVERFLOW, "evictions": 9}}, "evictions"),
        ({"namespaces": ["a"], "overflow": {**OVERFLOW, "waitSeconds": 9}}, "waitSeconds"),
        ({"raise": {"waitSeconds": 0, "pods": 1}}, "waitSeconds"),
        ({"slo": {"times": 0.5}}, "times"),
        ({"overfow": {}}, "overfow"),
    ],
)
def test_what_a_policy_can_not_mean_is_refused_with_its_place(owners, words):
    with pytest.raises(PolicyError, match=words):
        parsed("p", 1, {"owners": owners})


def test_a_policy_of_owners_alone_tells_nodes_nothing():
    owners = {"namespaces": ["a"], "overflow": OVERFLOW, "raise": {"waitSeconds": 5, "pods": 2}, "slo": {"times": 2}}
    policy = parsed("p", 1, {"owners": owners})
    assert policy.owners is not None and policy.owners.raises is not None
    assert selecting([policy], {}) == ()
    both = parsed("p", 1, {"owners": owners, "settings": {"cpu": {"reserve_cores": 1}}})
    assert selecting([both], {}) == (both,)
