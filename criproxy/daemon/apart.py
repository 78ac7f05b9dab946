"""Runs what may block on a disk apart from the event loop, in a thread that nobody waits for when the process ends.

The threads of `asyncio.to_thread` are joined at the end: one that hangs in fsync keeps the process from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_apart(name: str, job: Callable[[], T]) -> T:
    """The job's result, or its exception. A caller that is cancelled leaves the job running.

    Raises RuntimeError when the machine has no more threads.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, failure: BaseException | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)  # type: ignore[arg-type]  # without a failure, there is a result
        else:
            answer.set_exception(failure)

    def work() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = job()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and whoever waited there
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await answer
