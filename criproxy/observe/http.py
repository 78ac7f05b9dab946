"""Serves /metrics, /healthz, /readyz, /status and /why on loopback, in a daemon thread."""

import math
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

import structlog
from msgspec import Struct

from criproxy.observe import why
from criproxy.observe.status import Status, to_json

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_CLIENT_TIMEOUT_S: Final = 5.0
_MAX_CLIENTS: Final = 8
_MAX_LINE: Final = 16 * 1024
_MAX_HEADERS: Final = 100


class Endpoints(Struct, frozen=True):
    """What the paths answer with. Called from threads of the server, so each must be safe to call from any.

    `unhealthy` and `unready` say what is wrong, in words; None: nothing is. `why` is asked for a moment (UTC), or None:
    now.
    """

    metrics: Callable[[], bytes]
    unhealthy: Callable[[], str | None]
    unready: Callable[[], str | None]
    status: Callable[[], Status]
    why: Callable[[float | None], why.Why]


class HttpServer:
    """The endpoints at one loopback address. Raises OSError when it can't listen there."""

    def __init__(self, host: str, port: int, endpoints: Endpoints) -> None:
        kind = _Server6 if ":" in host else _Server
        self._server: Final = kind((host, port), _Handler)
        self._server.endpoints = endpoints
        self._thread: Final = threading.Thread(target=self._server.serve_forever, name="observe-http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening; takes up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(host: str, port: int, endpoints: Endpoints) -> HttpServer | None:
    """Start the server; None, and one error in the log, when the address can't be had: the node goes on without."""
    try:
        return HttpServer(host, port, endpoints)
    except OSError as error:
        structlog.get_logger().error(
            "observe_not_listening",
            address=f"{host}:{port}",
            error=error.strerror or str(error),
            remedy="set observe.address to a free port and restart criproxy",
        )
        return None


def _answer(endpoints: Endpoints, path: str, query: str) -> tuple[HTTPStatus, str, bytes]:
    try:
        match path:
            case "/metrics":
                return HTTPStatus.OK, _METRICS_TYPE, endpoints.metrics()
            case "/status":
                return HTTPStatus.OK, "application/json", to_json(endpoints.status()).encode()
            case "/why":
                return _why(endpoints, query)
            case "/healthz" | "/readyz":
                return _probe(endpoints.unhealthy() if path == "/healthz" else endpoints.unready())
    except Exception:
        structlog.get_logger().exception("observe_failed", path=path)
        return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT_TYPE, b"failed; the log says why\n"
    return HTTPStatus.NOT_FOUND, _TEXT_TYPE, b"/metrics /healthz /readyz /status /why\n"


def _why(endpoints: Endpoints, query: str) -> tuple[HTTPStatus, str, bytes]:
    """`?at=SECONDS`, since 1970, for another moment than now."""
    try:
        at_s = [float(value) for value in parse_qs(query).get("at", ())]
    except ValueError:
        at_s = [math.nan]
    if len(at_s) > 1 or not all(math.isfinite(moment) for moment in at_s):
        return HTTPStatus.BAD_REQUEST, _TEXT_TYPE, b"at is a moment in seconds since 1970\n"
    answer = endpoints.why(at_s[0] if at_s else None)
    return HTTPStatus.OK, "application/json", why.to_json(answer).encode()


def _probe(problem: str | None) -> tuple[HTTPStatus, str, bytes]:
    if problem is None:
        return HTTPStatus.OK, _TEXT_TYPE, b"ok\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT_TYPE, f"{problem}\n".encode("utf-8", "backslashreplace")


class _Server(socketserver.ThreadingTCPServer):
    """Threads, so that a client that hangs does not keep the others waiting; few, so that many can't take the node."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    endpoints: Endpoints

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = threading.BoundedSemaphore(_MAX_CLIENTS)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        structlog.get_logger().debug("observe_client_failed", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(socketserver.StreamRequestHandler):
    """One request per connection, without a body. Not http.server's: that brings 3 MB of e-mail and archives.

    Source: RFC 9112.
    """

    timeout = _CLIENT_TIMEOUT_S
    server: _Server

    def handle(self) -> None:
        words = self.rfile.readline(_MAX_LINE).decode("latin-1").split()
        for _ in range(_MAX_HEADERS):
            if self.rfile.readline(_MAX_LINE) in (b"\r\n", b"\n", b""):
                break
        else:
            words = []
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._send("GET", HTTPStatus.BAD_REQUEST, _TEXT_TYPE, b"no HTTP/1 request\n")
            return
        method, target, _ = words
        if method in ("GET", "HEAD"):
            path, _, query = target.partition("?")
            self._send(method, *_answer(self.server.endpoints, path, query))
        else:
            self._send(method, HTTPStatus.METHOD_NOT_ALLOWED, _TEXT_TYPE, b"only GET and HEAD\n")

    def _send(self, method: str, status: HTTPStatus, kind: str, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Allow: GET, HEAD\r\nConnection: close\r\n\r\n"
        )
        self.wfile.write(head.encode() + (b"" if method == "HEAD" else body))
