"""The keeper of the book of owners against an API server in memory (fake_kube)."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import CapturingLogger

from cluster.tests.controller.test_controller import put_policy, status, until
from cluster.tests.fake_kube import failure
from cluster.tests.manifests import load, named, rights_of
from criproxy_cluster.budget import HOUR_S
from criproxy_cluster.cli import main
from criproxy_cluster.commands.overflowing_webhook import keep_up
from criproxy_cluster.controller.controller import Controller
from criproxy_cluster.overflow import keeper as keeping_of
from criproxy_cluster.overflow.following import follow
from criproxy_cluster.overflow.keeper import AGAIN_S, HEARD_S, WRITE_S, OwnersKeeper, OwnersSettings
from criproxy_cluster.overflow.resources import BOOK, KEY
from criproxy_cluster.owners.history import Outcomes, decoded, encoded
from criproxy_cluster.owners.rules import Past, Slo
from criproxy_cluster.requests import MOST_REFUSED_S
from criproxy_cluster.vocabulary.names import CLASS, OVERFLOW, RAISED, TIER
from criproxy_cluster.vocabulary.times import rfc3339
from criproxy_cluster.webhook.overflow import Overflow

MANIFESTS = Path(__file__).parents[2] / "manifests"
SYSTEM = "criproxy-system"
OWNERS = {
    "namespaces": ["batch"],
    "overflow": {"pods": 5, "evictions": 2, "waitSeconds": 60},
    "raise": {"waitSeconds": 30, "pods": 1},
    "slo": {"times": 2},
}


@pytest.fixture
def lines():
    return CapturingLogger()


@pytest.fixture
def cluster(kube):
    kube.put("configmaps", {"metadata": {"name": BOOK}}, SYSTEM)
    put_policy(kube, "night", owners=OWNERS)
    put_virtual(kube)
    return kube


def wall_s():
    """By the keeper's clock, which the test steps."""
    module: Any = keeping_of
    return module.time.time()


def put_virtual(kube, ready="True"):
    conditions = [{"type": "Ready", "status": ready}]
    labels = {"type": "virtual-kubelet"}
    kube.put(
        "nodes",
        {
            "metadata": {"name": "vk", "labels": labels, "annotations": {}},
            "spec": {},
            "status": {"conditions": conditions},
        },
    )


def put_pod(kube, name, ago_s=0.0, node="", conditions=(), **meta):
    now_s = wall_s()
    owner = {"kind": "Job", "name": "sort", "uid": "u1", "controller": True}
    annotations = meta.pop("annotations", {})
    body = {
        "metadata": {
            "name": name,
            "namespace": "batch",
            "labels": {CLASS: "offline"},
            "annotations": annotations,
            "creationTimestamp": rfc3339(now_s - ago_s),
            "ownerReferences": [owner],
            **meta,
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Pending", "conditions": list(conditions)},
    }
    kube.put("pods", body, "batch")


def true(kind, ago_s=0.0):
    return {"type": kind, "status": "True", "lastTransitionTime": rfc3339(wall_s() - ago_s)}


@asynccontextmanager
async def keeping(kube, log, **settings):
    async with kube.client() as client:
        keeper = OwnersKeeper(client, OwnersSettings(**settings), log)
        task = asyncio.create_task(Controller(client, log, owners=keeper).run())
        try:
            yield keeper
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def book(kube):
    return decoded(kube.get("configmaps", BOOK, SYSTEM)["data"][KEY])


def meta(kube, name):
    return kube.get("pods", name, "batch")["metadata"]


def said(lines, event):
    return [call.kwargs for call in lines.calls if call.args == (event,)]


def test_book_has_what_owners_have_met_with_and_the_next_leader_goes_on_with_it(cluster, stepped, log):
    async def scenario():
        gone = [true("PodScheduled", 20), true("DisruptionTarget", 5)]
        put_pod(cluster, "a", 30, "n1", gone, deletionTimestamp=rfc3339(wall_s()))
        async with keeping(cluster, log):
            await until(lambda: book(cluster).histories)
            (one,) = book(cluster).histories
            assert (one.owner.name, len(one.evicted)) == ("sort", 1)
            assert book(cluster).virtual and [rule.policy for rule in book(cluster).rules] == ["night"]
        async with keeping(cluster, log):
            await asyncio.sleep(WRITE_S + 2)
            cluster.remove("pods", "a", "batch")
            put_pod(cluster, "b", 2, "n1", [true("PodScheduled", 1), true("DisruptionTarget")])
            await until(lambda: len(book(cluster).histories[0].evicted) == 2)

    stepped(scenario())


def test_a_policy_that_can_not_be_read_when_a_replica_begins_to_lead_keeps_its_rule_and_outcomes(cluster, stepped, log):
    async def scenario():
        put_policy(cluster, "all", owners={"raise": {"waitSeconds": 3600, "pods": 1}}, priority=-1)
        put_policy(cluster, "first", owners={"namespaces": ["other"], "slo": {"times": 3}}, priority=1)
        async with keeping(cluster, log):
            await until(lambda: len(book(cluster).rules) == 3)
        before = book(cluster)
        before.outcomes["night"] = Outcomes(kept=3)
        cluster.put("configmaps", {"metadata": {"name": BOOK}, "data": {KEY: encoded(before)}}, SYSTEM)
        put_policy(cluster, "night", schedule={"zone": "UTC"}, owners=OWNERS)
        put_pod(cluster, "a", 40)
        for _ in range(2):
            async with keeping(cluster, log):
                await until(lambda: "spec.schedule.zone" in status(cluster, "night").get("problem", ""))
                await until(lambda: TIER in meta(cluster, "a")["labels"])
                await until(lambda: status(cluster, "night").get("owners", {}).get("raised") == 1, 2 * AGAIN_S)
                assert status(cluster, "night")["owners"]["kept"] == 3
                assert [one.policy for one in book(cluster).rules] == ["first", "night", "all"]
                assert book(cluster).rules == before.rules and book(cluster).outcomes == before.outcomes
        async with keeping(cluster, log):
            await asyncio.sleep(WRITE_S + 2)
            put_policy(cluster, "night", owners={"namespaces": ["batch"], "slo": {"times": 4}})
            await until(lambda: any(one.spec.slo == Slo(times=4) for one in book(cluster).rules))
            assert book(cluster).outcomes == before.outcomes
            cluster.remove("colocationpolicies", "night")
            await until(lambda: [one.policy for one in book(cluster).rules] == ["first", "all"])
            assert book(cluster).outcomes == {}
            put_policy(cluster, "night", schedule={"zone": "UTC"}, owners=OWNERS)
            await asyncio.sleep(2 * WRITE_S)
            assert [one.policy for one in book(cluster).rules] == ["first", "all"]

    stepped(scenario())


def test_book_is_written_when_it_changes_and_now_and_then(cluster, stepped, log):
    async def scenario():
        async with keeping(cluster, log):
            await until(lambda: book(cluster))
            await asyncio.sleep(10 * AGAIN_S + 5)

    stepped(scenario())
    assert 10 <= len(cluster.seen("patch", "configmaps")) <= 14


def test_a_waiting_pod_is_raised_within_the_bound_and_only_by_its_labels(cluster, stepped, log):
    async def scenario():
        put_pod(cluster, "a", 10)
        put_pod(cluster, "b", 5)
        put_pod(cluster, "c", 100, labels={CLASS: "offline", TIER: "low"})
        async with keeping(cluster, log) as keeper:
            await asyncio.sleep(15)
            assert TIER not in meta(cluster, "a")["labels"]
            await until(lambda: meta(cluster, "a")["labels"][TIER] == "mid", 10)
            assert meta(cluster, "a")["annotations"].keys() == {RAISED}
            await asyncio.sleep(30)
            assert TIER not in meta(cluster, "b")["labels"] and meta(cluster, "c")["labels"][TIER] == "low"
            cluster.remove("pods", "a", "batch")
            await until(lambda: meta(cluster, "b")["labels"][TIER] == "mid", 10)
            assert keeper.state.raises == 2

    stepped(scenario())
    assert set(cluster.seen("patch", "pods/status")) == {"a", "b"} and not cluster.seen("patch", "pods")


def test_a_pod_that_waits_is_made_anew_once_the_webhooks_know_within_the_budget(cluster, stepped, lines):
    async def scenario():
        for name in "abc":
            put_pod(cluster, name, 30)
        async with keeping(cluster, lines, remakes_per_hour=2) as keeper:
            await asyncio.sleep(25)
            assert keeper.state.remakes == 0
            await until(lambda: keeper.state.remakes == 1, 20)
            assert keeper.state.problem == ""
            await asyncio.sleep(2 * (WRITE_S + HEARD_S) + AGAIN_S)
            assert keeper.state.remakes == 2
            await asyncio.sleep(600)
            assert keeper.state.remakes == 2, "the budget is of an hour"

    stepped(scenario())
    assert {"a", "b", "c"} - {name for plural, _, name in cluster.objects if plural == "pods"} == {"a", "b"}
    assert "waited" in said(lines, "pod_made_anew")[0]["why"]


def test_the_budget_of_remakes_is_of_an_hour_whoever_leads(cluster, stepped, log):
    async def scenario():
        for name in "ab":
            put_pod(cluster, name, 90)
        async with keeping(cluster, log, remakes_per_hour=1) as keeper:
            await until(lambda: keeper.state.remakes == 1, 60)
            await until(lambda: book(cluster).remade, 0.1)
        began_s = wall_s()
        for _ in range(3):
            async with keeping(cluster, log, remakes_per_hour=1) as keeper:
                await asyncio.sleep(600)
                assert keeper.state.remakes == 0
        async with keeping(cluster, log, remakes_per_hour=1) as keeper:
            await until(lambda: keeper.state.remakes == 1, began_s + HOUR_S + 10 - wall_s())

    stepped(scenario())


@pytest.mark.parametrize(
    ("number", "words"), [(500, 'failed calling webhook "x"'), (403, 'admission webhook "x" denied the request')]
)
def test_a_pod_that_is_refused_holds_up_no_other_and_is_tried_again(number, words, cluster, stepped, lines):
    for request in ("POST .*/pods/a/eviction", "PATCH .*/pods/a/status"):
        cluster.fail(request, number, 6, failure(number, words)[1])

    async def scenario():
        for name in "ab":
            put_pod(cluster, name, 300)
        async with keeping(cluster, lines, remakes_per_hour=5) as keeper:
            await until(lambda: keeper.state.raises == 1 and keeper.state.remakes == 1, 60)
            written = len(cluster.seen("patch", "configmaps"))
            await asyncio.sleep(3 * AGAIN_S)
            assert len(cluster.seen("patch", "configmaps")) >= written + 3 and words in keeper.state.problem
            assert meta(cluster, "a") and len(tries(cluster, "a")) <= 10, "with pauses that grow"
            await until(lambda: ("pods", "batch", "a") not in cluster.objects, 6 * MOST_REFUSED_S)
            await until(lambda: keeper.state.problem == "")

    stepped(scenario())
    assert all(words in one["error"] for one in said(lines, "owners_trouble")) and len(tries(cluster, "a")) == 14


def test_of_many_that_are_refused_one_is_named(cluster, stepped, lines):
    cluster.fail("POST .*/eviction", 403, 100_000)

    async def scenario():
        for index in range(30):
            put_pod(cluster, f"p{index}", 300)
        async with keeping(cluster, lines, remakes_per_hour=30):
            await asyncio.sleep(600)

    stepped(scenario())
    assert len(said(lines, "owners_trouble")) == 1 and len(tries(cluster, "p29")) > 3


def tries(cluster, pod):
    return [one for one in cluster.requests if one[1] in ("pods/eviction", "pods/status") and one[2] == pod]


@pytest.mark.parametrize(
    ("number", "words"), [(403, 'pods "a" is forbidden: User "us" cannot create'), (429, "later"), (503, "not now")]
)
def test_what_concerns_all_pods_is_asked_for_one_of_them_after_pauses(number, words, cluster, stepped, lines):
    cluster.fail("POST .*/eviction", number, 1000, failure(number, words)[1])

    async def scenario():
        for index in range(50):
            put_pod(cluster, f"p{index}", 300)
        async with keeping(cluster, lines, remakes_per_hour=50) as keeper:
            await until(lambda: words in keeper.state.problem, 60)
            before = len(cluster.seen("create", "pods/eviction"))
            await asyncio.sleep(120)
            assert len(cluster.seen("create", "pods/eviction")) - before < 12 and keeper.state.remakes == 0

    stepped(scenario())
    assert len(said(lines, "owners_trouble")) == 1


def test_pods_that_are_refused_leave_time_for_the_book(cluster, stepped, log):
    cluster.fail("POST .*/eviction", 403, 100_000)
    cluster.answers_in_s = 0.5

    async def scenario():
        for index in range(300):
            put_pod(cluster, f"p{index}", 300)
        async with keeping(cluster, log, remakes_per_hour=300):
            await until(lambda: len(cluster.seen("create", "pods/eviction")) > 100, 120)
            before = len(cluster.seen("patch", "configmaps"))
            await asyncio.sleep(3 * AGAIN_S)
            assert len(cluster.seen("patch", "configmaps")) - before >= 2

    stepped(scenario())


def test_a_pod_that_has_a_node_meanwhile_is_not_raised_and_nothing_is_amiss(cluster, stepped, lines):
    async def scenario():
        put_pod(cluster, "a", 10)
        async with keeping(cluster, lines) as keeper:
            await until(lambda: keeper.state.waiting == 1)
            found = cluster.objects["pods", "batch", "a"]  # the watch has not said so yet
            found["spec"]["nodeName"], found["metadata"]["resourceVersion"] = "n", "1000"
            await until(lambda: len(tries(cluster, "a")) >= 3, 60)
            assert keeper.state.raises == 0 and keeper.state.problem == ""
            put_pod(cluster, "a", 60, "n")
            await until(lambda: keeper.state.waiting == 0)

    stepped(scenario())
    assert not said(lines, "owners_trouble")


@pytest.mark.parametrize("lacks", ["virtual", "budget", "owner"])
def test_no_pod_is_made_anew_without(lacks, cluster, stepped, log):
    async def scenario():
        if lacks == "virtual":
            put_virtual(cluster, "False")
        put_pod(cluster, "a", 300, **({"ownerReferences": []} if lacks == "owner" else {}))
        async with keeping(cluster, log, remakes_per_hour=0 if lacks == "budget" else 5):
            await asyncio.sleep(120)

    stepped(scenario())
    assert cluster.get("pods", "a", "batch") and not cluster.seen("create", "pods/eviction")


def test_status_says_whether_the_slo_was_kept(cluster, stepped, log):
    def ended(name, created_ago_s, ran_s):
        put_pod(cluster, name, created_ago_s, "n", [true("PodScheduled", 1)], annotations={alone: "60"})
        pod = cluster.get("pods", name, "batch")
        finished = rfc3339(wall_s() - created_ago_s + ran_s)
        done = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"finishedAt": finished}}}]}
        return {**pod, "status": {**pod["status"], **done}}

    alone = "colocation.criproxy.io/alone-seconds"

    async def scenario():
        async with keeping(cluster, log):
            done = ended("a", 200, 100)
            await asyncio.sleep(5)
            cluster.put("pods", done, "batch")
            await until(lambda: status(cluster, "night")["owners"]["kept"] == 1, 60)
            done = ended("b", 200, 190)
            await asyncio.sleep(5)
            cluster.put("pods", done, "batch")
            await until(lambda: status(cluster, "night")["owners"]["missed"] == 1, 60)
            assert status(cluster, "night")["owners"]["late"] == ["batch/Job/sort"]
            assert status(cluster, "night")["nodes"] == 0

    stepped(scenario())


def test_while_nothing_is_heard_of_pods_nothing_is_done(cluster, stepped, log):
    async def scenario():
        put_pod(cluster, "a", 5)
        async with keeping(cluster, log, remakes_per_hour=5):
            await until(lambda: book(cluster).histories)
            cluster.fail("GET .*/pods", 500, times=10_000)
            cluster.tell_watchers(None)
            await asyncio.sleep(10)
            before = len(cluster.seen("patch", "configmaps"))
            await asyncio.sleep(10 * AGAIN_S)
            assert len(cluster.seen("patch", "configmaps")) == before
            assert TIER not in meta(cluster, "a")["labels"] and not cluster.seen("create", "pods/eviction")
            cluster.faults.clear()
            await until(lambda: TIER in meta(cluster, "a")["labels"], 2 * AGAIN_S)

    stepped(scenario())


def test_what_is_shown_of_owners_is_bounded(cluster, stepped, log):
    async def scenario():
        for number in range(40):
            owner = {"kind": "Job", "name": f"j{number}", "uid": f"u{number}", "controller": True}
            put_pod(cluster, f"p{number}", 100 + number, ownerReferences=[owner], annotations={OVERFLOW: "x"})
        async with keeping(cluster, log) as keeper:
            await until(lambda: keeper.state.waiting == 40)
            assert len(keeper.state.worst) == keeping_of.MOST_SHOWN
            owner, past = keeper.state.worst[0]
            assert owner.name == "j39" and past.waited_s >= 139
            assert keeper.state.overflowed == 40

    stepped(scenario())


def test_a_trouble_is_said_once_with_its_remedy_and_nodes_go_on(kube, stepped, lines):
    put_policy(kube, "night", settings={"cpu": {"reserve_cores": 1}}, owners=OWNERS)
    put_virtual(kube)

    async def scenario():
        async with keeping(kube, lines) as keeper:
            await until(lambda: kube.get("nodes", "vk")["metadata"]["annotations"])
            await asyncio.sleep(60)
            (trouble,) = said(lines, "owners_trouble")
            assert "manifests/overflow" in trouble["error"] and keeper.state.failures > 1
            kube.put("configmaps", {"metadata": {"name": BOOK}, "data": {KEY: "{"}}, SYSTEM)
            await until(lambda: keeper.state.problem == "", 60)

    stepped(scenario())
    assert said(lines, "owners_unreadable") and said(lines, "owners_well_again")


def test_nothing_of_pods_is_asked_where_it_is_not_switched_on(kube, stepped, log):
    put_policy(kube, "night", owners=OWNERS)

    async def scenario():
        async with kube.client() as client:
            task = asyncio.create_task(Controller(client, log).run())
            await asyncio.sleep(60.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    stepped(scenario())
    assert {what for _, what, _ in kube.requests} <= {"nodes", "colocationpolicies", "colocationpolicies/status"}


# --- the components --------------------------------------------------------------------------------------------------


def rights(account, *folders):
    objects = [one for folder in folders for one in load(MANIFESTS / folder)]
    return rights_of(objects, account)


def arguments(deployment, *folders):
    """What a Deployment's container is started with, by the components."""
    (container,) = named(load(MANIFESTS / "base"), "Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    found = list(container["args"])
    for folder in folders:
        for patch in yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["patches"]:
            if patch["target"] == {"kind": "Deployment", "name": deployment}:
                found += [
                    one["value"]
                    for one in yaml.safe_load(patch["patch"])
                    if one["path"].endswith("/containers/0/args/-")
                ]
    return found


@pytest.mark.parametrize(
    ("folders", "remakes"), [(["overflow"], 0), (["overflow", "overflow-remake"], 20)], ids=["overflow", "with-remake"]
)
def test_components_switch_it_on(folders, remakes, monkeypatch):
    found = []
    monkeypatch.setattr("criproxy_cluster.commands.controller.main", lambda *given: found.append(given[2]))
    monkeypatch.setattr("criproxy_cluster.commands.overflowing_webhook.main", lambda _: found.append("followed"))
    for deployment in ("criproxy-controller", "criproxy-webhook"):
        with pytest.raises(SystemExit):
            main(arguments(deployment, *folders))
    assert found == [OwnersSettings(remakes), "followed"]


def test_remakes_are_of_owners(capsys):
    with pytest.raises(SystemExit):
        main(["controller", "--remakes-per-hour", "5"])
    assert "--owners" in capsys.readouterr().err


async def all_done(kube, log):
    """A pod is raised, one is made anew, and the webhook hears of the book, and of a change of it."""
    heard = Overflow(asyncio.get_running_loop().time, wall_s)
    put_pod(kube, "a", 300)
    async with kube.client() as client, keeping(kube, log, remakes_per_hour=1) as keeper:
        task = asyncio.create_task(follow(client, heard, log))
        try:
            await until(lambda: keeper.state.remakes == 1 and keeper.state.raises == 1, 60)
            put_pod(kube, "b", 300)
            await until(lambda: len(heard._book.histories) == 1 and keeper.state.waiting == 1, 60)
            assert heard._past(meta(kube, "b"), "batch") != Past(), "it did not come to pass"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


OURS = {
    "criproxy-controller": rights("criproxy-controller", "overflow", "overflow-remake"),
    "criproxy-webhook": rights("criproxy-webhook", "overflow", "overflow-remake"),
}


def allowed(missing=None):
    base = rights("criproxy-controller", "base")
    return (base | OURS["criproxy-controller"] | OURS["criproxy-webhook"]) - {missing}


def test_all_rights_are_used_and_no_other(cluster, stepped, log):
    cluster.allowed = allowed()
    stepped(all_done(cluster, log))
    assert all(cluster.may(*request) for request in cluster.requests)
    used = {*cluster.requests, *((verb, what) for verb, what, _ in cluster.requests)}
    assert OURS["criproxy-controller"] | OURS["criproxy-webhook"] <= used


ALL = sorted(OURS["criproxy-controller"] | OURS["criproxy-webhook"])


@pytest.mark.parametrize("missing", ALL, ids=[" ".join(one) for one in ALL])
def test_without_one_of_its_rights_something_is_not_done(missing, cluster, stepped, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 300.0)
    monkeypatch.setattr("criproxy_cluster.requests.MOST_PAUSE_S", 300.0)
    cluster.allowed = allowed(missing)
    try:
        stepped(all_done(cluster, log))
    except AssertionError as error:
        assert "it did not come to pass" in str(error)
    else:
        assert missing[0] == "watch", "lists, again and again, do its work"
        assert not all(cluster.may(*request) for request in cluster.requests)


def test_a_webhook_without_a_credential_answers_and_nothing_overflows(lines, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    heard = Overflow(lambda: 0.0, lambda: 0.0)
    asyncio.run(keep_up(heard, lines))
    (said_once,) = said(lines, "owners_not_followed")
    assert "converted" in said_once["consequence"] and not heard._book.virtual


def test_what_is_refused_in_many_words_is_said_in_a_few(cluster, stepped, log):
    cluster.fail("PATCH .*/pods/p/status", 422, 1000, failure(422, "x" * 1_000_000)[1])

    async def scenario():
        put_pod(cluster, "p", 40)
        async with keeping(cluster, log) as keeper:
            await until(lambda: keeper.state.problem.startswith("pod batch/p: 422 xxx"))
            assert len(keeper.state.problem) < 1100

    stepped(scenario())
