"""What an engine (the code that carries calls), the interception of hooked calls and the daemon owe each other.

An engine moves bytes and knows no message; the `Interceptor` knows messages and moves no byte. Neither knows the
other's libraries, so engines can be exchanged; the daemon and the hand-over to a new process know an `Engine` only.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from msgspec import Struct

GONE: Final = "criproxy goes: call again"
"""The text of an error that ends or refuses a call because the engine stops."""

FLUSH_S: Final = 0.05
"""An answer is on its way for a moment after its call has ended."""

Learner = Callable[[bytes], None]
"""Learns from a call's OK answer, before the client has it. Never raises, and never changes the answer."""


class Forward(Struct, frozen=True):
    """Send `message` to the runtime, and show an OK answer to `learn`."""

    message: bytes
    learn: Learner | None = None


class AnswerError(Struct, frozen=True):
    """Answer the call ourselves. `code` is a gRPC status code number. Source: gRPC core, statuscodes."""

    code: int
    message: str


Verdict = Forward | AnswerError


class Interceptor(Protocol):
    """Decides on the calls that hooks name. All its waits are its own: an engine adds no time-out."""

    def wants(self, method: str) -> bool:
        """Whether the unary call of this path (`/runtime.v1.RuntimeService/RunPodSandbox`) is to be opened."""

    def request(self, method: str, message: bytes) -> Verdict | Awaitable[Verdict]:
        """What becomes of a request: at once, where nothing is to be waited for.

        What either raises is a fault of the interceptor's own, and the engine passes the message as it came: an online
        pod is not to be hurt by it. What must not pass then, as it is an offline pod's, the interceptor refuses.
        """


class CallMetrics(Protocol):
    """Where calls and connections are counted.

    Every `on_start` is followed by one `on_call`: the difference is what is in flight.
    """

    def on_start(self) -> None: ...

    def on_call(self, method: str, code: str, seconds: float, hooked: bool) -> None:
        """A call has ended. `method` is a CRI method's name or "other", `code` a gRPC status code's name."""

    def on_broken(self, reason: str) -> None:
        """A connection was closed, as what a peer sent could not be followed."""

    def on_given_up(self, clients: int) -> None:
        """How many clients the gRPC engine serves for now, as their connections broke again and again."""


class Engine(Protocol):
    """Serves at the `own` path of a ListenSocket. Who is led there is the caller's to publish. In order: `start`, then
    `stop`, with `drain` in between when another process has taken over.
    """

    async def start(self) -> None:
        """Listen. Raises SocketError."""

    async def drain(self, limit_s: float) -> None:
        """The public name leads elsewhere now: send clients there, if that can be done, and lose no call.

        Calls that come meanwhile are served as ever. Returns when all have ended but for streams that never end by
        themselves (`methods.is_endless`), or after `limit_s`. May be cancelled.
        """

    async def stop(self, grace_s: float) -> None:
        """Give the socket up, answer new calls with UNAVAILABLE, give those in flight `grace_s`, and cut the rest.

        No client sees another error than UNAVAILABLE.
        """
