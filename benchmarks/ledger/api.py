"""An API server that is played for a ledger: nodes, pods that run and pods that wait, their watches, and a Lease."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

CPU: Final = "kubernetes.io/batch-cpu"
MEMORY: Final = "kubernetes.io/batch-memory"
SLOT: Final = 1000
BIG: Final = 4096
"""Bytes of a pod that is listed or watched, about: as a Job's are."""

LIMIT: Final = 64 << 10


class PlayedApi:
    """`nodes` with `slots` each; `running` pods on them, one after another, and `waiting` ones."""

    def __init__(self, nodes: int, slots: int, running: int, waiting: int) -> None:
        self._nodes = nodes
        self._slots = slots
        self._running = running
        self._waiting = waiting
        self._lease: dict[str, Any] = {"metadata": {"name": "criproxy-ledger", "resourceVersion": "1"}, "spec": {}}
        self._watchers: list[asyncio.StreamWriter] = []
        self._version = 1
        self._padding = "x" * (BIG - 900)

    async def serve(self) -> int:
        """The port."""
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, limit=LIMIT)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def show(self, number: int, node: str) -> None:
        """The watch shows that waiting pod as bound."""
        self._version += 1
        event = {"type": "MODIFIED", "object": self._pod(f"w{number}", node)}
        line = json.dumps(event).encode() + b"\n"
        for one in self._watchers:
            one.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _pod(self, name: str, node: str) -> dict[str, Any]:
        meta = {
            "name": name,
            "namespace": "default",
            "uid": uid_of(name),
            "resourceVersion": str(self._version),
            "labels": {"colocation.criproxy.io/class": "offline"},
            "annotations": {"a": self._padding},
        }
        resources = {"requests": {CPU: str(SLOT), MEMORY: str(1 << 30)}, "limits": {CPU: str(SLOT), MEMORY: "1Gi"}}
        spec = {"containers": [{"name": "c", "image": "busybox", "resources": resources}]}
        return {"metadata": meta, "spec": {**spec, **({"nodeName": node} if node else {})}, "status": {}}

    def _pod_at(self, number: int) -> dict[str, Any]:
        if number < self._running:
            return self._pod(f"r{number}", f"node-{number % self._nodes}")
        return self._pod(f"w{number - self._running}", "")

    def _node_at(self, number: int) -> dict[str, Any]:
        lent = {CPU: str(self._slots * SLOT), MEMORY: f"{self._slots}Gi"}
        status = {"allocatable": {"cpu": "64", **lent}, "capacity": lent}
        return {"metadata": {"name": f"node-{number}", "annotations": {"a": self._padding}}, "status": status}

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split(" ", 2)
                headers = dict(one.lower().split(": ", 1) for one in head.split("\r\n")[1:] if ": " in one)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                parts = urlsplit(target)
                query = {name: one[0] for name, one in parse_qs(parts.query).items()}
                if "watch" in query:
                    self._watch(parts.path, query, writer)
                    await reader.read()
                    return
                data = json.dumps(self._answer(method, parts.path, query, body)).encode()
                kind = b"Content-Type: application/json\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (kind, len(data), data))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    def _watch(self, path: str, query: Mapping[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if path.endswith("/pods") and "fieldSelector" not in query:
            self._watchers.append(writer)

    def _answer(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> dict[str, Any]:
        if path.endswith("/leases/criproxy-ledger"):
            if method == "PUT":
                self._version += 1
                self._lease = json.loads(body)
                self._lease["metadata"]["resourceVersion"] = str(self._version)
            return self._lease
        if path.endswith("/nodes"):
            return self._list(self._node_at, self._nodes, query)
        if path.endswith("/pods"):
            count = 0 if "fieldSelector" in query else self._running + self._waiting
            return self._list(self._pod_at, count, query)
        return self._pod(path.rpartition("/")[2], "node-0")

    def _list(self, one: Callable[[int], dict[str, Any]], count: int, query: Mapping[str, str]) -> dict[str, Any]:
        """A page. What asks for the next one is where that begins."""
        begin = int(query.get("continue", 0))
        end = min(begin + int(query["limit"]), count)
        more = {"continue": str(end)} if end < count else {}
        items = [one(number) for number in range(begin, end)]
        return {"metadata": {"resourceVersion": str(self._version), **more}, "items": items}


def uid_of(name: str) -> str:
    return f"{name:0>8}-0000-4000-8000-000000000000"
