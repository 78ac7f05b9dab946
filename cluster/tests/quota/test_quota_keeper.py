"""The keeper of a Cohort against an API server in memory (fake_kube)."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from structlog.testing import CapturingLogger

from cluster.tests.controller.test_controller import annotation, policy, until
from cluster.tests.fake_kube import forbidden
from criproxy_cluster.budget import HOUR_S
from criproxy_cluster.cli import main
from criproxy_cluster.controller.controller import Controller
from criproxy_cluster.controller.follower import PAGE
from criproxy_cluster.quota.keeper import AGAIN_S, QuotaKeeper, QuotaSettings
from criproxy_cluster.quota.law import RISE_S, WINDOW_S
from criproxy_cluster.quota.surplus import OVER_S
from criproxy_cluster.requests import FORGOTTEN_S, MOST_REFUSED_S
from criproxy_cluster.vocabulary.names import SUSPENDED, SUSPENDS

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
GIB = 1 << 30


def put_node(kube, name, cpu, memory="8Gi", labels=None, **spec):
    kube.put(
        "nodes",
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": labels or {"pool": "night"}, "annotations": {}},
            "spec": spec,
            "status": {
                "allocatable": {CPU: cpu, MEMORY: memory},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
    )


def put_flavor(kube, name="lent", labels=None):
    kube.put("resourceflavors", {"metadata": {"name": name}, "spec": {"nodeLabels": labels or {"pool": "night"}}})


def put_workload(kube, name, second, cpu="1", *, granted=1, reclaimable=0, **spec):
    """`granted`: to so many pods, of which so many are `reclaimable`."""
    assignment = {"name": "main", "flavors": {"cpu": "lent"}, "resourceUsage": {"cpu": cpu}, "count": granted}
    reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": f"2026-01-01T00:00:{second:02}Z"}
    kube.put(
        "workloads",
        {
            "metadata": {"name": name, "namespace": "batch", "annotations": {}},
            "spec": {"queueName": "q", "podSets": [{"name": "main", "count": granted}], **spec},
            "status": {
                "reclaimablePods": [{"name": "main", "count": reclaimable}],
                "admission": {"clusterQueue": "q", "podSetAssignments": [assignment]},
                "conditions": [reserved],
            },
        },
        "batch",
    )


def quota(kube, flavor="lent"):
    """Of the Cohort: CPU and memory, as they are written."""
    (group,) = kube.get("cohorts", "lent")["spec"]["resourceGroups"]
    (found,) = [one for one in group["flavors"] if one["name"] == flavor]
    return tuple(one["nominalQuota"] for one in found["resources"])


@pytest.fixture
def lines():
    return CapturingLogger()


@asynccontextmanager
async def keeping(kube, log, **settings):
    async with kube.client() as client:
        keeper = QuotaKeeper(client, QuotaSettings(**settings), log)
        task = asyncio.create_task(Controller(client, log, listener=keeper).run())
        try:
            yield keeper
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def said(lines, event):
    return [call.kwargs for call in lines.calls if call.args == (event,)]


def test_cohort_has_what_nodes_of_the_flavor_lend_and_follows_it(kube, stepped, lines):
    put_flavor(kube)
    put_node(kube, "a", "4000")
    put_node(kube, "b", "2500")
    put_node(kube, "other", "9000", labels={"pool": "day"})

    async def scenario():
        async with keeping(kube, lines) as keeper:
            await until(lambda: quota(kube) == ("6500m", str(16 * GIB)))
            assert kube.get("cohorts", "lent")["apiVersion"] == "kueue.x-k8s.io/v1beta2"
            put_node(kube, "a", "500")
            await until(lambda: quota(kube)[0] == "3000m", 2.5)
            put_node(kube, "a", "4000")
            await asyncio.sleep(WINDOW_S / 2)
            assert quota(kube)[0] == "6500m", "of the window, one reading was less"
            put_node(kube, "b", "4000")
            await asyncio.sleep(WINDOW_S / 2)
            assert quota(kube)[0] == "6500m"
            await until(lambda: quota(kube)[0] == "8000m", WINDOW_S / 2 + RISE_S)
            assert keeper.state.problem == "" and keeper.state.quota["lent"].millicores == 8000
            assert keeper.state.writes < 60, "it is written when it changes, and now and then"

    stepped(scenario())
    assert len(said(lines, "quota_written")) == 4


def test_nothing_of_kueue_is_asked_where_it_is_not_switched_on(kube, stepped, log):
    put_node(kube, "a", "4000")

    async def scenario():
        async with kube.client() as client:
            task = asyncio.create_task(Controller(client, log).run())
            await asyncio.sleep(60.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    stepped(scenario())
    assert {what for _, what, _ in kube.requests} == {"nodes", "colocationpolicies"}


def test_new_leader_does_not_raise_what_the_cohort_has(kube, stepped, log):
    put_flavor(kube)
    put_node(kube, "a", "8000")

    async def first():
        async with keeping(kube, log):
            await until(lambda: quota(kube)[0] == "8000m")
            put_node(kube, "a", "3000")
            await until(lambda: quota(kube)[0] == "3000m")

    async def second():
        put_node(kube, "a", "8000")
        async with keeping(kube, log):
            await asyncio.sleep(WINDOW_S - 5)
            assert quota(kube)[0] == "3000m"
            await until(lambda: quota(kube)[0] == "8000m", 10.0)

    stepped(first())
    stepped(second())


def test_cohort_that_is_deleted_comes_back(kube, stepped, log):
    put_flavor(kube)
    put_node(kube, "a", "4000")

    async def scenario():
        async with keeping(kube, log):
            await until(lambda: quota(kube))
            kube.remove("cohorts", "lent")
            await until(lambda: quota(kube)[0] == "4000m", AGAIN_S + 2)

    stepped(scenario())


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lambda kube: kube.absent.update({"cohorts", "resourceflavors"}), "install Kueue 0.15 or later"),
        (lambda kube: kube.fail("PATCH .*/cohorts/lent", 409, 1000), "delete the Cohort, and it is made anew"),
        (lambda kube: kube.fail("PATCH .*/cohorts/lent", 403, 1000), "component cluster/manifests/queue"),
        (lambda kube: kube.fail("GET .*/cohorts/lent", 500, 1000), "Cohort lent"),
        (lambda kube: kube.remove("resourceflavors", "lent"), "there is no ResourceFlavor lent"),
    ],
    ids=["kueue-is-not-there", "somebody-else-s", "no-right", "server-fails", "no-flavor"],
)
def test_what_is_wrong_is_said_once_with_the_remedy_and_nothing_else_waits(breaks, words, kube, stepped, *, lines):
    put_flavor(kube)
    put_node(kube, "a", "4000")
    breaks(kube)

    async def scenario():
        async with keeping(kube, lines) as keeper:
            await until(lambda: words in keeper.state.problem)
            kube.put("colocationpolicies", policy("all", settings={"cpu": {"reserve_cores": 1}}))
            await until(lambda: annotation(kube, "a"), 2.0)
            await asyncio.sleep(600.0)
            assert words in keeper.state.problem
            kube.absent.clear()
            kube.faults.clear()
            put_flavor(kube)
            await until(lambda: quota(kube)[0] == "4000m", 60.0)
            await until(lambda: keeper.state.problem == "")

    stepped(scenario())
    (trouble,) = [one for one in said(lines, "quota_trouble") if words in one["error"]]
    assert trouble["cohort"] == "lent"
    asked = [one for one in kube.requests if one[1] in ("cohorts", "resourceflavors")]
    assert len(asked) < 120, "with pauses that grow"


def test_nothing_is_amiss_while_kueue_s_kinds_are_being_listed(kube, stepped, lines):
    put_flavor(kube)
    put_node(kube, "a", "4000")
    kube.answers_in_s = 0.5

    async def scenario():
        async with keeping(kube, lines):
            await until(lambda: quota(kube))

    stepped(scenario())
    assert not said(lines, "quota_trouble")


def test_one_flavor_that_is_missing_keeps_no_other_from_falling(kube, stepped, log):
    put_flavor(kube)
    put_node(kube, "a", "4000")

    async def scenario():
        async with keeping(kube, log, flavors=("lent", "gone")) as keeper:
            await until(lambda: quota(kube)[0] == "4000m")
            assert "there is no ResourceFlavor gone" in keeper.state.problem
            put_node(kube, "a", "1000")
            await until(lambda: quota(kube)[0] == "1000m", 2.5)

    stepped(scenario())


# --- suspending ------------------------------------------------------------------------------------------------------


def active(kube, name):
    return kube.get("workloads", name, "batch")["spec"].get("active")


def mark(kube, name):
    return kube.get("workloads", name, "batch")["metadata"]["annotations"].get(SUSPENDED)


def evict(kube, name):
    """As Kueue does with one that is not active."""
    found = kube.get("workloads", name, "batch")
    kube.put("workloads", {**found, "status": {"conditions": [{"type": "QuotaReserved", "status": "False"}]}}, "batch")


def put_left(kube, name="left"):
    """A Workload that the controller before has suspended, and whose quota Kueue has taken back."""
    put_workload(kube, name, 5, active=False)
    kube.get("workloads", name, "batch")["metadata"]["annotations"][SUSPENDED] = "2026-01-01T00:00:00Z"
    evict(kube, name)


def begin(kube):
    put_flavor(kube)
    put_node(kube, "a", "4000")
    for number in range(4):
        put_workload(kube, f"w{number}", number)


def test_newest_workload_is_suspended_and_waits_in_its_queue_again(kube, stepped, lines):
    begin(kube)

    async def scenario():
        async with keeping(kube, lines, suspends_per_hour=5) as keeper:
            await until(lambda: quota(kube))
            put_node(kube, "a", "3000")
            await asyncio.sleep(OVER_S - 5)
            assert [active(kube, f"w{number}") for number in range(4)] == [None] * 4
            await until(lambda: active(kube, "w3") is False, 10.0)
            assert mark(kube, "w3")
            await asyncio.sleep(OVER_S * 2)
            assert [active(kube, f"w{number}") for number in range(4)] == [None, None, None, False], "no more go"
            evict(kube, "w3")
            await until(lambda: active(kube, "w3") is True)
            assert mark(kube, "w3") is None
            assert (keeper.state.suspended, keeper.state.resumed) == (1, 1)

    stepped(scenario())
    assert [one["workload"] for one in said(lines, "workload_suspended")] == ["w3"]


@pytest.mark.parametrize(
    ("spec", "suspended"),
    [
        ({"taints": [{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]}, 0),
        ({"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}, 0),
        ({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, 1),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, 1),
    ],
    ids=["memory-pressure", "cordoned", "unreachable", "disrupted"],
)
def test_none_is_suspended_whose_pods_go_on_where_no_new_ones_come(spec, suspended, kube, stepped, log):
    put_flavor(kube)
    for number, node in enumerate("ab"):
        put_node(kube, node, "1000")
        put_workload(kube, f"w{number}", number)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5) as keeper:
            await until(lambda: quota(kube)[0] == "2000m")
            put_node(kube, "b", "1000", **spec)
            await until(lambda: quota(kube)[0] == "1000m", 2.5)
            await asyncio.sleep(OVER_S + 10)
            assert keeper.state.suspended == suspended

    stepped(scenario())


@pytest.mark.parametrize(
    "fewer",
    [{"reclaimable": 6}, {"podSets": [{"name": "main", "count": 2}]}, {"reclaimable": 9}],
    ids=["pods-have-ended", "an-elastic-job-shrank", "more-than-there-were"],
)
def test_pods_that_have_ended_count_as_in_use_no_more(fewer, kube, stepped, log):
    put_flavor(kube)
    put_node(kube, "a", "3000")
    put_workload(kube, "other", 1)
    put_workload(kube, "job", 2, "8", granted=8, **fewer)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5) as keeper:
            await until(lambda: quota(kube))
            await asyncio.sleep(OVER_S + 10)
            assert keeper.state.suspended == 0

    stepped(scenario())


def test_workload_that_is_deleted_after_a_list_broke_off_counts_as_in_use_no_more(kube, stepped, log):
    begin(kube)
    put_workload(kube, "gone", 0)
    for number in range(PAGE):
        put_workload(kube, f"x{number}", 8, "0")
    kube.fail("GET .*/workloads.continue", 500)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5) as keeper:
            await until(lambda: kube.seen("list", "workloads")[1:])
            kube.remove("workloads", "gone", "batch")
            await asyncio.sleep(OVER_S + 10)
            assert kube.seen("list", "workloads")[3:]
            assert keeper.state.suspended == 0

    stepped(scenario())


def test_one_that_its_user_has_made_inactive_is_left_alone(kube, stepped, log):
    begin(kube)
    put_workload(kube, "users", 9, active=False)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5):
            await until(lambda: quota(kube))
            evict(kube, "users")
            await asyncio.sleep(OVER_S * 2)

    stepped(scenario())
    assert active(kube, "users") is False and "users" not in kube.seen("patch", "workloads")


def test_one_that_its_user_changes_meanwhile_is_seen_again_first(kube, stepped, log):
    begin(kube)
    kube.fail("PATCH .*/workloads/w3", 409)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5) as keeper:
            await until(lambda: quota(kube))
            put_node(kube, "a", "3000")
            await until(lambda: active(kube, "w3") is False, OVER_S + 10)
            assert keeper.state.suspended == 1 and keeper.state.problem == ""

    stepped(scenario())
    assert kube.seen("patch", "workloads") == ["w3", "w3"]


def test_one_that_is_refused_is_said_and_the_next_newest_goes(kube, stepped, lines):
    begin(kube)
    kube.fail("PATCH .*/workloads/w3", 422, 1000)

    async def scenario():
        async with keeping(kube, lines, suspends_per_hour=5) as keeper:
            await until(lambda: quota(kube))
            put_node(kube, "a", "3000")
            await until(lambda: active(kube, "w2") is False, OVER_S + 10)
            assert "Workload batch/w3: 422" in keeper.state.problem
            put_node(kube, "a", "4000")
            await until(lambda: keeper.state.problem == "", MOST_REFUSED_S + FORGOTTEN_S)

    stepped(scenario())
    assert active(kube, "w3") is None and active(kube, "w1") is None
    assert [one["error"] for one in said(lines, "quota_trouble")] == ["Workload batch/w3: 422 as the test wants it"]


def test_the_budget_counts_what_may_have_been_done(kube, stepped, log):
    begin(kube)
    kube.loses = "/workloads/w3"

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=1):
            await until(lambda: quota(kube))
            put_node(kube, "a", "1000")
            await asyncio.sleep(2 * OVER_S)

    stepped(scenario())
    assert [active(kube, f"w{number}") for number in range(4)] == [None, None, None, False]


def test_the_budget_is_of_an_hour_whoever_leads(kube, stepped, log):
    begin(kube)

    async def scenario():
        put_node(kube, "a", "2000")
        async with keeping(kube, log, suspends_per_hour=1) as keeper:
            await until(lambda: keeper.state.suspended, OVER_S + 60)
        assert kube.get("cohorts", "lent")["metadata"]["annotations"][SUSPENDS] == mark(kube, "w3"), "in the same look"
        evict(kube, "w3")
        for _ in range(3):
            async with keeping(kube, log, suspends_per_hour=1) as keeper:
                await asyncio.sleep(2 * OVER_S)
                assert keeper.state.suspended == 0
        async with keeping(kube, log, suspends_per_hour=1) as keeper:
            await until(lambda: keeper.state.suspended, HOUR_S - 6 * OVER_S + 10)

    stepped(scenario())


@pytest.mark.parametrize("text", ["soon", "2999-01-01T00:00:00Z", ",,2023-11-14T22:13:20Z,"])
def test_times_in_the_cohort_that_cannot_be_keep_nobody_from_being_suspended(text, kube, stepped, log):
    begin(kube)
    kube.put("cohorts", {"metadata": {"name": "lent", "annotations": {SUSPENDS: text}}, "spec": {}})

    async def scenario():
        put_node(kube, "a", "3000")
        async with keeping(kube, log, suspends_per_hour=1) as keeper:
            await until(lambda: keeper.state.suspended, OVER_S + 60)

    stepped(scenario())


def test_nobody_is_suspended_while_nothing_is_heard_of_workloads(kube, stepped, log):
    begin(kube)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5):
            await until(lambda: quota(kube))
            kube.fail("GET .*/workloads", 500, times=10_000)
            kube.tell_watchers(None)
            put_node(kube, "a", "1000")
            await asyncio.sleep(2 * OVER_S)
            assert not kube.seen("patch", "workloads")
            kube.faults.clear()
            await until(lambda: active(kube, "w3") is False, OVER_S + 60)

    stepped(scenario())


def test_next_leader_makes_active_what_the_one_before_has_suspended(kube, stepped, log):
    begin(kube)
    put_left(kube)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5):
            await until(lambda: active(kube, "left") is True)

    stepped(scenario())


def test_switched_off_none_is_suspended_and_what_was_becomes_active_again(kube, stepped, log):
    begin(kube)
    put_left(kube)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=0):
            await until(lambda: active(kube, "left") is True)
            assert mark(kube, "left") is None
            put_node(kube, "a", "1000")
            await asyncio.sleep(OVER_S * 2)

    stepped(scenario())
    assert kube.seen("patch", "workloads") == ["left"]


@pytest.mark.parametrize(
    "breaks",
    [
        lambda kube: kube.remove("resourceflavors", "lent"),
        lambda kube: kube.fail("PATCH .*/cohorts/lent", 409, 1000),
        lambda kube: kube.fail("PATCH .*/cohorts/lent", 403, 1000, forbidden("patch", "cohorts", "lent")[1]),
        lambda kube: kube.fail("PATCH .*/workloads/a-refused", 422, 1000),
    ],
    ids=["no-flavor", "the-cohort-is-somebody-else-s", "no-right-to-the-cohort", "another-is-refused"],
)
def test_one_that_was_suspended_becomes_active_again_whatever_is_wrong_elsewhere(breaks, kube, stepped, log):
    begin(kube)
    for name in ("a-refused", "left"):
        put_left(kube, name)
    breaks(kube)

    async def scenario():
        async with keeping(kube, log, suspends_per_hour=5):
            await until(lambda: active(kube, "left") is True, 10.0)

    stepped(scenario())


def test_workloads_are_not_even_read_where_nothing_is_to_be_suspended(kube, stepped, log):
    begin(kube)

    async def scenario():
        async with keeping(kube, log):
            await until(lambda: quota(kube))
            put_node(kube, "a", "1000")
            await asyncio.sleep(OVER_S * 2)

    stepped(scenario())
    assert "workloads" not in {what for _, what, _ in kube.requests}


@pytest.mark.parametrize(
    ("given", "suspends"),
    [([], None), (["--suspends-per-hour=20", "--suspends-per-hour=0"], 0), (["--suspends-per-hour=-1"], 0)],
    ids=["not-given", "last-wins", "below-none"],
)
def test_flag_of_the_budget(monkeypatch, given, suspends):
    found = []
    monkeypatch.setattr("criproxy_cluster.commands.controller.main", lambda _, quota, owners: found.append(quota))
    with pytest.raises(SystemExit):
        main(["controller", "--cohort=lent", *given])
    assert found == [QuotaSettings(suspends_per_hour=suspends)]


def test_flags_of_a_cohort_without_one_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["controller", "--suspends-per-hour", "3"])
    assert ended.value.code == 2 and "add --cohort NAME" in capsys.readouterr().err
