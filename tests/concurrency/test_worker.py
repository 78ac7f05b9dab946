"""The thread for calls that may block: order, time-outs, recovery."""

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from criproxy.concurrency.worker import StuckError, Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test-worker", timeout_s=1.0)
    yield worker
    worker.close()


def test_job_gives_its_result_or_its_exception(worker: Worker) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        assert await worker.run("count", lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await worker.run("fail", fail)
        assert await worker.run("count", lambda: 8) == 8

    asyncio.run(scenario())


def test_jobs_run_in_order_on_one_thread(worker: Worker) -> None:
    seen: list[tuple[int, str]] = []

    async def scenario() -> None:
        jobs = [lambda n=n: seen.append((n, threading.current_thread().name)) for n in range(20)]
        await asyncio.gather(*(worker.run("note", job) for job in jobs))

    asyncio.run(scenario())

    assert seen == [(n, "test-worker") for n in range(20)]


def test_job_that_timed_out_in_the_queue_never_runs_and_the_thread_goes_on(worker: Worker) -> None:
    gate, ran = threading.Event(), threading.Event()

    async def scenario() -> None:
        outcomes = await asyncio.gather(
            worker.run("block", gate.wait), worker.run("wait behind", ran.set), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [StuckError, StuckError]
        assert worker.stuck
        gate.set()
        while worker.stuck:  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.001)
        assert await worker.run("count", lambda: 7) == 7

    asyncio.run(scenario())

    assert not ran.is_set()


def test_job_that_was_abandoned_by_its_caller_makes_the_next_time_out_known(worker: Worker) -> None:
    gate, running = threading.Event(), threading.Event()

    def block() -> None:
        running.set()
        gate.wait()

    async def scenario() -> None:
        abandoned = asyncio.create_task(worker.run("block", block))
        while not running.is_set():  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.001)
        abandoned.cancel()
        with pytest.raises(StuckError, match="no answer"):
            await worker.run("wait behind", lambda: 7)
        with pytest.raises(StuckError, match="still blocked"):
            await worker.run("come later", lambda: 7)
        gate.set()

    asyncio.run(scenario())


def test_error_of_a_job_whose_caller_vanished_is_not_reported_as_unseen(worker: Worker) -> None:
    gate, running = threading.Event(), threading.Event()
    reported: list[object] = []

    def fail() -> None:
        running.set()
        gate.wait()
        raise ZeroDivisionError

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        abandoned = asyncio.create_task(worker.run("fail", fail))
        while not running.is_set():  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.001)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        del abandoned
        gate.set()
        await worker.run("come after it", lambda: None)
        gc.collect()

    asyncio.run(scenario())

    assert reported == []


def test_job_whose_event_loop_has_ended_harms_nothing(worker: Worker) -> None:
    gate, running = threading.Event(), threading.Event()

    def block() -> None:
        running.set()
        gate.wait()

    async def leave() -> None:
        abandoned = asyncio.create_task(worker.run("block", block))
        while not running.is_set():  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.001)
        abandoned.cancel()

    async def come() -> int:
        return await worker.run("count", lambda: 7)

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(come()) == 7


def test_job_that_timed_out_in_the_queue_blocks_nothing_once_its_turn_has_passed(worker: Worker) -> None:
    gate, again = threading.Event(), threading.Event()

    async def scenario() -> None:
        await asyncio.gather(
            worker.run("block", gate.wait), worker.run("wait behind", lambda: None), return_exceptions=True
        )
        gate.set()
        while worker.stuck:  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.001)
        with pytest.raises(StuckError):
            await worker.run("block again", again.wait)
        again.set()
        while worker.stuck:  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.001)
        assert worker.timeouts == 3

    asyncio.run(asyncio.wait_for(scenario(), 60))
