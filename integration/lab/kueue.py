"""Kueue, the real one, as a process of this machine beside a lab's control plane.

Of its webhooks, the one of plain pods alone can be installed: Jobs that are made with `suspend: true` are admitted
without any.
"""

import base64
import json
import os
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from integration.lab.control_plane import ControlPlane
from integration.lab.ports import free_ports
from integration.lab.process import Process
from integration.programs import build

START_S = 120.0
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
CERTIFICATES = "etc/kueue/metrics/certs"
"""Kueue ends unless there is a certificate, whatever its configuration says. So it has a root of its own."""


class Kueue:
    """Of one control plane. `settings` are added to its configuration."""

    def __init__(self, plane: ControlPlane, settings: Mapping[str, Any] | None = None) -> None:
        """Its kinds are there once this returns. Raises LabError."""
        self._plane = plane
        self._root = plane.directory / "kueue"
        self._health, self._webhook = free_ports(2)
        certificates = self._root / CERTIFICATES
        certificates.mkdir(parents=True)
        both = plane.authority.sign("kueue", "/CN=localhost", "subjectAltName=DNS:localhost").read_bytes()
        for name in ("tls.crt", "tls.key"):
            (certificates / name).write_bytes(both)
        (self._root / "tmp").mkdir()
        configuration = {**_configuration(self._health, self._webhook), **(settings or {})}
        (self._root / "config.json").write_text(json.dumps(configuration))
        shutil.copyfile(self._account(), self._root / "kubeconfig")
        shutil.copyfile(build.find("kueue"), self._root / "program")
        (self._root / "program").chmod(0o755)
        kinds = str(build.manifests("kueue") / "crd" / "bases")
        plane.kubectl("apply", "--server-side", "-f", kinds)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", kinds)
        self._process: Process | None = None

    def start(self) -> None:
        """Returns once it is ready. Raises LabError."""
        own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        command = ["unshare", *own, f"--root={self._root}", "/program", "--config=/config.json"]
        log = self._root / "log"
        self._process = process = Process("kueue", [*command, "--kubeconfig=/kubeconfig"], log)
        process.wait_until(self._is_ready, START_S, "Kueue's readiness", 0.1)

    def take_pods(self) -> None:
        """The API server asks it from now on of pods that name a queue, as by Kueue's own manifest."""
        bundle = base64.b64encode(self._plane.authority.ca.read_bytes()).decode()
        webhook = {
            "name": "mpod.kb.io",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"https://localhost:{self._webhook}/mutate--v1-pod", "caBundle": bundle},
            "objectSelector": {"matchExpressions": [{"key": QUEUE_NAME, "operator": "Exists"}]},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "sideEffects": "None",
        }
        metadata = {"name": "kueue-mutating-webhook-configuration"}
        self._plane.call("POST", WEBHOOKS, {"metadata": metadata, "webhooks": [webhook]})

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/readyz", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _account(self) -> Path:
        """Its kubeconfig: of an account that may do all, as what Kueue may do is not what is tested."""
        plane = self._plane
        plane.kubectl("create", "namespace", "kueue-system")
        found = plane.account_kubeconfig("kueue-system", "kueue")
        binding = ("clusterrolebinding", "kueue", "--clusterrole=cluster-admin")
        plane.kubectl("create", *binding, "--serviceaccount=kueue-system:kueue")
        return found


def _configuration(health: int, webhook: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": f"/{CERTIFICATES}"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
    }
