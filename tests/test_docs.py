"""docs/log-events.md is made from the code: each way to log an event is understood, and each event has words."""

import ast

import pytest

from docs.generate import _logged, amiss


@pytest.mark.parametrize(
    ("code", "events"),
    [
        pytest.param('log.info("a", pod=1, exc_info=e)', [("a", "info", ["pod"])], id="plain"),
        pytest.param('self.shared.log.error("a")', [("a", "error", [])], id="of-a-part"),
        pytest.param('log.exception("a")', [("a", "error", [])], id="exception-is-an-error"),
        pytest.param(
            'log.warning("a" if x else "b", n=1)', [("a", "warning", ["n"]), ("b", "warning", ["n"])], id="one-of-two"
        ),
        pytest.param(
            'told = log.warning if x else log.info\ntold("a", n=1)',
            [("a", "warning", ["n"]), ("a", "info", ["n"])],
            id="level-chosen-before",
        ),
        pytest.param(
            'def names(x):\n    return {"pod": 1, "uid": 2}\nlog.info("a", **names(x), why=1)',
            [("a", "info", ["pod", "uid", "why"])],
            id="fields-of-a-function",
        ),
        pytest.param('more = {"pod": 1}\nlog.info("a", **more)', [("a", "info", ["pod"])], id="fields-of-a-dict"),
        pytest.param('parser.error("give a file")', [], id="no-logger"),
    ],
)
def test_event_is_found_however_it_is_logged(code: str, events: list[tuple[str, str, list[str]]]) -> None:
    assert list(_logged(ast.parse(code))) == events


def test_event_without_words_and_words_without_an_event_are_named() -> None:
    assert list(amiss({"evict", "kill"}, {"kill", "stop"})) == [
        "docs/event_words.py has no words for `evict`",
        "docs/event_words.py has `stop`, which nothing logs",
    ]
