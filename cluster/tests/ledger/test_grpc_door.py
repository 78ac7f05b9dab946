"""The door for schedulers, over real gRPC and TLS."""

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import grpc.aio
import pytest

from cluster.tests.ledger.test_desk import CPU, FakeApi, pod
from criproxy_cluster.certificates.authority import Tls, with_authority, with_certificate
from criproxy_cluster.ledger import grpc_door, messages
from criproxy_cluster.ledger.desk import Desk, Seen
from criproxy_cluster.ledger.law import Ledger, Pod
from integration.lab.ports import free_ports

NAME = "criproxy-ledger.criproxy-system.svc"
NOW = datetime.now(UTC)


class Certificate:
    def __init__(self):
        self.renew()

    def renew(self):
        self.made = with_certificate(with_authority(Tls(), NOW), (NAME,), NOW)

    @property
    def pair(self):
        return self.made.certificate, self.made.key


class Door:
    """With two nodes, and a client. `leads` can be taken away."""

    def __init__(self, log):
        self.ledger, self.seen, self.leads = Ledger(), Seen(), True
        self.seen.missing.clear()
        self.desk = Desk(self.ledger, self.seen, FakeApi(), leads=lambda: self.leads, now_s=time.monotonic, log=log)
        self.desk._since_s = float("-inf")
        self.seen.pods_s = time.monotonic()
        self.certificate = Certificate()
        (self.port,) = free_ports(1)
        for name in ("m", "n"):
            self.ledger.set_node(name, {CPU: 2000})

    def channel(self):
        credentials = grpc.ssl_channel_credentials(self.certificate.made.authorities)
        options = (("grpc.ssl_target_name_override", NAME),)
        return grpc.aio.secure_channel(f"localhost:{self.port}", credentials, options)

    async def reserve(self, channel, *wishes, **more):
        request = messages.ReserveRequest(wishes=[wish(*one) for one in wishes], **more)
        said = await method(channel, "Reserve", messages.ReserveResponse)(request, timeout=10, wait_for_ready=True)
        return [one.why for one in said.verdicts], said

    def watch(self, channel):
        kind = channel.unary_stream(
            f"/{grpc_door.SERVICE}/Watch", lambda one: one.SerializeToString(), messages.Changes.FromString
        )
        return kind(messages.WatchRequest(), wait_for_ready=True)


def method(channel, name, answer):
    path = f"/{grpc_door.SERVICE}/{name}"
    return channel.unary_unary(path, lambda one: one.SerializeToString(), answer.FromString)


def wish(uid, node, cpu=1000, priority=0):
    return messages.Wish(uid=uid, namespace="d", name=uid, node=node, resources={CPU: cpu}, priority=priority)


@asynccontextmanager
async def open_door(log):
    door = Door(log)
    task = asyncio.create_task(grpc_door.serve(door.desk, door.certificate, f"localhost:{door.port}"))
    try:
        async with door.channel() as channel:
            yield door, channel
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_scheduler_reserves_releases_and_learns_what_is_free(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            assert (await door.reserve(channel, ("a", "n"), ("b", "m")))[0] == ["", ""]
            whys, said = await door.reserve(channel, ("c", "n"), ("d", "n"), all_or_nothing=True)
            assert all(whys) and dict(said.verdicts[1].free) == {CPU: 0}
            assert door.ledger.free("n") == {CPU: 1000}
            await method(channel, "Release", messages.ReleaseResponse)(messages.ReleaseRequest(uids=["a", "x"]))
            assert door.ledger.free("n") == {CPU: 2000}

    asyncio.run(scenario())


def test_a_watcher_hears_of_all_nodes_and_then_of_what_others_reserve(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            watch = door.watch(channel)
            first = await watch.read()
            assert {one.name: one.free[CPU] for one in first.nodes} == {"m": 2000, "n": 2000}
            await door.reserve(channel, ("a", "n"))
            then = await watch.read()
            assert [(one.name, one.free[CPU]) for one in then.nodes] == [("n", 1000)]
            assert then.version > first.version
            door.ledger.set_node("m", None)
            (gone,) = (await watch.read()).nodes
            assert gone.name == "m" and gone.gone
            door.leads = False
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await watch.read()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_a_pod_that_asks_for_more_than_there_can_be_ends_no_stream_and_no_batch(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            door.ledger.see(Pod("huge", "d", "huge", ((CPU, 1 << 64),), node="n"))
            said = await anext(aiter(door.watch(channel)))
            assert {one.name: dict(one.free)[CPU] for one in said.nodes} == {"m": 2000, "n": -((1 << 63) - 1)}
            whys, _ = await door.reserve(channel, ("a", "m"), ("b", "n"))
            assert whys[0] == "" and "0 of" in whys[1]

    asyncio.run(scenario())


def test_less_than_nothing_is_reserved_for_nobody(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await door.reserve(channel, ("a", "n", -1000))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert door.ledger.free("n") == {CPU: 2000}

    asyncio.run(scenario())


def test_who_does_not_lead_is_unavailable(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            door.leads = False
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await door.reserve(channel, ("a", "n"))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "another replica leads" in refused.value.details()

    asyncio.run(scenario())


def test_a_certificate_that_is_replaced_serves_new_connections_and_old_ones_go_on(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            await door.reserve(channel, ("a", "n"))
            door.certificate.renew()
            async with door.channel() as new:
                await door.reserve(new, ("b", "n"))
            assert (await door.reserve(channel, ("c", "m")))[0] == [""]

    asyncio.run(scenario())


def test_a_reservation_is_what_the_watch_knows_of_the_pod(log):
    async def scenario():
        async with open_door(log) as (door, channel):
            door.ledger.see(pod("a", cpu=1500))
            await door.reserve(channel, ("a", "n", 1))
            assert door.ledger.free("n") == {CPU: 500}

    asyncio.run(scenario())
