"""An event loop on a thread of its own: what comes back, what a cancel does, and how it ends."""

import asyncio
import threading
from functools import partial

import pytest

from criproxy.concurrency.loop_thread import LoopThread


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


async def sleep_long(ended: threading.Event) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        ended.set()


def test_job_of_a_caller_that_is_cancelled_is_cancelled() -> None:
    ended = threading.Event()

    async def test() -> None:
        thread = LoopThread("apart")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await thread.run(partial(sleep_long, ended))
        assert ended.wait(5)
        thread.close()

    asyncio.run(test())


def test_closing_ends_the_thread_and_what_is_under_way_there() -> None:
    ended = threading.Event()

    async def test() -> None:
        thread = LoopThread("ends")
        task = asyncio.create_task(thread.run(partial(sleep_long, ended)))
        await asyncio.sleep(0.05)
        thread.close()
        assert ended.wait(5)
        with pytest.raises(asyncio.CancelledError):
            await task
        for one in threading.enumerate():
            if one.name == "ends":
                one.join(5)
        assert "ends" not in [one.name for one in threading.enumerate()]

    asyncio.run(test())


def test_one_that_was_never_used_has_no_thread_and_closes() -> None:
    LoopThread("unused").close()
    assert "unused" not in [one.name for one in threading.enumerate()]
