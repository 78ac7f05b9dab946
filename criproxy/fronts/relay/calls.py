"""What the relay remembers of the calls on a connection, and what both of its directions share."""

from enum import Enum, auto
from typing import Final

from msgspec import Struct, field

from criproxy.fronts.engine import Ticket
from criproxy.fronts.http2.flow import Ledger
from criproxy.fronts.http2.frames import FIRST_WINDOW, Bytes, header_frames
from criproxy.fronts.http2.headers import NO_TABLE
from criproxy.fronts.http2.lane import Lane
from criproxy.fronts.relay.actions import Action, Ended

_REMEMBERED: Final = 1024
"""Calls that were ended here, of which the peers' late frames are told from others. They come within one round trip."""


class Phase(Enum):
    """Where the request of a hooked call is."""

    COLLECTING = auto()
    ASKED = auto()
    SENDING = auto()
    SENT = auto()


class HookedCall(Struct):
    """The relay's own ends of a call that it opens. Windows in bytes; `paid`: of the client's connection window.

    `sized`: its headers, which have passed, tell its length.
    """

    encoding: bytes
    window: int
    shown: int
    sized: bool
    phase: Phase = Phase.COLLECTING
    request: bytearray = field(default_factory=bytearray)
    message: bytes = b""
    paid: int = 0
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    headers_wait: bool = False
    ticket: Ticket | None = None
    answer_encoding: bytes = b""
    answer: bytearray = field(default_factory=bytearray)


class Call(Struct):
    """A call that is open on at least one side. `hook`: it is opened here."""

    stream: int
    method: str
    hook: HookedCall | None
    answered: bool = False
    client_ended: bool = False
    upstream_ended: bool = False
    counted: bool = False


class Wire:
    """Both directions' common state."""

    def __init__(self) -> None:
        self.client = Lane()
        self.upstream = Lane()
        self.lessons: list[Action] = []
        """What is to be learned before anything is sent."""
        self.events: list[Action] = []
        self.calls: dict[int, Call] = {}
        self.ledger = Ledger()
        self.first_window = FIRST_WINDOW
        """The upstream's INITIAL_WINDOW_SIZE, as far as the client has acknowledged it."""
        self.windows_to_come: list[int | None] = []
        """What each SETTINGS of the upstream's that is not acknowledged yet makes of it."""
        self.last_stream = 0
        self.diverged = False
        """Whether the client's header table is not the upstream's: then all blocks are written without it."""
        self._table_dropped = False
        self._ended_here: dict[int, None] = {}

    def send_headers(self, stream: int, block: bytes, *, end_stream: bool) -> None:
        """Send the client a block that refers to no table."""
        if self.diverged and not self._table_dropped:  # from now on no change of the table's size matters
            self._table_dropped = True
            block = NO_TABLE + block
        self.client.send(header_frames(stream, block, end_stream=end_stream))

    def ended_here(self, stream: int) -> bool:
        """Whether the relay has reset this stream, so that late frames of it go nowhere."""
        return stream in self._ended_here

    def end_here(self, call: Call) -> None:
        """The upstream has been sent a reset: nothing of this call is to follow, or to be believed."""
        self.calls.pop(call.stream, None)
        self.turn_away(call.stream)

    def turn_away(self, stream: int) -> None:
        """Whatever comes of this stream goes nowhere."""
        self._ended_here[stream] = None
        if len(self._ended_here) > _REMEMBERED:
            del self._ended_here[next(iter(self._ended_here))]

    def count(self, call: Call, code: int) -> None:
        if not call.counted:
            call.counted = True
            self.events.append(Ended(call.stream, call.method, code, call.hook is not None))

    def drop_if_over(self, call: Call) -> None:
        if call.client_ended and call.upstream_ended:
            self.calls.pop(call.stream, None)


class HeldData(Struct):
    """DATA of a passing call for which the upstream has no window yet; `paid` by the client."""

    stream: int
    data: memoryview
    ends: bool
    paid: int


class HeldRaw(Struct):
    """What must not overtake it. `stream`: of a header block; `window`: what the client has added to its by then."""

    raw: Bytes
    stream: int = 0
    is_ack: bool = False
    window: int = 0
