"""A real Prometheus scrapes webhook, controller and ledger, with all that they can do switched on, and has an answer to
each expression about them; alerts fire in faults; and what the manifests of the ways in are on a real API server.
"""

import json
import os
import ssl
import urllib.error
import urllib.request

import pytest
import yaml

from cluster.integration.objects import CPU, PODS, pod, policy, put_node, until
from cluster.integration.objects import POLICIES as KIND
from integration.lab import ledger_side
from integration.lab.cluster_side import MANIFESTS, SYSTEM, Replica, install_with
from integration.lab.control_plane import ApiError
from integration.lab.criproxy import CHECKOUT
from integration.lab.kueue import Kueue
from integration.lab.ledger_side import LedgerReplica
from integration.lab.ports import free_ports
from integration.lab.prometheus import Prometheus
from integration.test_monitoring import at_once, of_the_cluster, unanswered
from monitoring.dashboards import FLEET, ONE_NODE, expressions
from monitoring.rules import ALERTS, RECORDED

pytestmark = pytest.mark.timeout(1200)

PROXY = CHECKOUT / "monitoring" / "node-proxy"
SPACE = "criproxy-monitoring"
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
FLAVOR = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/lent"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LEDGERS_ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}/rolebindings/criproxy-ledger"


@pytest.fixture(scope="module")
def replica(plane):
    """With the Cohort, of whose Kueue only the kinds are there, and the book of owners."""
    arguments = install_with(plane, "queue", "overflow")
    Kueue(plane)
    flavor, *_ = yaml.safe_load_all((CHECKOUT / "examples" / "kueue" / "queues.yaml").read_text())
    plane.call("POST", os.path.dirname(FLAVOR), flavor)
    made = Replica(plane, "replica")
    made.take_webhooks()
    made.start(controller_arguments=arguments, owners=True)
    try:
        yield made
    finally:
        made.process.stop()


@pytest.fixture(scope="module")
def ledger(plane):
    """With YARN, of which there is nothing."""
    ledger_side.install(plane)
    made = LedgerReplica(plane, "ledger", arguments=["--resource-manager", f"http://127.0.0.1:{free_ports(1)[0]}"])
    made.start()
    try:
        until(made.is_ready, 60)
        made.take_binds()
        yield made
    finally:
        made.process.stop()


@pytest.fixture(scope="module")
def prometheus(plane, replica, ledger):
    folder = plane.directory / "prometheus"
    folder.mkdir()
    tls = {"ca_file": str(plane.authority.ca), "server_name": "localhost"}
    scrapes = [
        {
            "job_name": name,
            "static_configs": [{"targets": [f"localhost:{port}"], "labels": {"job": "criproxy-cluster"}}],
            **more,
        }
        for name, port, more in (
            ("webhook", replica.port, {"scheme": "https", "tls_config": tls}),
            ("controller", replica.metrics_port, {}),
            ("ledger", ledger.port, {"scheme": "https", "tls_config": tls}),
        )
    ]
    made = Prometheus(folder, scrapes, at_once(folder))
    yield made
    made.process.stop()


def test_each_expression_has_an_answer_and_alerts_fire_in_faults(plane, replica, ledger, prometheus):
    put_node(plane, "node-1", "2000", {"pool": "online"})
    plane.call("POST", KIND, policy("all", {}, {"memory": {"max_bytes": 1 << 30}}))
    until(lambda: converts(plane))
    template = pod("waits", {"cpu": "64"}, restartPolicy="Never")
    plane.call("POST", JOBS, {"metadata": {"name": "waits"}, "spec": {"template": template}})
    wanted = [
        *(one.expr for one in RECORDED),
        *(one.record for one in RECORDED),
        *(one.measure for one in ALERTS),
        *expressions(FLEET),
        *expressions(ONE_NODE),
    ]
    wanted = [expr for expr in wanted if of_the_cluster(expr)]
    assert len(wanted) > 30
    until(lambda: not unanswered(prometheus, wanted, ""), 60)
    assert prometheus.query("criproxy_cluster_nodes")[0]["value"][1] == "1"
    assert prometheus.query('criproxy_cluster_writes_total{queue="nodes", outcome="written"} > 0')
    assert prometheus.query('criproxy_cluster_reviews_total{outcome="converted"} > 0')
    until(lambda: prometheus.query('criproxy_cluster_quota_cores{flavor="lent", what="lent"} == 2'), 60)
    until(lambda: prometheus.query('criproxy_cluster_owner_waited_seconds{owner="waits"} > 0'), 60)
    of_nodes = {"CriproxyDown"}  # no node is scraped here
    until(lambda: prometheus.firing() - of_nodes == {"CriproxyWebhookCertificateExpires"}, 60)  # two days' in the lab

    plane.call("DELETE", FLAVOR)
    until(lambda: "CriproxyClusterTrouble" in prometheus.firing(), 60)

    manager = pod("nodemanager", {CPU: "500"}, nodeName="node-1")
    manager["metadata"]["labels"]["app.kubernetes.io/component"] = "node-manager"
    manager["metadata"]["annotations"] = {"yarn.hadoop.apache.org/node-id": "localhost:1"}
    manager["spec"]["containers"][0]["resources"]["limits"] = {CPU: "500"}
    plane.call("POST", PODS, manager)
    until(lambda: "CriproxyYarnTrouble" in prometheus.firing(), 60)

    plane.call("DELETE", LEDGERS_ROLE)
    until(lambda: {"CriproxyLedgerNoLeader", "CriproxyLedgerAbstains"} <= prometheus.firing(), 60)

    until(lambda: spoils(plane, replica) and "CriproxyWebhookFailing" in prometheus.firing(), 60)

    replica.process.controller.kill()
    until(lambda: "CriproxyClusterNoLeader" in prometheus.firing(), 60)

    replica.process.webhook.kill()
    until(lambda: "CriproxyWebhookDown" in prometheus.firing(), 60)


def spoils(plane, replica):
    """Sends the webhook what is no review."""
    context = ssl.create_default_context(cafile=str(plane.authority.ca))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"https://localhost:{replica.port}/convert", b"{}", timeout=20, context=context)
    return refused.value.code == 400


def converts(plane):
    try:
        plane.call("POST", f"{PODS}?dryRun=All", pod("probe", {"cpu": "1"}))
    except ApiError:
        return False
    return True


def token(plane, namespace, account):
    """A token of a service account, which is made if it is not there."""
    config = json.loads(plane.account_kubeconfig(namespace, account).read_text())
    return config["users"][0]["user"]["token"]


def ask(plane, bearer, path, body=None):
    """What the API server answers to who has this token: the status, and the object."""
    context = ssl.create_default_context(cafile=str(plane.authority.ca))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{plane.url}{path}", body and json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_nodes_proxy_can_be_applied_and_may_ask_who_may_read_metrics_and_no_more(plane):
    """Its image can't be pulled here: what it would ask is asked in its place, with its own token."""
    plane.kubectl("apply", "--warnings-as-errors", "-k", str(PROXY))
    template = plane.call("GET", f"/apis/apps/v1/namespaces/{SPACE}/daemonsets/criproxy-node-proxy")["spec"]["template"]
    made = {**template, "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "proxy"}}
    assert plane.call("POST", f"/api/v1/namespaces/{SPACE}/pods?dryRun=All", made)["spec"]["hostNetwork"]
    account = {"metadata": {"name": "criproxy-node-proxy"}}
    plane.call("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", account)
    with pytest.raises(ApiError, match="hostNetwork"):
        plane.call("POST", f"/api/v1/namespaces/{SYSTEM}/pods?dryRun=All", made)

    proxy = token(plane, SPACE, "criproxy-node-proxy")
    plane.kubectl(
        "create", "clusterrolebinding", "reads", "--clusterrole=criproxy-metrics-reader",
        "--serviceaccount=default:prometheus",
    )  # fmt: skip
    for name, may in (("prometheus", True), ("other", False)):
        bearer = token(plane, "default", name)
        code, review = ask(plane, proxy, TOKENS, {"spec": {"token": bearer}})
        user = review["status"]["user"]
        assert (code, review["status"]["authenticated"]) == (201, True)
        attributes = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
        asked = {"spec": {"user": user["username"], "groups": user["groups"], **attributes}}
        code, review = ask(plane, proxy, RIGHTS, asked)
        assert (code, review["status"]["allowed"]) == (201, may), name
    assert not ask(plane, proxy, TOKENS, {"spec": {"token": "x"}})[1]["status"].get("authenticated")
    assert ask(plane, proxy, "/api/v1/pods")[0] == ask(plane, proxy, "/api/v1/nodes")[0] == 403


def test_the_component_has_the_controller_serve_metrics(plane):
    folder = plane.directory / "with-metrics"
    folder.mkdir()
    here = {
        "resources": [os.path.relpath(MANIFESTS / "base", folder)],
        "components": [os.path.relpath(MANIFESTS / "metrics", folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(here))
    built = yaml.safe_load_all(plane.kubectl("kustomize", str(folder)))
    mine = [one for one in built if one["metadata"]["name"].startswith("criproxy-controller")]
    plane.kubectl("apply", "--warnings-as-errors", "-f", "-", stdin=yaml.safe_dump_all(mine))
    deployment = plane.call("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/criproxy-controller")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["controller", "--metrics-port=9464"]
    assert [one["containerPort"] for one in container["ports"]] == [9464]
    assert plane.exists(f"/apis/networking.k8s.io/v1/namespaces/{SYSTEM}/networkpolicies/criproxy-controller-metrics")
