"""The thread for calls that may block: order, time-outs, recovery."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from criproxy.concurrency.worker import Apart, StuckError, Worker
from tests.fakes.waiting import until


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


def test_jobs_that_are_to_be_first_overtake_those_that_wait(worker: Worker) -> None:
    gate, running, ran = threading.Event(), threading.Event(), list[int]()

    def block() -> None:
        running.set()
        gate.wait()

    async def scenario() -> None:
        under_way = asyncio.create_task(worker.run("block", block))
        await until(running.is_set)
        waiting = [worker.run("note", partial(ran.append, n), first=n > 2) for n in range(1, 5)]
        noted = asyncio.gather(*waiting, worker.drained())
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(under_way, noted)

    asyncio.run(scenario())

    assert ran == [3, 4, 1, 2]


def test_job_that_waits_for_others_that_end_in_time_is_carried_out_and_nothing_hangs() -> None:
    worker = Worker("test-worker", timeout_s=0.1)

    async def scenario() -> None:
        await asyncio.gather(*(worker.run("sleep", partial(time.sleep, 0.05)) for _ in range(5)))
        assert (worker.timeouts, worker.stuck) == (0, False)

    asyncio.run(scenario())
    worker.close()


def test_job_that_comes_after_the_end_of_the_thread_fails_in_time() -> None:
    worker = Worker("test-worker", timeout_s=0.05)
    worker.close()

    async def scenario() -> None:
        async with asyncio.timeout(5.0):
            await worker.run("note", list)

    with pytest.raises(StuckError):
        asyncio.run(scenario())


def test_job_that_timed_out_in_the_queue_never_runs_and_the_thread_goes_on(worker: Worker) -> None:
    gate, ran = threading.Event(), threading.Event()

    async def scenario() -> None:
        outcomes = await asyncio.gather(
            worker.run("block", gate.wait), worker.run("wait behind", ran.set), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [StuckError, StuckError]
        assert worker.stuck
        gate.set()
        await until(lambda: not worker.stuck)
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
        await until(running.is_set)
        abandoned.cancel()
        with pytest.raises(StuckError, match="no answer"):
            await worker.run("wait behind", lambda: 7)
        with pytest.raises(StuckError, match="still blocked"):
            await worker.run("come later", lambda: 7)
        gate.set()

    asyncio.run(scenario())


async def abandon(worker: Worker, gate: threading.Event) -> None:
    """Its caller goes while a job waits for the gate."""
    caller = asyncio.create_task(worker.run("block", gate.wait))
    await asyncio.sleep(0.01)
    caller.cancel()


def test_job_that_was_abandoned_by_its_caller_is_known_to_hang_in_time() -> None:
    gate, worker = threading.Event(), Worker("test-worker", timeout_s=0.05)

    async def scenario() -> None:
        await abandon(worker, gate)
        await until(lambda: worker.stuck)
        assert worker.timeouts == 1
        gate.set()
        await until(lambda: not worker.stuck)
        assert await worker.run("count", lambda: 7) == 7

    asyncio.run(scenario())
    worker.close()


def test_job_that_was_abandoned_by_its_caller_and_ends_in_time_hangs_not() -> None:
    gate, worker = threading.Event(), Worker("test-worker", timeout_s=0.1)

    async def scenario() -> None:
        await abandon(worker, gate)
        gate.set()
        await asyncio.sleep(0.2)
        assert (worker.timeouts, worker.stuck) == (0, False)

    asyncio.run(scenario())
    worker.close()


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
        await until(running.is_set)
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
        await until(running.is_set)
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
        await until(lambda: not worker.stuck)
        with pytest.raises(StuckError):
            await worker.run("block again", again.wait)
        again.set()
        await until(lambda: not worker.stuck)
        assert worker.timeouts == 3

    asyncio.run(asyncio.wait_for(scenario(), 60))


# --- rare calls ----------------------------------------------------------------------------------------------------


def test_rare_calls_that_hang_take_one_thread_however_often_they_are_tried() -> None:
    gate, apart = threading.Event(), Apart("rare", 0.02)

    async def scenario() -> int:
        for _ in range(5):
            with pytest.raises(StuckError):
                await apart.run("read", gate.wait)
        hung = [thread.name for thread in threading.enumerate()].count("rare")
        gate.set()
        while True:
            try:
                assert await apart.run("read", lambda: 7) == 7
            except StuckError:
                await asyncio.sleep(0.001)
            else:
                return hung

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == 1


def test_rare_calls_fail_at_once_while_one_hangs_whose_caller_has_left() -> None:
    gate, apart = threading.Event(), Apart("rare", 0.05)

    async def scenario() -> None:
        left = asyncio.create_task(apart.run("read", gate.wait))
        await asyncio.sleep(0.01)
        left.cancel()
        await asyncio.sleep(0.1)
        with pytest.raises(StuckError, match="still blocked"):
            await apart.run("read", lambda: 7)
        gate.set()

    asyncio.run(scenario())


def test_rare_call_without_a_thread_to_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(StuckError, match="cannot read: the machine has no more threads"):
        asyncio.run(Apart("rare", 1.0).run("read", lambda: 7))


class LateLoop(asyncio.SelectorEventLoop):
    """Says when it waits, as criproxy's own does (`criproxy.fronts.event_loop`)."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Callable[[], object]] = []

    def before_wait(self, call: Callable[[], object]) -> None:
        self.before.append(call)


def test_job_reaches_its_thread_no_sooner_than_the_event_loop_waits(worker: Worker) -> None:
    """Else the thread would wake up to wait for the event loop, which runs on."""
    ran = threading.Event()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LateLoop)
        job = asyncio.create_task(worker.run("note", ran.set))
        await asyncio.sleep(0)
        assert len(loop.before) == 1
        assert worker._calls.empty()
        loop.before.pop()()
        await job

    with asyncio.Runner(loop_factory=LateLoop) as runner:
        runner.run(scenario())
    assert ran.is_set()
