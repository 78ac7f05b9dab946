"""Who may ask over the network, over real sockets and TLS."""

import asyncio
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.concurrency.clock import Clock
from criproxy.observe import remote
from criproxy.observe.http import HttpServer
from criproxy.observe.listener import TcpAddress
from criproxy.observe.remote import Credentials, RemoteFiles, RemoteListener
from criproxy.observe.routes import Routes
from integration.lab.ports import free_ports
from tests.answering import HOST, Answers
from tests.fakes.authority import Authority
from tests.fakes.waiting import until, wait_until
from tests.observe.status_samples import STATUS

TOKEN, OTHER = "a" * 32, "b" * 32
BEARER = {"Authorization": f"Bearer {TOKEN}"}
METRICS = b"m 1\n" * 20_000
"""More than a record of TLS has."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> RemoteFiles:
    """Both ways are open."""
    (tmp_path / "tokens").write_text(f"{TOKEN}\n\n{OTHER}\n")
    return RemoteFiles(*authority.issue("server"), authority.certificate, tmp_path / "tokens")


class Served:
    def __init__(self, files: RemoteFiles, authority: Authority) -> None:
        self.port, self._authority = free_ports(1)[0], authority
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.credentials = Credentials(files, structlog.get_logger())
        self.listener = self.run(self._made)

    def run(self, job: Any) -> Any:
        async def run() -> Any:
            return job()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def _made(self) -> RemoteListener:
        log = structlog.get_logger()
        answers = Answers(
            page=lambda: "criproxy 9",
            metrics=lambda: METRICS,
            unhealthy=lambda: None,
            unready=lambda: None,
            status=lambda: STATUS,
            why=lambda _: None,  # type: ignore[arg-type, return-value]
        )
        routes = Routes(answers, Path("/s.sock"), pod_names=True, hold_offs=None, clock=Clock())  # type: ignore[arg-type]
        listener = RemoteListener(TcpAddress(HOST, self.port, "observe.remote_address"), self.credentials, log)
        listener.open(HttpServer(routes.remote, 5.0, log, greet=listener.greet).serve)
        return listener

    def ask(
        self, path: str = "/metrics", headers: dict[str, str] | None = None, shown: tuple[Path, Path] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """By another implementation of HTTP, with the client's certificate and key where they are `shown`."""
        context = ssl.create_default_context(cafile=str(self._authority.certificate))
        if shown:
            context.load_cert_chain(*shown)
        with closing(http.client.HTTPSConnection("localhost", self.port, timeout=20, context=context)) as connection:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers

    def end(self) -> None:
        self.run(self.listener.release)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def serving(files: RemoteFiles, authority: Authority) -> Iterator[Served]:
    served = Served(files, authority)
    try:
        yield served
    finally:
        served.end()


def test_a_token_or_a_certificate_lets_in_and_nothing_else(files: RemoteFiles, authority: Authority) -> None:
    with serving(files, authority) as served:
        assert served.ask(headers=BEARER)[:2] == (200, METRICS)
        assert served.ask(headers={"authorization": f"bearer  {OTHER} "})[0] == 200
        assert served.ask(shown=authority.issue("prometheus"))[:2] == (200, METRICS)
        for wrong in (
            {},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": f"Basic {TOKEN}"},
            {"X": f"Bearer {TOKEN}"},
        ):
            status, body, headers = served.ask(headers=wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), wrong
            assert b"m 1" not in body
        with pytest.raises((OSError, http.client.HTTPException)):
            served.ask(shown=Authority(files.certificate.parent, "another authority").issue("stranger"))


def test_what_is_asked_for_there(files: RemoteFiles, authority: Authority) -> None:
    with serving(files, authority) as served:
        assert served.ask("/healthz", BEARER)[:2] == (200, b"ok\n")
        assert served.ask("/status", BEARER)[0] == 404, "it has pods' names"
        assert served.ask("/why", BEARER)[0] == 404


def test_without_a_token_file_a_certificate_is_needed(files: RemoteFiles, authority: Authority) -> None:
    with serving(replace(files, tokens=None), authority) as served:
        assert served.ask(shown=authority.issue("prometheus"))[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            served.ask(headers=BEARER)


def test_without_an_authority_a_certificate_lets_nobody_in(files: RemoteFiles, authority: Authority) -> None:
    with serving(replace(files, client_ca=None), authority) as served:
        assert served.ask(shown=authority.issue("prometheus"))[0] == 401
        assert served.ask(headers=BEARER)[0] == 200


def spoiled(what: str, files: RemoteFiles) -> None:
    tokens, ca = files.tokens, files.client_ca
    assert tokens is not None and ca is not None
    match what:
        case "no-tokens":
            tokens.write_text("\n")
        case "short-token":
            tokens.write_text(f"{TOKEN}\nsecret\n")
        case "no-key":
            files.key.unlink()
        case "no-certificate":
            files.certificate.write_text("-----BEGIN CERTIFICATE-----\n")
        case "another-key":
            files.key.write_bytes(Authority(ca.parent, "third").issue("other")[1].read_bytes())
        case "encrypted-key":
            files.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGk\n-----END ENCRYPTED PRIVATE KEY-----\n")
        case "no-authority":
            ca.write_text("nothing")
        case "pipe":
            tokens.unlink()
            os.mkfifo(tokens)
        case "endless":
            tokens.write_bytes(b"a" * (remote.MAX_BYTES + 1))


SPOILED = (
    "no-tokens", "short-token", "no-key", "no-certificate", "another-key", "encrypted-key", "no-authority", "pipe",
    "endless",
)  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_bad_files_open_nothing_until_they_are_good(what: str, files: RemoteFiles, authority: Authority) -> None:
    named = (files.certificate, files.key, files.client_ca, files.tokens)
    good = {file: file.read_bytes() for file in named if file is not None}
    spoiled(what, files)
    with capture_logs() as logged, serving(files, authority) as served:
        assert served.credentials.context is None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, served.port), timeout=20)
        (problem,) = served.listener.problems()
        assert problem.endswith("nobody can connect there")
        assert any(str(file) in problem for file in good), problem
        assert [one["log_level"] for one in logged if one["event"] == "remote_credentials_not_loaded"] == ["error"]

        for file, content in good.items():
            file.unlink(missing_ok=True)
            file.write_bytes(content)
        served.credentials.look()
        served.run(lambda: served.listener.open(lambda client: client.close()))
        assert not [*served.listener.problems()]
        socket.create_connection((HOST, served.port), timeout=20).close()


@pytest.mark.parametrize("what", SPOILED)
def test_the_last_good_files_hold_while_new_ones_are_bad(what: str, files: RemoteFiles, authority: Authority) -> None:
    with serving(files, authority) as served:
        spoiled(what, files)
        served.credentials.look()
        assert (
            served.credentials.refusal(b"GET / HTTP/1.1\r\n" + f"Authorization: Bearer {TOKEN}\r\n".encode(), None)
            is None
        )
        (problem,) = served.listener.problems()
        assert problem.endswith("the last good files hold")


def test_what_has_changed_is_taken_up(files: RemoteFiles, authority: Authority) -> None:
    assert files.tokens is not None
    with serving(files, authority) as served:
        files.tokens.write_text("c" * 32)
        authority.issue("server")
        served.credentials.look()
        assert served.ask(headers=BEARER)[0] == 401
        assert served.ask(headers={"Authorization": f"Bearer {'c' * 32}"})[0] == 200


def test_files_are_looked_at_again_and_again(files: RemoteFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOOK_S", 0.0)
    credentials = Credentials(files, structlog.get_logger())

    async def run() -> None:
        task = asyncio.create_task(credentials.run())
        files.key.unlink()
        await until(lambda: [*credentials.problems()])
        task.cancel()

    asyncio.run(run())


def test_whoever_speaks_no_tls_or_leaves_costs_nobody_else(files: RemoteFiles, authority: Authority) -> None:
    with serving(files, authority) as served:
        with socket.create_connection((HOST, served.port), timeout=20) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"m 1" not in connection.recv(4096)
        socket.create_connection((HOST, served.port), timeout=20).close()
        wait_until(lambda: served.ask(headers=BEARER)[0] == 200)
