"""Controller and leader against an API server over HTTP (fake_kube)."""

import asyncio
import json
import time
import weakref
from contextlib import asynccontextmanager

import httpx2
import pytest
from lightkube.core.generic_client import GenericClient
from structlog.testing import CapturingLogger

from criproxy_cluster.commands.controller import beside, run
from criproxy_cluster.controller import controller as module
from criproxy_cluster.controller import follower
from criproxy_cluster.controller.controller import BACKGROUND_WRITERS, Controller
from criproxy_cluster.controller.fleet import Fleet
from criproxy_cluster.controller.leader import LEASE
from criproxy_cluster.requests import MOST_PAUSE_S, Trouble, trouble_of
from criproxy_cluster.vocabulary.names import EVICTED, EVICTED_FROM, POLICY, POLICY_STATUS, PRESSURE, SWITCH
from criproxy_cluster.vocabulary.times import rfc3339

CPU = "kubernetes.io/batch-cpu"


def node(name, labels=None, annotations=None, **status):
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {},
        "status": {"images": [{"names": ["x"]}], **status},
    }


def policy(name, generation=1, **spec):
    return {"kind": "ColocationPolicy", "metadata": {"name": name, "generation": generation}, "spec": spec}


def put_policy(kube, name, generation=1, **spec):
    kube.put("colocationpolicies", policy(name, generation, **spec))


def begin_roll_out(kube, nodes):
    """Nodes from n000 on, and a policy that concerns all of them."""
    for number in range(nodes):
        kube.put("nodes", node(f"n{number:03}"))
    put_policy(kube, "all", settings={"cpu": {"reserve_cores": 1}})


@asynccontextmanager
async def controlling(kube, log):
    async with kube.client() as client:
        task = asyncio.create_task(Controller(client, log).run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition, seconds=10.0):
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + seconds
    while True:
        try:
            if found := condition():
                return found
        except KeyError:
            pass
        assert loop.time() < ends_s, "it did not come to pass"
        await asyncio.sleep(0.01)


def annotation(kube, name, key=POLICY):
    text = kube.get("nodes", name)["metadata"]["annotations"].get(key)
    return text and json.loads(text)


def settings(kube, name):
    return (annotation(kube, name) or {}).get("settings")


def labels(kube, name):
    return kube.get("nodes", name)["metadata"]["labels"]


def status(kube, name):
    return kube.get("colocationpolicies", name).get("status", {})


NIGHT = {"settings": {"cpu": {"reserve_cores": 2}}, "selector": {"matchLabels": {"pool": "night"}}}


def test_a_policy_reaches_its_nodes_and_says_what_came_of_it(kube, log):
    async def scenario():
        for number in range(3):
            kube.put("nodes", node(f"n{number}", {"pool": "night" if number else "day"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n1") and settings(kube, "n2"))
            assert settings(kube, "n1") == NIGHT["settings"]
            await until(lambda: status(kube, "night").get("waiting") == 2)

            version = annotation(kube, "n1")["version"]
            for name, report in (("n1", {"inForce": True}), ("n2", {"inForce": False, "problems": ["cpu: no"]})):
                found = kube.get("nodes", name)
                found["metadata"]["annotations"][POLICY_STATUS] = json.dumps({"version": version, **report})
                kube.put("nodes", found)
            await until(lambda: status(kube, "night").get("inForce") == 1)
            assert status(kube, "night")["refusedBy"] == [{"node": "n2", "reason": "cpu: no"}]

            put_policy(kube, "night", 2, **{**NIGHT, "settings": {"cpu": {"reserve_cores": 3}}})
            await until(lambda: settings(kube, "n1") == {"cpu": {"reserve_cores": 3}})
            kube.remove("colocationpolicies", "night")
            await until(lambda: annotation(kube, "n1") is None and annotation(kube, "n2") is None)
        assert kube.seen("patch", "nodes").count("n0") == 0, "a node that it does not select is left alone"

    asyncio.run(scenario())


def test_a_status_whose_answer_was_lost_is_written_again_though_it_is_as_before_by_then(kube, stepped, log):
    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 1)
            kube.loses = "colocationpolicies"
            kube.put("nodes", node("n2", {"pool": "night"}))
            await until(lambda: status(kube, "night").get("nodes") == 2)
            kube.remove("nodes", "n2")
            await asyncio.sleep(MOST_PAUSE_S)
            kube.loses = ""
            await until(lambda: status(kube, "night").get("nodes") == 1, 2 * MOST_PAUSE_S)

    stepped(scenario())


def test_a_status_that_is_refused_with_404_while_its_policy_is_there_is_written_later(kube, stepped, log):
    """As an API server answers that has just begun, and does not serve its CRDs yet."""

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        kube.fail("PATCH .*colocationpolicies/night/status", 404)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 1, 2 * MOST_PAUSE_S)

    stepped(scenario())


def test_a_switch_is_not_said_to_be_done_before_its_nodes_were_seen(kube, stepped, log, monkeypatch):
    """As another replica begins to lead: it lists the policies first, and 10,000 nodes take their time."""
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 0.3)
    monkeypatch.setattr(module, "STATUS_S", 0.02)

    async def scenario():
        lends = {CPU: "4000"}
        kube.put("nodes", node("n1", {"pool": "night"}, capacity=lends, allocatable=lends))
        put_policy(kube, "night", enabled=False, selector=NIGHT["selector"])
        kube.fail("GET .*/nodes$", 503)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 1)

    stepped(scenario())
    told = [json.loads(line)["object"].get("status") for _, kind, line in kube.history if kind == "colocationpolicies"]
    assert [one["off"]["done"] for one in told if one] == [False]


def test_a_label_takes_effect_within_a_second_and_writes_one_node(kube, stepped, log):
    async def scenario():
        for number in range(50):
            kube.put("nodes", node(f"n{number}"))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 0 and kube.watchers)
            await asyncio.sleep(0.2)
            kube.put("nodes", node("n7", {"pool": "night"}))
            await until(lambda: settings(kube, "n7"), 1.0)
        assert kube.seen("patch", "nodes") == ["n7"]

    stepped(scenario())


def test_a_changed_label_goes_before_a_policy_for_all(kube, stepped, log, monkeypatch):
    monkeypatch.setattr(module, "WRITES_PER_S", 20.0)

    async def scenario():
        begin_roll_out(kube, 100)
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n000"))
            kube.put("nodes", node("n099", {SWITCH: "off"}))
            await until(lambda: (settings(kube, "n099") or {}).get("colocation"), 1.0)
            assert not settings(kube, "n090"), "the others are still to come"

    stepped(scenario())


def test_a_bad_policy_keeps_the_old_one_and_says_why(kube, log):
    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n1"))
            put_policy(kube, "night", 2, **{**NIGHT, "schedule": {"zone": "UTC"}})
            await until(lambda: "spec.schedule.zone" in status(kube, "night").get("problem", ""))
            assert settings(kube, "n1") == NIGHT["settings"]
            put_policy(kube, "night", 3, **NIGHT)
            await until(lambda: "problem" not in status(kube, "night"))

    asyncio.run(scenario())


def test_a_bad_policy_keeps_the_old_one_when_another_replica_begins_to_lead(kube, stepped, log):
    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n1"))
        put_policy(kube, "night", 2, setings={})
        async with controlling(kube, log):
            await until(lambda: "setings" in status(kube, "night").get("problem", ""))
            await asyncio.sleep(0.3)
            assert settings(kube, "n1") == NIGHT["settings"]
            kube.remove("colocationpolicies", "night")
            await until(lambda: annotation(kube, "n1") is None)

    stepped(scenario())


def test_evicted_pods_held_nodes_and_silent_ones_are_seen_to(kube, stepped, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.controller.node_law.AWAY_S", 1.5)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.TRUST_S", 1.0)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.CALM_S", 0.5)

    def condition(reason, beat):
        return [{"type": "ColocationReady", "status": "True", "reason": reason, "lastHeartbeatTime": beat}]

    async def scenario():
        evicted = json.dumps({"u1": f"{rfc3339(time.time() - 297)}/{rfc3339(time.time() + 3)}"})
        kube.put("nodes", node("evicts", annotations={EVICTED: evicted}))
        held = node("held", conditions=condition("Held", rfc3339(time.time())))
        held["spec"]["taints"] = [{"key": "mine", "effect": "NoSchedule"}]
        kube.put("nodes", held)
        lends = {CPU: "4000", "cpu": "8"}
        silent = node("silent", conditions=condition("Lending", "x"), capacity=lends, allocatable=lends)
        kube.put("nodes", silent)
        async with controlling(kube, log):
            await until(lambda: f"{EVICTED_FROM}u1" in labels(kube, "evicts"))
            await until(lambda: len(kube.get("nodes", "held")["spec"]["taints"]) == 2)
            assert kube.get("nodes", "held")["spec"]["taints"][1]["key"] == PRESSURE

            await until(lambda: kube.get("nodes", "silent")["status"]["allocatable"][CPU] == "0")
            found = kube.get("nodes", "silent")["status"]
            assert found["allocatable"]["cpu"] == "8" and found["images"], "all else stays"
            assert (found["conditions"][0]["reason"], found["conditions"][0]["lastHeartbeatTime"]) == ("Away", "x")

            calm = kube.get("nodes", "held")
            calm["status"]["conditions"] = condition("Lending", "y")
            kube.put("nodes", calm)
            await until(lambda: kube.get("nodes", "held")["spec"]["taints"] == held["spec"]["taints"])
            await until(lambda: f"{EVICTED_FROM}u1" not in labels(kube, "evicts"))

    stepped(scenario())


def test_a_conflict_a_busy_server_and_a_forgotten_history_are_survived(kube, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 0.02)

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        kube.fail("GET .*/nodes$", 503, 2)
        kube.fail("GET .*/colocationpolicies", 429, 1)
        kube.fail("PATCH .*/nodes/n1", 409, 1)
        kube.fail("PATCH .*/nodes/n1", 500, 1)
        async with controlling(kube, log) as task:
            await until(lambda: settings(kube, "n1"))
            kube.put("nodes", node("n2", {"pool": "night"}))
            await until(lambda: settings(kube, "n2"))
            kube.forget()
            kube.put("nodes", node("n3", {"pool": "night"}))
            await until(lambda: settings(kube, "n3"))
            assert not task.done()

    asyncio.run(scenario())


def test_nodes_keep_what_they_have_while_the_crd_is_not_there(kube, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 0.02)

    async def scenario():
        told = json.dumps({"version": "1", "settings": {"colocation": {"enabled": False}}})
        kube.put("nodes", node("n1", annotations={POLICY: told}))
        kube.absent.add("colocationpolicies")
        async with controlling(kube, log) as task:
            await until(lambda: len(kube.seen("list", "colocationpolicies")) > 3)
            assert kube.get("nodes", "n1")["metadata"]["annotations"] == {POLICY: told}
            assert not task.done()
            kube.absent.clear()
            await until(lambda: annotation(kube, "n1") is None)

    asyncio.run(scenario())


def test_a_silent_watch_begins_anew(kube, log, monkeypatch):
    monkeypatch.setattr(follower, "SILENCE_S", 0.2)

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        async with controlling(kube, log):
            await until(lambda: len(kube.seen("list", "nodes")) >= 3)

    asyncio.run(scenario())


def test_watches_that_end_at_once_are_asked_for_with_pauses(kube, stepped, log):
    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        kube.cuts_watches = True
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n1"))
            await asyncio.sleep(1.5)
            assert len(kube.seen("watch", "nodes")) <= 5
            kube.cuts_watches = False
            kube.put("nodes", node("n2", {"pool": "night"}))
            await until(lambda: settings(kube, "n2"))

    stepped(scenario())


# --- nodes that nobody could hear ------------------------------------------------------------------------------------


def lending(beat=None):
    """What a node writes of itself each few minutes."""
    said = {"type": "ColocationReady", "status": "True", "reason": "Lending", "lastHeartbeatTime": beat}
    return {"capacity": {CPU: "4000"}, "allocatable": {CPU: "4000"}, "conditions": [said]}


def told_to_lend_nothing(kube):
    """One that is told by a list which was under way may be told twice: what is written is the same."""
    return set(kube.seen("patch", "nodes/status"))


def test_nodes_are_not_away_as_their_watch_was_broken_for_long(kube, stepped, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.controller.node_law.AWAY_S", 2.0)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.TRUST_S", 1.0)
    monkeypatch.setattr("criproxy_cluster.requests.MOST_PAUSE_S", 0.2)

    async def scenario():
        for name in ("lives", "gone"):
            kube.put("nodes", node(name, **lending("x")))
        async with controlling(kube, log):
            await until(lambda: [1 for plural, _ in kube.watchers if plural == "nodes"])
            kube.fail("GET .*/nodes$", 429, 10_000)
            kube.tell_watchers(None)
            await asyncio.sleep(3.0)
            assert not told_to_lend_nothing(kube), "nobody can hear it"
            kube.faults.clear()
            await asyncio.sleep(0.5)
            assert not told_to_lend_nothing(kube), "it has had no time to say so"
            for beat in range(20):
                kube.put("nodes", node("lives", **lending(str(beat))))
                await asyncio.sleep(0.2)
            assert told_to_lend_nothing(kube) == {"gone"}

    stepped(scenario())


def test_a_node_that_is_gone_is_away_also_where_watches_end_at_once(kube, stepped, log, monkeypatch):
    """Lists tell of the others."""
    monkeypatch.setattr("criproxy_cluster.controller.node_law.AWAY_S", 2.0)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.TRUST_S", 1.0)
    monkeypatch.setattr("criproxy_cluster.requests.MOST_PAUSE_S", 0.4)

    async def scenario():
        kube.cuts_watches = True
        for name in ("lives", "gone"):
            kube.put("nodes", node(name, **lending("x")))
        async with controlling(kube, log):
            for beat in range(20):
                kube.put("nodes", node("lives", **lending(str(beat))))
                await asyncio.sleep(0.2)
            assert told_to_lend_nothing(kube) == {"gone"}

    stepped(scenario())


def test_watches_that_end_early_though_they_tell_something_are_asked_for_with_growing_pauses(
    kube, stepped, monkeypatch
):
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 0.1)
    log = CapturingLogger()

    async def scenario():
        kube.put("nodes", node("n1"))
        async with controlling(kube, log):
            for beat in range(40):
                await asyncio.sleep(0.1)
                kube.put("nodes", node("n1", **lending(str(beat))))
                await asyncio.sleep(0.02)
                kube.tell_watchers(None)
        assert len(kube.seen("watch", "nodes")) <= 9

    stepped(scenario())
    assert any("it ended within" in call.kwargs.get("error", "") for call in log.calls)


def test_a_watch_that_the_api_server_refuses_is_told_of_in_its_words(kube, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 0.02)
    log = CapturingLogger()

    async def scenario():
        kube.allowed = NEEDED - {("watch", "nodes")}
        async with controlling(kube, log):
            await until(lambda: log.calls)

    asyncio.run(scenario())
    assert log.calls[0].kwargs["error"] == (
        'watch of NodeResource: 403 nodes "" is forbidden: User "us" cannot watch resource "nodes"'
    )


def test_an_error_without_a_content_type_is_trouble_like_others():
    response = httpx2.Response(502, request=httpx2.Request("GET", "http://proxy"))
    with pytest.raises(Trouble), trouble_of("watch"):
        GenericClient.raise_for_status(response)


NEEDED = {
    ("list", "nodes"),
    ("watch", "nodes"),
    ("patch", "nodes"),
    ("patch", "nodes/status"),
    ("list", "colocationpolicies"),
    ("watch", "colocationpolicies"),
    ("patch", "colocationpolicies/status"),
}


def test_no_other_right_is_used(kube, log):
    async def scenario():
        kube.allowed = NEEDED
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 1 and settings(kube, "n1"))
        assert {(verb, what) for verb, what, _ in kube.requests} <= NEEDED

    asyncio.run(scenario())


def test_a_changed_label_waits_for_none_of_a_roll_out_whose_writes_are_stuck(kube, stepped, log):
    """All that a policy for all has under way hangs in a slow API server."""

    async def scenario():
        for number in range(40):
            kube.put("nodes", node(f"n{number:03}"))
        put_policy(kube, "night", **NIGHT)
        async with controlling(kube, log):
            await until(lambda: status(kube, "night").get("nodes") == 0 and kube.watchers)
            kube.slow = {"n0[0-2]": 5.0}
            put_policy(kube, "all", settings={"cpu": {"reserve_cores": 1}})
            await until(lambda: len([name for name in kube.begun if name.startswith("n0")]) >= BACKGROUND_WRITERS)
            kube.put("nodes", node("n039", {"pool": "night"}))
            await until(lambda: settings(kube, "n039"), 1.0)

    stepped(scenario())


def test_a_roll_out_rests_as_long_as_its_writes_take(kube, stepped, log, monkeypatch):
    monkeypatch.setattr(module, "BACKGROUND_WRITERS", 1)

    async def scenario():
        kube.slow = {"n00": 0.1}
        begin_roll_out(kube, 8)
        async with controlling(kube, log):
            now_s = asyncio.get_running_loop().time
            began_s = await until(lambda: kube.begun and now_s())
            await until(lambda: settings(kube, "n007"))
            assert now_s() - began_s > 7 * 0.2, "each took 0.1 s, and 0.1 s nothing was asked"

    stepped(scenario())


def test_a_node_that_only_reports_waits_for_its_turn_in_a_roll_out(kube, stepped, log, monkeypatch):
    monkeypatch.setattr(module, "WRITES_PER_S", 5.0)

    async def scenario():
        begin_roll_out(kube, 30)
        async with controlling(kube, log):
            await until(lambda: settings(kube, "n000"))
            kube.put("nodes", node("n028", annotations={POLICY_STATUS: "{}"}, capacity={CPU: "7"}))
            kube.put("nodes", node("n029", {SWITCH: "off"}))
            await until(lambda: settings(kube, "n029"), 1.0)
            assert not settings(kube, "n028")

    stepped(scenario())


def test_events_that_come_at_once_are_worked_off_one_by_one(kube, log, monkeypatch):
    """So that the webhook answers in between; counted in turns of the loop, not in time."""
    turns, seen_in = 0, []
    see = Fleet.see

    def noted(fleet, view):
        seen_in.append(turns)
        return see(fleet, view)

    monkeypatch.setattr(Fleet, "see", noted)

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario():
        for number in range(200):
            kube.put("nodes", node(f"n{number:03}"))
        turning = asyncio.create_task(count())
        async with controlling(kube, log):
            await until(lambda: len(seen_in) == 200)
        assert max(seen_in.count(turn) for turn in set(seen_in)) <= 2
        turning.cancel()

    asyncio.run(scenario())


# --- the lease -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(kube, log):
    """A whole replica."""
    async with kube.client() as client:
        task = asyncio.create_task(run(client, log))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def install_lease(kube):
    kube.put("leases", {"metadata": {"name": LEASE}, "spec": {}}, "criproxy-system")


def holder(kube):
    return kube.get("leases", LEASE, "criproxy-system")["spec"].get("holderIdentity")


@pytest.mark.usefixtures("short")
def test_a_replica_that_leads_again_after_the_api_server_was_away_leaves_living_nodes_alone(
    kube, stepped, log, monkeypatch
):
    """They could not report either, and do so some time after it is back."""
    monkeypatch.setattr("criproxy_cluster.controller.node_law.AWAY_S", 4.0)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.TRUST_S", 2.0)

    async def scenario():
        install_lease(kube)
        kube.put("nodes", node("n1", {"pool": "night"}, **lending(rfc3339(time.time()))))
        put_policy(kube, "night", **NIGHT)
        async with running(kube, log):
            await until(lambda: settings(kube, "n1"))
            before = len(kube.seen("list", "nodes"))
            kube.fail(".*", 503, 10_000)
            await asyncio.sleep(4.5)
            kube.faults.clear()
            await until(lambda: len(kube.seen("list", "nodes")) > before)
            await asyncio.sleep(1.0)
            assert not told_to_lend_nothing(kube)
            kube.put("nodes", {**kube.get("nodes", "n1"), "status": lending(rfc3339(time.time()))})
            await asyncio.sleep(2.0)
            assert not told_to_lend_nothing(kube)

    stepped(scenario())


@pytest.mark.usefixtures("short")
def test_a_replica_that_leads_again_knows_nothing_of_the_time_before(kube, stepped, log, monkeypatch):
    """A policy that another one has seen go is not written back, though the list of policies takes its time."""
    monkeypatch.setattr("criproxy_cluster.requests.MOST_PAUSE_S", 0.1)

    async def scenario():
        install_lease(kube)
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **NIGHT)
        put_policy(kube, "other", **NIGHT)
        async with running(kube, log):
            me = await until(lambda: settings(kube, "n1") and status(kube, "other").get("nodes") == 1 and holder(kube))
            kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "b"}}, "criproxy-system")
            await asyncio.sleep(0.4)
            kube.remove("colocationpolicies", "night")
            kube.put("nodes", node("n1", {"pool": "night"}))
            kube.put("colocationpolicies", {**policy("other", **NIGHT), "status": {"nodes": 7}})
            kube.fail("GET .*/colocationpolicies", 503, 10_000)
            patches = len(kube.seen("patch", "nodes"))
            kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": ""}}, "criproxy-system")
            await until(lambda: holder(kube) == me)
            await asyncio.sleep(1.5)
            assert len(kube.seen("patch", "nodes")) == patches, "it has no policies yet"
            kube.faults.clear()
            await until(lambda: (annotation(kube, "n1") or {}).get("name") == "other.1")
            await until(lambda: status(kube, "other").get("nodes") == 1)

    stepped(scenario())


@pytest.mark.usefixtures("short")
def test_what_was_known_when_a_replica_led_before_is_gone_when_it_leads_again(kube, stepped, log, monkeypatch):
    led: list = []

    class Noted(Controller):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            led.append((weakref.ref(self._fleet), sum(fleet() is not None for fleet, _ in led)))

    monkeypatch.setattr("criproxy_cluster.commands.controller.Controller", Noted)

    async def scenario():
        install_lease(kube)
        kube.put("nodes", node("n1", {SWITCH: "off"}))
        async with running(kube, log):
            await until(lambda: settings(kube, "n1"))
            kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "b"}}, "criproxy-system")
            await until(lambda: len(led) == 2)
        assert [others for _, others in led] == [0, 0]

    stepped(scenario())


def test_a_part_that_is_ended_as_another_has_failed_is_cancelled_once():
    """A second cancel would break off what it does at its end, as giving the Lease back."""

    async def scenario():
        ending, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def fails():
            raise ZeroDivisionError

        async def ends_slowly():
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await may_end.wait()
                ended.set()

        with pytest.raises(ExceptionGroup):
            async with beside(fails(), ends_slowly()):
                try:
                    await asyncio.Event().wait()
                finally:
                    await ending.wait()
                    asyncio.get_running_loop().call_later(0.01, may_end.set)
        assert ended.is_set()

    asyncio.run(scenario())


@pytest.mark.parametrize("spec", [NIGHT, {"settings": {"cpu": {"no_such_key": 1}}}], ids=["good", "bad"])
def test_a_status_that_somebody_else_took_away_is_written_again(kube, stepped, log, spec):
    """As where a policy was made anew under its name while the watch was broken."""

    async def scenario():
        kube.put("nodes", node("n1", {"pool": "night"}))
        put_policy(kube, "night", **spec)
        async with controlling(kube, log):
            await until(lambda: "nodes" in status(kube, "night"))
            put_policy(kube, "night", **spec)
            assert not status(kube, "night")
            await until(lambda: "nodes" in status(kube, "night"))
            await asyncio.sleep(60.0)
            assert kube.seen("patch", "colocationpolicies").count("night") <= 4

    stepped(scenario())
