"""An event loop on a thread of its own: what comes back, what a cancel does, and how it ends."""

import asyncio
import threading

import pytest

from criproxy.concurrency.loop_thread import LoopThread
from tests.fakes.waiting import LONG_S, until


def test_job_runs_on_the_thread_and_its_result_or_exception_comes_back() -> None:
    async def name() -> str:
        return threading.current_thread().name

    async def fails() -> None:
        raise ValueError("no")

    async def test() -> None:
        thread = LoopThread("apart")
        assert await thread.run(name) == "apart"
        with pytest.raises(ValueError, match="no"):
            await thread.run(fails)
        thread.close()

    asyncio.run(test())


class LongJob:
    """A job that has neither begun nor ended at first."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    async def sleep(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.ended.set()


def test_job_of_a_caller_that_is_cancelled_is_cancelled() -> None:
    job = LongJob()

    async def test() -> None:
        thread = LoopThread("apart")
        task = asyncio.create_task(thread.run(job.sleep))
        await until(job.begun.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert job.ended.wait(LONG_S)
        thread.close()

    asyncio.run(test())


def test_closing_ends_the_thread_and_what_is_under_way_there() -> None:
    job = LongJob()

    async def test() -> None:
        thread = LoopThread("ends")
        task = asyncio.create_task(thread.run(job.sleep))
        await until(job.begun.is_set)
        thread.close()
        assert job.ended.wait(LONG_S)
        with pytest.raises(asyncio.CancelledError):
            await task
        for one in threading.enumerate():
            if one.name == "ends":
                one.join(LONG_S)
        assert "ends" not in [one.name for one in threading.enumerate()]

    asyncio.run(test())


def test_one_that_was_never_used_has_no_thread_and_closes() -> None:
    LoopThread("unused").close()
    assert "unused" not in [one.name for one in threading.enumerate()]
