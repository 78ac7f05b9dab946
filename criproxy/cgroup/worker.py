"""One thread for calls that may block in the kernel: the event loop waits for an answer, but never for ever."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from criproxy.cgroup.driver import CgroupError

T = TypeVar("T")


class StuckError(CgroupError):
    """No answer in time, or an earlier call is still blocked."""


class Worker:
    """Runs jobs in order. After a time-out, calls fail at once until the blocked job has ended.

    A caller that is cancelled leaves its job running: what jobs learn must be kept by the job, not by the caller.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: Future[Any] | None = None
        self._blocked: Future[Any] | None = None
        self.timeouts = 0
        # A daemon thread: one that is blocked in the kernel must not keep the process from ending.
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    @property
    def stuck(self) -> bool:
        return self._blocked is not None and not self._blocked.done()

    async def run(self, what: str, job: Callable[[], T]) -> T:
        """The job's result, or its exception. Raises StuckError, which names `what`."""
        if self.stuck:
            raise StuckError(f"cannot {what}: an earlier call of {self._name} is still blocked in the kernel")
        future: Future[T] = Future()
        self._jobs.put(lambda: self._settle(future, job))
        waiter = asyncio.wrap_future(future)
        # Looked at also when the caller is gone by then, lest asyncio warn of an exception that nobody has seen.
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([waiter], timeout=self._timeout_s)
        if waiter.done():
            return waiter.result()
        future.cancel()
        self.timeouts += 1
        self._blocked = self._running
        raise StuckError(f"cannot {what}: no answer from the kernel within {self._timeout_s:g} s")

    def close(self) -> None:
        """End the thread after the jobs that wait."""
        self._jobs.put(None)

    def _serve(self) -> None:
        while job := self._jobs.get():
            job()

    def _settle(self, future: Future[T], job: Callable[[], T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._running = future
        try:
            result = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
