"""One HTTP/2 connection's gRPC calls of one request: bytes and calls in, bytes and outcomes out. No I/O, no clock.

Source: RFC 9113; gRPC over HTTP/2.
"""

import math
from collections import deque
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct, field

from criproxy.fronts.http2 import frames, message
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import FIRST_WINDOW, MAX_STREAM, MAX_WINDOW, BrokenError, Bytes
from criproxy.fronts.http2.headers import Block, BlockReader, literal
from criproxy.fronts.http2.scanner import Outgoing, Scanner

_ENABLE_PUSH: Final = 2
_MAX_CONCURRENT_STREAMS: Final = 3

_WINDOW: Final = 1024 * 1024
"""What the runtime may send of an answer before it hears of us, and half of what it may on the connection."""

_LONGEST_MS: Final = 99_999_999
"""The most that grpc-timeout's eight digits say, 27 hours."""

# localhost, and not the socket's path, which strict servers (Rust's h2) refuse
_FIRST: Final = literal(((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost")))
_LAST: Final = literal(
    ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"grpc-criproxy"))
)


class CallOutcome(Struct, frozen=True):
    """The end of a call: `code` is a gRPC status code number; of a call that is not OK, `text` says why.

    `message`: the answer; of a stream, its messages one behind the other.
    """

    call: int
    code: int
    text: str = ""
    message: bytes = b""


class _OwnCall(Struct):
    """`window`: what may be sent of it, in bytes; `taken`: what has come, and the runtime has not heard so."""

    number: int
    path: str
    timeout_s: float
    rest: memoryview
    streamed: bool = False
    stream: int = 0
    window: int = 0
    taken: int = 0
    status: bytes = b""
    encoding: bytes = b""
    answer: bytearray = field(default_factory=bytearray)


class Client:
    """A connection's client. `take` what is to be sent after each step.

    No answer has more than `most_bytes` (None: `message.MESSAGE_BYTES`). The peer sends `most_frames` at most, in as
    many pieces (None: as many as it will), as each costs the event loop some microseconds.

    Calls begin at once, as RFC 9113 allows before the peer's SETTINGS; those over its limit wait for a place.
    """

    def __init__(self, most_bytes: int | None = None, most_frames: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._most_frames = most_frames
        self._frames = self._pieces = 0
        self._outgoing = Outgoing()  # nothing that is read passes: all that is in it is ours
        self._scanner = Scanner(self._outgoing, self)
        self._reader = BlockReader()
        self._open: dict[int, _OwnCall] = {}
        self._queue: deque[_OwnCall] = deque()
        self._number = 0
        self._next_stream = 1
        self._places = MAX_STREAM
        self._first_window = self._window = FIRST_WINDOW
        self._taken = 0
        self.usable = True
        """Whether calls may still begin; not after a GOAWAY."""
        self._outcomes: list[CallOutcome] = []
        settings = ((_ENABLE_PUSH, 0), (frames.INITIAL_WINDOW_SIZE, _WINDOW))
        self._send = self._outgoing.send
        self._send(frames.PREFACE)
        self._send(frames.frame(frames.SETTINGS, 0, 0, frames.settings_payload(settings)))
        self._send(frames.window_update(0, 2 * _WINDOW - FIRST_WINDOW))

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self._open and not self._queue

    def take(self) -> Bytes:
        """All that is to be sent by now; it stays valid."""
        return self._outgoing.take()

    def call(self, path: str, request: bytes, timeout_s: float, *, streamed: bool = False) -> int:
        """Begin a call; returns its number, which its outcome has. The deadline is sent; to keep it is the caller's."""
        self._number += 1
        self._queue.append(_OwnCall(self._number, path, timeout_s, memoryview(message.wrapped(request)), streamed))
        self._begin_waiting()
        return self._number

    def give_up(self, number: int) -> None:
        """The outcome of a call is not wanted any more."""
        self._queue = deque(call for call in self._queue if call.number != number)
        for call in tuple(self._open.values()):
            if call.number == number:
                self._send(frames.rst_stream(call.stream, frames.CANCEL))
                del self._open[call.stream]
        self._begin_waiting()

    def feed(self, chunk: Bytes) -> list[CallOutcome]:
        """Take what has come; returns the calls that have ended with it. Raises BrokenError."""
        self._pieces += 1
        if self._most_frames is not None and self._pieces > self._most_frames:
            raise BrokenError(f"its frames in more than {self._most_frames} pieces")
        self._scanner.feed(chunk)
        self._begin_waiting()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # --- the runtime's frames: `scanner.Handler` ---------------------------------------------------------------------

    def _count(self) -> None:
        self._frames += 1
        if self._most_frames is not None and self._frames > self._most_frames:
            raise BrokenError(f"more than {self._most_frames} frames")

    def data(self, flags: int, stream: int, payload: memoryview) -> bool:
        self._count()
        self._taken += len(payload)
        if self._taken >= _WINDOW:
            self._send(frames.window_update(0, self._taken))
            self._taken = 0
        call = self._open.get(stream)
        if call is None:
            return False
        call.answer += frames.unpadded(flags, payload)
        if error := message.too_large(len(call.answer), self._most_bytes):
            self._end(call, error.code, f"the answer: {error}", reset=True)
        elif flags & frames.END_STREAM:
            self._end(call, Code.of_http(call.status), "the answer ends without a status", reset=bool(call.rest))
        else:
            call.taken += len(payload)
            if call.taken >= _WINDOW // 2:
                self._send(frames.window_update(stream, call.taken))
                call.taken = 0
        return False

    def block(self, stream: int, end_stream: bool, block: bytes, raw: Bytes) -> bool:
        self._count()
        read = self._reader.read(block)
        call = self._open.get(stream)
        if call is None:
            return False
        if status := read.get(b":status"):
            call.status = status
            call.encoding = read.get(b"grpc-encoding")
        if end_stream:
            self._end(
                call, *_result(call, read, self._most_bytes), reset=bool(call.rest)
            )  # an answer to what was never wholly sent
        return False

    def frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> bool:
        self._count()
        match kind:
            case 3 if (call := self._open.get(stream)) is not None:
                error = frames.long(payload)
                self._end(call, Code.of_reset(error), f"the runtime has reset the call, with HTTP/2 error {error}")
            case 4 if not flags & frames.ACK:
                self._settings(payload)
            case 6 if not flags & frames.ACK:
                self._send(frames.frame(frames.PING, frames.ACK, 0, payload))
            case 7:
                self._goaway(frames.long(payload) & MAX_STREAM)
            case 8 if (call := self._open.get(stream)) is not None:
                increment = frames.long(payload) & MAX_WINDOW
                if not increment or call.window + increment > MAX_WINDOW:
                    raise BrokenError(f"WINDOW_UPDATE of {increment} on stream {stream}")
                call.window += increment
                self._pump(call)
        return False

    def _settings(self, payload: memoryview) -> None:
        for setting, value in frames.settings(payload):
            if setting == frames.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise BrokenError(f"SETTINGS with a window of {value}")
                by, self._first_window = value - self._first_window, value
                for call in self._open.values():
                    call.window += by
            elif setting == _MAX_CONCURRENT_STREAMS:
                self._places = value
        self._send(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._pump_all()

    def credit(self, increment: int) -> bool:
        self._count()
        if not increment or self._window + increment > MAX_WINDOW:
            raise BrokenError(f"WINDOW_UPDATE of {increment} on a window of {self._window}")
        self._window += increment
        self._pump_all()
        return False

    def _goaway(self, last: int) -> None:
        """Calls up to `last` go on to their end; the rest, and those that wait, were never looked at."""
        self.usable = False
        for call in [*(call for call in self._open.values() if call.stream > last), *self._queue]:
            self._end(call, Code.UNAVAILABLE, "the runtime takes no more calls on this connection")
        self._queue.clear()

    # --- calls -------------------------------------------------------------------------------------------------------

    def _begin_waiting(self) -> None:
        while self._queue and len(self._open) < self._places and self.usable:
            call = self._queue.popleft()
            call.stream, self._next_stream = self._next_stream, self._next_stream + 2
            call.window = self._first_window
            self._open[call.stream] = call
            timeout_ms = min(math.ceil(call.timeout_s * 1000), _LONGEST_MS)
            own = literal(((b":path", call.path.encode()),)), literal(((b"grpc-timeout", b"%dm" % timeout_ms),))
            block = b"".join((_FIRST, own[0], _LAST, own[1]))
            self._send(frames.header_frames(call.stream, block, end_stream=False))
            self._pump(call)
            self.usable = self._next_stream <= MAX_STREAM

    def _pump_all(self) -> None:
        for call in self._open.values():
            self._pump(call)

    def _pump(self, call: _OwnCall) -> None:
        """Send of its request what may be sent by now."""
        while call.rest and (size := min(len(call.rest), call.window, self._window, frames.FRAME_BYTES)) > 0:
            piece, call.rest = call.rest[:size], call.rest[size:]
            call.window -= size
            self._window -= size
            self._send(frames.frame(frames.DATA, 0 if call.rest else frames.END_STREAM, call.stream, piece))

    def _end(self, call: _OwnCall, code: int, text: str = "", answer: bytes = b"", *, reset: bool = False) -> None:
        if reset:
            self._send(frames.rst_stream(call.stream, frames.CANCEL))
        self._open.pop(call.stream, None)
        self._outcomes.append(CallOutcome(call.number, code, text, answer))


def _result(call: _OwnCall, trailers: Block, most_bytes: int | None) -> tuple[int, str, bytes]:
    """The status code, why it is not OK, and the answer. Source: gRPC over HTTP/2, Responses."""
    try:
        code = int(trailers.get(b"grpc-status"))
    except ValueError:
        text = f"no status of gRPC's, and HTTP's {call.status.decode('ascii', 'replace')!r}"
        return Code.of_http(call.status), text, b""
    if code != Code.OK:
        return code, unquote_to_bytes(trailers.get(b"grpc-message")).decode("utf-8", "replace"), b""
    try:
        opened = message.all_opened if call.streamed else message.opened
        return Code.OK, "", opened(call.answer, call.encoding, most_bytes)
    except message.MessageError as error:
        return error.code, f"the answer: {error}", b""
