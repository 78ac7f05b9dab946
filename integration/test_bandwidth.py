"""An offline pod's network keeps to what the node allows: with a real CNI bridge and its plugin `bandwidth`."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.client import Pod
from integration.lab.node import Node
from integration.lab.process import wait_until

PLUGINS = Path("/usr/lib/cni")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not (PLUGINS / "bandwidth").exists(), reason=f"{PLUGINS} has no bandwidth plugin"),
]

Say = Callable[[str], object]

EGRESS, INGRESS = "kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"
MBIT = 1_000_000
EGRESS_BITS_PER_S, INGRESS_BITS_PER_S = 16 * MBIT, 24 * MBIT
SUBNET = "10.213.77"
GATEWAY = f"{SUBNET}.1"
BURST_BYTES = 2**32 // 8
"""Containerd has the plugin let so much through before it holds back: 4 Gbit, less one bit."""

MEASURED_S = 5.0
SEND = f"""
import socket, sys
with socket.create_connection(("{GATEWAY}", int(sys.argv[1]))) as peer:
    block = bytes(1 << 20)
    while True:
        peer.sendall(block)
"""


class Network(Node):
    """A node whose pods have a bridge."""

    def start_pod(self, kind: str, annotations: Mapping[str, str] | None = None) -> Pod:
        return self.run_pod(kind, annotations=annotations, own_network=True)

    def annotations(self, pod: Pod) -> dict[str, str]:
        """Those that the runtime keeps."""
        answer = self.client.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id))
        return dict(answer.status.annotations)

    def namespace(self, pod: Pod) -> str:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
        info = json.loads(self.client.call("PodSandboxStatus", request).info["info"])
        return next(str(one["path"]) for one in info["runtimeSpec"]["linux"]["namespaces"] if one["type"] == "network")

    def limits_bits_per_s(self) -> list[int]:
        """Of the kernel's token buckets at the host's ends of the pods' links."""
        text = subprocess.run(["tc", "-json", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
        return sorted(8 * one["options"]["rate"] for one in json.loads(text) if one["kind"] == "tbf")


@pytest.fixture
def network(lab: Path) -> Iterator[Network]:
    name = f"cp{uuid.uuid4().hex[:8]}"
    ipam = {"type": "host-local", "dataDir": str(lab / "addresses"), "ranges": [[{"subnet": f"{SUBNET}.0/24"}]]}
    bridge = {"type": "bridge", "bridge": name, "isGateway": True, "ipam": ipam}
    bandwidth = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    (cni := lab / "cni").mkdir(parents=True)
    configuration = {"cniVersion": "0.4.0", "name": name, "plugins": [bridge, bandwidth]}
    (cni / "10-lab.conflist").write_text(json.dumps(configuration))
    try:
        with Network.before(lab, starts=False) as network:
            yield network
    finally:
        subprocess.run(["ip", "link", "del", name], check=False)


@contextmanager
def receiver() -> Iterator[tuple[int, Callable[[], int]]]:
    """A server on the bridge that takes all that it gets: its port, and how many bytes that were."""
    got = 0

    def take(server: socket.socket) -> None:
        nonlocal got
        try:
            peer, _ = server.accept()
            with peer:
                while data := peer.recv(1 << 20):
                    got += len(data)
        except OSError:
            return

    with socket.create_server((GATEWAY, 0)) as server:
        thread = threading.Thread(target=take, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1], lambda: got
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def sent_bits_per_s(network: Network, pod: Pod) -> float:
    """What a pod can send to the node, once its burst is used up."""
    with receiver() as (port, got):
        sender = ["nsenter", f"--net={network.namespace(pod)}", sys.executable, "-c", SEND, str(port)]
        with subprocess.Popen(sender) as process:
            try:
                wait_until(lambda: got() > BURST_BYTES + (1 << 20), 600, "the burst to be used up")
                began, began_s = got(), time.monotonic()
                time.sleep(MEASURED_S)
                return 8 * (got() - began) / (time.monotonic() - began_s)
            finally:
                process.kill()


def test_offline_pod_sends_no_more_than_the_node_allows_and_online_what_it_wants(network: Network, say: Say) -> None:
    network.proxy.configure({
        "colocation": {"enabled": True},
        "network": {"max_egress_bits_per_s": EGRESS_BITS_PER_S, "max_ingress_bits_per_s": INGRESS_BITS_PER_S},
    })  # fmt: skip
    network.proxy.start()
    online = network.start_pod("online")
    before = network.limits_bits_per_s()
    offline = network.start_pod("offline")
    limits = network.limits_bits_per_s()
    free, bound = sent_bits_per_s(network, online), sent_bits_per_s(network, offline)
    say(
        f"tc limits without {before}, with the offline pod {limits} bits/s; sent in {MEASURED_S:.0f} s: online "
        f"{free / MBIT:.0f}, offline {bound / MBIT:.1f} Mbit/s"
    )

    assert before == []
    assert limits == [EGRESS_BITS_PER_S, INGRESS_BITS_PER_S]
    assert network.annotations(offline)[EGRESS] == str(EGRESS_BITS_PER_S)
    assert EGRESS not in network.annotations(online)
    assert 0.5 * EGRESS_BITS_PER_S < bound < 1.1 * EGRESS_BITS_PER_S
    assert free > 5 * EGRESS_BITS_PER_S


def test_less_that_a_pod_asks_for_stays_more_does_not_and_nothing_is_set_unless_it_is_said(network: Network) -> None:
    network.proxy.configure({
        "colocation": {"enabled": True}, "network": {"max_egress_bits_per_s": EGRESS_BITS_PER_S}
    })  # fmt: skip
    network.proxy.start()
    network.start_pod("offline", {EGRESS: "8M", INGRESS: "1G"})
    less = network.limits_bits_per_s()
    network.start_pod("offline", {EGRESS: "1G"})
    more = network.limits_bits_per_s()
    before = len(network.proxy.events("config_taken"))
    network.proxy.configure({"colocation": {"enabled": True}})
    network.proxy.reload()
    wait_until(lambda: len(network.proxy.events("config_taken")) > before, 60, "the reload")
    off = network.annotations(network.start_pod("offline"))

    assert less == [8 * MBIT, 1000 * MBIT]
    assert more == [8 * MBIT, EGRESS_BITS_PER_S, 1000 * MBIT]
    assert not re.search("bandwidth", " ".join(off))
