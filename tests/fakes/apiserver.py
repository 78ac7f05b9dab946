"""An API server: HTTPS with client certificates, on a thread of its own, and as wrong as a test wants it to be.

It keeps nodes and pods, patches and watches them, and forgets old versions. Certificates are made by openssl.
"""

import json
import queue
import re
import shutil
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

_NODE = re.compile(r"/api/v1/nodes/([^/]+)(/status)?")
_EVICTION = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/eviction")
_POD = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)")
_EVENTS = re.compile(r"/api/v1/namespaces/([^/]+)/events(?:/([^/]+))?")


class Pki:
    """An authority, and what it signs, in a folder. Kubelet's certificate is found through a link, as on a node."""

    def __init__(self, folder: Path):
        assert shutil.which("openssl"), "apt-get install openssl: it makes the certificates of this test"
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        _openssl("req", "-x509", *key, "-subj", "/CN=ca", "-keyout", f"{folder}/ca.key", "-out", f"{self.ca}")
        self.server = self.sign("server", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self.client = folder / "kubelet-client-current.pem"
        self.rotate("system:node:node1")

    def sign(self, name: str, subject: str, extension="") -> Path:
        """A certificate and its key, in one file."""
        key, request, signed = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        wanted = ("-addext", extension) if extension else ()
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", *curve, "-subj", subject, *wanted, "-keyout", f"{key}", "-out", f"{request}")
        authority = ("-CA", f"{self.ca}", "-CAkey", f"{self.folder}/ca.key", "-CAcreateserial", "-days", "2")
        _openssl("x509", "-req", "-in", f"{request}", *authority, "-copy_extensions", "copy", "-out", f"{signed}")
        both = self.folder / f"{name}.pem"
        both.write_bytes(signed.read_bytes() + key.read_bytes())
        return both

    def rotate(self, common_name: str) -> None:
        """As kubelet does it: a new file, and the link is pointed at it."""
        signed = self.sign(f"kubelet-client-{time.monotonic_ns()}", f"/O=system:nodes/CN={common_name}")
        link = self.folder / "next"
        link.symlink_to(signed)
        link.replace(self.client)

    def kubeconfig(self, port: int, **user: str) -> Path:
        file = self.folder / "kubelet.conf"
        user = user or {"client-certificate": str(self.client), "client-key": str(self.client)}
        server = f"https://127.0.0.1:{port}"
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"certificate-authority": "ca.pem", "server": server}}],
                    "users": [{"name": "u", "user": user}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        return file


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass
class Fault:
    """What happens to the next requests whose method and path match, instead of an answer, or to it.

    `status` answers with it; `raw` are bytes past HTTP; `cut` closes after that many bytes; `slow_s` waits before.
    """

    pattern: str
    status: int = 0
    body: bytes = b""
    headers: dict = field(default_factory=dict)
    raw: bytes | None = None
    cut: int | None = None
    slow_s: float = 0.0
    times: int = 1


@dataclass
class Seen:
    """A request as it came. `who` is the common name of the client's certificate."""

    method: str
    path: str
    query: dict
    body: dict
    headers: dict
    who: str


class FakeApiServer:
    """`requests` are all that came, `evictions` and `events` the bodies that were posted."""

    def __init__(self, pki: Pki, port: int = 0):
        self.pki, self.port = pki, port
        self.nodes: dict = {}
        self.pods: list = []
        self.requests: list[Seen] = []
        self.faults: list[Fault] = []
        self.evictions: list = []
        self.events: list = []
        self.budgets: dict = {}
        """Pod -> (status, body, headers) that its eviction is answered with."""
        self.eviction_versions = ("policy/v1", "policy/v1beta1")
        self.version = self.oldest = 100
        self.history: list = []
        self.watchers: list[queue.SimpleQueue] = []
        self.lock = threading.RLock()
        self.bookmark_s = 60.0
        self._server: _Server | None = None

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self):
        handler = type("Handler", (_Handler,), {"api": self})
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pki.server)
        context.load_verify_locations(self.pki.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server = server = _Server(("127.0.0.1", self.port), handler, context)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Gone, with all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self.end_watches()
            self._server.drop()
            self._server = None

    @contextmanager
    def running(self):
        self.start()
        try:
            yield self
        finally:
            self.stop()

    # --- what a test does to it ---------------------------------------------------------------------------------------

    def fail(self, pattern, status=0, **how):
        self.faults.append(Fault(pattern, status, **how))

    def put_node(self, name="node1", **fields):
        """A new Node, or one changed by a merge patch."""
        with self.lock:
            old = self.nodes.get(name, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}, "status": {}})
            return self._store(name, merged(old, fields), "MODIFIED" if name in self.nodes else "ADDED")

    def delete_node(self, name="node1"):
        with self.lock:
            node = self.nodes.pop(name)
            self._tell({"type": "DELETED", "object": self._stamped(node)})

    def forget_history(self):
        """As a compaction of etcd does: watches from before get 410."""
        with self.lock:
            self.version += 1
            self.oldest, self.history = self.version, []

    def send_event(self, event):
        """A line for all watches."""
        for watcher in list(self.watchers):
            watcher.put(event)

    def end_watches(self):
        self.send_event(None)

    def seen(self, method, pattern):
        return [one for one in self.requests if one.method == method and re.search(pattern, one.path)]

    # --- what it does -------------------------------------------------------------------------------------------------

    def _store(self, name, node, kind):
        self.nodes[name] = node = self._stamped(node)
        self._tell({"type": kind, "object": node})
        return node

    def _stamped(self, node):
        self.version += 1
        return merged(node, {"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}})

    def _tell(self, event):
        self.history.append((self.version, event))
        self.send_event(event)

    def fault_for(self, method, path):
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, f"{method} {path}"):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, seen):
        """Status, object and headers."""
        with self.lock:
            if node := _NODE.fullmatch(seen.path):
                return self._node(seen, node[1], node[2])
            if eviction := _EVICTION.fullmatch(seen.path):
                return self._evict(seen, eviction[2])
            if asked := _EVENTS.fullmatch(seen.path):
                return self._event(seen.body, asked[2])
            if seen.path == "/api/v1/nodes":
                name = seen.query.get("fieldSelector", "").removeprefix("metadata.name=")
                items = [node for node in self.nodes.values() if name in ("", node["metadata"]["name"])]
                return 200, {"kind": "NodeList", "metadata": self._list_meta(), "items": items}, {}
            if seen.path == "/api/v1/pods":
                return 200, self._pod_list(seen.query), {}
            return self._pod(seen.path)

    def _pod_list(self, query):
        """A page begins at the pod that `continue` counts. Of the field selector, only what it has of phases counts."""
        ended = [phase for phase in ("Succeeded", "Failed") if f"status.phase!={phase}" in query["fieldSelector"]]
        pods = [pod for pod in self.pods if pod.get("status", {}).get("phase") not in ended]
        first = int(query.get("continue", "0"))
        last = first + int(query.get("limit", len(pods)))
        meta = {**self._list_meta(), "continue": str(last) if last < len(pods) else ""}
        return {"kind": "PodList", "metadata": meta, "items": pods[first:last]}

    def _pod(self, path):
        asked = _POD.fullmatch(path)
        for pod in self.pods:
            if asked and pod["metadata"]["name"] == asked[2]:
                return 200, pod, {}
        return failure(404, "NotFound", "the server could not find the requested resource")

    def _event(self, body, name):
        """A new one, or, with its name, one that is changed."""
        if name is None:
            self.events.append(body)
            return 201, body, {}
        for index, one in enumerate(self.events):
            if one["metadata"]["name"] == name:
                self.events[index] = merged(one, body)
                return 200, self.events[index], {}
        return failure(404, "NotFound", f'events "{name}" not found')

    def _list_meta(self):
        return {"resourceVersion": str(self.version)}

    def _node(self, seen, name, status):
        if name not in self.nodes:
            return failure(404, "NotFound", f'nodes "{name}" not found', kind="nodes")
        if seen.method == "PATCH":
            patch = seen.body
            if status:  # takes metadata, too, but not the spec
                patch = {part: patch[part] for part in ("metadata", "status") if part in patch}
            return 200, self._store(name, merged(self.nodes[name], patch), "MODIFIED"), {}
        return 200, self.nodes[name], {}

    def _evict(self, seen, name):
        if seen.body["apiVersion"] not in self.eviction_versions:
            version = seen.body["apiVersion"]
            return failure(400, "BadRequest", f'no kind "Eviction" is registered for version "{version}" in scheme')
        if name in self.budgets:
            return self.budgets[name]
        pod = next((one for one in self.pods if one["metadata"]["name"] == name), None)
        if pod is None:
            return failure(404, "NotFound", f'pods "{name}" not found', kind="pods")
        if seen.body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
            return failure(409, "Conflict", "the UID in the precondition does not match", kind="pods")
        self.evictions.append(seen.body)
        self.pods.remove(pod)
        return 201, {"kind": "Status", "status": "Success"}, {}


def failure(code, reason, message, *, kind="", cause="", headers=None):
    """An answer with a Status."""
    details = {"kind": kind, "causes": [{"reason": cause, "message": message}] if cause else []}
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return code, {**body, "details": details}, headers or {}


BUDGET = failure(
    429,
    "TooManyRequests",
    "Cannot evict pod as it would violate the pod's disruption budget.",
    cause="DisruptionBudget",
)


def merged(old, patch):
    """JSON merge patch, and of the strategic one that conditions are merged by their type. Source: RFC 7386."""
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif name == "conditions" and isinstance(value, list):
            others = [one for one in old.get(name, []) if one["type"] not in {item["type"] for item in value}]
            new[name] = [*others, *value]
        else:
            new[name] = merged(old.get(name, {}), value)
    return new


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address, handler, context):
        super().__init__(address, handler)
        self.context, self.open = context, set()

    def handle_error(self, request, client_address):
        """A client that went away is none of a test's business."""

    def process_request_thread(self, request, client_address):
        try:  # the handshake is the thread's: a client that says nothing must not stop the server
            request.settimeout(10)
            request = self.context.wrap_socket(request, server_side=True)
        except OSError:
            return self.shutdown_request(request)
        self.open.add(request)
        try:
            return super().process_request_thread(request, client_address)
        finally:
            self.open.discard(request)

    def drop(self):
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(2)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApiServer

    def log_message(self, *_):
        pass

    def _serve(self):
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        subject = dict(pair[0] for pair in (self.connection.getpeercert() or {}).get("subject", ()))
        seen = Seen(self.command, parts.path, query, json.loads(data or b"{}"), dict(self.headers), "")
        seen.who = subject.get("commonName", "")
        self.api.requests.append(seen)
        fault = self.api.fault_for(self.command, self.path)
        if fault is not None and self._fault(fault):
            self.close_connection = True
        elif "watch" in query:
            self._watch(query)
        elif not seen.who and "Authorization" not in seen.headers:
            self._send(*failure(401, "Unauthorized", "Unauthorized"))
        else:
            status, body, headers = self.api.answer(seen)
            self._send(status, body, headers, cut=fault.cut if fault else None)

    do_GET = do_POST = do_PATCH = _serve

    def _fault(self, fault):
        """Whether it has answered."""
        time.sleep(fault.slow_s)
        if fault.raw is not None:
            self.wfile.write(fault.raw)
            return True
        if fault.status:
            self._send(fault.status, fault.body, fault.headers)
            return True
        return False

    def _send(self, status, body, headers, cut=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data if cut is None else data[:cut])
        self.close_connection = True

    def _watch(self, query):
        api = self.api
        events: queue.SimpleQueue = queue.SimpleQueue()
        name = query["fieldSelector"].removeprefix("metadata.name=")
        since = int(query["resourceVersion"])
        with api.lock:
            if since < api.oldest:
                events.put({"type": "ERROR", "object": failure(410, "Expired", "too old resource version")[1]})
                events.put(None)
            else:
                for version, event in api.history:
                    if version > since:
                        events.put(event)
            api.watchers.append(events)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end_s = time.monotonic() + float(query["timeoutSeconds"])
        try:
            while (left_s := end_s - time.monotonic()) > 0:
                try:
                    event = events.get(timeout=min(left_s, api.bookmark_s))
                except queue.Empty:
                    event = {
                        "type": "BOOKMARK",
                        "object": {"kind": "Node", "metadata": {"resourceVersion": str(api.version)}},
                    }
                if event is None:
                    break
                if isinstance(event, bytes) or event["object"].get("metadata", {}).get("name", name) == name:
                    self._chunk(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            api.watchers.remove(events)
            self.close_connection = True

    def _chunk(self, data):
        """In two writes, as a proxy may cut it anywhere."""
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            if part:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
