"""The manifests of examples/, applied to a real control plane as their first lines say, and started by a real node.

The node has no registry and no network for pods: the lab's busybox stands for their images, and pods are on the node's
network. There is no Spark either: the driver's pod sleeps, and the executor that Spark would make of the driver's
settings is made here, by the account of the driver.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.control_plane.cluster import CPU, MEMORY, PLAIN, POD_S, PODS, POLICIES, SOON_S, Cluster
from integration.lab.cluster_side import Replica
from integration.lab.control_plane import ApiError, wait_for
from integration.lab.criproxy import CHECKOUT
from integration.lab.images import BUSYBOX

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

EXAMPLES = CHECKOUT / "examples"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
ACCOUNT = "system:serviceaccount:default:spark"
SPARK_OVERHEAD_MIB = 384
"""What an executor asks for beyond spark.executor.memory, at least. Source: Spark, Running on Kubernetes."""


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def apply(cluster: Cluster, name: str) -> None:
    """Apply an example, its pods fitted to this node."""
    apply_kinds(cluster, name, *(manifest["kind"] for manifest in manifests(name)))


def apply_kinds(cluster: Cluster, name: str, *kinds: str) -> None:
    """Of an example, what is of these kinds."""
    for manifest in (one for one in manifests(name) if one["kind"] in kinds):
        if manifest["kind"] == "Pod":
            fit(manifest["spec"])
        elif manifest["kind"] in ("Deployment", "Job"):
            fit(manifest["spec"]["template"]["spec"])
        cluster.plane.kubectl("apply", "--warnings-as-errors", "-f", "-", stdin=json.dumps(manifest))


def fit(spec: dict[str, Any]) -> None:
    spec |= {**PLAIN, "hostNetwork": True, "terminationGracePeriodSeconds": 1}
    for container in spec["containers"]:
        command = [part.replace("$(seq 40)", "$(seq 4)") for part in container["command"]]  # 10 GiB are much to hash
        container |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": command}
        if container["command"][0].startswith("/opt/spark"):
            container |= {"command": ["sleep", "2147483647"], "args": []}


def delete(cluster: Cluster, name: str) -> None:
    cluster.plane.kubectl("delete", "--wait=false", "-f", str(EXAMPLES / name))


def pods(cluster: Cluster, selector: str) -> list[Any]:
    found: list[Any] = cluster.plane.call("GET", f"{PODS}?labelSelector={selector.replace('=', '%3D')}")["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def running(cluster: Cluster, selector: str, number: int = 1) -> list[Any]:
    found = wait_for(lambda: len(found := pods(cluster, selector)) == number and found, SOON_S, f"pods of {selector}")
    return [cluster.wait_running(pod["metadata"]["name"]) for pod in found]


def requests(pod: Any) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["spec"]["containers"][0]["resources"]["requests"]
    return found


def all_gone(cluster: Cluster, selector: str) -> bool:
    query = selector.replace("=", "%3D")
    return not cluster.plane.call("GET", f"{PODS}?labelSelector={query}")["items"]


def test_job_runs_in_the_box_by_what_the_node_lends_and_completes(cluster: Cluster, replica: Replica) -> None:
    cluster.wait_published(lambda amount: amount >= 1000, "the policy's floor")
    apply(cluster, "offline-job.yaml")
    for pod in running(cluster, "job-name=checksums", 2):
        assert requests(pod) == {CPU: "250", MEMORY: str(32 << 20)}
        assert cluster.in_box(pod)

    wait_for(lambda: cluster.plane.call("GET", f"{JOBS}/checksums")["status"].get("succeeded") == 2, POD_S, "the Job")
    delete(cluster, "offline-job.yaml")
    wait_for(lambda: all_gone(cluster, "job-name=checksums"), POD_S, "the Job's pods to go")


def test_spark_s_driver_keeps_its_requests_and_its_executors_take_what_is_lent(
    cluster: Cluster, replica: Replica, tmp_path: Path
) -> None:
    apply(cluster, "spark-application.yaml")
    (driver,) = running(cluster, "spark-role=driver")
    assert requests(driver) == {"cpu": "250m", "memory": "1Gi"}
    assert not cluster.in_box(driver)

    file = tmp_path / "executor.json"
    file.write_text(json.dumps(executor(manifests("spark-application.yaml")[-1])))
    cluster.plane.kubectl("create", f"--as={ACCOUNT}", "-f", str(file))
    (made,) = running(cluster, "spark-role=executor")
    assert requests(made) == {CPU: "400", MEMORY: str((512 + SPARK_OVERHEAD_MIB) << 20)}
    assert cluster.in_box(made)

    delete(cluster, "spark-application.yaml")
    cluster.delete("spark-pi-exec-1", "spark-pi-driver")


def executor(driver: Any) -> dict[str, Any]:
    """What Spark makes of a driver's settings. Source: Spark, BasicExecutorFeatureStep."""
    said = [one.removeprefix("--conf=") for one in driver["spec"]["containers"][0]["args"] if one.startswith("--conf=")]
    settings = dict(one.split("=", 1) for one in said)
    label = "spark.kubernetes.executor.label."
    labels = {key.removeprefix(label): value for key, value in settings.items() if key.startswith(label)}
    memory = f"{int(settings['spark.executor.memory'].removesuffix('m')) + SPARK_OVERHEAD_MIB}Mi"
    resources = {
        "requests": {"cpu": settings["spark.kubernetes.executor.request.cores"], "memory": memory},
        "limits": {"cpu": settings["spark.kubernetes.executor.limit.cores"], "memory": memory},
    }
    container = {"name": "spark-kubernetes-executor", "command": ["sleep", "2147483647"], "resources": resources}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    fit(spec)
    metadata = {"name": "spark-pi-exec-1", "labels": {"spark-role": "executor", "spark-exec-id": "1", **labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_quota_bounds_offline_pods_and_no_online_ones(cluster: Cluster, replica: Replica) -> None:
    """What it refuses never comes to a node, so nothing of it need run."""
    apply(cluster, "resource-quota.yaml")
    namespace = "/api/v1/namespaces/batch"
    wait_for(lambda: cluster.plane.exists(f"{namespace}/serviceaccounts/default"), SOON_S, "the namespace's account")
    quota = f"{namespace}/resourcequotas/offline-pods"
    wait_for(lambda: cluster.plane.call("GET", quota)["status"].get("used"), SOON_S, "the quota to be counted")

    def create(name: str, **labels: str) -> None:
        spec = {"nodeName": "", "nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": BUSYBOX}]}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        cluster.plane.call("POST", f"{namespace}/pods", body)

    offline = {"colocation.criproxy.io/class": "offline"}
    for number in range(4):
        create(f"offline-{number}", **offline)
    with pytest.raises(ApiError, match="exceeded quota: offline-pods"):
        create("offline-4", **offline)
    create("online")
    delete(cluster, "resource-quota.yaml")


def test_policy_is_in_force_on_the_nodes_that_it_selects(cluster: Cluster, replica: Replica) -> None:
    apply(cluster, "policy.yaml")

    def counts() -> tuple[int, int, int] | None:
        status = cluster.plane.call("GET", f"{POLICIES}/night").get("status", {})
        return tuple(status.get(name) for name in ("nodes", "inForce", "refused"))

    wait_for(lambda: counts() == (0, 0, 0), SOON_S, "the policy to select no node")
    cluster.plane.merge(cluster.path, {"metadata": {"labels": {"pool": "night"}}})
    wait_for(lambda: counts() == (1, 1, 0), SOON_S, "the policy to be in force")
    cluster.plane.merge(cluster.path, {"metadata": {"labels": {"pool": None}}})
    wait_for(lambda: counts() == (0, 0, 0), SOON_S, "the policy to end on the node")
    delete(cluster, "policy.yaml")


def test_service_is_asked_how_it_fares_while_offline_pods_run(cluster: Cluster, replica: Replica) -> None:
    """The ladder is off on this node; a policy has it judge, as that is who asks, and stop nobody."""
    judged = {"spec": {"settings": {"interference": {"enabled": True, "on_harm": "close"}}}}
    cluster.create("beside", {"cpu": "100m", "memory": "16Mi"})
    cluster.wait_running("beside")
    cluster.plane.merge(f"{POLICIES}/all", judged)
    apply(cluster, "online-deployment.yaml")
    (pod,) = running(cluster, "app=shop")
    assert not cluster.in_box(pod)

    def percents() -> list[float]:
        services = cluster.proxy.status()["services"]
        return [one["percent"] for one in services if one["name"].startswith("shop-") and one["percent"]]

    percent, *_ = wait_for(percents, SOON_S, "the service's word")
    assert 0 < percent < 200, "a number; 200 % is no answer, or a no"
    delete(cluster, "online-deployment.yaml")
    cluster.delete("beside")
    wait_for(lambda: all_gone(cluster, "app=shop"), POD_S, "the service to go")
