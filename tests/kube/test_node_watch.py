"""The watch on the own Node, at a server that ends, breaks and forgets it."""

import asyncio
import json
import random
from contextlib import asynccontextmanager, suppress

import pytest

from criproxy.concurrency.clock import Clock
from criproxy.kube.client import ApiClient, Timeouts
from criproxy.kube.node_watch import NodeWatch
from tests.fakes.log import FakeLog


class Impatient(Clock):
    """Waits a hundredth of what it is asked to, and tells it."""

    def __init__(self):
        super().__init__()
        self.waits = []

    async def sleep(self, seconds, slack_s=0.0, wake=None):
        self.waits.append(seconds)
        await asyncio.sleep(seconds / 100)


class Observer:
    def __init__(self):
        self.nodes = []

    def saw(self, node):
        self.nodes.append(node)

    def numbers(self):
        return [node and node.annotation("n") for node in self.nodes]


class Bench:
    def __init__(self, credential):
        self.observer, self.clock, self.log = Observer(), Impatient(), FakeLog()
        client = ApiClient(credential, self.clock, random.Random(3), Timeouts(silence_s=2.0))
        self.watch = NodeWatch(client, "node1", [self.observer], clock=self.clock, luck=random.Random(3), log=self.log)

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - the server's thread sets no event
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.watch.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def bench(credential):
    return Bench(credential)


def test_watch_sees_the_node_and_each_change(bench, api):
    async def scenario():
        async with bench.running():
            for number in range(3):
                await bench.until(lambda: len(api.watchers) == 1)
                api.put_node(metadata={"annotations": {"n": str(number)}})
                await bench.until(lambda number=number: len(bench.observer.nodes) == number + 2)
            api.delete_node()
            await bench.until(lambda: bench.observer.nodes[-1] is None)
            assert bench.watch.trouble == ""

    asyncio.run(scenario())
    assert bench.observer.numbers() == [None, "0", "1", "2", None]
    assert bench.log.names() == ["node_watched"]


def test_watch_of_a_node_that_is_not_there_yet_sees_it_come(bench, api):
    api.delete_node()

    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            assert bench.observer.nodes == [None]
            api.put_node(metadata={"annotations": {"n": "0"}})
            await bench.until(lambda: bench.observer.numbers() == [None, "0"])

    asyncio.run(scenario())


def test_watch_that_the_server_ends_goes_on_from_the_last_version(bench, api):
    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            api.put_node(metadata={"annotations": {"n": "0"}})
            await bench.until(lambda: len(bench.observer.nodes) == 2)
            api.end_watches()
            api.put_node(metadata={"annotations": {"n": "1"}})
            await bench.until(lambda: len(bench.observer.nodes) == 3)

    asyncio.run(scenario())
    assert bench.observer.numbers() == [None, "0", "1"]
    assert len([one for one in api.requests if "watch" not in one.query]) == 1, "one list was enough"


def test_watch_from_a_forgotten_version_lists_anew(bench, api):
    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            api.stop()
            api.put_node(metadata={"annotations": {"n": "missed"}})
            api.forget_history()
            api.start()
            await bench.until(lambda: bench.observer.numbers()[-1] == "missed" and api.watchers)

    asyncio.run(scenario())
    assert len([one for one in api.requests if "watch" not in one.query]) == 2


def test_bookmark_keeps_the_version_from_being_forgotten(bench, api):
    api.bookmark_s = 0.05

    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            api.forget_history()
            await asyncio.sleep(0.3)
            api.end_watches()
            watches = len(api.seen("GET", "nodes"))
            await bench.until(lambda: len(api.seen("GET", "nodes")) > watches and api.watchers)

    asyncio.run(scenario())
    assert len([one for one in api.requests if "watch" not in one.query]) == 1


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"status": 500}, id="500"),
        pytest.param({"status": 429, "headers": {"Retry-After": "9"}}, id="429"),
        pytest.param({"status": 401}, id="401"),
        pytest.param({"raw": b""}, id="no word"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, id="ends at once"),
    ],
)
def test_watch_that_fails_is_tried_again_with_growing_pauses(bench, api, how):
    api.fail("watch=1", times=4, **how)

    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            api.put_node(metadata={"annotations": {"n": "0"}})
            await bench.until(lambda: bench.observer.numbers()[-1] == "0")

    asyncio.run(scenario())
    pauses = [wait for wait in bench.clock.waits if wait]
    assert len(pauses) == 4
    assert pauses[3] > 4.0
    assert bench.log.names() == ["node_watched", "node_not_watched", "node_watched"]


def test_api_server_away_for_long_is_told_once_and_found_again(bench, api):
    api.bookmark_s = 0.05

    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            api.stop()
            await bench.until(lambda: sum(bench.clock.waits) > 300.0)
            assert bench.watch.trouble
            assert bench.watch.node is not None, "what was last seen stays"
            api.start()
            api.put_node(metadata={"annotations": {"n": "back"}})
            await bench.until(lambda: bench.observer.numbers()[-1] == "back" and not bench.watch.trouble)

    asyncio.run(scenario())
    assert bench.log.names() == ["node_watched", "node_not_watched", "node_watched"]
    assert max(bench.clock.waits) <= 120.0


def watch_answer(*lines):
    body = b"".join(lines)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"{}\n", id="no event"),
        pytest.param(b'{"type":"MODIFIED","object":{"metadata":{"name":"node1"},"spec":5}}\n', id="without a version"),
        pytest.param(
            b'{"type":"MODIFIED","object":{"metadata":{"name":"node1","resourceVersion":"2"},"spec":%s1%s}}\n'
            % (b'{"a":' * 2000, b"}" * 2000),
            id="deep",
        ),
    ],
)
def test_an_event_that_cannot_be_read_holds_up_none_after_it(bench, api, bad):
    meta = {"name": "node1", "resourceVersion": "3", "annotations": {"n": "a\u0085b"}}
    good = json.dumps({"type": "MODIFIED", "object": {"metadata": meta}}, ensure_ascii=False).encode() + b"\n"
    api.fail("watch=1", times=1, raw=watch_answer(bad, bad, good))

    async def scenario():
        async with bench.running():
            await bench.until(lambda: "a\u0085b" in bench.observer.numbers())

    asyncio.run(scenario())
    assert bench.log.names().count("node_unreadable") <= 1


def test_a_node_in_a_list_that_cannot_be_read_is_told_of_once_and_what_was_seen_holds(bench, api):
    async def scenario():
        async with bench.running():
            await bench.until(lambda: api.watchers)
            before = bench.watch.node
            api.forget_history()
            api.put_node(metadata={"annotations": {"n": 5}})
            await bench.until(lambda: "node_unreadable" in bench.log.names())
            assert bench.watch.node is before
            api.put_node(metadata={"annotations": {"n": "5"}})
            await bench.until(lambda: bench.observer.numbers()[-1] == "5")

    asyncio.run(scenario())
    assert bench.log.names().count("node_unreadable") == 1
