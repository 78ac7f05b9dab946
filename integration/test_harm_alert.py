"""The alert that offline work harms online pods fires in a closed box. The others: integration/test_monitoring.py."""

from pathlib import Path

import pytest

from integration.lab.harm import HarmedNode
from integration.lab.process import wait_until
from integration.lab.prometheus import Prometheus
from integration.test_interference import WAIT_S, harmed_by_cpu, node
from integration.test_monitoring import at_once

__all__ = ["node"]

pytestmark = pytest.mark.timeout(900)


def test_online_pods_that_are_harmed_while_the_box_is_closed_fire(node: HarmedNode, tmp_path: Path) -> None:
    with harmed_by_cpu(node, trial_s=3.0, close_after_s=1.0):
        scrape = {"job_name": "criproxy", "static_configs": [{"targets": [node.proxy.address]}]}
        prometheus = Prometheus(tmp_path / "prometheus", [scrape], at_once(tmp_path))
        try:
            wait_until(lambda: ("cpu", "closed") in node.moves(), WAIT_S, "the box to be closed", node.proxy.log)
            wait_until(lambda: "CriproxyOnlineHarmed" in prometheus.firing(), WAIT_S, "the alert")
        finally:
            prometheus.process.stop()
