"""The table of threads: each of its own health, none more for each try, and what rests."""

import asyncio
import threading

import pytest

from criproxy.concurrency.worker import StuckError
from criproxy.concurrency.workers import TABLE, Workers

WRITES = next(name for name, row in TABLE.items() if row.writes)
READS = next(name for name, row in TABLE.items() if not row.writes)


def test_thread_that_hangs_keeps_no_other_waiting_and_no_try_begins_one_more() -> None:
    workers, gate = Workers(0.02), threading.Event()

    async def play() -> None:
        for _ in range(5):
            with pytest.raises(StuckError):
                await workers["pods-logs"].run("read", gate.wait)
        assert await workers["hold-offs"].run("write", lambda: "written") == "written"
        assert workers.stuck == ("pods-logs",)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("pods-logs") == 1

    try:
        asyncio.run(play())
    finally:
        gate.set()
        workers.close()


def test_nothing_is_written_by_any_thread_once_they_rest_and_readings_go_on() -> None:
    workers, gate, did = Workers(5.0), threading.Event(), list[str]()

    def write() -> None:
        gate.wait()
        did.append("written")

    async def play() -> None:
        cut = asyncio.create_task(workers[WRITES].run("write", write))
        await asyncio.sleep(0.01)
        cut.cancel()
        rests = asyncio.create_task(workers.rest())
        await asyncio.sleep(0.01)
        assert not rests.done()
        gate.set()
        await rests
        assert did == ["written"]
        with pytest.raises(StuckError, match="another criproxy does the work"):
            await workers[WRITES].run("write", write)
        assert await workers[READS].run("read", lambda: 7) == 7
        workers.resume()
        await workers[WRITES].run("write", write)
        assert did == ["written"] * 2

    asyncio.run(play())
    workers.close()


def test_writing_that_does_not_end_in_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("criproxy.concurrency.workers.REST_S", 0.02)
    workers, gate = Workers(5.0), threading.Event()

    async def play() -> None:
        cut = asyncio.create_task(workers[WRITES].run("write", gate.wait))
        await asyncio.sleep(0.01)
        cut.cancel()
        with pytest.raises(StuckError, match=f"{WRITES} still waits for {TABLE[WRITES].may_wait_for}"):
            await workers.rest()

    try:
        asyncio.run(play())
    finally:
        gate.set()
        workers.close()
