"""Listeners: who may connect, and that no moment is without one while they change hands."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from criproxy.observe.listener import Listener, TcpAddress, UnixAddress
from integration.lab.ports import free_ports
from tests.answering import HOST
from tests.fakes.waiting import until


@pytest.fixture(params=["tcp", "tcp6", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> TcpAddress | UnixAddress:
    if request.param == "unix":
        return UnixAddress(tmp_path / "c-status.sock")
    host = {"tcp": HOST, "tcp6": "0:0:0::1"}[request.param]
    address = TcpAddress(host, free_ports(1)[0])
    try:
        address.bind().close()
    except OSError:
        pytest.skip("this machine has no ::1")
    return address


def listener(address: TcpAddress | UnixAddress) -> Listener:
    return Listener(address, structlog.get_logger())


def connect(address: TcpAddress | UnixAddress) -> socket.socket:
    if isinstance(address, TcpAddress):
        return socket.create_connection((address.host, address.port), timeout=20)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address.path))
    return connection


def inherited(sockets: list[socket.socket]) -> list[socket.socket]:
    """As another process gets them."""
    giving, taking = socket.socketpair()
    with giving, taking:
        socket.send_fds(giving, [b"x"], [one.fileno() for one in sockets])
        return [socket.socket(fileno=one) for one in socket.recv_fds(taking, 64, 8)[1]]


def test_socket_is_for_its_owner_alone_from_its_first_moment(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        with UnixAddress(tmp_path / "s").bind():
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    finally:
        os.umask(umask)


def test_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    UnixAddress(tmp_path / "s").bind().close()
    UnixAddress(tmp_path / "s").bind().close()


@pytest.mark.parametrize("there", ["file", "directory", "live"])
def test_what_is_no_dead_socket_stays(tmp_path: Path, there: str) -> None:
    path, live = tmp_path / "s", socket.socket(socket.AF_UNIX)
    match there:
        case "file":
            path.write_text("mine")
        case "directory":
            path.mkdir()
        case "live":
            live.bind(str(path))
            live.listen()
    with pytest.raises(OSError, match="in use"):
        UnixAddress(path).bind()
    assert path.exists()


def test_connections_that_wait_while_it_changes_hands_are_served_by_the_next(
    address: TcpAddress | UnixAddress,
) -> None:
    async def run() -> None:
        came: list[socket.socket] = []
        mine, theirs = listener(address), listener(address)
        mine.open(came.append)
        clients = [connect(address)]
        await until(lambda: len(came) >= 1)
        mine.pause()
        clients.append(connect(address))
        await asyncio.sleep(0.05)
        assert len(came) == 1
        assert mine.socket is not None
        theirs.adopt(inherited([mine.socket]))
        mine.close()
        clients.append(connect(address))
        theirs.open(came.append)
        await until(lambda: len(came) >= 3)
        theirs.release()
        with pytest.raises(OSError, match=r"refused|No such file"):
            connect(address)
        for client in (*clients, *came):
            client.close()

    asyncio.run(run())


@contextmanager
def grabbing(address: TcpAddress | UnixAddress) -> Iterator[list[str]]:
    """Somebody who tries to listen there all the time."""
    stop, got = threading.Event(), []

    def grab() -> None:
        while not stop.is_set():
            try:
                address.bind().close()
                got.append("bound")
            except OSError:
                pass

    thread = threading.Thread(target=grab)
    thread.start()
    try:
        yield got
    finally:
        stop.set()
        thread.join()


def test_nobody_else_can_listen_there_while_it_changes_hands(address: TcpAddress | UnixAddress) -> None:
    async def run() -> None:
        came: list[socket.socket] = []
        mine = listener(address)
        mine.open(came.append)
        with grabbing(address) as got:
            for _ in range(50):
                mine.pause()
                assert mine.socket is not None
                theirs = listener(address)
                theirs.adopt(inherited([mine.socket]))
                mine.close()
                await asyncio.sleep(0)
                theirs.open(came.append)
                mine = theirs
            assert got == []
        mine.release()

    asyncio.run(run())


def test_socket_of_another_address_is_not_adopted(tmp_path: Path) -> None:
    async def run() -> None:
        one, other = free_ports(2)
        sockets = [TcpAddress(HOST, one).bind(), UnixAddress(tmp_path / "a").bind()]
        for address in (TcpAddress(HOST, other), TcpAddress("::1", one), UnixAddress(tmp_path / "b")):
            mine = listener(address)
            mine.adopt(sockets)
            assert mine.socket is None
        for one_socket in sockets:
            one_socket.close()

    asyncio.run(run())


def test_file_that_somebody_has_removed_is_made_anew_when_it_opens_again(tmp_path: Path) -> None:
    async def run() -> None:
        came: list[socket.socket] = []
        address = UnixAddress(tmp_path / "s")
        mine = listener(address)
        mine.open(came.append)
        mine.pause()
        address.path.unlink()
        mine.open(came.append)
        connect(address).close()
        mine.release()

    asyncio.run(run())


def test_connections_come_at_a_pace(tmp_path: Path) -> None:
    async def run() -> None:
        came: list[socket.socket] = []
        address = UnixAddress(tmp_path / "s")
        mine = Listener(address, structlog.get_logger(), pace_s=0.1)
        mine.open(came.append)
        clients = [connect(address) for _ in range(20)]
        began_s = asyncio.get_running_loop().time()
        await until(lambda: len(came) >= 3)
        assert asyncio.get_running_loop().time() - began_s >= 0.19
        mine.release()
        for client in (*clients, *came):
            client.close()

    asyncio.run(run())
