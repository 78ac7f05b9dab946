"""What an engine (the code that carries calls) and the interception of hooked calls owe each other.

An engine moves bytes and knows no message; the `Interceptor` knows messages and moves no byte. Neither knows the
other's libraries, so engines can be exchanged.
"""

from dataclasses import dataclass
from typing import Protocol


class Ticket(Protocol):
    """An interceptor's memory of one call, handed back with the call's answer."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Send `message` to the runtime. With a `ticket`, a successful answer is shown to `Interceptor.answered`."""

    message: bytes
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the call ourselves. `code` is a gRPC status code number. Source: gRPC core, statuscodes."""

    code: int
    message: str


class Interceptor(Protocol):
    """Decides on the calls that hooks name. All its waits are its own: an engine adds no time-out."""

    def wants(self, method: str) -> bool:
        """Whether the unary call of this path (`/runtime.v1.RuntimeService/RunPodSandbox`) is to be opened."""
        ...

    async def request(self, method: str, message: bytes) -> Forward | Refuse:
        """What becomes of a request. Never raises."""
        ...

    async def answered(self, ticket: Ticket, message: bytes) -> None:
        """Learn from an OK answer, before the client has it. Never raises, and never changes the answer."""
        ...
