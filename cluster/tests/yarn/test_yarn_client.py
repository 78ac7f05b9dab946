"""What a ResourceManager may answer."""

import asyncio
import gzip

import httpx2
import pytest

from criproxy_cluster.requests import Trouble
from criproxy_cluster.yarn import client
from criproxy_cluster.yarn.client import ResourceManager
from criproxy_cluster.yarn.law import Seen, Send, Size

NODE = {
    "id": "n:1", "state": "RUNNING", "usedMemoryMB": 1024, "availMemoryMB": -512, "usedVirtualCores": 1,
    "availableVirtualCores": 3, "more": {"of": "what is not read"},
}  # fmt: skip


def asked(answer, *addresses, what=lambda manager: manager.node("n:1")):
    """What the client makes of an answer, and the addresses that it asked."""
    hosts = []

    def answered(request):
        hosts.append(request.url.host)
        return answer(request)

    async def ask():
        async with ResourceManager(addresses or ("http://rm:8088",)) as manager:
            await manager._client.aclose()
            manager._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answered))
            return await what(manager)

    return asyncio.run(ask()), hosts


def test_a_node_that_uses_more_than_it_has_is_read_as_it_is():
    found, _ = asked(lambda _: httpx2.Response(200, json={"node": NODE}))
    assert found == Seen(Size(512, 4), Size(1024, 1))


@pytest.mark.parametrize("state", ["LOST", "SHUTDOWN", "DECOMMISSIONED", "NEW", "REBOOTED"])
def test_a_node_that_is_not_alive_has_no_size(state):
    assert asked(lambda _: httpx2.Response(200, json={"node": {**NODE, "state": state}}))[0] is None


def test_a_node_that_is_not_known_is_none():
    assert asked(lambda _: httpx2.Response(404, json={"RemoteException": {}}))[0] is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx2.Response(401), "Kerberos"),
        (httpx2.Response(500, text="boom"), "500 boom"),
        (httpx2.Response(200, text="<html>"), "can't be read"),
        (httpx2.Response(200, json={"node": {**NODE, "usedMemoryMB": "much"}}), "can't be read"),
        (httpx2.Response(200, text='{"more":' + "[" * 100_000), "can't be read"),
        (httpx2.Response(200, content=b'{"node":{"id":"\xff"}}'), "can't be read"),
        (httpx2.Response(200, text='{"node":{"usedMemoryMB":' + "9" * 400 + "}}"), "can't be read"),
        (httpx2.Response(307, headers={"Location": "http://other"}), "not active"),
    ],
)
def test_any_other_answer_is_a_trouble_in_words(answer, words):
    with pytest.raises(Trouble, match=words):
        asked(lambda _: answer)


class Bomb(httpx2.AsyncByteStream):
    """Pieces of two mebibytes without an end, or of a byte with a pause before each."""

    def __init__(self, pause_s=0.0):
        self.sent, self.pause_s = 0, pause_s

    async def __aiter__(self):
        while True:
            self.sent += 1
            await asyncio.sleep(self.pause_s)
            yield bytes(2 << 20) if not self.pause_s else b" "


def test_an_answer_without_an_end_is_given_up():
    bomb = Bomb()
    with pytest.raises(Trouble, match="more than 64 MiB"):
        asked(lambda _: httpx2.Response(200, stream=bomb))
    assert bomb.sent == 33


def test_an_answer_that_trickles_is_given_up(monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.05)
    with pytest.raises(Trouble, match="does not answer"):
        asked(lambda _: httpx2.Response(200, stream=Bomb(0.001)))


def test_a_packed_answer_is_not_unpacked():
    packed = httpx2.Response(
        200, headers={"Content-Encoding": "gzip"}, stream=httpx2.ByteStream(gzip.compress(bytes(1000)))
    )
    with pytest.raises(Trouble, match="is packed"):
        asked(lambda _: packed)


def test_no_nodes_at_all_is_an_empty_list():
    found, _ = asked(lambda _: httpx2.Response(200, json={"nodes": None}), what=lambda manager: manager.nodes())
    assert found == []


def test_the_one_that_is_active_is_asked_first_from_then_on():
    def answer(request):
        if request.url.host == "first":
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, json={"node": NODE})

    async def twice(manager):
        await manager.node("n:1")
        return await manager.node("n:1")

    assert asked(answer, "http://first:8088", "http://second:8088/", what=twice)[1] == ["first", "second", "second"]


def test_a_size_is_sent_with_all_three_fields():
    sent = []

    def answer(request):
        sent.append((request.method, request.url.path, request.content))
        return httpx2.Response(200, json={})

    asked(answer, what=lambda manager: manager.resize("n:1", Send(Size(7, 2), 30_000)))
    body = b'{"resource":{"memory":7,"vCores":2},"overCommitTimeout":30000}'
    assert sent == [("POST", "/ws/v1/cluster/nodes/n:1/resource", body)]
