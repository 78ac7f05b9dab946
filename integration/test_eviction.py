"""kubelet near its evictionHard for memory: the largest offline pod goes before kubelet ranks any pod for eviction.

A real kubelet, whose threshold lies 3,000 MiB below what is available now; an offline pod holds 600 MiB, and an online
one, above its request, grows to 2,500 MiB. It never evicts static pods, as these are, but says whom it ranks first. On
v1, kubelet does not count what the kernel itself holds (700 MiB were seen), so criproxy acts earlier by that.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from integration.lab.clean import clean
from integration.lab.containerd import Containerd
from integration.lab.criproxy import QUICK, Criproxy
from integration.lab.directory import claimed
from integration.lab.kubelet import EVICTION_SIGNALS, Kubelet, available_bytes, static_pod
from integration.lab.process import wait_until

pytestmark = pytest.mark.timeout(1200)

Say = Callable[[str], object]

MIB = 1 << 20
ROOM_BYTES = 3000 * MIB
SPARE_BYTES = 500 * MIB
"""Below kubelet's threshold, so that nobody is killed for want of memory."""
OFFLINE_MIB, ONLINE_MIB, STEP_MIB = 600, 2500, 100
WAIT_S = 120.0
HOLD = "dd if=/dev/zero bs={size}M count=1 2>/dev/null | sleep 2147483647"
STEPS = ONLINE_MIB // STEP_MIB
GROW = f"i=0; while [ $i -lt {STEPS} ]; do ({HOLD.format(size=STEP_MIB)}) & i=$((i+1)); sleep 2; done; wait"


PROBLEMS = ("kubelet evicts pods below", "above its bound")


@dataclass(frozen=True)
class Node:
    kubelet: Kubelet
    criproxy: Criproxy

    def ranked(self) -> list[str]:
        """The pod that kubelet ranked first, each time."""
        return re.findall(r"pods ranked for eviction: (\S+?)-criproxy-lab", self.kubelet.log.read_text())

    def evicted(self) -> list[str]:
        return [event["pod"] for event in self.criproxy.events() if event["event"] == "stop"]

    def problems(self) -> set[str]:
        """Which of `PROBLEMS` the problems of the status name."""
        said = "\n".join(self.criproxy.status()["problems"])
        return {words for words in PROBLEMS if words in said}

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.criproxy.http("/metrics")[1], re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@pytest.fixture(params=["evict", "report"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if available_bytes() < ROOM_BYTES + SPARE_BYTES:
        pytest.skip(f"needs {(ROOM_BYTES + SPARE_BYTES) // MIB} MiB of free memory: give a node NODE_MEM=6144")
    with claimed() as lab:
        try:
            containerd = Containerd(lab)
            containerd.start()
            config = {
                "colocation": {"enabled": True},
                "memory": {"on_over_limit": request.param},
                "control": {**QUICK, "raise_threshold_ratio": 0.0, "raise_after_s": 1.0},
            }
            criproxy = Criproxy(lab, containerd.socket, config)
            hard = {**dict.fromkeys(EVICTION_SIGNALS, "0%"), "memory.available": str(available_bytes() - ROOM_BYTES)}
            kubelet = Kubelet(lab, criproxy.socket, settings={"evictionHard": hard})
            criproxy.start()
            kubelet.start()
            yield Node(kubelet, criproxy)
        finally:
            clean(lab)


def test_kubelet_is_never_to_choose_while_an_offline_pod_holds_memory(node: Node, say: Say) -> None:
    evicts = "evict" in node.criproxy.config_file.read_text()
    wait_until(lambda: node.metric("criproxy_eviction_hard_known") == 1, WAIT_S, "kubelet's threshold to be read")
    wait_until(
        lambda: node.metric("criproxy_limit_bytes") > (OFFLINE_MIB + 100) * MIB, WAIT_S, "room for the offline pod"
    )
    hog = static_pod(
        "hog", ("sh", "-c", HOLD.format(size=OFFLINE_MIB)), labels={"colocation.criproxy.io/class": "offline"}
    )
    node.kubelet.add_pod(hog)
    wait_until(
        lambda: node.metric("criproxy_box_memory_bytes") > (OFFLINE_MIB - 10) * MIB, WAIT_S, "the offline pod's memory"
    )
    say(f"kubelet ranked first, before online came: {node.ranked() or 'nobody'}")  # others may take memory here, too

    online = static_pod("online", ("sh", "-c", GROW), resources={"requests": {"memory": "64Mi"}})
    node.kubelet.add_pod(online)
    if evicts:
        wait_until(node.evicted, WAIT_S, "the offline pod to be stopped")
        time.sleep(60)  # all of online's growth, and kubelet's next looks
    else:
        wait_until(lambda: "online" in node.ranked(), WAIT_S, "kubelet to rank the online pod first")
        wait_until(lambda: len(node.problems()) == len(PROBLEMS), WAIT_S, f"the status to say {PROBLEMS}")

    pod = node.kubelet.pods()["online"]
    say(f"kubelet ranked first: {node.ranked() or 'nobody'}; criproxy stopped {node.evicted() or 'nobody'}")
    assert (pod.is_running, pod.restarts) == (True, 0)
    if evicts:
        assert set(node.evicted()) == {f"default/hog-{node.kubelet.node}"}
        assert "online" not in node.ranked(), "others on this machine may take memory, too, but online is never first"
        assert node.metric('criproxy_evictions_total{resource="memory"}') >= 1
    else:
        assert node.evicted() == []
