"""gRPC's status codes, and what errors of HTTP/2 and HTTP become in them.

Source: gRPC core, statuscodes; gRPC over HTTP/2, Errors; gRPC core, http-grpc-status-mapping.
"""

from enum import IntEnum
from typing import Final

_OF_RESETS: Final = {7: 14, 8: 1, 11: 8, 12: 7}
_OF_HTTP: Final = {b"400": 13, b"401": 16, b"403": 7, b"404": 12, b"429": 14, b"502": 14, b"503": 14, b"504": 14}


class Code(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @staticmethod
    def name_of(code: int) -> str:
        """UNKNOWN for a number that gRPC does not have."""
        return _NAMES[code] if 0 <= code < len(_NAMES) else Code.UNKNOWN.name

    @staticmethod
    def of_reset(error: int) -> int:
        """The code of a stream that was reset with this HTTP/2 error."""
        return _OF_RESETS.get(error, Code.INTERNAL)

    @staticmethod
    def of_http(status: bytes) -> int:
        """The code of an answer that is no gRPC's, but has this HTTP status."""
        return _OF_HTTP.get(status, Code.UNKNOWN)


_NAMES: Final = tuple(Code.__members__)
