"""In the box, busy offline pods divide the CPU as their requests say; online beside them loses nothing by it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab import kubelet_cgroup
from integration.lab.client import CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.usage import CPUS, Cgroup, busy_loops

pytestmark = pytest.mark.timeout(1200)

Say = Callable[[str], object]

CLASS = "colocation.criproxy.io/class"
SMALL, LARGE = 102, 2048
"""CPU shares of 100m and of 2 CPUs, as kubelet computes them."""
MOST_OFF = 0.25
"""A measured ratio may be so far from that of the shares, which v2's weights round: 79 to 4."""
WARM_UP_S = 1.0
MEASURED_S = 10.0
LEAST_ONLINE = 0.95
CONFIG: Config = {
    "colocation": {"enabled": True},
    "control": {"policy": "static"},
    "guard": {"enabled": False},
    "cpu": {"static_cores": CPUS},
    "memory": {"static_bytes": 1 << 30},
}


@dataclass(frozen=True, slots=True)
class Node:
    root: str
    client: CriClient

    def pod(self, kind: str, uid: str, shares: int) -> Pod:
        parent = kubelet_cgroup.make(f"{self.root}/kubepods/burstable/pod{uid}", shares=shares)
        return self.client.run_pod(uid, uid=uid, labels={CLASS: kind}, cgroup_parent=parent)

    def run_loops(self, pod: Pod, name: str, shares: int) -> str:
        """A container with a busy loop per CPU; returns its id."""
        resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=shares)
        return self.client.run_container(pod, name, busy_loops(), resources=resources).id

    def used_s(self, *paths: str) -> list[float]:
        """CPU time of each cgroup, in a while during which all of them are busy."""
        cgroups = [Cgroup(f"{self.root}/{path}") for path in paths]
        time.sleep(WARM_UP_S)
        before = [one.cpu_s() for one in cgroups]
        time.sleep(MEASURED_S)
        return [one.cpu_s() - began_s for one, began_s in zip(cgroups, before, strict=True)]


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    containerd = Containerd(lab)
    containerd.start()
    criproxy = Criproxy(lab, containerd.socket, CONFIG)
    criproxy.start()
    root = kubelet_cgroup.make(cgroup_root(lab), shares=262144)  # the machine's other work hardly counts beside it
    with CriClient(criproxy.socket) as client:
        yield Node(root, client)


def test_pods_divide_the_box_as_their_requests_say(node: Node, say: Say) -> None:
    for uid, shares in (("small", SMALL), ("large", LARGE)):
        node.run_loops(node.pod("offline", uid, shares), "main", shares)

    small_s, large_s = node.used_s("offline/podsmall", "offline/podlarge")

    say(f"100m got {small_s:.2f} CPU seconds, 2 CPUs {large_s:.2f}: 1 to {large_s / small_s:.1f}")
    assert large_s / small_s == pytest.approx(LARGE / SMALL, rel=MOST_OFF)


def test_containers_divide_their_pod_as_their_requests_say(node: Node, say: Say) -> None:
    pod = node.pod("offline", "two", SMALL + LARGE)
    ids = [node.run_loops(pod, name, shares) for name, shares in (("small", SMALL), ("large", LARGE))]

    small_s, large_s = node.used_s(*(f"offline/podtwo/{one}" for one in ids))

    say(f"100m got {small_s:.2f} CPU seconds, 2 CPUs {large_s:.2f}: 1 to {large_s / small_s:.1f}")
    assert large_s / small_s == pytest.approx(LARGE / SMALL, rel=MOST_OFF)


def test_online_pod_of_the_smallest_weight_goes_before_offline_pods_of_the_largest(node: Node, say: Say) -> None:
    for uid in ("one", "two"):
        node.run_loops(node.pod("offline", uid, 262144), "main", 262144)
    node.run_loops(node.pod("online", "online", 2), "main", 2)

    online_s, box_s = node.used_s("kubepods", "offline")

    say(f"online got {online_s:.2f} CPU seconds, offline {box_s:.2f}: {online_s / (online_s + box_s):.1%}")
    assert online_s / (online_s + box_s) >= LEAST_ONLINE
