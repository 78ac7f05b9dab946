"""What real offline pods use and ask for: in the status, in `criproxy top`, and on the page."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from criproxy.commands.page.facts import facts
from criproxy.model import LOWEST_SHARES
from integration.lab.criproxy import ANSWER_S, UNJUDGED, static
from integration.lab.node import Node
from integration.lab.process import wait_until

pytestmark = pytest.mark.timeout(600)

WAIT_S = 120.0
LOOP = ("sh", "-c", "while :; do :; done")
SLEEP = ("sleep", "2147483647")
ASKED_SHARES, ASKED_CORES = 1536, 1.5
MIB = 1 << 20
CONFIG = static(1.0, 512 * MIB, interference=UNJUDGED)


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    with Node.before(lab, CONFIG) as node:
        yield node


def pods(node: Node) -> dict[str, Any]:
    return {pod["name"]: pod for pod in node.proxy.status()["pods"]}


def test_real_pods_use_what_the_status_top_and_page_say(node: Node) -> None:
    node.run("offline", "busy", LOOP, qos="burstable", limits={"shares": ASKED_SHARES, "memory_bytes": 64 * MIB})
    node.run("offline", "quiet", SLEEP, limits={"shares": LOWEST_SHARES})

    def measured() -> bool:
        found = pods(node)
        return len(found) == 2 and all(pod["cpu_cores"] is not None for pod in found.values())

    wait_until(measured, WAIT_S, "two looks", node.proxy.log)
    wait_until(lambda: (pods(node)["busy"]["cpu_cores"] or 0.0) > 0.2, WAIT_S, "the loop's CPU", node.proxy.log)
    found = pods(node)
    busy, quiet = found["busy"], found["quiet"]
    assert busy["cpu_cores"] <= 1.2
    assert busy["cpu_asked_cores"] == pytest.approx(ASKED_CORES, abs=0.03)
    assert busy["memory_asked_bytes"] == 64 * MIB
    assert 0 < busy["memory_bytes"] < 64 * MIB
    assert quiet["cpu_cores"] < 0.1
    assert (quiet["cpu_asked_cores"], quiet["memory_asked_bytes"]) == (None, None)
    assert 0.0 <= busy["age_s"] < WAIT_S

    shown = subprocess.run(
        [sys.executable, "-m", "criproxy", "top", "--config", node.proxy.config_file],
        check=True,
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
    ).stdout
    assert [line.split()[0].rpartition("/")[2] for line in shown.splitlines()[6:]] == ["busy", "quiet"]

    past = facts(node.proxy.asked_at)["history"]
    online = [number for number in past["seconds"]["cpu"]["online"] if number is not None]
    assert len(online) >= 3
    assert max(number for number in past["seconds"]["cpu"]["box"] if number is not None) > 100
