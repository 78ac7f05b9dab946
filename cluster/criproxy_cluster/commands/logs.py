"""The log of a process in the cluster: a line of JSON for each event, on stderr."""

import logging
import sys

import structlog
from structlog.typing import FilteringBoundLogger


def json_log() -> FilteringBoundLogger:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    log: FilteringBoundLogger = structlog.get_logger()
    return log
