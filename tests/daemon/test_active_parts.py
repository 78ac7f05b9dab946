"""What one of two criproxys has in a hand-over: the parts that write, and the sockets for questions."""

import asyncio
import socket
from pathlib import Path

import structlog

from criproxy.daemon.active_parts import Work
from criproxy.daemon.tasks import Tasks
from criproxy.observe.listener import Listener, UnixAddress


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def work(path: Path, came: list[socket.socket]) -> Work:
    async def part() -> None:
        await asyncio.sleep(100)

    log = structlog.get_logger()
    return Work(Tasks(log), lambda: (part(),), (Listener(UnixAddress(path), came.append, log),))


async def settled() -> None:
    await asyncio.sleep(0.05)


def test_questions_wait_from_the_end_of_the_parts_to_their_beginning(tmp_path: Path) -> None:
    async def play() -> None:
        came: list[socket.socket] = []
        mine = work(tmp_path / "s", came)
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
        mine = work(tmp_path / "s", came)
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
