"""The demo's node: containerd, criproxy before it, and the pods, by a CRI client in kubelet's place or by kubelet."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from criproxy.cgroup.naming import BOX
from criproxy.model import CPU
from criproxy.observe.status import ResourceStatus, from_json
from integration.demo import DemoError
from integration.demo.load import START_FILE, Play, online_command
from integration.demo.place import step
from integration.lab import cri_client_pb2 as cri
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import of_process
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.kubelet import Kubelet, static_pod
from integration.lab.meter import Meter, cpu_controller
from integration.lab.node import OFFLINE, Node
from integration.lab.process import Process
from integration.lab.usage import busy_loops

ONLINE: Final = "online"
HOGS: Final = ("offline-1", "offline-2")
_LEAST_SHARES: Final = 2
_LEAD_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A running node. `paths` are the cgroups of the node ("/"), the box and the online pod, by those names."""

    parts: Mapping[str, Containerd | Criproxy]
    criproxy: Criproxy
    client: CriClient
    online: Container
    paths: dict[str, str]

    @property
    def meter(self) -> Meter:
        return Meter(self.paths)

    def cpu(self) -> ResourceStatus | None:
        """What criproxy says of CPU at its last tick; None while it does not, or has no box yet."""
        code, body = self.criproxy.http("/status")
        return from_json(body).box.resources.get(CPU) if code == 200 else None

    def begin(self) -> float:
        """Tell the online container when its play begins, and return that (CLOCK_MONOTONIC)."""
        start_us = int((time.time() + _LEAD_S) * 1e6)
        answer = self.client.exec_sync(self.online, ("sh", "-c", f"echo {start_us} >{START_FILE}"))
        if answer.exit_code != 0:
            raise DemoError(f"The online container does not take its start: {answer.stderr.decode().strip()}")
        return time.monotonic() + start_us / 1e6 - time.time()


def check_alive(parts: Mapping[str, Containerd | Criproxy | Kubelet | Process]) -> None:
    """Raises DemoError when one of them has ended."""
    for title, part in parts.items():
        if not part.is_alive():
            last = part.log.read_text(errors="replace").splitlines()[-1:]
            raise DemoError(f"{title} has ended; the last line of its log: {' '.join(last)}")


def config(play: Play, port: int) -> Config:
    """criproxy's defaults, but for what time compression needs: times shrink as the trace does, and never grow."""
    pace = max(play.compression, 1.0)
    control = {
        "predictor": "histogram",  # the calibrated one learns its margin for days
        "half_life_s": max(900.0 / pace, 0.1),
        "raise_after_s": 60.0 / pace,
        "max_raise_ratio": min(0.1 * pace, 1.0),
    }
    return {"colocation": {"enabled": True}, "control": control, "observe": {"address": f"127.0.0.1:{port}"}}


def start(lab: Path, play: Play, cores: int, *, port: int, with_kubelet: bool) -> DemoNode:
    """Bring the node up in a lab, whose cleaning takes it down.

    Raises LabError, grpc.RpcError or OSError when something does not start.
    """
    # It is to the machine's other programs what kubepods is on a node.
    root = kubelet_cgroup.make(cgroup_root(lab), shares=cores * 1024)
    with step(f"a private containerd in {lab}, with an image built from busybox"):
        containerd = Containerd(lab)
        containerd.start()
    with step(f"criproxy before it, with metrics at http://127.0.0.1:{port}/metrics"):
        criproxy = Criproxy(lab, containerd.socket, config(play, port))
        criproxy.start()
    client = CriClient(criproxy.socket)
    commands = {**dict.fromkeys(HOGS, busy_loops(cores)), ONLINE: online_command(play, cores)}
    shares = int(play.peak_cores * 1024)
    if with_kubelet:
        with step("a real kubelet, in front of criproxy"):
            kubelet = Kubelet(lab, criproxy.socket)
            kubelet.start()
        with step("an online pod and two offline pods"):
            containers = _by_kubelet(kubelet, commands, shares)
    else:
        with step("an online pod and two offline pods, by a small CRI client"):
            containers = _by_client(Node(containerd, criproxy, root, client, client), cores, commands, shares)
    box = f"{root}/{BOX}"
    for name in HOGS:
        check_in_box(cgroup_of(client.pid(containers[name])), box)
    paths = {"node": "/", "box": box, "online": cgroup_of(client.pid(containers[ONLINE]))}
    return DemoNode({"containerd": containerd, "criproxy": criproxy}, criproxy, client, containers[ONLINE], paths)


def cgroup_of(pid: int) -> str:
    """The cgroup that a container's process is in, without the container's own: its pod's."""
    return str(PurePosixPath(of_process(pid)[cpu_controller()]).parent)


def check_in_box(cgroup: str, box: str) -> None:
    if not cgroup.startswith(f"{box}/"):
        raise DemoError(
            f"An offline pod runs in the cgroup {cgroup} and not in the box {box}: criproxy did not place it."
        )


def _by_kubelet(kubelet: Kubelet, commands: Mapping[str, Sequence[str]], shares: int) -> dict[str, Container]:
    for name, command in commands.items():
        requests = {"requests": {"cpu": f"{shares * 1000 // 1024}m"}} if name == ONLINE else None
        labels = None if name == ONLINE else OFFLINE
        kubelet.add_pod(static_pod(name, command, labels=labels, resources=requests))
    ids = {name: kubelet.wait_running(name).containers["main"] for name in commands}
    return {name: Container(id, Pod("", cri.PodSandboxConfig())) for name, id in ids.items()}


def _by_client(node: Node, cores: int, commands: Mapping[str, Sequence[str]], shares: int) -> dict[str, Container]:
    """Plays kubelet: all CPUs for kubepods, the requests for burstable, the least for the rest.

    Source: kubelet, pkg/kubelet/cm/qos_container_manager_linux.go.
    """
    weights = {"kubepods": cores * 1024, "kubepods/burstable": shares, "kubepods/besteffort": _LEAST_SHARES}
    for cgroup, weight in weights.items():
        kubelet_cgroup.make(f"{node.root}/{cgroup}", shares=weight)
    containers = {}
    for name, command in commands.items():
        kind, qos, weight, oom = "offline", "besteffort", _LEAST_SHARES, 1000
        if name == ONLINE:
            kind, qos, weight, oom = "online", "burstable", shares, 990
        resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=weight)
        own = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=weight, oom_score_adj=oom)
        containers[name] = node.run(
            kind, name, command, qos=qos, limits={"shares": weight}, resources=resources, container={"resources": own}
        )
    return containers
