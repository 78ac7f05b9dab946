"""The old process's side: a new one that fails in any way is ended with nothing left, and all goes on as before."""

import asyncio
import json
import os
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from criproxy.control.histogram import CPU_BUCKETS
from criproxy.control.predictor import make_predictor
from criproxy.control.series import PredictorSettings
from criproxy.daemon.upgrade import successor as module
from criproxy.daemon.upgrade.channel import Learned, Ready, Take
from criproxy.daemon.upgrade.successor import HandOverRefusedError, Successor, UpgradeError, command_of, hand_over
from tests.fakes.waiting import until

ROOT = Path(__file__).resolve().parents[3]
LISTEN = Path("/run/criproxy/criproxy.sock")
NEW = """
import asyncio, os, sys, time
from criproxy.daemon.upgrade.channel import Ready
from criproxy.daemon.upgrade.predecessor import Predecessor
async def main():
    open(os.environ["PIDFILE"], "w").write(f"{os.getpid()} {os.getppid()} {os.environ.get('WATCHDOG_PID')}")
    step = os.environ["STEP"]
    predecessor = Predecessor.of_environment(os.environ)
    if step == "crash-at-start":
        sys.exit(3)
    if step == "hang-at-start":
        time.sleep(100)
    listen = "/elsewhere" if step == "elsewhere" else os.environ["LISTEN"]
    take = await predecessor.turn(Ready("9", listen, ("cpu: bad",) if step == "bad-config" else ()))
    if step == "takes":
        for listener in predecessor.listeners():
            assert not listener.get_inheritable()
            client, _ = listener.accept()
            client.sendall(str(os.getpid()).encode())
    if take is None:
        open(os.environ["PIDFILE"] + ".end", "w").write("no turn")
    if step == "declines":
        predecessor.decline("the config has errors by now")
        return
    if take is None or step == "crash-at-take":
        sys.exit(4)
    if step == "hang-at-take":
        time.sleep(100)
    predecessor.serving()
    await asyncio.sleep(100)
asyncio.run(main())
"""


REFUSALS = ("elsewhere", "bad-config", "declines")
LEARNED = make_predictor(PredictorSettings(), CPU_BUCKETS).checkpoint()


@dataclass
class FakeParts:
    did: list[str] = field(default_factory=list)
    stuck: bool = False
    questions: list[socket.socket] = field(default_factory=list)

    async def rest(self) -> tuple[list[socket.socket], tuple[Learned | Take, ...]]:
        self.did.append("rest")
        if self.stuck:
            raise HandOverRefusedError("a write is blocked")
        return self.questions, (Learned("cpu", LEARNED), Take("/offline", ()))

    async def resume(self) -> None:
        self.did.append("resume")


def environ(directory: Path, step: str) -> dict[str, str]:
    own = {"STEP": step, "LISTEN": str(LISTEN), "PIDFILE": str(directory / "pid"), "WATCHDOG_PID": "7"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **own}


def started(directory: Path) -> tuple[int, int, str]:
    """The new process's pid, its parent's, and its WATCHDOG_PID."""
    pid, parent, watchdog = (directory / "pid").read_text().split()
    return int(pid), int(parent), watchdog


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(pid: int) -> None:
    end_s = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < end_s, f"{pid} is still there"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "reason", "did"),
    [
        ("crash-at-start", "ended before it was ready", ["resume"]),
        ("hang-at-start", "was not ready within 3 s", ["resume"]),
        ("elsewhere", "proxy.listen is '/elsewhere' now", ["resume"]),
        ("bad-config", "the config has errors: cpu: bad: correct it", ["resume"]),
        ("crash-at-take", "ended before it was serving", ["rest", "resume"]),
        ("hang-at-take", "was not serving within 1 s", ["rest", "resume"]),
        ("declines", "^the config has errors by now$", ["rest", "resume"]),
    ],
)
def test_new_process_that_fails_is_ended_and_the_parts_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, reason: str, did: list[str]
) -> None:
    if step == "hang-at-start":
        monkeypatch.setattr(module, "_START_S", 3.0)
    if step == "hang-at-take":
        monkeypatch.setattr(module, "_TAKE_S", 1.0)
    parts = FakeParts()
    with pytest.raises(UpgradeError, match=reason) as failed:
        asyncio.run(hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, step)))
    assert parts.did == did
    assert isinstance(failed.value, HandOverRefusedError) is (step in REFUSALS)
    named = re.match(r"pid (\d+) ", str(failed.value))
    wait_gone(int(named[1]) if named else started(tmp_path)[0])


def test_new_process_that_has_gone_before_it_is_looked_at_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's child, so that its pid goes at once."""

    def gone(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", gone)
    parts = FakeParts()
    with pytest.raises(UpgradeError, match="ended before it was ready: see its log"):
        asyncio.run(hand_over(parts, LISTEN, ("/bin/true",), environ(tmp_path, "")))
    assert parts.did == []


def test_listen_by_a_link_to_its_directory_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "linked").symlink_to("run")

    async def scenario() -> None:
        own = {**environ(tmp_path, "takes"), "LISTEN": f"{tmp_path}/linked/criproxy.sock"}
        listen, command = tmp_path / "run/criproxy.sock", (sys.executable, "-c", NEW)
        await (await hand_over(FakeParts(), listen, command, own)).kill()

    asyncio.run(scenario())


def test_new_process_takes_over_as_no_child_of_ours_and_not_watched_as_us(tmp_path: Path) -> None:
    async def play() -> Successor:
        return await hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, ""))

    async def end() -> None:
        successor = await play()
        pid, parent, watchdog = started(tmp_path)
        assert successor.pid == pid
        assert (parent, watchdog) != (os.getpid(), "7")
        assert parent != os.getpid()
        assert watchdog == "None"
        await successor.kill()

    parts = FakeParts()
    asyncio.run(end())
    assert parts.did == ["rest"]
    wait_gone(started(tmp_path)[0])


def test_new_process_gets_the_listeners_and_who_waits_at_them(tmp_path: Path) -> None:
    async def play(parts: FakeParts) -> None:
        successor = await hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, "takes"))
        await successor.kill()

    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        unix.listen()
        waiting = [socket.create_connection(tcp.getsockname()), socket.socket(socket.AF_UNIX)]
        waiting[1].connect(str(tmp_path / "s"))
        parts = FakeParts(questions=[tcp, unix])
        asyncio.run(play(parts))
        for client in waiting:
            assert int(client.recv(100)) == started(tmp_path)[0]
            client.close()
    assert parts.did == ["rest"]


def test_old_process_that_asks_for_it_passes_its_listeners_on() -> None:
    """Versions before closed them otherwise, for the new process to listen anew."""
    assert json.loads(msgspec.json.encode(Ready("9", "/s")))["takes_listeners"] is True


def test_new_process_need_not_get_any_listeners(tmp_path: Path) -> None:
    parts = FakeParts()

    async def play() -> None:
        successor = await hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, "takes"))
        await successor.kill()

    asyncio.run(play())
    assert parts.did == ["rest"]


def test_parts_that_cannot_rest_keep_what_they_have(tmp_path: Path) -> None:
    parts = FakeParts(stuck=True)
    with pytest.raises(HandOverRefusedError, match="a write is blocked"):
        asyncio.run(hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, "")))
    assert parts.did == ["rest", "resume"]
    wait_gone(started(tmp_path)[0])


def test_command_that_is_not_there_fails(tmp_path: Path) -> None:
    """The shell starts, the command does not: its end is noticed."""
    with pytest.raises(UpgradeError, match=r"cannot start|ended before"):
        asyncio.run(hand_over(FakeParts(), LISTEN, (str(tmp_path / "none"),), environ(tmp_path, "")))


def test_process_that_is_just_being_started_when_it_is_cancelled_knows_who_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees that nobody hands over to it any more; else it would take itself for the first one, and serve."""
    begun, go_on, pipe = threading.Event(), threading.Event(), os.pipe

    def slow_pipe() -> tuple[int, int]:
        begun.set()
        assert go_on.wait(10)
        return pipe()

    async def play() -> None:
        monkeypatch.setattr(os, "pipe", slow_pipe)
        task = asyncio.create_task(hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, "")))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        go_on.set()

    parts = FakeParts()
    asyncio.run(play())
    end_s = time.monotonic() + 10
    while not (tmp_path / "pid.end").exists():
        assert time.monotonic() < end_s, "it has not seen that nobody hands over to it"
        time.sleep(0.01)


def test_cancelled_hand_over_leaves_no_process(tmp_path: Path) -> None:
    async def play() -> None:
        task = asyncio.create_task(
            hand_over(parts, LISTEN, (sys.executable, "-c", NEW), environ(tmp_path, "hang-at-start"))
        )
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    parts = FakeParts()
    asyncio.run(play())
    assert parts.did == ["resume"]
    wait_gone(started(tmp_path)[0])


def test_command_of_a_program_is_its_name_and_of_a_module_the_interpreter_s(tmp_path: Path) -> None:
    program = tmp_path / "criproxy"
    program.write_text("#!/bin/sh\n")
    original = ["/usr/bin/python3", "-ISB", str(program), "run"]
    module_original = ["python3", "-m", "criproxy", "run"]
    assert command_of([str(program), "run"], original) == tuple(original), "it is not to be executed"
    program.chmod(0o755)
    assert command_of([str(program), "run"], original) == (str(program), "run")
    assert command_of([str(tmp_path / "__main__.py"), "run"], module_original) == tuple(module_original)
