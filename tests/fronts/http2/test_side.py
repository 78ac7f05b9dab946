"""One socket of the relay's, whose peer is a socket of the test's."""

import asyncio
import socket
from dataclasses import dataclass, field

from criproxy.fronts.http2.side import ReadBuffer, Side
from tests.fronts.rig import eventually


@dataclass
class Held:
    got: bytearray = field(default_factory=bytearray)
    lost: list[bytes] = field(default_factory=list)
    """What had come by then."""

    def side(self) -> Side:
        return Side(
            ReadBuffer(),
            on_made=lambda: None,
            on_bytes=self.got.extend,
            on_lost=lambda: self.lost.append(bytes(self.got)),
            on_behind=lambda _: None,
        )


async def connected(held: Held) -> tuple[Side, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    _, side = await asyncio.get_running_loop().create_unix_connection(held.side, sock=ours)
    return side, theirs


def test_last_words_of_a_peer_that_has_closed_are_heard_though_it_takes_no_more() -> None:
    """As of a runtime that closes once its last call has its answer, while the client still gives window back."""

    async def run() -> None:
        held = Held()
        side, theirs = await connected(held)
        theirs.sendall(b"answer")
        theirs.close()
        side.write(b"window update")  # fails
        await eventually(lambda: bool(held.lost))
        assert held.lost == [b"answer"]

    asyncio.run(run())


def test_last_words_are_heard_though_the_side_was_not_to_be_read() -> None:
    async def run() -> None:
        held = Held()
        side, theirs = await connected(held)
        side.block("behind")
        theirs.sendall(b"answer")
        theirs.close()
        await asyncio.sleep(0)
        side.write(b"window update")
        await eventually(lambda: bool(held.lost))
        assert held.lost == [b"answer"]

    asyncio.run(run())
