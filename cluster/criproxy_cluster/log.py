"""The log: one JSON line per event on stderr. Whatever becomes of a line, nobody waits for it, nor fails."""

import atexit
import json
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.line_writer import LineWriter

_STDERR: Final = 2
_LAST_LINES_S: Final = 1.0
"""How long the end of the process waits for whoever reads the log."""


def begin() -> FilteringBoundLogger:
    """Take stderr, also from what Python and the libraries write there, and configure the log."""
    hold_standard_descriptors()
    sys.stderr = writer = LineWriter(_STDERR, _lines_lost)
    sys.excepthook = partial(_last_words, writer)
    atexit.register(writer.drain, _LAST_LINES_S)  # after the traceback of an error that ends the process
    logging.basicConfig(stream=writer, level=logging.WARNING, format="%(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(default=repr),
        ],
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, writer)),
    )
    log: FilteringBoundLogger = structlog.get_logger()
    return log


def _last_words(
    writer: LineWriter, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What ends the process finds room in the queue, if anybody reads the log."""
    writer.drain(_LAST_LINES_S)
    sys.__excepthook__(kind, error, trace)


def hold_standard_descriptors() -> None:
    """One that is closed would be the next socket's, and the log would be written to the API server."""
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(opened, True)
        os.close(opened)


def _lines_lost(count: int) -> str:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    reason = "whoever reads the log did not keep up, or could not be written to"
    event = {"event": "log_lines_dropped", "lines": count, "reason": reason, "level": "warning", "timestamp": now}
    return json.dumps(event)
