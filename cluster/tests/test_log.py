"""A replica's log, as a process: nobody waits for its reader, nobody fails for it."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[1]
PROGRAM = """
import logging, sys
from criproxy_cluster.log import begin
log = begin()
for number in range(20_000):
    log.info("again", number=number, odd={1: object()})
    logging.getLogger("lightkube").warning("a library's")
print("done", flush=True)
if "raise" in sys.argv:
    raise RuntimeError("the last words")
"""


def run(stderr, *arguments, shell=""):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    if shell:
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
    environment = {**os.environ, "PYTHONPATH": str(CLUSTER)}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, timeout=60, check=False)


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    for one in (reading, writing):
        with suppress(OSError):
            os.close(one)


def test_a_reader_that_hangs_stops_nobody(pipe):
    ended = run(pipe[1])
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_a_reader_that_has_gone_ends_nobody(pipe):
    os.close(pipe[0])
    ended = run(pipe[1])
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_a_full_disk_ends_nobody():
    with open("/dev/full", "wb") as full:
        ended = run(full)
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_a_closed_stderr_ends_nobody():
    ended = run(None, shell="2>&-")
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_all_lines_come_to_a_reader_that_reads_and_so_does_the_last_traceback(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        ended = run(log, "raise")
    assert ended.returncode == 1
    lines = (tmp_path / "log").read_text().splitlines()
    assert sum('"again"' in line for line in lines) + sum("log_lines_dropped" in line for line in lines) > 1000
    assert lines[-1] == "RuntimeError: the last words"


CLOSED = """
import socket
from criproxy_cluster.log import begin
log = begin()
one, other = socket.socketpair()
log.info("said")
import time; time.sleep(0.3)
other.setblocking(False)
try:
    print(other.recv(100))
except BlockingIOError:
    print("nothing")
assert min(one.fileno(), other.fileno()) > 2
"""


def test_no_socket_takes_the_place_of_a_closed_stderr():
    environment = {**os.environ, "PYTHONPATH": str(CLUSTER)}
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", CLOSED]
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"nothing\n")
