"""A pod that prints without end costs a real runtime CPU outside the box: it is measured, told, and ended if asked."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, static
from integration.lab.node import FOREVER, Node
from integration.lab.process import is_running, wait_until

WAIT_S = 240
NEWLINES = ["sh", "-c", "yes ''"]
SETTING = "runtime_max_cores"
MAX_CORES = 0.05
"""Low, so that a runtime on a busy machine reaches it."""


def config(**colocation: Any) -> Config:
    return static(0.5, colocation={"runtime_max_cores": MAX_CORES, **colocation})


def start(node: Node, name: str, command: Sequence[str]) -> Container:
    (logs := node.containerd.directory / "logs" / uuid.uuid4().hex).mkdir(parents=True)
    return node.run("offline", name, command, log_directory=str(logs), container={"log_path": "main.log"})


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    with Node.before(containerd, config()) as node:
        yield node


def test_pod_that_prints_is_told_and_stopped_if_asked_and_a_quiet_one_runs_on(
    node: Node, say: Callable[[str], object]
) -> None:
    quiet = start(node, "quiet", FOREVER)
    loud = start(node, "loud", NEWLINES)
    pid = node.client.pid(loud)
    wait_until(lambda: bool(node.proxy.problems(SETTING)), WAIT_S, "the problem", node.proxy.log)
    say(node.proxy.problems(SETTING)[0])
    [problem] = node.proxy.problems(SETTING)
    assert "default/loud" in problem
    overhead = node.proxy.status()["overhead"]
    assert overhead["runtime_cores"] > 0
    assert [pod["name"] for pod in overhead["pods"] if pod["log_bytes_per_s"] > 0] == ["loud"]
    assert [event["pod"] for event in node.proxy.events("runtime_overloaded")] == ["default/loud"]
    assert node.proxy.metric("criproxy_runtime_overloaded") == 1
    assert node.proxy.metric("criproxy_offline_log_bytes_total") > 1e6
    assert node.proxy.metric("criproxy_runtime_cpu_seconds_total") > 0
    assert (is_running(pid), node.proxy.events("stop")) == (True, [])

    node.proxy.configure(config(on_runtime_overload="evict"))
    wait_until(lambda: not is_running(pid), WAIT_S, "the end of the pod that prints", node.proxy.log)
    assert [event["pod"] for event in node.proxy.events("stop")] == ["default/loud"]
    wait_until(lambda: not node.proxy.problems(SETTING), WAIT_S, "no problem any more", node.proxy.log)
    assert len(node.proxy.events("runtime_no_longer_overloaded")) == 1
    assert is_running(node.client.pid(quiet))
