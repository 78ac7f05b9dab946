"""The log's lines."""

import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from criproxy.observe import log
from criproxy.observe.log_writer import LogWriter


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_is_json_with_ts_level_event_first() -> None:
    stream = io.StringIO()
    log.configure("info", stream)
    structlog.get_logger().warning("refused", pod="ns/name", changes=[{"old": 1}])
    (line,) = logged(stream)
    assert list(line) == ["ts", "level", "event", "pod", "changes"]
    assert (line["level"], line["event"], line["changes"]) == ("warning", "refused", [{"old": 1}])
    assert line["ts"].endswith("Z")


def test_level_below_the_chosen_one_is_not_logged_and_may_change_later() -> None:
    stream = io.StringIO()
    logger = structlog.get_logger()
    log.configure("error", stream)
    logger.warning("one")
    log.configure("debug", stream)
    logger.debug("two")
    assert [line["event"] for line in logged(stream)] == ["two"]


def test_exception_is_a_field_of_one_line() -> None:
    stream = io.StringIO()
    log.configure("info", stream)
    try:
        raise RuntimeError("broken\nin two")
    except RuntimeError:
        structlog.get_logger().exception("tick_failed")
    (line,) = logged(stream)
    assert "RuntimeError: broken" in line["exception"]


def test_text_of_any_kind_is_one_bounded_ascii_line() -> None:
    stream = io.StringIO()
    log.configure("info", stream)
    structlog.get_logger().info("x", pod="\udcff\n\x1b", changes=[{"old": "v" * 1_000_000}], other=object())
    assert stream.getvalue().isascii()
    assert len(stream.getvalue()) < 3000
    assert logged(stream)[0]["pod"] == "\udcff\n\x1b"


def test_reader_that_has_gone_breaks_no_caller() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LogWriter(writing, str)
    log.configure("info", writer)  # type: ignore[arg-type]
    structlog.get_logger().info("x")
    assert writer.drain(20)
    assert writer.dropped == 1
    os.close(writing)


def test_level_that_is_none_is_refused() -> None:
    with pytest.raises(KeyError):
        log.configure("loud", io.StringIO())
