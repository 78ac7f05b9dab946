"""The log's writer, before readers that are slow, hang or go."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from criproxy.observe.log_writer import LogWriter

ROOT = Path(__file__).resolve().parents[2]
LINE = "x" * 99
PIPE_BYTES = 4096
LONG_S = 60.0
"""Longer than any wait here is, unless something hangs."""


def lost(count: int) -> str:
    return f"{count} lost"


class Pipe:
    """A pipe of 4 KiB, which is read only when asked."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def held_bytes(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.reading, termios.FIONREAD, b"\0" * 4), sys.byteorder)

    def read_while(self, goes_on: Callable[[list[str]], bool]) -> list[str]:
        text = ""
        while goes_on(text.splitlines()):
            text += os.read(self.reading, 4096).decode()
        return text.splitlines()

    def close(self) -> None:
        """The end that is written to stays: a thread may be at it, and its number must not become another's."""
        os.close(self.reading)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def fill(writer: LogWriter, pipe: Pipe) -> int:
    """Write until the pipe is full and then until lines are dropped; returns how many were not."""
    count = PIPE_BYTES // len(f"{LINE}\n") + 1
    for _ in range(count):
        writer.write(f"{LINE}\n")
    until(lambda: pipe.held_bytes() > PIPE_BYTES - len(f"{LINE}\n"))
    while not writer.dropped:
        writer.write(f"{LINE}\n")
        count += 1
    return count - 1


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_lines_come_whole_and_in_order(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, lost)
    for number in range(10):
        writer.write(f"{number}\n")
    assert writer.drain(LONG_S)
    assert pipe.read_while(lambda lines: len(lines) < 10) == [str(number) for number in range(10)]
    assert (writer.dropped, writer.missing) == (0, 0)


def test_socket_takes_a_line_without_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogWriter, "_send", lambda _writer, _line: pytest.fail("the thread sends it"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = LogWriter(ours.fileno(), lost)
        writer.write(f"{LINE}\n")
        assert theirs.recv(4096, socket.MSG_DONTWAIT).decode() == f"{LINE}\n"


def test_socket_that_is_full_gets_all_lines_in_order_once_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIPE_BYTES)
        writer = LogWriter(ours.fileno(), lost)
        lines = [f"{number} {LINE}\n" for number in range(500)]
        for line in lines:
            writer.write(line)
        assert not writer.dropped
        wanted, text = "".join(lines), ""
        while len(text) < len(wanted):
            text += theirs.recv(65536).decode()
        assert text == wanted


def test_reader_that_hangs_keeps_nobody_and_is_told_once_what_it_missed_where_it_is_missing(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, lost, max_bytes=20_000)
    kept = fill(writer, pipe)
    for _ in range(49):
        writer.write(f"{LINE}\n")
    assert (writer.dropped, writer.missing) == (50, 50)
    assert not writer.drain(0.01)

    first = pipe.read_while(lambda lines: "50 lost" not in lines)
    until(lambda: writer.missing == 0)
    writer.write("after\n")
    assert first + pipe.read_while(lambda lines: "after" not in lines) == [*[LINE] * kept, "50 lost", "after"]
    assert (writer.dropped, writer.missing) == (50, 0)


def test_each_gap_is_told_with_its_own_count(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, lost, max_bytes=20_000)
    told = []
    for _ in range(2):
        before = writer.dropped
        while writer.dropped < before + 7:
            writer.write(f"{LINE}\n")
        told += pipe.read_while(lambda lines: "7 lost" not in lines)
        until(lambda: writer.missing == 0)
    assert [line for line in told if line != LINE] == ["7 lost"] * 2


def test_what_waits_is_bounded(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, lost, max_bytes=20_000)
    kept = fill(writer, pipe)
    for _ in range(10_000):
        writer.write(f"{LINE}\n")
    assert kept * (len(LINE) + 1) <= 20_000 + 2 * 4096
    assert writer._queue.qsize() <= kept + 1


def test_reader_that_has_gone_is_counted_and_told_when_there_is_one_again(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, open(tmp_path / "log", "wb") as log:
        descriptor = os.dup(full.fileno())
        writer = LogWriter(descriptor, lost)
        writer.write("one\ntwo\n")
        writer.write("three\n")
        assert writer.drain(LONG_S)
        assert (writer.dropped, writer.missing) == (2, 2)
        os.dup2(log.fileno(), descriptor)
        writer.write("four\n")
        assert writer.drain(LONG_S)
    assert (tmp_path / "log").read_text() == "2 lost\nfour\n"
    os.close(descriptor)


def test_descriptor_that_somebody_has_set_to_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    writer = LogWriter(pipe.writing, lost)
    for number in range(1000):
        writer.write(f"{number}\n")
    assert pipe.read_while(lambda lines: "999" not in lines) == [str(number) for number in range(1000)]
    assert writer.drain(LONG_S)


def test_line_in_pieces_is_not_mixed_with_those_of_another_thread(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, lost)
    writer.write("a ")
    other = threading.Thread(target=lambda: print("other", file=writer))
    other.start()
    other.join()
    writer.write("b\nbegun")
    assert writer.drain(LONG_S)
    assert pipe.read_while(lambda lines: "begun" not in lines) == ["other", "a b", "begun"]


def test_line_in_the_middle_of_another_s_writing_is_no_deadlock(tmp_path: Path) -> None:
    """What a finalizer writes, which may run anywhere."""

    class Text(str):
        def __radd__(self, begun: str) -> str:
            writer.write("finalizer\n")
            return begun + str(self)

    with open(tmp_path / "log", "wb") as log:
        writer = LogWriter(log.fileno(), lost)
        writer.write(Text("line\n"))
        assert writer.drain(LONG_S)
    assert (tmp_path / "log").read_text() == "finalizer\nline\n"


PROGRAM = """
import structlog, sys, threading, warnings
from criproxy.observe import log
writer = log.take_stderr()
log.configure("info")
structlog.get_logger().info("first")
if "many" in sys.argv:
    for number in range(20_000):
        structlog.get_logger().info("again", number=number)
if "raise" in sys.argv:
    raise RuntimeError("the last words")
"""


def program(stderr: int, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, stderr=stderr, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_end_of_the_process_writes_what_waits_and_the_traceback_of_an_error() -> None:
    with program(subprocess.PIPE, "raise") as process:
        _, text = process.communicate(timeout=LONG_S)
    first, *traceback = text.decode().splitlines()
    assert json.loads(first)["event"] == "first"
    assert (traceback[0], traceback[-1]) == ("Traceback (most recent call last):", "RuntimeError: the last words")
    assert process.returncode == 1


@pytest.mark.parametrize("end", ["return", "raise"])
def test_end_of_the_process_does_not_wait_for_a_reader_that_hangs(pipe: Pipe, end: str) -> None:
    with program(pipe.writing, "many", end) as process:
        assert process.wait(LONG_S) == (1 if end == "raise" else 0)
