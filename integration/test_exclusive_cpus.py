"""CPUs that kubelet's static CPU manager gives to an online pod alone: no offline pod runs on them, at any time.

A real kubelet with its static policy. CPU 0 is reserved for the system, so the last CPU is the first to be given away.
"""

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.lab.cgroups import Tree, hierarchies
from integration.lab.kubelet import PodStatus, find_kubelet, static_pod
from integration.lab.node import FOREVER, OFFLINE, KubeletNode
from integration.lab.process import cpus_of, wait_until

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a CPU to give away and one to keep are needed"),
]

SAMPLES = 300
SAMPLE_S = 0.01
COMINGS = 3
SOON_S = 300.0
"""For what kubelet does at its next look, each 10 s; long, for a busy machine."""

BUSY = ("sh", "-c", "while :; do :; done & while :; do :; done")
ONE_CPU = {name: {"cpu": "1", "memory": "64Mi"} for name in ("requests", "limits")}
STATIC = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
POD_CPUS = "PodLevelResourceManagers"
"""Kubelet's feature gate, since 1.36, by which it gives CPUs to a pod for all of its containers."""


class Node(KubeletNode):
    """A node whose kubelet gives CPUs away."""

    def run(self, name: str, *, exclusive: bool = False, offline: bool = True) -> PodStatus:
        labels, resources = OFFLINE if offline else {}, ONE_CPU if exclusive else {}
        return self.kubelet.run(static_pod(name, FOREVER if exclusive else BUSY, labels=labels, resources=resources))

    def run_with_cpus_of_the_pod(self, name: str, *, offline: bool) -> PodStatus:
        """A pod with a CPU for both of its containers, of which neither asks for any."""
        manifest = static_pod(name, labels=OFFLINE if offline else {})
        first = manifest["spec"]["containers"][0]
        manifest["spec"] |= {"resources": ONE_CPU, "containers": [first, {**first, "name": "beside"}]}
        return self.kubelet.run(manifest)

    def allowed(self) -> dict[int, frozenset[int]]:
        """The CPUs that each process of the box may run on."""
        return {pid: cpus for pid in Tree(self.box).pids() if (cpus := cpus_of(pid))}

    def box_seconds_on(self, cpu: int) -> float:
        """CPU time of the box on one CPU; always 0 on cgroup v2, which does not tell.

        Source: Documentation/admin-guide/cgroup-v1/cpuacct.rst.
        """
        files = [h.directory(self.box) / "cpuacct.usage_percpu" for h in hierarchies() if "cpuacct" in h.controllers]
        return sum(int(file.read_text().split()[cpu]) for file in files) / 1e9


def samples_on(node: Node, cpu: int) -> int:
    """How often, of `SAMPLES` looks, a running process of the box was on this CPU."""
    found = 0
    for _ in range(SAMPLES):
        time.sleep(SAMPLE_S)
        found += cpu in running_on(node)
    return found


def running_on(node: Node) -> set[int]:
    """The CPUs that the box's running processes are on. Source: proc(5), /proc/PID/stat, (3) and (39)."""
    found = set()
    for pid in Tree(node.box).pids():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] == "R":
            found.add(int(fields[36]))
    return found


def exclusive_cpu(node: Node, pod: PodStatus) -> int:
    """The CPU that the container of an online pod has for itself, once it has."""
    cgroups = Tree(f"{node.root}/kubepods/pod{pod.uid}")

    def given() -> int | None:
        kept = [cpus_of(pid) for pid in cgroups.pids()]
        alone = {cpu for cpus in kept if len(cpus) == 1 for cpu in cpus}
        return alone.pop() if alone else None

    cpu = wait_until(given, SOON_S, "the online pod's exclusive CPU", node.kubelet.log)
    assert cpu is not None
    return cpu


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node.up(settings=STATIC) as node:
        yield node


@pytest.fixture(scope="module")
def busy(node: Node) -> PodStatus:
    """An offline pod that takes all CPU that it can get."""
    return node.run("busy")


@pytest.fixture
def online(node: Node, busy: PodStatus, request: pytest.FixtureRequest) -> Iterator[PodStatus]:
    """An online pod with a CPU of its own.

    With a name of its own, too: a static pod that comes back at once has the uid that it had, and kubelet's end of the
    one that has gone takes the CPU away from it.
    """
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
    pod = node.run(f"online-{name}", exclusive=True, offline=False)
    yield pod
    node.kubelet.end(pod)


def test_offline_pod_leaves_the_cpu_that_an_online_pod_is_given(
    node: Node, online: PodStatus, say: Callable[[str], object]
) -> None:
    cpu = exclusive_cpu(node, online)

    began_s, seen = node.box_seconds_on(cpu), samples_on(node, cpu)

    say(f"offline was on the exclusive CPU {cpu} in {seen} of {SAMPLES} samples")
    assert (seen, node.box_seconds_on(cpu)) == (0, began_s)
    assert not [pid for pid, cpus in node.allowed().items() if cpu in cpus]
    assert node.proxy.status()["box"]["cpus"] == "0"


def test_cpu_is_left_before_the_online_pod_starts_on_it(
    node: Node, busy: PodStatus, say: Callable[[str], object]
) -> None:
    """Each time one comes, from the moment that its container is there, which does not run yet."""
    kubepods = Tree(f"{node.root}/kubepods")

    def given() -> set[int]:
        return {cpu for cpus in map(cpus_of, kubepods.pids()) if len(cpus) == 1 for cpu in cpus}

    for number in range(COMINGS):
        manifest = static_pod(f"comes-{number}", FOREVER, resources=ONE_CPU)
        assert not given()
        node.kubelet.add_pod(manifest)
        cpus = wait_until(given, SOON_S, "an exclusive CPU", node.kubelet.log, SAMPLE_S)
        assert cpus is not None
        (cpu,) = cpus
        began_s, may_run = node.box_seconds_on(cpu), node.allowed().values()
        pod = node.kubelet.wait_running(f"comes-{number}")

        assert not [cpus for cpus in may_run if cpu in cpus]
        assert (samples_on(node, cpu), node.box_seconds_on(cpu)) == (0, began_s)
        node.kubelet.end(pod)
        wait_until(lambda: any(len(cpus) > 1 for cpus in node.allowed().values()), SOON_S, "the CPU to be shared again")
    say(f"in {COMINGS} starts, the box had left the CPU before the container was there")


def test_offline_pod_that_starts_beside_an_exclusive_cpu_never_runs_on_it(node: Node, online: PodStatus) -> None:
    cpu = exclusive_cpu(node, online)
    wait_until(lambda: not any(cpu in cpus for cpus in node.allowed().values()), SOON_S, "the box to leave the CPU")
    began_s = node.box_seconds_on(cpu)

    pod = node.run("later")

    assert (samples_on(node, cpu), node.box_seconds_on(cpu)) == (0, began_s)
    assert all(cpus_of(pid) == {0} for pid in node.pids_of(pod))
    node.kubelet.end(pod)


def test_offline_pods_have_the_cpu_again_when_the_online_pod_has_gone(node: Node, busy: PodStatus) -> None:
    gone = node.run("online-once", exclusive=True, offline=False)
    cpu = exclusive_cpu(node, gone)
    node.kubelet.end(gone)

    wait_until(lambda: all(cpu in cpus for cpus in node.allowed().values()), SOON_S, "the CPU to be the box's again")
    assert samples_on(node, cpu) > 0
    assert node.proxy.status()["box"]["cpus"] == "0-1"


@pytest.mark.parametrize("part", ["criproxy", "kubelet"])
def test_exclusive_cpu_stays_so_through_a_restart(node: Node, online: PodStatus, part: str) -> None:
    cpu = exclusive_cpu(node, online)
    wait_until(lambda: not any(cpu in cpus for cpus in node.allowed().values()), SOON_S, "the box to leave the CPU")
    began_s = node.box_seconds_on(cpu)

    (node.proxy if part == "criproxy" else node.kubelet).restart()

    assert (samples_on(node, cpu), node.box_seconds_on(cpu)) == (0, began_s)


def test_offline_pod_with_a_cpu_of_its_own_has_that_one(node: Node, busy: PodStatus) -> None:
    """Kubelet takes it out of everybody's shared pool, so nobody else could use it."""
    before = len(node.kubelet.log.read_text())
    pod = node.run("offline-guaranteed", exclusive=True)
    cpu = len(os.sched_getaffinity(0)) - 1

    wait_until(lambda: {cpu} in [cpus_of(pid) for pid in node.pids_of(pod)], SOON_S, "its own CPU", node.kubelet.log)

    assert re.findall(r"(?m)^E.*reconcileState: failed.*", node.kubelet.log.read_text()[before:]) == []
    node.kubelet.end(pod)


@pytest.fixture
def of_pods() -> Iterator[Node]:
    """A node whose kubelet gives CPUs to whole pods."""
    help_text = subprocess.run([find_kubelet(), "--help"], capture_output=True, text=True, check=True).stdout
    if f"{POD_CPUS}=" not in help_text:
        pytest.skip("this kubelet gives CPUs to containers alone")
    topology = {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}
    with Node.up(settings={**STATIC, **topology, "featureGates": {POD_CPUS: True}}) as node:
        yield node


def test_cpus_of_a_whole_pod_are_left_to_an_online_one_and_used_by_an_offline_one(of_pods: Node) -> None:
    node = of_pods
    node.run("busy")
    online = node.run_with_cpus_of_the_pod("online", offline=False)
    cpu = exclusive_cpu(node, online)
    began_s = node.box_seconds_on(cpu)

    seen, cpus = samples_on(node, cpu), node.proxy.status()["box"]["cpus"]
    used_s = node.box_seconds_on(cpu) - began_s
    node.kubelet.end(online)
    offline = node.run_with_cpus_of_the_pod("offline-two", offline=True)
    wait_until(lambda: {cpu} in [cpus_of(pid) for pid in node.pids_of(offline)], SOON_S, "its CPU", node.kubelet.log)

    assert (seen, used_s, cpus) == (0, 0.0, "0")
    assert node.proxy.status()["box"]["cpus"] == f"0,{cpu}" if cpu > 1 else "0-1"
    assert node.proxy.status()["problems"] == []
