"""One TLS connection to the API server, for one request, on the event loop.

TLS is done here in memory (`ssl.MemoryBIO`) over asyncio's plain streams, not by asyncio: the daemon imports asyncio
without `ssl`, so that a node without Kubernetes does not pay for it (`criproxy.daemon.footprint`).
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from criproxy.cgroup.address_filter import is_barred, remedy
from criproxy.kube.credential import Access

_READ_BYTES: Final = 64 * 1024

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that is gone without a word is noticed within a minute, also while nothing is sent. Source: tcp(7)."""

RESOLVER: Final = Path("/etc/resolv.conf")
_DNS: Final = 53


class TlsConnection:
    """Sends and receives plain bytes. Every method raises OSError (of which ssl.SSLError is one)."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, server_name: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=_plain(server_name))

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert tells the server why
                    await self._flush()
                raise
            else:
                await self._flush()
                return

    async def send(self, data: bytes) -> None:
        self._tls.write(data)  # memory takes all of it
        await self._flush()

    async def receive(self) -> bytes:
        """Some bytes; b"" when the server has ended the connection in order."""
        while True:
            try:
                return self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLZeroReturnError:
                return b""

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()

    async def _fill(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._incoming.write(data)


@asynccontextmanager
async def connected(access: Access, addresses: tuple[str, ...], timeout_s: float) -> AsyncIterator[TlsConnection]:
    """A connection to the first of the IP addresses that answers. Raises OSError, also when it takes too long."""
    port = access.config.port
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _opened(addresses, port, timeout_s)
    except OSError as error:
        if barred := [address for address in addresses if is_barred(address, port)]:
            raise OSError(f"{' and '.join(barred)} port {port}: {remedy(barred)}") from error
        raise
    try:
        for option in _KEEPALIVE:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(*option)
        connection = TlsConnection(reader, writer, access.context, access.config.server_name)
        async with asyncio.timeout(timeout_s):
            await connection.shake_hands()
        yield connection
    finally:
        writer.transport.abort()  # the response is here, or nobody wants it: nothing is left to be said


async def _opened(
    addresses: tuple[str, ...], port: int, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Each address has its part of the time: one that swallows packets leaves some to the others."""
    failure: OSError = OSError("the server's name has no address")
    for address in addresses:
        try:
            async with asyncio.timeout(timeout_s / len(addresses)):
                return await asyncio.open_connection(address, port, limit=2 * _READ_BYTES)
        except OSError as error:
            failure = error
    raise failure


def resolve(host: str, port: int) -> tuple[str, ...]:
    """The host's IP addresses. Blocks as long as the resolver does: not for the event loop. Raises OSError."""
    try:
        found = socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if barred := [server for server in name_servers() if is_barred(server, _DNS)]:
            raise OSError(f"{host} is not resolved, as of its name server {remedy(barred)}") from error
        raise
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def name_servers() -> list[str]:
    """() when the file can't be read. Source: resolv.conf(5)."""
    try:
        lines = RESOLVER.read_text(errors="replace").splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [line[1].partition("%")[0] for line in words if line[:1] == ["nameserver"] and len(line) > 1]


def _plain(host: str) -> str | bytes:
    """As bytes, for text Python imports the tables of international names, of 0.3 MiB."""
    return host.encode("ascii") if host.isascii() else host
