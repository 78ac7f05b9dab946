"""What the relay remembers of the calls on a connection, and what both of its directions share."""

from enum import Enum, auto
from typing import Final

from msgspec import Struct, field

from criproxy.fronts.engine import Learner
from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.frames import FIRST_WINDOW, MAX_WINDOW, BrokenError
from criproxy.fronts.http2.headers import NO_TABLE, BlockReader
from criproxy.fronts.http2.scanner import Outgoing
from criproxy.fronts.relay.actions import Action, Ended

_REMEMBERED: Final = 1024
"""Calls that were ended here, whose frames are dropped when they still come. They do within one round trip."""


class RequestPhase(Enum):
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
    advertised: int
    sized: bool
    phase: RequestPhase = RequestPhase.COLLECTING
    request: bytearray = field(default_factory=bytearray)
    message: bytes = b""
    paid: int = 0
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    headers_wait: bool = False
    learn: Learner | None = None
    answer_encoding: bytes = b""
    answer: bytearray = field(default_factory=bytearray)


class RelayedCall(Struct):
    """A call that is open on at least one side. `hook`: it is opened here."""

    stream: int
    method: str
    hook: HookedCall | None
    client_ended: bool = False
    answered: bool = False
    runtime_ended: bool = False
    counted: bool = False


class ConnectionWindow(Struct):
    """The connection's flow-control window, in bytes, as the runtime counts it and as the client does: see `core`."""

    real: int = FIRST_WINDOW
    owed: int = 0
    waiting: int = 0

    @property
    def advertised(self) -> int:
        """What the client may send."""
        return self.real + self.owed - self.waiting

    def pay(self, size: int) -> None:
        """The client has sent what is to wait here. Raises BrokenError when it had no window for it."""
        if size > self.advertised:
            raise BrokenError(f"{size} bytes sent into a window of {self.advertised}")
        self.waiting += size

    def spend(self, size: int, paid: int) -> None:
        """`size` bytes go to the runtime; the client has paid for `paid` of them."""
        self.real -= size
        self.waiting -= paid
        self.owed += size - paid

    def forgive(self, paid: int) -> int:
        """What the client has paid goes nowhere. Returns how much of it to give back: the rest settles what is owed."""
        self.waiting -= paid
        settled = min(paid, self.owed)
        self.owed -= settled
        return paid - settled

    def credit(self, size: int) -> int:
        """The runtime takes `size` bytes more. Returns how much of it the client may send. Raises BrokenError."""
        if not size or self.real + size > MAX_WINDOW:
            raise BrokenError(f"WINDOW_UPDATE of {size} on a window of {self.real}")
        self.real += size
        if not self.owed:
            return size
        settled = min(size, self.owed)
        self.owed -= settled
        return size - settled


def announced(setting: int, value: int, outgoing: Outgoing, blocks: BlockReader) -> bool:
    """A peer has announced what it may be sent. Returns whether its header table is to be smaller than before."""
    if setting == frames.MAX_FRAME_SIZE:
        outgoing.max_frame = max(outgoing.max_frame, value)
    return setting == frames.HEADER_TABLE_SIZE and blocks.allow_table(value)


class RelayState:
    """Both directions' common state."""

    def __init__(self) -> None:
        self.to_client = Outgoing()
        self.to_runtime = Outgoing()
        self.learned: list[Action] = []
        """What is to be learned before anything is sent."""
        self.events: list[Action] = []
        self.calls: dict[int, RelayedCall] = {}
        self.window = ConnectionWindow()
        self.first_window = FIRST_WINDOW
        """The runtime's INITIAL_WINDOW_SIZE, as far as the client has acknowledged it."""
        self.windows_to_come: list[int | None] = []
        """What each SETTINGS of the runtime's that is not acknowledged yet makes of it."""
        self.last_stream = 0
        self.diverged = False
        """Whether the client's header table is not the runtime's: then all blocks are written without it."""
        self._table_dropped = False
        self.requests = BlockReader()
        self.answers = BlockReader()
        self.answer_table_shrinks = False
        """Whether the client has announced a smaller header table than before."""
        self.ended_here: dict[int, None] = {}
        """The streams that the relay has ended: frames that still come for them are dropped."""

    def send_headers(self, stream: int, block: bytes, *, end_stream: bool) -> None:
        """Send the client a block that refers to no table."""
        if self.diverged and not self._table_dropped:  # from now on no change of the table's size matters
            self._table_dropped = True
            block = NO_TABLE + block
        self.to_client.send(frames.header_frames(stream, block, end_stream=end_stream))

    def end_here(self, stream: int) -> None:
        """Nothing of this stream is to follow, or to be believed: whatever comes of it goes nowhere."""
        self.calls.pop(stream, None)
        self.ended_here[stream] = None
        if len(self.ended_here) > _REMEMBERED:
            del self.ended_here[next(iter(self.ended_here))]

    def count(self, call: RelayedCall, code: int) -> None:
        if not call.counted:
            call.counted = True
            self.events.append(Ended(call.stream, call.method, code, call.hook is not None))
