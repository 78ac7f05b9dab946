"""A fork bomb in an offline pod: online pods start beside it, and kubelet's podPidsLimit holds for it.

The lab's own cgroup stands for a node that can have `NODE` processes. A bomb ends by itself at `BOMB`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree
from integration.lab.criproxy import static
from integration.lab.kubelet import static_pod
from integration.lab.node import OFFLINE, KubeletNode, Node
from integration.lab.process import wait_until
from integration.lab.usage import Cgroup

pytestmark = pytest.mark.timeout(2400)

Say = Callable[[str], object]

NODE = 1500
BOMB = 3000
OF_THE_BOX = 495
"""33 % of `NODE`."""
OF_A_POD = 64
BEGUN = 20
QUIET_S = 5.0
WELL_S = 240.0
CONFIG = static(1.0, 768 << 20)


def bomb(processes: int) -> tuple[str, ...]:
    """A container's command: so many processes, or as many as it can have, which then stay."""
    loop = f"n=0; while [ $n -lt {processes} ]; do sleep 100000 & n=$((n + 1)); done; wait"
    return ("sh", "-c", f"( {loop} ) & exec sleep 100000")


def processes(path: str) -> int:
    return int(Cgroup(path).file("pids", "pids.current").read_text())


def limit(path: str) -> str:
    return Cgroup(path).file("pids", "pids.max").read_text().strip()


def settled(path: str) -> int:
    """How many processes a bomb has come to, once it goes no further."""
    wait_until(lambda: processes(path) >= BEGUN, WELL_S, "the bomb to begin")
    found, since_s = 0, time.monotonic()
    while time.monotonic() - since_s < QUIET_S:
        if (now := processes(path)) > found:
            found, since_s = now, time.monotonic()
        time.sleep(0.1)
    return found


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    with Node.before(lab, CONFIG, pids=NODE) as node:
        yield node


def test_online_pods_start_beside_a_fork_bomb_in_an_offline_pod(node: Node, say: Say) -> None:
    began_s = time.monotonic()
    node.run("online", "alone", qos="burstable")
    alone_s = time.monotonic() - began_s
    node.run("offline", "bomb", bomb(BOMB), qos="burstable")
    held = settled(node.box.path)
    say(f"the bomb wanted {BOMB} processes and got {held}; the box may have {limit(node.box.path)}, the node {NODE}")

    starts_s = []
    for number in range(3):
        began_s = time.monotonic()
        pod = node.run("online", f"online-{number}", qos="burstable").pod
        starts_s.append(time.monotonic() - began_s)
        container = node.client.run_container(pod, "second", ("sleep", "100000"))
        assert node.client.exec_sync(container, ["echo", "well"]).stdout == b"well\n"
    say(f"an online pod started in {alone_s:.1f} s before, beside it in {[round(one, 1) for one in starts_s]} s")

    assert OF_THE_BOX * 0.9 <= held <= OF_THE_BOX
    assert limit(node.box.path) == str(OF_THE_BOX)
    assert node.proxy.status()["box"]["pids"]["limit"] == OF_THE_BOX


def test_limit_on_processes_of_the_box_is_put_back_and_outlasts_a_release(node: Node) -> None:
    node.run("offline", "quiet")
    node.box.file("pids", "pids.max").write_text("max")
    wait_until(lambda: limit(node.box.path) == str(OF_THE_BOX), WELL_S, "the limit")

    node.proxy.configure({**CONFIG, "colocation": {"enabled": False}})
    wait_until(lambda: node.box.quota_cores() is None, WELL_S, "the release")

    assert limit(node.box.path) == str(OF_THE_BOX)


def test_box_is_bounded_anew_after_a_restart_of_criproxy(node: Node) -> None:
    node.run("offline", "quiet")
    node.proxy.kill()
    node.box.file("pids", "pids.max").write_text("max")
    node.proxy.start()

    wait_until(lambda: limit(node.box.path) == str(OF_THE_BOX), WELL_S, "the limit")


def test_pod_has_kubelets_limit_on_processes_whatever_is_updated(node: Node) -> None:
    pod = node.run("offline", "small", bomb(300), limits={"pids": OF_A_POD}).pod
    path = f"{node.box.path}/podsmall"
    before = settled(path)
    request = cri.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=pod.id, resources=cri.LinuxContainerResources(memory_limit_in_bytes=256 << 20)
    )
    with contextlib.suppress(Exception):  # containerd before 2.1 does not know the call
        node.client.call("UpdatePodSandboxResources", request)

    assert (before, limit(path)) == (OF_A_POD, str(OF_A_POD))
    assert processes(path) == OF_A_POD


def test_pod_follows_a_limit_of_kubelets_that_changes_without_a_call(node: Node) -> None:
    node.run("offline", "small", limits={"pids": OF_A_POD})
    kubelet_cgroup.make(f"{node.root}/kubepods/besteffort/podsmall", pids=2 * OF_A_POD)

    wait_until(lambda: limit(f"{node.box.path}/podsmall") == str(2 * OF_A_POD), WELL_S, "the new limit")


def test_offline_pod_of_a_real_kubelet_has_its_limits_and_its_weight(say: Say) -> None:
    amounts = {"requests": {"cpu": "500m", "memory": "64Mi"}}
    with KubeletNode.up(CONFIG, settings={"podPidsLimit": OF_A_POD}) as node:
        pod = node.kubelet.run(static_pod("bomb", bomb(300), labels=OFFLINE, resources=amounts))
        own, boxed = f"{node.root}/kubepods/burstable/pod{pod.uid}", f"{node.box}/pod{pod.uid}"

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
