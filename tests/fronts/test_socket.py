"""The listening socket: nobody's file is harmed, no live socket is taken, and clients find the newest process."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

from criproxy.fronts.socket import ListenSocket, SocketError, grpc_target
from tests.fronts.rig import build_rig


@contextmanager
def listening(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        if kind is socket.SOCK_STREAM:
            server.listen()
        yield server


def leave_dead(path: Path) -> None:
    with listening(path):
        pass


@contextmanager
def serving(listen: ListenSocket) -> Iterator[None]:
    """What a process does with its claim, but for gRPC."""
    listen.claim()
    with socket.socket(socket.AF_UNIX) as server:
        with listen.private():
            server.bind(str(listen.own))
        server.listen()
        listen.publish()
        yield


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


# --- claim and publish ---------------------------------------------------------------------------------------------


def test_socket_published_is_a_relative_symlink_to_our_own(tmp_path: Path) -> None:
    listen = ListenSocket(tmp_path / "c.sock", pid=77)
    with serving(listen):
        assert connects(listen.path)
        assert os.readlink(listen.path) == "c.sock.77"
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c.sock", "c.sock.77"]
        listen.release()
    assert list(tmp_path.iterdir()) == []


def test_socket_just_bound_is_private(tmp_path: Path) -> None:
    listen = ListenSocket(tmp_path / "c.sock", pid=77)
    before = os.umask(0)
    try:
        with serving(listen):
            assert stat.S_IMODE(listen.own.stat().st_mode) == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_claim_without_the_directory_makes_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        ListenSocket(tmp_path / "a" / "b" / "c.sock", pid=1).claim()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o755


def test_claim_leaves_the_mode_of_an_existing_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ListenSocket(tmp_path / "c.sock", pid=1).claim()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_claim_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SocketError, match=r"file' is not a directory: remove it or choose another path"):
        ListenSocket(tmp_path / "file" / "c.sock", pid=1).claim()


@pytest.mark.parametrize("excess", [0, 1])
def test_claim_of_a_path_too_long_is_refused(tmp_path: Path, excess: int) -> None:
    room = 107 - len(os.fsencode(tmp_path)) - len("/.1234567")
    listen = ListenSocket(tmp_path / ("é" * (room // 2) + "x" * (room % 2) + "x" * excess), pid=1234567)
    assert len(os.fsencode(listen.own)) == 107 + excess
    if excess:
        with pytest.raises(SocketError, match=r"108 bytes, and the kernel takes 107: choose a shorter path"):
            listen.claim()
    else:
        with serving(listen):
            assert connects(listen.path)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.write_text("mine"), "not a socket"),
        (lambda path: path.mkdir(), "a directory"),
        (lambda path: path.symlink_to("/etc"), "a directory"),
        (lambda path: path.symlink_to("/etc/passwd"), "not a socket"),
        (os.mkfifo, "not a socket"),
    ],
    ids=["file", "directory", "symlink-to-directory", "symlink-to-file", "fifo"],
)
def test_claim_of_what_is_no_socket_is_refused_and_harms_nothing(
    tmp_path: Path, make: Callable[[Path], object], kind: str
) -> None:
    path = tmp_path / "c.sock"
    make(path)
    before = path.lstat().st_ino, path.lstat().st_mtime_ns
    with pytest.raises(SocketError, match=rf"c.sock' exists and is {kind}: remove it or choose another path"):
        ListenSocket(path, pid=1).claim()
    assert (path.lstat().st_ino, path.lstat().st_mtime_ns) == before


# --- the dead and the living ---------------------------------------------------------------------------------------


def test_dead_predecessor_is_cleared_away(tmp_path: Path) -> None:
    with serving(ListenSocket(tmp_path / "c.sock", pid=1)):
        pass
    listen = ListenSocket(tmp_path / "c.sock", pid=2)
    with serving(listen):
        assert connects(listen.path)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c.sock", "c.sock.2"]


def test_dead_predecessor_with_our_own_pid_is_cleared_away(tmp_path: Path) -> None:
    """In a container, every process may have the same pid."""
    listen = ListenSocket(tmp_path / "c.sock", pid=1)
    with serving(listen):
        pass
    with serving(listen):
        assert connects(listen.path)


def test_leftovers_of_the_dead_are_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    for name in ("c.sock.1", "c.sock.22", "c.sock", "other.sock.1", "c.sock.x", "cXsock.1"):
        leave_dead(tmp_path / name)
    (tmp_path / "c.sock.23~").symlink_to("c.sock.23")
    (tmp_path / "c.sock.3").write_text("mine")
    with listening(tmp_path / "c.sock.4"), serving(ListenSocket(tmp_path / "c.sock", pid=5, succeeds=True)):
        names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {"c.sock", "c.sock.3", "c.sock.4", "c.sock.5", "other.sock.1", "c.sock.x", "cXsock.1"}


@pytest.mark.parametrize("target", ["gone.sock", "dead.sock", "c.sock"], ids=["nowhere", "dead", "loop"])
def test_stale_symlink_is_replaced_and_its_target_left(tmp_path: Path, target: str) -> None:
    leave_dead(tmp_path / "dead.sock")
    (tmp_path / "c.sock").symlink_to(target)
    listen = ListenSocket(tmp_path / "c.sock", pid=5)
    with serving(listen):
        assert os.readlink(listen.path) == "c.sock.5"
        assert (tmp_path / "dead.sock").is_socket()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_live_socket_of_somebody_else_is_refused(tmp_path: Path, kind: socket.SocketKind) -> None:
    path = tmp_path / "c.sock"
    with listening(path, kind):
        with pytest.raises(SocketError, match=r"another process serves this socket: stop it or choose another path"):
            ListenSocket(path, pid=1).claim()
        assert path.is_socket()


def test_live_socket_with_a_full_backlog_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    clients = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    with listening(path) as server:
        server.listen(0)
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(SocketError, match="another process"):
            ListenSocket(path, pid=1).claim()
    for client in clients:
        client.close()


def test_live_socket_behind_our_symlink_is_refused(tmp_path: Path) -> None:
    with serving(ListenSocket(tmp_path / "c.sock", pid=1)):
        with pytest.raises(SocketError, match="another process"):
            ListenSocket(tmp_path / "c.sock", pid=2).claim()
        assert connects(tmp_path / "c.sock")


def test_release_leaves_the_symlink_of_a_successor(tmp_path: Path) -> None:
    old, new = ListenSocket(tmp_path / "c.sock", pid=1), ListenSocket(tmp_path / "c.sock", pid=2, succeeds=True)
    with serving(old):
        old.path.unlink()
        with serving(new):
            old.release()
            assert connects(new.path)
            assert not old.own.exists()
            new.release()
    new.release()
    assert list(tmp_path.iterdir()) == []


def test_successor_binds_beside_a_live_socket_and_takes_the_name_when_it_publishes(tmp_path: Path) -> None:
    old = ListenSocket(tmp_path / "c.sock", pid=1)
    with serving(old):
        new = ListenSocket(tmp_path / "c.sock", pid=2, succeeds=True)
        new.claim()
        assert (old.is_published, new.is_published) == (True, False)
        with serving(new):
            assert (old.is_published, new.is_published) == (False, True)
            assert connects(old.own)
            old.publish()
            assert (old.is_published, new.is_published) == (True, False)


def test_successor_refuses_what_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "c.sock").write_text("mine")
    with pytest.raises(SocketError, match="not a socket"):
        ListenSocket(tmp_path / "c.sock", pid=2, succeeds=True).claim()


def test_leftovers_are_cleared_while_we_serve(tmp_path: Path) -> None:
    with serving(ListenSocket(tmp_path / "c.sock", pid=1)):
        leave_dead(tmp_path / "c.sock.7")
        ListenSocket(tmp_path / "c.sock", pid=1).clear_leftovers()
        assert sorted(os.listdir(tmp_path)) == ["c.sock", "c.sock.1"]


# --- owner and mode ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")
def test_socket_follows_the_owner_and_mode_of_the_runtimes(tmp_path: Path) -> None:
    listen, runtime = ListenSocket(tmp_path / "c.sock", pid=1), tmp_path / "runtime.sock"
    with serving(listen):
        listen.follow(runtime)
        assert stat.S_IMODE(listen.own.stat().st_mode) == 0o600
        for mode, owner, group in ((0o660, 0, 42), (0o666, 7, 8), (0o600, 0, 0)):
            runtime.unlink(missing_ok=True)
            leave_dead(runtime)
            os.chown(runtime, owner, group)
            runtime.chmod(mode)
            listen.follow(runtime)
            now = listen.path.stat()
            assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (mode, owner, group)
        runtime.unlink()
        listen.follow(runtime)
        assert stat.S_IMODE(listen.own.stat().st_mode) == 0o600


# --- with gRPC -----------------------------------------------------------------------------------------------------


async def test_server_stopped_leaves_no_file(runner: object, tmp_path: Path) -> None:
    async with build_rig("grpc", tmp_path) as rig:
        assert stat.S_IMODE(rig.path.stat().st_mode) == 0o600
        assert await rig.unary("/a.B/C")(b"1") == b"1"
    assert os.listdir(tmp_path) == []


async def test_server_that_cannot_bind_says_so(runner: object, tmp_path: Path) -> None:
    (tmp_path / "proxy.sock.1").mkdir()
    with pytest.raises(SocketError, match=r"proxy.sock.1.*check the directory of"):
        async with build_rig("grpc", tmp_path):
            pass
    assert not (tmp_path / "proxy.sock").is_symlink()


async def test_server_on_an_odd_path_is_found(runner: object, tmp_path: Path) -> None:
    directory = tmp_path / "we ird%41#?é"
    directory.mkdir()
    async with build_rig("grpc", directory) as rig, aio.insecure_channel(grpc_target(rig.path)) as channel:
        assert (directory / "proxy.sock.1").is_socket()
        assert await channel.unary_unary("/a.B/C")(b"1") == b"1"


KILLED = """
import asyncio, os, pathlib, structlog
from tests.fronts.rig import FakeInterceptor, FakeMetrics, ignore
from criproxy.concurrency.clock import Clock
from criproxy.fronts.grpc.server import GrpcServer
from criproxy.fronts.socket import ListenSocket
async def main():
    directory = pathlib.Path.cwd()
    listen = ListenSocket(directory / "proxy.sock", os.getpid())
    runtime, log = directory / "runtime.sock", structlog.get_logger()
    server = GrpcServer(FakeInterceptor(), FakeMetrics(), listen, runtime, Clock(), log)
    await server.start()
    listen.publish()
    print("listening", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_server_killed_is_succeeded_and_a_live_one_is_not(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED]
    environment = os.environ | {"PYTHONPATH": str(root)}
    for _ in range(2):
        first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"listening\n"
            second = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60
            )
            assert second.returncode != 0
            assert b"another process serves this socket" in second.stderr
            with grpc.insecure_channel(f"unix:{tmp_path}/proxy.sock") as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary("/a.B/C")(b"", timeout=60)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            first.kill()
            first.communicate()
    assert {entry.name for entry in tmp_path.iterdir()} == {"proxy.sock", f"proxy.sock.{first.pid}"}


# --- the bypass ----------------------------------------------------------------------------------------------------


def test_claim_takes_the_place_of_a_live_bypass(tmp_path: Path) -> None:
    bypass = tmp_path / "bypass.sock"
    listen = ListenSocket(tmp_path / "c.sock", 77, bypass)
    with listening(bypass):
        listen.path.symlink_to(bypass)
        assert listen.is_bypassed
        with serving(listen):
            assert not listen.is_bypassed
            assert os.readlink(listen.path) == "c.sock.77"


def test_claim_refuses_where_a_criproxy_lives_though_the_path_leads_to_the_bypass(tmp_path: Path) -> None:
    """As of the DaemonSet's pod, beside which the package is installed."""
    bypass, living = tmp_path / "bypass.sock", ListenSocket(tmp_path / "c.sock", 1)
    with serving(living), listening(bypass):
        living.path.unlink()
        living.path.symlink_to(bypass)
        with pytest.raises(SocketError, match=r"another criproxy serves at 'c.sock.1': stop it"):
            ListenSocket(tmp_path / "c.sock", 2, bypass).claim()
        assert os.readlink(living.path) == str(bypass)


def test_claim_refuses_a_live_socket_that_is_not_the_bypass(tmp_path: Path) -> None:
    other = tmp_path / "other.sock"
    listen = ListenSocket(tmp_path / "c.sock", 77, tmp_path / "bypass.sock")
    with listening(other):
        listen.path.symlink_to(other)
        with pytest.raises(SocketError, match="another process serves"):
            listen.claim()


def test_claim_clears_what_a_switch_to_the_bypass_left_half_done(tmp_path: Path) -> None:
    (tmp_path / "c.sock.0~").symlink_to(tmp_path / "bypass.sock")
    ListenSocket(tmp_path / "c.sock", 77, tmp_path / "bypass.sock").claim()
    assert list(tmp_path.iterdir()) == []
