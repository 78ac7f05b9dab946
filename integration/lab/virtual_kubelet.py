"""virtual-kubelet, the real one with its mock provider, as a process of this machine beside a lab's control plane.

Its pods run at once, and never end.
"""

import json
from pathlib import Path
from typing import Any

from integration.lab.control_plane import ControlPlane
from integration.lab.ports import free_ports
from integration.lab.process import Process
from integration.programs import build

START_S = 60.0
NODE = "virtual"


class VirtualKubelet:
    """A virtual node of one control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        """Raises LabError."""
        self._plane = plane
        self._folder = plane.directory / "virtual-kubelet"
        self._folder.mkdir()
        room = {"cpu": "16", "memory": "64Gi", "pods": "20"}
        (self._folder / "provider.json").write_text(json.dumps({NODE: room}))
        self._process: Process | None = None

    def start(self) -> None:
        """Returns once the node is ready. Raises LabError."""
        metrics, port = free_ports(2)
        config = self._plane.kubeconfig("virtual-kubelet", "/O=system:masters/CN=virtual-kubelet")
        arguments: list[str | Path] = ["--kubeconfig", config, "--nodename", NODE, "--provider", "mock"]
        arguments += ["--provider-config", self._folder / "provider.json", "--metrics-addr", f"127.0.0.1:{metrics}"]
        both = str(self._plane.authority.sign("virtual-node", "/CN=localhost", "subjectAltName=DNS:localhost"))
        serving = {"APISERVER_CERT_LOCATION": both, "APISERVER_KEY_LOCATION": both}  # it ends without
        own = {"VKUBELET_POD_IP": "127.0.0.1", "KUBELET_PORT": str(port), **serving}
        process = Process("virtual-kubelet", [build.find("virtual-kubelet"), *arguments], self._folder / "log", own)
        self._process = process
        process.wait_until(self._is_ready, START_S, "the virtual node", 0.1)
        taints = self.node()["spec"].get("taints") or []  # nobody takes this one away where nodes' lives do not count
        kept = [one for one in taints if one["key"] != "node.kubernetes.io/not-ready"]
        self._plane.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": kept}})

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def node(self) -> Any:
        return self._plane.call("GET", f"/api/v1/nodes/{NODE}")

    def _is_ready(self) -> bool:
        if not self._plane.exists(f"/api/v1/nodes/{NODE}"):
            return False
        conditions = self.node().get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
