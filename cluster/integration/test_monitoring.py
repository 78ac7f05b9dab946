"""A real Prometheus scrapes webhook and controller, and has an answer to each expression about them."""

import base64
import time

import pytest

from cluster.integration.objects import PODS, pod, policy, put_node, until
from cluster.integration.objects import POLICIES as KIND
from integration.lab.cluster_side import MANIFESTS, Replica
from integration.lab.control_plane import ApiError
from integration.lab.criproxy import CHECKOUT
from integration.lab.prometheus import Prometheus
from integration.test_monitoring import at_once, filled, of_the_cluster
from monitoring.dashboards import FLEET, ONE_NODE, expressions
from monitoring.rules import ALERTS, RECORDED
from tests.fakes.authority import Authority

pytestmark = pytest.mark.timeout(1200)

PROXY = CHECKOUT / "monitoring" / "node-proxy"
SPACE = "/api/v1/namespaces/criproxy-monitoring"
REVIEWS = {
    "tokenreviews": "/apis/authentication.k8s.io/v1/tokenreviews",
    "subjectaccessreviews": "/apis/authorization.k8s.io/v1/subjectaccessreviews",
}


@pytest.fixture(scope="module")
def replica(plane):
    made = Replica(plane, "replica", metrics=True)
    made.take_webhooks()
    made.start()
    try:
        yield made
    finally:
        made.process.stop()


@pytest.fixture(scope="module")
def prometheus(plane, replica):
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
        )
    ]
    made = Prometheus(folder, scrapes, at_once(folder))
    yield made
    made.process.stop()


def test_each_expression_has_an_answer_and_alerts_fire_in_faults(plane, replica, prometheus):
    put_node(plane, "node-1")
    plane.call("POST", KIND, policy("all", {}, {"memory": {"max_bytes": 1 << 30}}))
    until(lambda: converts(plane))
    wanted = [
        *(one.expr for one in RECORDED),
        *(one.record for one in RECORDED),
        *(one.measure for one in ALERTS),
        *expressions(FLEET),
        *expressions(ONE_NODE),
    ]
    wanted = [expr for expr in wanted if of_the_cluster(expr)]
    assert len(wanted) > 10
    until(lambda: not [expr for expr in wanted if not prometheus.query(filled(expr, ""))], 60)
    assert prometheus.query("criproxy_cluster_nodes")[0]["value"][1] == "1"
    assert prometheus.query('criproxy_cluster_writes_total{queue="nodes", outcome="written"} > 0')
    assert prometheus.query('criproxy_cluster_reviews_total{outcome="converted"} > 0')
    assert not {one for one in prometheus.firing() if one.startswith(("CriproxyCluster", "CriproxyWebhook"))}

    replica.review(b"no review")  # each a second: the rate of what is new is not 0
    until(lambda: replica.review(b"no review") and "CriproxyWebhookFailing" in prometheus.firing(), 60)

    certificate, key = Authority(plane.directory, "short").issue("localhost")  # a day
    replica.mount({"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()})
    replica.process.controller.kill()
    until(lambda: "CriproxyClusterNoLeader" in prometheus.firing(), 60)


def converts(plane):
    try:
        plane.call("POST", f"{PODS}?dryRun=All", pod("probe", {"cpu": "1"}))
    except ApiError:
        return False
    return True
