"""Which pods are offline, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.hooks.offline import DEFAULT_RULE, PRESETS, OfflineRules, Rule, Subject, Test
from criproxy.model import Pod, PodRef
from criproxy.vocabulary.names import RESOURCES
from criproxy.vocabulary.presets import EVERY_MARK, MARKS, SYSTEM_NAMESPACES

DEFAULT = OfflineRules((DEFAULT_RULE,))
EVERYTHING = OfflineRules((Rule(Subject.NAMESPACE, "", Test.PREFIX, ""),))


def pod(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, namespace: str = "default"
) -> Pod:
    return Pod(PodRef("uid", namespace, "name"), labels or {}, annotations or {})


@pytest.mark.parametrize(
    ("rule", "subject", "why"),
    [
        pytest.param(DEFAULT_RULE, pod({"colocation.criproxy.io/class": "offline"}), "is", id="equal"),
        pytest.param(DEFAULT_RULE, pod({"colocation.criproxy.io/class": "Offline"}), None, id="other-case"),
        pytest.param(DEFAULT_RULE, pod({"colocation.criproxy.io/class": "offline "}), None, id="longer"),
        pytest.param(DEFAULT_RULE, pod(None, {"colocation.criproxy.io/class": "offline"}), None, id="as-annotation"),
        pytest.param(DEFAULT_RULE, pod(), None, id="absent"),
        pytest.param(Rule(Subject.ANNOTATION, "a", Test.EQUALS, ""), pod(None, {"a": ""}), "is", id="equal-to-nothing"),
        pytest.param(Rule(Subject.ANNOTATION, "a", Test.EQUALS, ""), pod(), None, id="absent-is-not-empty"),
        pytest.param(Rule(Subject.LABEL, "a", Test.PREFIX, "b-"), pod({"a": "b-1"}), "starts with", id="prefix"),
        pytest.param(Rule(Subject.LABEL, "a", Test.PREFIX, "b-"), pod({"a": "xb-1"}), None, id="not-at-the-start"),
        pytest.param(Rule(Subject.LABEL, "a", Test.PRESENT, ""), pod({"a": ""}), "present", id="present"),
        pytest.param(Rule(Subject.LABEL, "a", Test.PRESENT, ""), pod({"b": ""}), None, id="not-present"),
        pytest.param(Rule(Subject.NAMESPACE, "", Test.EQUALS, "batch"), pod(namespace="batch"), "is", id="namespace"),
        pytest.param(Rule(Subject.NAMESPACE, "", Test.PREFIX, "b"), pod(namespace="a"), None, id="other-namespace"),
    ],
)
def test_rule_matches_or_not_and_says_why(rule: Rule, subject: Pod, why: str | None) -> None:
    reason = OfflineRules((rule,)).why(subject)
    assert (reason is None) == (why is None)
    if reason is not None and why is not None:
        assert reason.startswith(f"{rule.subject} {rule.key}".strip())
        assert why in reason


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_matches_its_own_marks_only(preset: str) -> None:
    for mark in MARKS[preset]:
        values = {mark.key: mark.value}
        subject = pod(values) if mark.of == "label" else pod(None, values)
        for name, rules in PRESETS.items():
            reason = OfflineRules((), {name: rules}).why(subject)
            assert (reason is not None) == (name == preset)
            assert reason is None or reason.endswith(f"(preset {name})")


@pytest.mark.parametrize("namespace", SYSTEM_NAMESPACES)
def test_preset_s_annotation_marks_no_pod_of_the_system_and_a_rule_s_own_does(namespace: str) -> None:
    for mark in EVERY_MARK:
        values = {mark.key: mark.value}
        subject = pod(values, None, namespace) if mark.of == "label" else pod(None, values, namespace)
        assert (OfflineRules((DEFAULT_RULE,), PRESETS).why(subject) is not None) == (mark.of == "label")
        assert OfflineRules((Rule(Subject(mark.of), mark.key, Test.EQUALS, mark.value),)).why(subject) is not None


def test_koordinator_pod_of_another_class_is_online() -> None:
    assert OfflineRules((), PRESETS).why(pod({"koordinator.sh/qosClass": "LS"})) is None


def test_any_rule_is_enough_and_the_first_is_told() -> None:
    rules = OfflineRules((Rule(Subject.LABEL, "x", Test.PRESENT, ""), DEFAULT_RULE, *PRESETS["koordinator"]))
    both = pod({"koordinator.sh/qosClass": "BE", "colocation.criproxy.io/class": "offline"})
    assert rules.why(both) == 'label colocation.criproxy.io/class is "offline"'


def test_no_rules_means_online() -> None:
    assert OfflineRules(()).why(pod({"colocation.criproxy.io/class": "offline"})) is None


def test_pod_that_the_webhook_has_converted_is_offline_without_its_mark() -> None:
    converted = pod(None, {RESOURCES: '{"containers":{}}'})
    assert DEFAULT.why(converted) == f"annotation {RESOURCES} is present"
    assert OfflineRules(()).why(converted) is not None, "whatever the node's rules are"


@pytest.mark.parametrize(
    ("namespace", "source", "offline"),
    [
        pytest.param("kube-system", "file", False, id="static-system-from-a-file"),
        pytest.param("kube-system", "http", False, id="static-system-from-a-url"),
        pytest.param("kube-system", "", False, id="static-system-from-who-knows"),
        pytest.param("kube-system", "api", True, id="system-from-the-api"),
        pytest.param("kube-system", None, True, id="system-without-a-source"),
        pytest.param("default", "file", True, id="static-elsewhere"),
    ],
)
def test_static_pod_of_kube_system_is_never_offline(namespace: str, source: str | None, offline: bool) -> None:
    annotations = {} if source is None else {"kubernetes.io/config.source": source}
    subject = pod({"colocation.criproxy.io/class": "offline"}, annotations, namespace)
    assert (DEFAULT.why(subject) is not None) == offline
    assert (EVERYTHING.why(subject) is not None) == offline
    assert (DEFAULT.why(pod(None, {**annotations, RESOURCES: "{}"}, namespace)) is not None) == offline


@pytest.mark.parametrize(
    "value",
    ["x" * 1_000_000, "../../etc", "\udcff\x1b[2J\n", "\u202eünïcode", '"'],
    ids=["long", "path", "raw", "rtl", "quote"],
)
def test_hostile_value_is_just_a_string_in_a_short_reason(value: str) -> None:
    reason = OfflineRules((Rule(Subject.LABEL, "a", Test.PREFIX, value[:1]),)).why(pod({"a": value}))
    assert reason is not None
    assert len(reason) < 1000
    assert reason.isascii()
    assert reason.isprintable()
    assert DEFAULT.why(pod({"colocation.criproxy.io/class": value})) is None


@given(st.text(), st.text())
def test_equality_and_prefix_are_those_of_strings(value: str, given_value: str) -> None:
    subject = pod({"k": given_value})
    equal = OfflineRules((Rule(Subject.LABEL, "k", Test.EQUALS, value),)).why(subject)
    prefix = OfflineRules((Rule(Subject.LABEL, "k", Test.PREFIX, value),)).why(subject)
    assert (equal is not None) == (value == given_value)
    assert (prefix is not None) == given_value.startswith(value)
