"""The query of the descheduler's policy in examples/, by a real Prometheus: one value from 0 to 1 for each node."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from criproxy.daemon.register import OTHERS, PARTS
from criproxy.observe.metrics import Metrics
from integration.lab.criproxy import CHECKOUT
from integration.lab.process import wait_until

prometheus = pytest.importorskip("integration.lab.prometheus")


class Page(BaseHTTPRequestHandler):
    """Two nodes' metrics, by the path."""

    def do_GET(self) -> None:
        metrics = Metrics("", shown=(*OTHERS, *PARTS))
        cores = {"/busy": 6.0, "/idle": 1.0}[self.path]
        metrics.set(usage_cores={"online": cores, "node": 8.0}, capacity_cores=8.0)
        body = metrics.registry.render()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def pages() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def scrape(node: str, port: int, instance: str) -> dict[str, object]:
    """A target with its label as in a cluster: the node's name, or its address and port."""
    config = {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": instance}}
    return {"job_name": node, "metrics_path": f"/{node}", "static_configs": [config]}


def test_query_says_of_each_node_how_full_online_pods_have_it(tmp_path: Path) -> None:
    text = (CHECKOUT / "examples" / "descheduler" / "policy.yaml").read_text()
    (profile,) = yaml.safe_load(text)["profiles"]
    (arguments,) = [one["args"] for one in profile["pluginConfig"] if one["name"] == "LowNodeUtilization"]
    query = arguments["metricsUtilization"]["prometheus"]["query"]
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: []")

    with pages() as port:
        scrapes = [scrape("busy", port, "busy:9464"), scrape("idle", port, "idle")]
        server = prometheus.Prometheus(tmp_path / "prometheus", scrapes, rules)
        try:
            wait_until(lambda: len(server.query(query)) == 2, 60.0, "both nodes")
            found = server.query(query)
        finally:
            server.process.stop()

    values = {one["metric"]["instance"]: float(one["value"][1]) for one in found}
    assert values == {"busy": 0.75, "idle": 0.125}
    assert all(set(one["metric"]) == {"instance"} for one in found)
    assert values["idle"] * 100 < arguments["thresholds"]["MetricResource"]
    assert values["busy"] * 100 > arguments["targetThresholds"]["MetricResource"]
