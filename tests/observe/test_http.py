"""The endpoints, over a real socket."""

import http.client
import io
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import structlog
from msgspec.structs import replace
from status_samples import STATUS

from criproxy.observe import log, why
from criproxy.observe.http import Endpoints, HttpServer, serve
from criproxy.observe.status import from_json
from criproxy.observe.why import Why

WELL = Endpoints(
    metrics=lambda: b"m 1\n",
    unhealthy=lambda: None,
    unready=lambda: None,
    status=lambda: STATUS,
    why=lambda asked_s: Why(asked_s, None, None),
)
ILL = replace(WELL, unhealthy=lambda: "the loop hangs", unready=lambda: "no runtime \udcff")


@pytest.fixture(autouse=True)
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    log.configure("info", stream)
    yield stream
    structlog.reset_defaults()


@contextmanager
def serving(endpoints: Endpoints, host: str = "127.0.0.1") -> Iterator[int]:
    server = HttpServer(host, 0, endpoints)
    try:
        yield server.port
    finally:
        server.close()


def ask(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, bytes, http.client.HTTPMessage]:
    with closing(http.client.HTTPConnection(host, port, timeout=20)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


@pytest.mark.parametrize(
    ("endpoints", "path", "status", "body"),
    [
        pytest.param(WELL, "/metrics", 200, b"m 1\n", id="metrics"),
        pytest.param(WELL, "/healthz", 200, b"ok\n", id="healthy"),
        pytest.param(WELL, "/readyz", 200, b"ok\n", id="ready"),
        pytest.param(WELL, "/readyz?verbose", 200, b"ok\n", id="query"),
        pytest.param(ILL, "/healthz", 503, b"the loop hangs\n", id="unhealthy"),
        pytest.param(ILL, "/readyz", 503, b"no runtime \\udcff\n", id="unready"),
        pytest.param(WELL, "/", 404, b"/metrics /healthz /readyz /status /why\n", id="root"),
        pytest.param(WELL, "/../etc/passwd", 404, b"/metrics /healthz /readyz /status /why\n", id="path"),
    ],
)
def test_path_answers(endpoints: Endpoints, path: str, status: int, body: bytes) -> None:
    with serving(endpoints) as port:
        assert ask(port, path)[:2] == (status, body)


def test_status_is_json() -> None:
    with serving(WELL) as port:
        status, body, headers = ask(port, "/status")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert from_json(body.decode()) == STATUS


@pytest.mark.parametrize(("query", "asked_s"), [("", None), ("?at=12.5", 12.5), ("?at=-1&x=2", -1.0)])
def test_why_is_asked_for_the_moment(query: str, asked_s: float | None) -> None:
    with serving(WELL) as port:
        status, body, headers = ask(port, f"/why{query}")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert why.from_json(body.decode()) == Why(asked_s, None, None)


@pytest.mark.parametrize("query", ["?at=noon", "?at=nan", "?at=inf", "?at=1&at=2"])
def test_why_of_no_moment_is_a_bad_request(query: str) -> None:
    with serving(WELL) as port:
        assert ask(port, f"/why{query}")[:2] == (400, b"at is a moment in seconds since 1970\n")


def test_metrics_carry_the_type_that_prometheus_asks_for() -> None:
    with serving(WELL) as port:
        assert ask(port, "/metrics")[2]["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_head_answers_without_a_body() -> None:
    with serving(WELL) as port:
        status, body, headers = ask(port, "/metrics", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "4")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_method_is_not_allowed(method: str) -> None:
    with serving(WELL) as port:
        status, _, headers = ask(port, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_endpoint_that_fails_is_a_500_and_one_error_in_the_log(logged: io.StringIO) -> None:
    def fail() -> bytes:
        raise RuntimeError("secret")

    with serving(replace(WELL, metrics=fail)) as port:
        status, body, _ = ask(port, "/metrics")
        assert (status, b"secret" in body) == (500, False)
        assert ask(port, "/healthz")[0] == 200
    (line,) = logged.getvalue().splitlines()
    assert json.loads(line)["event"] == "observe_failed"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"hello\r\n\r\n", id="no-request"),
        pytest.param(b"GET / HTTP/2\r\n\r\n", id="another-version"),
        pytest.param(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", id="long-target"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", id="many-headers"),
        pytest.param(b"\xff\xfe\r\n\r\n", id="bytes"),
    ],
)
def test_what_is_no_request_is_a_bad_one(said: bytes) -> None:
    with serving(WELL) as port, closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as client:
        client.sendall(said)
        assert client.recv(1000).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_client_that_hangs_keeps_nobody_waiting() -> None:
    with serving(WELL) as port, closing(socket.create_connection(("127.0.0.1", port))) as hanging:
        hanging.sendall(b"GET /metr")
        assert ask(port, "/healthz")[0] == 200


def test_clients_beyond_the_bound_are_turned_away() -> None:
    with serving(WELL) as port:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(9)]
        # The ninth is closed at once; the others are waited for.
        assert clients[8].recv(1) == b""
        for client in clients:
            client.close()


def test_ipv6_is_served() -> None:
    if not socket.has_ipv6 or not _has_loopback6():
        pytest.skip("this machine has no ::1")
    with serving(WELL, "::1") as port:
        assert ask(port, "/healthz", host="::1")[0] == 200


def _has_loopback6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6, socket.SOCK_STREAM)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_port_that_is_taken_is_one_error_and_no_server(logged: io.StringIO) -> None:
    with serving(WELL) as port:
        assert serve("127.0.0.1", port, WELL) is None
    (line,) = logged.getvalue().splitlines()
    error = json.loads(line)
    assert (error["event"], error["address"], error["error"]) == (
        "observe_not_listening",
        f"127.0.0.1:{port}",
        "Address already in use",
    )
    assert "observe.address" in error["remedy"]


def test_port_is_free_again_after_close() -> None:
    with serving(WELL) as port:
        pass
    server = serve("127.0.0.1", port, WELL)
    assert server is not None
    server.close()
