"""The daemon's tasks, and what ends them all: a signal, or one of them that has failed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog


class Tasks:
    """`stop` is set when all is to end. `failure`: what a part has failed of, None: all is well."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log
        self._kept: list[asyncio.Task[None]] = []
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None

    def spawn(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A part that fails ends the daemon: better to be started anew than to go on without it."""
        task = asyncio.create_task(part)
        task.add_done_callback(self._ended)
        return task

    def keep(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """As `spawn`, for a part that goes on until `cancel`."""
        self._kept.append(task := self.spawn(part))
        return task

    async def cancel(self) -> None:
        """End what is kept."""
        await cancelled(self._kept)

    async def race(self, task: asyncio.Task[Any]) -> None:
        """Wait until the task is done, or all is to end."""
        stop = asyncio.create_task(self.stop.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("part_failed", error=str(error) or type(error).__name__, exc_info=error)
            self.failure = self.failure or error
            self.stop.set()


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel all, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
