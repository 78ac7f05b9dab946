"""What a pod's annotation asks to be looked at, and what an answer means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.control.interference.service_checks import (
    ANNOTATION,
    ExecCheck,
    GrpcCheck,
    HttpCheck,
    ServiceAnswer,
    ServiceCheck,
    check_of,
    percent_of,
    problem_of,
)

HTTP = {"port": 8080, "path": "/p99"}


def parsed(**check: object) -> ServiceCheck | None:
    return check_of({ANNOTATION: json.dumps(check)})


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
    assert (found.hold_s, found.every_s, found.timeout_s) == (3.0, 5.0, 1.0)


def test_pod_without_the_annotation_asks_for_nothing() -> None:
    assert check_of({}) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{}", id="nothing"),
        pytest.param('{"http": {"port": 1}, "grpc": {"port": 1}}', id="two"),
        pytest.param('{"grpc": {"port": 1}, "threshold": 5}', id="health-has-no-number"),
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
        check_of({ANNOTATION: text})


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
        check_of({ANNOTATION: text})
    except ValueError as error:
        assert ANNOTATION in str(error)
