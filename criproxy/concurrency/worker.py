"""One thread for calls that may block in the kernel: the event loop waits for an answer, but never for ever.

Only one thread at a time runs Python. A thread that is woken up while the event loop still has something to do goes to
sleep again at once, until that waits. So where the event loop can tell when it waits, jobs are given to their thread
right before: each wake-up is one, and the jobs of one moment share it.
"""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

T = TypeVar("T")


@runtime_checkable
class TellsWaits(Protocol):
    """An event loop that says when it waits (`criproxy.fronts.event_loop`)."""

    def before_wait(self, call: Callable[[], object]) -> None:
        """`call` is called once, when all that is to be done now has been done. It must not block nor raise."""


class StuckError(TimeoutError):
    """No answer in time, or an earlier call is still blocked."""


class _Job(Struct, Generic[T], eq=False):
    """A job, and where its answer is waited for. `forgone`: it was answered already, and is not to begin any more.

    `timer` runs until the job has ended, whether or not its caller waits. `began_s`, by the event loop's clock, is set
    once the job is the one that runs.
    """

    job: Callable[[], T]
    answer: asyncio.Future[T]
    timer: asyncio.TimerHandle | None = None
    began_s: float = 0.0
    forgone: bool = False
    ended: bool = False

    def carry_out(self) -> None:
        """On the worker's thread."""
        try:
            result: Any = None if self.forgone else self.job()
            settle = partial(self.answer.set_result, result)
        except BaseException as error:
            settle = partial(self.answer.set_exception, error)
        self.ended = True
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and whoever waited there
            self.answer.get_loop().call_soon_threadsafe(self.settle, settle)

    def settle(self, settle: Callable[[], None]) -> None:
        """On the event loop; the first answer holds."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            settle()


class Worker:
    """Runs jobs in order, those that are to be first before all others that wait. Each job may take `timeout_s`, and
    waits for as long as the jobs before it end in time. After a time-out, calls fail at once until the blocked job has
    ended.

    A caller that is cancelled leaves its job running, and the time-out with it: what jobs learn must be kept by the
    job, not by the caller.
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for each job that waits, in whichever of the next two; False: no more are to be begun."""
        self._first: deque[_Job[Any]] = deque()
        self._later: deque[_Job[Any]] = deque()
        self._running: _Job[Any] | None = None
        self._blocked: _Job[Any] | None = None
        self._closed = False
        self.timeouts = 0
        self.resting = False
        """It takes no jobs for now: another process does its work."""
        # A daemon thread: one that is blocked in the kernel must not keep the process from ending.
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    @property
    def stuck(self) -> bool:
        return self._blocked is not None and not self._blocked.ended

    async def run(self, what: str, job: Callable[[], T], *, first: bool = False) -> T:
        """The job's result, or its exception. `first`: it comes before all that wait and are not. Raises StuckError,
        which names `what`.
        """
        if self.resting:
            raise StuckError(f"cannot {what}: another criproxy does the work of {self._name} by now")
        return await self._run(what, job, self._first if first else self._later)

    async def drained(self) -> None:
        """Wait until all jobs so far are done. Raises StuckError."""
        await self._run(f"finish the work of {self._name}", lambda: None, self._later)

    async def _run(self, what: str, job: Callable[[], T], waiting: deque[_Job[Any]]) -> T:
        if self.stuck:
            raise StuckError(f"cannot {what}: an earlier call of {self._name} is still blocked in the kernel")
        loop = asyncio.get_running_loop()
        call: _Job[T] = _Job(job, loop.create_future())
        put = partial(self._put, call, waiting)
        if isinstance(loop, TellsWaits):
            loop.before_wait(put)
        else:
            put()
        call.timer = loop.call_later(self._timeout_s, self._look_at, call, what)
        return await call.answer

    def close(self) -> None:
        """End the thread after the jobs that wait."""
        self._calls.put(False)

    def _put(self, call: _Job[Any], waiting: deque[_Job[Any]]) -> None:
        waiting.append(call)
        self._calls.put(True)

    def _look_at(self, call: _Job[Any], what: str) -> None:
        """Give a call up whose job has not ended, once the one that runs has done so for too long."""
        if call.ended:
            return
        loop, running = asyncio.get_running_loop(), self._running
        left_s = self._timeout_s
        if running is not None and not running.ended:
            left_s += running.began_s - loop.time()
        elif self._closed:
            left_s = 0.0
        if left_s > 0.0:
            call.timer = loop.call_later(left_s, self._look_at, call, what)
            return
        self.timeouts += 1
        self._blocked = running
        if call.answer.cancelled():
            return
        call.forgone = True
        error = StuckError(f"cannot {what}: no answer from the kernel within {self._timeout_s:g} s")
        call.answer.set_exception(error)

    def _serve(self) -> None:
        while self._calls.get():
            call = (self._first or self._later).popleft()
            call.began_s = call.answer.get_loop().time()
            self._running = call
            call.carry_out()
        self._closed = True


class Apart:
    """For rare calls: each has a thread of its own, which ends with it. While one hangs, all others fail at once."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._last: Worker | None = None

    async def run(self, what: str, job: Callable[[], T]) -> T:
        """The job's result, or its exception. Raises StuckError, also when the machine has no more threads."""
        if self._last is not None and self._last.stuck:
            return await self._last.run(what, job)
        try:
            worker = self._last = Worker(self._name, self._timeout_s)
        except RuntimeError as error:
            raise StuckError(f"cannot {what}: the machine has no more threads") from error
        try:
            return await worker.run(what, job)
        finally:
            worker.close()
