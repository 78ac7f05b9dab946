"""The cluster's side against a real API server, scheduler and controller manager.

The webhook is reached by URL on loopback, as there is no Service network here; all else is as the manifests say.
"""

import asyncio
import base64
import json
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import structlog
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from criproxy_cluster.names import EVICTED, EVICTED_FROM, POLICY, PRESSURE
from criproxy_cluster.run_command import RunSettings, run
from criproxy_cluster.times import rfc3339
from integration.lab import control_plane
from integration.lab.control_plane import ControlPlane
from integration.lab.ports import free_ports

pytestmark = pytest.mark.timeout(3600)  # the first run builds Kubernetes

MANIFESTS = Path(__file__).parent.parent / "manifests"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/criproxy-cluster"
POLICIES = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
PODS = "/api/v1/namespaces/default/pods"
CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
SYSTEM = "criproxy-system"


class Replica:
    """One replica on a thread of its own, with the rights of the manifests' account."""

    def __init__(self, plane: ControlPlane, port: int, certificates: Path) -> None:
        config = KubeConfig.from_file(str(plane.account_kubeconfig(SYSTEM, "criproxy-cluster"))).get()
        self._settings = RunSettings(address="127.0.0.1", port=port, certificates=certificates)
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._task: asyncio.Task[None] | None = None

    def _run(self) -> None:
        async def serve() -> None:
            log = structlog.wrap_logger(structlog.PrintLogger())
            async with AsyncClient(self._config, namespace=SYSTEM) as client:
                await run(self._settings, client, log)

        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(serve())
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    @contextmanager
    def running(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
            self._thread.join(20)


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    made = ControlPlane(directory)
    try:
        made.start(lifecycle=False)
        for name in ("base", "koordinator"):
            made.kubectl("apply", "-k", str(MANIFESTS / name))
        until(lambda: made.exists("/api/v1/namespaces/default/serviceaccounts/default"))
        yield made
    finally:
        control_plane.end(directory)


@pytest.fixture(scope="module")
def port(plane):
    """Where the API server finds the webhook."""
    (found,) = free_ports(1)
    bundle = base64.b64encode(plane.authority.ca.read_bytes()).decode()
    configuration = plane.call("GET", WEBHOOKS)
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://localhost:{found}/convert", "caBundle": bundle}
    plane.call("PUT", WEBHOOKS, configuration)
    return found


@pytest.fixture
def replica(plane, port, tmp_path):
    both = plane.authority.sign("webhook", "/CN=localhost", "subjectAltName=DNS:localhost").read_bytes()
    (tmp_path / "tls.crt").write_bytes(both)
    (tmp_path / "tls.key").write_bytes(both)
    with Replica(plane, port, tmp_path).running() as made:
        until(lambda: answers(plane))
        yield made


def until(condition, seconds=30.0):
    ends_s = time.monotonic() + seconds
    while True:
        with suppress(KeyError):
            if found := condition():
                return found
        assert time.monotonic() < ends_s, "it did not come to pass"
        time.sleep(0.05)


def answers(plane):
    """Whether the webhook is there: a dry run of a marked pod."""
    try:
        plane.call("POST", f"{PODS}?dryRun=All", pod("probe"))
    except control_plane.ApiError:
        return False
    return True


def pod(name, requests=None, labels=None, **spec):
    container = {"name": "c", "image": "busybox", "resources": {"requests": requests or {}}}
    meta = {"name": name, "labels": {"colocation.criproxy.io/class": "offline"} if labels is None else labels}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": [container], **spec}}


def put_node(plane, name, lends="0", labels=None):
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels or {}}}
    plane.call("POST", "/api/v1/nodes", node)
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "100", CPU: lends, MEMORY: "8Gi"}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions}}
    plane.merge(f"/api/v1/nodes/{name}/status", status)
    plane.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    return f"/api/v1/nodes/{name}"


def ready(node, reason):
    now = rfc3339(time.time())
    made = {"type": "ColocationReady", "status": "True", "reason": reason, "lastHeartbeatTime": now}
    return {"status": {"conditions": [{"type": "Ready", "status": "True"}, made]}}


def test_an_offline_pod_is_converted_and_placed_by_what_nodes_lend(plane, replica):
    put_node(plane, "busy", "0")
    put_node(plane, "lends", "4000")
    plane.call("POST", PODS, pod("batch", {"cpu": "1500m", "memory": "1Gi"}))

    found = plane.call("GET", f"{PODS}/batch")

    requests = found["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {CPU: "1500", MEMORY: "1073741824"}
    spec = found["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "colocation-offline",
        -5,
        "Never",
    )
    until(lambda: plane.call("GET", f"{PODS}/batch")["spec"]["nodeName"] == "lends")
    recorded = json.loads(found["metadata"]["annotations"]["colocation.criproxy.io/resources"])
    assert recorded["containers"]["c"]["requests"] == {"cpu": "1500m", "memory": "1Gi"}


def test_koordinator_s_pod_keeps_its_class_and_a_quantity_that_cannot_be_meant_is_refused(plane, replica):
    be = {"koordinator.sh/qosClass": "BE"}
    plane.call("POST", PODS, pod("koord", {CPU: "1k"}, be, priorityClassName="koord-batch"))
    spec = plane.call("GET", f"{PODS}/koord")["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("koord-batch", 5999)

    with pytest.raises(control_plane.ApiError) as refused:
        plane.call("POST", PODS, pod("wrong", {CPU: "200m"}, be))
    assert refused.value.code == 422 and "for 0.2 cores write" in str(refused.value)


def test_a_limit_range_s_defaults_do_not_come_back(plane, replica):
    where = "/api/v1/namespaces/default/limitranges"
    limits = [{"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1", "memory": "1Gi"}}]
    plane.call("POST", where, {"metadata": {"name": "defaults"}, "spec": {"limits": limits}})
    try:
        time.sleep(1.0)  # its admission has a cache
        plane.call("POST", PODS, pod("limited"))
        found = plane.call("GET", f"{PODS}/limited")["spec"]["containers"][0]["resources"]
        assert found == {"limits": {CPU: "2k"}, "requests": {CPU: "1k", MEMORY: "1073741824"}}
    finally:
        plane.call("DELETE", f"{where}/defaults")


def test_unmarked_pods_start_as_ever_while_the_webhook_is_away(plane, port):
    plane.call("POST", PODS, pod("online", {"cpu": "1"}, labels={"app": "web"}))
    with pytest.raises(control_plane.ApiError) as refused:
        plane.call("POST", PODS, pod("marked", {"cpu": "1"}))
    assert refused.value.code == 500 and "offline.colocation.criproxy.io" in str(refused.value)


def test_a_policy_a_label_a_hold_and_an_eviction_reach_the_node(plane, replica):
    night = put_node(plane, "night", "3000")
    spec = {"selector": {"matchLabels": {"pool": "night"}}, "settings": {"cpu": {"reserve_cores": 2}}}
    kind = {"kind": "ColocationPolicy", "apiVersion": "colocation.criproxy.io/v1alpha1"}
    plane.call("POST", POLICIES, {**kind, "metadata": {"name": "night"}, "spec": spec})
    until(lambda: plane.call("GET", f"{POLICIES}/night")["status"]["nodes"] == 0)

    began_s = time.monotonic()
    plane.merge(night, {"metadata": {"labels": {"pool": "night"}}})
    told = until(lambda: plane.call("GET", night)["metadata"]["annotations"][POLICY])
    assert time.monotonic() - began_s < 1.0
    assert json.loads(told)["settings"] == spec["settings"]
    until(lambda: plane.call("GET", f"{POLICIES}/night")["status"]["waiting"] == 1)

    plane.merge(f"{night}/status", ready(night, "Held"))
    until(lambda: any(taint["key"] == PRESSURE for taint in plane.call("GET", night)["spec"]["taints"]))

    made = plane.call("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "maker"}})
    uid = made["metadata"]["uid"]  # of something that is there, or the pod would be collected
    owner = {"kind": "ConfigMap", "apiVersion": "v1", "name": "maker", "uid": uid, "controller": True}
    until_s = rfc3339(time.time() + 6)
    plane.merge(night, {"metadata": {"annotations": {EVICTED: json.dumps({uid: until_s})}}})
    until(lambda: f"{EVICTED_FROM}{uid}" in plane.call("GET", night)["metadata"]["labels"])
    back = pod("back", {"cpu": "100m"}, nodeSelector={"pool": "night"})
    back["metadata"]["ownerReferences"] = [owner]
    plane.call("POST", PODS, back)
    time.sleep(2.0)
    assert "nodeName" not in plane.call("GET", f"{PODS}/back")["spec"]
    until(lambda: plane.call("GET", f"{PODS}/back")["spec"].get("nodeName") == "night")
    assert rfc3339(time.time()) >= until_s


def test_the_schema_refuses_what_is_wrong(plane):
    kind = {"kind": "ColocationPolicy", "apiVersion": "colocation.criproxy.io/v1alpha1"}
    wrong = {"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}
    with pytest.raises(control_plane.ApiError) as refused:
        plane.call("POST", POLICIES, {**kind, "metadata": {"name": "wrong"}, "spec": wrong})
    assert refused.value.code == 422
