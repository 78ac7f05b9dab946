"""What a pod's annotation asks to be looked at, and what an answer means."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.interference.service_checks import (
    ANNOTATION,
    ExecCheck,
    GrpcCheck,
    HttpCheck,
    PrometheusCheck,
    ServiceAnswer,
    ServiceCheck,
    ServiceRecord,
    ServiceSignal,
    at_rest,
    check_of,
    exempt,
    fair_places,
    in_a_case,
    percent_of,
    problem_of,
    recorded,
    with_accuser,
)
from criproxy.model import PodRef

WEB = PodRef("u-web", "shop", "web-1")
HTTP = {"port": 8080, "path": "/p99"}


QUERIES = {"p99": 'p99{pod="$pod",namespace="$namespace"}'}


def parsed(**check: object) -> ServiceCheck | None:
    return check_of({ANNOTATION: json.dumps(check)}, WEB, QUERIES)


@pytest.mark.parametrize(
    ("check", "asked", "words"),
    [
        pytest.param({"http": HTTP}, HttpCheck(8080, "/p99"), "GET :8080/p99", id="http"),
        pytest.param({"http": {"port": 1}}, HttpCheck(1, "/"), "GET :1/", id="http-root"),
        pytest.param({"grpc": {"port": 9, "service": "shop"}}, GrpcCheck(9, "shop"), "gRPC health :9 shop", id="grpc"),
        pytest.param({"exec": {"command": ["cat", "/x"]}}, ExecCheck(("cat", "/x")), "exec cat /x", id="exec"),
    ],
)
def test_annotation_names_one_check(check: dict, asked: object, words: str) -> None:
    found = parsed(**check)
    assert found is not None
    assert (found.asked, str(found.asked), found.threshold) == (asked, words, None)
    assert (found.hold_s, found.every_s, found.timeout_s) == (3.0, 1.0, 1.0)


@pytest.mark.parametrize("query", ["p50", "", 'p99{pod="$pod"}', "count({__name__=~'.+'})", "p99 "])
def test_query_is_one_that_the_node_names(query: str) -> None:
    for queries, known in ((QUERIES, "p99"), ({}, "none")):
        with pytest.raises(ValueError, match=ANNOTATION) as error:
            text = json.dumps({"prometheus": {"query": query}, "threshold": 1})
            check_of({ANNOTATION: text}, WEB, queries)
        assert not query or f"there are: {known}" in str(error.value)


def test_query_is_about_its_own_pod() -> None:
    found = parsed(prometheus={"query": "p99", "lag_s": 5}, threshold=40)

    assert found is not None
    assert found.asked == PrometheusCheck('p99{pod="web-1",namespace="shop"}', 5.0)
    assert (str(found.asked), found.lag_s) == ('query p99{pod="web-1",namespace="shop"}', 5.0)


def test_pod_without_the_annotation_asks_for_nothing() -> None:
    assert check_of({}, WEB, QUERIES) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{}", id="nothing"),
        pytest.param('{"http": {"port": 1}, "grpc": {"port": 1}}', id="two"),
        pytest.param('{"grpc": {"port": 1}, "threshold": 5}', id="health-has-no-number"),
        pytest.param('{"prometheus": {"query": "x"}}', id="query-without-a-threshold"),
        pytest.param('{"prometheus": {"query": ""}, "threshold": 1}', id="no-query"),
        pytest.param('{"prometheus": {"query": "x", "url": "http://10.0.0.1"}, "threshold": 1}', id="another-server"),
        pytest.param('{"http": {"port": 0}}', id="port-0"),
        pytest.param('{"http": {"port": 65536}}', id="port-too-large"),
        pytest.param('{"http": {"port": 1, "host": "10.0.0.1"}}', id="another-host"),
        pytest.param('{"http": {"port": 1, "path": "p99"}}', id="no-path"),
        pytest.param('{"http": {"port": 1, "path": "/a b"}}', id="space"),
        pytest.param('{"http": {"port": 1, "path": "/a\\r\\nX: y"}}', id="another-header"),
        pytest.param('{"http": {"port": 1, "path": "/a\\n"}}', id="newline-at-the-end"),
        pytest.param('{"exec": {"command": []}}', id="no-command"),
        pytest.param('{"exec": {"command": "ls"}}', id="command-is-a-string"),
        pytest.param('{"http": {"port": 1}, "threshold": 0}', id="threshold-0"),
        pytest.param('{"http": {"port": 1}, "threshold": 1e999}', id="threshold-infinite"),
        pytest.param('{"http": {"port": 1}, "every_s": 0.1}', id="too-often"),
        pytest.param('{"http": {"port": 1}, "timeout_s": 60}', id="too-long"),
        pytest.param('{"http": {"port": 1}, "hold_s": -1}', id="hold-negative"),
        pytest.param('{"http": {"port": 1}, "x": "' + "y" * 5000 + '"}', id="long"),
        pytest.param("[" * 4000, id="deep"),
        pytest.param("\udcff", id="no-utf-8"),
    ],
)
def test_nonsense_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=ANNOTATION):
        check_of({ANNOTATION: text}, WEB, QUERIES)


YES_OR_NO = ServiceCheck(http=HttpCheck(1))
NUMBER = ServiceCheck(http=HttpCheck(1), threshold=250.0)


@pytest.mark.parametrize(
    ("check", "outcome", "percent", "problem"),
    [
        pytest.param(YES_OR_NO, ServiceAnswer(True, "whatever"), 0.0, "", id="yes"),
        pytest.param(YES_OR_NO, ServiceAnswer(False, "status 503"), 200.0, "status 503", id="no"),
        pytest.param(NUMBER, ServiceAnswer(True, "125\n"), 50.0, "", id="half"),
        pytest.param(NUMBER, ServiceAnswer(True, " 500.0 ms"), 200.0, "", id="with-a-unit"),
        pytest.param(NUMBER, ServiceAnswer(True, "-3"), 0.0, "", id="negative"),
        pytest.param(NUMBER, ServiceAnswer(True, "1e300"), 1000.0, "", id="huge"),
        pytest.param(NUMBER, ServiceAnswer(True, "9" * 300), 1000.0, "", id="many-digits"),
        pytest.param(NUMBER, ServiceAnswer(True, ""), 200.0, "its answer begins with no number: ''", id="empty"),
        pytest.param(NUMBER, ServiceAnswer(True, "nan"), 200.0, "its answer begins with no number: 'nan'", id="nan"),
        pytest.param(
            NUMBER, ServiceAnswer(True, "1.2.3"), 200.0, "its answer begins with no number: '1.2.3'", id="version"
        ),
        pytest.param(NUMBER, ServiceAnswer(False, "125"), 200.0, "125", id="a-number-with-a-no"),
    ],
)
def test_answer_is_a_percentage_of_the_threshold(
    check: ServiceCheck, outcome: ServiceAnswer, percent: float, problem: str
) -> None:
    assert (percent_of(outcome, check), problem_of(outcome, check)) == (percent, problem)


@given(st.booleans(), st.text())
def test_any_answer_is_a_percentage(well: bool, text: str) -> None:
    assert 0.0 <= percent_of(ServiceAnswer(well, text), NUMBER) <= 1000.0


@given(st.text())
def test_any_text_is_a_check_or_nonsense(text: str) -> None:
    try:
        check_of({ANNOTATION: text}, WEB, QUERIES)
    except ValueError as error:
        assert ANNOTATION in str(error)


# --- from services to one signal --------------------------------------------------------------------------------------


def said(name: str, percent: float, asked_s: float, hold_s: float = 3.0) -> ServiceSignal:
    return ServiceSignal(PodRef(f"u-{name}", "shop", name), percent, 250.0, hold_s, asked_s)


def shown(*moments: list[ServiceSignal]) -> list[float | None]:
    """What is shown after each of these, at rest, with a bar of 100."""
    record, found = ServiceRecord(), []
    for signals in moments:
        record = recorded(signals, record, 100.0, 98.0)
        word, record = at_rest(signals, record)
        found.append(word.value)
    return found


@pytest.mark.parametrize(
    ("moments", "values"),
    [
        pytest.param([[said("a", 50, 0)], [said("a", 80, 5)]], [50, 80], id="low"),
        pytest.param([[said("a", 50, 0), said("b", 80, 0)]], [80], id="worst"),
        pytest.param([[said("a", 150, 0, hold_s=0)]], [150], id="no-hold"),
        pytest.param([[said("a", 150, 0)], [said("a", 150, 0)], [said("a", 160, 5)]], [None, None, 160], id="held"),
        pytest.param([[said("a", 150, 0, 6)], [said("a", 150, 5, 6)], [said("a", 150, 10, 6)]], [None, None, 150],
                     id="held-for-longer"),
        pytest.param([[said("a", 150, 0)], [said("a", 90, 5)], [said("a", 150, 10)]], [None, 90, None], id="low-again"),
        pytest.param([[said("a", 150, 0)], [said("a", 99, 5)], [said("a", 150, 10)]], [None, 99, 150],
                     id="within-the-hysteresis"),
        pytest.param([[said("a", 99, 0)], [said("a", 150, 5)]], [99, None], id="not-high-before"),
        pytest.param([[said("a", 300, 0), said("b", 80, 0)]], [80], id="others-while-one-waits"),
        pytest.param([[said("a", 300, 0), said("b", 150, 0)], [said("a", 300, 0), said("b", 150, 5)]], [None, 150],
                     id="each-has-its-own"),
        pytest.param([[said("a", 150, 0)], [said("b", 50, 1)], [said("a", 150, 5)]], [None, 50, None],
                     id="not-known-meanwhile"),
    ],
)  # fmt: skip
def test_worst_service_counts_once_it_was_high_for_its_own_hold(
    moments: list[list[ServiceSignal]], values: list[float | None]
) -> None:
    assert shown(*moments) == values


def test_service_that_waits_is_named() -> None:
    word, record = at_rest([said("a", 150, 0)], recorded([said("a", 150, 0)], ServiceRecord(), 100.0, 98.0))
    assert (word.gap, word.absent, record.accuser) == ("shop/a says 150 %, and not for 3 s yet", "", "")


@pytest.mark.parametrize(
    ("signals", "value", "gap"),
    [
        ([said("a", 60, 11.0), said("b", 400, 12.0)], 60.0, ""),
        ([said("a", 60, 11.0, hold_s=300.0)], 60.0, ""),
        ([said("a", 300, 11.0)], 300.0, ""),
        ([said("a", 300, 9.9), said("b", 10, 12.0)], None, "shop/a has not answered since the experiment began"),
        ([said("b", 10, 12.0)], None, "the service that raised the alarm is not known any more"),
    ],
    ids=["fell", "hold-is-over", "did-not", "stale", "gone"],
)
def test_experiment_is_judged_by_what_the_one_that_raised_the_alarm_says_meanwhile(
    signals: list[ServiceSignal], value: float | None, gap: str
) -> None:
    found, _ = in_a_case(signals, ServiceRecord(accuser="u-a"), 10.0)
    assert (found.value, found.most, found.gap) == (value, value, gap)


@pytest.mark.parametrize(
    ("a", "b", "exempt", "accuser"),
    [
        (80, 300, {}, "u-b"),
        (150, 300, {}, "u-a"),
        (80, 90, {}, "u-a"),
        (80, 300, {"u-b": 400.0}, "u-a"),
        (300, 150, {"u-a": 400.0}, "u-b"),
    ],
    ids=["the-other-alone-is-unwell", "both-are", "both-are-well", "the-other-is-exempt", "the-accuser-is-exempt"],
)
def test_accuser_is_another_after_a_conviction_where_that_alone_is_unwell(
    a: float, b: float, exempt: Mapping[str, float], accuser: str
) -> None:
    signals = [said("a", a, 0), said("b", b, 0), said("c", 120, 0)]
    record = recorded(signals, ServiceRecord(accuser="u-a", exempt=exempt), 130.0, 128.0)
    record = with_accuser(signals, record, {"u-a", "u-b", "u-c"}, 1000.0, 30.0)
    assert record.accuser == accuser
    assert in_a_case(signals, record, None)[0].value == (a if accuser == "u-a" else b)


def test_between_two_experiments_of_a_case_only_the_accuser_counts() -> None:
    found, record = in_a_case([said("a", 150, 1.0), said("b", 400, 1.0)], ServiceRecord(accuser="u-a"), None)
    assert (found.value, record.said_by) == (150, "u-a")


@pytest.mark.parametrize(
    ("signals", "online", "after_s", "accuser"),
    [
        ([said("b", 80, 0)], {"u-a", "u-b"}, 0.0, "u-a"),
        ([said("b", 80, 0)], {"u-a", "u-b"}, 29.5, "u-a"),
        ([said("b", 80, 0)], {"u-a", "u-b"}, 30.0, "u-b"),
        ([said("b", 80, 0), said("c", 90, 0)], {"u-b", "u-c"}, 0.0, "u-c"),
        ([], set(), 60.0, "u-a"),
    ],
    ids=["not-heard", "not-heard-for-long", "silent", "gone", "nobody-else"],
)
def test_accuser_is_another_once_its_pod_has_gone_or_it_is_silent(
    signals: list[ServiceSignal], online: set[str], after_s: float, accuser: str
) -> None:
    record = with_accuser([said("a", 300, 0), *signals], ServiceRecord(accuser="u-a"), {"u-a"}, 900.0, 30.0)
    record = with_accuser(signals, record, {"u-a"}, 1000.0, 30.0) if after_s else record
    assert with_accuser(signals, record, online, 1000.0 + after_s, 30.0).accuser == accuser


def test_accuser_that_is_heard_again_is_silent_anew() -> None:
    a, b, online = said("a", 300, 0), said("b", 80, 0), {"u-a", "u-b"}
    record = with_accuser([b], ServiceRecord(accuser="u-a"), online, 1000.0, 30.0)
    record = with_accuser([a, b], record, online, 1029.0, 30.0)
    record = with_accuser([b], record, online, 1030.0, 30.0)
    assert with_accuser([b], record, online, 1059.0, 30.0).accuser == "u-a"


def test_excused_service_is_heard_when_it_is_far_worse_or_was_well_again() -> None:
    loud, others = said("a", 200, 0, 0.0), said("b", 70, 0, 0.0)
    _, record = at_rest([loud, others], ServiceRecord())
    record = exempt([loud, others], record, 50.0)
    still = at_rest([loud, others], recorded([loud, others], record, 150.0, 148.0))[0]
    alone = at_rest([loud], record)[0]
    worse = at_rest([said("a", 360, 0, 0.0), others], record)[0]
    again = at_rest([loud, others], recorded([said("a", 90, 0), others], record, 150.0, 148.0))[0]

    assert [one.value for one in (still, alone, worse, again)] == [70, None, 360, 200]
    assert alone.gap == "shop/a says 200 %, and the box was found not to be the cause"


A, B, C = ("shop", "web"), ("shop", "api"), ("bank", "core")


@pytest.mark.parametrize(
    ("owners", "most", "asked"),
    [
        pytest.param({"1": A, "2": A, "3": B, "4": C}, 4, "1234", id="there-is-room-for-all"),
        pytest.param({"1": A, "2": A, "3": A, "4": C}, 2, "14", id="each-namespace-has-as-many"),
        pytest.param({"1": A, "2": A, "3": A, "4": B}, 2, "14", id="each-owner-of-a-namespace-has-as-many"),
        pytest.param({"1": A, "2": A, "3": B, "4": B, "5": C, "6": C}, 4, "1356", id="namespaces-come-before-owners"),
        pytest.param({}, 3, "", id="nobody-asks"),
    ],
)
def test_places_are_shared(owners: dict[str, tuple[str, str]], most: int, asked: str) -> None:
    assert fair_places(owners, most) == frozenset(asked)
