"""Reads from a ResourceManager, and writes to it, over its REST interface. It asks nobody for a right to that."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final, Self
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import Struct

from criproxy_cluster.requests import NOT_FOUND, Trouble
from criproxy_cluster.yarn.law import Seen, Send, Size

ANSWER_S: Final = 3.0
"""Of a whole answer, however slowly it comes."""

MOST_BYTES: Final = 64 << 20
"""Of an answer: some 1 KB for a node, so that of 60,000 nodes."""

_LIVES: Final = ("RUNNING", "UNHEALTHY", "DECOMMISSIONING")
"""The states of a node whose size counts. Source: Hadoop, NodeState."""

_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}
"""A packed answer of some kilobytes may hold gigabytes."""


_Amount = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 53)]
"""Java's, and no more than a float takes whole."""


class _Node(Struct):
    """MiB are called MB there."""

    state: str = ""
    id: str = ""
    used_mib: _Amount = msgspec.field(name="usedMemoryMB", default=0)
    left_mib: _Amount = msgspec.field(name="availMemoryMB", default=0)
    used_vcores: _Amount = msgspec.field(name="usedVirtualCores", default=0)
    left_vcores: _Amount = msgspec.field(name="availableVirtualCores", default=0)


class _OneNode(Struct):
    node: _Node


class _Named(Struct):
    id: str = ""


class _Several(Struct):
    node: tuple[_Named, ...] | None = None


class _AllNodes(Struct):
    nodes: _Several | None = None


class ResourceManager:
    """One that is there alone, or several of which one is active. `addresses`: http://HOST:PORT of each."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = [one.rstrip("/") for one in addresses]
        self._client = httpx2.AsyncClient(timeout=ANSWER_S, headers=_HEADERS, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def node(self, node_id: str) -> Seen | None:
        """None: it is not known there, or not alive. Raises Trouble."""
        try:
            found = await self._ask("GET", f"nodes/{quote(node_id, safe=':')}", _OneNode)
        except Trouble as trouble:
            if trouble.code == NOT_FOUND:
                return None
            raise
        one = found.node
        if one.state not in _LIVES:
            return None
        size = Size(one.used_mib + one.left_mib, one.used_vcores + one.left_vcores)
        return Seen(size, Size(one.used_mib, one.used_vcores))

    async def nodes(self) -> list[str]:
        """The ids of those that run. Raises Trouble."""
        found = await self._ask("GET", "nodes?states=RUNNING", _AllNodes)
        several = found.nodes.node if found.nodes is not None else None
        return [one.id for one in several or ()]

    async def resize(self, node_id: str, send: Send) -> None:
        """The answer may still have the size of before. Raises Trouble."""
        size = {"memory": send.size.mib, "vCores": send.size.vcores}
        body = {"resource": size, "overCommitTimeout": send.grace_ms}
        await self._ask("POST", f"nodes/{quote(node_id, safe=':')}/resource", msgspec.Raw, body)

    async def _ask(self, method: str, path: str, kind: Any, body: Any = None) -> Any:
        """Of the one that is active: one on standby redirects, and one that is away does not answer."""
        troubles = []
        for address in tuple(self._addresses):
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer, text = await self._asked(method, f"{address}/ws/v1/cluster/{path}", body)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # TimeoutError is one
                troubles.append(f"{address} does not answer: {error!r}")
                continue
            if answer.is_redirect:
                troubles.append(f"{address} is not active")
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return _read(answer, text, kind, f"{address}: {method}")
        raise Trouble(f"the ResourceManager: {'; '.join(troubles)}")

    async def _asked(self, method: str, url: str, body: Any) -> tuple[httpx2.Response, bytes]:
        """The answer as it came over the wire. Raises OSError for one that is too long, or packed."""
        async with self._client.stream(method, url, json=body) as answer:
            if (packed := answer.headers.get("Content-Encoding", "identity")) != "identity":
                raise OSError(f"its answer is packed ({packed[:20]}), which it was not asked for")
            text = bytearray()
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > MOST_BYTES:
                    raise OSError(f"its answer has more than {MOST_BYTES >> 20} MiB")
            return answer, bytes(text)


def _read(answer: httpx2.Response, text: bytes, kind: Any, what: str) -> Any:
    """Raises Trouble."""
    if answer.status_code in (401, 403):
        remedy = "criproxy knows no Kerberos and no password: let it in without, by the network alone (docs/yarn.md)"
        raise Trouble(f"{what}: {answer.status_code}: {remedy}", answer.status_code)
    if answer.status_code != 200:
        raise Trouble(f"{what}: {answer.status_code} {text[:200].decode(errors='replace')}", answer.status_code)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Trouble(f"{what}: the answer can't be read: {error}", answer.status_code) from error
