"""gRPC's status codes, and what errors of HTTP/2 and HTTP become in them.

Source: gRPC core, statuscodes; gRPC over HTTP/2, Errors; gRPC core, http-grpc-status-mapping.
"""

from typing import Final

CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""Their names, by number."""

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_OF_RESETS: Final = {7: 14, 8: 1, 11: 8, 12: 7}
_OF_HTTP: Final = {b"400": 13, b"401": 16, b"403": 7, b"404": 12, b"429": 14, b"502": 14, b"503": 14, b"504": 14}


def name(code: int) -> str:
    """UNKNOWN for a number that gRPC does not have."""
    return CODES[code] if 0 <= code < len(CODES) else CODES[UNKNOWN]


def of_reset(error: int) -> int:
    """The code of a stream that was reset with this HTTP/2 error."""
    return _OF_RESETS.get(error, INTERNAL)


def of_http(status: bytes) -> int:
    """The code of an answer that is no gRPC's, but has this HTTP status."""
    return _OF_HTTP.get(status, UNKNOWN)
