"""The door for schedulers that ask first, by gRPC: ledger-api/ledger.proto has what is said.

grpcio takes 11 MiB of this process's memory and 19 MB of the image, and the other verbs never load it. h2, which the
image has, would be smaller; but all of gRPC above it would be ours to write and to keep.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from criproxy_cluster.ledger import messages
from criproxy_cluster.ledger.desk import AbstainedError, Desk
from criproxy_cluster.ledger.law import Ledger, Pod, Wish

SERVICE: Final = "criproxy.ledger.v1.Ledger"
PUSH_S: Final = 0.02
"""Changes within this time go out as one."""

FORGET_S: Final = 60.0
NODES_AT_ONCE: Final = 1000
END_S: Final = 1.0
WAIT_S: Final = 1.0
"""For a certificate, from one look to the next; and how soon a stream ends whose replica leads no more."""

MOST_INT64: Final = (1 << 63) - 1
MOST_STREAMS: Final = 256
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class HasPair(Protocol):
    @property
    def pair(self) -> tuple[bytes, bytes] | None:
        """The certificate and its key, PEM; `None`: there is none yet."""


class Changes:
    """Which nodes each listener has not got yet."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._listeners: set[_Listener] = set()
        self._some = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._listeners:
                self._ledger.changed.clear()  # or it would have the names of all nodes that ever were
                with suppress(TimeoutError):
                    async with asyncio.timeout(FORGET_S):
                        await self._some.wait()
            await asyncio.sleep(PUSH_S)
            if changed := self._ledger.changed:
                for one in self._listeners:
                    one.nodes |= changed
                    one.some.set()
                changed.clear()

    def listen(self) -> "_Listener":
        if not self._listeners:
            self._ledger.changed.clear()
            self._some.set()
        one = _Listener(set(self._ledger.nodes()))
        self._listeners.add(one)
        return one

    def leave(self, one: "_Listener") -> None:
        self._listeners.discard(one)
        if not self._listeners:
            self._some.clear()


class _Listener:
    def __init__(self, nodes: set[str]) -> None:
        self.nodes = nodes
        self.some = asyncio.Event()
        self.some.set()


class LedgerService:
    """The three methods."""

    def __init__(self, desk: Desk, changes: Changes) -> None:
        self._desk = desk
        self._changes = changes

    async def reserve(
        self, request: messages.ReserveRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> messages.ReserveResponse:
        if any(amount < 0 for one in request.wishes for amount in one.resources.values()):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a pod takes no less than nothing")
        wishes = [Wish(_pod(one), one.node) for one in request.wishes]
        try:
            verdicts = await self._desk.reserve(wishes, all_or_nothing=request.all_or_nothing)
        except AbstainedError as why:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"criproxy abstains: {why}")
        said = [messages.Verdict(why=one.why, free=_int64(one.free)) if one.why else _YES for one in verdicts]
        return messages.ReserveResponse(verdicts=said)

    async def release(
        self, request: messages.ReleaseRequest, _: "grpc.aio.ServicerContext[Any, Any]"
    ) -> messages.ReleaseResponse:
        self._desk.release(request.uids)
        return messages.ReleaseResponse()

    async def watch(
        self, _: messages.WatchRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[messages.Changes]:
        listener, version = self._changes.listen(), 0
        try:
            while not (why := self._desk.abstains()):
                try:
                    async with asyncio.timeout(WAIT_S):
                        await listener.some.wait()
                except TimeoutError:
                    continue
                names, listener.nodes = sorted(listener.nodes), set()
                listener.some.clear()
                for begin in range(0, len(names), NODES_AT_ONCE):
                    version += 1
                    nodes = [self._node(name) for name in names[begin : begin + NODES_AT_ONCE]]
                    yield messages.Changes(nodes=nodes, version=version)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"criproxy abstains: {why}")
        finally:
            self._changes.leave(listener)

    def _node(self, name: str) -> messages.Node:
        free = self._desk.ledger.free(name)
        return messages.Node(name=name, gone=True) if free is None else messages.Node(name=name, free=_int64(free))

    def handlers(self) -> Iterable[grpc.GenericRpcHandler]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "Reserve": unary(
                self.reserve, messages.ReserveRequest.FromString, messages.ReserveResponse.SerializeToString
            ),
            "Release": unary(
                self.release, messages.ReleaseRequest.FromString, messages.ReleaseResponse.SerializeToString
            ),
            "Watch": stream(self.watch, messages.WatchRequest.FromString, messages.Changes.SerializeToString),
        }
        return (grpc.method_handlers_generic_handler(SERVICE, methods),)


_YES: Final = messages.Verdict()


async def serve(desk: Desk, certificate: HasPair, address: str) -> None:
    """At `address`, HOST:PORT, until cancelled. A certificate that is replaced serves new connections from then on."""
    while (pair := certificate.pair) is None:  # noqa: ASYNC110  # it comes from files
        await asyncio.sleep(WAIT_S)
    served = [pair]

    def configured(one: tuple[bytes, bytes]) -> Any:
        return grpc.ssl_server_certificate_configuration([(one[1], one[0])])

    def renewed() -> Any:
        """None: as before. gRPC asks from a thread of its own."""
        now = certificate.pair
        if now is None or now == served[0]:
            return None
        served[0] = now
        return configured(now)

    server = grpc.aio.server(options=OPTIONS)
    changes = Changes(desk.ledger)
    server.add_generic_rpc_handlers(LedgerService(desk, changes).handlers())
    server.add_secure_port(address, grpc.dynamic_ssl_server_credentials(configured(pair), renewed))
    await server.start()
    try:
        await changes.run()
    finally:
        await server.stop(END_S)


def _int64(amounts: Mapping[str, int]) -> dict[str, int]:
    """As a message can say it: pods of anybody may ask for more."""
    return {name: max(-MOST_INT64, min(amount, MOST_INT64)) for name, amount in amounts.items()}


def _pod(wish: messages.Wish) -> Pod:
    amounts = tuple(sorted(wish.resources.items()))
    return Pod(wish.uid, wish.namespace, wish.name, amounts, wish.priority)
