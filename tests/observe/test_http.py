"""The endpoints, over real sockets."""

import io
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from criproxy.observe import client, http, log, routes, why
from criproxy.observe.status import from_json
from criproxy.observe.why import Why
from tests.answering import HOST, Answers, Served, answering
from tests.fakes.waiting import wait_until
from tests.observe.status_samples import STATUS

WELL = Answers(
    page=lambda: "criproxy 9: all is well",
    metrics=lambda: b"m 1\n",
    unhealthy=lambda: None,
    unready=lambda: None,
    status=lambda: STATUS,
    why=lambda asked_s: Why(asked_s, None, None),
)
ILL = replace(WELL, unhealthy=lambda: "the loop hangs", unready=lambda: "no runtime \udcff")
PATHS = b"/metrics /healthz /readyz\n"


@pytest.fixture(autouse=True)
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    log.configure("info", stream)
    yield stream
    structlog.reset_defaults()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c-status.sock"


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    with answering(path, WELL) as served:
        yield served


# --- what is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "asked", "status", "body"),
    [
        pytest.param(WELL, "/metrics", 200, b"m 1\n", id="metrics"),
        pytest.param(WELL, "/healthz", 200, b"ok\n", id="healthy"),
        pytest.param(WELL, "/readyz", 200, b"ok\n", id="ready"),
        pytest.param(WELL, "/readyz?verbose", 200, b"ok\n", id="query"),
        pytest.param(ILL, "/healthz", 503, b"the loop hangs\n", id="unhealthy"),
        pytest.param(ILL, "/readyz", 503, b"no runtime \\udcff\n", id="unready"),
        pytest.param(WELL, "/", 200, b"criproxy 9: all is well\n" + PATHS, id="page"),
        pytest.param(WELL, "/../etc/passwd", 404, PATHS, id="path"),
    ],
)
def test_path_answers(path: Path, endpoints: Answers, asked: str, status: int, body: bytes) -> None:
    with answering(path, endpoints) as served:
        assert served.ask(asked)[:2] == (status, body)


@pytest.mark.parametrize("asked", ["/metrics", "/healthz", "/readyz"])
@pytest.mark.parametrize("endpoints", [WELL, ILL], ids=["well", "ill"])
def test_socket_answers_as_tcp_does(path: Path, endpoints: Answers, asked: str) -> None:
    with answering(path, endpoints) as served:
        status, body, _ = served.ask(asked)
        assert client.fetch(path, asked, 20) == (status, body.decode())


def test_status_is_json_at_the_socket(served: Served) -> None:
    assert from_json(client.ask(served.path, "/status", 20)) == STATUS


@pytest.mark.parametrize("asked", ["/status", "/why", "/why?at=1", "/history"])
def test_status_over_tcp_is_gone_and_says_where_it_is(served: Served, asked: str) -> None:
    status, body, _ = served.ask(asked)
    assert status == 410
    assert f"curl --unix-socket {served.path} http://localhost{asked.partition('?')[0]}\n".encode() in body


def test_status_is_there_over_tcp_when_pods_names_may_be_known(path: Path) -> None:
    with answering(path, WELL, pod_names=True) as served:
        status, body, headers = served.ask("/status")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert from_json(body.decode()) == STATUS


@pytest.mark.parametrize(("query", "asked_s"), [("", None), ("?at=12.5", 12.5), ("?at=-1&x=2", -1.0)])
def test_why_is_asked_for_the_moment(served: Served, query: str, asked_s: float | None) -> None:
    assert why.from_json(client.ask(served.path, f"/why{query}", 20)) == Why(asked_s, None, None)


@pytest.mark.parametrize("query", ["?at=noon", "?at=nan", "?at=inf", "?at=1&at=2"])
def test_why_of_no_moment_is_a_bad_request(served: Served, query: str) -> None:
    assert client.fetch(served.path, f"/why{query}", 20) == (400, "at is a moment in seconds since 1970\n")


@pytest.mark.parametrize(("query", "since_s"), [("", -math.inf), ("?since=12.5", 12.5)])
def test_history_is_asked_for_what_is_newer(path: Path, query: str, since_s: float) -> None:
    with answering(path, replace(WELL, past=lambda since_s: f'{{"since": "{since_s}"}}')):
        assert client.ask(path, f"/history{query}", 20) == f'{{"since": "{since_s}"}}'


@pytest.mark.parametrize("query", ["?since=noon", "?since=nan", "?since=1&since=2"])
def test_history_since_no_moment_is_a_bad_request(served: Served, query: str) -> None:
    assert client.fetch(served.path, f"/history{query}", 20) == (400, "since is a moment in seconds since 1970\n")


def test_metrics_carry_the_type_that_prometheus_asks_for(served: Served) -> None:
    assert served.ask("/metrics")[2]["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_head_answers_without_a_body(served: Served) -> None:
    status, body, headers = served.ask("/metrics", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "4")


def test_commands_are_done_at_the_socket_alone(served: Served) -> None:
    words = "/hold-off?of=a%2Fb&seconds=60&reason=x+y"
    assert client.command(served.path, words, 20) == "hold a/b"
    assert client.command(served.path, "/release?of=box", 20) == "release box"
    assert served.operator.asked == [("hold", "a/b", 60.0, "x y"), ("release", "box")]
    assert served.ask(words, "POST")[0] == 405
    assert served.ask("/hold-off")[0] == client.fetch(served.path, words, 20)[0] == 404, "a GET does nothing"
    assert len(served.operator.asked) == 2


def test_command_that_makes_no_sense_or_cannot_be_done_says_why(served: Served) -> None:
    with pytest.raises(ValueError, match="no offline pod is called 'nobody'"):
        client.command(served.path, "/hold-off?of=nobody&seconds=60&reason=x", 20)
    with pytest.raises(ValueError, match="float"):
        client.command(served.path, "/hold-off?of=box&seconds=soon&reason=x", 20)
    with pytest.raises(client.BusyError, match="no space left"):
        client.command(served.path, "/release?of=stuck", 20)
    with pytest.raises(client.NotCriproxyError, match="404 to /status"):
        client.command(served.path, "/status", 20)
    assert served.operator.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_method_is_not_allowed(served: Served, method: str) -> None:
    status, _, headers = served.ask("/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_endpoint_that_fails_is_a_500_and_one_error_in_the_log(path: Path, logged: io.StringIO) -> None:
    def fail() -> bytes:
        raise RuntimeError("secret")

    with answering(path, replace(WELL, metrics=fail, status=fail)) as served:
        status, body, _ = served.ask("/metrics")
        assert (status, b"secret" in body) == (500, False)
        assert client.fetch(path, "/status", 20)[0] == 500
        assert served.ask("/healthz")[0] == 200
    assert [json.loads(line)["event"] for line in logged.getvalue().splitlines()] == ["observe_failed"] * 2


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"hello\r\n\r\n", id="no-request"),
        pytest.param(b"GET / HTTP/2\r\n\r\n", id="another-version"),
        pytest.param(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", id="long-target"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4000 + b"\r\n", id="many-headers"),
        pytest.param(b"\xff\xfe\r\n\r\n", id="bytes"),
    ],
)
def test_what_is_no_request_is_a_bad_one(served: Served, said: bytes) -> None:
    with served.connect() as connection:
        connection.sendall(said)
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_request_in_pieces_and_with_bare_newlines_is_answered(served: Served) -> None:
    with served.connect() as connection:
        for piece in (b"GET /hea", b"lthz HTTP/1.0\nHost: x\n", b"\n"):
            connection.sendall(piece)
            time.sleep(0.01)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


# --- clients that mean no good ---------------------------------------------------------------------------------------


def test_slow_clients_by_the_dozen_keep_nobody_waiting(served: Served) -> None:
    hanging = [served.connect() for _ in range(40)]
    for connection in hanging:
        connection.sendall(b"GET /metr")
    assert served.ask("/healthz")[0] == 200
    for connection in hanging:
        connection.close()


def test_clients_beyond_the_bound_end_the_oldest(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MAX_CLIENTS", 2)
    first, second = served.connect(), served.connect()
    assert served.ask("/healthz")[0] == 200
    assert first.recv(1) == b""
    second.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert second.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("said", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_client_that_takes_too_long_is_left(path: Path, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.answering.PUBLIC_S", 0.2)
    with answering(path, replace(WELL, metrics=lambda: b"x" * 50_000_000)) as served, served.connect() as connection:
        connection.sendall(said)
        time.sleep(0.5)
        size = 0
        while part := connection.recv(1 << 20):
            size += len(part)
        assert size < 50_000_000


def test_metrics_over_tcp_are_made_once_a_second_however_many_ask(path: Path) -> None:
    made = []
    metrics = replace(WELL, metrics=lambda: str(made.append(1) or len(made)).encode())  # type: ignore[func-returns-value]
    with answering(path, metrics) as served:
        began_s = time.monotonic()
        answers = [served.ask("/metrics")[1] for _ in range(20)]
        took_s = time.monotonic() - began_s
    assert len(set(answers)) <= 1 + took_s


def test_status_at_the_socket_is_made_after_it_was_asked_for(path: Path) -> None:
    """Who has just changed something sees it; a cache would tell how it was."""
    now = STATUS
    with answering(path, replace(WELL, status=lambda: now)) as served:
        for pid in range(5):
            now = replace(STATUS, pid=pid)
            assert from_json(client.ask(served.path, "/status", 20)).pid == pid


def test_status_is_made_once_for_all_who_wait(path: Path) -> None:
    made: list[float] = []
    status = replace(WELL, status=lambda: made.append(time.monotonic()) or STATUS)  # type: ignore[func-returns-value]
    with answering(path, status) as served:
        asking = [threading.Thread(target=client.ask, args=(served.path, "/status", 20)) for _ in range(20)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    assert len(made) < 10


def test_status_that_hangs_is_told_and_leaves_the_rest_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("criproxy.observe.routes._BUILD_S", 0.2)
    back = threading.Event()
    with answering(path, replace(WELL, status=lambda: back.wait(20) and STATUS)) as served:
        status, words = client.fetch(path, "/status", 20)
        assert (status, "a file that it reads hangs" in words) == (503, True)
        assert served.ask("/metrics")[0] == 200
        assert client.fetch(path, "/metrics", 20)[0] == 200
        back.set()
        wait_until(lambda: client.fetch(path, "/status", 20)[0] == 200)


# --- where -----------------------------------------------------------------------------------------------------------


def test_ipv6_is_served(path: Path) -> None:
    if not socket.has_ipv6 or not _has_loopback6():
        pytest.skip("this machine has no ::1")
    with answering(path, WELL, host="::1") as served:
        assert served.ask("/healthz")[0] == 200


def _has_loopback6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_port_that_is_taken_is_one_error_and_taken_up_when_it_is_free(
    path: Path, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("criproxy.observe.listener._AGAIN_S", 0.05)
    served = Served(path, WELL)
    with socket.create_server((HOST, served.port)):
        served.open()
        time.sleep(0.3)
        (line,) = logged.getvalue().splitlines()
        error = json.loads(line)
        assert (error["event"], error["address"], error["error"]) == (
            "observe_not_listening",
            f"{HOST}:{served.port}",
            "Address already in use",
        )
        assert "observe.address" in error["remedy"]
        assert served.public.problem is not None
        assert f"criproxy cannot listen at {HOST}:{served.port} (Address already in use)" in served.public.problem
        assert served.private.problem is None
    try:
        wait_until(lambda: served.public.problem is None)
        assert served.ask("/healthz")[0] == 200
    finally:
        served.end()
    assert "observe_listening" in logged.getvalue()


def test_port_is_free_again_after_its_end(path: Path) -> None:
    served = Served(path, WELL).open()
    served.ask("/healthz")
    served.end()
    socket.create_server((HOST, served.port)).close()
    assert not path.exists()


def test_metrics_come_without_what_hangs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_JUDGE_S", 0.05)
    hangs, said = threading.Event(), list[str]()
    ill = replace(WELL, judge=lambda: hangs.wait(20) and None, not_judged=lambda: said.append("not judged"))
    with answering(path, ill) as served:
        assert served.ask("/metrics")[:2] == (200, b"m 1\n")
        hangs.set()
    assert said == ["not judged"]


def test_whoever_asks_all_the_time_has_it_judged_seldom(path: Path) -> None:
    judged: list[float] = []
    with answering(path, replace(WELL, judge=lambda: judged.append(0.0))) as served:
        for _ in range(5):
            assert client.ask(served.path, "/metrics", 20) == "m 1\n"
    assert len(judged) == 1
