"""An HTTP/1 server for short questions, on the event loop: one request per connection, without a body.

Not http.server's: that takes a thread per client, and brings 3 MB of e-mail and archives. Source: RFC 9112.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

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

    @classmethod
    def text(cls, status: HTTPStatus, line: str) -> "Answer":
        return cls(status, TEXT, f"{line}\n".encode("utf-8", "backslashreplace"))


class HttpServer(Struct):
    """Answers with what `answer` says to a path and a query, and obeys a POST as `obey` does (None: it never does).

    Nobody waits for a client that is slow: each has `deadline_s` for all, and beyond 32 the oldest one makes room.
    """

    answer: Callable[[str, str], Awaitable[Answer]]
    deadline_s: float
    log: FilteringBoundLogger
    obey: Callable[[str, str], Awaitable[Answer]] | None = None
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
        loop = asyncio.get_running_loop()
        with client:
            try:
                async with asyncio.timeout(self.deadline_s):
                    if (head := await _head(client)) is not None:
                        await loop.sock_sendall(client, await self._response(head))
                        client.shutdown(socket.SHUT_WR)
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


async def _head(client: socket.socket) -> bytes | None:
    """What comes before the first empty line, or as much as is too much for it; None: the client has gone."""
    loop = asyncio.get_running_loop()
    head = b""
    while len(head) < _MAX_HEAD and not _END.search(head):
        if not (more := await loop.sock_recv(client, _READ_BYTES)):
            return None
        head += more
    return head if _END.search(head) else b""


def _written(answer: Answer, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.kind}\r\n"
        f"Content-Length: {len(answer.body)}\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if with_body else b"")
