"""A small client of the API server: one request, a request that is tried again, and the lines of a watch."""

import asyncio
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, Protocol

from msgspec import Struct

from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import Apart, StuckError
from criproxy.kube.connection import TlsConnection, connected, resolve
from criproxy.kube.credential import Access, Credential, CredentialError
from criproxy.kube.http1 import Head, ResponseError, ResponseReader
from criproxy.kube.retry import Meaning, meaning, named_pause_s, pause_s
from criproxy.vocabulary.watching import SILENCE_S, LineReader

STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"

MAX_BODY_BYTES: Final = 32 << 20
"""A list of 500 pods has a few MB."""

_MAX_ERROR_BYTES: Final = 64 * 1024

_FAILURES: Final = (OSError, ResponseError, CredentialError)
"""Of which TimeoutError and ssl.SSLError are OSErrors."""

_BY_THE_CLOCK: Final = (9, 10)
"""A certificate is not yet valid, or no more. Source: OpenSSL, X509_V_ERR_CERT_NOT_YET_VALID, …_HAS_EXPIRED."""


class ApiRequest(Struct, frozen=True):
    """`path` with its query, from /api on. `body` b"": there is none."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON


class ApiAnswer(Struct, frozen=True):
    """`named_pause_s`: what the server asks to wait before the next try; None: it does not say."""

    status: int
    body: bytes
    named_pause_s: float | None = None

    @property
    def meaning(self) -> Meaning:
        return meaning(self.status)


class UnreachableError(Exception):
    """No answer: no connection, none in time, or one that broke off. Whether the request was taken is not known."""


class LargeAnswerError(UnreachableError):
    """The answer has more than `MAX_BODY_BYTES`."""


class RejectedError(Exception):
    """The answer is an error."""

    def __init__(self, answer: ApiAnswer) -> None:
        super().__init__(f"the API server answers {answer.status}")
        self.answer: Final = answer


class Asks(Protocol):
    """Whoever carries requests to the API server."""

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        """One try. Raises UnreachableError."""

    async def ask_again(self, request: ApiRequest, tries: int = 4) -> ApiAnswer:
        """As often as it takes, but no more than `tries` times, with pauses. The last answer, whatever it says.

        Raises UnreachableError when the last try had none.
        """


class Timeouts(Struct, frozen=True):
    """Seconds. `silence_s` is how long a watch may say nothing."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    silence_s: float = SILENCE_S
    files_s: float = 15.0


class ApiClient:
    """See `Asks`. It keeps no connection; any number of requests may be under way at once."""

    def __init__(
        self, credential: Credential, clock: Clock, rng: random.Random, timeouts: Timeouts | None = None
    ) -> None:
        self._credential = credential
        self._clock = clock
        self._rng = rng
        self._timeouts = timeouts or Timeouts()
        self._files = Apart("kube", self._timeouts.files_s)

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        """One try. Raises UnreachableError."""
        try:
            async with asyncio.timeout(self._timeouts.answer_s), self._connected() as (connection, access):
                await connection.send(_bytes_of(request, access))
                answer = await _answer(connection, ResponseReader(), MAX_BODY_BYTES)
        except TimeoutError as error:
            raise UnreachableError(f"no answer within {self._timeouts.answer_s:g} s") from error
        except _FAILURES as error:
            raise UnreachableError(_in_words(error)) from error
        if answer.meaning is Meaning.DENIED:
            self._credential.forget()
        return answer

    async def ask_again(self, request: ApiRequest, tries: int = 4) -> ApiAnswer:
        for failures in range(1, tries):
            named_s = None
            try:
                answer = await self.ask(request)
            except UnreachableError:
                pass
            else:
                if answer.meaning not in (Meaning.AGAIN, Meaning.DENIED):
                    return answer
                named_s = answer.named_pause_s
            await self._clock.sleep(pause_s(failures, self._rng.random(), named_s))
        return await self.ask(request)

    async def lines(self, path: str) -> AsyncGenerator[bytes]:
        """The lines of the answer to a GET as they come, until the server ends it. The first is empty: it has begun.

        Raises UnreachableError, also when nothing comes for too long, and RejectedError.
        """
        try:
            async with aclosing(self._lines(path)) as lines:
                async for line in lines:
                    yield line
        except TimeoutError as error:
            raise UnreachableError("the watch says nothing") from error
        except _FAILURES as error:
            raise UnreachableError(_in_words(error)) from error

    async def _lines(self, path: str) -> AsyncGenerator[bytes]:
        async with self._connected() as (connection, access):
            reader, lines = ResponseReader(), LineReader()
            async with asyncio.timeout(self._timeouts.answer_s):
                await connection.send(_bytes_of(ApiRequest("GET", path), access))
                data = await _body_begun(connection, reader)
                if reader.head is not None and reader.head.status != 200:
                    raise RejectedError(await _answer(connection, reader, _MAX_ERROR_BYTES, data))
            yield b""
            while True:
                for line in lines.feed(data):
                    yield line
                if reader.done:
                    return
                async with asyncio.timeout(self._timeouts.silence_s):
                    received = await connection.receive()
                data = reader.feed(received)
                if not received:
                    reader.end()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[TlsConnection, Access]]:
        """Files and names are read in a thread, which may hang."""
        try:
            access, addresses = await self._files.run("read the credential and find the API server", self._prepared)
        except StuckError as error:
            raise OSError(str(error)) from error
        async with connected(access, addresses, self._timeouts.connect_s) as connection:
            yield connection, access

    def _prepared(self) -> tuple[Access, tuple[str, ...]]:
        access = self._credential.access()
        return access, resolve(access.config.host, access.config.port)


def _bytes_of(request: ApiRequest, access: Access) -> bytes:
    config = access.config
    host = f"[{config.host}]" if ":" in config.host else config.host
    lines = [
        f"{request.method} {config.path}{request.path} HTTP/1.1",
        f"Host: {host}:{config.port}",
        "User-Agent: criproxy",
        "Accept: application/json",
        "Connection: close",
    ]
    if access.token:
        lines.append(f"Authorization: Bearer {access.token}")
    if request.body:
        lines += [f"Content-Type: {request.content_type}", f"Content-Length: {len(request.body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + request.body


async def _body_begun(connection: TlsConnection, reader: ResponseReader) -> bytes:
    """What has come of the body when the head is there."""
    data = b""
    while reader.head is None:
        received = await connection.receive()
        data += reader.feed(received)
        if not received:
            reader.end()
    return data


async def _answer(connection: TlsConnection, reader: ResponseReader, most_bytes: int, begun: bytes = b"") -> ApiAnswer:
    parts, size = [begun], len(begun)
    while not reader.done:
        received = await connection.receive()
        parts.append(reader.feed(received))
        size += len(parts[-1])
        if size > most_bytes:
            raise LargeAnswerError(f"its body has more than {most_bytes} bytes")
        if not received:
            reader.end()
    head: Head | None = reader.head
    if head is None:  # a whole response has a head
        raise ResponseError("it has no head")
    return ApiAnswer(head.status, b"".join(parts), named_pause_s(head.headers.get("retry-after")))


def _in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _BY_THE_CLOCK:
        return f"{error.verify_message}, by this machine's clock: is the clock right (timedatectl)?"
    return str(error) or type(error).__name__
