"""Stands in for stderr and writes what comes from a thread of its own, so that a reader that hangs delays nobody.

Lines wait in a bounded queue. What finds it full is dropped and counted; in its place, the log then says how many
lines are missing. The descriptor stays in blocking mode: it may be shared with other processes. Where it is a socket,
as journald's is, a line that it takes without waiting goes out at once, while none waits: to wake up a thread for each
costs more than the line.

The file is a part of the cluster's distribution, too, by a link in the checkout: it needs the standard library alone.
"""

import io
import os
import queue
import select
import socket
import stat
import threading
from collections.abc import Callable
from typing import Final

MAX_QUEUED_BYTES: Final = 1024 * 1024
_MAX_BEGUN: Final = 8 * 1024
"""Characters of a line that does not end; tracebacks come in pieces."""


class LineWriter(io.TextIOBase):
    """Writes to `descriptor`. `lost` makes the line, without its end, which says how many are missing.

    Any thread may write. Nothing here blocks but `drain`, nor raises for what becomes of a line.
    """

    def __init__(self, descriptor: int, lost: Callable[[int], str], max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._descriptor = descriptor
        self._socket = _socket_at(descriptor)
        self._lost = lost
        self._max_bytes = max_bytes
        # Reentrant: asyncio logs a forgotten task when that is collected, which may be in the middle of a write.
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        """Lines, whom to tell that all before has been dealt with, and None where lines are missing."""
        self._queued_bytes = 0
        self._begun: dict[int, str] = {}
        """By thread, a line that has not ended yet."""
        self.missing = 0
        """How many lines were dropped of late, which the log does not tell yet."""
        self._marked = False
        """Whether the place of the missing lines is in the queue."""
        self.dropped = 0
        threading.Thread(target=self._serve, name="log-writer", daemon=True).start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        with self._lock:
            begun = self._begun.pop(thread, "") + text
            end = len(begun) if len(begun) > _MAX_BEGUN else begun.rfind("\n") + 1
            if begun[end:]:
                self._begun[thread] = begun[end:]
            if end:
                self._add(begun[:end].encode("utf-8", "backslashreplace"))
        return len(text)

    def drain(self, timeout_s: float) -> bool:
        """Wait until what was written before has been dealt with; False: it was not within that time."""
        done = threading.Event()
        with self._lock:
            for text in self._begun.values():
                self._add(text.encode("utf-8", "backslashreplace"))
            self._begun.clear()
            self._queue.put(done)
        return done.wait(timeout_s)

    # --- with the lock ----------------------------------------------------------------------------------------------

    def _add(self, line: bytes) -> None:
        if not self._queued_bytes and not self.missing and not (line := self._send_at_once(line)):
            return
        full = self._queued_bytes + len(line) > self._max_bytes
        if full:
            self._drop()
        if self.missing and not self._marked:
            self._marked = True
            self._queue.put(None)
        if not full:
            self._queued_bytes += len(line)
            self._queue.put(line)

    def _send_at_once(self, line: bytes) -> bytes:
        """What of it is left to be sent."""
        if self._socket is None:
            return line
        try:
            return line[self._socket.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except OSError:  # it is full, or nobody reads it: the thread finds out which
            return line

    def _drop(self) -> None:
        self.dropped += 1
        self.missing += 1

    # --- the thread -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            match self._queue.get():
                case threading.Event() as done:
                    done.set()
                case None:
                    self._tell_missing()
                case line:
                    sent = self._send(line)
                    with self._lock:
                        self._queued_bytes -= len(line)
                        if not sent:
                            self._drop()

    def _tell_missing(self) -> None:
        with self._lock:
            missing, self._marked = self.missing, False
        if missing and self._send(f"{self._lost(missing)}\n".encode()):
            with self._lock:
                self.missing -= missing

    def _send(self, line: bytes) -> bool:
        """Whether all of it was taken; waits for as long as that takes."""
        rest = memoryview(line)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # somebody has set the descriptor to non-blocking
                    poll = select.poll()
                    poll.register(self._descriptor, select.POLLOUT)
                    poll.poll()
        except OSError:  # the reader has gone, or a disk is full
            return False
        return True


def _socket_at(descriptor: int) -> socket.socket | None:
    """The socket that it is; None: it is none."""
    try:
        return socket.socket(fileno=os.dup(descriptor)) if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except OSError:  # there is no stderr
        return None
