"""Offline containers get no capability for real time from a runtime; a thread that has it all the same is found."""

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
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


@contextlib.contextmanager
def before(runtime: Containerd, config: Config) -> Iterator[Node]:
    proxy = Criproxy(runtime.directory, runtime.socket, config)
    proxy.log.unlink(missing_ok=True)
    proxy.start()
    with CriClient(proxy.socket) as through:
        yield Node(f"{cgroup_root(runtime.directory)}/realtime", proxy, through)
    proxy.stop()


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    with before(containerd, config()) as node:
        yield node


@pytest.fixture
def evicting(lab: Path) -> Iterator[Node]:
    """Before a runtime of its own: its pods are not `node`'s."""
    runtime = Containerd(lab)
    runtime.start()
    with before(runtime, config(on_unbounded="evict")) as node:
        yield node


@pytest.mark.parametrize("capabilities", [("SYS_NICE",), ("ALL",), ("NET_ADMIN", "SYS_NICE")], ids="-".join)
def test_offline_container_does_not_get_what_an_online_one_gets(node: Node, capabilities: tuple[str, ...]) -> None:
    online, offline = node.run("online", capabilities), node.run("offline", capabilities)
    assert (node.may_run_in_real_time(online), node.may_run_in_real_time(offline)) == (True, False)


def test_thread_in_real_time_is_told_and_its_pod_stopped_if_asked(node: Node, evicting: Node) -> None:
    """Both ways at once, as each looks once a minute."""
    online, offline = evicting.run("online"), evicting.run("offline")
    pid, stopped_pid = node.client.pid(node.run("offline")), evicting.client.pid(offline)
    for one in (pid, stopped_pid, evicting.client.pid(online)):
        subprocess.run([*DEADLINE, str(one)], check=True)

    wait_until(lambda: bool(node.problems()), WAIT_S, "the problem", node.proxy.log)
    assert node.problems() == [
        f"thread {pid} runs under SCHED_DEADLINE in offline pod default/offline, and no limit of the box holds it"
    ]
    assert is_running(pid)

    wait_until(lambda: not is_running(stopped_pid), WAIT_S, "the end of the pod in real time", evicting.proxy.log)
    assert [event["pod"] for event in evicting.events("realtime_in_box")] == ["default/offline"]
    assert is_running(evicting.client.pid(online))
