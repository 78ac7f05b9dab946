"""A node with criproxy and a real kubelet, joined to a real control plane, and what tests ask of it."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from criproxy.concurrency.clock import Clock
from criproxy.config import OwnFiles
from criproxy.config.settings import Config, Control, Kubernetes
from criproxy.control.pod_speed import Feedback
from criproxy.daemon.kubernetes import KubernetesPart
from criproxy.model import PodRef
from criproxy.observe.metrics import Metrics
from criproxy.pods.stopping import Leave, PodStopper
from criproxy.vocabulary.quantities import parse_quantity
from integration.lab.cgroups import of_process
from integration.lab.clean import clean, leftovers
from integration.lab.client import CriClient
from integration.lab.clocks import wrong_clock
from integration.lab.containerd import Containerd
from integration.lab.control_plane import ApiError, ControlPlane, wait_for
from integration.lab.criproxy import QUICK, UNJUDGED, Criproxy
from integration.lab.directory import claimed, lab_name
from integration.lab.kubelet import Kubelet, static_pod
from integration.lab.process import LabError
from integration.lab.throwaway import is_throwaway

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
CLASS = {"colocation.criproxy.io/class": "offline"}
POLICY = "colocation.criproxy.io/policy"
REPORT = "colocation.criproxy.io/policy-status"
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
POLICIES = "/apis/colocation.criproxy.io/v1alpha1/colocationpolicies"
PLAIN = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],  # it has no CNI plugin
}
"""Of each pod on this node, beside what its author would write."""
SOON_S, POD_S = (900.0, 900.0) if is_throwaway() else (120.0, 300.0)

T = TypeVar("T")


class _Stops:
    """Every pod is to go."""

    def stops(self, *_: object, **__: object) -> bool:
        return True


@dataclass(frozen=True)
class Cluster:
    plane: ControlPlane
    containerd: Containerd
    proxy: Criproxy
    kubelet: Kubelet
    client: CriClient

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.kubelet.node}"

    def node(self) -> Any:
        return self.plane.call("GET", self.path)

    def published(self, name: str = CPU) -> int | None:
        """Allocatable, and capacity; None unless both have it, and the same."""
        status = self.node()["status"]
        one, other = (status.get(where, {}).get(name) for where in ("capacity", "allocatable"))
        return int(parse_quantity(one)) if one is not None and one == other else None

    def condition(self) -> Any:
        """The node's, that says whether it lends; {} if it has none."""
        conditions = {one["type"]: one for one in self.node()["status"]["conditions"]}
        return conditions.get("ColocationReady", {})

    def wait_published(self, condition: Callable[[int], bool], what: str, name: str = CPU) -> int:
        def seen() -> list[int]:
            found = self.published(name)
            return [found] if found is not None and condition(found) else []

        found: list[int] = wait_for(seen, SOON_S, f"{name} to be {what}")
        return found[0]

    def order(self, version: str, **settings: Mapping[str, Any]) -> None:
        """Have the cluster's side write this policy."""
        text = json.dumps({"version": version, "name": "test", "settings": settings}) if settings else None
        self.plane.merge(self.path, {"metadata": {"annotations": {POLICY: text}}})

    def report(self) -> Any:
        return json.loads(self.node()["metadata"]["annotations"].get(REPORT, "{}"))

    def kubernetes(self) -> Any:
        return self.proxy.status()["kubernetes"]

    def create(self, name: str, requests: Mapping[str, str] | None = None, **labels: str) -> None:
        resources = {"requests": dict(requests), "limits": dict(requests)} if requests else None
        manifest = static_pod(name, labels={**CLASS, **labels}, resources=resources)
        manifest["spec"] |= {
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        }
        self.plane.call("POST", PODS, manifest)

    def pod(self, name: str) -> Any:
        return self.plane.call("GET", f"{PODS}/{name}")

    def wait_running(self, name: str) -> Any:
        def running() -> Any:
            pod = self.pod(name)
            ready = [one.get("ready") for one in pod["status"].get("containerStatuses", [])]
            return pod if pod["status"]["phase"] == "Running" and ready == [True] else None

        with self.explaining(name):
            return wait_for(running, POD_S, f"pod {name} to run")

    @contextlib.contextmanager
    def explaining(self, name: str) -> Iterator[None]:
        """Where what is waited for does not come, say how the pod is, in the words of the scheduler and kubelet."""
        try:
            yield
        except LabError as error:
            raise LabError(f"{error}: {self.pod(name)['status']}") from error

    def delete(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(ApiError):
                self.plane.call("DELETE", f"{PODS}/{name}")
        for name in names:
            self.wait_gone(name)

    def wait_gone(self, name: str) -> None:
        wait_for(lambda: not self.plane.exists(f"{PODS}/{name}"), POD_S, f"pod {name} to go")

    @contextlib.contextmanager
    def budget(self, **labels: str) -> Iterator[None]:
        """Pods with these labels may not be disrupted."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
        self.plane.call("POST", BUDGETS, {"metadata": {"name": "none"}, "spec": spec})

        def observed() -> Any:
            return self.plane.call("GET", f"{BUDGETS}/none").get("status", {}).get("observedGeneration")

        wait_for(observed, SOON_S, "the budget to be observed")
        yield
        self.plane.call("DELETE", f"{BUDGETS}/none")

    def events(self, kind: str, name: str) -> list[str]:
        """Reasons of events about this pod, or about a node with this pod in their message."""
        found = self.plane.call("GET", "/api/v1/namespaces/default/events")["items"]
        told = [(one["reason"], one["involvedObject"], one["message"]) for one in found]
        return [reason for reason, of, message in told if of["kind"] == kind and name in of["name"] + message]

    def evict_first(self, pods: Sequence[Any], folder: Path, grace_s: int | None = 1) -> int | None:
        """Have the daemon's own part evict the first of these that may go, as `criproxy.pods.eviction` asks it.

        Which one it was; None: none. `folder`: see `asked`. `grace_s` None: in the pod's own grace period.
        """
        victims = [(ref.name, Leave(ref, f"test of {ref.name}", "")) for ref in map(_ref, pods)]

        async def relieve(part: KubernetesPart) -> int | None:
            stopper = PodStopper(None, structlog.get_logger(), None, _Stops(), part)  # type: ignore[arg-type]
            found = await stopper.evict_first(victims, within_s=20.0, grace_s=grace_s)
            await asyncio.sleep(2.0)  # the events are told apart from it
            return found[0] if found and found[1] else None

        return self.asked(relieve, folder)

    def asked(self, question: Callable[[KubernetesPart], Awaitable[T]], folder: Path) -> T:
        """What the daemon's part of Kubernetes answers, run here as this node's; `folder` is for its files."""
        config = Config(
            control=Control(checkpoint=str(folder / "checkpoint")),
            kubernetes=Kubernetes(enabled=True, kubeconfig=str(self.kubelet.kubeconfig)),
        )
        (folder / "config.toml").write_text("")
        own = OwnFiles(folder / "config.toml")
        own.load()

        async def run() -> T:
            part = KubernetesPart(
                own,
                config,
                lambda: None,
                dry_run=False,
                metrics=Metrics("1"),
                clock=Clock(),
                log=structlog.get_logger(),
            )
            running = asyncio.create_task(part.run(NothingDecided(), NothingDecided()))
            async with asyncio.timeout(SOON_S):
                while (shown := part.status()) is None or not shown.node or shown.trouble:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            answer = await question(part)
            running.cancel()
            return answer

        return asyncio.run(run())

    @contextlib.contextmanager
    def beside(self) -> Iterator[str]:
        """Another Node without a kubelet, by its name. It lends enough for a pod, and has less room than this one."""
        name = f"{self.kubelet.node}-beside"
        where = f"/api/v1/nodes/{name}"
        amounts = {"cpu": "500m", "memory": "512Mi", "pods": "10", CPU: "1000", MEMORY: "256Mi"}
        self.plane.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        try:
            conditions = [{"type": "Ready", "status": "True"}]
            status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
            self.plane.merge(f"{where}/status", {"status": status})
            self.plane.merge(where, {"spec": {"taints": None}})
            yield name
        finally:
            self.plane.merge(where, {"spec": {"unschedulable": True}})
            for pod in self.plane.call("GET", f"{PODS}?fieldSelector=spec.nodeName%3D{name}")["items"]:
                self.plane.call("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
            self.plane.call("DELETE", where)

    def in_box(self, pod: Any) -> bool:
        """Whether the pod's container runs in the box, by the kernel."""
        return f"/offline/pod{pod['metadata']['uid']}" in self.cgroup(pod)

    def cgroup(self, pod: Any) -> str:
        """Where the pod's container has its CPU time, by the kernel."""
        places = of_process(self.client.pid_of(container_of(pod)))
        return places.get("cpu") or places[""]


@contextlib.contextmanager
def joined(say: Callable[[str], object], programs: Path | None = None) -> Iterator[Cluster]:
    """A node that has joined a control plane of its own. `programs`: see `Containerd`."""
    with claimed() as lab:
        try:
            began_s = time.monotonic()
            clock = {} if is_throwaway() else wrong_clock(-24)  # a node in QEMU has no compiler for it
            plane = ControlPlane(lab, clock)
            plane.start()
            say(f"the control plane answers after {time.monotonic() - began_s:.1f} s")
            containerd = Containerd(lab, programs=programs)
            credential = plane.node_kubeconfig(lab_name(lab))
            config = {
                "colocation": {"enabled": True},
                "control": QUICK,
                "interference": UNJUDGED,
                "kubernetes": {"enabled": True, "kubeconfig": str(credential)},
            }
            proxy = Criproxy(lab, containerd.socket, config)
            often = {"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "4s"}
            kubelet = Kubelet(lab, proxy.socket, settings=often, kubeconfig=credential)
            containerd.start()
            proxy.start()
            kubelet.start()
            with CriClient(containerd.socket) as client:
                node = Cluster(plane, containerd, proxy, kubelet, client)
                wait_for(lambda: plane.exists(node.path), SOON_S, "the node to register")
                account = "/api/v1/namespaces/default/serviceaccounts/default"
                wait_for(lambda: plane.exists(account), SOON_S, "the default service account")
                say(f"the node has joined after {time.monotonic() - began_s:.1f} s")
                yield node
        finally:
            clean(lab)
    assert leftovers(lab) == []


def container_of(pod: Any) -> str:
    """The runtime's id of its first container."""
    return id_of(pod["status"]["containerStatuses"][0])


def id_of(status: Any) -> str:
    """The runtime's, of a container's status."""
    return str(status["containerID"].partition("//")[2])


class NothingDecided:
    feedback = Feedback(0.5)

    def decided(self) -> None:
        return None

    def offline_uids(self) -> frozenset[str]:
        return frozenset()


def _ref(pod: Any) -> PodRef:
    return PodRef(pod["metadata"]["uid"], pod["metadata"]["namespace"], pod["metadata"]["name"])
