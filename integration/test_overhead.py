"""A pod that prints without end costs a real runtime CPU outside the box: it is measured, told, and ended if asked."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import is_running, wait_until

pytestmark = pytest.mark.alone

WAIT_S = 240
OFFLINE = {"colocation.criproxy.io/class": "offline"}
NEWLINES = ["sh", "-c", "yes ''"]
QUIET = ["sleep", "2147483647"]
MAX_CORES = 0.05
"""Low, so that a runtime on a busy machine reaches it."""


def config(**colocation: Any) -> Config:
    return {
        "colocation": {"enabled": True, "runtime_max_cores": MAX_CORES, **colocation},
        "control": {"policy": "static"},
        "cpu": {"static_cores": 0.5},
        "memory": {"static_bytes": 256 << 20},
        "guard": {"enabled": False},
    }


@dataclass(frozen=True, slots=True)
class Node:
    """A criproxy before a runtime, and the test in kubelet's place."""

    runtime: Containerd
    proxy: Criproxy
    client: CriClient

    def run(self, name: str, command: list[str]) -> tuple[Pod, Container]:
        uid = str(uuid.uuid4())
        parent = f"{cgroup_root(self.runtime.directory)}/overhead/kubepods/besteffort/pod{uid}"
        Tree(parent).make()
        logs = self.runtime.directory / "logs" / uid
        logs.mkdir(parents=True)
        pod = self.client.run_pod(name, uid=uid, labels=OFFLINE, cgroup_parent=parent, log_directory=str(logs))
        return pod, self.client.run_container(pod, "main", command, log_path="main.log")

    def problems(self) -> list[str]:
        return [problem for problem in self.proxy.status()["problems"] if "runtime_max_cores" in problem]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.proxy.events() if event["event"] == name]

    def metric(self, name: str) -> float:
        lines = self.proxy.http("/metrics")[1].splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    proxy = Criproxy(containerd.directory, containerd.socket, config())
    proxy.log.unlink(missing_ok=True)
    proxy.start()
    with CriClient(proxy.socket) as through:
        yield Node(containerd, proxy, through)
    proxy.stop()


def test_pod_that_prints_is_told_and_stopped_if_asked_and_a_quiet_one_runs_on(
    node: Node, say: Callable[[str], object]
) -> None:
    _, quiet = node.run("quiet", QUIET)
    _, loud = node.run("loud", NEWLINES)
    pid = node.client.pid(loud)
    wait_until(lambda: bool(node.problems()), WAIT_S, "the problem", node.proxy.log)
    say(node.problems()[0])
    [problem] = node.problems()
    assert "default/loud" in problem
    overhead = node.proxy.status()["overhead"]
    assert overhead["runtime_cores"] > 0
    assert [pod["name"] for pod in overhead["pods"] if pod["log_bytes_per_s"] > 0] == ["loud"]
    assert [event["pod"] for event in node.events("runtime_overloaded")] == ["default/loud"]
    assert node.metric("criproxy_runtime_overloaded") == 1
    assert node.metric("criproxy_offline_log_bytes_total") > 1e6
    assert node.metric("criproxy_runtime_cpu_seconds_total") > 0
    assert (is_running(pid), node.events("stop")) == (True, [])

    node.proxy.configure(config(on_runtime_overload="evict"))
    wait_until(lambda: not is_running(pid), WAIT_S, "the end of the pod that prints", node.proxy.log)
    assert [event["pod"] for event in node.events("stop")] == ["default/loud"]
    wait_until(lambda: not node.problems(), WAIT_S, "no problem any more", node.proxy.log)
    assert len(node.events("runtime_no_longer_overloaded")) == 1
    assert is_running(node.client.pid(quiet))
