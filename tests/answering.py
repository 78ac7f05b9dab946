"""criproxy's listeners, served for a test by an event loop in a thread."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec import Struct

from criproxy.concurrency.clock import Clock
from criproxy.observe.http import HttpServer
from criproxy.observe.listener import Listener, TcpAddress, UnixAddress
from criproxy.observe.routes import PRIVATE_S, PUBLIC_S, Routes
from criproxy.observe.status import Status
from criproxy.observe.why import Why
from integration.lab.ports import free_ports

HOST = "127.0.0.1"

T = TypeVar("T")


class Answers(Struct):
    """A fake of a `Reporter`."""

    page: Callable[[], str]
    metrics: Callable[[], bytes]
    unhealthy: Callable[[], str | None]
    unready: Callable[[], str | None]
    status: Callable[[], Status]
    why: Callable[[float | None], Why]
    past: Callable[[float], str] = lambda since_s: '{"now_s": 0}'
    judge: Callable[[], None] = lambda: None
    not_judged: Callable[[], None] = lambda: None


class Operator:
    """Where an operator's commands end: `asked` are they. It refuses "nobody", and can't do "stuck"."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    async def hold(self, of: str, seconds: float, reason: str) -> str:
        return self._do("hold", of, seconds, reason)

    async def release(self, of: str) -> str:
        return self._do("release", of)

    def _do(self, what: str, of: str, *more: object) -> str:
        if of == "nobody":
            raise ValueError("no offline pod is called 'nobody'")
        if of == "stuck":
            raise OSError("no space left")
        self.asked.append((what, of, *more))
        return f"{what} {of}"


class Served:
    """Both ends of a daemon's answering: `port` of TCP, and the status socket `path`."""

    def __init__(self, path: Path, endpoints: Answers, *, host: str = HOST, pod_names: bool = False) -> None:
        self.host = host
        self.path = path
        self.operator = Operator()
        self.port = free_ports(1)[0]
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._routes = self.run(
            lambda: Routes(endpoints, self.path, pod_names=pod_names, hold_offs=self.operator, clock=Clock())  # type: ignore[arg-type]
        )
        self.public, self.private = self._listeners()

    def run(self, job: Callable[[], T]) -> T:
        """On the event loop."""

        async def run() -> T:
            return job()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def open(self) -> "Served":
        log, routes = structlog.get_logger(), self._routes
        self.run(lambda: self.public.open(HttpServer(routes.public, PUBLIC_S, log).serve))
        self.run(lambda: self.private.open(HttpServer(routes.private, PRIVATE_S, log, routes.obey).serve))
        return self

    def end(self) -> None:
        self.run(self.public.release)
        self.run(self.private.release)
        asyncio.run_coroutine_threadsafe(self._clients_end(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _clients_end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def connect(self) -> socket.socket:
        """A connection to the TCP end."""
        return socket.create_connection((self.host, self.port), timeout=20)

    def ask(self, path: str, method: str = "GET") -> tuple[int, bytes, http.client.HTTPMessage]:
        """Over TCP, by another HTTP implementation."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=20)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers

    def _listeners(self) -> tuple[Listener, Listener]:
        log = structlog.get_logger()
        return (
            Listener(TcpAddress(self.host, self.port), log),
            Listener(UnixAddress(self.path), log),
        )


@contextmanager
def answering(path: Path, endpoints: Answers, *, host: str = HOST, pod_names: bool = False) -> Iterator[Served]:
    served = Served(path, endpoints, host=host, pod_names=pod_names)
    try:
        yield served.open()
    finally:
        served.end()
