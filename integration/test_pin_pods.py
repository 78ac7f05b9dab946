"""Offline pods with a CPU limit stay on as many CPUs, by what kubelet has set; and move when they wait there."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.lab.criproxy import QUICK, Config, static
from integration.lab.kubelet import PodStatus, static_pod
from integration.lab.node import OFFLINE, KubeletNode
from integration.lab.process import argv_of, cpus_of, wait_until

CPUS = frozenset(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(len(CPUS) < 2, reason="on one CPU, a pod has no other to go to"),
]

SOON_S = 120.0
LOOP = ("sh", "-c", "while :; do :; done")
ONE_CPU = {"limits": {"cpu": "1", "memory": "32Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}


def config(*, pins: bool = True) -> Config:
    return static(len(CPUS), 512 << 20, control=QUICK, cpuset={"pin_pods": pins})


@contextmanager
def running(node: KubeletNode, name: str, *, limited: bool = True) -> Iterator[PodStatus]:
    """An offline pod with a busy loop."""
    with node.kubelet.running(static_pod(name, LOOP, labels=OFFLINE, resources=ONE_CPU if limited else {})) as pod:
        yield pod


def places_of(node: KubeletNode, pod: PodStatus) -> set[frozenset[int]]:
    """The CPUs that the processes of a pod may run on, its sandbox's among them."""
    return {cpus for pid in node.pids_of(pod) if (cpus := cpus_of(pid))}


def loops_of(node: KubeletNode, pod: PodStatus) -> list[int]:
    """What the pod's container runs."""
    return [pid for pid in node.pids_of(pod) if argv_of(pid) == list(LOOP)]


def wait_pinned(node: KubeletNode, pod: PodStatus) -> frozenset[int]:
    """The one CPU that all of a pod is on."""

    def pinned() -> frozenset[int] | None:
        (one, *others) = places_of(node, pod) or {CPUS}
        return one if not others and len(one) == 1 else None

    found = wait_until(pinned, SOON_S, f"{pod.name} to stay on one CPU", node.proxy.log)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def node() -> Iterator[KubeletNode]:
    with KubeletNode.up(config()) as node:
        yield node


def test_pods_with_a_limit_share_the_cpus_out_and_those_without_have_all(node: KubeletNode) -> None:
    with (
        running(node, "first") as first,
        running(node, "second") as second,
        running(node, "free", limited=False) as free,
    ):
        places = [wait_pinned(node, first), wait_pinned(node, second)]
        of_free = places_of(node, free)
        pods = node.proxy.status()["pods"]

    assert len(set(places)) == 2
    assert of_free == {CPUS}
    told = {pod["name"].removesuffix(f"-{node.kubelet.node}"): pod["cpus"] for pod in pods}
    assert told == {"first": str(*places[0]), "second": str(*places[1]), "free": ""}


def test_container_that_starts_anew_stays_where_its_pod_does(node: KubeletNode) -> None:
    with running(node, "restarted") as pod:
        before = wait_pinned(node, pod)
        for pid in loops_of(node, pod):
            os.kill(pid, signal.SIGKILL)

        def is_anew() -> bool:
            return node.kubelet.pods()["restarted"].restarts > pod.restarts and bool(loops_of(node, pod))

        wait_until(is_anew, SOON_S, "the container to start anew", node.kubelet.log)

        assert places_of(node, pod) == {before}


def test_pod_that_waits_gets_another_cpu_that_is_idle(node: KubeletNode) -> None:
    """Alone, or beside its own where that is not quite idle."""
    with running(node, "waits") as pod:
        held = wait_pinned(node, pod)
        busy = ["taskset", "-c", str(*held), "sh", "-c", "while :; do :; done"]
        online = [subprocess.Popen(busy) for _ in range(2)]
        try:
            wait_until(
                lambda: (now := places_of(node, pod)) and not any(cpus <= held for cpus in now),
                SOON_S,
                "the pod to run elsewhere",
                node.proxy.log,
            )
        finally:
            for process in online:
                process.kill()
                process.wait()


def test_pods_are_pinned_on_after_a_kill_and_free_once_that_is_switched_off(node: KubeletNode) -> None:
    with running(node, "kept") as pod:
        held = wait_pinned(node, pod)
        node.proxy.kill()
        assert places_of(node, pod) == {held}
        node.proxy.start()
        wait_pinned(node, pod)

        node.proxy.configure(config(pins=False))
        node.proxy.reload()

        wait_until(lambda: places_of(node, pod) == {CPUS}, SOON_S, "the pod to have all CPUs", node.proxy.log)
