"""The sockets at which criproxy answers questions: had as soon as they can be, and handed from process to process.

A listener that a hand-over passes on never closes, so nobody else can take its address meanwhile, and clients that wait
in its queue are answered by the new process.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Final

import structlog
from msgspec import Struct

from criproxy.model.shown import Shows

_AGAIN_S: Final = 5.0
"""How long to wait before an address that could not be had is tried again."""

_PACE_S: Final = 0.02
"""From one connection to the next. An answer takes some 0.2 ms of the event loop, so whoever asks all the time gets 1 %
of it; those who have to wait do so in the kernel's queue.
"""

_QUEUE: Final = 128


Serve = Callable[[socket.socket], None]
"""Takes over a connection that does not block, and closes it in the end."""


class TcpAddress(Struct, frozen=True):
    """A host's name or number, and a port, which `setting` names."""

    host: str
    port: int
    setting: str = "observe.address"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def remedy(self) -> str:
        """What to do when it can't be had."""
        return f"stop who listens there, or set {self.setting} to a free port and restart criproxy"

    def bind(self) -> socket.socket:
        """A socket that listens there and does not block. Raises OSError."""
        listener = socket.socket(self._family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _listening(listener, (self.host, self.port))

    def is_of(self, listener: socket.socket) -> bool:
        """Whether clients of this address find that socket."""
        if listener.family != self._family:
            return False
        found = socket.getaddrinfo(self.host, self.port, self._family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
        return listener.getsockname() in [place for *_, place in found]

    def remove(self) -> None:
        """A closed port leaves nothing behind."""

    @property
    def _family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


class UnixAddress(Struct, frozen=True):
    """A socket's file, for its owner alone. What a process that has died left there is replaced."""

    path: Path
    remedy: ClassVar[str] = "look at what is in its place, and at its directory"

    def __str__(self) -> str:
        return str(self.path)

    def bind(self) -> socket.socket:
        if self.path.is_socket() and _is_abandoned(self.path):
            self.path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(listener.fileno(), 0o600)  # which the file gets. Source: Linux, net/unix/af_unix.c, unix_bind_bsd()
        return _listening(listener, os.fspath(self.path))

    def is_of(self, listener: socket.socket) -> bool:
        ours = listener.family == socket.AF_UNIX and listener.getsockname() == os.fspath(self.path)
        return ours and self.path.is_socket()

    def remove(self) -> None:
        """Clear away what is left of it, once it is closed for good. Raises OSError."""
        self.path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


class Listener(Shows):
    """Accepts connections, at most one each `pace_s`. `problem`: why nobody can connect; None: they can."""

    def __init__(
        self,
        address: TcpAddress | UnixAddress,
        log: structlog.typing.FilteringBoundLogger,
        pace_s: float = _PACE_S,
    ) -> None:
        self._address: Final = address
        self._log = log
        self._pace_s = pace_s
        self._timer: asyncio.TimerHandle | None = None
        self.socket: socket.socket | None = None
        self.problem: str | None = None

    def problems(self) -> Iterator[str]:
        if self.problem is not None:
            yield self.problem

    def adopt(self, inherited: Iterable[socket.socket]) -> None:
        """Have the one of them that is of our address; the others stay as they are."""
        for listener in inherited:
            if self.socket is None and self._address.is_of(listener):
                listener.setblocking(False)
                self.socket = listener

    def open(self, serve: Serve) -> None:
        """Pass connections to `serve` from now on; where the address can't be had, as soon as it can."""
        self._timer = None
        if self.socket is not None and not self._address.is_of(self.socket):
            self.close()
        if self.socket is None:
            try:
                self.socket = self._address.bind()
            except OSError as error:
                self._failed(error, serve)
                return
            if self.problem is not None:
                self._log.info("observe_listening", address=str(self._address))
        self.problem = None
        self._accept_next(serve)

    def pause(self) -> None:
        """Accept no more for now; who connects waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.socket is not None:
            asyncio.get_running_loop().remove_reader(self.socket)

    def close(self) -> None:
        """Leave the address to another process."""
        self.pause()
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def release(self) -> None:
        """Close it for good; does nothing when it is not open."""
        if self.socket is not None:
            self.close()
            try:
                self._address.remove()
            except OSError as error:
                self._log.warning("observe_not_removed", address=str(self._address), error=error.strerror)
        self.pause()

    def _failed(self, error: OSError, serve: Serve) -> None:
        reason = error.strerror or str(error)
        problem = f"criproxy cannot listen at {self._address} ({reason}), and tries again: {self._address.remedy}"
        if problem != self.problem:
            remedy = self._address.remedy
            self._log.error("observe_not_listening", address=str(self._address), error=reason, remedy=remedy)
        self.problem = problem
        self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self.open, serve)

    def _accept_next(self, serve: Serve) -> None:
        self._timer = None
        assert self.socket is not None
        asyncio.get_running_loop().add_reader(self.socket, self._accept, serve)

    def _accept(self, serve: Serve) -> None:
        assert self.socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.socket)
        self._timer = loop.call_later(self._pace_s, self._accept_next, serve)
        try:
            client, _ = self.socket.accept()
        except OSError as error:  # it has gone already, or there are too many files for now
            self._log.debug("observe_not_accepted", error=error.strerror)
        else:
            client.setblocking(False)
            serve(client)


def _listening(listener: socket.socket, place: tuple[str, int] | str) -> socket.socket:
    try:
        listener.setblocking(False)
        listener.bind(place)
        listener.listen(_QUEUE)
    except BaseException:
        listener.close()
        raise
    return listener
