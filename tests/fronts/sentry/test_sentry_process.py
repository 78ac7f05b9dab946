"""Launcher and sentry as the runtime has them: processes on a socket, and what each fault leaves."""

import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from criproxy.commands.sentry import plugin_text
from criproxy.fronts.sentry import plugin
from criproxy.fronts.sentry.rules import SentryOrders
from criproxy.hooks.offline import DEFAULT_RULE
from criproxy.vocabulary.names import CLASS, OFFLINE
from tests.fakes.nri import BlockingNri, create

OFFLINE_JOB = create(labels={CLASS: OFFLINE})
ONLINE = create(namespace="shop")


class Place:
    """Where the plugins are, with their rules and the daemon's socket, and a runtime that starts one."""

    def __init__(self, directory: Path) -> None:
        self.rules, self.handed = directory / "rules", directory / "s"
        self.file = directory / "plugin"
        self.file.write_text(plugin_text(rules=str(self.rules), handed=str(self.handed)))
        self.file.chmod(0o755)
        self.rules.write_bytes(SentryOrders((DEFAULT_RULE,)).encode())
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, runtime: BlockingNri, name: str, index: str = "99") -> subprocess.Popen[bytes]:
        """As the runtime does: three variables, no PATH, the socket as descriptor 3."""
        number = runtime.plugins.fileno()
        environment = {"NRI_PLUGIN_SOCKET": str(number), "NRI_PLUGIN_NAME": name, "NRI_PLUGIN_IDX": index}
        process = subprocess.Popen([self.file], env=environment, pass_fds=[number], stderr=subprocess.PIPE, cwd="/")
        runtime.plugins.close()
        self.started.append(process)
        return process


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


@pytest.fixture
def runtime() -> Iterator[BlockingNri]:
    made = BlockingNri()
    yield made
    made.close()


def registered(place: Place, runtime: BlockingNri) -> subprocess.Popen[bytes]:
    sentry = place.start(runtime, plugin.SENTRY)
    runtime.registration()
    assert runtime.ask("Configure") == b"\x12\x02\x10\x08"
    assert runtime.ask("Synchronize") == b""
    return sentry


def test_the_sentry_lives_as_long_as_its_runtime(place: Place, runtime: BlockingNri) -> None:
    sentry = registered(place, runtime)
    assert b"criproxy has not placed" in runtime.ask("CreateContainer", OFFLINE_JOB)
    assert runtime.ask("CreateContainer", ONLINE) == b""

    runtime.close()

    assert sentry.wait(30) == 0
    assert sentry.stderr.read() == b""


def test_a_killed_sentry_hangs_up_so_that_the_runtime_goes_on(place: Place, runtime: BlockingNri) -> None:
    registered(place, runtime).send_signal(signal.SIGKILL)

    assert runtime.closed() is not None


def test_a_sentry_that_can_write_nothing_goes_on(place: Place, runtime: BlockingNri) -> None:
    resource.prlimit(registered(place, runtime).pid, resource.RLIMIT_FSIZE, (0, 0))

    assert b"criproxy has not placed" in runtime.ask("CreateContainer", OFFLINE_JOB)
    assert runtime.ask("CreateContainer", ONLINE) == b""


def test_a_sentry_keeps_its_rules_while_the_disk_fails(place: Place, runtime: BlockingNri) -> None:
    registered(place, runtime)
    assert b"criproxy has not placed" in runtime.ask("CreateContainer", OFFLINE_JOB)

    place.rules.unlink()
    place.rules.symlink_to(place.rules)  # ELOOP stands for any error

    assert b"criproxy has not placed" in runtime.ask("CreateContainer", OFFLINE_JOB)
    assert runtime.ask("CreateContainer", ONLINE) == b""


def test_started_by_hand_it_says_whose_it_is(place: Place) -> None:
    done = subprocess.run([place.file], env={}, capture_output=True, check=False)

    assert done.returncode == 2
    assert b"criproxy sentry --help" in done.stderr


# --- the launcher -----------------------------------------------------------------------------------------------------


def test_the_launcher_without_a_criproxy_ends_at_once(place: Place, runtime: BlockingNri) -> None:
    launcher = place.start(runtime, "criproxy", "95")

    assert runtime.closed() is not None
    assert launcher.wait(30) == 1
    assert launcher.stderr.read() == b""


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(30)
    return listener


def test_the_launcher_hands_its_socket_over_and_leaves_with_criproxy(place: Place, runtime: BlockingNri) -> None:
    with listening(place.handed) as listener:
        launcher = place.start(runtime, "criproxy", "95")
        criproxy, _ = listener.accept()
    said, descriptors, _, _ = socket.recv_fds(criproxy, 4096, 4)
    criproxy.send(b"1")

    assert said == b'{"plugin_name": "criproxy", "plugin_index": "95"}'
    with socket.socket(fileno=descriptors[0]) as handed:
        handed.sendall(b"\0\0\0\2" + b"\0\0\0\x0a" + b"\0" * 10)
        runtime.registration()
    assert runtime.closed() is not None, "the launcher keeps no copy"
    assert launcher.poll() is None, "it would be left a zombie"
    criproxy.close()
    assert launcher.wait(30) == 0


def handed_over(place: Place, runtime: BlockingNri, monkeypatch: pytest.MonkeyPatch) -> int:
    """In this process, with a short time-out."""
    monkeypatch.setattr(plugin, "_ANSWERS_S", 0.02)
    monkeypatch.setattr(plugin, "HANDED", str(place.handed))
    return plugin.hand_over(os.dup(runtime.plugins.fileno()), "criproxy", "95")


def test_a_criproxy_that_hangs_keeps_the_runtime_no_longer_than_its_time(
    place: Place, runtime: BlockingNri, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a copy of the socket, which nobody reads."""
    with listening(place.handed):
        assert handed_over(place, runtime, monkeypatch) == 1
        runtime.plugins.close()
        assert runtime.closed(5) is not None


@pytest.mark.parametrize("answer", [b"", b"0"], ids=["half-open", "another answer"])
def test_a_criproxy_that_does_not_take_it(
    place: Place, runtime: BlockingNri, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    def refuse(listener: socket.socket) -> None:
        criproxy, _ = listener.accept()
        criproxy.sendall(answer)
        criproxy.close()

    monkeypatch.setattr(plugin, "_ANSWERS_S", 30)
    monkeypatch.setattr(plugin, "HANDED", str(place.handed))
    with listening(place.handed) as listener:
        thread = threading.Thread(target=refuse, args=[listener])
        thread.start()
        assert plugin.hand_over(os.dup(runtime.plugins.fileno()), "criproxy", "95") == 1
        thread.join()
    runtime.plugins.close()
    assert runtime.closed(5) is not None


def test_a_criproxy_whose_socket_nobody_accepts_any_more(place: Place, runtime: BlockingNri) -> None:
    """It was killed: the path is still there."""
    listening(place.handed).close()

    launcher = place.start(runtime, "criproxy", "95")

    assert runtime.closed() is not None
    assert launcher.wait(30) == 1
