"""The parts that write or act on the config, and the status port: of two criproxys in a hand-over, one has them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from criproxy.observe.http import HttpServer
from criproxy.tasks import Tasks, cancelled


class Work:
    """`parts` makes them anew each time, `serve_status` opens the port, or says why not."""

    def __init__(
        self,
        tasks: Tasks,
        parts: Callable[[], Sequence[Coroutine[Any, Any, None]]],
        serve_status: Callable[[], HttpServer | None],
    ) -> None:
        self._tasks = tasks
        self._parts = parts
        self._serve_status = serve_status
        self._running: list[asyncio.Task[None]] = []
        self._web: HttpServer | None = None

    @property
    def goes_on(self) -> bool:
        return bool(self._running)

    def begin(self) -> None:
        self._running = [self._tasks.spawn(part) for part in self._parts()]
        self._web = self._serve_status()

    async def cease(self) -> None:
        """End the parts; they can begin again once the port is closed, too."""
        running, self._running = self._running, []
        await cancelled(running)

    async def close_port(self) -> None:
        if (web := self._web) is not None:
            self._web = None
            await asyncio.to_thread(web.close)
