"""An event loop on a thread of its own, for work that must not keep the one waiting that carries kubelet's calls.

Only one thread at a time runs Python: whoever has something run here bounds what it may take all the same.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """It begins with its first use. For the caller's event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, job: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the job returns, or raises. A caller that is cancelled cancels it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon thread: what is under way must not keep the process from ending.
            threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(job(), self._loop))

    def close(self) -> None:
        """End it. What is under way there is not waited for, and ends with the process."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
