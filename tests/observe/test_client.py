"""Who is asked is believed only when it is root's, or our own."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from criproxy.observe import client
from criproxy.observe.client import BusyError, NotAllowedError, NotCriproxyError, NotRunningError, ask, fetch


@contextmanager
def server(path: Path, answer: bytes | None) -> Iterator[None]:
    """Sends `answer` to whoever comes; None: says nothing."""
    done = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                if answer is None:
                    done.wait(20)
                else:
                    connection.recv(10_000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n\r\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def test_answer_is_the_body(path: Path) -> None:
    with server(path, OK + b"all\r\n\r\nof it\n"):
        assert ask(path, "/x", 20) == "all\r\n\r\nof it\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("[" * 200_000, "nested too deeply", id="lists"),
        pytest.param('{"a":' * 200_000, "nested too deeply", id="tables"),
        pytest.param('{"a": NaN}', "NaN is no number", id="nan"),
        pytest.param("[Infinity]", "Infinity is no number", id="infinity"),
        pytest.param("[-1e999]", "-1e999 is no number", id="an-exponent"),
        pytest.param(f"[{'1' * 400}]", f"{'1' * 32} is no number", id="digits"),
        pytest.param('{"a"', "delimiter", id="half"),
    ],
)
def test_answer_that_criproxy_does_not_give_is_a_value_error(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        client.read_json(text)


def test_answer_is_a_value() -> None:
    assert client.read_json('{"a": [1, -2.5, 9223372036854775807, null]}') == {"a": [1, -2.5, 2**63 - 1, None]}


def test_answer_without_end_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BYTES", 1 << 20)
    with server(path, OK + b" " * (1 << 20)), pytest.raises(NotCriproxyError, match="more than 1 MiB"):
        ask(path, "/x", 20)


def test_other_status_is_told(path: Path) -> None:
    with server(path, b"HTTP/1.1 503 No\r\n\r\nnot now\n"):
        assert fetch(path, "/x", 20) == (503, "not now\n")
    path.unlink()
    with server(path, b"HTTP/1.1 503 No\r\n\r\nnot now\n"), pytest.raises(BusyError, match="/x now: not now"):
        ask(path, "/x", 20)
    path.unlink()
    with (
        server(path, b"HTTP/1.1 404 No\r\n\r\nnot here\n"),
        pytest.raises(NotCriproxyError, match="404 to /x: not here"),
    ):
        ask(path, "/x", 20)


@pytest.mark.parametrize("answer", [b"\r\n\r\n", b"HTTP/1.1", b"HTTP/1.1 x\r\n\r\n", b"SSH-2.0 1\r\n", OK + b"\xff"])
def test_what_is_no_answer_is_not_believed(path: Path, answer: bytes) -> None:
    with server(path, answer), pytest.raises(NotCriproxyError, match="does not answer like criproxy"):
        ask(path, "/x", 20)


def test_end_without_an_answer_is_nobody(path: Path) -> None:
    with server(path, b""), pytest.raises(NotRunningError, match="it ended without an answer"):
        ask(path, "/x", 20)


def test_silence_is_nobody(path: Path) -> None:
    with server(path, None), pytest.raises(NotRunningError, match="no answer in time"):
        ask(path, "/x", 0.1)


@pytest.mark.parametrize("there", ["nothing", "dead", "long"])
def test_nobody_is_told(path: Path, there: str) -> None:
    if there == "dead":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    asked = path.with_name("x" * 200) if there == "long" else path
    with pytest.raises(
        NotRunningError, match=r"no criproxy answers at .*: is it running, with the proxy.listen of this config file"
    ):
        ask(asked, "/x", 20)


def as_user(uid: int, job: object) -> int:
    """The exit status of `job` in a process of that user's; an assertion that fails is 1."""
    if (pid := os.fork()) == 0:
        try:
            os.setresuid(uid, uid, uid)
            job()  # type: ignore[operator]
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@needs_root
def test_socket_of_another_user_is_not_believed(path: Path) -> None:
    """A local user who gets hold of the place: nothing that it says is shown."""
    ready, end = os.pipe(), os.pipe()
    path.parent.chmod(0o777)

    def pretend() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        os.write(ready[1], b"x")
        os.read(end[0], 1)

    thread = threading.Thread(target=as_user, args=(65534, pretend))
    for directory in [path.parent, *path.parents]:  # pytest's own are for root alone
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    thread.start()
    os.read(ready[0], 1)
    try:
        with pytest.raises(NotCriproxyError, match=r"is of user 65534 \(pid \d+\), not of root's criproxy"):
            ask(path, "/status", 20)
    finally:
        os.write(end[1], b"x")
        thread.join()


@needs_root
def test_user_who_may_not_ask_is_told_to_be_root(tmp_path: Path, path: Path) -> None:
    for directory in [tmp_path, *tmp_path.parents]:
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    with socket.socket(socket.AF_UNIX) as listener:
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen()

        def refused() -> None:
            with pytest.raises(NotAllowedError, match="only root may ask: run this as root"):
                client.ask(path, "/status", 20)

        assert as_user(65534, refused) == 0
