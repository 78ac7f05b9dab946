"""Both sides at once: pods with ordinary requests, the cluster's webhook and controller, the scheduler, a real node."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from criproxy.pods.stopping import KnownPod
from criproxy.vocabulary.names import EXTENDED_SPEC
from integration.control_plane.cluster import CLASS, CPU, MEMORY, PLAIN, POD_S, PODS, POLICIES, SOON_S, Cluster
from integration.lab.cluster_side import Replica
from integration.lab.control_plane import ApiError, wait_for
from integration.lab.criproxy import python_path
from integration.lab.images import BUSYBOX
from integration.lab.kubelet import static_pod
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import Cgroup

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
EVICTED = "colocation.criproxy.io/evicted"
JUDGED_S = 60.0 if is_throwaway() else 15.0
"""Within which a kubelet that starts has admitted the pods that it knows, or failed them."""
REQUESTS = {"requests": {"cpu": "300m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}


def deployment() -> dict[str, Any]:
    """Of one offline pod, as its author writes it: nothing in it is of criproxy but the label."""
    template = static_pod("web", labels={"app": "sort", **CLASS}, resources=REQUESTS)
    template["spec"] |= PLAIN
    return {
        "metadata": {"name": "sort"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "sort"}},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    }


def newest(cluster: Cluster, *others: Any) -> Any:
    """The deployment's pod that is not being deleted, and none of the others; None: there is none."""
    gone = {other["metadata"]["uid"] for other in others}
    for pod in cluster.plane.call("GET", f"{PODS}?labelSelector=app%3Dsort")["items"]:
        if "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["uid"] not in gone:
            return pod
    return None


def running(cluster: Cluster, *others: Any) -> Any:
    pod = wait_for(lambda: newest(cluster, *others), SOON_S, "the deployment's pod")
    return cluster.wait_running(pod["metadata"]["name"])


def why_not_placed(pod: Any) -> str:
    conditions = {one["type"]: one for one in pod["status"].get("conditions", [])}
    return str(conditions.get("PodScheduled", {}).get("message", ""))


def placed(cluster: Cluster, pod: Any) -> str:
    """The node that the scheduler chooses."""
    name = pod["metadata"]["name"]
    found: str = wait_for(lambda: cluster.pod(name)["spec"].get("nodeName"), SOON_S, f"pod {name} to be placed")
    return found


def labels(cluster: Cluster) -> set[str]:
    """Of the node: the controllers whose pods are to go elsewhere."""
    return {name for name in cluster.node()["metadata"]["labels"] if name.startswith("evicted.colocation")}


def test_policy_of_the_cluster_is_in_force_on_the_node_and_the_node_lends_by_it(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.wait_published(lambda amount: amount >= 1000, "the policy's floor")

    def in_force() -> bool:
        status = cluster.plane.call("GET", f"{POLICIES}/all")["status"]
        return (status["nodes"], status["inForce"], status["refused"]) == (1, 1, 0)

    wait_for(in_force, SOON_S, "the policy's status")
    command = [sys.executable, "-m", "criproxy", "status", "--why", "--config", str(cluster.proxy.config_file)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
    published = said.partition("published to Kubernetes")[2]
    assert CPU in published
    assert MEMORY in published


def test_ordinary_requests_are_converted_placed_by_what_is_lent_and_hold_inside_the_box(
    cluster: Cluster, replica: Replica, tmp_path: Path
) -> None:
    cluster.plane.call("POST", DEPLOYMENTS, deployment())
    pod = running(cluster)
    assert pod["spec"]["containers"][0]["resources"] == {
        "requests": {CPU: "300", MEMORY: str(64 << 20)},
        "limits": {MEMORY: str(128 << 20)},
    }
    assert cluster.in_box(pod)
    assert_has(cluster, pod, shares=307, weight=12, memory_bytes=128 << 20)
    known = cluster.asked(lambda part: part.known(within_s=20.0), tmp_path)[pod["metadata"]["uid"]]
    assert known == KnownPod(pod["spec"]["priority"], pod["metadata"]["ownerReferences"][0]["uid"], 308)
    assert known.priority == -11


KOORDINATOR = """
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels:
    koordinator.sh/qosClass: BE
    koordinator.sh/priority: "5500"
  annotations: {%s}
spec:
  priorityClassName: koord-batch
  schedulerName: koord-scheduler
  restartPolicy: Never
  containers:
    - name: main
      image: %s
      command: [sleep, "2147483647"]
      resources: %s
"""
"""As Koordinator's own examples are written."""


@pytest.mark.parametrize("annotated", [False, True], ids=["in its containers", "in extended-resource-spec"])
def test_koordinator_s_pod_is_placed_by_what_is_lent_and_has_what_it_asks_for_inside_the_box(
    cluster: Cluster, replica: Replica, annotated: bool
) -> None:
    amounts = {kind: {CPU: "500", MEMORY: "96Mi"} for kind in ("requests", "limits")}
    spec = f"{EXTENDED_SPEC}: '{json.dumps({'containers': {'main': amounts}})}'" if annotated else ""
    manifest = yaml.safe_load(KOORDINATOR % ("koord", spec, BUSYBOX, "{}" if annotated else json.dumps(amounts)))
    manifest["spec"] |= {**PLAIN, "hostNetwork": True, "terminationGracePeriodSeconds": 1}
    cluster.plane.call("POST", PODS, manifest)

    pod = cluster.wait_running("koord")

    asked = {CPU: "500", MEMORY: "96Mi"}
    assert pod["spec"]["containers"][0]["resources"] == {"requests": asked, "limits": asked}
    assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("koord-batch", 5999)
    assert pod["spec"]["preemptionPolicy"] == "Never"
    assert pod["status"]["qosClass"] == "BestEffort"
    assert cluster.in_box(pod)
    assert_has(cluster, pod, shares=512, weight=20, memory_bytes=96 << 20)
    cluster.delete("koord")


def test_offline_pod_keeps_no_online_pod_off_its_node(cluster: Cluster, replica: Replica) -> None:
    """By its priority, which is Koordinator's, none could preempt it."""
    term = {
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["sort"]}]},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/os",
    }
    alone = yaml.safe_load(KOORDINATOR % ("alone", "", BUSYBOX, json.dumps({"requests": {CPU: "50", MEMORY: "16Mi"}})))
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    alone["spec"] |= {**PLAIN, "hostNetwork": True, "terminationGracePeriodSeconds": 1, "affinity": away}
    beside = static_pod("beside", resources={"requests": {"cpu": "10m"}})
    beside["spec"] |= PLAIN
    for pod in alone, beside:
        cluster.plane.call("POST", PODS, pod)
        cluster.wait_running(pod["metadata"]["name"])
    assert cluster.in_box(cluster.pod("alone"))
    assert not cluster.in_box(cluster.pod("beside"))
    cluster.delete("alone", "beside")


def assert_has(cluster: Cluster, pod: Any, shares: int, weight: int, memory_bytes: int) -> None:
    """The pod's container, and the pod: CPU shares or, on v2, the weight, and the memory limit."""
    for cgroup in (place := cluster.cgroup(pod)), place.rpartition("/")[0]:
        found = Cgroup(cgroup).either("cpu.shares", "cpu.weight")
        assert int(found.read_text()) == (shares if found.name == "cpu.shares" else weight)
        assert int(Cgroup(cgroup).either("memory.limit_in_bytes", "memory.max").read_text()) == memory_bytes


def test_evicted_pod_goes_elsewhere_and_comes_back_when_its_time_is_over(
    cluster: Cluster, replica: Replica, tmp_path: Path
) -> None:
    """This node has room for it."""
    first = running(cluster)
    owner = first["metadata"]["ownerReferences"][0]["uid"]
    with cluster.beside() as beside:
        assert cluster.evict_first([first], tmp_path) == 0
        second = wait_for(lambda: newest(cluster, first), SOON_S, "the next pod")
        assert labels(cluster) == {f"evicted.colocation.criproxy.io/{owner}"}
        cluster.wait_gone(first["metadata"]["name"])
        assert placed(cluster, second) == beside
        assert (cluster.published() or 0) >= 300

        until = json.loads(cluster.node()["metadata"]["annotations"][EVICTED])
        assert list(until) == [owner]
        cluster.plane.merge(cluster.path, {"metadata": {"annotations": {EVICTED: None}}})  # as if its time were over
        wait_for(lambda: not labels(cluster), SOON_S, "the controller to take the label away")
    assert cluster.in_box(running(cluster, first, second))


def test_eviction_of_one_pod_fails_no_other_of_its_owner_when_kubelet_restarts(
    cluster: Cluster, replica: Replica, tmp_path: Path
) -> None:
    stays = running(cluster)
    cluster.plane.merge(f"{DEPLOYMENTS}/sort", {"spec": {"replicas": 2}})
    goes = running(cluster, stays)
    assert cluster.evict_first([goes], tmp_path) == 0
    cluster.wait_gone(goes["metadata"]["name"])
    assert labels(cluster)
    assert (cluster.published() or 0) >= 1000

    cluster.kubelet.kill()
    cluster.kubelet.start()
    name = stays["metadata"]["name"]
    wait_for(lambda: name in cluster.kubelet.pods(), POD_S, "kubelet to know the pod again")
    end_s = time.monotonic() + JUDGED_S
    while time.monotonic() < end_s and cluster.pod(name)["status"]["phase"] == "Running":
        time.sleep(1.0)
    after = cluster.pod(name)
    assert after["metadata"]["uid"] == stays["metadata"]["uid"]
    assert after["status"]["phase"] == "Running", after["status"]

    cluster.plane.merge(cluster.path, {"metadata": {"annotations": {EVICTED: None}}})
    wait_for(lambda: not labels(cluster), SOON_S, "the controller to take the label away")
    cluster.plane.merge(f"{DEPLOYMENTS}/sort", {"spec": {"replicas": 1}})
    wait_for(lambda: newest(cluster, newest(cluster)) is None, POD_S, "the other pod to go")


def test_drained_node_has_its_offline_pods_evicted_and_keeps_what_it_publishes(
    cluster: Cluster, replica: Replica
) -> None:
    before = running(cluster)
    cluster.plane.kubectl("drain", cluster.kubelet.node, "--force", "--ignore-daemonsets", "--timeout=120s")
    cluster.wait_gone(before["metadata"]["name"])
    pod = wait_for(lambda: newest(cluster, before), SOON_S, "the next pod")
    wait_for(lambda: why_not_placed(cluster.pod(pod["metadata"]["name"])), SOON_S, "the scheduler to look at it")
    assert "nodeName" not in cluster.pod(pod["metadata"]["name"])["spec"]
    assert (cluster.published() or 0) >= 1000
    cluster.plane.kubectl("uncordon", cluster.kubelet.node)
    assert cluster.in_box(running(cluster, before))


def test_unmarked_pods_start_as_ever_and_offline_pods_run_on_while_the_webhook_is_away(
    cluster: Cluster, replica: Replica
) -> None:
    offline = running(cluster)
    replica.process.kill()
    online = static_pod("online", labels={"app": "online"}, resources={"requests": {"cpu": "10m"}})
    online["spec"] |= PLAIN
    began_s = time.monotonic()
    cluster.plane.call("POST", PODS, online)
    pod = cluster.wait_running("online")
    assert time.monotonic() - began_s < POD_S / 10
    assert not cluster.in_box(pod)
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "10m"}
    with pytest.raises(ApiError, match=r"offline\.colocation\.criproxy\.io"):
        cluster.create("marked")
    assert cluster.in_box(cluster.wait_running(offline["metadata"]["name"]))
    cluster.delete("online")
    replica.start()
    wait_for(replica.leads, SOON_S, "the replica to lead again")
    cluster.plane.call("DELETE", f"{DEPLOYMENTS}/sort?propagationPolicy=Foreground")
    wait_for(lambda: newest(cluster) is None, POD_S, "the deployment to go")
