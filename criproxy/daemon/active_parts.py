"""The parts that write or act on the config, and where questions come in: of two criproxys, one has them."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from criproxy.daemon.tasks import Tasks, cancelled
from criproxy.observe.listener import Listener


class Work:
    """`parts` makes them anew each time; at `listeners` questions are answered."""

    def __init__(
        self,
        tasks: Tasks,
        parts: Callable[[], Sequence[Coroutine[Any, Any, None]]],
        listeners: Sequence[Listener],
    ) -> None:
        self._tasks = tasks
        self._parts = parts
        self._listeners = listeners
        self._running: list[asyncio.Task[None]] = []

    @property
    def goes_on(self) -> bool:
        return bool(self._running)

    def begin(self) -> None:
        self._running = [self._tasks.spawn(part) for part in self._parts()]
        for listener in self._listeners:
            listener.open()

    async def cease(self) -> None:
        """End the parts, and answer no more for now; they can begin again."""
        for listener in self._listeners:
            listener.pause()
        running, self._running = self._running, []
        await cancelled(running)

    def sockets(self) -> list[socket.socket]:
        """Where questions come in, for another process to answer there."""
        return [listener.socket for listener in self._listeners if listener.socket is not None]

    def adopt(self, inherited: Iterable[socket.socket]) -> None:
        """Answer at these sockets, where they are those that the config names; the others are closed."""
        sockets = list(inherited)
        for listener in self._listeners:
            listener.adopt(sockets)
        for unused in set(sockets) - set(self.sockets()):
            unused.close()

    def leave_sockets(self) -> None:
        """Another process answers there."""
        for listener in self._listeners:
            listener.close()

    def release_sockets(self) -> None:
        """Nobody answers there any more."""
        for listener in self._listeners:
            listener.release()
