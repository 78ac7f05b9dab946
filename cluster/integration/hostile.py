"""Clients that never finish, as a process of its own: `python -m cluster.integration.hostile PORT CONNECTIONS`.

Each of them is at once there again when it is cut. One part says nothing at all, one nothing within TLS, one half a
head, one a byte a second, and one all of a long body but for its last byte. A third argument, a way of `BUSY`, has all
of them send small pieces without end: chunks and requests with no regard to answers, bodies and heads of many lines
each after the answer to the last one.
"""

import asyncio
import ssl
import sys
from itertools import cycle

HEAD = b"POST /convert HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
BODY_BYTES = (3 << 20) - 1
WAYS = ("bare", "silent", "half", "drip", "bare", "silent", "half", "body")
BUSY = {
    "chunks": (b"POST /convert HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 4000),
    "requests": (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 500),
    "bodies": (b"", HEAD % 2 + b"{}"),
    "heads": (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 3500 + b"\r\n"),
}
"""How a connection begins, and what it sends again and again."""


CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


async def one(port: int, way: str) -> None:
    while True:
        writer = None
        try:
            made = await asyncio.open_connection("127.0.0.1", port, ssl=None if way == "bare" else CONTEXT)
            reader, writer = made
            if way == "half":
                writer.write(HEAD[:30])
            elif way == "drip":
                asyncio.create_task(drip(writer))  # noqa: RUF006
            elif way in BUSY:
                await flood(reader, writer, *BUSY[way])
            elif way == "body":
                writer.write(HEAD % (BODY_BYTES + 1))
                for _ in range(BODY_BYTES >> 16):
                    writer.write(b"x" * (1 << 16))
                    await writer.drain()
            while await reader.read(1 << 16):
                pass
        except OSError:
            await asyncio.sleep(0.2)
        finally:
            if writer is not None:
                writer.close()


async def drip(writer: asyncio.StreamWriter) -> None:
    for byte in HEAD * 10:
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(1.0)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: bytes, piece: bytes) -> None:
    """Until it is cut. Chunks are sent whatever is answered."""
    writer.write(begin)
    while not reader.at_eof():
        writer.write(piece)
        await writer.drain()
        if not begin:
            await reader.read(1 << 16)


async def main(port: int, connections: int, *chosen: str) -> None:
    ways = cycle(chosen or WAYS)
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(one(port, next(ways)))
            if number % 20 == 0:
                await asyncio.sleep(0)
        print("all are there", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
