"""A real control plane: etcd, kube-apiserver, kube-scheduler and kube-controller-manager, on loopback ports of its own.

Nodes are let do what Kubernetes lets them (the Node authorizer and NodeRestriction); everybody else is under RBAC.
"""

import base64
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.lab.ports import free_ports
from integration.lab.process import LabError, Process, all_pids, argv_of, kill_all
from integration.lab.throwaway import is_throwaway
from integration.programs import build

START_S = 900 if is_throwaway() else 180
ANSWER_S = 30
PROFILES = tuple({"schedulerName": name} for name in ("default-scheduler", "koord-scheduler"))
"""The scheduler as ever, which also goes by the name that Koordinator's manifests give theirs."""
ADMIN = "/O=system:masters/CN=admin"
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class ApiError(Exception):
    """The API server's answer is an error: `code`, and what it says."""

    def __init__(self, code: int, body: str) -> None:
        super().__init__(f"{code}: {body[:500]}")
        self.code = code


class Authority:
    """Signs certificates, in `directory`, for two days. `clock`: see `ControlPlane`."""

    def __init__(self, directory: Path, clock: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.ca = directory / "ca.crt"
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        subject = ("-subj", "/CN=kubernetes", "-days", "2")
        _openssl("req", "-x509", *_EC, *subject, "-keyout", directory / "ca.key", "-out", self.ca, env=clock)

    def sign(self, name: str, subject: str, extension: str = "", days: int = 2) -> Path:
        """A certificate and its key in one file, NAME.pem."""
        key, request, signed = (self.directory / f"{name}.{end}" for end in ("key", "csr", "crt"))
        wanted = ("-addext", extension) if extension else ()
        _openssl("req", *_EC, "-subj", subject, *wanted, "-keyout", key, "-out", request)
        signer = ("-CA", self.ca, "-CAkey", self.directory / "ca.key", "-CAcreateserial", "-days", str(days))
        _openssl("x509", "-req", "-in", request, *signer, "-copy_extensions", "copy", "-out", signed, env=self._clock)
        both = self.directory / f"{name}.pem"
        unseen = both.with_suffix(".new")
        unseen.write_bytes(signed.read_bytes() + key.read_bytes())
        unseen.rename(both)
        return both


class ControlPlane:
    """A control plane in `directory` (a lab's). `pids` are its processes', by program.

    `clock`: the environment in which its certificates are made (`clocks.wrong_clock`), so that they have begun by
    another one's clock.
    """

    def __init__(self, directory: Path, clock: Mapping[str, str] | None = None) -> None:
        self.directory = directory.absolute() / "control-plane"
        self.authority = Authority(self.directory / "pki", clock)
        self._ports = dict(zip(("etcd", "peer", "api", "scheduler", "manager"), free_ports(5), strict=True))
        self._processes: dict[str, Process] = {}
        extension = "subjectAltName=IP:127.0.0.1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
        self.authority.sign("apiserver", "/CN=kube-apiserver", extension)
        _openssl("genrsa", "-out", self.directory / "pki" / "accounts.key", "2048")
        self.admin = self.kubeconfig("admin", ADMIN)
        self._context = self.context_of("admin")
        self.audit = self.directory / "audit.log"
        """What was written to Nodes, Leases and our kinds, a JSON object a line; see `_audit_policy`."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    @property
    def pids(self) -> Mapping[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    # --- credentials ------------------------------------------------------------------------------------------------

    def kubeconfig(self, name: str, subject: str) -> Path:
        """A kubeconfig for a client certificate of this subject (/O=GROUP/CN=USER), signed now."""
        both = self.authority.sign(name, subject)
        file = self.directory / f"{name}.conf"
        file.write_text(json.dumps(_kubeconfig(self.url, self.authority.ca, {
            "client-certificate": str(both), "client-key": str(both)
        })))  # fmt: skip
        return file

    def node_kubeconfig(self, node: str) -> Path:
        """Kubelet's own: a member of system:nodes."""
        return self.kubeconfig(f"kubelet-{node}", f"/O=system:nodes/CN=system:node:{node}")

    def account_kubeconfig(self, namespace: str, account: str) -> Path:
        """That of a service account, which is made if it is not there; RBAC says what it may do. Raises LabError."""
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        try:
            self.call("POST", where, {"metadata": {"name": account}})
        except ApiError as error:
            if error.code != 409:
                raise
        request = {"spec": {"audiences": [], "expirationSeconds": 86400}}
        token = self.call("POST", f"{where}/{account}/token", request)["status"]["token"]
        file = self.directory / f"account-{namespace}-{account}.conf"
        file.write_text(json.dumps(_kubeconfig(self.url, self.authority.ca, {"token": token})))
        return file

    def context_of(self, name: str) -> ssl.SSLContext:
        # Not ssl.create_default_context, which from Python 3.13 on wants more of a certificate.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.authority.ca)
        context.load_cert_chain(self.directory / "pki" / f"{name}.pem")
        return context

    # --- its life ---------------------------------------------------------------------------------------------------

    def start(self, *, lifecycle: bool = True, scheduler: bool = True) -> None:
        """Start everything, and return once it answers. `lifecycle`: nodes without a kubelet are found not ready.

        Raises LabError when a part ends, or after minutes.
        """
        self.start_api()
        manager = [
            f"--service-account-private-key-file={self.directory / 'pki' / 'accounts.key'}",
            f"--root-ca-file={self.authority.ca}",
            *("--kube-api-qps=200", "--kube-api-burst=400"),  # Jobs of a second each would wait for its 20
            *([] if lifecycle else ["--controllers=*,-nodelifecycle"]),
        ]
        self._start_client("kube-controller-manager", "manager", manager)
        if scheduler:
            self.start_scheduler()

    def start_scheduler(self, profiles: Sequence[Mapping[str, Any]] | None = None) -> None:
        """In the place of the one that runs. `profiles`: those of a KubeSchedulerConfiguration; None: `PROFILES`."""
        if self._is_alive("kube-scheduler"):
            self._processes["kube-scheduler"].stop()
        config = self._scheduler_config(PROFILES if profiles is None else profiles)
        self._start_client("kube-scheduler", "scheduler", [f"--config={config}"])

    def start_api(self) -> None:
        """Etcd and the API server, unless they run."""
        etcd, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        if not self._is_alive("etcd"):
            urls = ("--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer)
            first = ("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")
            self._start("etcd", "--unsafe-no-fsync", "--data-dir", self.directory / "etcd", *urls, *first)
            self._processes["etcd"].wait_until(lambda: _answers(f"{etcd}/health"), START_S, "etcd's health")
        if self._is_alive("kube-apiserver"):
            return
        pki = self.directory / "pki"
        self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--secure-port={self._ports['api']}",
            "--bind-address=127.0.0.1",
            # Nobody's (RFC 5737): one of the loopback is refused, and without any, a node must have a default route.
            "--advertise-address=192.0.2.1",
            "--endpoint-reconciler-type=none",  # it would publish that
            f"--cert-dir={self.directory / 'certificates'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={self.authority.ca}",
            f"--service-account-key-file={pki / 'accounts.key'}",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--enable-aggregator-routing",  # a webhook is found by endpoints: nothing here forwards a Service
            "--allow-privileged",
            f"--audit-policy-file={self._audit_policy()}",
            f"--audit-log-path={self.audit}",
            "--audit-log-mode=blocking",
        )
        self._processes["kube-apiserver"].wait_until(self._is_ready, START_S, "readiness", 0.1)

    def kill_api(self) -> None:
        """SIGKILL the API server; etcd keeps what it knew."""
        self._processes["kube-apiserver"].kill()

    def _is_alive(self, name: str) -> bool:
        return name in self._processes and self._processes[name].is_alive()

    def _is_ready(self) -> bool:
        try:
            return self._ask("GET", "/readyz") == b"ok"
        except ssl.SSLCertVerificationError:
            raise
        except (OSError, ApiError):
            return False

    def _start(self, program: str, *arguments: str | Path) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        argv = [find_program(program), *arguments]
        self._processes[program] = Process(program, argv, self.directory / f"{program}.log")

    def _start_client(self, program: str, port: str, arguments: Sequence[str]) -> None:
        kubeconfig = self.kubeconfig(program, f"/O=system:masters/CN=system:{program}")
        own = ("--bind-address=127.0.0.1", f"--secure-port={self._ports[port]}", "--leader-elect=false")
        self._start(program, f"--kubeconfig={kubeconfig}", f"--cert-dir={self.directory / program}", *own, *arguments)

    def _audit_policy(self) -> Path:
        """Each request that has written, with its body, when it is answered."""
        kinds = {"": ["nodes", "nodes/status"], "coordination.k8s.io": ["leases"], "colocation.criproxy.io": ["*"]}
        resources = [{"group": group, "resources": names} for group, names in kinds.items()]
        written = {"level": "Request", "verbs": ["update", "patch", "create"], "resources": resources}
        file = self.directory / "audit-policy.json"
        file.write_text(json.dumps({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [written, {"level": "None"}],
        }))  # fmt: skip
        return file

    def _scheduler_config(self, profiles: Sequence[Mapping[str, Any]]) -> Path:
        file = self.directory / "scheduler.json"
        file.write_text(json.dumps({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.directory / "kube-scheduler.conf")},
            "leaderElection": {"leaderElect": False},
            "profiles": list(profiles),
        }))  # fmt: skip
        return file

    # --- the API, as its administrator ------------------------------------------------------------------------------

    def call(
        self, method: str, path: str, body: Any = None, *, content: str = "application/json", context: Any = None
    ) -> Any:
        """An answer, parsed. `context`: whose certificate it is (the administrator's). Raises ApiError or OSError."""
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self._ask(method, path, data, content, context))

    def merge(self, path: str, body: Any, *, context: Any = None) -> Any:
        """As `call`, with a merge patch."""
        return self.call("PATCH", path, body, content="application/merge-patch+json", context=context)

    def exists(self, path: str) -> bool:
        try:
            self.call("GET", path)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _ask(self, method: str, path: str, data: bytes | None = None, content: str = "", context: Any = None) -> bytes:
        """As each client of Kubernetes does, it asks again when it is told to, as after a CRD was made."""
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": content} if data else {}, method=method
        )
        ends_s = time.monotonic() + ANSWER_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_S, context=context or self._context) as answer:
                    body: bytes = answer.read()
                    return body
            except urllib.error.HTTPError as error:
                later_s = error.headers.get("Retry-After") if error.code == 429 else None
                if later_s is None or time.monotonic() > ends_s:
                    raise ApiError(error.code, error.read().decode(errors="replace")) from error
            time.sleep(float(later_s))

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints. Raises LabError."""
        command = [str(find_program("kubectl")), f"--kubeconfig={self.admin}", *arguments]
        home = {**os.environ, "HOME": str(self.directory)}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=home, check=False)
        if done.returncode != 0:
            raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def find_program(name: str) -> Path:
    """One of the programs: in one of the directories of $CONTROL_PLANE, or the one that is built. Raises LabError."""
    if chosen := os.environ.get("CONTROL_PLANE"):
        found = [path for one in chosen.split(os.pathsep) if (path := Path(one).absolute() / name).exists()]
        if not found:
            raise LabError(f"CONTROL_PLANE is {chosen!r}, and {name} is in none of its directories")
        return found[0]
    return build.find(name)


def end(directory: Path) -> None:
    """End the control plane of the lab in `directory`, whoever started it."""
    own = str(directory.absolute() / "control-plane")
    kill_all(lambda: [pid for pid in all_pids() if any(own in word for word in argv_of(pid))])


def _kubeconfig(url: str, ca: Path, user: Mapping[str, str]) -> dict[str, Any]:
    data = base64.b64encode(ca.read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url, "certificate-authority-data": data}}],
        "users": [{"name": "me", "user": dict(user)}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "current-context": "lab",
    }


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _openssl(*arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        raise LabError(f"openssl {arguments[0]}: {done.stderr.strip()} (apt-get install openssl)")


def wait_for(condition: Any, timeout_s: float, what: str) -> Any:
    """As `process.wait_until`, where the API server may be away for a moment."""
    end_s, last = time.monotonic() + timeout_s, ""
    while time.monotonic() < end_s:
        try:
            if found := condition():
                return found
        except (OSError, ApiError) as error:
            last = f" ({error})"
        time.sleep(0.1)
    raise LabError(f"waited {timeout_s:g} s in vain for {what}{last}")
