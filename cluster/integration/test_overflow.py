"""Owners whose work would not end in time, on a real control plane with a real virtual-kubelet and its mock provider.

Nodes are objects without a kubelet: this test says when their pods run, and evicts them by the API, as criproxy does.
Times are those of a policy that waits for seconds.
"""

import os
import signal
import time
from contextlib import suppress

import pytest

from cluster.integration.objects import CPU, PODS, POLICIES, pod, put_node, until
from criproxy_cluster.owners.history import decoded
from criproxy_cluster.vocabulary.names import ALONE_SECONDS, CLASS, OVERFLOW, RAISED, TIER
from integration.lab.cluster_side import Replica, install_with
from integration.lab.control_plane import ApiError
from integration.lab.virtual_kubelet import NODE, VirtualKubelet

pytestmark = [
    pytest.mark.timeout(1200),  # a control plane takes its time on a busy machine
    pytest.mark.by_command,
]

JOBS = "/apis/batch/v1/namespaces/default/jobs"
BOOK = "/api/v1/namespaces/criproxy-system/configmaps/criproxy-owners"
OWNERS = {
    "namespaces": ["default"],
    "overflow": {"pods": 3, "evictions": 2, "waitSeconds": 10},
    "raise": {"waitSeconds": 3, "pods": 2},
    "slo": {"times": 2},
}
NODES = ("n1", "n2")


@pytest.fixture(scope="module")
def arguments(plane):
    found = install_with(plane, "overflow", "overflow-remake")
    body = {"apiVersion": "colocation.criproxy.io/v1alpha1", "kind": "ColocationPolicy", "metadata": {"name": "end"}}
    plane.call("POST", POLICIES, {**body, "spec": {"owners": OWNERS}})
    return found


@pytest.fixture(scope="module")
def virtual(plane):
    made = VirtualKubelet(plane)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def replicas(plane, arguments, virtual):
    """Two of them; the API server asks the second, so that the first can be killed."""
    first, second = Replica(plane, "replica-a"), Replica(plane, "replica-b")
    first.start(controller_arguments=arguments, owners=True)
    until(first.leads, 60.0)
    second.start(controller_arguments=arguments, owners=True)
    second.take_webhooks()
    until(lambda: answers(plane))
    yield first, second
    for one in (first, second):
        one.process.stop()


@pytest.fixture(autouse=True)
def clean(plane, replicas):
    for name in NODES:
        put_node(plane, name, "0")
    yield
    for where in (JOBS, "/apis/apps/v1/namespaces/default/replicasets"):
        plane.call("DELETE", f"{where}?propagationPolicy=Background")
    until(
        lambda: not living(plane, gone_too=True) or plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0") is None, 60.0
    )
    for name in NODES:
        plane.call("DELETE", f"/api/v1/nodes/{name}")


def answers(plane):
    with suppress(ApiError):
        return plane.call("POST", f"{PODS}?dryRun=All", pod("probe"))["metadata"].get("annotations")
    return None


def lend(plane, cores):
    table = {CPU: str(cores * 1000)}
    for name in NODES:
        plane.merge(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": table, "capacity": table}})


def template(annotations=None):
    made = pod("x", {"cpu": "1", "memory": "64Mi"})
    meta = {"labels": {"app": "work", CLASS: "offline"}, "annotations": annotations or {}}
    return {"metadata": meta, "spec": made["spec"]}


def put_job(plane, name, parallelism=1, annotations=None):
    made = template(annotations)
    made["spec"]["restartPolicy"] = "Never"
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec = {"parallelism": parallelism, "completions": parallelism, "backoffLimit": 0, "template": made}
    plane.call("POST", JOBS, {"metadata": {"name": name}, "spec": {**spec, "podFailurePolicy": {"rules": [ignored]}}})


def living(plane, *, gone_too=False):
    found = plane.call("GET", PODS)["items"]
    return [one for one in found if gone_too or "deletionTimestamp" not in one["metadata"]]


def on_virtual(plane):
    return [one for one in living(plane) if one["spec"].get("nodeName") == NODE]


def evict(plane, one):
    name = one["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    plane.call("POST", f"{PODS}/{name}/eviction", body)
    until(lambda: "deletionTimestamp" in plane.call("GET", f"{PODS}/{name}")["metadata"])
    time.sleep(0.5)  # the watch has it
    plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def book(plane):
    return decoded(plane.call("GET", BOOK).get("data", {}).get("book", ""))


def evictions(plane, name):
    return sum(len(one.evicted) for one in book(plane).histories if one.owner.name == name)


def test_a_job_that_waits_is_raised_then_made_anew_for_a_virtual_node_and_counts_no_failure(plane, replicas):
    began_s = time.monotonic()
    put_job(plane, "waits")
    (first,) = until(lambda: living(plane))
    assert CPU in first["spec"]["containers"][0]["resources"]["requests"]
    until(lambda: [one for one in living(plane) if one["metadata"]["labels"].get(TIER) == "mid"], 30.0)
    print(f"raised after {time.monotonic() - began_s:.1f} s")
    (second,) = until(lambda: [one for one in on_virtual(plane) if one["status"]["phase"] == "Running"], 60.0)
    print(f"on the virtual node after {time.monotonic() - began_s:.1f} s")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "64Mi"}
    assert "waited" in second["metadata"]["annotations"][OVERFLOW]
    job = plane.call("GET", f"{JOBS}/waits")["status"]
    assert (job.get("failed", 0), job["active"]) == (0, 1), job


def test_evictions_make_the_third_overflow_though_the_leader_is_killed_between(plane, replicas, arguments):
    first, second = replicas
    lend(plane, 4)
    selector = {"matchLabels": {"app": "work"}}
    made = {"metadata": {"name": "evicted"}, "spec": {"replicas": 1, "selector": selector, "template": template()}}
    plane.call("POST", "/apis/apps/v1/namespaces/default/replicasets", made)

    def placed():
        return [one for one in living(plane) if one["spec"].get("nodeName") in NODES]

    (pod_1,) = until(placed)
    evict(plane, pod_1)
    until(lambda: evictions(plane, "evicted") == 1)
    leading, other = (first, second) if first.leads() else (second, first)
    os.kill(leading.process.controller.pid, signal.SIGKILL)
    began_s = time.monotonic()
    until(other.leads, 60.0)
    print(f"another leads after {time.monotonic() - began_s:.1f} s")
    (pod_2,) = until(placed)
    evict(plane, pod_2)
    until(lambda: evictions(plane, "evicted") == 2, 30.0)
    lost = until(placed, 30.0)  # it was made before the webhook knew
    evict(plane, lost[0])
    (found,) = until(lambda: on_virtual(plane), 30.0)
    assert "evictions" in found["metadata"]["annotations"][OVERFLOW]
    assert found["status"]["phase"] in ("Pending", "Running")


def test_an_slo_is_kept_or_missed_in_the_policy_s_status(plane, replicas):
    lend(plane, 4)
    put_job(plane, "quick", annotations={ALONE_SECONDS: "600"})
    put_job(plane, "late", annotations={ALONE_SECONDS: "1"})

    def placed():
        return len([one for one in living(plane) if one["spec"].get("nodeName") in NODES]) == 2

    until(placed)
    time.sleep(3.0)
    for one in living(plane):
        name, now = one["metadata"]["name"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        terminated = {"exitCode": 0, "finishedAt": now, "startedAt": now, "reason": "Completed"}
        container = {"name": "c", "image": "busybox", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": "Succeeded", "containerStatuses": [{**container, "state": {"terminated": terminated}}]}
        plane.merge(f"{PODS}/{name}/status", {"status": status})

    def judged():
        said = plane.call("GET", f"{POLICIES}/end")["status"]["owners"]
        return (said["kept"], said["missed"], said["late"]) == (1, 1, ["default/Job/late"])

    until(judged, 90.0)


def test_the_controller_may_write_nothing_else_of_a_pod(plane, replicas):
    plane.call("POST", PODS, pod("waits", {"cpu": "1"}, tolerations=[{"operator": "Exists", "key": "none"}]))
    plane.call("POST", PODS, pod("online", labels={"app": "web"}, nodeSelector={"none": "none"}))
    plane.kubeconfig("as-controller", "/CN=system:serviceaccount:criproxy-system:criproxy-controller")
    context = plane.context_of("as-controller")

    def patched(name, meta=None, status=None):
        body = {"metadata": meta or {}, **({"status": status} if status else {})}
        return plane.merge(f"{PODS}/{name}/status", body, context=context)

    for refused in (
        {"name": "online", "meta": {"labels": {TIER: "mid"}}},
        {"name": "waits", "meta": {"labels": {"app": "mine"}}},
        {"name": "waits", "meta": {"annotations": {"mine": "true"}}},
        {"name": "waits", "status": {"phase": "Failed"}},
    ):
        with pytest.raises(ApiError, match="raise"):
            patched(**refused)
    patched("waits", {"labels": {TIER: "mid"}, "annotations": {RAISED: "2026-01-01T00:00:00Z"}})


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ({"overflow": {"pods": 1, "evictions": 1}}, "name the namespaces"),
        ({"namespaces": ["a"], "overflow": {"pods": 1}}, "no condition"),
        ({"namespaces": ["a"], "overflow": {"pods": 1, "evictions": 9}}, "less than or equal to 8"),
        ({"namespaces": ["A b"]}, "should match"),
        ({"raises": {}}, "no such key"),
    ],
)
def test_the_api_server_refuses_what_can_not_be_meant(owners, words, plane, replicas):
    body = {"apiVersion": "colocation.criproxy.io/v1alpha1", "kind": "ColocationPolicy", "metadata": {"name": "bad"}}
    with pytest.raises(ApiError, match=words):
        plane.call("POST", POLICIES, {**body, "spec": {"owners": owners}})


def test_a_webhook_that_may_not_read_the_book_converts_as_ever(plane, replicas):
    blind = Replica(plane, "blind")
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/criproxy-system/rolebindings/criproxy-owners-reader"
    binding = plane.call("GET", role)
    plane.call("DELETE", role)
    try:
        blind.start(controller_arguments=["controller", "--help"], owners=True)
        blind.take_webhooks()
        until(lambda: answers(plane), 60.0)
        asked = pod("late", {"cpu": "1"})
        asked["metadata"]["annotations"] = {"colocation.criproxy.io/deadline": "2026-01-01T00:00:00Z"}
        made = plane.call("POST", f"{PODS}?dryRun=All", asked)
        assert made["spec"]["containers"][0]["resources"]["requests"][CPU] == "1k"
    finally:
        blind.process.stop()
        plane.call("POST", role.rpartition("/")[0], {**binding, "metadata": {"name": "criproxy-owners-reader"}})
        replicas[1].take_webhooks()
