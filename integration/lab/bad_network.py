"""A network between one client and a server that cuts connections, swallows what is sent, or brings answers late."""

import contextlib
import select
import socket
import threading
import time
from typing import Final

_BYTES: Final = 64 << 10
_LOOK_S: Final = 0.05


class BadNetwork:
    """Listens on 127.0.0.1, and asks the server from `source`, an address by which that tells its clients apart.

    `swallows`: nothing comes through, in either direction, until it does again, as with a cable that is pulled: what
    its sender has given up by then never does. `late_s`: each answer's bytes come so much later.
    """

    def __init__(self, server: tuple[str, int], source: str) -> None:
        self._server = server
        self._source = source
        self.swallows = False
        self.late_s = 0.0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._dead: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listening.getsockname()[1]}"

    def cut(self) -> None:
        """Each connection that there is."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for one in (one for pair in pairs for one in pair):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def deaden(self) -> None:
        """The connections that there are bring nothing any more, and nobody is told."""
        with self._lock:
            self._dead |= {one for pair in self._pairs for one in pair}

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server, source_address=(self._source, 0))
            except OSError:
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for one, other, late in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._carry, args=(one, other, late), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, late: bool) -> None:
        """Bytes of one to the other."""
        with contextlib.suppress(OSError, ValueError):
            while data := one.recv(_BYTES):
                if late and self.late_s:
                    time.sleep(self.late_s)
                while (self.swallows or one in self._dead) and not self._closed:
                    time.sleep(_LOOK_S)
                if _was_given_up(one):
                    break
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._pairs.discard((other, one) if late else (one, other))


def _was_given_up(one: socket.socket) -> bool:
    """Whether its sender has closed the connection without waiting for what it had sent."""
    poll = select.poll()
    poll.register(one, 0)
    return bool(poll.poll(0))
