"""Connections to the runtime that the launcher hands over: it was started by the runtime, which waits for its plugin
before it makes any container, and does nothing but pass its open socket on to the daemon.

    launcher                                     daemon, at <run dir>/nri-launcher.sock (mode 0600)
      one message: JSON, and one descriptor  ->
                                             <-  b"1": it is taken over, and the launcher may close its own copy
                                                 (the connection stays open until the runtime's is closed)

The JSON is {"plugin_name": "criproxy", "plugin_index": "50", "runtime": "containerd"}. What can't be read, or does not
come within `_SAYS_S`, is answered by closing the connection: the launcher then goes on alone.
Source: unix(7), SCM_RIGHTS; containerd/nri, pkg/adaptation (NRI_PLUGIN_NAME, NRI_PLUGIN_IDX, NRI_PLUGIN_SOCKET).
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

NAME: Final = "nri-launcher.sock"
TAKEN: Final = b"1"

_SAYS_S: Final = 2.0
_MOST_BYTES: Final = 4096
_MOST_WAITING: Final = 8


class Handed(Struct, frozen=True):
    """What the launcher says of a connection: as which plugin the runtime has started it, and which runtime."""

    plugin_name: str
    plugin_index: str
    runtime: str = ""


TakeHanded = Callable[[Handed, socket.socket, socket.socket], Coroutine[Any, Any, None]]
"""Serves a connection to the runtime until it ends, and closes it. It does not block. The second socket is the
launcher's, which ends once nobody has that open.
"""


class HandedListener:
    """Listens at `path` from `listen` until `close`. Two processes may: the later one takes the path over."""

    def __init__(self, path: Path, take: TakeHanded, log: FilteringBoundLogger) -> None:
        self._path = path
        self._take = take
        self._log = log
        self._listener: socket.socket | None = None
        self._inode = 0
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def listens(self) -> bool:
        return self._listener is not None

    def listen(self) -> None:
        """Raises OSError."""
        if self._listener is not None:
            return
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}~")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            umask = os.umask(0o177)
            try:
                listener.bind(str(new))
            finally:
                os.umask(umask)
            listener.listen(_MOST_WAITING)
            self._inode = new.stat().st_ino
            new.rename(self._path)  # nobody finds the path without a listener
        except OSError:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """TakeHanded no more; connections that were taken over stay."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        asyncio.get_running_loop().remove_reader(listener.fileno())
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # who dialled has gone, or no descriptor is free for a moment
            launcher, _ = self._listener.accept()
            launcher.setblocking(False)
            if len(self._serving) >= _MOST_WAITING:
                launcher.close()
                return
            task = asyncio.ensure_future(self._serve(launcher))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, launcher: socket.socket) -> None:
        with launcher:
            try:
                async with asyncio.timeout(_SAYS_S):
                    handed, runtime = await _received(launcher)
            except (OSError, ValueError) as error:
                self._log.warning("launcher_not_understood", error=str(error) or "it said nothing in time")
                return
            with contextlib.suppress(OSError):  # a launcher that died has handed its connection over all the same
                launcher.send(TAKEN)
            self._log.info("nri_handed_over", plugin=f"{handed.plugin_index}-{handed.plugin_name}", by="launcher")
            await self._take(handed, runtime, launcher)


async def _received(launcher: socket.socket) -> tuple[Handed, socket.socket]:
    """The one message. Raises OSError, and ValueError for one that makes no sense, whose descriptors are closed."""
    await _readable(launcher)
    said, descriptors, _, _ = socket.recv_fds(launcher, _MOST_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    try:
        handed = msgspec.json.decode(said, type=Handed)
        if len(descriptors) != 1:
            raise ValueError(f"{len(descriptors)} descriptors came with {said!r}, not one")
        runtime = socket.socket(fileno=os.dup(descriptors[0]))
    finally:
        for one in descriptors:
            os.close(one)
    if runtime.family != socket.AF_UNIX or runtime.type != socket.SOCK_STREAM:
        runtime.close()
        raise ValueError("the descriptor that came is no stream of a unix socket")
    runtime.setblocking(False)
    return handed, runtime


async def _readable(one: socket.socket) -> None:
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one.fileno(), there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(one.fileno())
