"""kubelet near its evictionHard for memory: the largest offline pod goes before kubelet ranks any pod for eviction.

A real kubelet whose threshold is near: an offline hog holds 600 MiB, an online pod, within its request, takes step by
step what that leaves and more, however much others on the machine take or give back meanwhile, and a small online pod
is above its request. Shown with criproxy, with one that reports only, and
without criproxy, as kubelet's choice depends on it: it ranks by usage above requests, and in its eyes a pod in the box
uses nothing, unless it takes its numbers from the runtime.

It never evicts static pods, as these are, but says in which order it would. On v1, kubelet does not count what the
kernel itself holds (700 MiB were seen), so criproxy acts earlier by that.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.clean import clean
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd, programs
from integration.lab.criproxy import QUICK, Criproxy
from integration.lab.directory import claimed
from integration.lab.kubelet import EVICTION_SIGNALS, Kubelet, available_bytes, free_bytes, static_pod
from integration.lab.process import wait_until
from integration.lab.swap import swap_on
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import Cgroup

pytestmark = [pytest.mark.timeout(1200), pytest.mark.alone]

Say = Callable[[str], object]

MIB = 1 << 20
ROOM_BYTES = 2400 * MIB
SPARE_BYTES = 500 * MIB
"""Below kubelet's threshold, so that nobody is killed for want of memory."""
HOG_MIB, SMALL_MIB, FIRST_LEFT_MIB, OVER_MIB = 600, 60, 300, 150
"""What the pods hold; what the online pod leaves above the threshold at first, and how far below it goes at most."""
CUSHION_MIB = 256
"""Of online's request, above what it would hold if nobody else took or gave back memory."""
STEP_MIB, STEP_S = (10 if is_throwaway() else 25), 1.0
"""Online's. An emulated node is slow."""
LOOK_S = 12.0
"""From one of kubelet's looks to its next it is 10 s."""
WAIT_S = 240.0
LARGEST_MIB = 1000
"""One read(2) is of 2 GiB at most."""
PROBLEMS = ("kubelet evicts pods below", "above its bound")


@dataclass(frozen=True)
class Node:
    """`criproxy` None: kubelet speaks to the runtime itself. `hard_bytes`: kubelet's threshold."""

    kubelet: Kubelet
    criproxy: Criproxy | None
    client: CriClient
    hard_bytes: int

    def rankings(self) -> list[list[str]]:
        """The pods as kubelet ranked them, each time."""
        lines = re.findall(r'pods ranked for eviction" pods=\[(.*)\]', self.kubelet.log.read_text())
        return [re.findall(r'"default/(\S+?)-criproxy-lab-', line) for line in lines]

    def left_mib(self) -> int:
        """Of available memory, above kubelet's threshold."""
        return (available_bytes() - self.hard_bytes) // MIB

    def read_mib(self) -> dict[str, int]:
        """What kubelet reads of its pods' memory, by which it ranks them."""
        pods = {pod["podRef"]["name"]: pod.get("memory", {}) for pod in self.kubelet.summary()["pods"]}
        suffix = f"-{self.kubelet.node}"
        return {name.removesuffix(suffix): memory.get("workingSetBytes", 0) // MIB for name, memory in pods.items()}

    def held_mib(self, path: str) -> int:
        """By a cgroup of kubelet's, or the box."""
        return Cgroup(f"{self.kubelet.cgroup_root}/{path}").memory_bytes() // MIB

    def take(self, name: str, mib: int) -> None:
        """Have a running pod hold more memory."""
        (container,) = self.kubelet.pods()[name].containers.values()
        command = ["sh", "-c", f"({holding(mib)}) </dev/null >/dev/null 2>&1"]
        self.client.call("ExecSync", cri.ExecSyncRequest(container_id=container, cmd=command))

    def hold(self, name: str, command: str, request_mib: int | None = None) -> None:
        """Have an online pod, or one without a request, which is offline, started."""
        labels = {} if request_mib else {"colocation.criproxy.io/class": "offline"}
        resources = {"requests": {"memory": f"{request_mib}Mi"}} if request_mib else None
        self.kubelet.add_pod(static_pod(name, ("sh", "-c", f"{command} wait"), labels=labels, resources=resources))

    def evicted(self) -> list[str]:
        """By criproxy."""
        events = self.criproxy.events("stop") if self.criproxy else []
        return [event["pod"].removesuffix(f"-{self.kubelet.node}") for event in events]

    def problems(self) -> set[str]:
        """Which of `PROBLEMS` the problems of the status name."""
        return {words for words in PROBLEMS if self.criproxy and self.criproxy.problems(words)}


FIRST = {
    "evict": None,
    "report": "small",
    "absent": "hog",
    "evict-with-swap": None,
    "absent-with-swap": "hog",
    "report-with-stats-of-the-runtime": "hog",
}
"""Whom kubelet would evict first; None: it is not to choose. In its eyes a pod in the box uses nothing, unless it takes
pods' memory from the runtime.
"""
CRI_STATS = "PodAndContainerStatsFromCRI"


@pytest.fixture(params=[pytest.param(name, marks=() if name == "evict" else pytest.mark.by_command) for name in FIRST])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """By what criproxy does about it: `memory.on_over_limit`, or there is none; by whether online may swap; and by
    where kubelet takes its numbers from.
    """
    manner, _, beside = request.param.partition("-with-")
    swaps = beside == "swap"
    directory = programs() if beside == "stats-of-the-runtime" else None  # as 1.6 does not know them
    if swaps and not is_throwaway():
        pytest.skip("switches on swap, which it does on a throwaway node alone: ./test node NODE")
    if free_bytes() < ROOM_BYTES + SPARE_BYTES:
        pytest.skip(f"needs {(ROOM_BYTES + SPARE_BYTES) // MIB} MiB of free memory: give a node NODE_MEM=6144")
    with claimed() as lab, swap_on() if swaps else contextlib.nullcontext():
        try:
            containerd = Containerd(lab, programs=directory)
            containerd.start()
            criproxy = None
            if manner != "absent":
                config = {
                    "colocation": {"enabled": True},
                    "memory": {"on_over_limit": manner},
                    "control": {**QUICK, "raise_threshold_ratio": 0.0, "raise_after_s": 1.0},
                }
                criproxy = Criproxy(lab, containerd.socket, config)
            # The page cache is nobody's room until it is reclaimed, and what of it is active counts as in use.
            Path("/proc/sys/vm/drop_caches").write_text("1\n")
            hard_bytes = free_bytes() - ROOM_BYTES
            hard = {**dict.fromkeys(EVICTION_SIGNALS, "0%"), "memory.available": str(hard_bytes)}
            settings: dict[str, object] = {
                "evictionHard": hard,
                "featureGates": {CRI_STATS: beside == "stats-of-the-runtime"},
                "memorySwap": {"swapBehavior": "LimitedSwap" if swaps else "NoSwap"},
            }
            kubelet = Kubelet(lab, criproxy.socket if criproxy else containerd.socket, settings=settings)
            if criproxy:
                criproxy.start()
            kubelet.start()
            with CriClient(containerd.socket) as client:
                yield Node(kubelet, criproxy, client, hard_bytes)
        finally:
            clean(lab)


def holding(mib: int) -> str:
    """So much memory in the background."""
    sizes = [LARGEST_MIB] * (mib // LARGEST_MIB) + [mib % LARGEST_MIB]
    return " ".join(f"(dd if=/dev/zero bs={size}M count=1 2>/dev/null | sleep 2147483647) &" for size in sizes if size)


def test_kubelet_is_never_to_choose_while_an_offline_pod_holds_memory(
    node: Node, request: pytest.FixtureRequest, say: Say
) -> None:
    manner = request.node.callspec.params["node"].partition("-with-")[0]
    if proxy := node.criproxy:
        wait_until(lambda: proxy.metric("criproxy_eviction_hard_known") == 1, WAIT_S, "kubelet's threshold to be read")
        wait_until(lambda: proxy.metric("criproxy_limit_bytes") > (HOG_MIB + 100) * MIB, WAIT_S, "room for the hog")
    node.hold("hog", holding(HOG_MIB))
    node.hold("small", holding(SMALL_MIB), SMALL_MIB // 4)
    place = "offline" if node.criproxy else "kubepods/besteffort"
    node.kubelet.wait_running("hog")
    wait_until(lambda: node.held_mib(place) > HOG_MIB - 10, WAIT_S, "the hog's memory")
    node.kubelet.wait_running("small")
    wait_until(lambda: node.read_mib().get("small", 0) > SMALL_MIB - 10, WAIT_S, "kubelet to see small's", poll_s=0.5)

    before, first_mib = len(node.rankings()), node.left_mib() - FIRST_LEFT_MIB
    node.hold("online", holding(first_mib), first_mib + FIRST_LEFT_MIB + OVER_MIB + CUSHION_MIB)
    node.kubelet.wait_running("online")
    lows = [node.left_mib()]

    def decided() -> bool:
        """Whether criproxy or kubelet has acted; online takes more until then."""
        lows.append(node.left_mib())
        if lows[-1] > -OVER_MIB:
            node.take("online", STEP_MIB)
        return bool(node.evicted() if manner == "evict" else len(node.rankings()) > before)

    wait_until(decided, WAIT_S, "a pod to be stopped, or kubelet to rank pods", node.kubelet.log, STEP_S)
    if manner == "evict":
        time.sleep(LOOK_S)
    if manner == "report":
        wait_until(lambda: len(node.problems()) == len(PROBLEMS), WAIT_S, f"the status to say {PROBLEMS}")

    seen = {name: f"{mib} MiB" for name, mib in node.read_mib().items()}
    rankings, pods = node.rankings()[before:], node.kubelet.pods()
    say(
        f"{manner}: online took {node.held_mib('kubepods/burstable')} MiB; at least {min(lows)} MiB were left "
        f"above kubelet's threshold; it read {seen} and ranked {rankings or 'nobody'}; "
        f"criproxy stopped {node.evicted() or 'nobody'}"
    )
    for name in ("online", "small"):
        assert (pods[name].is_running, pods[name].restarts) == (True, 0)
    if manner == "evict":
        assert set(node.evicted()) == {"default/hog"}
        assert not {"online", "small"} & {ranked[0] for ranked in rankings}, "others may take memory here, too"
        assert node.criproxy
        assert node.criproxy.metric('criproxy_evictions_total{resource="memory"}') >= 1
    else:
        assert node.evicted() == []
        assert rankings[0][0] == FIRST[request.node.callspec.params["node"]], "kubelet's own choice"
