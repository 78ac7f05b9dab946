"""The descheduler's policy of examples/: it asks for metrics that there are."""

import re
from pathlib import Path

import yaml

from criproxy.daemon.register import OTHERS, PARTS
from criproxy.observe.metrics import Metrics
from criproxy.vocabulary.names import CLASS, OFFLINE

POLICY = Path(__file__).parent.parent / "examples" / "descheduler" / "policy.yaml"


def test_policy_asks_for_metrics_that_there_are_and_moves_offline_pods_alone() -> None:
    (profile,) = yaml.safe_load(POLICY.read_text())["profiles"]
    arguments = {one["name"]: one["args"] for one in profile["pluginConfig"]}
    query = arguments["LowNodeUtilization"]["metricsUtilization"]["prometheus"]["query"]
    metrics = {one.name: one.labels for one in Metrics("", shown=(*OTHERS, *PARTS)).registry.metrics}
    asked = re.findall(r"(criproxy_\w+)(?:\{(\w+)=)?", query)

    assert len(asked) == 2
    for name, label in asked:
        assert not label or label in metrics[name]
        assert name in metrics
    assert arguments["DefaultEvictor"]["labelSelector"] == {"matchLabels": {CLASS: OFFLINE}}
