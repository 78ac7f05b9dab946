"""The cluster's side of criproxy on a lab's control plane: its manifests, and replicas as processes of this machine.

The API server finds the webhook by a URL on loopback, as there is no Service network here; all else is as the manifests
say, the rights of the replicas' account, too.
"""

import base64
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.lab.control_plane import ControlPlane
from integration.lab.criproxy import CHECKOUT
from integration.lab.ports import free_ports
from integration.lab.process import Process

MANIFESTS = CHECKOUT / "cluster" / "manifests"
SYSTEM = "criproxy-system"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-criproxy-cluster"
SERVING = f"/api/v1/namespaces/{SYSTEM}/secrets/criproxy-webhook-tls"
CERTIFIED_S = 60.0
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/criproxy-cluster"


def install(plane: ControlPlane) -> None:
    """Apply the manifests. Raises LabError, also when kubectl has a warning for their user."""
    for name in ("base", "koordinator"):
        plane.kubectl("apply", "--warnings-as-errors", "-k", str(MANIFESTS / name))


def install_with(plane: ControlPlane, *components: str) -> list[str]:
    """Apply the base with these components, and return the arguments that the controller has then. Raises LabError."""
    plane.kubectl("apply", "--warnings-as-errors", "-k", str(kustomization(plane, *components)))
    where = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/criproxy-controller"
    (container,) = plane.call("GET", where)["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def kustomization(plane: ControlPlane, *components: str) -> Path:
    """The folder of one of a user's own: the base with these components."""
    folder = plane.directory / "installed"
    folder.mkdir(exist_ok=True)

    def relative(name: str) -> str:
        return os.path.relpath(MANIFESTS / name, folder.resolve())

    made = {"resources": [relative("base")], "components": [relative(name) for name in components]}
    (folder / "kustomization.yaml").write_text(json.dumps(made))
    return folder


def account_config(plane: ControlPlane, account: str, folder: Path, server: str = "") -> Path:
    """A kubeconfig with the rights of an account of the manifests. `server`: see `Replica`."""
    config: dict[str, Any] = json.loads(plane.account_kubeconfig(SYSTEM, account).read_text())
    config["contexts"][0]["context"]["namespace"] = SYSTEM
    config["clusters"][0]["cluster"]["server"] = server or plane.url
    file = folder / f"{account}.conf"
    file.write_text(json.dumps(config))
    return file


def run(arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None, *, before: str = "") -> Process:
    """`criproxy-cluster` with these arguments."""
    main = f"{before}\nimport runpy; runpy.run_module('criproxy_cluster', run_name='__main__', alter_sys=True)"
    path = os.pathsep.join([str(CHECKOUT / "cluster"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, **(env or {})}
    return Process("criproxy-cluster", [sys.executable, "-c", main, *arguments], log, environment)


def leader(plane: ControlPlane) -> str:
    """Whom the Lease names; "": nobody."""
    return str(plane.call("GET", LEASE)["spec"].get("holderIdentity", ""))


TRUSTED = ("--trusted-namespace", "default", "--trusted-namespace", "batch")
"""The lab's pods have no network of their own, and offline ones may not have the node's."""


class Processes:
    """The processes of a replica, as one thing that lives and ends. `pid` is the controller's."""

    def __init__(self, webhook: Process, controller: Process) -> None:
        self.webhook, self.controller = webhook, controller
        self.pid = controller.pid

    def stop(self) -> None:
        for one in (self.controller, self.webhook):
            one.stop()

    def kill(self) -> None:
        for one in (self.controller, self.webhook):
            one.kill()

    def signal(self, number: signal.Signals) -> None:
        for one in (self.controller, self.webhook):
            one.signal(number)

    def is_alive(self) -> bool:
        return self.controller.is_alive() and self.webhook.is_alive()


class WithCertificate:
    """A replica that serves with a certificate of the plane's authority, which lies in its folder."""

    def __init__(self, plane: ControlPlane, name: str, server: str = "") -> None:
        """`server`: the URL by which it finds the API server; "": the plane's own."""
        self._plane = plane
        self._server = server
        self._folder = plane.directory / name
        self._folder.mkdir(parents=True, exist_ok=True)
        both = plane.authority.sign(name, "/CN=localhost", "subjectAltName=DNS:localhost").read_bytes()
        self.mount({"tls.crt": both, "tls.key": both})

    def mount(self, files: Mapping[str, bytes]) -> None:
        """Its certificate and key are these from now on, as kubelet mounts a Secret."""
        for name, content in files.items():
            (self._folder / name).write_bytes(content)


class Replica(WithCertificate):
    """`criproxy-cluster webhook`, with a certificate of the plane's authority, and `criproxy-cluster controller`, with
    the rights of its account. `process` is there once it was started.
    """

    process: Processes

    def __init__(self, plane: ControlPlane, name: str, server: str = "") -> None:
        super().__init__(plane, name, server)
        self.port, self.metrics_port = free_ports(2)

    @property
    def log(self) -> Path:
        """Of both of its processes."""
        return self._folder / "log"

    def start(
        self,
        env: Mapping[str, str] | None = None,
        *,
        before: str = "",
        controller_arguments: Sequence[str] = ("controller",),
        owners: bool = False,
    ) -> None:
        """`env` is added to its environment, `before` is Python that each process runs first. `owners`: the webhook
        follows their book, with the rights of its account.
        """
        certificates = ["--port", str(self.port), "--certificates", str(self._folder)]
        account = {}
        if owners:
            config = account_config(self._plane, "criproxy-webhook", self._folder, self._server)
            account = {"KUBECONFIG": str(config)}
        arguments = ["webhook", *certificates, *TRUSTED, *(["--owners"] if owners else [])]
        webhook = run(arguments, self.log, {**account, **(env or {})}, before=before)
        config = account_config(self._plane, "criproxy-controller", self._folder, self._server)
        arguments = [*controller_arguments, "--metrics-port", str(self.metrics_port)]
        controller = run(arguments, self.log, {"KUBECONFIG": str(config), **(env or {})}, before=before)
        self.process = Processes(webhook, controller)

    def certify(self, env: Mapping[str, str] | None = None, *, before: str = "") -> None:
        """Its certificate is what `criproxy-cluster certificates` makes now: the API server finds it by `serve`.

        Raises LabError.
        """
        account = {"KUBECONFIG": str(account_config(self._plane, "criproxy-certificates", self._folder))}
        job = run(["certificates"], self.log, {**account, **(env or {})}, before=before)
        job.wait_until(lambda: not job.is_alive(), CERTIFIED_S, "its certificate")
        data = self._plane.call("GET", SERVING)["data"]
        self.mount({name: base64.b64decode(text) for name, text in data.items()})

    def leads(self) -> bool:
        return leader(self._plane).endswith(f"-{self.process.pid}")

    def take_webhooks(self) -> None:
        """The API server asks this one from now on."""
        bundle = base64.b64encode(self._plane.authority.ca.read_bytes()).decode()
        configuration = self._plane.call("GET", WEBHOOKS)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"] = {"url": f"https://localhost:{self.port}/convert", "caBundle": bundle}
        self._plane.call("PUT", WEBHOOKS, configuration)

    def serve(self) -> None:
        """The API server finds this one by the Service of the manifests, at an address of this machine."""
        services, endpoints = (f"/api/v1/namespaces/{SYSTEM}/{kind}" for kind in ("services", "endpoints"))
        service = self._plane.merge(f"{services}/criproxy-cluster", {"spec": {"selector": None}})
        port = {"name": service["spec"]["ports"][0].get("name", ""), "port": self.port}
        subset = {"addresses": [{"ip": own_address()}], "ports": [port]}
        body = {"metadata": {"name": "criproxy-cluster"}, "subsets": [subset]}
        if self._plane.exists(f"{endpoints}/criproxy-cluster"):
            self._plane.call("PUT", f"{endpoints}/criproxy-cluster", body)
        else:
            self._plane.call("POST", endpoints, body)


def own_address() -> str:
    """One of this machine's that is not loopback's: Endpoints may not have such. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))
        return str(one.getsockname()[0])
