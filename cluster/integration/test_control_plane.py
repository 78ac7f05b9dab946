"""The cluster's side against a real API server, scheduler and controller manager."""

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster.integration.objects import CPU, MEMORY, PODS, POLICIES, pod, policy, put_node, ready, until
from criproxy_cluster.vocabulary.names import EVICTED, EVICTED_FROM, POLICY, PRESSURE
from criproxy_cluster.vocabulary.times import rfc3339
from integration.lab.cluster_side import WEBHOOKS, Replica
from integration.lab.control_plane import ApiError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine


@pytest.fixture(scope="module")
def served(plane):
    """The replica that the API server asks, as yet not started."""
    made = Replica(plane, "replica")
    made.take_webhooks()
    return made


@pytest.fixture
def replica(plane, served):
    served.start()
    try:
        until(lambda: answers(plane))
        yield served
    finally:
        served.process.stop()


def answers(plane):
    """Whether the webhook is there: a dry run of a marked pod."""
    try:
        plane.call("POST", f"{PODS}?dryRun=All", pod("probe"))
    except ApiError:
        return False
    return True


def test_an_offline_pod_is_converted_and_placed_by_what_nodes_lend(plane, replica):
    put_node(plane, "busy", "0")
    put_node(plane, "lends", "4000")
    plane.call("POST", PODS, pod("batch", {"cpu": "1500m", "memory": "1Gi"}))

    found = plane.call("GET", f"{PODS}/batch")

    requests = found["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {CPU: "1500", MEMORY: "1073741824"}
    spec = found["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "colocation-expendable",
        -11,
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

    with pytest.raises(ApiError) as refused:
        plane.call("POST", PODS, pod("wrong", {CPU: "200m"}, be))
    assert refused.value.code == 422 and "for 0.2 cores write" in str(refused.value)


def test_katalyst_s_pod_without_a_label_asks_for_what_nodes_publish(plane, replica):
    of_katalyst = "resource.katalyst.kubewharf.io/reclaimed"
    one = pod("katalyst", {f"{of_katalyst}_millicpu": "1500", f"{of_katalyst}_memory": "1000M"}, {})
    (container,) = one["spec"]["containers"]
    container["resources"]["limits"] = container["resources"]["requests"]
    one["metadata"]["annotations"] = {"katalyst.kubewharf.io/qos_level": "reclaimed_cores"}
    found = plane.call("POST", f"{PODS}?dryRun=All", one)
    assert found["metadata"]["labels"] == {"colocation.criproxy.io/class": "offline"}
    assert found["spec"]["containers"][0]["resources"]["requests"] == {CPU: "1500", MEMORY: "1G"}
    assert found["spec"]["priorityClassName"] == "colocation-expendable"


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


class AddsRequests(BaseHTTPRequestHandler):
    """A mutating webhook as a policy engine has it: containers that request no CPU get one."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        patch = []
        for number, one in enumerate(review["object"]["spec"]["containers"]):
            asked = one.get("resources", {}).get("requests", {})
            if "cpu" not in asked:
                where = f"/spec/containers/{number}/resources"
                value = {**one.get("resources", {}), "requests": {**asked, "cpu": "100m"}}
                patch.append({"op": "add", "path": where, "value": value})
        response = {"uid": review["uid"], "allowed": True}
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        made = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        body = json.dumps(made).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def policy_engine(plane):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(plane.authority.sign("kyverno", "/CN=localhost", "subjectAltName=DNS:localhost"))
    with ThreadingHTTPServer(("localhost", 0), AddsRequests) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        bundle = base64.b64encode(plane.authority.ca.read_bytes()).decode()
        webhook = {
            "name": "mutate.kyverno.svc",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"https://localhost:{server.server_port}/mutate", "caBundle": bundle},
            "reinvocationPolicy": "IfNeeded",
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "sideEffects": "None",
        }
        where, _, _ = WEBHOOKS.rpartition("/")
        name = "kyverno-resource-mutating-webhook-cfg"
        plane.call("POST", where, {"metadata": {"name": name}, "webhooks": [webhook]})
        yield
        plane.call("DELETE", f"{where}/{name}")
        server.shutdown()


def test_a_policy_engine_s_requests_do_not_come_back(plane, replica, policy_engine):
    """It is called again after the conversion, which takes the request away: the last word is criproxy's."""

    def asked(name, labels):
        found = plane.call("POST", f"{PODS}?dryRun=All", pod(name, labels=labels))
        return found["spec"]["containers"][0]["resources"]["requests"]

    until(lambda: asked("online", {}) == {"cpu": "100m"})
    assert asked("offline", None).keys() == {CPU, MEMORY}


def test_a_limit_range_s_limit_and_huge_pages_keep_no_offline_pod_out(plane, replica):
    where = "/api/v1/namespaces/default/limitranges"
    limits = [{"type": "Container", "default": {"cpu": "500m", "memory": "512Mi"}}]
    plane.call("POST", where, {"metadata": {"name": "defaults"}, "spec": {"limits": limits}})
    try:
        time.sleep(1.0)  # its admission has a cache
        plane.call("POST", PODS, pod("above", {CPU: "2000", MEMORY: "4Gi"}))
        found = plane.call("GET", f"{PODS}/above")["spec"]["containers"][0]["resources"]
        assert found == {"requests": {CPU: "2k", MEMORY: "4Gi"}}
    finally:
        plane.call("DELETE", f"{where}/defaults")

    huge = pod("huge", {"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"})
    huge["spec"]["containers"][0]["resources"]["limits"] = {"hugepages-2Mi": "4Mi"}
    plane.call("POST", PODS, huge)
    found = plane.call("GET", f"{PODS}/huge")
    requests = found["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {CPU: "1k", MEMORY: "67108864", "hugepages-2Mi": "4Mi", "cpu": "0", "memory": "0"}
    assert found["status"]["qosClass"] == "BestEffort"


def test_a_quota_of_online_s_requests_leaves_offline_pods_out_and_another_counts_them(plane, replica):
    """As README.md has them."""
    where = "/api/v1/namespaces/quota"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "quota"}})
    until(lambda: plane.exists(f"{where}/serviceaccounts/default"))

    def put_quota(name, spec):
        plane.call("POST", f"{where}/resourcequotas", {"metadata": {"name": name}, "spec": spec})
        until(lambda: plane.call("GET", f"{where}/resourcequotas/{name}")["status"]["hard"])
        time.sleep(1.0)  # its admission has a cache

    def refused(name):
        with pytest.raises(ApiError) as error:
            plane.call("POST", f"{where}/pods", pod(name, {"cpu": "1"}))
        return str(error.value)

    put_quota("online", {"hard": {"requests.cpu": "1", "requests.kubernetes.io/batch-cpu": "1"}})
    assert "must specify requests.cpu" in refused("any"), "whatever else it counts"
    plane.call("DELETE", f"{where}/resourcequotas/online")
    put_quota("online", {"hard": {"requests.cpu": "1"}, "scopes": ["NotBestEffort"]})
    chosen = {"scopeName": "PriorityClass", "operator": "In", "values": ["colocation-expendable"]}
    put_quota("offline", {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [chosen]}})
    plane.call("POST", f"{where}/pods", pod("first", {"cpu": "2"}))
    assert "exceeded quota: offline" in refused("second")


def test_an_offline_pod_is_converted_in_a_namespace_of_restricted_pods_as_in_any(plane, replica):
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "strict", "labels": levels}})
    until(lambda: plane.exists("/api/v1/namespaces/strict/serviceaccounts/default"))
    wanted = pod("batch", {"cpu": "1500m", "memory": "1Gi"})
    where = "/api/v1/namespaces/strict/pods"

    with pytest.raises(ApiError) as refused:
        plane.call("POST", where, wanted)
    assert refused.value.code == 403 and "violates PodSecurity" in str(refused.value)

    (container,) = wanted["spec"]["containers"]
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    wanted["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    plane.kubectl("create", "--warnings-as-errors", "-n", "strict", "-f", "-", stdin=json.dumps(wanted))
    made = plane.call("GET", f"{where}/batch")["spec"]
    assert made["containers"][0]["resources"]["requests"] == {CPU: "1500", MEMORY: "1073741824"}
    assert made["containers"][0]["securityContext"] == container["securityContext"]


def test_a_validating_policy_sees_an_offline_pod_as_it_was_converted_and_can_leave_it_out(plane, replica):
    kind, bindings = (
        f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{end}" for end in ("ies", "ybindings")
    )
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    has_cpu = "object.spec.containers.all(c, has(c.resources.requests) && 'cpu' in c.resources.requests)"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [pods]},
        "validations": [{"expression": has_cpu, "message": "state a CPU request"}],
    }
    plane.call("POST", kind, {"metadata": {"name": "cpu"}, "spec": spec})
    plane.call("POST", bindings, {
        "metadata": {"name": "cpu"}, "spec": {"policyName": "cpu", "validationActions": ["Deny"]}
    })  # fmt: skip
    asks = f"{PODS}?dryRun=All"
    try:
        until(lambda: refuses(plane, asks, pod("states-cpu", {"cpu": "1"})))

        online = "!has(object.metadata.labels) || !('colocation.criproxy.io/class' in object.metadata.labels)"
        leaves_out = {"matchConditions": [{"name": "online", "expression": online}]}
        plane.merge(f"{kind}/cpu", {"spec": leaves_out})
        until(lambda: not refuses(plane, asks, pod("states-cpu", {"cpu": "1"})))
        assert refuses(plane, asks, pod("states-none", labels={}))
    finally:
        for name in (kind, bindings):
            plane.call("DELETE", f"{name}/cpu")


def refuses(plane, where, wanted):
    """Whether the policy does."""
    try:
        plane.call("POST", where, wanted)
    except ApiError as error:
        assert "state a CPU request" in str(error)
        return True
    return False


def test_unmarked_pods_start_as_ever_while_the_webhook_is_away(plane, served):
    plane.call("POST", PODS, pod("online", {"cpu": "1"}, labels={"app": "web"}))
    with pytest.raises(ApiError) as refused:
        plane.call("POST", PODS, pod("marked", {"cpu": "1"}))
    assert refused.value.code == 500 and "offline.colocation.criproxy.io" in str(refused.value)


def test_a_policy_a_label_a_hold_and_an_eviction_reach_the_node(plane, replica):
    night = put_node(plane, "night", "3000")
    settings = {"cpu": {"reserve_cores": 2}}
    plane.call("POST", POLICIES, policy("night", {"pool": "night"}, settings))
    until(lambda: plane.call("GET", f"{POLICIES}/night")["status"]["nodes"] == 0)

    began_s = time.monotonic()
    plane.merge(night, {"metadata": {"labels": {"pool": "night", "of": "two"}}})
    told = until(lambda: plane.call("GET", night)["metadata"]["annotations"][POLICY])
    assert time.monotonic() - began_s < 1.0
    assert json.loads(told)["settings"] == settings
    until(lambda: plane.call("GET", f"{POLICIES}/night")["status"]["waiting"] == 1)

    beside = put_node(plane, "beside", "3000", {"of": "two"})
    amounts = {"cpu": "500m", "memory": "1Gi"}  # less room than the other
    plane.merge(f"{beside}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
    taint = {"key": "as-many-as-the-other", "effect": "PreferNoSchedule"}
    plane.merge(beside, {"spec": {"taints": [taint]}})

    plane.merge(f"{night}/status", ready(night, "Held"))
    until(lambda: any(taint["key"] == PRESSURE for taint in plane.call("GET", night)["spec"]["taints"]))

    made = plane.call("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "maker"}})
    uid = made["metadata"]["uid"]  # of something that is there, or the pod would be collected
    owner = {"kind": "ConfigMap", "apiVersion": "v1", "name": "maker", "uid": uid, "controller": True}
    until_s = rfc3339(time.time() + 6)
    interval = f"{rfc3339(time.time())}/{until_s}"
    plane.merge(night, {"metadata": {"annotations": {EVICTED: json.dumps({uid: interval})}}})
    until(lambda: f"{EVICTED_FROM}{uid}" in plane.call("GET", night)["metadata"]["labels"])
    assert placed(plane, "back", owner) == "beside"
    until(lambda: f"{EVICTED_FROM}{uid}" not in plane.call("GET", night)["metadata"]["labels"])
    assert rfc3339(time.time()) >= until_s
    assert placed(plane, "later", owner) == "night"


def placed(plane, name, owner):
    """The node that the scheduler chooses for such a pod, of "night" and "beside"."""
    made = pod(name, {"cpu": "100m"}, nodeSelector={"of": "two"})
    made["metadata"]["ownerReferences"] = [owner]
    plane.call("POST", PODS, made)
    return until(lambda: plane.call("GET", f"{PODS}/{name}")["spec"].get("nodeName"))
