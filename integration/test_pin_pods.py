"""Offline pods with a CPU limit stay on as many CPUs, by what kubelet has set; and move when they wait there."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.lab.cgroups import Tree
from integration.lab.clean import clean, leftovers
from integration.lab.containerd import Containerd
from integration.lab.criproxy import QUICK, Config, Criproxy
from integration.lab.directory import claimed
from integration.lab.kubelet import Kubelet, PodStatus, static_pod
from integration.lab.process import argv_of, wait_until

CPUS = frozenset(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(len(CPUS) < 2, reason="on one CPU, a pod has no other to go to"),
]

SOON_S = 120.0
OFFLINE = {"colocation.criproxy.io/class": "offline"}
LOOP = ("sh", "-c", "while :; do :; done")
ONE_CPU = {"limits": {"cpu": "1", "memory": "32Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}


class Node:
    """A kubelet with its usual CPU manager, criproxy and containerd."""

    def __init__(self, lab: Path) -> None:
        self.containerd = Containerd(lab)
        self.root_dir = Kubelet(lab, self.containerd.socket).root_dir
        self.criproxy = Criproxy(lab, self.containerd.socket, self.config())
        self.kubelet = Kubelet(lab, self.criproxy.socket)
        self.box = f"{self.kubelet.cgroup_root}/offline"

    def config(self, *, pins: bool = True) -> Config:
        return {
            "colocation": {"enabled": True},
            "control": {**QUICK, "policy": "static"},
            "cpu": {"static_cores": float(len(CPUS))},
            "memory": {"static_bytes": 512 << 20},
            "guard": {"enabled": False},
            "kubelet": {"root_dir": str(self.root_dir)},
            "cpuset": {"pin_pods": pins},
        }

    @contextmanager
    def running(self, name: str, *, limited: bool = True) -> Iterator[PodStatus]:
        """An offline pod with a busy loop."""
        resources = ONE_CPU if limited else {}
        self.kubelet.add_pod(static_pod(name, LOOP, labels=OFFLINE, resources=resources))
        pod = self.kubelet.wait_running(name)
        yield pod
        self.kubelet.remove_pod(name)
        self.kubelet.wait_gone(pod)

    def cpus_of(self, pod: PodStatus) -> set[frozenset[int]]:
        """The CPUs that the processes of a pod may run on, its sandbox's among them."""
        found = set()
        for pid in Tree(f"{self.box}/pod{pod.uid}").pids():
            try:
                found.add(frozenset(os.sched_getaffinity(pid)))
            except ProcessLookupError:
                continue
        return found

    def loops_of(self, pod: PodStatus) -> list[int]:
        """What the pod's container runs."""
        pids = Tree(f"{self.box}/pod{pod.uid}").pids()
        return [pid for pid in pids if argv_of(pid) == list(LOOP)]

    def wait_pinned(self, pod: PodStatus) -> frozenset[int]:
        """The one CPU that all of a pod is on."""

        def pinned() -> frozenset[int] | None:
            (one, *others) = self.cpus_of(pod) or {CPUS}
            return one if not others and len(one) == 1 else None

        found = wait_until(pinned, SOON_S, f"{pod.name} to stay on one CPU", self.criproxy.log)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with claimed() as lab:
        try:
            node = Node(lab)
            node.containerd.start()
            node.criproxy.start()
            node.kubelet.start()
            yield node
        finally:
            clean(lab)
    assert leftovers(lab) == []


def test_pods_with_a_limit_share_the_cpus_out_and_those_without_have_all(node: Node) -> None:
    with node.running("first") as first, node.running("second") as second, node.running("free", limited=False) as free:
        places = [node.wait_pinned(first), node.wait_pinned(second)]
        of_free = node.cpus_of(free)
        pods = node.criproxy.status()["pods"]

    assert len(set(places)) == 2
    assert of_free == {CPUS}
    told = {pod["name"].removesuffix(f"-{node.kubelet.node}"): pod["cpus"] for pod in pods}
    assert told == {"first": str(*places[0]), "second": str(*places[1]), "free": ""}


def test_container_that_starts_anew_stays_where_its_pod_does(node: Node) -> None:
    with node.running("restarted") as pod:
        before = node.wait_pinned(pod)
        for pid in node.loops_of(pod):
            os.kill(pid, signal.SIGKILL)

        def is_anew() -> bool:
            return node.kubelet.pods()["restarted"].restarts > pod.restarts and bool(node.loops_of(pod))

        wait_until(is_anew, SOON_S, "the container to start anew", node.kubelet.log)

        assert node.cpus_of(pod) == {before}


def test_pod_that_waits_gets_another_cpu_that_is_idle(node: Node) -> None:
    """Alone, or beside its own where that is not quite idle."""
    with node.running("waits") as pod:
        held = node.wait_pinned(pod)
        busy = ["taskset", "-c", str(*held), "sh", "-c", "while :; do :; done"]
        online = [subprocess.Popen(busy) for _ in range(2)]
        try:
            wait_until(
                lambda: (now := node.cpus_of(pod)) and not any(cpus <= held for cpus in now),
                SOON_S,
                "the pod to run elsewhere",
                node.criproxy.log,
            )
        finally:
            for process in online:
                process.kill()
                process.wait()


def test_pods_are_pinned_on_after_a_kill_and_free_once_that_is_switched_off(node: Node) -> None:
    with node.running("kept") as pod:
        held = node.wait_pinned(pod)
        node.criproxy.kill()
        assert node.cpus_of(pod) == {held}
        node.criproxy.start()
        node.wait_pinned(pod)

        node.criproxy.configure(node.config(pins=False))
        node.criproxy.reload()

        wait_until(lambda: node.cpus_of(pod) == {CPUS}, SOON_S, "the pod to have all CPUs", node.criproxy.log)
