"""A ledger on a lab's control plane: its manifests, and replicas as processes of this machine.

They have the rights of their account. The API server finds the one that it asks by a URL on loopback, as there is no
Service network here.
"""

import base64
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence

from integration.lab.cluster_side import MANIFESTS, SYSTEM, WithCertificate, account_config, run
from integration.lab.control_plane import ControlPlane
from integration.lab.ports import free_ports
from integration.lab.process import Process

WEBHOOK = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/criproxy-ledger"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/criproxy-ledger"
PROBE_S = 5


def install(plane: ControlPlane) -> None:
    """Apply the manifests, beside base's. Raises LabError, also when kubectl has a warning for their user."""
    plane.kubectl("apply", "--warnings-as-errors", "-k", str(MANIFESTS / "ledger"))


class LedgerReplica(WithCertificate):
    """`criproxy-cluster ledger`, with a certificate of the plane's authority. `process`: once it has started."""

    process: Process

    def __init__(self, plane: ControlPlane, name: str, server: str = "", *, arguments: Sequence[str] = ()) -> None:
        super().__init__(plane, name, server)
        self._arguments = arguments
        self.port, self.grpc_port = free_ports(2)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.load_verify_locations(plane.authority.ca)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def start(self) -> None:
        config = account_config(self._plane, "criproxy-ledger", self._folder, self._server)
        ports = ["--port", str(self.port), "--grpc-port", str(self.grpc_port)]
        arguments = ["ledger", *ports, "--certificates", str(self._folder), *self._arguments]
        self.process = run(arguments, self._folder / "log", {"KUBECONFIG": str(config)})

    def is_ready(self) -> bool:
        try:
            return self.ask("/readyz")[0] == 200
        except OSError:
            return False

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Raises OSError."""
        request = urllib.request.Request(f"https://localhost:{self.port}{path}", body)
        try:
            with urllib.request.urlopen(request, timeout=PROBE_S, context=self._context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def leads(self) -> bool:
        holder = str(self._plane.call("GET", LEASE)["spec"].get("holderIdentity", ""))
        return holder.endswith(f"-{self.process.pid}")

    def take_binds(self) -> None:
        """The API server asks this one from now on."""
        bundle = base64.b64encode(self._plane.authority.ca.read_bytes()).decode()
        configuration = self._plane.call("GET", WEBHOOK)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"] = {"url": f"https://localhost:{self.port}/bind", "caBundle": bundle}
        self._plane.call("PUT", WEBHOOK, configuration)

    def hang(self) -> None:
        self.process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.signal(signal.SIGCONT)
