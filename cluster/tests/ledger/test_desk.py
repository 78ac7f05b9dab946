"""The doors' common desk: whose bind it is, whose turn it is, when nothing is said, and what ends reservations."""

import asyncio
import json
from collections import Counter

import pytest

from cluster.tests import stepped as stepping
from criproxy_cluster.ledger.desk import ABSTAIN_S, LOOK_S, MOST_READS, SILENT_S, AbstainedError, Desk, Seen
from criproxy_cluster.ledger.http_door import LedgerAnswers
from criproxy_cluster.ledger.law import BIND_S, RESERVE_S, Ledger, Pod, Wish
from criproxy_cluster.ledger.reviews import Asked
from criproxy_cluster.metrics import LedgerMetrics
from criproxy_cluster.requests import Trouble
from criproxy_cluster.webhook.front import Reply

CPU = "kubernetes.io/batch-cpu"


def pod(uid, priority=0, cpu=1000, **more):
    return Pod(uid, "default", f"pod-{uid}", ((CPU, cpu),), priority, **more)


def asked(uid, node="n", *, dry_run=False):
    return Asked("review", "default", f"pod-{uid}", uid, node, dry_run)


class FakeApi:
    """Pods by name, and whether they are marked. `hangs`: no read is answered."""

    def __init__(self):
        self.pods, self.reads, self.hangs, self.trouble, self.unreadable = {}, [], False, None, ""

    async def read(self, namespace, name):
        self.reads.append(name)
        if self.hangs:
            await asyncio.Event().wait()
        if self.trouble:
            raise self.trouble
        if name == self.unreadable:
            raise Trouble("the answer can't be read")
        return self.pods.get(name)


class Ready:
    ready = True


class World:
    """A desk whose replica has led for long, and one node with room for one pod."""

    def __init__(self, log):
        self.ledger, self.seen, self.api, self.leads = Ledger(), Seen(), FakeApi(), True
        self.log = log
        self.desk = Desk(self.ledger, self.seen, self.api, leads=lambda: self.leads, now_s=self.now_s, log=log)
        self.seen.missing.clear()
        self.ledger.set_node("n", {CPU: 1000})

    def now_s(self):
        return asyncio.get_running_loop().time()

    async def begin(self):
        self.leading = asyncio.create_task(self.desk.lead())
        await asyncio.sleep(ABSTAIN_S)
        self.seen.pods_s = self.now_s()

    async def bind(self, uid, **more):
        try:
            return (await self.desk.bind(asked(uid, **more))).why
        except AbstainedError as why:
            return f"abstains: {why}"


@pytest.fixture
def world(log):
    return World(log)


def running(world, scenario):
    async def all_of_it():
        await world.begin()
        await scenario()
        world.leading.cancel()

    stepping.run(all_of_it())


def test_what_comes_at_once_is_decided_by_priority_and_then_as_it_came(world):
    async def scenario():
        for uid, priority in (("a", 0), ("b", 5), ("c", 5)):
            world.ledger.see(pod(uid, priority))
        answers = await asyncio.gather(*(world.bind(uid) for uid in "abc"))
        assert [not one for one in answers] == [False, True, False]

    running(world, scenario)


def test_a_bind_that_is_none_of_ours_passes_without_a_read_or_a_leader(world):
    async def scenario():
        world.seen.unplaced.add("online")
        world.ledger.see(pod("bound", node="n"))
        world.leads = False
        assert world.desk.passes(asked("online")) and world.desk.passes(asked("bound"))
        assert not world.desk.passes(asked("new")) and not world.desk.passes(asked(""))
        assert world.api.reads == []

    running(world, scenario)


UNKNOWN = {
    "marked": ((pod("a"), True), True),
    "not marked": ((pod("a"), False), False),
    "another one of its name": ((pod("b"), True), False),
    "gone": (None, False),
}


@pytest.mark.parametrize(("found", "counts"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_pod_that_is_not_known_is_read(world, found, counts):
    async def scenario():
        world.api.pods["pod-a"] = found
        assert await world.bind("a") == ""
        assert world.ledger.free("n") == {CPU: 0 if counts else 1000}

    running(world, scenario)


def test_nothing_is_said_to_a_bind_whose_pod_can_t_be_read_in_time(world):
    """The bind is done all the same, and counted: who looks at a node that is overfull is told why."""

    async def scenario():
        world.api.hangs = True
        began_s = world.now_s()
        assert await world.bind("a") == "abstains: the pod was not read within 0.3 s"
        assert world.now_s() - began_s < 0.5
        world.api.hangs, world.api.trouble = False, Trouble("no answer")
        assert await world.bind("a") == "abstains: the pod could not be read: no answer"
        assert world.desk.figures["abstained"] == 2

    running(world, scenario)


def test_nothing_is_said_to_one_more_while_many_are_read(world):
    async def scenario():
        world.api.hangs = True
        answers = await asyncio.gather(*(world.bind(f"u{number}") for number in range(MOST_READS + 1)))
        assert answers[-1] == f"abstains: {MOST_READS} pods are being read already"
        assert len(world.api.reads) == MOST_READS

    running(world, scenario)


def test_a_dry_run_takes_nothing(world):
    async def scenario():
        world.ledger.see(pod("a"))
        world.ledger.see(pod("big", cpu=2000))
        assert await world.bind("a", dry_run=True) == ""
        assert "has 1000 of" in await world.bind("big", dry_run=True)
        assert world.ledger.free("n") == {CPU: 1000}

    running(world, scenario)


def another_leads(world):
    world.leads = False


def not_listed(world):
    world.seen.missing.add("pods")


def a_watch_is_lost(world):
    world.seen.deaf = lambda: True


@pytest.mark.parametrize(
    ("what", "why"),
    [(another_leads, "another replica leads"), (not_listed, "not yet listed: pods"), (a_watch_is_lost, "is lost")],
)
def test_who_can_t_know_says_nothing(world, what, why):
    async def scenario():
        world.ledger.see(pod("a"))
        what(world)
        assert why in await world.bind("a")
        with pytest.raises(AbstainedError, match=why):
            await world.desk.reserve([Wish(pod("a"), "n")], all_or_nothing=False)
        assert world.desk.full(pod("a", cpu=9000), ["n"]) == {}

    running(world, scenario)


def test_a_new_leader_says_nothing_for_a_while_and_forgets_what_it_had_reserved_before(world):
    async def scenario():
        world.ledger.see(pod("a"))
        await world.bind("a")
        world.leading.cancel()
        world.leading = asyncio.create_task(world.desk.lead())
        await asyncio.sleep(ABSTAIN_S - 0.1)
        assert "begun to lead" in await world.bind("a")
        assert world.ledger.reservations == 0
        await asyncio.sleep(0.1)
        assert await world.bind("a") == ""

    running(world, scenario)


def test_nothing_is_refused_by_what_a_silent_watch_has_said(world):
    async def scenario():
        world.ledger.see(pod("a", node="n"))
        world.ledger.see(pod("b"))
        assert "has 0 of" in await world.bind("b")
        await asyncio.sleep(SILENT_S + 0.1)
        assert "nothing was heard" in await world.bind("b")
        world.seen.pods_s = world.now_s()
        assert "has 0 of" in await world.bind("b")

    running(world, scenario)


def test_a_batch_that_is_let_go_for_a_silent_watch_keeps_nothing(world):
    async def scenario():
        world.ledger.set_node("m", {CPU: 1000})
        world.ledger.see(pod("a", node="n"))
        await asyncio.sleep(SILENT_S + 0.1)
        with pytest.raises(AbstainedError, match="nothing was heard"):
            await world.desk.reserve([Wish(pod("b"), "m"), Wish(pod("c"), "n")], all_or_nothing=False)
        assert world.ledger.reservations == 0
        assert [one.why for one in await world.desk.reserve([Wish(pod("b"), "m")], all_or_nothing=False)] == [""]

    running(world, scenario)


def test_a_node_that_is_named_often_is_looked_at_once(world, monkeypatch):
    async def scenario():
        looked: Counter[str] = Counter()
        could = world.ledger.could

        def counted(one, node):
            looked[node] += 1
            return could(one, node)

        monkeypatch.setattr(world.ledger, "could", counted)
        world.desk.full(pod("a"), ["n"] * 10_000)
        assert looked == {"n": 1}

    running(world, scenario)


def test_a_watch_that_does_not_show_what_is_stored_is_late_and_nothing_is_refused_until_it_has(world):
    async def scenario():
        world.ledger.see(pod("a"))
        await world.bind("a")
        world.api.pods["pod-a"] = (pod("a", node="n"), True)
        await asyncio.sleep(BIND_S)
        await world.desk.look()
        assert world.desk.abstains() == "a watch is late"
        assert world.ledger.free("n") == {CPU: 0}
        world.ledger.see(pod("a", node="n"))
        await world.desk.look()
        assert world.desk.abstains() == ""

    running(world, scenario)


def test_a_watch_that_is_five_seconds_late_lets_nobody_into_what_is_taken(world):
    async def scenario():
        looking = asyncio.create_task(world.desk.run())
        for uid in "ab":
            world.ledger.see(pod(uid))
        assert await world.bind("a") == ""
        for _ in range(5):
            await asyncio.sleep(1.0)
            assert "has 0 of" in await world.bind("b")
        world.ledger.see(pod("a", node="n"))
        assert "has 0 of" in await world.bind("b")
        world.ledger.forget("a")
        assert await world.bind("b") == ""
        looking.cancel()

    running(world, scenario)


def test_a_scheduler_that_stops_between_reserving_and_binding_leaves_nothing_behind(world):
    async def scenario():
        looking = asyncio.create_task(world.desk.run())
        world.api.pods["pod-a"] = (pod("a"), True)
        (verdict,) = await world.desk.reserve([Wish(pod("a"), "n")], all_or_nothing=True)
        assert verdict.allowed and world.ledger.free("n") == {CPU: 0}
        world.api.trouble = Trouble("no answer")
        await asyncio.sleep(RESERVE_S + 2 * LOOK_S)
        assert world.ledger.reservations == 1, "it can't be known"
        world.api.trouble = None
        await asyncio.sleep(2 * LOOK_S)
        assert world.ledger.free("n") == {CPU: 1000}
        looking.cancel()

    running(world, scenario)


def test_one_that_is_bound_and_not_marked_does_not_count_as_the_watch_will_never_show_it(world):
    async def scenario():
        await world.desk.reserve([Wish(pod("a"), "n")], all_or_nothing=False)
        world.api.pods["pod-a"] = (pod("a", node="n"), False)
        await asyncio.sleep(RESERVE_S)
        await world.desk.look()
        assert world.desk.abstains() == "" and world.ledger.free("n") == {CPU: 1000}

    running(world, scenario)


def test_a_pod_that_can_t_be_read_holds_up_no_other_one(world):
    async def scenario():
        world.ledger.set_node("n", {CPU: 2000})
        await world.desk.reserve([Wish(pod("a"), "n"), Wish(pod("b"), "n")], all_or_nothing=False)
        world.api.unreadable = "pod-a"
        await asyncio.sleep(RESERVE_S)
        await world.desk.look()
        assert world.ledger.free("n") == {CPU: 1000}

    running(world, scenario)


def test_what_the_watch_knows_of_a_pod_counts_whatever_a_wish_says(world):
    async def scenario():
        world.ledger.see(pod("a", cpu=900))
        await world.desk.reserve([Wish(pod("a", cpu=1), "n")], all_or_nothing=False)
        assert world.ledger.free("n") == {CPU: 100}
        world.desk.release(["a", "never"])
        assert world.ledger.free("n") == {CPU: 1000}

    running(world, scenario)


# --- over HTTP --------------------------------------------------------------------------------------------------------


def review(uid, node="n", **more):
    binding = {"metadata": {"name": f"pod-{uid}", "uid": uid}, "target": {"kind": "Node", "name": node}}
    request = {"uid": "r", "namespace": "default", "name": f"pod-{uid}", "object": binding, **more}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def answers(world):
    return LedgerAnswers(world.desk, Ready(), LedgerMetrics(world.desk), world.log)


async def post(world, path, body):
    said = answers(world).answer("POST", path, body, ending=False)
    reply = said if isinstance(said, Reply) else await said
    return reply.status, json.loads(reply.body) if reply.status == 200 else reply.body.decode()


def test_the_api_server_is_told_what_is_free(world):
    async def scenario():
        for uid in "ab":
            world.ledger.see(pod(uid))
        status, said = await post(world, "/bind", review("a"))
        assert (status, said["response"]) == (200, {"uid": "r", "allowed": True})
        _, said = await post(world, "/bind", review("b"))
        why = f"criproxy: node n has 0 of {CPU} free (of 1000), and the pod asks for 1000"
        assert said["response"]["status"] == {"code": 409, "reason": "Conflict", "message": why}
        world.leads = False
        assert await post(world, "/bind", review("b")) == (503, "criproxy: abstains: another replica leads\n")
        world.seen.unplaced.add("b")
        assert (await post(world, "/bind", review("b")))[1]["response"]["allowed"]

    running(world, scenario)


def test_an_extender_is_told_which_nodes_have_room(world):
    async def scenario():
        world.ledger.set_node("m", {CPU: 500})
        requests = {"requests": {CPU: "1k"}}
        spec = {"containers": [{"resources": requests}]}
        args = {"Pod": {"metadata": {"uid": "a"}, "spec": spec}, "Nodes": None, "NodeNames": ["n", "m", "new"]}
        _, said = await post(world, "/filter", json.dumps(args).encode())
        assert said["NodeNames"] == ["n", "new"] and "has 500 of" in said["FailedNodes"]["m"]
        assert world.ledger.free("n") == {CPU: 1000}
        status, why = await post(world, "/filter", json.dumps({**args, "NodeNames": None}).encode())
        assert status == 400 and "nodeCacheCapable: true" in why

    running(world, scenario)


@pytest.mark.parametrize("path", ["/bind", "/filter"])
@pytest.mark.parametrize("body", [b"", b"{}", b"[1", b'{"request": {"object": 1}}', b"\xff" * 9])
def test_what_can_t_be_read_is_said_to_be_so(world, path, body):
    async def scenario():
        status, _ = await post(world, path, body)
        assert status == 400

    running(world, scenario)


def test_only_who_decides_is_ready(world):
    async def scenario():
        def ask(path, method="GET", *, ending=False):
            return answers(world).answer(method, path, b"", ending=ending).status

        assert (ask("/readyz"), ask("/readyz", ending=True), ask("/healthz")) == (200, 503, 200)
        assert (ask("/bind"), ask("/other")) == (405, 404)
        world.leads = False
        assert (ask("/readyz"), ask("/healthz")) == (503, 200)

    running(world, scenario)
