"""Serves /metrics, /healthz, /readyz, /status and /why on loopback, in a daemon thread."""

import math
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog

from criproxy.observe import why
from criproxy.observe.status import Status, to_json

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_CLIENT_TIMEOUT_S: Final = 5.0
_MAX_CLIENTS: Final = 8


@dataclass(frozen=True, slots=True)
class Endpoints:
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
        self._server.set_app(application(endpoints))
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


def application(endpoints: Endpoints) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The endpoints as a WSGI application. Source: PEP 3333."""

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method in ("GET", "HEAD"):
            status, kind, body = _answer(endpoints, environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", ""))
        else:
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, _TEXT_TYPE, b"only GET and HEAD\n"
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Allow", "GET, HEAD")]
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if method == "HEAD" else [body]

    return respond


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


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Threads, so that a client that hangs does not keep the others waiting; few, so that many can't take the node."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._places = threading.BoundedSemaphore(_MAX_CLIENTS)
        super().__init__(*args, **kwargs)

    def server_bind(self) -> None:
        # Not HTTPServer's: it looks its own name up, which can wait for DNS.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

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


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, *_args: Any) -> None:
        """No access log."""
