"""What the launcher hands over is served, and what it says wrongly costs it nothing but its connection."""

import asyncio
import json
import os
import socket
import stat
from pathlib import Path

import pytest
import structlog

from criproxy.fronts.nri.handed import TAKEN, Handed, HandedListener

SAID = {"plugin_name": "criproxy", "plugin_index": "50", "runtime": "containerd"}


pytestmark = pytest.mark.usefixtures("runner")


class Taker:
    """Has what was handed over, until it is told to let go."""

    def __init__(self) -> None:
        self.taken: list[Handed] = []
        self.came = asyncio.Event()
        self.ends = asyncio.Event()

    async def take(self, handed: Handed, runtime: socket.socket, launcher: socket.socket) -> None:
        self.taken.append(handed)
        runtime.send(b"hello")
        self.came.set()
        await self.ends.wait()
        runtime.close()


def listener(path: Path, taker: Taker) -> HandedListener:
    made = HandedListener(path, taker.take, structlog.get_logger())
    made.listen()
    return made


def dial(path: Path) -> socket.socket:
    launcher = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    launcher.connect(str(path))
    launcher.setblocking(False)
    return launcher


async def receive(one: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 16), 5)


async def test_a_socket_that_is_handed_over_is_served_until_it_ends(tmp_path: Path) -> None:
    path, taker = tmp_path / "nri-launcher.sock", Taker()
    listens = listener(path, taker)
    ours, theirs = socket.socketpair()
    with dial(path) as launcher, ours:
        ours.setblocking(False)
        with theirs:
            socket.send_fds(launcher, [json.dumps(SAID).encode()], [theirs.fileno()])
            assert await receive(launcher) == TAKEN
        assert await receive(ours) == b"hello"
        assert taker.taken == [Handed("criproxy", "50", "containerd")]
        taker.ends.set()
        assert await receive(launcher) == b""  # it may end now
        assert await receive(ours) == b""
    listens.close()
    assert not path.exists()


async def test_the_socket_is_for_root_alone(tmp_path: Path) -> None:
    path = tmp_path / "nri-launcher.sock"
    listens = listener(path, Taker())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listens.close()


@pytest.mark.parametrize(
    ("said", "descriptors"),
    [
        (b"{", 1),
        (b"[]", 1),
        (b'{"plugin_name": "criproxy"}', 1),
        (json.dumps(SAID).encode(), 0),
        (json.dumps(SAID).encode(), 2),
    ],
    ids=["no JSON", "no object", "no index", "no descriptor", "two descriptors"],
)
async def test_what_makes_no_sense_is_answered_by_the_end_of_the_connection(
    tmp_path: Path, said: bytes, descriptors: int
) -> None:
    path, taker = tmp_path / "nri-launcher.sock", Taker()
    listens = listener(path, taker)
    ours, theirs = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    with dial(path) as launcher:
        socket.send_fds(launcher, [said], [theirs.fileno()] * descriptors)
        assert await receive(launcher) == b""
    assert taker.taken == []
    assert len(os.listdir("/proc/self/fd")) == before
    listens.close()
    ours.close()
    theirs.close()


async def test_a_descriptor_that_is_no_socket_is_refused(tmp_path: Path) -> None:
    path, taker = tmp_path / "nri-launcher.sock", Taker()
    listens = listener(path, taker)
    with dial(path) as launcher, (tmp_path / "file").open("w") as file:
        socket.send_fds(launcher, [json.dumps(SAID).encode()], [file.fileno()])
        assert await receive(launcher) == b""
    assert taker.taken == []
    listens.close()


async def test_the_later_of_two_processes_takes_the_path_over(tmp_path: Path) -> None:
    path, before, after = tmp_path / "nri-launcher.sock", Taker(), Taker()
    old = listener(path, before)
    new = listener(path, after)
    old.close()  # leaves the other's socket
    ours, theirs = socket.socketpair()
    with dial(path) as launcher, ours, theirs:
        socket.send_fds(launcher, [json.dumps(SAID).encode()], [theirs.fileno()])
        assert await receive(launcher) == TAKEN
        await asyncio.wait_for(after.came.wait(), 5)
        assert before.taken == []
        after.ends.set()
        assert await receive(launcher) == b""
    new.close()
