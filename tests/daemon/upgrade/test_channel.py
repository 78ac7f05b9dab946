"""What two processes say to each other: every message arrives, what is not understood does no harm."""

import asyncio
import random
import socket

import msgspec
import pytest

from criproxy.control.histogram import CPU_BUCKETS, MEMORY_BUCKETS, Buckets
from criproxy.control.predictor import make_predictor
from criproxy.control.series import PredictorSettings, PredictorState
from criproxy.daemon.upgrade.channel import (
    MOST_BYTES,
    AdmitMessage,
    Changed,
    Channel,
    Declined,
    Done,
    HeldMessage,
    KubernetesMemory,
    LadderMessage,
    Learned,
    Main,
    Message,
    Ready,
    ResizeMessage,
    Serving,
    Take,
)
from criproxy.model import GivingBack
from criproxy.pods.stopping import ON_HARM, HeldPod


def learned(buckets: Buckets, capacity: float) -> PredictorState:
    """Of a node that has used every amount, small and large, at all times of the day."""
    chance, predictor = random.Random(1), make_predictor(PredictorSettings(), buckets)
    for t_s in range(0, 2 * 86_400, 30):
        predictor.observe(float(t_s), 1.7e9 + t_s, capacity ** chance.random(), capacity)
    return predictor.checkpoint()


async def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return await Channel.open(one), await Channel.open(other)


@pytest.mark.parametrize(
    "message",
    [
        Ready("0.2.0", "/run/criproxy/criproxy.sock", ("a: b",)),
        Take("/kubepods/../offline", ("podA", "podB")),
        Take(None, ()),
        Learned("cpu", learned(CPU_BUCKETS, 512.0)),
        Learned("memory", learned(MEMORY_BUCKETS, 16.0 * 2**40)),
        LadderMessage(msgspec.Raw(msgspec.json.encode({f"{'n' * 300}-{index}": index for index in range(1000)}))),
        KubernetesMemory(msgspec.Raw(b'{"policy":{"name":"night"}}'), GivingBack(1.0, 2.0, 3.0), 4.0),
        HeldMessage((HeldPod("1", ON_HARM, 4.0, "it harms"),)),
        Declined("the config has errors: a: b"),
        Serving(),
        Main(),
        AdmitMessage(7, "/offline/pod\nx", 1 << 40),
        ResizeMessage(8, "offline-pod1.slice", 0),
        Done(7, "cannot: \udc80 no".encode(errors="replace").decode()),
        Changed(),
        Changed("podA"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_sent_arrives_as_it_was(message: Message) -> None:
    async def talk() -> Message | None:
        one, other = await pair()
        one.send(message)
        return await other.receive()

    assert asyncio.run(talk()) == message


@pytest.mark.parametrize(
    "junk", [b"{}\n", b'{"type":"of-a-later-version"}\n', b"no json\n", b"\n", b'{"type":"admit","number":"x"}\n']
)
def test_what_is_not_understood_is_ignored(junk: bytes) -> None:
    async def talk() -> Message | None:
        one, other = socket.socketpair()
        receiving = await Channel.open(other)
        one.sendall(junk + b'{"type":"main"}\n')
        with one:
            return await receiving.receive()

    assert asyncio.run(talk()) == Main()


def test_message_that_is_too_long_is_skipped() -> None:
    async def talk() -> Message | None:
        one, other = await pair()
        one.send(Declined("x" * MOST_BYTES))
        one.send(Main())
        return await other.receive()

    assert asyncio.run(talk()) == Main()


@pytest.mark.parametrize("last", [b"", b'{"type":"main"'])
def test_end_of_the_other_process_is_none(last: bytes) -> None:
    async def talk() -> Message | None:
        one, other = socket.socketpair()
        receiving = await Channel.open(other)
        with one:
            one.sendall(last)
        return await receiving.receive()

    assert asyncio.run(talk()) is None


def test_message_to_a_process_that_has_gone_is_dropped() -> None:
    async def talk() -> None:
        one, other = await pair()
        other.close()
        assert await one.receive() is None
        for _ in range(3):
            one.send(Main())
            await asyncio.sleep(0)

    asyncio.run(talk())
