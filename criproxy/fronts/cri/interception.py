"""CRI's calls about pods, opened and closed again: which methods these are, and bytes to `pods.placing` and back.

What becomes of a call is decided there. A call that passes is forwarded as the very bytes that came.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.fronts.cri import codec
from criproxy.fronts.cri.methods import APIS
from criproxy.fronts.engine import AnswerError, Forward, Learner, Verdict
from criproxy.fronts.http2.codes import Code
from criproxy.model import STARTS, Operation
from criproxy.pods.admission import Cause
from criproxy.pods.inventory import Inventory
from criproxy.pods.placing import Placing, PlacingOutcome, Proceed, RefusedCall

_CODES: Final = {
    Cause.UNDECODABLE: Code.INTERNAL,
    Cause.HOOK_FAILED: Code.INTERNAL,
    Cause.UNKNOWN_SANDBOX: Code.UNAVAILABLE,
}
"""All others are FAILED_PRECONDITION."""

_SERVICES: Final = tuple(f"{slash}{api}.RuntimeService" for slash in ("/", "") for api in APIS)
"""gRPC-Go serves a path without its first slash as well. Source: google.golang.org/grpc, Server.handleStream."""

_OPERATIONS: Final[Mapping[str, Operation]] = {
    f"{service}/{operation}": operation for service in _SERVICES for operation in Operation
}

_OBSERVED: Final[Mapping[str, Callable[[Inventory, str], None]]] = {
    f"{service}/{method}": learn
    for service in _SERVICES
    for method, learn in (
        ("StartContainer", Inventory.container_started),
        ("StopPodSandbox", Inventory.sandbox_stopped),
        ("RemovePodSandbox", Inventory.sandbox_removed),
        ("RemoveContainer", Inventory.container_removed),
    )
}


def code_of(cause: Cause) -> Code:
    """How a front refuses a call to its client."""
    return _CODES.get(cause, Code.FAILED_PRECONDITION)


class CriInterceptor(Struct, eq=False):
    """The `engine.Interceptor` that has calls placed."""

    placing: Placing
    log: FilteringBoundLogger

    def wants(self, method: str) -> bool:
        return method in _OPERATIONS or method in _OBSERVED

    def request(self, method: str, message: bytes) -> Verdict | Awaitable[Verdict]:
        operation = _OPERATIONS.get(method)
        if operation is None:
            return Forward(message, self._observes(method, message))
        try:
            call = codec.Request(operation, message)
        except codec.CodecError as error:
            return self._verdict(None, message, self.placing.undecodable(operation, str(error)))
        outcome = self.placing.start(call) if operation in STARTS else self.placing.follow(call)
        if isinstance(outcome, Proceed | RefusedCall):
            return self._verdict(call, message, outcome)
        return self._verdict_later(call, message, outcome)

    async def _verdict_later(self, call: codec.Request, message: bytes, outcome: Awaitable[PlacingOutcome]) -> Verdict:
        return self._verdict(call, message, await outcome)

    def _verdict(self, call: codec.Request | None, message: bytes, outcome: PlacingOutcome) -> Verdict:
        if isinstance(outcome, RefusedCall):
            return AnswerError(code_of(outcome.cause), outcome.words)
        learn = self._learns(call, outcome) if call is not None and outcome.learns else None
        return Forward(message if outcome.message is None else outcome.message, learn)

    # --- what is learned of an answer; one that can't be read is a warning ------------------------------------------

    def _learns(self, call: codec.Request, outcome: Proceed) -> Learner:
        def learn(answer: bytes) -> None:
            try:
                made = call.made(answer)
            except codec.CodecError as error:
                self.log.warning("answer_undecodable", error=str(error))
            else:
                self.placing.done(call, outcome, made)

        return learn

    def _observes(self, method: str, message: bytes) -> Learner:
        learn_id, name = _OBSERVED[method], method.rpartition("/")[2]

        def learn(_: bytes) -> None:
            try:
                one = codec.requested_id(name, message)
            except codec.CodecError as error:
                self.log.warning("answer_undecodable", error=str(error))
            else:
                learn_id(self.placing.inventory, one)

        return learn
