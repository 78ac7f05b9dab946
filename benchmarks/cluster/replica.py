"""`criproxy-cluster run` as a process, with the rights of its manifests' account."""

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import Final

from benchmarks.cluster.webhook import NICE
from benchmarks.node import cpu_seconds, rss_mib
from integration.lab.control_plane import ControlPlane, wait_for
from integration.lab.criproxy import CHECKOUT
from integration.lab.ports import free_ports
from integration.lab.process import Process

NAMESPACE: Final = "criproxy-system"
ACCOUNT: Final = "criproxy-cluster"
SERVER_NAME: Final = f"criproxy-cluster.{NAMESPACE}.svc"
MANIFESTS: Final = CHECKOUT / "cluster" / "manifests"
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/criproxy-cluster"
_START_S: Final = 60.0
_MOST_RSS: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


_AS_IN_ITS_IMAGE: Final = """
import runpy, sys
sys.modules["rich"] = None
runpy.run_module("criproxy_cluster", run_name="__main__", alter_sys=True)
"""
"""Structlog imports rich where it finds it: 13 MiB, which this checkout has for the demo, and the image has not."""


class Replica:
    """It makes its own certificate, whose authority's is in `ca` from the start on."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self.ca: Final = directory / "webhook-ca.crt"
        (self.port,) = free_ports(1)
        self._log = directory / "replica.log"
        config = json.loads(plane.account_kubeconfig(NAMESPACE, ACCOUNT).read_text())
        config["contexts"][0]["context"]["namespace"] = NAMESPACE
        self._kubeconfig = directory / "replica.conf"
        self._kubeconfig.write_text(json.dumps(config))
        self._process: Process | None = None

    def start(self) -> None:
        """Returns once the webhook is served and trusted. Raises LabError."""
        environment = {
            "KUBECONFIG": str(self._kubeconfig),
            "PYTHONPATH": str(CHECKOUT / "cluster"),
            "HOME": os.environ.get("HOME", "/"),
        }
        command = ["nice", "-n", str(NICE), sys.executable, "-c", _AS_IN_ITS_IMAGE, "run", "--port", str(self.port)]
        self._process = Process("criproxy-cluster", command, self._log, environment)
        self._process.wait_until(lambda: "certificate_loaded" in self._log.read_text(), _START_S, "its certificate")
        self.ca.write_bytes(base64.b64decode(wait_for(self._bundle, _START_S, "the webhook's caBundle")))

    def _bundle(self) -> str:
        found: str = self._plane.call("GET", _WEBHOOKS)["webhooks"][0]["clientConfig"].get("caBundle", "")
        return found

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def rss_mib(self) -> float:
        return rss_mib(self.pid)

    def most_rss_mib(self) -> float:
        """Source: proc(5), VmHWM."""
        return int(_MOST_RSS.findall(Path(f"/proc/{self.pid}/status").read_text())[0]) / 1024

    def warnings(self) -> list[str]:
        return [one for one in self._log.read_text().splitlines() if '"level": "info"' not in one]
