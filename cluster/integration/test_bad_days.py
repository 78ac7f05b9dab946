"""Days on which something of the cluster's side is away, doubled or removed, against a real API server."""

import asyncio
import json
import signal
import time

import pytest
import structlog
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from cluster.integration.objects import CPU, POLICIES, policy, put_node, ready, until
from criproxy_cluster.certificates.keeper import AUTHORITY, SERVING
from criproxy_cluster.controller.controller import Controller
from criproxy_cluster.controller.leader import UNKNOWN
from criproxy_cluster.controller.lease_law import DURATION_S, RETRY_S
from criproxy_cluster.vocabulary.names import EVICTED, EVICTED_FROM, POLICY, PRESSURE
from criproxy_cluster.vocabulary.times import rfc3339
from integration.lab.clocks import wrong_clock
from integration.lab.cluster_side import MANIFESTS, SYSTEM, Replica
from integration.lab.control_plane import ApiError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

TAKES_OVER_S = DURATION_S + 2 * RETRY_S + 10.0  # ten for a busy machine


def told(plane, node):
    """The settings of the node's annotation; None: it has none."""
    text = plane.call("GET", node)["metadata"].get("annotations", {}).get(POLICY)
    return None if text is None else json.loads(text)["settings"]


def label(plane, node, **labels):
    plane.merge(node, {"metadata": {"labels": labels}})


def versions(plane, nodes, seconds):
    """How often these nodes change in that time."""
    seen = set()
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        seen |= {(node, plane.call("GET", node)["metadata"]["resourceVersion"]) for node in nodes}
        time.sleep(0.2)
    return len(seen) - len(nodes)


@pytest.fixture
def two(plane):
    """Two replicas, of which the first leads."""
    both = [Replica(plane, f"replica-{time.monotonic_ns()}") for _ in range(2)]
    for one in both:
        one.start()
        if one is both[0]:
            until(one.leads)
    yield both
    for one in both:
        one.process.signal(signal.SIGCONT)
        one.process.stop()  # so that the Lease is given back


def test_replica_that_ends_or_dies_is_followed_by_the_other_and_nodes_keep_what_they_have(plane, two):
    first, second = two
    node = put_node(plane, "followed")
    plane.call("POST", POLICIES, policy("followed", {"pool": "a"}, {"cpu": {"reserve_cores": 1}}))
    label(plane, node, pool="a")
    until(lambda: told(plane, node) == {"cpu": {"reserve_cores": 1}})

    first.process.stop()
    until(second.leads, 2 * RETRY_S + 10.0)  # the Lease was given back
    label(plane, node, pool=None)
    until(lambda: told(plane, node) is None)
    label(plane, node, pool="a")
    until(lambda: told(plane, node) is not None)

    first.start()
    second.process.kill()
    assert told(plane, node) == {"cpu": {"reserve_cores": 1}}
    until(first.leads, TAKES_OVER_S)
    label(plane, node, pool=None)
    until(lambda: told(plane, node) is None)


def test_leader_that_was_frozen_leads_no_more_and_does_not_undo_what_came_since(plane, two):
    first, second = two
    node = put_node(plane, "thawed", labels={"pool": "b"})
    plane.call("POST", POLICIES, policy("thawed", {"pool": "b"}, {"cpu": {"reserve_cores": 1}}))
    until(lambda: told(plane, node) == {"cpu": {"reserve_cores": 1}})

    first.process.signal(signal.SIGSTOP)
    plane.merge(f"{POLICIES}/thawed", {"spec": {"settings": {"cpu": {"reserve_cores": 3}}}})
    until(second.leads, TAKES_OVER_S)
    until(lambda: told(plane, node) == {"cpu": {"reserve_cores": 3}})

    first.process.signal(signal.SIGCONT)
    time.sleep(2 * RETRY_S)
    assert second.leads()
    until(lambda: told(plane, node) == {"cpu": {"reserve_cores": 3}})
    assert versions(plane, [node], 4.0) == 0


def test_two_controllers_at_once_write_the_same_and_come_to_rest(plane):
    """Without a Lease between them, which is worse than anything that the Lease lets happen."""
    nodes = [put_node(plane, f"both-{number}", labels={"pool": "c"}) for number in range(10)]
    config = KubeConfig.from_file(str(plane.account_kubeconfig(SYSTEM, "criproxy-controller"))).get()

    async def both():
        log = structlog.wrap_logger(structlog.PrintLogger())
        async with AsyncClient(config) as one, AsyncClient(config) as other, asyncio.TaskGroup() as group:
            tasks = [group.create_task(Controller(client, log).run()) for client in (one, other)]
            await asyncio.to_thread(meanwhile)
            for task in tasks:
                task.cancel()

    def meanwhile():
        plane.call("POST", POLICIES, policy("both", {"pool": "c"}, {}))
        for cores in (1, 2, 3):
            plane.merge(f"{POLICIES}/both", {"spec": {"settings": {"cpu": {"reserve_cores": cores}}}})
            settings = {"cpu": {"reserve_cores": cores}}
            until(lambda settings=settings: all(told(plane, node) == settings for node in nodes))
        plane.merge(f"{nodes[0]}/status", ready(nodes[0], "Held"))
        until(lambda: [one["key"] for one in plane.call("GET", nodes[0])["spec"]["taints"]].count(PRESSURE) == 1)
        time.sleep(2.0)
        assert versions(plane, nodes, 4.0) == 0

    asyncio.run(both())


def test_nodes_fall_back_to_their_own_files_while_the_crd_is_removed_and_the_rest_goes_on(plane, two):
    """The API server removes the policies before their kind: so it is as if each had been removed."""
    node = put_node(plane, "bare", "3000", labels={"pool": "d"})
    plane.call("POST", POLICIES, policy("bare", {"pool": "d"}, {"cpu": {"reserve_cores": 1}}))
    until(lambda: told(plane, node) is not None)

    plane.kubectl("delete", "-f", str(MANIFESTS / "base" / "crd.yaml"))
    until(lambda: told(plane, node) is None)
    with pytest.raises(ApiError) as gone:
        plane.call("GET", POLICIES)
    assert gone.value.code == 404
    plane.merge(f"{node}/status", ready(node, "Held"))
    until(lambda: any(taint["key"] == PRESSURE for taint in plane.call("GET", node)["spec"].get("taints", [])))
    assert two[0].leads() and two[0].process.is_alive()

    plane.kubectl("apply", "-k", str(MANIFESTS / "base"))
    until(lambda: plane.call("GET", POLICIES)["items"] == [])
    plane.call("POST", POLICIES, policy("bare", {"pool": "d"}, {"cpu": {"reserve_cores": 2}}))
    until(lambda: told(plane, node) == {"cpu": {"reserve_cores": 2}}, 90.0)


@pytest.mark.by_command
def test_controller_that_begins_while_the_crd_is_not_there_leaves_nodes_as_they_are(plane, two):
    node = put_node(plane, "kept")
    for one in two:
        one.process.kill()
    plane.kubectl("delete", "-f", str(MANIFESTS / "base" / "crd.yaml"))
    plane.merge(node, {"metadata": {"annotations": {POLICY: '{"settings":{"cpu":{"reserve_cores":4}}}'}}})
    two[0].start()
    until(two[0].leads, TAKES_OVER_S)
    time.sleep(5.0)
    assert told(plane, node) == {"cpu": {"reserve_cores": 4}}
    assert two[0].process.is_alive()

    plane.kubectl("apply", "-k", str(MANIFESTS / "base"))
    until(lambda: told(plane, node) is None, 90.0)  # no policy selects it


# --- clocks ----------------------------------------------------------------------------------------------------------

HURRY_AWAY_S = 30.0
HURRY = f"from criproxy_cluster.controller import node_law; node_law.AWAY_S, node_law.TRUST_S = {HURRY_AWAY_S}, 16.0"
"""For a replica: a quarter of an hour is 30 s, and a node that lives says so each 8."""

SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/criproxy-cluster"


def interval(hours, seconds):
    """From now on, by a clock that is so many hours ahead."""
    now_s = time.time() + 3600 * hours
    return f"{rfc3339(now_s)}/{rfc3339(now_s + seconds)}"


def said(plane, node, hours):
    """What a node with such a clock writes with each report."""
    made = {"type": "ColocationReady", "status": "True", "reason": "Lending"}
    made["lastHeartbeatTime"] = rfc3339(time.time() + 3600 * hours)
    plane.merge(f"{node}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}, made]}})


def lent(plane, node):
    return plane.call("GET", node)["status"]["allocatable"][CPU]


def evict(plane, node, uid, hours, seconds):
    """As a node does: the annotation, and the label with it."""
    meta = {
        "annotations": {EVICTED: json.dumps({uid: interval(hours, seconds)})},
        "labels": {f"{EVICTED_FROM}{uid}": ""},
    }
    plane.merge(node, {"metadata": meta})


def kept_out(plane, node, uid):
    return f"{EVICTED_FROM}{uid}" in plane.call("GET", node)["metadata"].get("labels", {})


@pytest.mark.parametrize(
    "hours", [pytest.param(2, id="ahead"), pytest.param(-2, id="behind", marks=pytest.mark.by_command)]
)
def test_controller_and_nodes_with_wrong_clocks_withdraw_from_those_alone_that_are_away(plane, hours):
    """The controller begins hours ahead or behind, and nodes are as much wrong the other way; nobody goes by that."""
    names = ("lives", "gone", "evicts", "evicted")
    lives, gone, evicts, evicted = (put_node(plane, f"{name}-{hours % 24}", "3000") for name in names)
    for node, wrong in ((lives, 0), (gone, 0), (evicts, -hours), (evicted, 0)):
        said(plane, node, wrong)
    evict(plane, evicted, "u1", 0, 300)  # before it begins
    replica = Replica(plane, f"wrong-{hours % 24}")
    replica.start(wrong_clock(hours), before=HURRY)
    try:
        until(replica.leads)
        evict(plane, evicts, "u2", -hours, 300)
        evict(plane, lives, "u3", -hours, 12)
        began_s = time.monotonic()
        gone_s = let_in_s = 0.0
        while (now_s := time.monotonic() - began_s) < 40.0:
            for node, wrong in ((lives, 0), (evicts, -hours), (evicted, -hours)):
                said(plane, node, wrong)
                assert lent(plane, node) == "3k"
            assert kept_out(plane, evicted, "u1") and kept_out(plane, evicts, "u2"), f"let in after {now_s:.1f} s"
            gone_s = gone_s or (lent(plane, gone) == "0" and now_s)
            let_in_s = let_in_s or (not kept_out(plane, lives, "u3") and now_s)
            time.sleep(1.0)
        assert gone_s > 10.0
        assert 10.0 < let_in_s < 20.0
    finally:
        replica.process.stop()


def test_replica_that_leads_again_after_an_outage_withdraws_from_those_alone_that_do_not_come_back(plane):
    lives, gone = (put_node(plane, f"outage-{name}", "3000") for name in ("lives", "gone"))
    for node in (lives, gone):
        said(plane, node, 0)
    replica = Replica(plane, "outage")
    replica.certify()
    replica.start(before=HURRY)
    try:
        until(replica.leads)
        plane.kill_api()
        time.sleep(31.0)
        plane.start_api()
        said(plane, lives, 0)
        until(
            lambda: "leads_no_more" in replica.log.read_text() and replica.log.read_text().count('"leads"') == 2, 40.0
        )
        ends_s = time.monotonic() + 10.0
        while time.monotonic() < ends_s:
            assert lent(plane, gone) == "3k", "it has had no time to say that it lives"
            time.sleep(0.5)
        said(plane, lives, 0)
        until(lambda: lent(plane, gone) == "0", 30.0)
        assert lent(plane, lives) == "3k"
    finally:
        replica.process.stop()


@pytest.mark.by_command
def test_two_replicas_with_clocks_hours_apart_have_one_leader_at_a_time(plane):
    first, second = replicas = [Replica(plane, f"apart-{number}") for number in range(2)]
    node = put_node(plane, "apart")
    plane.call("POST", POLICIES, policy("apart", {"pool": "e"}, {"cpu": {"reserve_cores": 1}}))
    try:
        first.start(wrong_clock(2))
        until(first.leads)
        second.start(wrong_clock(-2))
        before = plane.call("GET", LEASES)["spec"]["leaseTransitions"]
        time.sleep(DURATION_S + 2 * RETRY_S)
        assert plane.call("GET", LEASES)["spec"]["leaseTransitions"] == before
        assert first.leads()
        assert '"leads"' not in second.log.read_text()
        label(plane, node, pool="e")
        until(lambda: told(plane, node) is not None)

        first.process.kill()
        killed_s = time.monotonic()
        until(second.leads, TAKES_OVER_S)
        assert time.monotonic() - killed_s > DURATION_S - 2 * RETRY_S - 3.0, "the first might have acted still"
        first.start(wrong_clock(2))
        time.sleep(DURATION_S + RETRY_S)
        assert second.leads()
        assert first.log.read_text().count('"leads"') == 1
        label(plane, node, pool=None)
        until(lambda: told(plane, node) is None)
    finally:
        for one in replicas:
            one.process.stop()


def test_a_lease_that_is_deleted_is_made_anew_by_the_account_s_own_rights(plane):
    replica = Replica(plane, "without-lease")
    try:
        replica.start()
        until(replica.leads)
        plane.call("DELETE", LEASES)
        until(lambda: times_logged(replica, "leads_no_more") == 1)
        until(lambda: plane.exists(LEASES), 2 * DURATION_S)
        assert plane.call("GET", LEASES)["spec"]["holderIdentity"] == UNKNOWN
        until(lambda: times_logged(replica, "leads") == 2, 2 * DURATION_S)
        assert replica.leads()
    finally:
        replica.process.stop()


# --- the API server is away ------------------------------------------------------------------------------------------


def test_api_server_away_for_longer_than_a_node_may_be_makes_no_node_away_that_lives_and_all_goes_on(plane, converted):
    """Its replica leads no more meanwhile, and again then. Nodes that live say so some time after the return."""
    lives, gone = (put_node(plane, name, "3000", labels={"pool": "f"}) for name in ("outlives", "goes"))
    for node in (lives, gone):
        said(plane, node, 0)
    policies = [policy(f"outage-{cores}", {"pool": "f"}, {"cpu": {"reserve_cores": cores}}) for cores in (1, 2)]
    plane.call("POST", POLICIES, policies[0])
    replica = Replica(plane, "outage")
    replica.certify()
    replica.start(before=HURRY)
    try:
        replica.serve()

        def both_live():
            """Until the outage both say so, however long this machine takes to begin."""
            for node in (lives, gone):
                said(plane, node, 0)
            return True

        until(lambda: both_live() and told(plane, lives) == {"cpu": {"reserve_cores": 1}})
        until(lambda: both_live() and converted(), 90)
        assert lends(plane, lives) and lends(plane, gone)

        led, lost = (times_logged(replica, event) for event in ("leads", "leads_no_more"))
        plane.kill_api()
        time.sleep(HURRY_AWAY_S + 5.0)
        assert times_logged(replica, "leads_no_more") > lost
        assert replica.process.is_alive()
        plane.start_api()
        until(replica.leads)
        until(lambda: times_logged(replica, "leads") > led)
        began_s, gone_s = time.monotonic(), 0.0

        def since_s():
            """The node that lives says so from a while after the return on: they do each 8 s."""
            if (now_s := time.monotonic() - began_s) > 6.0:
                said(plane, lives, 0)
            return now_s

        until(lambda: since_s() and (converted() or {}).get(CPU) == "1500")
        plane.merge(f"{POLICIES}/outage-1", {"spec": {"settings": {"cpu": {"reserve_cores": 3}}}})
        until(lambda: since_s() and told(plane, lives) == {"cpu": {"reserve_cores": 3}})
        while (now_s := since_s()) < HURRY_AWAY_S - 5.0 or not gone_s:
            assert lends(plane, lives), f"made away after {now_s:.1f} s"
            gone_s = gone_s or (lent(plane, gone) == "0" and now_s)
            time.sleep(1.0)
        assert gone_s > 6.0

        # Another one leads for a while, and a policy is another one then.
        led, lost = (times_logged(replica, event) for event in ("leads", "leads_no_more"))
        plane.merge(LEASES, {"spec": {"holderIdentity": "another"}})
        until(lambda: times_logged(replica, "leads_no_more") > lost)
        plane.call("DELETE", f"{POLICIES}/outage-1")
        plane.call("POST", POLICIES, policies[1])
        plane.merge(LEASES, {"spec": {"holderIdentity": ""}})
        until(lambda: times_logged(replica, "leads") > led)
        until(lambda: told(plane, lives) == {"cpu": {"reserve_cores": 2}})
        assert versions(plane, [lives], 4.0) == 0
        assert lends(plane, lives)
    finally:
        replica.process.stop()


def times_logged(replica, event):
    return replica.log.read_text().count(f'"event": "{event}"')


def lends(plane, node):
    """Whether it is as the node itself has said: nobody has said that it is away."""
    conditions = plane.call("GET", node)["status"]["conditions"]
    return lent(plane, node) == "3k" and "Away" not in [one.get("reason") for one in conditions]


# --- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [2, -2], ids=["ahead", "behind"])
def test_api_server_takes_the_certificate_of_a_job_with_a_wrong_clock(plane, hours, converted):
    for name in (AUTHORITY, SERVING):
        plane.merge(f"{SECRETS}/{name}", {"data": None})
    replica = Replica(plane, f"certifies-{hours % 24}")
    replica.certify(wrong_clock(hours))
    replica.start()
    try:
        replica.serve()
        requests = until(converted, 90)
        assert requests[CPU] == "1500"
    finally:
        replica.process.stop()
