"""A node whose box may harm online pods: pods of both classes behind a criproxy, and what its ladder does about it."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.lab import cri_client_pb2 as cri
from integration.lab import kubelet_cgroup
from integration.lab.client import CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy
from integration.lab.directory import cgroup_root
from integration.lab.usage import Cgroup

CLASS = "colocation.criproxy.io/class"


@dataclass
class HarmedNode:
    """`mounts`: what of the host every container sees where. The criproxy is started by `configure`."""

    root: str
    client: CriClient
    proxy: Criproxy
    mounts: Mapping[Path, Path]

    @property
    def box(self) -> Cgroup:
        return Cgroup(f"{self.root}/offline")

    @property
    def kubepods(self) -> Cgroup:
        return Cgroup(f"{self.root}/kubepods")

    def configure(self, config: Config) -> None:
        """Colocation is on; `config` says the rest."""
        self.proxy.configure({"colocation": {"enabled": True}, **config})
        self.proxy.start()

    def run(
        self,
        name: str,
        command: Sequence[str],
        cores: float | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """A pod with a container. Its name begins with its class; `cores` is the container's CPU limit."""
        kind = name.partition("-")[0]
        qos = "burstable" if kind == "online" else "besteffort"
        parent = kubelet_cgroup.make(f"{self.root}/kubepods/{qos}/pod{name}")
        pod = self.client.run_pod(name, uid=name, labels={CLASS: kind}, annotations=annotations, cgroup_parent=parent)
        limited = None
        if cores is not None:
            limited = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=int(cores * 100_000))
        self.client.run_container(pod, "main", command, resources=limited, mounts=self.mounts)
        return pod

    # --- what is seen of it ---

    def moves(self) -> list[tuple[str, str]]:
        """The ladder's, oldest first: the resource and its new rung."""
        return [(one["resource"], one["new"]) for one in self.proxy.events() if one["event"] == "ladder"]

    def last_reason(self) -> str:
        return str(self.harm()["moves"][0]["transition"]["reason"])

    def rung(self, resource: str) -> str:
        return str(self._rung(resource)["rung"])

    def is_below_the_prediction(self, resource: str) -> bool:
        """Convicted, and held to less than the prediction since: the experiment's floor is over."""
        found = self._rung(resource)
        return found["rung"] in ("squeezed", "closed") and found["share"] < 1.0

    def _rung(self, resource: str) -> Any:
        return next(one for one in self.harm()["rungs"] if one["resource"] == resource)

    def harm(self) -> Any:
        return self.proxy.status()["interference"]

    def signal(self, name: str) -> Any:
        return next((one for one in self.harm()["signals"] if one["name"] == name), None)

    def value(self, name: str) -> float:
        """A signal's; 0 where it has none now."""
        found = self.signal(name)
        return 0.0 if found is None else found["value"] or 0.0

    def is_well(self) -> bool:
        """What online pods say of themselves; nothing is not well."""
        percents = [one["percent"] for one in self.proxy.status()["services"]]
        return percents != [] and all(one is not None and one <= 100.0 for one in percents)


@contextlib.contextmanager
def harmed_node(lab: Path, mounts: Mapping[Path, Path] | None = None) -> Iterator[HarmedNode]:
    """A containerd that runs, and a criproxy that does not run yet; pods are gone afterwards."""
    containerd = Containerd(lab)
    containerd.start()
    root = kubelet_cgroup.make(cgroup_root(lab))
    proxy = Criproxy(lab, containerd.socket, {})
    with CriClient(containerd.socket) as runtime, CriClient(proxy.socket) as client:
        try:
            yield HarmedNode(root, client, proxy, mounts or {})
        finally:
            runtime.remove_all_pods()


@contextlib.contextmanager
def own_word(measure: Callable[[], float]) -> Iterator[int]:
    """A server of online's, on the node's network, whose pages are this measure; its port."""

    class Word(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{measure():.0f}\n".encode())

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Word) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
