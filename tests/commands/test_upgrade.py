"""`criproxy upgrade` signals nobody but a criproxy that serves and can hand over, and says what became of it."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from criproxy.commands import upgrade as module
from criproxy.commands.upgrade import NotUpgradedError, upgrade

NOBODY = Path("/run/criproxy/nobody.sock")
SERVE = """
import os, signal, socket, sys, time
name, symlink, how = sys.argv[1:]
def ready(target):
    os.symlink(os.path.basename(target), symlink + "~")
    os.rename(symlink + "~", symlink)
server = socket.socket(socket.AF_UNIX)
own = f"{name}.{os.getpid()}"
server.bind(own)
server.listen()
def take(*_):
    if how == "ends":
        os._exit(0)
if how != "deaf":
    signal.signal(signal.SIGUSR2, take)
ready(own if how != "other-name" else "other.1")
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def serving(listen: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(listen), str(listen), how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def listen(tmp_path: Path) -> Path:
    return tmp_path / "c.sock"


def why(listen: Path) -> str:
    with pytest.raises(NotUpgradedError) as refused:
        upgrade(listen, NOBODY)
    return str(refused.value)


@pytest.mark.parametrize("there", ["nothing", "file", "dangling", "bypass"])
def test_nobody_who_serves_is_told(listen: Path, there: str) -> None:
    match there:
        case "file":
            listen.write_text("")
        case "dangling":
            listen.symlink_to("c.sock.4194304")
        case "bypass":
            listen.symlink_to("/run/criproxy/bypass.sock")
    assert why(listen).startswith(f"no criproxy serves at {listen}: start it; where proxy.listen has changed")


def test_process_of_another_name_is_not_signalled(listen: Path) -> None:
    with serving(listen, "other-name") as process:
        assert "no criproxy serves" in why(listen)
        assert process.poll() is None


def test_name_of_another_process_is_not_believed(listen: Path) -> None:
    """A pid may be somebody else's by now: who listens must be who is named."""
    with serving(listen, "deaf") as process:
        os.rename(f"{listen}.{process.pid}", f"{listen}.{os.getpid()}")
        listen.unlink()
        listen.symlink_to(f"c.sock.{os.getpid()}")
        assert "no criproxy serves" in why(listen)


def test_process_that_the_signal_would_end_is_spared(listen: Path) -> None:
    with serving(listen, "deaf") as process:
        assert why(listen) == f"pid {process.pid} is of a version that can't hand over: restart criproxy"
        time.sleep(0.1)
        assert process.poll() is None


def test_process_that_ends_instead_is_told(listen: Path) -> None:
    with serving(listen, "ends") as process:
        threading.Thread(target=process.wait).start()  # a zombie is not gone
        assert f"pid {process.pid} has ended, and no other serves" in why(listen)


def test_process_that_does_nothing_is_told_in_the_end(listen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LIMIT_S", 0.5)
    with serving(listen, "waits") as process:
        assert why(listen) == f"pid {process.pid} still serves after 0.5 s: see its log"


def test_process_that_took_over_before_a_silent_runtime_is_told(listen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.5)
    with ExitStack() as stack:
        old = stack.enter_context(serving(listen, "waits"))
        news: list[subprocess.Popen[bytes]] = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda *_: news.append(stack.enter_context(serving(listen, "waits"))))
            told = why(listen)
        assert told.startswith(f"pid {news[0].pid} has taken over, and the runtime does not answer through it: ")
        assert old.poll() is None


def test_process_that_takes_over_and_ends_the_old_one_while_the_status_is_asked_for_is_found(
    listen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without calls to finish the old one ends at once, and the status is answered when the new one is at it."""
    monkeypatch.setattr(module, "_ANSWER_S", 0.5)
    with ExitStack() as stack:
        old = stack.enter_context(serving(listen, "waits"))
        news: list[subprocess.Popen[bytes]] = []
        asked: list[Path] = []

        def status(at: Path) -> None:
            asked.append(at)
            if len(asked) == 2:  # the first time, nobody was signalled yet
                news.append(stack.enter_context(serving(listen, "waits")))
                old.kill()
                old.wait()

        monkeypatch.setattr(module, "_status", status)
        assert why(listen).startswith(f"pid {news[0].pid} has taken over")
