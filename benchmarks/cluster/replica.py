"""`criproxy-cluster webhook` and `controller` as processes, with what their manifests give them."""

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
SERVER_NAME: Final = f"criproxy-cluster.{NAMESPACE}.svc"
MANIFESTS: Final = CHECKOUT / "cluster" / "manifests"
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-criproxy-cluster"
_SECRET: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets/criproxy-webhook-tls"
_START_S: Final = 60.0
_MOST_RSS: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


_AS_IN_ITS_IMAGE: Final = """
import runpy, sys
sys.modules["rich"] = None
runpy.run_module("criproxy_cluster", run_name="__main__", alter_sys=True)
"""
"""Structlog imports rich where it finds it: 13 MiB, which this checkout has for the demo, and the image has not."""


class Replica:
    """Webhook and controller. Its certificate's authority is in `ca` from the start on."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._directory = directory
        self.ca: Final = directory / "webhook-ca.crt"
        (self.port,) = free_ports(1)
        self._log = directory / "replica.log"
        self._processes: list[Process] = []

    def start(self) -> None:
        """Returns once the webhook is served and trusted. Raises LabError."""
        job = self._run(["certificates"], "criproxy-certificates")
        job.wait_until(lambda: not job.is_alive(), _START_S, "its certificate")
        for name, text in self._plane.call("GET", _SECRET)["data"].items():
            (self._directory / name).write_bytes(base64.b64decode(text))
        webhook = self._run(["webhook", "--port", str(self.port), "--certificates", str(self._directory)])
        self._processes = [webhook, self._run(["controller"], "criproxy-controller")]
        webhook.wait_until(lambda: "certificate_loaded" in self._log.read_text(), _START_S, "it to be served")
        self.ca.write_bytes(base64.b64decode(wait_for(self._bundle, _START_S, "the webhook's caBundle")))

    def _run(self, arguments: list[str], account: str = "") -> Process:
        environment = {"PYTHONPATH": str(CHECKOUT / "cluster"), "HOME": os.environ.get("HOME", "/")}
        if account:
            config = json.loads(self._plane.account_kubeconfig(NAMESPACE, account).read_text())
            config["contexts"][0]["context"]["namespace"] = NAMESPACE
            file = self._directory / f"{account}.conf"
            file.write_text(json.dumps(config))
            environment["KUBECONFIG"] = str(file)
        command = ["nice", "-n", str(NICE), sys.executable, "-c", _AS_IN_ITS_IMAGE, *arguments]
        return Process("criproxy-cluster", command, self._log, environment)

    def _bundle(self) -> str:
        found: str = self._plane.call("GET", _WEBHOOKS)["webhooks"][0]["clientConfig"].get("caBundle", "")
        return found

    def stop(self) -> None:
        for one in self._processes:
            one.stop()

    def cpu_s(self) -> float:
        """Of both."""
        return sum(cpu_seconds(one.pid) for one in self._processes)

    def rss_mib(self) -> float:
        """Of both."""
        return sum(rss_mib(one.pid) for one in self._processes)

    def most_rss_mib(self) -> float:
        """Of both. Source: proc(5), VmHWM."""
        statuses = [Path(f"/proc/{one.pid}/status").read_text() for one in self._processes]
        return sum(int(_MOST_RSS.findall(status)[0]) for status in statuses) / 1024

    def warnings(self) -> list[str]:
        return [one for one in self._log.read_text().splitlines() if '"level": "info"' not in one]
