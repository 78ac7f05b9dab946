"""What runs apart from the event loop."""

import asyncio
import threading

import pytest

from criproxy.daemon.apart import run_apart


def test_result_and_exception_come_back() -> None:
    async def main() -> int:
        with pytest.raises(OSError, match="full"):
            await run_apart("x", _fail)
        return await run_apart("x", lambda: 3)

    def _fail() -> None:
        raise OSError("full")

    assert asyncio.run(main()) == 3


def test_job_that_hangs_keeps_neither_the_loop_nor_the_end() -> None:
    release = threading.Event()

    async def main() -> None:
        async with asyncio.timeout(0.05):
            await run_apart("x", release.wait)

    try:
        with pytest.raises(TimeoutError):
            asyncio.run(main())  # which joins the threads of asyncio.to_thread
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "x"]
        assert thread.daemon
    finally:
        release.set()
    thread.join()
