"""Offline containers get no capability for real time from a runtime; a thread that has it all the same is found."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, static
from integration.lab.node import Node
from integration.lab.process import is_running, wait_until

WAIT_S = 240
CAP_SYS_NICE = 23
"""Source: capabilities(7); include/uapi/linux/capability.h."""
DEADLINE = ("chrt", "--deadline", "--sched-runtime", "1000000", "--sched-period", "100000000", "--pid", "0")
"""For a thousandth of a CPU. On cgroup v1 with RT_GROUP_SCHED the kernel lets nothing else run in real time."""


def config(**colocation: Any) -> Config:
    return static(0.5, colocation=colocation)


def start(node: Node, kind: str, capabilities: tuple[str, ...] = ()) -> Container:
    return node.run(kind, kind, container={"capabilities": capabilities})


def may_run_in_real_time(node: Node, container: Container) -> bool:
    done = node.client.exec_sync(container, ["cat", "/proc/self/status"])
    effective = next(line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_NICE & 1)


@pytest.fixture
def node(containerd: Containerd, client: CriClient) -> Iterator[Node]:
    with Node.before(containerd, config()) as node:
        yield node


@pytest.fixture
def evicting(lab: Path) -> Iterator[Node]:
    """Before a runtime of its own: its pods are not `node`'s."""
    with Node.before(lab, config(on_unbounded="evict")) as node:
        yield node


@pytest.mark.parametrize("capabilities", [("SYS_NICE",), ("ALL",), ("NET_ADMIN", "SYS_NICE")], ids="-".join)
def test_offline_container_does_not_get_what_an_online_one_gets(node: Node, capabilities: tuple[str, ...]) -> None:
    online, offline = start(node, "online", capabilities), start(node, "offline", capabilities)
    assert (may_run_in_real_time(node, online), may_run_in_real_time(node, offline)) == (True, False)


def test_thread_in_real_time_is_told_and_its_pod_stopped_if_asked(node: Node, evicting: Node) -> None:
    """Both ways at once, as each looks once a minute."""
    online, offline = start(evicting, "online"), start(evicting, "offline")
    pid, stopped_pid = node.client.pid(start(node, "offline")), evicting.client.pid(offline)
    for one in (pid, stopped_pid, evicting.client.pid(online)):
        subprocess.run([*DEADLINE, str(one)], check=True)

    wait_until(lambda: bool(node.proxy.problems("SCHED_DEADLINE")), WAIT_S, "the problem", node.proxy.log)
    assert node.proxy.problems("SCHED_DEADLINE") == [
        f"thread {pid} runs under SCHED_DEADLINE in offline pod default/offline, and no limit of the box holds it"
    ]
    assert is_running(pid)

    wait_until(lambda: not is_running(stopped_pid), WAIT_S, "the end of the pod in real time", evicting.proxy.log)
    assert [event["pod"] for event in evicting.proxy.events("realtime_in_box")] == ["default/offline"]
    assert is_running(evicting.client.pid(online))
