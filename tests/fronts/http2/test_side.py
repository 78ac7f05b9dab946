"""One socket of the relay's, whose peer is a socket of the test's."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from criproxy.fronts.event_loop import EventLoop
from criproxy.fronts.http2.side import ReadBuffer, Side
from tests.fakes.waiting import until


def settled_loop() -> EventLoop:
    loop = EventLoop()
    loop.use_timerfd()
    return loop


@dataclass
class Held:
    got: bytearray = field(default_factory=bytearray)
    lost: list[bytes] = field(default_factory=list)
    """What had come by then."""

    def __post_init__(self) -> None:
        self.on_bytes: Callable[[memoryview], object] = self.got.extend

    def _received(self, view: memoryview) -> None:
        self.on_bytes(view)

    def side(self) -> Side:
        return Side(
            ReadBuffer(),
            on_made=lambda: None,
            on_bytes=self._received,
            on_lost=lambda: self.lost.append(bytes(self.got)),
            on_behind=lambda _: None,
        )


async def connected(held: Held) -> tuple[Side, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    _, side = await asyncio.get_running_loop().create_unix_connection(held.side, sock=ours)
    return side, theirs


@pytest.fixture(params=[asyncio.SelectorEventLoop, settled_loop])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """On asyncio's loop, and on the daemon's."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def test_last_words_of_a_peer_that_has_closed_are_heard_though_it_takes_no_more(runner: asyncio.Runner) -> None:
    """As of a runtime that closes once its last call has its answer, while the client still gives window back."""

    async def run() -> None:
        held = Held()
        side, theirs = await connected(held)
        theirs.sendall(b"answer")
        theirs.close()
        side.write(b"window update")  # fails
        await until(lambda: bool(held.lost))
        assert held.lost == [b"answer"]

    runner.run(run())


def test_last_words_are_heard_though_the_side_was_not_to_be_read(runner: asyncio.Runner) -> None:
    async def run() -> None:
        held = Held()
        side, theirs = await connected(held)
        side.block("behind")
        theirs.sendall(b"answer")
        theirs.close()
        await asyncio.sleep(0)
        side.write(b"window update")
        await until(lambda: bool(held.lost))
        assert held.lost == [b"answer"]

    runner.run(run())


def test_what_the_peer_does_not_take_at_once_comes_in_order(runner: asyncio.Runner) -> None:
    async def run() -> None:
        side, theirs = await connected(Held())
        theirs.setblocking(False)
        sent = [bytes([number % 251]) * 100_000 for number in range(30)]
        for piece in sent:
            side.write(memoryview(piece))
        got = bytearray()
        while len(got) < 3_000_000:
            got += await asyncio.get_running_loop().sock_recv(theirs, 65536)
        side.write(b"last")
        side.close()
        got += await asyncio.get_running_loop().sock_recv(theirs, 65536)
        assert got == b"".join(sent) + b"last"
        theirs.close()

    runner.run(run())


def test_side_is_not_read_while_something_is_in_its_way(runner: asyncio.Runner) -> None:
    async def run() -> None:
        held = Held()
        side, theirs = await connected(held)
        await asyncio.sleep(0)
        side.block("behind")
        theirs.sendall(b"early")
        await asyncio.sleep(0.05)
        assert not held.got
        side.block("behind", False)
        await until(lambda: held.got == b"early")
        theirs.close()
        await until(lambda: bool(held.lost))

    runner.run(run())


def test_failure_with_what_came_is_told_and_ends_the_connection(runner: asyncio.Runner) -> None:
    async def run() -> None:
        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        held = Held()
        side, theirs = await connected(held)
        held.on_bytes = lambda _: 1 / 0
        theirs.sendall(b"x")
        await until(lambda: bool(held.lost))
        assert isinstance(told[0]["exception"], ZeroDivisionError)
        assert side.transport is None
        theirs.close()

    runner.run(run())
