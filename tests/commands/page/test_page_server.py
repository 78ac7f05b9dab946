"""Who gets the page: whoever has its token, asks on the loopback, and is no other site."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from criproxy.commands.page import server
from criproxy.commands.page.document import document
from criproxy.commands.page.server import PageServer
from criproxy.observe.client import NotRunningError

Answered = tuple[int, bytes, http.client.HTTPMessage]


class Page:
    """A page that is served, and what was asked of the daemon for it."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []
        self.fails = ""
        self.server = PageServer(*document("node-1"), self._facts)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def _facts(self, since_s: float | None) -> dict[str, Any]:
        self.asked.append(since_s)
        if self.fails:
            raise NotRunningError(self.fails)
        return {"secret": "batch/job"}

    def ask(self, path: str, host: str | None = None, method: str = "GET", **headers: str) -> Answered:
        """`host` None: as a browser says it."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)) as connection:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", f"127.0.0.1:{self.server.port}" if host is None else host)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers


@pytest.fixture
def page() -> Iterator[Page]:
    one = Page()
    yield one
    one.server.shutdown()
    one.server.server_close()
    one.thread.join()


def at(page: Page, path: str = "") -> str:
    return f"/{page.server.token}/{path}"


def test_page_and_its_data_are_served(page: Page) -> None:
    status, body, headers = page.ask(at(page))
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>criproxy on node-1</title>" in body
    status, body, _ = page.ask(at(page, "data"), Sec_Fetch_Site="same-origin")
    assert (status, json.loads(body), page.asked) == (200, {"secret": "batch/job"}, [None])
    page.ask(at(page, "data?since=12.5"))
    assert page.asked == [None, 12.5]


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST:80"])
def test_loopback_may_be_called_by_all_its_names_and_have_another_port_at_the_end_of_ssh(page: Page, host: str) -> None:
    assert page.ask(at(page), host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "", "localhost:x", "10.0.0.1"]
)
def test_other_host_gets_nothing(page: Page, host: str) -> None:
    for path in ("", "data"):
        status, body, _ = page.ask(at(page, path), host)
        assert (status, body) == (403, b"")
    assert page.asked == []


def test_two_hosts_get_nothing(page: Page) -> None:
    assert page.ask(at(page, "data"), Host="evil.example")[:2] == (403, b"")


@pytest.mark.parametrize("path", ["/", "/data", "/x/data", "/{short}/data", "/{token}x/data", "/?{token}/data", "data"])
def test_who_has_no_token_gets_nothing(page: Page, path: str) -> None:
    token = page.server.token
    status, body, _ = page.ask(path.format(token=token, short=token[:-1]))
    assert (status, body, page.asked) == (403, b"", [])


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_site_gets_nothing_even_with_the_token(page: Page, site: str) -> None:
    assert page.ask(at(page, "data"), Sec_Fetch_Site=site)[:2] == (403, b"")
    assert page.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_reading_is_there(page: Page, method: str) -> None:
    assert page.ask(at(page, "data"), method=method)[0] == 501
    assert page.asked == []


@pytest.mark.parametrize(("path", "status"), [("", 200), ("data", 200), ("nothing", 404)])
def test_browser_is_told_to_run_and_ask_nothing_else(page: Page, path: str, status: int) -> None:
    found, _, headers = page.ask(at(page, path))
    policy = headers["Content-Security-Policy"]
    assert found == status
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("query", ["since=noon", "since=nan", "since=inf"])
def test_moment_that_is_none_is_an_error_in_words(page: Page, query: str) -> None:
    status, body, _ = page.ask(at(page, f"data?{query}"))
    assert (status, page.asked) == (503, [])
    assert json.loads(body)["error"]


def test_daemon_that_does_not_answer_is_an_error_in_words(page: Page) -> None:
    page.fails = "no criproxy answers"
    status, body, _ = page.ask(at(page, "data"))
    assert (status, json.loads(body)) == (503, {"error": "no criproxy answers"})


def test_many_who_ask_share_an_answer(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FRESH_S", 1000.0)
    for _ in range(5):
        assert page.ask(at(page, "data"))[0] == 200
    assert page.asked == [None]


def test_it_listens_on_the_loopback_alone_with_another_token_each_time(page: Page) -> None:
    other = Page()
    try:
        assert page.server.server_address[0] == "127.0.0.1"
        assert page.server.token != other.server.token
        assert len(page.server.token) >= 32
        assert other.ask(at(page, "data"))[0] == 403
    finally:
        other.server.shutdown()
        other.server.server_close()
        other.thread.join()
