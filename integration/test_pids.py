"""A fork bomb in an offline pod: online pods start beside it, and kubelet's podPidsLimit holds for it.

The lab's own cgroup stands for a node that can have `NODE` processes. A bomb ends by itself at `BOMB`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree
from integration.lab.client import CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.kubelet import Kubelet, static_pod
from integration.lab.process import wait_until
from integration.lab.usage import Cgroup

pytestmark = pytest.mark.timeout(2400)

Say = Callable[[str], object]

CLASS = "colocation.criproxy.io/class"
OFFLINE = {CLASS: "offline"}
NODE = 1500
BOMB = 3000
OF_THE_BOX = 495
"""33 % of `NODE`."""
OF_A_POD = 64
BEGUN = 20
QUIET_S = 5.0
WELL_S = 240.0
CONFIG: Config = {
    "colocation": {"enabled": True},
    "control": {"policy": "static"},
    "guard": {"enabled": False},
    "cpu": {"static_cores": 1.0},
    "memory": {"static_bytes": 768 << 20},
}


def bomb(processes: int) -> tuple[str, ...]:
    """A container's command: so many processes, or as many as it can have, which then stay."""
    loop = f"n=0; while [ $n -lt {processes} ]; do sleep 100000 & n=$((n + 1)); done; wait"
    return ("sh", "-c", f"( {loop} ) & exec sleep 100000")


@dataclass(frozen=True, slots=True)
class Node:
    root: str
    client: CriClient
    proxy: Criproxy

    @property
    def box(self) -> str:
        return f"{self.root}/offline"

    def run(self, kind: str, uid: str, command: tuple[str, ...], pids: int | None = None) -> Pod:
        """A pod with a container, in a cgroup of kubelet's with its limit on processes."""
        parent = kubelet_cgroup.make(f"{self.root}/kubepods/burstable/pod{uid}", pids=pids)
        pod = self.client.run_pod(uid, uid=uid, labels={CLASS: kind}, cgroup_parent=parent)
        self.client.run_container(pod, "main", command)
        return pod

    def processes(self, path: str) -> int:
        return int(Cgroup(path).file("pids", "pids.current").read_text())

    def limit(self, path: str) -> str:
        return Cgroup(path).file("pids", "pids.max").read_text().strip()

    def settled(self, path: str) -> int:
        """How many processes a bomb has come to, once it goes no further."""
        wait_until(lambda: self.processes(path) >= BEGUN, WELL_S, "the bomb to begin")
        found, since_s = 0, time.monotonic()
        while time.monotonic() - since_s < QUIET_S:
            if (now := self.processes(path)) > found:
                found, since_s = now, time.monotonic()
            time.sleep(0.1)
        return found


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    containerd = Containerd(lab)
    containerd.start()
    criproxy = Criproxy(lab, containerd.socket, CONFIG)
    criproxy.start()
    root = kubelet_cgroup.make(cgroup_root(lab), pids=NODE)
    with CriClient(criproxy.socket) as client:
        yield Node(root, client, criproxy)


def test_online_pods_start_beside_a_fork_bomb_in_an_offline_pod(node: Node, say: Say) -> None:
    began_s = time.monotonic()
    node.run("online", "alone", ("sleep", "100000"))
    alone_s = time.monotonic() - began_s
    node.run("offline", "bomb", bomb(BOMB))
    held = node.settled(node.box)
    say(f"the bomb wanted {BOMB} processes and got {held}; the box may have {node.limit(node.box)}, the node {NODE}")

    starts_s = []
    for number in range(3):
        began_s = time.monotonic()
        pod = node.run("online", f"online-{number}", ("sleep", "100000"))
        starts_s.append(time.monotonic() - began_s)
        container = node.client.run_container(pod, "second", ("sleep", "100000"))
        assert node.client.exec_sync(container, ["echo", "well"]).stdout == b"well\n"
    say(f"an online pod started in {alone_s:.1f} s before, beside it in {[round(one, 1) for one in starts_s]} s")

    assert OF_THE_BOX * 0.9 <= held <= OF_THE_BOX
    assert node.limit(node.box) == str(OF_THE_BOX)
    assert node.proxy.status()["box"]["pids"]["limit"] == OF_THE_BOX


def test_limit_on_processes_of_the_box_is_put_back_and_outlasts_a_release(node: Node) -> None:
    node.run("offline", "quiet", ("sleep", "100000"))
    Cgroup(node.box).file("pids", "pids.max").write_text("max")
    wait_until(lambda: node.limit(node.box) == str(OF_THE_BOX), WELL_S, "the limit")

    node.proxy.configure({**CONFIG, "colocation": {"enabled": False}})
    wait_until(lambda: Cgroup(node.box).quota_cores() is None, WELL_S, "the release")

    assert node.limit(node.box) == str(OF_THE_BOX)


def test_box_is_bounded_anew_after_a_restart_of_criproxy(node: Node) -> None:
    node.run("offline", "quiet", ("sleep", "100000"))
    node.proxy.kill()
    Cgroup(node.box).file("pids", "pids.max").write_text("max")
    node.proxy.start()

    wait_until(lambda: node.limit(node.box) == str(OF_THE_BOX), WELL_S, "the limit")


def test_pod_has_kubelets_limit_on_processes_whatever_is_updated(node: Node) -> None:
    pod = node.run("offline", "small", bomb(300), OF_A_POD)
    path = f"{node.box}/podsmall"
    before = node.settled(path)
    request = cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=pod.id, resources=cri.LinuxContainerResources(memory_limit_in_bytes=256 << 20)
    )
    with contextlib.suppress(Exception):  # containerd before 2.1 does not know the call
        node.client.call("UpdatePodSandboxResources", request)

    assert (before, node.limit(path)) == (OF_A_POD, str(OF_A_POD))
    assert node.processes(path) == OF_A_POD


def test_pod_follows_a_limit_of_kubelets_that_changes_without_a_call(node: Node) -> None:
    node.run("offline", "small", ("sleep", "100000"), OF_A_POD)
    kubelet_cgroup.make(f"{node.root}/kubepods/burstable/podsmall", pids=2 * OF_A_POD)

    wait_until(lambda: node.limit(f"{node.box}/podsmall") == str(2 * OF_A_POD), WELL_S, "the new limit")


def test_offline_pod_of_a_real_kubelet_has_its_limits_and_its_weight(lab: Path, say: Say) -> None:
    containerd = Containerd(lab)
    containerd.start()
    criproxy = Criproxy(lab, containerd.socket, CONFIG)
    criproxy.start()
    kubelet = Kubelet(lab, criproxy.socket, settings={"podPidsLimit": OF_A_POD})
    kubelet.start()
    amounts = {"requests": {"cpu": "500m", "memory": "64Mi"}}
    kubelet.add_pod(static_pod("bomb", bomb(300), labels=OFFLINE, resources=amounts))
    pod = kubelet.wait_running("bomb")
    own, boxed = f"{kubelet.cgroup_root}/kubepods/burstable/pod{pod.uid}", f"{kubelet.cgroup_root}/offline/pod{pod.uid}"

    wait_until(lambda: len(Tree(boxed).pids()) >= OF_A_POD - 2, WELL_S, "the bomb")

    found = {name: _texts(name, own, boxed) for name in ("pids.max", *_WEIGHTS, "hugetlb.2MB.limit_in_bytes")}
    say(f"kubelet's own cgroup of the pod, and ours: {found}")
    assert found["pids.max"] == [str(OF_A_POD)] * 2
    assert all(ours == kubelets for kubelets, ours in found.values())
    assert len(Tree(boxed).pids()) <= OF_A_POD


_WEIGHTS = ("cpu.shares", "cpu.weight")


def _texts(name: str, *paths: str) -> list[str]:
    """The file's text in each cgroup; "" where there is none."""
    texts = []
    for path in paths:
        file = None
        with contextlib.suppress(StopIteration):  # this machine has no such hierarchy
            file = Cgroup(path).file(name.partition(".")[0], name)
        texts.append(file.read_text().strip() if file is not None and file.exists() else "")
    return texts
