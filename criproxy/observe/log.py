"""The log: one JSON line per event on stderr, with ts, level, event and the event's fields."""

import atexit
import datetime
import json
import logging
import os
import sys
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from criproxy.observe.log_writer import LogWriter

MAX_TEXT: Final = 2048
"""Characters of one string in a line: a request may carry any text of any length."""

_LAST_LINES_S: Final = 1.0
"""How long the end of the process waits for whoever reads the log."""


def configure(level: str, stream: TextIO | None = None) -> None:
    """Log events of `level` ("debug", "info", "warning", "error") and above to `stream`, stderr unless given.

    A call must not fail because the log's reader has gone: writing to what `take_stderr` made never does.
    May be called again, to change the level. Raises KeyError for another level.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _in_order,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stderr),
    )


def take_stderr() -> LogWriter:
    """From now on, nobody waits for stderr's reader: neither the log, nor what Python itself writes there."""
    sys.stderr = writer = LogWriter(2, _lines_lost)
    atexit.register(writer.drain, _LAST_LINES_S)  # after the traceback of an error that ends the process
    # What gRPC's core says of itself, it writes from any thread, past Python; its calls fail with it, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return writer


def _lines_lost(count: int) -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    reason = "whoever reads the log did not keep up, or could not be written to"
    return json.dumps({"ts": now, "level": "warning", "event": "log_lines_dropped", "lines": count, "reason": reason})


def _in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    fields = {name: value for name, value in event.items() if name not in ("ts", "level", "event")}
    line = {"ts": event["ts"], "level": event["level"], "event": event["event"], **fields}
    return {name: _bounded(value) for name, value in line.items()}


def _bounded(value: Any) -> Any:
    match value:
        case str() if len(value) > MAX_TEXT:
            return f"{value[:MAX_TEXT]}... ({len(value)} characters)"
        case dict():
            return {str(name): _bounded(item) for name, item in value.items()}
        case list() | tuple():
            return [_bounded(item) for item in value]
        case _:
            return value
