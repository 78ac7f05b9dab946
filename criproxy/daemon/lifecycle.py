"""The daemon's tasks, which of them only one of two criproxys may run, and what the service manager hears of them."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from msgspec import Struct, field

from criproxy.concurrency.closing import STRAY
from criproxy.concurrency.worker import Worker
from criproxy.observe.listener import Listener, Serve
from criproxy.observe.notify import Notifier

T = TypeVar("T")

_NEVER_S: Final = 30 * 86400.0


async def run_apart(name: str, job: Callable[[], T]) -> T:
    """The job's result, or its exception, from a thread that nobody waits for when the process ends.

    The threads of `asyncio.to_thread` are joined at the end: one that hangs in fsync keeps the process from ending. A
    caller that is cancelled leaves the job running. Raises RuntimeError when the machine has no more threads.
    """
    worker = Worker(name, _NEVER_S)
    try:
        return await worker.run(name, job)
    finally:
        worker.close()


class PartEndedError(Exception):
    """A part of the daemon has ended that was to go on; the message says how."""


class Tasks(Struct):
    """`stop` is set when all is to end. `failure`: what a part has failed of, None: all is well."""

    log: structlog.typing.FilteringBoundLogger
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    failure: BaseException | None = None
    _kept: list[asyncio.Task[None]] = []

    def spawn(self, part: Coroutine[Any, Any, None], *, goes_on: bool = False) -> asyncio.Task[None]:
        """A part that fails ends the daemon: better to be started anew than to go on without it. `goes_on`: it has
        failed, too, when it ends without a cancel.
        """
        task = asyncio.create_task(part)
        task.add_done_callback(partial(self._ended, goes_on=goes_on))
        return task

    def attempt(self, what: str, chore: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Until its end or `cancel`, for what the daemon goes on without: its failure is logged."""
        return self.keep(self._attempted(what, chore))

    def keep(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """As `spawn`, for a part that goes on until its end or `cancel`."""
        self._kept.append(task := self.spawn(part))
        task.add_done_callback(self._kept.remove)
        return task

    async def cancel(self) -> None:
        """End what is kept."""
        await cancelled(self._kept)

    async def race(self, task: asyncio.Task[Any]) -> None:
        """Wait until the task is done, or all is to end."""
        stop = asyncio.create_task(self.stop.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _attempted(self, what: str, chore: Coroutine[Any, Any, object]) -> None:
        try:
            await chore
        except Exception as error:
            self.log.warning("chore_failed", chore=what, error=str(error) or type(error).__name__, exc_info=error)

    def _ended(self, task: asyncio.Task[None], *, goes_on: bool) -> None:
        error: BaseException | None = None
        if not task.cancelled():
            error = task.exception() or (PartEndedError("it has ended, and was to go on") if goes_on else None)
        elif not task.cancelling():
            error = PartEndedError(STRAY)
        if error is None:
            return
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        self.log.error("part_failed", error=str(error) or type(error).__name__, exc_info=error)
        self.failure = self.failure or error
        self.stop.set()


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel all, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Watchdog(Struct):
    """Tells the service manager that this process is ready and goes on: from `begin`, when it is the main one.

    `interval_s`: how often; None: the service manager does not ask for it. `unhealthy` says why the watchdog is not to
    be fed; None: it is.
    """

    notifier: Notifier
    unhealthy: Callable[[], str | None]
    tasks: Tasks
    interval_s: float | None
    _feeding: asyncio.Task[None] | None = None

    def begin(self, status: str) -> None:
        """The service manager listens to us now; may be called again."""
        if self._feeding is None:
            self.notifier.ready(status)
            self._feeding = self.tasks.keep(self._feed())

    def end(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()

    async def _feed(self) -> None:
        """Systemd hears of us while the loop goes on."""
        if self.interval_s is None:
            return
        while True:
            if self.unhealthy() is None:
                self.notifier.watchdog()
            await asyncio.sleep(self.interval_s)


class ActiveParts(Struct):
    """The parts that write or act on the config, and where questions come in: of two criproxys, one has them.

    `parts` makes them anew each time. At `listeners` questions are answered, by what stands beside each.
    """

    tasks: Tasks
    parts: Callable[[], Sequence[Coroutine[Any, Any, None]]]
    listeners: Mapping[Listener, Serve]
    _running: list[asyncio.Task[None]] = []

    @property
    def goes_on(self) -> bool:
        return bool(self._running)

    def begin(self) -> None:
        self._running = [self.tasks.spawn(part, goes_on=True) for part in self.parts()]
        for listener, serve in self.listeners.items():
            listener.open(serve)

    async def cease(self) -> None:
        """End the parts, and answer no more for now; they can begin again."""
        for listener in self.listeners:
            listener.pause()
        running, self._running = self._running, []
        await cancelled(running)

    def sockets(self) -> list[socket.socket]:
        """Where questions come in, for another process to answer there."""
        return [listener.socket for listener in self.listeners if listener.socket is not None]

    def adopt(self, inherited: Iterable[socket.socket]) -> None:
        """Answer at these sockets, where they are those that the config names; the others are closed."""
        sockets = list(inherited)
        for listener in self.listeners:
            listener.adopt(sockets)
        for unused in set(sockets) - set(self.sockets()):
            unused.close()

    def leave_sockets(self) -> None:
        """Another process answers there."""
        for listener in self.listeners:
            listener.close()

    def release_sockets(self) -> None:
        """Nobody answers there any more."""
        for listener in self.listeners:
            listener.release()
