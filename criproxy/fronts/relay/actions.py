"""What the relay's core has its connection do."""

from msgspec import Struct

from criproxy.fronts.engine import Learner
from criproxy.fronts.http2.frames import Bytes


class ToClient(Struct, frozen=True):
    data: Bytes


class ToRuntime(Struct, frozen=True):
    data: Bytes


class Ask(Struct, frozen=True):
    """Show this message to the interceptor, then say `forward` or `refuse`, at any time."""

    stream: int
    method: str
    message: bytes


class Forget(Struct, frozen=True):
    """The answer to an `Ask` is not wanted any more."""

    stream: int


class Learn(Struct, frozen=True):
    """Show this OK answer to whom the interceptor named. It comes first in its list, before the answer's end."""

    learn: Learner
    message: bytes


class Started(Struct, frozen=True):
    """A call has begun."""

    stream: int
    method: str


class Ended(Struct, frozen=True):
    """A call that has begun is over, with a gRPC status code number."""

    stream: int
    method: str
    code: int
    hooked: bool


class Close(Struct, frozen=True):
    """Close both connections, when what was sent before has gone. `broken`: a peer spoke what is no HTTP/2."""

    reason: str
    broken: bool = False


Action = ToClient | ToRuntime | Ask | Forget | Learn | Started | Ended | Close
