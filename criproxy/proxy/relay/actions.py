"""What the relay's core tells its shell to do."""

from typing import NamedTuple

from criproxy.proxy.engine import Ticket
from criproxy.proxy.relay.frames import Bytes


class ToClient(NamedTuple):
    data: Bytes


class ToUpstream(NamedTuple):
    data: Bytes


class Ask(NamedTuple):
    """Show this message to the interceptor, then say `forward` or `refuse`, at any time."""

    stream: int
    method: str
    message: bytes


class Forget(NamedTuple):
    """The answer to an `Ask` is not wanted any more."""

    stream: int


class Learn(NamedTuple):
    """Show this OK answer to the interceptor, then say `learned`. Until then the upstream's bytes wait.

    Always the last of its list. When it takes long, say `resume`: then only this call waits.
    """

    stream: int
    ticket: Ticket
    message: bytes


class Started(NamedTuple):
    """A call has begun."""

    stream: int
    method: str


class Ended(NamedTuple):
    """A call that has begun is over, with a gRPC status code number."""

    stream: int
    method: str
    code: int
    hooked: bool


class Close(NamedTuple):
    """Close both connections, when what was sent before has gone. `broken`: a peer spoke what is no HTTP/2."""

    reason: str
    broken: bool = False


Action = ToClient | ToUpstream | Ask | Forget | Learn | Started | Ended | Close
