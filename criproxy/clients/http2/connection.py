"""A connection to a gRPC server's unix socket, for calls of our own."""

import asyncio
from pathlib import Path
from typing import Final, Self

from criproxy.clients.http2.core import CallOutcome, Client
from criproxy.fronts.http2.codes import Code
from criproxy.fronts.http2.frames import BrokenError
from criproxy.fronts.http2.side import ReadBuffer, Side

_LOST: Final = "the connection was lost"


_STRANGERS_FRAMES: Final = 100


class CallError(ConnectionError):
    """The runtime, or the way to it, answered a call of ours with an error. `code` is a gRPC status code number."""

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"{method}: {Code.name_of(code)}: {message}")
        self.code = code
        self.message = message


class Connection:
    """One connection's life, from `dial` until it is `lost`: a connection never comes back."""

    def __init__(self, most_bytes: int | None = None, most_frames: int | None = None) -> None:
        self._client = Client(most_bytes, most_frames)
        self._waiting: dict[int, asyncio.Future[CallOutcome]] = {}
        self._why = _LOST
        self._closed = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when no more calls can begin; those under way may still end, when the runtime has said so in time."""
        self._side = Side(
            ReadBuffer(),
            on_made=self._flush,
            on_bytes=self._received,
            on_lost=self._gone,
            on_behind=lambda _: None,  # what waits to be sent is bounded by the windows
        )

    @classmethod
    async def dial(cls, path: Path) -> "Connection":
        """Raises OSError."""
        connection = cls()
        await asyncio.get_running_loop().create_unix_connection(lambda: connection._side, str(path))
        return connection

    @classmethod
    async def dial_tcp(cls, host: str, port: int, most_bytes: int) -> "Connection":
        """To a server that is not trusted: it sends `_STRANGERS_FRAMES` frames at most, in as many pieces, and no
        answer of more than `most_bytes`. Raises OSError.
        """
        connection = cls(most_bytes, _STRANGERS_FRAMES)
        await asyncio.get_running_loop().create_connection(lambda: connection._side, host, port)
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, path: str, request: bytes, timeout_s: float, *, streamed: bool = False) -> bytes:
        """The answer of the method at `path` (`/runtime.v1.RuntimeService/Version`); all messages of one that is
        `streamed`, one behind the other. Raises CallError.
        """
        method = path.rpartition("/")[2]
        if self.lost.is_set():
            raise CallError(method, Code.UNAVAILABLE, self._why)
        number = self._client.call(path, request, timeout_s, streamed=streamed)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._flush()
        try:
            async with asyncio.timeout(timeout_s):
                outcome: CallOutcome = await future
        except TimeoutError:
            raise CallError(method, Code.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]
            if not future.done() or future.cancelled():
                self._client.give_up(number)
                self._flush()
        if outcome.code != Code.OK:
            raise CallError(method, outcome.code, outcome.text)
        return outcome.message

    @property
    def peer_pid(self) -> int:
        """The process that listens at the socket; 0: it is not known."""
        return self._side.peer[0]

    async def close(self) -> None:
        """Calls under way end with UNAVAILABLE."""
        self._end()
        await self._closed.wait()

    def _received(self, view: memoryview) -> None:
        try:
            outcomes = self._client.feed(view)
        except BrokenError as error:
            self._why = f"the runtime sent {error}"
            self._end()
            return
        self._flush()
        for outcome in outcomes:
            self._tell(outcome)
        if not self._client.usable:
            self.lost.set()
            if self._client.idle:
                self._end()

    def _flush(self) -> None:
        if data := self._client.take():
            self._side.write(data)

    def _tell(self, outcome: CallOutcome) -> None:
        future = self._waiting.get(outcome.call)
        if future is not None and not future.done():
            future.set_result(outcome)

    def _end(self) -> None:
        self.lost.set()
        for number in tuple(self._waiting):
            self._tell(CallOutcome(number, Code.UNAVAILABLE, self._why))
        self._side.close()

    def _gone(self) -> None:
        self._end()
        self._closed.set()
