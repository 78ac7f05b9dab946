"""What webhook, controller and ledger show to Prometheus."""

import asyncio
import math
import re
import socket
import urllib.error
import urllib.request
from typing import ClassVar

import structlog
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from criproxy_cluster import metrics_server
from criproxy_cluster.metrics import ControllerMetrics, LedgerMetrics, WebhookMetrics


def samples(text):
    """Value by name, and `name{a=b}`."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        assert re.fullmatch(r"(criproxy_cluster|process)_[a-z_]+", family.name)
        for one in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(one.labels.items()))
            found[one.name + (f"{{{labels}}}" if labels else "")] = one.value
    return found


class Work:
    def lengths(self):
        return {"nodes": 3, "policies": 1}

    def known(self):
        return 100, 4, 2

    def unheard_s(self):
        return 7.5


class Amount:
    mib, vcores = 3, 2


class Yarn:
    nodes, unknown, giving_back, overdue, grown, shrunk, failures = 5, 1, 2, 0, 7, 8, 9
    problem = "it does not answer"
    amounts: ClassVar = {"held": Amount}


def test_ledger_shows_what_yarn_has():
    metrics = LedgerMetrics()
    found = samples(metrics.render())
    assert found["criproxy_cluster_leads"] == 0 and math.isnan(found["criproxy_cluster_yarn_nodemanagers"])

    metrics.yarn = Yarn()
    found = samples(metrics.render())
    expected = {
        "criproxy_cluster_yarn_nodemanagers": 5,
        "criproxy_cluster_yarn_nodemanagers_unknown": 1,
        "criproxy_cluster_yarn_giving_back": 2,
        "criproxy_cluster_yarn_overdue": 0,
        "criproxy_cluster_yarn_trouble": 1,
        "criproxy_cluster_yarn_failures_total": 9,
        "criproxy_cluster_yarn_memory_bytes{what=held}": 3 << 20,
        "criproxy_cluster_yarn_cores{what=held}": 2,
        "criproxy_cluster_yarn_sizes_sent_total{direction=down}": 8,
        "criproxy_cluster_yarn_sizes_sent_total{direction=up}": 7,
    }
    assert {name: found[name] for name in expected} == expected


def test_controller_shows_what_the_leader_has_to_do():
    metrics = ControllerMetrics()
    found = samples(metrics.render())
    assert found["criproxy_cluster_leads"] == 0
    assert math.isnan(found["criproxy_cluster_nodes"])
    assert "criproxy_cluster_queue_length{queue=nodes}" not in found
    assert found["criproxy_cluster_writes_total{outcome=failed,queue=nodes}"] == 0

    metrics.work, metrics.leads, metrics.trouble = Work(), lambda: True, lambda: True
    metrics.wrote("nodes", ok=True)
    metrics.wrote("policies", ok=False)
    found = samples(metrics.render())
    expected = {
        "criproxy_cluster_leads": 1,
        "criproxy_cluster_lease_trouble": 1,
        "criproxy_cluster_nodes": 100,
        "criproxy_cluster_policies": 4,
        "criproxy_cluster_policies_unreadable": 2,
        "criproxy_cluster_nodes_unheard_seconds_total": 7.5,
        "criproxy_cluster_queue_length{queue=nodes}": 3,
        "criproxy_cluster_writes_total{outcome=written,queue=nodes}": 1,
        "criproxy_cluster_writes_total{outcome=failed,queue=policies}": 1,
    }
    assert {name: found[name] for name in expected} == expected

    metrics.work = None
    assert "criproxy_cluster_queue_length{queue=nodes}" not in samples(metrics.render()), "another one leads"


def test_webhook_shows_reviews_by_outcome():
    metrics = WebhookMetrics()
    metrics.reviewed("refused", 0.002)
    found = samples(metrics.registry.render())
    assert found["criproxy_cluster_reviews_total{outcome=refused}"] == 1
    assert found["criproxy_cluster_reviews_total{outcome=failed}"] == 0
    assert found["criproxy_cluster_review_duration_seconds_bucket{le=0.0025}"] == 1
    assert math.isnan(found["criproxy_cluster_certificate_not_after_timestamp_seconds"])


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_controller_s_port_answers_and_is_waited_for(monkeypatch):
    monkeypatch.setattr(metrics_server, "AGAIN_S", 0.01)
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as other:
        port = other.getsockname()[1]

        async def run():
            log = structlog.get_logger()
            serving = asyncio.create_task(metrics_server.serve(port, lambda: b"m 1\n", log))
            await asyncio.sleep(0.05)
            other.close()
            found = []
            for path in ("/metrics", "/healthz", "/status"):
                for _ in range(100):
                    try:
                        found.append(await asyncio.to_thread(ask, port, path))
                        break
                    except OSError:
                        await asyncio.sleep(0.05)
            serving.cancel()
            return found

        with capture_logs() as logged:
            metrics, health, other_path = asyncio.run(run())
    assert (metrics, health) == ((200, b"m 1\n"), (200, b"ok\n"))
    assert other_path[0] == 404
    assert [one["event"] for one in logged] == ["metrics_not_served"], "it is told once"
