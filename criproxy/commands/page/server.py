"""Serves the page to one person, on the loopback: who has not its token gets nothing.

A browser that has the page open may be led here by any site. So a request must name the loopback as its host (else it
may come by a name that somebody else's DNS has pointed here), and begin with the token, which no other site knows; and
there is nothing that a request changes. Other users of the machine can connect, and have no token.
"""

import contextlib
import hmac
import json
import math
import re
import secrets
import socket as sockets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from criproxy.observe import client

HOST: Final = "127.0.0.1"
_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""With any port: `ssh -L` may have another one at its end."""

_PORT: Final = re.compile(r":[0-9]+$")

_CLIENTS: Final = 16
_CLIENT_S: Final = 20.0
_FRESH_S: Final = 0.5
"""An answer that is no older serves all who ask."""

PageFacts = Callable[[float | None], dict[str, Any]]


class PageServer(ThreadingHTTPServer):
    """`page` and `policy`: see `document`. `facts`: what is newer than a moment (UTC), None: all. It may raise AskError
    and ValueError.
    """

    daemon_threads = True

    def __init__(self, page: str, policy: str, facts: PageFacts) -> None:
        super().__init__((HOST, 0), _PageHandler)
        self.page, self.policy = page.encode(), policy
        self.token = secrets.token_urlsafe(24)
        self._facts = facts
        self._clients = threading.BoundedSemaphore(_CLIENTS)
        self._turn = threading.Lock()
        self._last: tuple[float, float | None, bytes] = (-math.inf, None, b"")

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    def data(self, since_s: float | None) -> bytes:
        """Raises as `facts` does."""
        with self._turn:
            made_s, since, body = self._last
            if since != since_s or time.monotonic() - made_s > _FRESH_S:
                body = json.dumps(self._facts(since_s)).encode()
                self._last = time.monotonic(), since_s, body
            return body

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._clients.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is nobody's concern."""


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _CLIENT_S
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        if not self._is_meant():
            self._answer(HTTPStatus.FORBIDDEN, b"")
            return
        url = urlsplit(self.path)
        path = url.path[len(self.server.token) + 1 :]
        if path == "/":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif path == "/data":
            self._data(url.query)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"")

    do_HEAD = do_GET

    def _is_meant(self) -> bool:
        """Whether it names the loopback once, and begins with the token."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or _PORT.sub("", hosts[0].lower()) not in _HOSTS:
            return False
        if self.headers.get("Sec-Fetch-Site") not in (None, "none", "same-origin"):
            return False
        given = self.path.split("/")[1] if self.path.startswith("/") else ""
        return hmac.compare_digest(given.partition("?")[0].encode(), self.server.token.encode())

    def _data(self, query: str) -> None:
        try:
            asked = parse_qs(query).get("since")
            since_s = float(asked[-1]) if asked else None
            if since_s is not None and not math.isfinite(since_s):
                raise ValueError("since is a moment in seconds since 1970")
            body = self.server.data(since_s)
        except (client.AskError, ValueError) as error:
            body = json.dumps({"error": str(error)}).encode()
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, body, "application/json")
            return
        self._answer(HTTPStatus.OK, body, "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", f"{self.server.policy}; frame-ancestors 'none'")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """As all answers: http.server's own would lack what keeps other sites from it."""
        self._answer(HTTPStatus(code), b"")

    def version_string(self) -> str:
        return "criproxy"

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal shows the address alone."""


def host_name() -> str:
    return sockets.gethostname()
