"""The way in for a Prometheus that is not on this machine: TLS, and a bearer token or a client's certificate.

How it works
------------
Off unless `observe.remote_address` is set. Nobody can connect before all files are good, so nothing is ever answered
without authentication. They are read again each 10 s; what has become bad is a problem of the status, and the last good
ones serve on. Each connection costs a handshake, a millisecond of the event loop's time (5 with RSA of 4096 bits): one
is taken each 0.1 s. Asked for are metrics and whether criproxy is well: what has pods' names is for root's socket
alone.

Source: RFC 6750 (bearer tokens), RFC 8446 (TLS 1.3).
"""

import asyncio
import re
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency.worker import StuckError, Worker
from criproxy.model.shown import Shows
from criproxy.observe.http import Answer
from criproxy.observe.listener import Listener, Serve, TcpAddress

LOOK_S: Final = 10.0
PACE_S: Final = 0.1
MAX_BYTES: Final = 1 << 20
MIN_TOKEN: Final = 16
"""Characters; shorter ones can be guessed."""

_READ_S: Final = 5.0
_RECORD: Final = 16 * 1024
_BEARER: Final = re.compile(rb"^authorization:[ \t]*bearer[ \t]+(\S+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)

T = TypeVar("T")


class RemoteFiles(Struct, frozen=True):
    """PEM files, and one with a token on each line. At least one of `client_ca` and `tokens` is named."""

    certificate: Path
    key: Path
    client_ca: Path | None
    tokens: Path | None


class _BadFileError(Exception):
    """What is wrong with a file, and the remedy."""


class Credentials(Shows):
    """What clients are shown, and what they must show."""

    def __init__(self, files: RemoteFiles, log: FilteringBoundLogger) -> None:
        self._files = files
        self._log = log
        self._read: tuple[bytes, ...] = ()
        self._tokens: tuple[bytes, ...] = ()
        self._problem = ""
        self.context: ssl.SSLContext | None = None
        """None: nothing good was read yet."""
        self.look()

    def problems(self) -> Iterator[str]:
        if self._problem:
            then = "the last good files hold" if self.context else "nobody can connect there"
            yield f"observe.remote_address: {self._problem}; {then}"

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        worker = Worker("observe-remote", _READ_S)
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    await worker.run("read what observe.remote_address needs", self.look)
                except StuckError as error:
                    self._failed(str(error))
        finally:
            worker.close()

    def look(self) -> None:
        """Take up what has changed. Never raises."""
        files = self._files
        try:
            read = tuple(
                b"" if file is None else _content(file)
                for file in (files.certificate, files.key, files.client_ca, files.tokens)
            )
            if read != self._read:
                tokens = () if files.tokens is None else _tokens(files.tokens, read[3])
                self.context, self._tokens = _context(files), tokens
                self._read = read
                self._log.info("remote_credentials_loaded", tokens=len(tokens), client_ca=str(files.client_ca or ""))
        except _BadFileError as error:
            self._failed(str(error))
        else:
            self._problem = ""

    def refusal(self, head: bytes, certificate: object) -> Answer | None:
        """Why a client with this request's head, and this certificate (None: it has none), gets no answer."""
        if certificate:
            return None
        found = _BEARER.search(head)
        # each is looked at: how long it takes says nothing
        if found is not None and sum([compare_digest(found[1], token) for token in self._tokens]):
            return None
        words = "a bearer token or a client certificate is needed; see docs/monitoring.md"
        return Answer.text(HTTPStatus.UNAUTHORIZED, words, ("WWW-Authenticate: Bearer",))

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            consequence = "the last good files hold" if self.context else "nobody can connect at observe.remote_address"
            self._log.error("remote_credentials_not_loaded", error=problem, consequence=consequence)
        self._problem = problem


class RemoteListener(Listener):
    """Opens as soon as there are credentials."""

    def __init__(self, address: TcpAddress, credentials: Credentials, log: FilteringBoundLogger) -> None:
        super().__init__(address, log, PACE_S)
        self.credentials: Final = credentials

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self.credentials.problems()

    def open(self, serve: Serve) -> None:
        if self.credentials.context is not None:
            super().open(serve)
            return
        self.close()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S / 2, self.open, serve)

    async def greet(self, client: socket.socket) -> "TlsChannel":
        """A channel to it, once it has what it takes. Raises OSError, as TLS's errors are."""
        assert self.credentials.context is not None
        channel = TlsChannel(client, self.credentials.context, self.credentials)
        await channel.handshake()
        return channel


class TlsChannel:
    """See `criproxy.observe.http.ClientEnd`. Source: Python's ssl, SSLObject on memory buffers."""

    def __init__(self, client: socket.socket, context: ssl.SSLContext, credentials: Credentials) -> None:
        self._client = client
        self._credentials = credentials
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    async def handshake(self) -> None:
        await self._do(self._tls.do_handshake)

    async def receive(self, most: int) -> bytes:
        try:
            return await self._do(lambda: self._tls.read(most))
        except ssl.SSLZeroReturnError:
            return b""

    async def send(self, data: bytes) -> None:
        for begin in range(0, len(data), _RECORD):
            record = data[begin : begin + _RECORD]
            await self._do(lambda record=record: self._tls.write(record))  # type: ignore[misc]

    async def end(self) -> None:
        """Say that no more comes."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:  # its answer is not waited for
            await self._flush()
        self._client.shutdown(socket.SHUT_WR)

    def refusal(self, head: bytes) -> Answer | None:
        return self._credentials.refusal(head, self._tls.getpeercert())

    async def _do(self, step: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                if not (more := await loop.sock_recv(self._client, _RECORD)):
                    raise ConnectionError("the client has gone") from None
                self._in.write(more)
            except ssl.SSLError:
                await self._flush()  # the client reads why
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if data := self._out.read():
            await asyncio.get_running_loop().sock_sendall(self._client, data)


def _content(file: Path) -> bytes:
    """Raises _BadFileError."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise _BadFileError(f"{file} is no regular file: make it one")
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _BadFileError(f"{file}: {reason}: put it there, for criproxy to read") from error
    if len(content) > MAX_BYTES:
        raise _BadFileError(f"{file} has more than {MAX_BYTES} bytes: shorten it")
    return content


def _tokens(file: Path, content: bytes) -> tuple[bytes, ...]:
    """Raises _BadFileError."""
    tokens = tuple(filter(None, map(bytes.strip, content.splitlines())))
    if not tokens or min(map(len, tokens)) < MIN_TOKEN or any(len(token.split()) > 1 for token in tokens):
        what = f"has no token, or one with spaces or fewer than {MIN_TOKEN} characters"
        raise _BadFileError(f"{file} {what}: write one on each line, such as `openssl rand -hex 32` makes")
    return tokens


def _context(files: RemoteFiles) -> ssl.SSLContext:
    """Raises _BadFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    no_password: Any = bytes  # else OpenSSL asks at the terminal
    try:
        context.load_cert_chain(files.certificate, files.key, no_password)
    except (OSError, ValueError) as error:
        remedy = "write a certificate and its unencrypted key, both as PEM"
        raise _BadFileError(f"{files.certificate} and {files.key} can't be used ({error}): {remedy}") from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if files.tokens is None else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise _BadFileError(f"{files.client_ca} has no certificates ({error}): write some, as PEM") from error
    return context
