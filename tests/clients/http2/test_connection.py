"""A connection of our own: who waits for what when it goes, and that nothing is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from criproxy.clients.http2.connection import CallError, Connection
from criproxy.fronts.http2 import frames
from criproxy.fronts.http2.codes import Code
from tests.fronts.relay.talk import SETTINGS

VERSION = "/runtime.v1.RuntimeService/Version"


@asynccontextmanager
async def served(directory: Path, *says: bytes, hang_up: bool = False) -> AsyncIterator[Path]:
    """A server that says this once it was asked something, whatever that was."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"".join(says))
        if not hang_up:
            await reader.read()
        writer.close()

    path = directory / "s.sock"
    server = await asyncio.start_unix_server(serve, path)
    yield path
    server.close()


async def failure(call: asyncio.Task[bytes]) -> CallError:
    with pytest.raises(CallError) as caught:
        await asyncio.wait_for(call, 20)
    return caught.value


def begin(connection: Connection, timeout_s: float = 60) -> asyncio.Task[bytes]:
    return asyncio.create_task(connection.call(VERSION, b"", timeout_s))


@pytest.mark.parametrize(
    ("says", "hang_up", "text"),
    [
        pytest.param((SETTINGS,), True, "the connection was lost", id="hangs-up"),
        pytest.param((SETTINGS, frames.goaway(0)), False, "takes no more calls", id="goaway"),
        pytest.param((b"HTTP/1.1 400 Bad Request\r\n\r\n",), False, "the runtime sent", id="no-http2"),
    ],
)
def test_connection_that_ends_fails_its_calls_and_all_after(
    says: tuple[bytes, ...], hang_up: bool, text: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with served(tmp_path, *says, hang_up=hang_up) as path:
            connection = await Connection.dial(path)
            error = await failure(begin(connection))
            assert (error.code, text in error.message) == (Code.UNAVAILABLE, True)
            await asyncio.wait_for(connection.lost.wait(), 20)
            assert (await failure(begin(connection))).code == Code.UNAVAILABLE
            await asyncio.wait_for(connection.close(), 20)

    asyncio.run(run())


def test_connection_that_will_end_takes_no_more_calls(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, SETTINGS, frames.goaway(1)) as path:
            connection = await Connection.dial(path)
            call = begin(connection)
            await asyncio.wait_for(connection.lost.wait(), 20)
            assert not call.done()
            assert (await failure(begin(connection))).code == Code.UNAVAILABLE
            call.cancel()
            await asyncio.wait([call])
            await asyncio.wait_for(connection.close(), 20)

    asyncio.run(run())


def test_close_fails_the_calls_under_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path, SETTINGS) as path:
            connection = await Connection.dial(path)
            call = begin(connection)
            await asyncio.sleep(0.01)
            await asyncio.wait_for(connection.close(), 20)
            assert (await failure(call)).code == Code.UNAVAILABLE

    asyncio.run(run())


@pytest.mark.parametrize("cancelled", [False, True], ids=["timeout", "cancelled"])
def test_call_that_ends_here_is_reset(cancelled: bool, tmp_path: Path) -> None:
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        while data := await reader.read(65536):
            seen.extend(data)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_unix_server(serve, tmp_path / "s.sock")
        connection = await Connection.dial(tmp_path / "s.sock")
        call = begin(connection, 60 if cancelled else 0.05)
        await asyncio.sleep(0.01)
        if cancelled:
            call.cancel()
            await asyncio.wait([call])
        else:
            error = await failure(call)
            assert (error.code, str(error)) == (4, "Version: DEADLINE_EXCEEDED: no answer within 0.05 s")
        await connection.close()
        while not seen.endswith(frames.rst_stream(1, frames.CANCEL)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_nobody_listens_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(Connection.dial(tmp_path / "absent.sock"))
