"""A node whose clock is hours off, beside replicas whose clocks are off the other way, on a real control plane.

The daemon's time of day is wrong from its start; kubelet's and the API server's is right.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from criproxy.vocabulary.times import wall_s
from integration.control_plane.cluster import CPU, POLICIES, SOON_S, Cluster
from integration.control_plane.test_whole import (
    DEPLOYMENTS,
    EVICTED,
    deployment,
    labels,
    newest,
    running,
    why_not_placed,
)
from integration.lab import cluster_side
from integration.lab.clocks import wrong_clock
from integration.lab.cluster_side import Replica
from integration.lab.control_plane import wait_for

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

FLOOR = {"cpu": {"min_cores": 1.0}}
LOOKED_S = 10.0


@pytest.fixture(scope="module")
def replicas(cluster: Cluster) -> Iterator[list[Replica]]:
    """Two, as yet not started; the API server asks the first."""
    cluster_side.install(cluster.plane)
    made = [Replica(cluster.plane, f"replica-{number}") for number in range(2)]
    made[0].take_webhooks()
    kind = {"apiVersion": "colocation.criproxy.io/v1alpha1", "kind": "ColocationPolicy", "metadata": {"name": "all"}}
    cluster.plane.call("POST", POLICIES, {**kind, "spec": {"settings": FLOOR}})
    yield made


def in_force(cluster: Cluster, generation: int) -> Any:
    """Whether the policy's status says so, and the node's own."""
    status = cluster.plane.call("GET", f"{POLICIES}/all").get("status", {})
    name = cluster.kubernetes()["policy"]["name"]
    return (status.get("observedGeneration"), status.get("inForce"), name) == (generation, 1, f"all.{generation}")


def change(cluster: Cluster, **spec: Any) -> None:
    """Of the policy; waits until it is in force."""
    made = cluster.plane.merge(f"{POLICIES}/all", {"spec": spec})
    wait_for(lambda: in_force(cluster, made["metadata"]["generation"]), SOON_S, "the policy to be in force")


@pytest.mark.parametrize(
    "hours", [pytest.param(2, id="ahead"), pytest.param(-2, id="behind", marks=pytest.mark.by_command)]
)
def test_node_and_replicas_with_wrong_clocks_do_as_ever(
    cluster: Cluster, replicas: list[Replica], hours: float
) -> None:
    plane = cluster.plane
    cluster.proxy.stop()
    cluster.proxy.start(env=wrong_clock(hours))
    for replica in replicas:
        replica.start(wrong_clock(-hours))
    wait_for(lambda: any(one.leads() for one in replicas), SOON_S, "one to lead")
    try:
        wait_for(lambda: ahead_s(cluster) == pytest.approx(3600 * hours, abs=600), SOON_S, "a report by that clock")
        change(cluster, settings=FLOOR, enabled=None)
        cluster.wait_published(lambda amount: amount >= 1000, "the policy's floor")
        assert cluster.kubernetes()["published"][CPU] == cluster.published()
        plane.call("POST", DEPLOYMENTS, deployment())
        first = running(cluster)
        assert cluster.in_box(first)

        change(cluster, enabled=False)
        cluster.wait_gone(first["metadata"]["name"])
        cluster.wait_published(lambda amount: amount == 0, "0")
        owner = first["metadata"]["ownerReferences"][0]["uid"]
        assert labels(cluster) == {f"evicted.colocation.criproxy.io/{owner}"}
        second = wait_for(lambda: newest(cluster, first), SOON_S, "the next pod")
        name = second["metadata"]["name"]
        wait_for(lambda: CPU in why_not_placed(cluster.pod(name)), SOON_S, "that pod to wait, as nothing is lent")
        change(cluster, enabled=None)
        cluster.wait_published(lambda amount: amount >= 1000, "the policy's floor again")
        end_s = time.monotonic() + LOOKED_S
        while time.monotonic() < end_s:
            assert labels(cluster) == {f"evicted.colocation.criproxy.io/{owner}"}
            assert cluster.published() != 0
            time.sleep(0.5)
        assert list(json.loads(cluster.node()["metadata"]["annotations"][EVICTED])) == [owner]
        assert cluster.kubernetes()["trouble"] == ""
        assert sum(one.leads() for one in replicas) == 1

        plane.merge(cluster.path, {"metadata": {"annotations": {EVICTED: None}}})  # as if its time were over
        wait_for(lambda: not labels(cluster), SOON_S, "the controller to take the label away")
        assert cluster.in_box(cluster.wait_running(name))
        plane.call("DELETE", f"{DEPLOYMENTS}/sort?propagationPolicy=Foreground")
        wait_for(lambda: not plane.exists(f"{DEPLOYMENTS}/sort"), SOON_S, "the deployment to go")
    finally:
        for replica in replicas:
            replica.process.stop()


def ahead_s(cluster: Cluster) -> float:
    """By how much the node's last report is ahead of this machine's clock."""
    return wall_s(cluster.condition().get("lastHeartbeatTime", "1970-01-01T00:00:00Z")) - time.time()
