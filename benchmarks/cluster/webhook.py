"""An open-loop client of the webhook: a pod is asked about when it is due, whatever has become of those before.

`python -m benchmarks.cluster.webhook PORT CA NAME` reads lines `RATE SECONDS`, and answers each with `Answers` as JSON.
Arrivals are Poisson's. Connections are kept, as the API server keeps them, and a latency counts from when its pod was
due: a replica (or this client) that is held up can't hide it.
"""

import asyncio
import json
import os
import random
import ssl
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

NICE: Final = -10
"""Of this client and of the replica: API server, etcd and nodes, which run beside them here, are other machines."""

CONNECTIONS: Final = 20
CONTAINERS: Final = 3
VARIABLES: Final = 30


class Answers(Struct):
    """`latencies_s` in their order; `sent_late_s` is how late each question was sent, which is this client's part."""

    latencies_s: list[float]
    sent_late_s: list[float]
    bytes: int


def question() -> bytes:
    """An AdmissionReview with a pod of some 8 kB, as a Job's may be."""
    containers = [
        {
            "name": f"c{n}",
            "image": f"registry/image{n}",
            "env": [{"name": f"VARIABLE_{e}", "value": "x" * 40} for e in range(VARIABLES)],
            "resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        }
        for n in range(CONTAINERS)
    ]
    owner = {"kind": "Job", "name": "j", "uid": "3f0c", "controller": True}
    meta = {"name": "p", "labels": {"colocation.criproxy.io/class": "offline"}, "ownerReferences": [owner]}
    request = {"uid": "u", "operation": "CREATE", "object": {"metadata": meta, "spec": {"containers": containers}}}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Client:
    def __init__(self, port: int, context: ssl.SSLContext, name: str) -> None:
        self._where = port, context, name
        body = question()
        lines = (
            "POST /convert HTTP/1.1",
            f"Host: {name}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        self._bytes = "\r\n".join((*lines, "", "")).encode() + body
        self._idle: asyncio.Queue[Connection] = asyncio.Queue()  # by turns, so that none is idle until it is closed
        self._latencies_s: list[float] = []
        self._sent_late_s: list[float] = []

    async def _connect(self) -> None:
        """Anew, as the webhook has closed what was idle for two minutes."""
        port, context, name = self._where
        while not self._idle.empty():
            self._idle.get_nowait()[1].close()
        for _ in range(CONNECTIONS):
            self._idle.put_nowait(await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))

    async def load(self, rate: float, seconds: float) -> Answers:
        """Raises OSError or AssertionError when it is not answered as it should."""
        await self._connect()
        self._latencies_s, self._sent_late_s = [], []
        due_s = time.monotonic() + 0.1
        ends_s = due_s + seconds
        async with asyncio.TaskGroup() as group:
            while due_s < ends_s:
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
                group.create_task(self._ask(due_s))
                due_s += random.expovariate(rate)
        return Answers(self._latencies_s, self._sent_late_s, len(self._bytes))

    async def _ask(self, due_s: float) -> None:
        self._sent_late_s.append(time.monotonic() - due_s)
        reader, writer = await self._idle.get()
        writer.write(self._bytes)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        said = await reader.readexactly(int(length.split(b":")[1]))
        self._idle.put_nowait((reader, writer))
        assert head.startswith(b"HTTP/1.1 200") and b"JSONPatch" in said, head + said
        self._latencies_s.append(time.monotonic() - due_s)


async def serve(client: Client) -> None:
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        rate, seconds = map(float, line.split())
        print(msgspec.json.encode(await client.load(rate, seconds)).decode(), flush=True)


def main() -> None:
    os.nice(NICE)
    port, ca, name = sys.argv[1:]
    context = ssl.create_default_context(cadata=Path(ca).read_text())
    asyncio.run(serve(Client(int(port), context, name)))


if __name__ == "__main__":
    main()
