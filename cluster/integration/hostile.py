"""Clients that never finish, as a process of its own: `python -m cluster.integration.hostile PORT CONNECTIONS`.

Each of them is at once there again when it is cut. One part says nothing at all, one nothing within TLS, one half a
head, one a byte a second, and one all of a long body but for its last byte.
"""

import asyncio
import ssl
import sys
from itertools import cycle

HEAD = b"POST /convert HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
BODY_BYTES = (3 << 20) - 1
WAYS = ("bare", "silent", "half", "drip", "bare", "silent", "half", "body")


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


async def main(port: int, connections: int) -> None:
    ways = cycle(WAYS)
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(one(port, next(ways)))
            if number % 20 == 0:
                await asyncio.sleep(0)
        print("all are there", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
