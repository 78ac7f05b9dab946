"""In the box, busy offline pods divide the CPU as their requests say; online beside them loses nothing by it.

All loops run on one CPU. On several, the kernel moves them between CPUs when others make one of them busy, and for as
long as both loops of one pod are on one CPU, the other pod has the other CPU to itself: no weight speaks then. And the
pods are watched until they have used enough CPU time, however long others make them wait for it.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.client import Pod
from integration.lab.criproxy import static
from integration.lab.node import FAVOURED, Node
from integration.lab.process import wait_until
from integration.lab.usage import CPUS, Cgroup, busy_loops

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1200)]

Say = Callable[[str], object]

CPU = max(os.sched_getaffinity(0))
"""Where all loops run. Not the first CPU, which has most interrupts."""
SMALL, LARGE = 102, 2048
"""CPU shares of 100m and of 2 CPUs, as kubelet computes them."""
MOST_OFF = 0.25
"""A measured ratio may be so far from that of the shares, which v2's weights round: 79 to 4."""
WARM_UP_S = 2.0
WELL_S = 60.0
WATCHED_S = 10.0
"""Of CPU time, of both together: a pod that gets a twenty-first of it has a hundred turns of 5 ms."""
MOST_S = 300.0
LEAST_ONLINE = 0.95
ROUNDS_S = 15.0
"""In which a criproxy that was restarted has listed the pods twice, and carried their limits."""
CONFIG = static(CPUS, 1 << 30)


def run_loops(node: Node, pod: Pod, name: str, shares: int) -> str:
    """A container with a busy loop on the CPU of all loops; returns the container's id."""
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=shares)
    container = node.client.run_container(pod, name, busy_loops(1), resources=resources)
    os.sched_setaffinity(node.client.pid(container), {CPU})
    return container.id


def busy_pod(node: Node, uid: str, shares: int, kind: str = "offline", **more: Mapping[str, str]) -> None:
    run_loops(node, node.run_pod(kind, uid, qos="burstable", limits={"shares": shares}, **more), "main", shares)


def used_s(node: Node, first: str, second: str) -> tuple[float, float]:
    """The CPU time that two busy cgroups get, one beside the other."""
    cgroups = [Cgroup(f"{node.root}/{path}") for path in (first, second)]
    time.sleep(WARM_UP_S)
    before = [one.cpu_s() for one in cgroups]

    def used() -> list[float]:
        return [one.cpu_s() - began_s for one, began_s in zip(cgroups, before, strict=True)]

    wait_until(lambda: sum(used()) >= WATCHED_S, MOST_S, f"{WATCHED_S:g} s of CPU time")
    first_s, second_s = used()
    return first_s, second_s


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    with Node.before(lab, CONFIG, shares=FAVOURED) as node:
        yield node


def test_pods_divide_the_box_as_their_requests_say(node: Node, say: Say) -> None:
    for uid, shares in (("small", SMALL), ("large", LARGE)):
        busy_pod(node, uid, shares)

    assert_proportion(used_s(node, "offline/podsmall", "offline/podlarge"), say)


@pytest.mark.by_command
def test_best_effort_pods_divide_the_box_as_they_ask_in_koordinators_annotation(node: Node, say: Say) -> None:
    """Kubelet gives both the lowest shares, and no memory limit."""
    for uid, batch_cpu in (("small", "100"), ("large", "2000")):
        asked = {
            "requests": {"kubernetes.io/batch-cpu": batch_cpu},
            "limits": {"kubernetes.io/batch-memory": "64Mi"},
        }
        annotations = {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {"main": asked}})}
        busy_pod(node, uid, 2, annotations=annotations)

    assert_proportion(used_s(node, "offline/podsmall", "offline/podlarge"), say)
    pod = Cgroup(f"{node.root}/offline/podlarge")
    memory, weight = pod.either("memory.limit_in_bytes", "memory.max"), pod.either("cpu.shares", "cpu.weight")
    before = memory.read_text(), weight.read_text()
    assert before == (f"{64 << 20}\n", "2048\n" if weight.name == "cpu.shares" else "79\n")
    node.proxy.restart()
    time.sleep(ROUNDS_S)
    assert (memory.read_text(), weight.read_text()) == before


def test_containers_divide_their_pod_as_their_requests_say(node: Node, say: Say) -> None:
    pod = node.run_pod("offline", "two", qos="burstable", limits={"shares": SMALL + LARGE})
    ids = [run_loops(node, pod, name, shares) for name, shares in (("small", SMALL), ("large", LARGE))]

    small, large = (f"offline/podtwo/{one}" for one in ids)
    assert_proportion(used_s(node, small, large), say)


def test_online_pod_of_the_smallest_weight_goes_before_offline_pods_of_the_largest(node: Node, say: Say) -> None:
    for uid in ("one", "two"):
        busy_pod(node, uid, 262144)
    busy_pod(node, "online", 2, "online")

    offline_s, online_s = used_s(node, "offline", "kubepods")
    share = online_s / (offline_s + online_s)
    say(f"of what both got, online got {share:.1%}")
    assert share >= LEAST_ONLINE


def assert_proportion(used_s: tuple[float, float], say: Say) -> None:
    small_s, large_s = used_s
    say(f"100m got {small_s:.2f} s of CPU time, 2 CPUs {large_s:.2f} s: {large_s / small_s:.1f} times as much")
    assert large_s / small_s == pytest.approx(LARGE / SMALL, rel=MOST_OFF)
