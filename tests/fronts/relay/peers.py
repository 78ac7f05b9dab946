"""Two strict HTTP/2 peers (h2) for the relay to stand between, and pipes that cut bytes anywhere.

h2 never makes some frames that others do: they are put in (`Mangler`) or taken out (`GoawayTap`) beside it.
"""

import random
import struct
from collections import Counter
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.settings
from h2.windows import WindowManager

from criproxy.fronts.http2 import frames

Headers = list[tuple[bytes, bytes]]


class _Windows(WindowManager):
    def window_consumed(self, size: int) -> None:
        if size:  # RFC 9113, 6.9.1: empty DATA needs no window; h2 refuses it on a negative one
            super().window_consumed(size)


def connection(*, client: bool) -> h2.connection.H2Connection:
    config = h2.config.H2Configuration(
        client_side=client, header_encoding=None, validate_inbound_headers=not client, normalize_inbound_headers=False
    )
    made = h2.connection.H2Connection(config)
    begin = made._begin_new_stream

    def begin_stream(*arguments, **named):
        stream = begin(*arguments, **named)
        stream._inbound_window_manager.__class__ = _Windows
        return stream

    made._begin_new_stream = begin_stream  # type: ignore[method-assign]
    return made


def split(data: bytearray) -> list[bytes]:
    """Take the whole frames off the front of `data`."""
    out, at = [], 0
    while len(data) - at >= 9:
        high, low = struct.unpack_from(">HB", data, at)
        end = at + 9 + (high << 8 | low)
        if end > len(data):
            break
        out.append(bytes(data[at:end]))
        at = end
    del data[:at]
    return out


def count_window(raw: bytes, windows: Counter[int]) -> None:
    """Add what a frame adds to its stream's window."""
    if raw[3] == frames.WINDOW_UPDATE:
        windows[int.from_bytes(raw[5:9])] += int.from_bytes(raw[9:13])


@dataclass
class Mangler:
    """Splits header blocks into CONTINUATION, and adds PRIORITY, PING's ACK for nothing and unknown frames."""

    rng: random.Random
    rest: bytearray = field(default_factory=bytearray)
    started: bool = False
    windows: Counter[int] = field(default_factory=Counter)
    """What was added to each stream's window."""

    def __call__(self, data: bytes) -> bytes:
        self.rest += data
        out = bytearray()
        if not self.started and self.rest.startswith(b"PRI"):
            out += frames.PREFACE
            del self.rest[: len(frames.PREFACE)]
        for raw in split(self.rest):
            count_window(raw, self.windows)
            out += self._mangled(raw) if self.started else raw
            self.started = True
        return bytes(out)

    def _mangled(self, raw: bytes) -> bytes:
        out = b""
        if self.rng.random() < 0.03:
            out += frames.frame(0xBB, self.rng.randrange(256), self.rng.choice((0, 1, 77)), self.rng.randbytes(20))
        kind, flags = raw[3], raw[4]
        stream = int.from_bytes(raw[5:9])
        plain = flags & (frames.END_HEADERS | frames.PADDED | frames.WITH_PRIORITY) == frames.END_HEADERS
        if kind == frames.HEADERS and plain and self.rng.random() < 0.3:
            out += self._split_block(flags, stream, raw[9:])
        else:
            out += raw
        if kind == frames.HEADERS and self.rng.random() < 0.05:
            out += frames.frame(frames.PRIORITY, 0, stream, b"\0\0\0\0\x10")
        return out

    def _split_block(self, flags: int, stream: int, payload: bytes) -> bytes:
        pieces, count = [], self.rng.randrange(1, 5)
        cuts = sorted(self.rng.randrange(len(payload) + 1) for _ in range(count))
        for begin, end in zip([0, *cuts], [*cuts, len(payload)], strict=True):
            pieces.append(payload[begin:end])
        first, flags = pieces.pop(0), flags & ~frames.END_HEADERS
        if self.rng.random() < 0.4:
            pad = self.rng.randrange(20)
            priority = b"\0\0\0\0\x07"
            flags |= frames.PADDED | frames.WITH_PRIORITY
            first = bytes((pad,)) + priority + first + bytes(pad)
        out = frames.frame(frames.HEADERS, flags, stream, first)
        for number, piece in enumerate(pieces):
            last = frames.END_HEADERS if number == len(pieces) - 1 else 0
            out += frames.frame(frames.CONTINUATION, last, stream, piece)
        return out


@dataclass
class Tap:
    """Gives h2 one frame at a time, as it lets a new frame size hold only from the next piece on.

    It takes GOAWAY for the end of everything: that is kept from it, and looked at here.
    """

    rest: bytearray = field(default_factory=bytearray)
    last_streams: list[int] = field(default_factory=list)
    windows: Counter[int] = field(default_factory=Counter)

    def __call__(self, data: bytes) -> list[bytes]:
        self.rest += data
        out = []
        if self.rest.startswith(b"PRI"):
            if len(self.rest) < len(frames.PREFACE):
                return []
            out.append(frames.PREFACE)
            del self.rest[: len(frames.PREFACE)]
        for raw in split(self.rest):
            count_window(raw, self.windows)
            if raw[3] == frames.GOAWAY:
                self.last_streams.append(int.from_bytes(raw[9:13]))
            else:
                out.append(raw)
        return out


@dataclass
class Pipe:
    """Bytes on their way; `some` takes a piece of any size."""

    rng: random.Random
    data: bytearray = field(default_factory=bytearray)
    sizes: tuple[int, ...] = (1, 9, 10, 50, 1000, 20_000, 1 << 20)

    def put(self, data: bytes | memoryview) -> None:
        self.data += data

    def some(self) -> bytes:
        size = min(len(self.data), self.rng.randint(1, self.rng.choice(self.sizes)))
        piece = bytes(self.data[:size])
        del self.data[:size]
        return piece
