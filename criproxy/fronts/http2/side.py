"""One socket of a relay: read into a common buffer, written with a bound, closed without a wait that never ends."""

import asyncio
import contextlib
import math
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

from criproxy.fronts.event_loop import EventLoop
from criproxy.fronts.http2.frames import Bytes

_LINGER_S: Final = 5.0
"""How long a closed peer may still take what was sent before."""

_WRITE_BYTES: Final = 256 * 1024
"""What may wait to be written before the other side is read no further."""

_READ_BYTES: Final = 256 * 1024
"""One read: a little more than a unix socket holds."""


PeerIds = tuple[int, int]
"""Its pid and its user's id."""

_UCRED: Final = struct.Struct("3i")
"""Source: unix(7), struct ucred."""


class ReadBuffer:
    """What all connections read into: each read is done with before the next begins."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


class Side(asyncio.BufferedProtocol):
    """One socket. It is read while nothing is in its way, and closed when over `most_waiting` bytes wait for it.

    asyncio's transport makes and closes the connection, has what can't be sent at once, and meets what goes wrong. The
    other bytes pass it by, as it costs about what the kernel does: on our own event loop, `_read` is called before it.
    """

    def __init__(
        self,
        buffer: ReadBuffer,
        *,
        on_made: Callable[[], None],
        on_bytes: Callable[[memoryview], None],
        on_lost: Callable[[], None],
        on_behind: Callable[[bool], None],
        most_waiting: float = math.inf,
    ) -> None:
        self._view = buffer.view
        self._views = [buffer.view]
        self._on_made = on_made
        self._on_bytes = on_bytes
        self._on_lost = on_lost
        self._on_behind = on_behind
        self._most_waiting = most_waiting
        self._in_the_way: set[str] = set()
        self._waiting: Bytes = b""
        self._behind = False
        self.overrun = False
        """It was closed for what it left waiting."""
        self._linger: asyncio.TimerHandle | None = None
        self._descriptor = -1
        self.transport: asyncio.Transport | None = None
        """None before it is made, and after it is lost."""

    @property
    def peer(self) -> PeerIds:
        """The process that has connected, or listens; (0, 0): it is not known. Source: unix(7), SO_PEERCRED."""
        if self.transport is None:
            return 0, 0
        connected = self.transport.get_extra_info("socket")
        pid, uid, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return pid, uid

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(_WRITE_BYTES)
        self._descriptor = transport.get_extra_info("socket").fileno()
        loop = asyncio.get_running_loop()
        if isinstance(loop, EventLoop):
            loop.read_at_once(self._descriptor, self._read)
        # Not at once: CPython 3.11.2 (bookworm's) begins to read after this call, paused or not.
        loop.call_soon(self._stay_blocked)
        self._on_made()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._on_bytes(self._view[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        loop = asyncio.get_running_loop()
        if isinstance(loop, EventLoop):
            loop.forget(self._descriptor)
        if self._linger is not None:
            self._linger.cancel()
        if exc is not None:
            self._read_rest()
        self._on_lost()

    def pause_writing(self) -> None:
        self._behind = True
        self._on_behind(True)

    def resume_writing(self) -> None:
        self._behind = False
        self._on_behind(False)

    def write(self, data: Bytes, *, wait: bool = False) -> None:
        """With `wait`, only with what is written next, or at the `flush`: one system call is dearer than the rest."""
        if self._waiting:
            data, self._waiting = b"".join((self._waiting, data)), b""
        elif wait:
            self._waiting = data
            return
        if (transport := self.transport) is None:
            return
        if not transport.get_write_buffer_size() and not transport.is_closing():
            try:
                sent = os.write(self._descriptor, data)
            except OSError:  # the transport will meet it, too
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)
        if self._behind and transport.get_write_buffer_size() > self._most_waiting:
            self.overrun = True
            transport.abort()

    def flush(self) -> None:
        if self._waiting:
            self.write(b"")

    def close(self) -> None:
        """Read no more, and close when all is written that was to be, or soon after."""
        self.flush()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)

    def finish(self) -> None:
        """Send all, and let the peer close first, or close soon after.

        A peer whose last window update met a closed socket would take for lost what it had not read yet.
        """
        self.flush()
        if self.transport is not None and not self.transport.is_closing():
            self._on_bytes = lambda _: None
            for reason in tuple(self._in_the_way):
                self.block(reason, False)
            self.transport.write_eof()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)

    def block(self, reason: str, blocked: bool = True) -> None:
        """Do not read, until this and all other reasons are gone."""
        before = bool(self._in_the_way)
        (self._in_the_way.add if blocked else self._in_the_way.discard)(reason)
        if self.transport is not None and bool(self._in_the_way) != before:
            (self.transport.resume_reading if before else self.transport.pause_reading)()

    def _read(self) -> bool:
        """Read once. False: asyncio is to look, as nothing has come, or the end, or it is not to be read."""
        transport = self.transport
        if transport is None or not transport.is_reading():
            return False
        try:
            size = os.readv(self._descriptor, self._views)
        except OSError:  # asyncio will meet it, too
            return False
        if not size:
            return False
        try:
            self._on_bytes(self._view[:size])
        except Exception as error:  # as asyncio does it
            message = "what came could not be dealt with"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            transport.abort()
        return True

    def _read_rest(self) -> None:
        """What had come before a write failed: the peer may have said its last word, and closed with ours unread."""
        with contextlib.suppress(OSError):  # BlockingIOError: that was all
            while size := os.readv(self._descriptor, self._views):
                self._on_bytes(self._view[:size])

    def _stay_blocked(self) -> None:
        if self._in_the_way and self.transport is not None:
            self.transport.pause_reading()
