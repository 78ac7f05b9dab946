"""An HTTP/1 server for short questions, on the event loop: one request per connection, without a body.

Not http.server's: that takes a thread per client, and brings 3 MB of e-mail and archives. Source: RFC 9112.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, Protocol

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

TEXT: Final = "text/plain; charset=utf-8"

_MAX_CLIENTS: Final = 32
_MAX_HEAD: Final = 16 * 1024
_READ_BYTES: Final = 4096
_END: Final = re.compile(rb"\r?\n\r?\n")


class Answer(Struct, frozen=True):
    """What a question is answered with; `kind` is its media type."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: tuple[str, ...] = ()

    @classmethod
    def text(cls, status: HTTPStatus, line: str, headers: tuple[str, ...] = ()) -> "Answer":
        return cls(status, TEXT, f"{line}\n".encode("utf-8", "backslashreplace"), headers)


class ClientEnd(Protocol):
    """How bytes come from a client and go there. Each raises OSError. `receive`: at most so many; b"": it has ended."""

    async def receive(self, most: int) -> bytes: ...

    async def send(self, data: bytes) -> None: ...

    async def end(self) -> None:
        """No more is sent."""

    def refusal(self, head: bytes) -> Answer | None:
        """What a client with this head of a request hears in place of an answer; None: it may ask."""


class PlainChannel:
    """Whoever can connect may ask."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client

    async def receive(self, most: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._client, most)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._client, data)

    async def end(self) -> None:
        self._client.shutdown(socket.SHUT_WR)

    def refusal(self, head: bytes) -> Answer | None:
        return None


async def plain(client: socket.socket) -> ClientEnd:
    return PlainChannel(client)


class HttpServer(Struct):
    """Answers with what `answer` says to a path and a query, and obeys a POST as `obey` does (None: it never does).

    Nobody waits for a client that is slow: each has `deadline_s` for all, and beyond 32 the oldest one makes room.
    `greet` makes a channel of a connection.
    """

    answer: Callable[[str, str], Awaitable[Answer]]
    deadline_s: float
    log: FilteringBoundLogger
    obey: Callable[[str, str], Awaitable[Answer]] | None = None
    greet: Callable[[socket.socket], Awaitable[ClientEnd]] = plain
    _clients: dict[asyncio.Task[None], None] = {}

    def serve(self, client: socket.socket) -> None:
        """Take a connection that does not block, and close it in the end."""
        if len(self._clients) >= _MAX_CLIENTS:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._talk(client))
        self._clients[task] = None
        task.add_done_callback(lambda task: self._clients.pop(task, None))

    async def _talk(self, client: socket.socket) -> None:
        with client:
            try:
                async with asyncio.timeout(self.deadline_s):
                    channel = await self.greet(client)
                    if (head := await _head(channel)) is not None:
                        refusal = channel.refusal(head)
                        await channel.send(await self._response(head) if refusal is None else _written(refusal))
                        await channel.end()
            except OSError as error:  # it has gone, or has not asked or read in time
                self.log.debug("observe_client_failed", error=str(error))

    async def _response(self, head: bytes) -> bytes:
        words = head.partition(b"\n")[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _written(Answer.text(HTTPStatus.BAD_REQUEST, "no HTTP/1 request"))
        method, target, _ = words
        does = {"GET": self.answer, "HEAD": self.answer, "POST": self.obey}.get(method)
        if does is None:
            return _written(Answer.text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"))
        path, _, query = target.partition("?")
        try:
            answer = await does(path, query)
        except Exception:
            self.log.exception("observe_failed", path=path)
            answer = Answer.text(HTTPStatus.INTERNAL_SERVER_ERROR, "failed; the log says why")
        return _written(answer, with_body=method != "HEAD")


async def _head(channel: ClientEnd) -> bytes | None:
    """What comes before the first empty line, or as much as is too much for it; None: the client has gone."""
    head = b""
    while len(head) < _MAX_HEAD and not _END.search(head):
        if not (more := await channel.receive(_READ_BYTES)):
            return None
        head += more
    return head if _END.search(head) else b""


def _written(answer: Answer, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.kind}\r\n"
        f"Content-Length: {len(answer.body)}\r\nAllow: GET, HEAD\r\nConnection: close\r\n"
    )
    head += "".join(f"{header}\r\n" for header in answer.headers) + "\r\n"
    return head.encode() + (answer.body if with_body else b"")
