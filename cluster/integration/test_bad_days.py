"""Days on which something of the cluster's side is away, doubled or removed, against a real API server."""

import asyncio
import json
import signal
import time

import pytest
import structlog
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from cluster.integration.objects import POLICIES, policy, put_node, ready, until
from criproxy_cluster.controller import Controller
from criproxy_cluster.lease_law import DURATION_S, RETRY_S
from criproxy_cluster.names import POLICY, PRESSURE
from integration.lab.cluster_side import MANIFESTS, SYSTEM, Replica
from integration.lab.control_plane import ApiError

pytestmark = pytest.mark.timeout(3600)  # the first run builds Kubernetes

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
    config = KubeConfig.from_file(str(plane.account_kubeconfig(SYSTEM, "criproxy-cluster"))).get()

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
