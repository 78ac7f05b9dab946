"""The demo's three pods, started by a CRI client in kubelet's place, or by a real kubelet as static pods."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from integration.demo import DemoError
from integration.demo.load import START_FILE
from integration.demo.meter import cpu_controller, set_shares
from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree, of_process
from integration.lab.client import Container, CriClient, Pod
from integration.lab.kubelet import Kubelet, static_pod

ONLINE: Final = "online"
OFFLINE: Final = ("offline-1", "offline-2")
CLASS_LABEL: Final = "colocation.criproxy.io/class"
_LEAST_SHARES: Final = 2
_PERIOD_US: Final = 100_000


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What a pod runs and how much CPU it requests, in shares; None: nothing (BestEffort)."""

    name: str
    command: Sequence[str]
    labels: dict[str, str]
    shares: int | None = None


def specs(online: Sequence[str], offline: Sequence[str], peak_cores: float) -> tuple[PodSpec, ...]:
    """The offline pods first, so that they are there when the play begins."""
    return (
        *(PodSpec(name, offline, {CLASS_LABEL: "offline"}) for name in OFFLINE),
        PodSpec(ONLINE, online, {}, shares=max(int(peak_cores * 1024), _LEAST_SHARES)),
    )


class Starter(Protocol):
    """Kubelet, or what stands in for it."""

    def run(self, pods: Sequence[PodSpec]) -> dict[str, Container]:
        """Start the pods and return their containers, by the pods' names. Raises grpc.RpcError or LabError."""
        ...


class CriStarter:
    """Plays kubelet: makes its cgroups below `root`, and asks the runtime for pods and containers."""

    def __init__(self, client: CriClient, root: str, cores: int) -> None:
        self._client = client
        self._root = root
        self._cores = cores

    def run(self, pods: Sequence[PodSpec]) -> dict[str, Container]:
        self._prepare(sum(pod.shares or 0 for pod in pods))
        return {pod.name: self._run(pod) for pod in pods}

    def _prepare(self, requested_shares: int) -> None:
        """Kubelet's own cgroups and weights: all CPUs for kubepods, the requests for burstable, the least for the rest.

        Source: kubelet, pkg/kubelet/cm/qos_container_manager_linux.go.
        """
        kubepods = f"{self._root}/kubepods"
        for path, shares in (
            (kubepods, self._cores * 1024),
            (f"{kubepods}/burstable", max(requested_shares, _LEAST_SHARES)),
            (f"{kubepods}/besteffort", _LEAST_SHARES),
        ):
            Tree(path).make()
            set_shares(path, shares)

    def _run(self, spec: PodSpec) -> Container:
        uid = str(uuid.uuid4())
        shares = spec.shares or _LEAST_SHARES
        parent = f"{self._root}/kubepods/{'besteffort' if spec.shares is None else 'burstable'}/pod{uid}"
        Tree(parent).make()
        set_shares(parent, shares)
        own = {
            "io.kubernetes.pod.name": spec.name,
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": uid,
        }
        sandbox = cri.LinuxContainerResources(cpu_period=_PERIOD_US, cpu_shares=shares)
        pod = self._client.run_pod(
            spec.name, uid=uid, labels=own | spec.labels, cgroup_parent=parent, resources=sandbox
        )
        container = cri.LinuxContainerResources(
            cpu_period=_PERIOD_US, cpu_shares=shares, oom_score_adj=1000 if spec.shares is None else 990
        )
        return self._client.run_container(pod, "main", spec.command, resources=container)


class KubeletStarter:
    """Has a real kubelet start the pods, as static pods."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    def run(self, pods: Sequence[PodSpec]) -> dict[str, Container]:
        for spec in pods:
            requests = {"requests": {"cpu": f"{spec.shares * 1000 // 1024}m"}} if spec.shares else None
            self._kubelet.add_pod(static_pod(spec.name, spec.command, labels=spec.labels, resources=requests))
        ids = {spec.name: self._kubelet.wait_running(spec.name).containers["main"] for spec in pods}
        return {name: Container(id, Pod("", cri.PodSandboxConfig())) for name, id in ids.items()}


def cgroup_of(pid: int) -> str:
    """The cgroup that a container's process is in, without the container's own: its pod's."""
    return str(PurePosixPath(of_process(pid)[cpu_controller()]).parent)


def begin(client: CriClient, online: Container, lead_s: float) -> float:
    """Tell the online container when its play begins, and return that (CLOCK_MONOTONIC).

    Raises grpc.RpcError, or DemoError when the container does not take it.
    """
    start_us = int((time.time() + lead_s) * 1e6)
    answer = client.exec_sync(online, ("sh", "-c", f"echo {start_us} >{START_FILE}"))
    if answer.exit_code != 0:
        raise DemoError(f"The online container does not take its start: {answer.stderr.decode().strip()}")
    return time.monotonic() + start_us / 1e6 - time.time()
