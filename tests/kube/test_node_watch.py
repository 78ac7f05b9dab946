"""The watch on the own Node: its law as data, and at a server that ends, breaks and forgets it."""

import asyncio
import json

import pytest

from criproxy.control.clock import Clock
from criproxy.kube import watch_law
from criproxy.kube.client import Timeouts
from criproxy.kube.node_watch import NodeWatch
from criproxy.kube.objects import ObjectError
from criproxy.kube.watch_law import Seen, WatchError, WatchState
from tests.fakes.waiting import until
from tests.kube.conftest import KubeBench

# --- the law ---------------------------------------------------------------------------------------------------------


def line(kind, version="7", **fields):
    return json.dumps(
        {"type": kind, "object": {"metadata": {"name": "n", "resourceVersion": version}, **fields}}
    ).encode()


def test_query_without_a_version_lists_the_present():
    assert watch_law.query(WatchState(), "node1", 0.5) == "fieldSelector=metadata.name%3Dnode1"


def test_query_with_a_version_watches_from_it_for_a_random_time():
    times = {luck: watch_law.query(WatchState("9"), "n", luck).partition("timeoutSeconds=")[2] for luck in (0.0, 1.0)}
    assert times == {0.0: "300", 1.0: "600"}
    assert "watch=1&resourceVersion=9&allowWatchBookmarks=true" in watch_law.query(WatchState("9"), "n", 0.0)


@pytest.mark.parametrize(
    ("kind", "seen", "has_node"),
    [
        ("ADDED", Seen.CHANGED, True),
        ("MODIFIED", Seen.CHANGED, True),
        ("DELETED", Seen.GONE, False),
        ("BOOKMARK", Seen.NOTHING, False),
        ("WHATEVER", Seen.NOTHING, False),
    ],
)
def test_event_moves_the_version_and_ends_a_row_of_failures(kind, seen, has_node):
    state, found, node = watch_law.happened(WatchState("3", failures=4), line(kind))
    assert (state, found, node is not None) == (WatchState("7"), seen, has_node)


def test_event_that_is_an_error_is_raised_with_its_code():
    with pytest.raises(WatchError) as raised:
        watch_law.happened(WatchState("3"), b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}')
    assert raised.value.status.code == 410


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type":"ADDED"}', '{"type":"ADDED","object":{"metadata":1}}'])
def test_line_that_is_no_event_is_an_error(text):
    with pytest.raises(ObjectError):
        watch_law.happened(WatchState("3"), text.encode())


@pytest.mark.parametrize("status", [410, 400, 404, 403])
def test_version_that_is_refused_is_given_up(status):
    state, wait_s = watch_law.refused(WatchState("3"), status, luck=0.0)
    assert (state.version, state.failures) == ("", 1)
    assert wait_s > 0.0


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_version_is_kept_over_what_fails_for_now(status):
    assert watch_law.refused(WatchState("3"), status, luck=0.0)[0].version == "3"


def test_watch_that_ends_at_once_again_and_again_is_asked_ever_more_rarely():
    state, waits = WatchState("3"), []
    for _ in range(8):
        state, wait_s = watch_law.ended(state, lasted_s=0.0, events=0, luck=1.0)
        waits.append(wait_s)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 120]
    assert watch_law.ended(state, lasted_s=300.0, events=0, luck=0.5) == (WatchState("3"), 0.5)


# --- at a server -----------------------------------------------------------------------------------------------------


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


class Bench(KubeBench):
    def __init__(self, credential):
        super().__init__(credential, Impatient(), timeouts=Timeouts(silence_s=2.0))
        self.observer = Observer()
        self.watch = NodeWatch(self.client, "node1", [self.observer], **self.how)


@pytest.fixture
def bench(credential):
    return Bench(credential)


def test_watch_sees_the_node_and_each_change(bench, api):
    async def scenario():
        async with bench.running(bench.watch):
            for number in range(3):
                await until(lambda: len(api.watchers) == 1)
                api.put_node(metadata={"annotations": {"n": str(number)}})
                await until(lambda number=number: len(bench.observer.nodes) == number + 2)  # type: ignore[misc]
            api.delete_node()
            await until(lambda: bench.observer.nodes[-1] is None)
            assert bench.watch.trouble == ""

    asyncio.run(scenario())
    assert bench.observer.numbers() == [None, "0", "1", "2", None]
    assert bench.log.names() == ["node_watched"]


def test_watch_of_a_node_that_is_not_there_yet_sees_it_come(bench, api):
    api.delete_node()

    async def scenario():
        async with bench.running(bench.watch):
            await until(lambda: api.watchers)
            assert bench.observer.nodes == [None]
            api.put_node(metadata={"annotations": {"n": "0"}})
            await until(lambda: bench.observer.numbers() == [None, "0"])

    asyncio.run(scenario())


def test_watch_that_the_server_ends_goes_on_from_the_last_version(bench, api):
    async def scenario():
        async with bench.running(bench.watch):
            await until(lambda: api.watchers)
            api.put_node(metadata={"annotations": {"n": "0"}})
            await until(lambda: len(bench.observer.nodes) == 2)
            api.end_watches()
            api.put_node(metadata={"annotations": {"n": "1"}})
            await until(lambda: len(bench.observer.nodes) == 3)

    asyncio.run(scenario())
    assert bench.observer.numbers() == [None, "0", "1"]
    assert len([one for one in api.requests if "watch" not in one.query]) == 1, "one list was enough"


def test_watch_from_a_forgotten_version_lists_anew(bench, api):
    async def scenario():
        async with bench.running(bench.watch):
            await until(lambda: api.watchers)
            api.stop()
            api.put_node(metadata={"annotations": {"n": "missed"}})
            api.forget_history()
            api.start()
            await until(lambda: bench.observer.numbers()[-1] == "missed" and api.watchers)

    asyncio.run(scenario())
    assert len([one for one in api.requests if "watch" not in one.query]) == 2


def test_bookmark_keeps_the_version_from_being_forgotten(bench, api):
    api.bookmark_s = 0.05

    async def scenario():
        async with bench.running(bench.watch):
            await until(lambda: api.watchers)
            api.forget_history()
            await asyncio.sleep(0.3)
            api.end_watches()
            watches = len(api.seen("GET", "nodes"))
            await until(lambda: len(api.seen("GET", "nodes")) > watches and api.watchers)

    asyncio.run(scenario())
    assert len([one for one in api.requests if "watch" not in one.query]) == 1


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"status": 500}, id="500"),
        pytest.param({"status": 429, "headers": {"Retry-After": "9"}}, id="429"),
        pytest.param({"status": 401}, id="401"),
        pytest.param({"raw": b""}, id="no word"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n"}, id="no event"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, id="ends at once"),
    ],
)
def test_watch_that_fails_is_tried_again_with_growing_pauses(bench, api, how):
    api.fail("watch=1", times=4, **how)

    async def scenario():
        async with bench.running(bench.watch):
            await until(lambda: api.watchers)
            api.put_node(metadata={"annotations": {"n": "0"}})
            await until(lambda: bench.observer.numbers()[-1] == "0")

    asyncio.run(scenario())
    pauses = [wait for wait in bench.clock.waits if wait]
    assert len(pauses) == 4
    assert pauses[3] > 4.0
    assert bench.log.names() == ["node_watched", "node_not_watched", "node_watched"]


def test_api_server_away_for_long_is_told_once_and_found_again(bench, api):
    async def scenario():
        async with bench.running(bench.watch):
            await until(lambda: api.watchers)
            api.stop()
            await until(lambda: sum(bench.clock.waits) > 300.0)
            assert bench.watch.trouble
            assert bench.watch.node is not None, "what was last seen stays"
            api.start()
            api.put_node(metadata={"annotations": {"n": "back"}})
            await until(lambda: bench.observer.numbers()[-1] == "back" and api.watchers)

    asyncio.run(scenario())
    assert bench.log.names() == ["node_watched", "node_not_watched", "node_watched"]
    assert max(bench.clock.waits) <= 120.0
