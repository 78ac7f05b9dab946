"""Who starves is relieved on a real control plane: the youngest go by their evictions, and what is published falls."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from integration.control_plane.cluster import CLASS, CPU, MEMORY, PLAIN, PODS, SOON_S, Cluster
from integration.lab.control_plane import wait_for
from integration.lab.kubelet import static_pod

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.by_command,
]

Say = Callable[[str], object]

RESOURCES = "colocation.criproxy.io/resources"
ASKED_CORES = 0.3
STARVED_S = 300.0
ROOM: dict[str, dict[str, Any]] = {
    "control": {"policy": "static"},
    "cpu": {"static_cores": 1.2, "min_cores": 0.05},
    "memory": {"static_bytes": 512 << 20, "min_bytes": 16 << 20},
}
ONE_PODS_CORES = 1.2 * ASKED_CORES
NAMES = ("oldest", "middle", "youngest")


def busy(name: str) -> dict[str, Any]:
    """As the cluster's webhook leaves an offline pod that asks for `ASKED_CORES`."""
    amounts = {CPU: f"{1000 * ASKED_CORES:.0f}", MEMORY: "64Mi"}
    made = static_pod(
        name,
        ["sh", "-c", "while :; do :; done"],
        labels=CLASS,
        resources={"requests": amounts, "limits": amounts},
    )
    wants = {"requests": {"cpu": str(ASKED_CORES), "memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    made["metadata"]["annotations"] = {RESOURCES: json.dumps({"containers": {"main": wants}})}
    made["spec"] |= PLAIN | {"tolerations": [{"operator": "Exists"}]}
    return made


def gone(cluster: Cluster) -> list[str]:
    return [name for name in NAMES if not cluster.plane.exists(f"{PODS}/{name}")]


def told(cluster: Cluster, name: str) -> bool:
    return "EvictedByColocation" in cluster.events("Pod", name)


def factor(cluster: Cluster) -> float:
    metrics = cluster.proxy.http("/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in metrics if line.startswith("criproxy_publication_factor "))


def test_youngest_go_one_by_one_by_their_evictions(cluster: Cluster, say: Say) -> None:
    cluster.order("1", **ROOM)
    cluster.wait_published(lambda amount: amount >= 3000 * ASKED_CORES, "enough for three")
    for name in NAMES:
        cluster.plane.call("POST", PODS, busy(name))
        assert cluster.in_box(cluster.wait_running(name))
    began = factor(cluster)
    cluster.order("2", **{**ROOM, "cpu": {**ROOM["cpu"], "static_cores": ONE_PODS_CORES}})

    first = wait_for(lambda: gone(cluster), STARVED_S + SOON_S, "the first to go")
    say(f"{first} went first, at a factor of {factor(cluster):.2f} after {began:.2f}")
    assert first == ["youngest"]
    assert factor(cluster) < began
    wait_for(lambda: len(gone(cluster)) > 1, SOON_S, "the next to go, as it is not enough")
    assert gone(cluster) == ["middle", "youngest"]
    wait_for(lambda: all(told(cluster, name) for name in gone(cluster)), SOON_S, "their events")


def test_what_pods_got_is_known_after_a_restart(cluster: Cluster, say: Say) -> None:
    before = factor(cluster)
    cluster.proxy.kill()
    cluster.proxy.start()
    wait_for(lambda: cluster.proxy.status()["kubernetes"]["published"], SOON_S, "the numbers")
    say(f"the factor was {before:.3f}, and is {factor(cluster):.3f} after a restart")
    assert before < 1.9
    assert factor(cluster) == pytest.approx(before, abs=0.1)
