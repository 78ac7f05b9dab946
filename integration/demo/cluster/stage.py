"""Brings the demo's cluster up: the control plane, the cluster's side, and two nodes that kubelets join."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from criproxy.model import CPU
from criproxy.observe.status import from_json
from integration.demo.cluster.objects import BATCH_CPU, PODS, Sizes
from integration.demo.place import step
from integration.lab import kubelet_cgroup
from integration.lab.client import CriClient
from integration.lab.cluster_side import SYSTEM, Replica, install
from integration.lab.containerd import Containerd
from integration.lab.control_plane import ControlPlane, wait_for
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.kubelet import EVICTION_SIGNALS, Kubelet, available_bytes
from integration.lab.meter import join
from integration.lab.node import FAVOURED, KubeletNode
from integration.lab.ports import free_ports
from integration.lab.process import Process

DEFAULT: Final = "/api/v1/namespaces/default"
JOIN_S: Final = 180.0
MIN_CORES: Final = 0.3
"""Of each box: enough for all offline pods' requests, however busy this machine is."""

_CONFIG: Final[Config] = {
    "colocation": {"enabled": True},
    "cpu": {"min_cores": MIN_CORES},
    "control": {"predictor": "histogram", "half_life_s": 4.0, "raise_after_s": 3.0, "max_raise_ratio": 0.3},
}
"""criproxy's defaults, but for what a play of minutes needs: what is learned in hours is learned in seconds."""


@dataclass(frozen=True)
class ClusterNode(KubeletNode):
    """`title` is what the demo calls it."""

    title: str

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.kubelet.node}"

    def limit(self) -> tuple[float | None, str]:
        """The CPU limit of its box, and why it is that; None while nobody says."""
        code, body = self.proxy.http("/status")
        cpu = from_json(body).box.resources.get(CPU) if code == 200 else None
        return (None, "") if cpu is None or isinstance(cpu.limit, str) else (cpu.limit, cpu.reason)

    def knows_threshold(self) -> bool:
        """Whether its criproxy has read from which free memory on kubelet evicts pods."""
        return self.proxy.metric("criproxy_eviction_hard_known") == 1


@dataclass
class Cluster:
    """A cluster that runs. `port` is for the online service, `signals` a directory that it looks into."""

    plane: ControlPlane
    parts: Mapping[str, Process | Containerd | Criproxy | Kubelet]
    nodes: tuple[ClusterNode, ClusterNode]
    signals: Path
    port: int

    def title(self, node: str) -> str:
        return next((one.title for one in self.nodes if one.kubelet.node == node), node)

    def items(self, what: str) -> list[Any]:
        found: list[Any] = self.plane.call("GET", f"{DEFAULT}/{what}")["items"]
        return found

    def create(self, group: str, what: str, body: Any) -> None:
        self.plane.call("POST", f"/apis/{group}/namespaces/default/{what}", body)

    def cordon(self, node: ClusterNode, *, cordoned: bool) -> None:
        self.plane.merge(node.path, {"spec": {"unschedulable": cordoned or None}})

    def favour(self, pid: int) -> None:
        """Have a process have the CPU before all pods, as if it were on another machine."""
        own = f"{self.nodes[0].root}/ahead"
        join(kubelet_cgroup.make(own, shares=FAVOURED), pid)


def start(labs: Sequence[Path], sizes: Sizes) -> Cluster:
    """Bring the cluster up, a node in each lab, whose cleaning takes it down.

    Raises LabError, grpc.RpcError or OSError when something does not start.
    """
    with step("etcd, and Kubernetes' API server, scheduler and controller manager"):
        plane = ControlPlane(labs[0])
        plane.start()
    with step("the cluster's side of criproxy: its manifests, and the webhook and controller"):
        install(plane)
        plane.kubectl("-n", SYSTEM, "scale", "deployment", "--all", "--replicas=0")  # they are processes here
        replica = Replica(plane, "webhook")
        replica.start()
        replica.take_webhooks()
    parts: dict[str, Process | Containerd | Criproxy | Kubelet] = {
        "the webhook": replica.process.webhook,
        "the controller": replica.process.controller,
    }
    (signals := labs[0] / "signals").mkdir()
    nodes: list[ClusterNode] = []
    # On one machine, the control plane and node 2's box must not take from node 1's online pod.
    for title, lab, shares in zip(("node 1", "node 2"), labs, (FAVOURED, 1024), strict=True):
        with step(f"{title}: a containerd in {lab}, criproxy before it, and a real kubelet, which joins"):
            kubelet_cgroup.make(cgroup_root(lab), shares=shares)
            nodes.append(_node(title, lab, plane, sizes, parts, evicts=not nodes))
    first, second = nodes
    on = Cluster(plane, parts, (first, second), signals, free_ports(1)[0])
    with step(f"{first.title} to lend what it can, as {BATCH_CPU} in its status"):
        on.cordon(second, cordoned=True)
        wait_for(lambda: plane.exists(f"{DEFAULT}/serviceaccounts/default"), JOIN_S, "the default service account")
        wait_for(lambda: _lends(plane, first), JOIN_S, f"{first.title} to publish {BATCH_CPU}")
    return on


def _node(
    title: str,
    lab: Path,
    plane: ControlPlane,
    sizes: Sizes,
    parts: dict[str, Process | Containerd | Criproxy | Kubelet],
    *,
    evicts: bool,
) -> ClusterNode:
    """`evicts`: its kubelet evicts pods when it has given away `room_mib` of the memory that is free now.

    Its box has memory enough for all offline pods' requests: what a node lends less of, after a burst, it lends again
    with its next report, minutes later.
    """
    (lab / "cni").mkdir()  # with a network of any kind a node is ready; no pod uses it
    network = {"cniVersion": "0.4.0", "name": "host-network-only", "plugins": [{"type": "loopback"}]}
    (lab / "cni" / "10-none.conflist").write_text(json.dumps(network))
    containerd = Containerd(lab)
    containerd.start()
    credential = plane.node_kubeconfig(Kubelet(lab, Path("/")).node)  # for its name
    kubernetes = {"enabled": True, "kubeconfig": str(credential)}
    memory = {"min_bytes": PODS * sizes.requested_mib << 20}
    proxy = Criproxy(lab, containerd.socket, {**_CONFIG, "memory": memory, "kubernetes": kubernetes})
    proxy.start(until_ready=False)
    settings: dict[str, Any] = {"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "4s"}
    if evicts:
        hard = str(available_bytes() - (sizes.room_mib << 20))
        settings["evictionHard"] = {**dict.fromkeys(EVICTION_SIGNALS, "0%"), "memory.available": hard}
    kubelet = Kubelet(lab, proxy.socket, settings=settings, kubeconfig=credential)
    kubelet.start(until_ready=False)  # at once: criproxy reads kubelet's threshold after 2 s, and then each minute
    node = ClusterNode(containerd, proxy, kubelet, CriClient(containerd.socket), title)
    wait_for(lambda: plane.exists(node.path), JOIN_S, f"{title} to register")
    parts |= {f"containerd of {title}": containerd, f"criproxy of {title}": proxy, f"kubelet of {title}": kubelet}
    return node


def _lends(plane: ControlPlane, node: ClusterNode) -> bool:
    status = plane.call("GET", node.path)["status"]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"])
    return ready and status.get("allocatable", {}).get(BATCH_CPU, "0") != "0"
