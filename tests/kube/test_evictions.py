"""Evictions, at a server that has budgets, is old, busy, or away."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.kube.client import ApiAnswer
from criproxy.kube.events import EventWriter
from criproxy.kube.evictions import (
    LATER_S,
    MAX_EVICTED,
    TRIES,
    EvictionTarget,
    Evictor,
    Outcome,
    change,
    entries_of,
    kept_out,
    kept_out_for,
    not_over,
    outcome,
)
from criproxy.kube.objects import Involved, Meta, Node, decoded
from criproxy.model import PodRef
from criproxy.vocabulary.names import EVICTED, EVICTED_FROM
from criproxy.vocabulary.times import rfc3339
from tests.fakes.apiserver import BUDGET, failure
from tests.fakes.waiting import until
from tests.kube.conftest import KubeBench

SEVERAL: tuple = (
    201,
    {
        "kind": "Status",
        "status": "Failure",
        "code": 500,
        "message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
    },
    {},
)
"""The API server puts it into the body of an answer that is well otherwise. Source: eviction.go, rtStatus."""

ANOTHER = failure(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b")
MISSING = failure(404, "NotFound", 'pods "a" not found', kind="pods")


def victim(name, **fields):
    return EvictionTarget(PodRef(f"uid-{name}", "default", name), **fields)


def interval(clock, begins_s, ends_s, name="job-0"):
    """The annotation with one entry, by the clock of this node."""
    return json.dumps({name: "/".join(rfc3339(clock.wall + seconds) for seconds in (begins_s, ends_s))})


class Bench(KubeBench):
    def __init__(self, credential, clock, api):
        super().__init__(credential, clock, api)
        how = self.how
        self.events = EventWriter(self.client, Involved("Node", "node1", "uid-node1"), **how)
        self.evictor = Evictor(self.client, self.events, **how)
        api.pods = [{"metadata": {"name": name, "uid": f"uid-{name}"}} for name in "abc"]

    def first(self, *victims):
        """Evict them in their order, up to the first that goes."""
        done = []
        for one in victims:
            done.append((one.pod.name, asyncio.run(self.evictor.evict(one, "the node is short of memory")).outcome))
            if done[-1][1] not in (Outcome.BUDGET, Outcome.REFUSED):
                break
        asyncio.run(self.tell_all())
        return done

    async def tell_all(self):
        """What is told beside the evictions."""
        await self.evictor.write_again()
        await self.events.tell_all()

    def left(self):
        return "".join(pod["metadata"]["name"] for pod in self.api.pods)

    def evicted(self):
        return json.loads(self.annotation(EVICTED))


@pytest.fixture
def bench(credential, clock, api):
    return Bench(credential, clock, api)


def test_first_victim_is_evicted_with_its_grace_period_and_uid(bench, api):
    assert bench.first(victim("a", grace_period_s=7), victim("b")) == [("a", Outcome.EVICTED)]
    assert bench.left() == "bc"
    assert api.evictions[0]["apiVersion"] == "policy/v1"
    assert api.evictions[0]["deleteOptions"] == {"preconditions": {"uid": "uid-a"}, "gracePeriodSeconds": 7}
    assert bench.log.names() == ["evicted"]


def test_eviction_is_told_on_the_pod_and_on_the_node(bench, api):
    bench.first(victim("a"))
    about = [(one["involvedObject"]["kind"], one["involvedObject"]["name"], one["message"]) for one in api.events]
    assert about == [
        ("Pod", "a", "Evicted by criproxy: the node is short of memory"),
        ("Node", "node1", "default/a: Evicted by criproxy: the node is short of memory"),
    ]
    assert {one["reason"] for one in api.events} == {"EvictedByColocation"}
    assert [one["metadata"]["namespace"] for one in api.events] == ["default", "default"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pod_that_has_ended_is_not_evicted_as_that_would_delete_it(bench, api, phase):
    api.pods[0]["status"] = {"phase": phase}
    made = asyncio.run(bench.evictor.evict_pod(PodRef("uid-a", "default", "a"), "the schedule is off"))
    assert (made.outcome, made.message) == (Outcome.GONE, "the pod has ended")
    assert [one.method for one in api.requests] == ["GET"]
    assert bench.left() == "abc"


def test_evicted_pods_controller_is_kept_out_for_a_while(bench, clock):
    bench.first(victim("a", controller="job-1"))
    clock.advance(200)
    bench.first(victim("b"))
    assert sorted(bench.evicted()) == ["job-1", "uid-b"]
    clock.advance(150)
    bench.first(victim("c"))
    assert sorted(bench.evicted()) == ["uid-b", "uid-c"]


def test_controller_is_kept_out_before_its_pod_is_evicted_as_another_one_is_made_at_once(bench, api):
    bench.first(victim("a", controller="job-1"))
    writes = [(one.method, one.path.rpartition("/")[2]) for one in api.requests]
    assert writes[:2] == [("PATCH", "node1"), ("POST", "eviction")]
    assert api.nodes["node1"]["metadata"]["labels"] == {f"{EVICTED_FROM}job-1": ""}


@pytest.mark.parametrize("answer", [BUDGET, failure(403, "Forbidden", "not yours"), MISSING], ids=str)
def test_controller_of_a_pod_that_is_not_evicted_is_let_in_again(bench, api, answer):
    bench.first(victim("a", controller="job-1"))
    api.budgets = {"b": answer, "c": answer}
    bench.first(victim("b", controller="job-2"))
    bench.first(victim("c", controller="job-1"))
    assert sorted(bench.evicted()) == ["job-1"]
    assert api.nodes["node1"]["metadata"]["labels"] == {f"{EVICTED_FROM}job-1": ""}


def test_mark_that_is_late_does_not_undo_a_newer_one(bench, api):
    """The controller goes by the annotation: it would take the newer one's label away."""
    api.fail("PATCH", slow_s=1.3)

    async def scenario():
        await bench.evictor.evict(victim("a", controller="job-1"), "why")
        assert bench.left() == "bc"
        await bench.evictor.evict(victim("b", controller="job-2"), "why")
        await bench.tell_all()

    asyncio.run(scenario())
    assert sorted(bench.evicted()) == ["job-1", "job-2"]
    assert sorted(api.nodes["node1"]["metadata"]["labels"]) == [f"{EVICTED_FROM}job-1", f"{EVICTED_FROM}job-2"]


@pytest.mark.parametrize("refused", ["", "a", "b", "ab"])
def test_controller_of_two_pods_at_once_is_kept_out_if_one_of_them_is_evicted(bench, api, refused):
    api.budgets = dict.fromkeys(refused, BUDGET)
    pods = [victim(name, controller="job-1") for name in "ab"]

    async def scenario():
        await asyncio.gather(*(bench.evictor.evict(one, "why") for one in pods))
        await bench.tell_all()

    asyncio.run(scenario())
    assert list(bench.evicted()) == ([] if refused == "ab" else ["job-1"])
    assert list(api.nodes["node1"]["metadata"]["labels"]) == [f"{EVICTED_FROM}{name}" for name in bench.evicted()]


def test_caller_that_waits_no_longer_lets_the_controller_in_again(bench, api):
    api.fail("eviction", slow_s=2.0)

    async def scenario():
        async with asyncio.timeout(0.5):
            await bench.evictor.evict(victim("a", controller="job-1"), "why")

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
    asyncio.run(bench.tell_all())
    assert (bench.evicted(), api.nodes["node1"]["metadata"]["labels"]) == ({}, {})


def test_label_goes_when_its_time_is_over_and_nobody_has_taken_it_away(bench, api, clock):
    bench.first(victim("a", controller="job-1"))
    clock.advance(300 + LATER_S - 1)
    bench.evictor.forget_those_over()
    asyncio.run(bench.tell_all())
    assert sorted(bench.evicted()) == ["job-1"]
    clock.advance(2)
    bench.evictor.forget_those_over()
    asyncio.run(bench.tell_all())
    assert (bench.evicted(), api.nodes["node1"]["metadata"]["labels"]) == ({}, {})


def test_labels_of_an_earlier_process_go_once_the_node_is_seen(bench, api, clock):
    over = interval(clock, -1000, -LATER_S - 1)
    api.put_node(metadata={"labels": {f"{EVICTED_FROM}job-0": "", "mine": "1"}, "annotations": {EVICTED: over}})

    async def scenario():
        telling = asyncio.create_task(bench.evictor.run())
        await asyncio.sleep(0)
        bench.evictor.saw(Node(metadata=Meta(annotations={EVICTED: over})))
        await until(lambda: not bench.evicted())
        telling.cancel()

    asyncio.run(scenario())
    assert api.nodes["node1"]["metadata"]["labels"] == {"mine": "1"}


def test_label_that_could_not_be_taken_away_goes_a_little_later(bench, api, monkeypatch):
    monkeypatch.setattr("criproxy.kube.evictions.LATER_S", 0.1)

    async def scenario():
        api.budgets = {"a": BUDGET}
        await bench.evictor.evict(victim("a", controller="job-1"), "why")
        assert bench.evicted()
        api.fail("PATCH", 503, times=TRIES)
        task = asyncio.create_task(bench.evictor.run())
        await until(lambda: not bench.evicted())
        task.cancel()

    asyncio.run(scenario())
    assert api.nodes["node1"]["metadata"]["labels"] == {}


@pytest.mark.parametrize("answer", [MISSING, ANOTHER], ids=["gone", "another by now"])
def test_pod_that_is_gone_after_a_try_without_an_answer_counts_as_evicted(bench, api, answer):
    """Its replacement is not to come straight back."""
    api.fail("eviction", raw=b"")
    api.budgets = {"a": answer}
    assert bench.first(victim("a", controller="job-1")) == [("a", Outcome.EVICTED)]
    assert list(bench.evicted()) == ["job-1"]


@pytest.mark.parametrize("uid", ["a/b", "x" * 64, "-a", "", "\u00e4"])
def test_controller_whose_uid_can_be_no_label_gets_none(bench, api, uid):
    bench.first(victim("a", controller=uid))
    assert bench.left() == "bc"
    labels = {f"{EVICTED_FROM}uid-a": ""} if not uid else {}
    assert api.nodes["node1"]["metadata"]["labels"] == labels


def test_entries_of_an_earlier_process_are_kept(bench, clock):
    before = interval(clock, -200, 100)
    bench.evictor.saw(Node(metadata=Meta(annotations={EVICTED: before})))
    bench.first(victim("a"))
    assert sorted(bench.evicted()) == ["job-0", "uid-a"]


def test_label_that_an_earlier_process_has_left_late_goes_though_its_entry_was_written_over(bench, api, clock):
    """It was evicting when this one took over, and has marked the Node once this one had seen it."""
    bench.evictor.saw(Node())
    bench.first(victim("a", controller="job-1"))
    api.nodes["node1"]["metadata"]["labels"][f"{EVICTED_FROM}job-0"] = ""
    bench.evictor.saw(decoded(msgspec.json.encode(api.nodes["node1"]), Node))
    asyncio.run(bench.tell_all())
    assert sorted(api.nodes["node1"]["metadata"]["labels"]) == [f"{EVICTED_FROM}job-1"]


def test_entry_that_an_earlier_process_has_left_late_is_kept(bench, clock):
    bench.evictor.saw(Node())
    bench.evictor.saw(Node(metadata=Meta(annotations={EVICTED: interval(clock, -200, 100)})))
    bench.first(victim("a"))
    assert sorted(bench.evicted()) == ["job-0", "uid-a"]


def test_own_entry_that_was_taken_away_is_not_taken_over_from_a_node_as_it_was_before(bench, api):
    api.budgets = {"a": BUDGET}
    bench.first(victim("a", controller="job-1"))
    before = decoded(msgspec.json.encode(api.nodes["node1"]), Node)
    asyncio.run(bench.tell_all())
    assert bench.evicted() == {}
    bench.evictor.saw(before)
    asyncio.run(bench.tell_all())
    assert bench.evicted() == {}


def test_entries_of_an_earlier_process_are_kept_though_something_was_evicted_before_the_node_is_seen(bench, clock, api):
    before = interval(clock, -200, 100)
    api.put_node(metadata={"annotations": {EVICTED: before}})
    bench.first(victim("a"))
    bench.evictor.saw(Node(metadata=Meta(annotations={EVICTED: before})))
    asyncio.run(bench.tell_all())
    assert sorted(bench.evicted()) == ["job-0", "uid-a"]


def test_node_that_is_made_anew_is_marked_again(bench, api):
    bench.first(victim("a", controller="job-1"))
    bench.evictor.saw(decoded(msgspec.json.encode(api.nodes["node1"]), Node))
    writes = len(api.seen("PATCH", "nodes/node1"))
    asyncio.run(bench.evictor.write_again())
    assert len(api.seen("PATCH", "nodes/node1")) == writes, "the first sight says nothing new"

    api.delete_node()
    api.put_node(metadata={"uid": "another"})
    bench.evictor.saw(None)
    bench.evictor.saw(decoded(msgspec.json.encode(api.nodes["node1"]), Node))
    asyncio.run(bench.evictor.write_again())
    assert list(bench.evicted()) == ["job-1"]
    assert api.nodes["node1"]["metadata"]["labels"] == {f"{EVICTED_FROM}job-1": ""}


def test_budget_leads_to_the_next_victim_at_once(bench, api, clock):
    api.budgets = {"a": BUDGET, "b": SEVERAL}
    assert bench.first(victim("a"), victim("b"), victim("c")) == [
        ("a", Outcome.BUDGET),
        ("b", Outcome.BUDGET),
        ("c", Outcome.EVICTED),
    ]
    assert clock.slept == []


@pytest.mark.parametrize("answers", [[False], [True, False]], ids=["marked", "tried-once"])
def test_pod_that_is_not_to_go_any_more_is_not_asked_for_again(bench, api, answers):
    """An operator says so while the Node is marked, or between two tries."""
    still = iter(answers)
    api.fail("eviction", 503, times=1)
    made = asyncio.run(bench.evictor.evict(victim("a", controller="job-1"), "why", still=lambda: next(still)))
    assert (made.outcome, bench.left()) == (Outcome.WITHDRAWN, "abc")
    asyncio.run(bench.tell_all())
    assert bench.evicted() == {}


@pytest.mark.parametrize("answers", [[True, False], [True] * 3], ids=["held off since", "no answer at all"])
def test_pod_whose_eviction_may_have_been_heard_is_kept_out_whatever_is_said_of_it(bench, api, answers):
    still = iter(answers)
    api.fail("eviction", times=3, raw=b"")
    made = asyncio.run(bench.evictor.evict(victim("a", controller="job-1"), "why", still=lambda: next(still)))
    assert made.outcome in (Outcome.WITHDRAWN, Outcome.UNREACHABLE) and made.may_go
    asyncio.run(bench.tell_all())
    assert list(bench.evicted()) == ["job-1"]


def test_nobody_is_evicted_where_budgets_allow_none(bench, api):
    api.budgets = {"a": BUDGET, "b": BUDGET}
    assert [done for _, done in bench.first(victim("a"), victim("b"))] == [Outcome.BUDGET] * 2
    assert (bench.left(), api.events) == ("abc", [])


def test_old_server_is_asked_in_its_version_from_then_on(bench, api):
    api.eviction_versions = ("policy/v1beta1",)
    assert bench.first(victim("a")) == [("a", Outcome.EVICTED)]
    assert bench.first(victim("b")) == [("b", Outcome.EVICTED)]
    versions = [one.body["apiVersion"] for one in api.seen("POST", "/eviction")]
    assert versions == ["policy/v1", "policy/v1beta1", "policy/v1beta1"]


def test_several_at_once_find_the_version_of_an_old_server(bench, api):
    api.eviction_versions = ("policy/v1beta1",)

    async def at_once():
        return await asyncio.gather(*(bench.evictor.evict(victim(name), "why") for name in "abc"))

    assert [one.outcome for one in asyncio.run(at_once())] == [Outcome.EVICTED] * 3


def test_server_that_was_upgraded_is_asked_in_the_new_version(bench, api):
    api.eviction_versions = ("policy/v1beta1",)
    bench.first(victim("a"))
    api.eviction_versions = ("policy/v1",)
    assert bench.first(victim("b")) == [("b", Outcome.EVICTED)]


@pytest.mark.parametrize("uid", ["uid-x", "uid-gone"])
def test_pod_that_is_gone_or_another_by_now_ends_the_search(bench, uid):
    name = "a" if uid == "uid-x" else "gone"
    assert bench.first(EvictionTarget(PodRef(uid, "default", name)), victim("b")) == [(name, Outcome.GONE)]
    assert bench.left() == "abc"


def test_busy_server_is_asked_again_after_the_pause_it_names(bench, api, clock):
    api.fail("eviction", 429, body=b"Too many requests, please try again later.", headers={"Retry-After": "3"})
    assert bench.first(victim("a")) == [("a", Outcome.EVICTED)]
    assert 3.0 <= clock.slept[0] <= 4.0


@pytest.mark.parametrize("how", [{"raw": b""}, {"status": 503}], ids=str)
def test_server_that_does_not_answer_is_given_up_soon_and_nobody_else_is_tried(bench, api, clock, how):
    api.fail("eviction", times=9, **how)
    assert bench.first(victim("a"), victim("b")) == [("a", Outcome.UNREACHABLE)]
    assert sum(clock.slept) < 4.0
    assert bench.log.names() == ["not_evicted"]


def test_refusal_leads_to_the_next_victim(bench, api):
    api.budgets = {"a": failure(403, "Forbidden", "not yours")}
    assert bench.first(victim("a"), victim("b")) == [("a", Outcome.REFUSED), ("b", Outcome.EVICTED)]


DENIED = 'admission webhook "drain.example.com" denied the request: the database is moving'
DENIED_BY_POLICY = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'y' denied request: not now"


@pytest.mark.parametrize("code", [400, 403, 404, 409, 429, 500])
def test_denial_by_admission_counts_as_a_budget_whatever_its_code(bench, api, code):
    api.budgets = {"a": failure(code, "Whatever", DENIED)}
    assert bench.first(victim("a"), victim("b")) == [("a", Outcome.BUDGET), ("b", Outcome.EVICTED)]
    assert [one["apiVersion"] for one in api.evictions] == ["policy/v1"], "no other version was tried for it"


def test_eviction_stands_though_nothing_can_be_told_of_it(bench, api):
    api.fail("events|nodes/node1", 403, times=9)
    assert bench.first(victim("a")) == [("a", Outcome.EVICTED)]
    assert bench.log.names() == ["evicted", "eviction_not_marked", *["event_not_told"] * 2]


def test_what_could_not_be_told_at_first_is_told_later(bench, api):
    api.fail("events|nodes/node1", 409, times=2)
    bench.first(victim("a"))
    assert len(api.events) == 2
    assert bench.evicted()


def test_run_tells_while_whoever_evicts_goes_on(bench, api):
    async def scenario():
        telling = [asyncio.create_task(part.run()) for part in (bench.evictor, bench.events)]
        await bench.evictor.evict(victim("a"), "why")
        await until(lambda: len(api.events) >= 2)
        for task in telling:
            task.cancel()

    asyncio.run(scenario())
    assert bench.evicted()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, {}, {}), Outcome.EVICTED),
        ((201, {}, {}), Outcome.EVICTED),
        ((201, {"kind": "Status", "status": "Success"}, {}), Outcome.EVICTED),
        (SEVERAL, Outcome.BUDGET),
        (failure(500, "InternalError", "This pod has more than one PodDisruptionBudget, which"), Outcome.BUDGET),
        ((201, {"kind": "Status", "status": "Failure"}, {}), None),
        (MISSING, Outcome.GONE),
        (ANOTHER, Outcome.GONE),
        (failure(504, "Timeout", "couldn't update PodDisruptionBudget due to conflicts"), None),
        (BUDGET, Outcome.BUDGET),
        (failure(429, "TooManyRequests", "The disruption budget x is still being processed"), Outcome.BUDGET),
        (failure(429, "TooManyRequests", "busy"), None),
        (failure(409, "Conflict", "the object has been modified"), None),
        (failure(500, "InternalError", "etcd"), None),
        (failure(401, "Unauthorized", "who"), None),
        (failure(403, "Forbidden", "no"), Outcome.REFUSED),
        (failure(422, "Invalid", "no"), Outcome.REFUSED),
        (failure(400, "BadRequest", 'admission webhook "x" denied the request without explanation'), Outcome.BUDGET),
        (failure(403, "Forbidden", DENIED_BY_POLICY), Outcome.BUDGET),
    ],
)
def test_outcome(answer, expected):
    assert outcome(ApiAnswer(answer[0], json.dumps(answer[1]).encode())) is expected


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_clock_that_is_set_neither_ends_a_hint_nor_makes_it_last(bench, clock, jump_s):
    bench.first(victim("a", controller="job-1"))
    clock.wall += jump_s
    clock.advance(250)
    bench.first(victim("b"))
    assert sorted(bench.evicted()) == ["job-1", "uid-b"]
    clock.advance(51 + LATER_S)
    bench.evictor.forget_those_over()
    asyncio.run(bench.tell_all())
    assert sorted(bench.evicted()) == ["uid-b"]


@pytest.mark.parametrize("hour_s", [-3600.0, 3600.0])
def test_hint_of_an_earlier_process_lasts_no_longer_than_it_was_to(bench, clock, hour_s):
    bench.evictor.saw(Node(metadata=Meta(annotations={EVICTED: interval(clock, hour_s, hour_s + 300)})))
    clock.advance(301 + LATER_S)
    bench.evictor.forget_those_over()
    asyncio.run(bench.tell_all())
    assert bench.evicted() == {}


@given(
    st.text(max_size=30) | st.dictionaries(st.text(max_size=3), st.text(max_size=20)).map(json.dumps),
    st.lists(st.tuples(st.text("abc", min_size=1), st.integers(1, 10_000)), min_size=1, max_size=40),
)
def test_kept_out_is_bounded_and_holds_what_is_not_over(text, evictions):
    entries = entries_of(text, 1e5, 1e9)
    for key, seconds in evictions:
        entries = kept_out(not_over(entries, 1e5), key, kept_out_for(seconds, 1e5, 1e9))
    written = json.loads(change((), entries))["metadata"]["annotations"][EVICTED]
    assert len(entries) <= MAX_EVICTED
    assert len(written) < 64 * 1024
    assert set(entries) <= {key for key, _ in evictions}
    again = entries_of(written, 1e5, 1e9)
    assert {name: one.ends_s for name, one in again.items()} == {name: one.ends_s for name, one in entries.items()}
