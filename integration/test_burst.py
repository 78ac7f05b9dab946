"""Bursts of CPU in the box beside a busy online pod: loops, processes that come and go, packets, connections.

Online keeps the CPU that it had alone, as cpu.idle has it run first, also before what the kernel does for the box's
packets in the box's own time. What still makes online wait for more than a tenth of the time would be an alarm.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

import pytest

from integration.lab.cgroups import version
from integration.lab.criproxy import static
from integration.lab.harm import HarmedNode
from integration.lab.process import wait_until
from integration.lab.throwaway import is_throwaway
from integration.lab.usage import CPUS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_throwaway(), reason="floods the machine's network"),
    pytest.mark.skipif(version() == 1, reason="cgroup v1 has no pressure of a cgroup"),
]

Say = Callable[[str], object]

WAIT_S = 240.0
WARM_UP_S, WATCHED_S = 3.0, 15.0
LEAST_ONLINE = 0.85
SERVE = "while :; do i=0; while [ $i -lt 4000 ]; do i=$((i+1)); done; usleep 20000; done"
LOOP = "for i in 1 2 3 4 5 6 7 8; do while :; do {0}; done & done; wait"
PACKETS = """
import os, socket
for _ in range(3):
    if os.fork() == 0:
        break
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT: sixty packets with each call
while True:
    try:
        sender.sendto(bytes(60000), ("127.0.0.1", 9))
    except OSError:
        pass
"""
CONNECTIONS = """
import os, socket
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
for _ in range(6):
    if os.fork() == 0:
        break
else:
    while True:
        server.accept()[0].close()
while True:
    try:
        socket.create_connection(server.getsockname()).close()
    except OSError:
        pass
"""
BURSTS: Mapping[str, tuple[str, ...]] = {
    "loops": ("sh", "-c", LOOP.format(":")),
    "processes": ("sh", "-c", LOOP.format("/bin/true")),
    "packets": ("/usr/bin/python3", "-c", PACKETS),
    "connections": ("/usr/bin/python3", "-c", CONNECTIONS),
}
PYTHON = {Path("/usr"): Path("/usr"), Path("/lib"): Path("/usr/lib"), Path("/lib64"): Path("/usr/lib64")}
"""The node's own, seen by the pods."""


@pytest.fixture
def node(lab: Path) -> Iterator[HarmedNode]:
    with HarmedNode.before(lab, starts=False, mounts=PYTHON) as node:
        yield node


def pressure_s(node: HarmedNode) -> float:
    """For how long some task of online's has waited for CPU."""
    some = node.kubepods.file("cpu", "cpu.pressure").read_text().partition("\n")[0]
    return int(some.partition("total=")[2]) / 1e6


def watched(node: HarmedNode) -> tuple[float, float, list[float]]:
    """CPUs that online used, and the box; and online's pressure in %, each second."""
    began_s, online_s, box_s, pressures = time.monotonic(), node.kubepods.cpu_s(), node.box.cpu_s(), []
    while time.monotonic() - began_s < WATCHED_S:
        before_s, since_s = pressure_s(node), time.monotonic()
        time.sleep(1.0)
        pressures.append(100.0 * (pressure_s(node) - before_s) / (time.monotonic() - since_s))
    elapsed_s = time.monotonic() - began_s
    return (node.kubepods.cpu_s() - online_s) / elapsed_s, (node.box.cpu_s() - box_s) / elapsed_s, pressures


def test_online_keeps_its_cpu_beside_bursts_of_the_box(node: HarmedNode, say: Say) -> None:
    node.configure(static(CPUS, 700 << 20, cpu={"watermark_ratio": 1.0}))
    node.start_pod("offline")
    node.start_pod("online", ("sh", "-c", SERVE))
    wait_until(lambda: (node.box.quota_cores() or 0.0) >= CPUS, WAIT_S, "the box to open", node.proxy.log)
    time.sleep(WARM_UP_S)
    alone, _, pressures = watched(node)
    say(f"alone: online uses {alone:.2f} CPUs, cpu_pressure {median(pressures):.1f} %, at most {max(pressures):.0f} %")
    shares = {}
    for name, command in BURSTS.items():
        pod = node.start_pod(f"offline-{name}", command)
        time.sleep(WARM_UP_S)
        online, box, pressures = watched(node)
        shares[name] = online / alone
        say(
            f"{name}: online uses {online:.2f} CPUs, the box {box:.2f}; cpu_pressure {median(pressures):.1f} %, at "
            f"most {max(pressures):.0f} %; {node.moves()}"
        )
        node.client.stop_and_remove(pod)
    wait_until(lambda: node.rung("cpu") == "open", WAIT_S, "the box to be open", node.proxy.log, 0.5)

    assert {name: share for name, share in shares.items() if share < LEAST_ONLINE} == {}
    assert node.proxy.events("stop") == []
