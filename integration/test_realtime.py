"""Offline containers get no capability for real time from a runtime; a thread that has it all the same is found."""

import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.process import is_running, wait_until

WAIT_S = 240
CLASS = "colocation.criproxy.io/class"
CAP_SYS_NICE = 23
"""Source: capabilities(7); include/uapi/linux/capability.h."""
DEADLINE = ("chrt", "--deadline", "--sched-runtime", "1000000", "--sched-period", "100000000", "--pid", "0")
"""For a thousandth of a CPU. On cgroup v1 with RT_GROUP_SCHED the kernel lets nothing else run in real time."""


def config(**colocation: Any) -> Config:
    return {
        "colocation": {"enabled": True, **colocation},
        "control": {"policy": "static"},
        "cpu": {"static_cores": 0.5},
        "memory": {"static_bytes": 256 << 20},
        "guard": {"enabled": False},
    }


@dataclass(frozen=True, slots=True)
class Node:
    """A criproxy before a runtime, and the test in kubelet's place."""

    root: str
    proxy: Criproxy
    client: CriClient

    def run(self, kind: str, capabilities: tuple[str, ...] = ()) -> Container:
        uid = str(uuid.uuid4())
        parent = f"{self.root}/kubepods/besteffort/pod{uid}"
        Tree(parent).make()
        pod = self.client.run_pod(kind, uid=uid, labels={CLASS: kind}, cgroup_parent=parent)
        return self.client.run_container(pod, "main", ["sleep", "2147483647"], capabilities=capabilities)

    def may_run_in_real_time(self, container: Container) -> bool:
        done = self.client.exec_sync(container, ["cat", "/proc/self/status"])
        effective = next(line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("CapEff:"))
        return bool(int(effective, 16) >> CAP_SYS_NICE & 1)

    def problems(self) -> list[str]:
        return [problem for problem in self.proxy.status()["problems"] if "SCHED_DEADLINE" in problem]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.proxy.events() if event["event"] == name]


@pytest.fixture
def node(containerd: Containerd, client: CriClient, request: pytest.FixtureRequest) -> Iterator[Node]:
    proxy = Criproxy(containerd.directory, containerd.socket, getattr(request, "param", config()))
    proxy.log.unlink(missing_ok=True)
    proxy.start()
    with CriClient(proxy.socket) as through:
        yield Node(f"{cgroup_root(containerd.directory)}/realtime", proxy, through)
    proxy.stop()


@pytest.mark.parametrize("capabilities", [("SYS_NICE",), ("ALL",), ("NET_ADMIN", "SYS_NICE")], ids="-".join)
def test_offline_container_does_not_get_what_an_online_one_gets(node: Node, capabilities: tuple[str, ...]) -> None:
    online, offline = node.run("online", capabilities), node.run("offline", capabilities)
    assert (node.may_run_in_real_time(online), node.may_run_in_real_time(offline)) == (True, False)


@pytest.mark.parametrize("node", [config(on_unbounded="evict")], indirect=True)
def test_thread_in_real_time_is_told_and_its_pod_stopped_if_asked(node: Node) -> None:
    online, offline = node.run("online"), node.run("offline")
    pid = node.client.pid(offline)
    for one in (node.client.pid(online), pid):
        subprocess.run([*DEADLINE, str(one)], check=True)
    wait_until(lambda: not is_running(pid), WAIT_S, "the end of the pod in real time", node.proxy.log)
    assert [event["pod"] for event in node.events("realtime_in_box")] == ["default/offline"]
    assert is_running(node.client.pid(online))


def test_thread_in_real_time_is_a_problem(node: Node) -> None:
    pid = node.client.pid(node.run("offline"))
    subprocess.run([*DEADLINE, str(pid)], check=True)
    wait_until(lambda: bool(node.problems()), WAIT_S, "the problem", node.proxy.log)
    assert node.problems() == [
        f"thread {pid} runs under SCHED_DEADLINE in offline pod default/offline, and no limit of the box holds it"
    ]
    assert is_running(pid)
