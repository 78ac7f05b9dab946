"""Both shortages on one node with a real kubelet: of CPU squeezes offline pods, of memory moves one to a virtual node.

What online pods need is played by the cluster's policy, which lowers what offline pods may have: no other pod on this
machine could be made to need so much, and no more.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.control_plane.cluster import CLASS, PLAIN, PODS, POLICIES, SOON_S, Cluster
from integration.lab.cluster_side import Replica, install_with
from integration.lab.control_plane import wait_for
from integration.lab.kubelet import static_pod
from integration.lab.usage import Cgroup
from integration.lab.virtual_kubelet import NODE, VirtualKubelet

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.by_command,
]

JOBS = "/apis/batch/v1/namespaces/default/jobs"
HELD_MIB = 96
WORK = f"(dd if=/dev/zero bs={HELD_MIB}M count=1 2>/dev/null | sleep 2147483647) & while :; do :; done"
OWNERS = {"namespaces": ["default"], "overflow": {"pods": 2, "evictions": 1}}
ROOM: dict[str, dict[str, Any]] = {
    "cpu": {"static_cores": 1.0, "min_cores": 0.05},
    "memory": {"static_bytes": 512 << 20, "min_bytes": 16 << 20},
}
FEW_CORES = 0.1


@pytest.fixture(scope="module")
def owners_replica(cluster: Cluster) -> Iterator[Replica]:
    arguments = install_with(cluster.plane, "overflow", "overflow-remake")
    virtual = VirtualKubelet(cluster.plane)
    virtual.start()
    made = Replica(cluster.plane, "replica")
    made.take_webhooks()
    made.start(controller_arguments=arguments, owners=True)
    wait_for(made.leads, SOON_S, "the replica to lead")
    body = {"apiVersion": "colocation.criproxy.io/v1alpha1", "kind": "ColocationPolicy", "metadata": {"name": "all"}}
    spec = {"owners": OWNERS, "settings": {"control": {"policy": "static"}, **ROOM}}
    cluster.plane.call("POST", POLICIES, {**body, "spec": spec})
    yield made
    made.process.kill()
    virtual.stop()


def lower(cluster: Cluster, **settings: Any) -> None:
    cluster.plane.merge(f"{POLICIES}/all", {"spec": {"settings": settings}})

    def in_force() -> bool:
        status = cluster.plane.call("GET", f"{POLICIES}/all").get("status", {})
        newest = cluster.plane.call("GET", f"{POLICIES}/all")["metadata"]["generation"]
        return bool(status.get("observedGeneration") == newest and status.get("inForce") == 1)

    wait_for(in_force, SOON_S, "the policy to be in force")


def job() -> dict[str, Any]:
    requests = {"requests": {"cpu": "300m", "memory": "128Mi"}}
    made = static_pod("work", ["sh", "-c", WORK], labels=CLASS, resources=requests)["spec"] | PLAIN
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    template = {"metadata": {"labels": CLASS}, "spec": {**made, "restartPolicy": "Never"}}
    return {
        "metadata": {"name": "sort"},
        "spec": {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignored]}, "template": template},
    }


def jobs_pods(cluster: Cluster) -> list[Any]:
    found = cluster.plane.call("GET", f"{PODS}?labelSelector=job-name%3Dsort")["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def box_cores(cluster: Cluster, pod: Any) -> float | None:
    """What all offline pods together may use, by the kernel."""
    return Cgroup(cluster.cgroup(pod).partition("/pod")[0]).quota_cores()


def used_cores(cluster: Cluster, pod: Any, seconds: float) -> float:
    cgroup = Cgroup(cluster.cgroup(pod))
    before_s, began_s = cgroup.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (cgroup.cpu_s() - before_s) / (time.monotonic() - began_s)


def test_cpu_shortage_squeezes_and_memory_shortage_moves(
    cluster: Cluster, owners_replica: Replica, say: Callable[[str], object], tmp_path: Path
) -> None:
    online = static_pod("online", labels={"app": "web"})
    online["spec"] |= PLAIN | {"nodeName": cluster.kubelet.node}
    cluster.plane.call("POST", PODS, online)
    cluster.wait_running("online")
    lower(cluster, **ROOM)
    cluster.wait_published(lambda amount: amount >= 300, "enough")
    cluster.plane.call("POST", JOBS, job())
    (first,) = wait_for(lambda: jobs_pods(cluster), SOON_S, "the Job's pod")
    first = cluster.wait_running(first["metadata"]["name"])
    assert cluster.in_box(first)
    assert box_cores(cluster, first) == pytest.approx(ROOM["cpu"]["static_cores"], rel=0.05)
    wide = used_cores(cluster, first, 5.0)

    lower(cluster, cpu={**ROOM["cpu"], "static_cores": FEW_CORES})
    wait_for(lambda: used_cores(cluster, first, 2.0) < 1.3 * FEW_CORES, SOON_S, "the squeeze")
    assert box_cores(cluster, first) == pytest.approx(FEW_CORES, rel=0.05)
    narrow = used_cores(cluster, first, 5.0)
    say(f"of CPU: {wide:.2f} cores before, {narrow:.2f} squeezed")
    (still,) = jobs_pods(cluster)
    assert still["metadata"]["uid"] == first["metadata"]["uid"]
    assert still["status"]["containerStatuses"][0]["restartCount"] == 0

    began_s = time.monotonic()
    lower(cluster, memory={**ROOM["memory"], "static_bytes": (HELD_MIB << 20) // 2})

    def moved() -> list[Any]:
        return [one for one in jobs_pods(cluster) if one["spec"].get("nodeName") == NODE]

    (last,) = wait_for(moved, 3 * SOON_S, "the Job's next pod on the virtual node")
    say(f"of memory: on the virtual node after {time.monotonic() - began_s:.0f} s")
    assert "evictions" in last["metadata"]["annotations"]["colocation.criproxy.io/overflow"]
    assert last["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "300m", "memory": "128Mi"}
    assert cluster.plane.call("GET", f"{JOBS}/sort")["status"].get("failed", 0) == 0
    (container,) = cluster.wait_running("online")["status"]["containerStatuses"]
    assert container["restartCount"] == 0
