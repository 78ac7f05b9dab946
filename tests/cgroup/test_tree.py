"""Ending processes by pid, and none that only has the pid of one."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator

import pytest

from criproxy.cgroup.tree import Tree


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    child.wait()


def test_kill_ends_a_process_and_passes_over_one_that_is_gone(child: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    Tree().kill(lambda: [gone.pid, child.pid])
    assert child.wait(20) == -signal.SIGKILL


def test_kill_lets_a_pid_be_that_is_told_no_longer(child: subprocess.Popen[bytes]) -> None:
    told = iter([[child.pid], []])
    Tree().kill(lambda: next(told))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
