"""The link to the container runtime: one connection, and a watcher that knows whether the runtime can be relied upon.

Connected is not ready: the runtime is ready when it has answered Version and the inventory has been read from it anew.
One that is frozen keeps its connections: so the link sends it a call each `BEAT_S`, and it is not ready once it has not
answered.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct, field

from criproxy.clients.http2.connection import CallError, Connection
from criproxy.fronts.cri import messages as cri
from criproxy.fronts.cri.methods import APIS
from criproxy.fronts.http2.codes import Code

BEAT_S: Final = 5.0
VERSION_TIMEOUT_S: Final = 4.0
_AFTER_START_S: Final = 0.05
"""Calls that have waited for this process come first: the link's own first one brings in protobuf, which takes 15 ms of
the event loop.
"""

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 3.0


class RuntimeInfo(Struct, frozen=True):
    """What the runtime says of itself, and the API (`runtime.v1`) under which it said so. Source: CRI Version."""

    name: str
    version: str
    api: str


async def ask_version(call: Callable[[str, bytes, float], Awaitable[bytes]], timeout_s: float) -> RuntimeInfo:
    """Ask for the runtime's version, in the API that it serves. `call` is as `Connection.call`. Raises CallError."""
    request = cri.VersionRequest().SerializeToString()
    for api in APIS:
        try:
            answer = cri.VersionResponse.FromString(await call(f"/{api}.RuntimeService/Version", request, timeout_s))
        except CallError as error:
            if error.code != Code.UNIMPLEMENTED:
                raise
        else:
            name, version = (text.decode(errors="replace") for text in (answer.runtime_name, answer.runtime_version))
            return RuntimeInfo(name, version, api)
    raise CallError("Version", Code.UNIMPLEMENTED, f"it serves none of {', '.join(APIS)}: is its CRI on?")


async def version_at(socket: Path, timeout_s: float) -> RuntimeInfo:
    """What the runtime behind a socket says of itself. Raises OSError, of which CallError is one."""
    async with await Connection.dial(socket) as connection:
        return await ask_version(connection.call, timeout_s)


class RuntimeLink(Struct, eq=False):
    """The runtime behind the unix socket at `path`.

    `info` is what it said last, None before it first answered. It is `ready` when connected, it has answered Version,
    and what follows a connection has succeeded since; `problem` says why it is not, "" before the first attempt.
    """

    path: Path
    log: structlog.typing.FilteringBoundLogger
    info: RuntimeInfo | None = None
    ready: bool = False
    problem: str = ""
    _dialling: asyncio.Lock = field(default_factory=asyncio.Lock)
    _connection: Connection | None = None

    @property
    def pid(self) -> int:
        """The runtime's process; 0: not known, as when an init system listens for it."""
        pid = self._connection.peer_pid if self._connection is not None else 0
        return pid if pid > 1 else 0

    async def call(self, method: str, request: bytes, timeout_s: float, *, streamed: bool = False) -> bytes:
        """Call a method of RuntimeService (`ListPodSandbox`), under the API in use; `streamed`: see `Connection.call`.

        Raises CallError, with UNAVAILABLE at once while the runtime is away.
        """
        api = self.info.api if self.info else APIS[0]
        return await self._call(f"/{api}.RuntimeService/{method}", request, timeout_s, streamed=streamed)

    async def run(self, on_connected: Callable[[RuntimeInfo], Awaitable[None]]) -> None:
        """Watch the runtime until cancelled.

        `on_connected` is awaited each time the runtime has come (back) and has answered Version; it may use `call`.
        While it fails, the runtime is not ready, and all is tried again. It must bound its own waits.
        """
        retry_s = _FIRST_RETRY_S
        try:
            await asyncio.sleep(_AFTER_START_S)
            while True:
                connection = await self._greet(on_connected)
                if connection is not None:
                    retry_s = _FIRST_RETRY_S
                    await self._listen(connection)
                else:
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, _LAST_RETRY_S)
        finally:
            self.ready = False

    async def _listen(self, connection: Connection) -> None:
        """Until the runtime is lost, or has come back from being frozen.

        A loss is one even if a call has reconnected meanwhile: that is another life of the runtime.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await connection.lost.wait()
            if connection.lost.is_set():
                self.ready = False
                self._complain("connection lost")
                return
            try:
                await ask_version(self._call, VERSION_TIMEOUT_S)
            except CallError as error:
                self.ready = False
                self._complain(str(error))
            else:
                if not self.ready:
                    return

    async def close(self) -> None:
        """Close the connection; the calls on it end with UNAVAILABLE. Stop the server first."""
        if self._connection is not None:
            await self._connection.close()

    async def _call(self, path: str, request: bytes, timeout_s: float, *, streamed: bool = False) -> bytes:
        try:
            connection = await self._dial()
        except OSError as error:
            reason = f"cannot connect to {self.path}: {error.strerror or error}"
            raise CallError(path.rpartition("/")[2], Code.UNAVAILABLE, reason) from error
        return await connection.call(path, request, timeout_s, streamed=streamed)

    async def _dial(self) -> Connection:
        """The connection in use, or a new one. Raises OSError."""
        async with self._dialling:
            if self._connection is None or self._connection.lost.is_set():
                self._connection = await Connection.dial(self.path)
            return self._connection

    async def _greet(self, on_connected: Callable[[RuntimeInfo], Awaitable[None]]) -> Connection | None:
        """The connection that the runtime was found ready on; None: it is not ready."""
        try:
            connection = await self._dial()
        except OSError:
            self._complain("cannot connect")
            return None
        try:
            self.info = await ask_version(self._call, VERSION_TIMEOUT_S)
            await on_connected(self.info)
        except Exception as error:  # whatever is wrong with the runtime or its inventory: not ready yet
            self._complain(str(error) or type(error).__name__)
            return None
        self.ready = True
        self.problem = ""
        self.log.info("runtime_ready", runtime=self.info.name, version=self.info.version, api=self.info.api)
        return connection

    def _complain(self, reason: str) -> None:
        if reason != self.problem:
            self.problem = reason
            self.log.warning("runtime_not_ready", socket=str(self.path), reason=reason)
