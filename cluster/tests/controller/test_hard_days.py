"""What a controller can't digest, or is refused: it holds up nothing else, and is not asked for again and again."""

import asyncio

import pytest
from structlog.testing import CapturingLogger

from cluster.tests.controller.test_controller import NIGHT, controlling, node, put_policy, settings, status, until
from criproxy_cluster.controller import follower
from criproxy_cluster.controller.follower import Follower
from criproxy_cluster.resources import NodeResource
from criproxy_cluster.vocabulary.names import SWITCH

ODD = "\u0085\u2028\u2029\x0b\x0c\x1c\x1e\r"
DEEP = b'{"a":' * 1100 + b"1" + b"}" * 1100


def test_a_character_in_one_node_makes_the_leader_deaf_to_no_other(kube, stepped, log):
    async def scenario():
        put_policy(kube, "night", **NIGHT)
        kube.put("nodes", node("n1"))
        async with controlling(kube, log):
            await until(lambda: kube.watchers and status(kube, "night").get("nodes") == 0)
            kube.put("nodes", node("n1", {"pool": "night"}, {"x": ODD}))
            kube.put("nodes", node("n2", {"pool": "night"}))
            await until(lambda: settings(kube, "n1") and settings(kube, "n2"), 1.0)
            assert len(kube.seen("watch", "nodes")) == 1

    stepped(scenario())


def test_a_policy_nested_too_deeply_ends_no_leader_and_holds_up_no_other(kube, stepped):
    kube.odd[b'"@deep"'] = DEEP
    log = CapturingLogger()

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        async with controlling(kube, log) as task:
            await until(lambda: kube.watchers)
            put_policy(kube, "deep", settings={"cpu": "@deep"})  # by an event
            put_policy(kube, "night", **NIGHT)
            await until(lambda: settings(kube, "n1"))
            await until(lambda: "nested" in status(kube, "deep").get("problem", ""))
            assert not task.done()
        async with controlling(kube, log) as task:  # by a list
            await until(lambda: len(kube.seen("watch", "colocationpolicies")) == 2)
            kube.put("nodes", node("n2", {"pool": "night"}))
            await until(lambda: settings(kube, "n2"))
            await asyncio.sleep(30.0)
            assert not task.done()
        assert len(kube.seen("list", "colocationpolicies")) == 2

    stepped(scenario())
    told = [call for call in log.calls if call.args == ("object_unreadable",)]
    assert [call.kwargs["name"] for call in told] == ["deep", "deep"], "once by each replica"


def test_settings_nested_deeper_than_any_are_refused_before_anything_follows_them_down(kube, stepped, log):
    kube.odd[b'"@deep"'] = b'{"a":' * 200 + b"1" + b"}" * 200

    async def scenario():
        kube.put("nodes", node("n1"))
        put_policy(kube, "deep", settings={"cpu": "@deep"})
        async with controlling(kube, log):
            await until(lambda: "nested" in status(kube, "deep").get("problem", ""))
            assert not settings(kube, "n1")

    stepped(scenario())


def test_a_node_that_cannot_be_read_keeps_what_was_read_of_it(kube, stepped):
    log = CapturingLogger()

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 1 and settings(kube, "n1"))
            kube.put("nodes", {**kube.get("nodes", "n1"), "spec": {"taints": 5}})
            kube.put("nodes", node("n2", {"pool": "night"}))
            await until(lambda: status(kube, "night").get("nodes") == 2)
            await asyncio.sleep(10.0)
            assert len(kube.seen("list", "nodes")) == len(kube.seen("watch", "nodes")) == 1

    stepped(scenario())
    assert [call.kwargs["name"] for call in log.calls if call.args == ("object_unreadable",)] == ["n1"]


@pytest.mark.parametrize("body", [{}, {"metadata": {}, "items": []}, {"items": [{}]}, []], ids=str)
@pytest.mark.parametrize("plural", ["nodes", "colocationpolicies"])
def test_what_is_no_list_is_asked_for_again_with_pauses(kube, stepped, log, plural, body):
    kube.fail(f"GET .*/{plural}$", 200, 3, body)

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n1"))
        assert now_s() - began_s > 1.5, "three pauses"

    stepped(scenario())


@pytest.mark.parametrize("code", [400, 403, 500, 504], ids=str)
def test_a_watch_that_is_refused_whatever_for_leads_to_a_list(kube, stepped, log, code):
    """As 504 for a version that an API server of several has not seen yet ("too large resource version")."""

    async def scenario():
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: [1 for plural, _ in kube.watchers if plural == "nodes"])
            await asyncio.sleep(60.0)  # so that its end is none of a bad watch
            kube.fail("GET .*/nodes$", code)
            lists = len(kube.seen("list", "nodes"))
            kube.tell_watchers(None)
            await until(lambda: len(kube.seen("list", "nodes")) > lists)
            kube.put("nodes", node("n1", {"pool": "night"}))
            await until(lambda: settings(kube, "n1"))

    stepped(scenario())


def test_a_watch_that_is_cut_after_a_minute_is_no_failure(kube, stepped, log):
    """As some proxies cut connections over which nothing comes."""

    async def scenario():
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: [1 for plural, _ in kube.watchers if plural == "nodes"])
            for _ in range(10):
                await asyncio.sleep(60.0)
                kube.tell_watchers(ConnectionResetError())
                await asyncio.sleep(0.5)
                assert [1 for plural, _ in kube.watchers if plural == "nodes"]
            kube.put("nodes", node("n1", {SWITCH: "off"}))
            await until(lambda: settings(kube, "n1"), 1.0)

    stepped(scenario())


def test_a_dead_watch_is_found_within_two_minutes(kube, stepped, log):
    """Nothing comes, and no end; a living one brings a bookmark each minute."""

    async def scenario():
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: [1 for plural, _ in kube.watchers if plural == "nodes"])
            kube.watchers.clear()  # whatever happens, they are not told
            kube.put("nodes", node("n1", {SWITCH: "off"}))
            await until(lambda: settings(kube, "n1"), 120.0)

    stepped(scenario())


def test_events_of_a_node_whose_writes_are_refused_begin_no_more_retries(kube, stepped, log):
    async def scenario():
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: [1 for plural, _ in kube.watchers if plural == "nodes"])
            kube.fail("PATCH .*/nodes/", 403, 10_000)
            for number in range(60):
                kube.put("nodes", node("n1", {"pool": "night", "n": str(number)}))
                await asyncio.sleep(0.5)
            before = len(kube.seen("patch", "nodes"))
            assert before <= 12
            await asyncio.sleep(120.0)
            assert len(kube.seen("patch", "nodes")) - before <= 9, "each 15 to 30 s"
            kube.faults.clear()
            await until(lambda: settings(kube, "n1"), 31.0)

    stepped(scenario())


def test_a_status_that_is_refused_is_tried_again_with_growing_pauses(kube, stepped, log):
    async def scenario():
        kube.fail("PATCH .*/colocationpolicies/", 403, 10_000)
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await asyncio.sleep(60.0)
            assert 3 <= len(kube.seen("patch", "colocationpolicies/status")) <= 10

    stepped(scenario())


def test_one_node_is_written_by_one_writer_at_a_time(kube, stepped, log):
    async def scenario():
        kube.slow = {"n1": 2.0}
        put_policy(kube, "night", **NIGHT)
        kube.put("nodes", node("n1", {"pool": "night"}))
        async with controlling(kube, log):
            await until(lambda: kube.begun)
            for number in range(10):
                kube.put("nodes", node("n1", {"pool": "night", "n": str(number)}))
                await asyncio.sleep(0.1)
            assert kube.begun.count("n1") == 1

    stepped(scenario())


def test_large_objects_come_in_smaller_pages_and_hide_no_other(kube, stepped, log, monkeypatch):
    monkeypatch.setattr(follower, "MAX_PAGE_BYTES", 64 << 10)
    nodes = [f"n{number:02}" for number in range(30)]

    async def scenario():
        put_policy(kube, "night", **NIGHT)
        for name in nodes:
            kube.put("nodes", node(name, {"pool": "night"}, {"x": "a" * 10_000}))
        async with controlling(kube, log):
            await until(lambda: all(settings(kube, name) for name in nodes))
        assert len(kube.seen("list", "nodes")) <= 3 + 30 // 4 + 1

    stepped(scenario())


def test_a_few_large_objects_make_the_pages_of_no_others_small(kube, stepped, log, monkeypatch):
    monkeypatch.setattr(follower, "MAX_PAGE_BYTES", 1 << 20)
    for number in range(20_000):
        kube.objects["nodes", "", f"n{number:05}"] = {"metadata": {"name": f"n{number:05}"}}
    for number in range(4):
        kube.objects["nodes", "", f"n{number:05}"] = node(f"n{number:05}", {}, {"x": "a" * 300_000})

    async def scenario():
        listed = asyncio.Queue[set[str]]()
        one = Follower(
            kube.client(),
            NodeResource,
            changed=lambda _: None,
            listed=listed.put_nowait,
            hearing=follower.Hearing(),
            log=log,
            page=500,
        )
        follows = asyncio.create_task(one.run())
        assert len(await listed.get()) == 20_000
        follows.cancel()
        assert len(kube.seen("list", "nodes")) < 100

    stepped(scenario())


def test_an_object_that_is_larger_than_any_is_said_and_asked_for_with_pauses(kube, stepped, monkeypatch):
    monkeypatch.setattr(follower, "MAX_PAGE_BYTES", 64 << 10)
    log = CapturingLogger()

    async def scenario():
        kube.put("nodes", node("n1", {}, {"x": "a" * 70_000}))
        async with controlling(kube, log) as task:
            await asyncio.sleep(60.0)
            assert not task.done()

    stepped(scenario())
    assert any("one object has more than 65536 bytes" in str(call.kwargs) for call in log.calls)
    assert len(kube.seen("list", "nodes")) < 100
