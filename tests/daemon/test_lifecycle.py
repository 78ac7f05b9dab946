"""The parts and sockets that one of two criproxys has in a hand-over, and what runs apart from the event loop."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.daemon.lifecycle import ActiveParts, Tasks, run_apart
from criproxy.observe.listener import Listener, UnixAddress


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def active(path: Path, came: list[socket.socket]) -> ActiveParts:
    async def part() -> None:
        await asyncio.sleep(100)

    log = structlog.get_logger()
    return ActiveParts(Tasks(log), lambda: (part(),), {Listener(UnixAddress(path), log): came.append})


async def settled() -> None:
    await asyncio.sleep(0.05)


def test_questions_wait_from_the_end_of_the_parts_to_their_beginning(tmp_path: Path) -> None:
    async def play() -> None:
        came: list[socket.socket] = []
        mine = active(tmp_path / "s", came)
        mine.begin()
        await mine.cease()
        assert not mine.goes_on
        assert connects(tmp_path / "s")
        await settled()
        assert came == []
        mine.begin()
        await settled()
        assert len(came) == 1
        await mine.cease()
        mine.release_sockets()
        assert not (tmp_path / "s").exists()
        came[0].close()

    asyncio.run(play())


def test_sockets_of_other_addresses_are_closed_and_ours_goes_on(tmp_path: Path) -> None:
    async def play() -> None:
        came: list[socket.socket] = []
        mine = active(tmp_path / "s", came)
        ours, other = UnixAddress(tmp_path / "s").bind(), UnixAddress(tmp_path / "other").bind()
        mine.adopt([other, ours])
        assert (mine.sockets(), other.fileno()) == ([ours], -1)
        mine.begin()
        assert connects(tmp_path / "s")
        await settled()
        assert len(came) == 1
        await mine.cease()
        mine.leave_sockets()
        assert (tmp_path / "s").exists(), "another process answers there"
        came[0].close()

    asyncio.run(play())


# --- apart ----------------------------------------------------------------------------------------------------


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


def test_kept_task_that_has_ended_is_kept_no_longer() -> None:
    async def play() -> tuple[int, int]:
        tasks = Tasks(structlog.get_logger())
        for _ in range(100):  # as with a runtime that comes back again and again
            await tasks.keep(asyncio.sleep(0))
        tasks.keep(asyncio.sleep(100))
        kept = len(tasks._kept)
        await tasks.cancel()
        await settled()
        return kept, len(tasks._kept)

    assert asyncio.run(play()) == (1, 0)


def test_part_of_several_that_fails_is_logged_by_its_own_error_and_ends_the_others() -> None:
    async def fail() -> None:
        raise ValueError("so it is")

    async def part() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(60.0))

    async def run() -> BaseException | None:
        tasks = Tasks(structlog.get_logger())
        tasks.spawn(part())
        async with asyncio.timeout(5.0):
            await tasks.stop.wait()
        return tasks.failure

    with capture_logs() as lines:
        failure = asyncio.run(run())
    assert isinstance(failure, ValueError)
    assert [(line["event"], line["error"]) for line in lines] == [("part_failed", "so it is")]


async def _stray() -> None:
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def _ends() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("part", "why"),
    [(_stray, "it was cancelled, though nobody has cancelled it"), (_ends, "it has ended, and was to go on")],
)
def test_part_that_ends_though_it_was_to_go_on_has_failed(
    part: Callable[[], Coroutine[Any, Any, None]], why: str
) -> None:
    async def play() -> BaseException | None:
        tasks = Tasks(structlog.get_logger())
        mine = ActiveParts(tasks, lambda: (part(),), {})
        mine.begin()
        async with asyncio.timeout(5.0):
            await tasks.stop.wait()
        await mine.cease()
        return tasks.failure

    assert str(asyncio.run(play())) == why


def test_part_that_is_ceased_has_not_failed(tmp_path: Path) -> None:
    async def play() -> BaseException | None:
        mine = active(tmp_path / "s", [])
        mine.begin()
        await settled()
        await mine.cease()
        await settled()
        mine.release_sockets()
        return mine.tasks.failure

    assert asyncio.run(play()) is None


def test_chore_that_fails_is_logged_and_ends_nothing() -> None:
    async def fail() -> None:
        raise OSError("no free descriptor")

    async def play() -> Tasks:
        tasks = Tasks(structlog.get_logger())
        await tasks.attempt("look for kubelet", fail())
        return tasks

    with capture_logs() as lines:
        tasks = asyncio.run(play())
    assert (tasks.failure, tasks.stop.is_set()) == (None, False)
    assert [(line["event"], line["chore"], line["error"]) for line in lines] == [
        ("chore_failed", "look for kubelet", "no free descriptor")
    ]
