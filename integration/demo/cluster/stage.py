"""Brings the demo's cluster up: the control plane, the cluster's side, and two nodes that kubelets join."""

import base64
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from criproxy.cgroup.naming import BOX
from criproxy.observe.status import Status, from_json
from integration.demo import DemoError
from integration.demo.cluster.objects import BATCH_CPU, Sizes
from integration.demo.meter import join, set_shares
from integration.demo.place import Place
from integration.demo.screen import Say
from integration.demo.stage import step
from integration.lab.cgroups import Tree
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.control_plane import ControlPlane, wait_for
from integration.lab.criproxy import CHECKOUT, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.kubelet import EVICTION_SIGNALS, Kubelet, available_bytes
from integration.lab.ports import free_ports
from integration.lab.process import Process

PODS_PATH: Final = "/api/v1/namespaces/default/pods"
SYSTEM: Final = "criproxy-system"
JOIN_S: Final = 180.0
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/criproxy-cluster"
_OFTEN: Final = {"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "4s"}
MIN_CORES: Final = 0.3
"""Of each box: enough for all offline pods' requests, however busy this machine is."""

_MOST_SHARES: Final = 262144
_SOME_SHARES: Final = 1024
"""Of the nodes' cgroups: on one machine, the control plane and node 2's box must not take from node 1's online pod."""

_NO_NETWORK: Final = {"cniVersion": "0.4.0", "name": "host-network-only", "plugins": [{"type": "loopback"}]}
"""With a network of any kind a node is ready. No pod uses it."""


@dataclass
class ClusterNode:
    """`title` is what the demo calls it."""

    title: str
    lab: Path
    containerd: Containerd
    proxy: Criproxy
    kubelet: Kubelet
    client: CriClient

    @property
    def name(self) -> str:
        return self.kubelet.node

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    @property
    def box(self) -> str:
        return f"{cgroup_root(self.lab)}/{BOX}"

    def status(self) -> Status | None:
        """What its criproxy says; None while it does not."""
        code, body = self.proxy.http("/status")
        return from_json(body) if code == 200 else None

    def knows_threshold(self) -> bool:
        """Whether its criproxy has read from which free memory on kubelet evicts pods."""
        return "criproxy_eviction_hard_known 1.0" in self.proxy.http("/metrics")[1]


@dataclass
class ClusterStage:
    """A cluster that runs. `port` is for the online service, `signals` a directory that it looks into."""

    plane: ControlPlane
    replica: Process
    nodes: tuple[ClusterNode, ClusterNode]
    signals: Path
    port: int
    cores: int
    titles: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.titles = {node.name: node.title for node in self.nodes}

    def pods(self) -> list[Any]:
        found: list[Any] = self.plane.call("GET", PODS_PATH)["items"]
        return found

    def cordon(self, node: ClusterNode, *, cordoned: bool) -> None:
        self.plane.merge(node.path, {"spec": {"unschedulable": cordoned or None}})

    def favour(self, pid: int) -> None:
        """Have a process have the CPU before all pods, as if it were on another machine."""
        own = f"{cgroup_root(self.nodes[0].lab)}/ahead"
        Tree(own).make()
        set_shares(own, _MOST_SHARES)
        join(own, pid)

    def check(self) -> None:
        """Raises DemoError when a part of it has ended."""
        parts: list[tuple[str, Process | Containerd | Criproxy | Kubelet, Path]] = [
            ("the webhook", self.replica, self.replica.log)
        ]
        for node in self.nodes:
            parts += [
                (f"containerd of {node.title}", node.containerd, node.containerd.log),
                (f"criproxy of {node.title}", node.proxy, node.proxy.log),
                (f"kubelet of {node.title}", node.kubelet, node.kubelet.log),
            ]
        for title, part, log in parts:
            if not part.is_alive():
                last = log.read_text(errors="replace").splitlines()[-1:]
                raise DemoError(f"{title} has ended; the last line of its log: {' '.join(last)}")


@contextmanager
def cluster_stage(place: Place, sizes: Sizes, cores: int, say: Say) -> Iterator[ClusterStage]:
    """Bring the cluster up in the place's directory; the place's `clear` takes it down.

    Raises LabError, grpc.RpcError or OSError when something does not start.
    """
    with contextlib.ExitStack() as stack:
        with step(say, "etcd, and Kubernetes' API server, scheduler and controller manager"):
            plane = ControlPlane(place.lab)
            plane.start()
        with step(say, "the cluster's side of criproxy: its manifests, and the webhook and controller"):
            plane.kubectl("apply", "-k", str(CHECKOUT / "cluster" / "manifests" / "base"))
            plane.kubectl("-n", SYSTEM, "scale", "deployment/criproxy-cluster", "--replicas=0")  # it is a process here
            replica = _replica(plane, place.lab)
        (signals := place.lab / "signals").mkdir()
        made = []
        for title, lab, room, shares in (
            ("node 1", place.lab, sizes.room_mib, _MOST_SHARES),
            ("node 2", place.second_lab, None, _SOME_SHARES),
        ):
            with step(say, f"{title}: a containerd, criproxy before it, and a real kubelet, which joins"):
                lab.mkdir(exist_ok=True)
                Tree(cgroup_root(lab)).make()
                set_shares(cgroup_root(lab), shares)
                node = _node(title, lab, plane, room)
                stack.callback(node.client.close)
                made.append(node)
        first, second = made
        on = ClusterStage(plane, replica, (first, second), signals, free_ports(1)[0], cores)
        with step(say, f"{first.title} to lend what it can, as {BATCH_CPU} in its status"):
            on.cordon(second, cordoned=True)
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            wait_for(lambda: plane.exists(account), JOIN_S, "the default service account")
            wait_for(lambda: _lends(plane, first), JOIN_S, f"{first.title} to publish {BATCH_CPU}")
        yield on


def _replica(plane: ControlPlane, lab: Path) -> Process:
    """One replica with the rights of the manifests' account; the API server finds it by URL, as there is no Service."""
    (port,) = free_ports(1)
    certificates = lab / "webhook"
    certificates.mkdir()
    both = plane.authority.sign("webhook", "/CN=localhost", "subjectAltName=DNS:localhost").read_bytes()
    for name in ("tls.crt", "tls.key"):
        (certificates / name).write_bytes(both)
    kubeconfig = json.loads(plane.account_kubeconfig(SYSTEM, "criproxy-cluster").read_text())
    kubeconfig["contexts"][0]["context"]["namespace"] = SYSTEM
    (lab / "webhook.conf").write_text(json.dumps(kubeconfig))
    configuration = plane.call("GET", _WEBHOOKS)
    bundle = base64.b64encode(plane.authority.ca.read_bytes()).decode()
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://localhost:{port}/convert", "caBundle": bundle}
    plane.call("PUT", _WEBHOOKS, configuration)
    arguments = ("run", "--port", str(port), "--certificates", certificates)
    env = {"KUBECONFIG": str(lab / "webhook.conf"), "PYTHONPATH": str(CHECKOUT / "cluster")}
    return Process("criproxy-cluster", [sys.executable, "-m", "criproxy_cluster", *arguments], lab / "webhook.log", env)


def _node(title: str, lab: Path, plane: ControlPlane, room_mib: int | None) -> ClusterNode:
    """`room_mib`: its kubelet evicts pods when it has given away so much of the memory that is free now."""
    (lab / "cni").mkdir()
    (lab / "cni" / "10-none.conflist").write_text(json.dumps(_NO_NETWORK))
    containerd = Containerd(lab)
    containerd.start()
    kubelet = Kubelet(lab, Path("/"))  # for its name
    credential = plane.node_kubeconfig(kubelet.node)
    proxy = Criproxy(lab, containerd.socket, _config(credential))
    proxy.start(until_ready=False)
    settings: dict[str, Any] = dict(_OFTEN)
    if room_mib is not None:
        hard = str(available_bytes() - (room_mib << 20))
        settings["evictionHard"] = {**dict.fromkeys(EVICTION_SIGNALS, "0%"), "memory.available": hard}
    kubelet = Kubelet(lab, proxy.socket, settings=settings, kubeconfig=credential)
    kubelet.start(until_ready=False)  # at once: criproxy reads kubelet's threshold after 2 s, and then each minute
    node = ClusterNode(title, lab, containerd, proxy, kubelet, CriClient(containerd.socket))
    wait_for(lambda: plane.exists(node.path), JOIN_S, f"{title} to register")
    return node


def _config(credential: Path) -> dict[str, dict[str, object]]:
    """criproxy's defaults, but for what a play of minutes needs: what is learned in hours is learned in seconds."""
    return {
        "colocation": {"enabled": True},
        "cpu": {"min_cores": MIN_CORES},
        "control": {"predictor": "histogram", "half_life_s": 4.0, "raise_after_s": 3.0, "max_raise_ratio": 0.3},
        "kubernetes": {"enabled": True, "kubeconfig": str(credential)},
    }


def _lends(plane: ControlPlane, node: ClusterNode) -> bool:
    found = plane.call("GET", node.path)
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"]["conditions"])
    return ready and found["status"].get("allocatable", {}).get(BATCH_CPU, "0") != "0"
