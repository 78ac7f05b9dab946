"""An API server that keeps objects of any kind: lists in pages, watches, patches, conflicts, roles.

While it is `running`, its clients come over plain HTTP; else they ask it in memory, in their own event loop.

As the real one does: each write makes a new version, a replaced object must have the last, `status` is written apart,
and watches from before `forget` get 410.
"""

import asyncio
import copy
import json
import queue
import re
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import httpx2
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>status|eviction))?"
)

APPLY = "application/apply-patch+yaml"
"""What is not there is made by it."""

ANSWERS_IN_S = 0.001
"""In memory."""


class FakeKube:
    """`requests` are (verb, resource, name) as RBAC sees them; `allowed` has such, or (verb, resource) for all names.

    None: everything is allowed.
    """

    def __init__(self):
        self.objects: dict = {}
        """(plural, namespace, name) -> object."""
        self.requests: list = []
        self.allowed: set | None = None
        self.version, self.oldest = 10, 0
        self.history: list = []
        self.watchers: list = []
        """(plural, what is called with each line of an event; None ends the answer, in memory an error cuts it)"""
        self.lock = threading.RLock()
        self.faults: list = []
        """[pattern of "METHOD path", status, how often, what is answered: None: an error in words]

        A list's further pages are "METHOD path?continue".
        """
        self.slow: dict = {}
        """Pattern of a name -> for how many seconds a patch of it lies there before it is done."""
        self.begun: list = []
        """The names that are patched, from when the patch has come."""
        self.odd: dict = {}
        """What is sent for some bytes of what would be sent, as what Python's own JSON can't hold."""
        self.hangs = ""
        """What has this in its path is never answered, in memory."""
        self.loses = ""
        """A patch that has this in its path is done, and its answer is lost, in memory."""
        self.answers_in_s = ANSWERS_IN_S
        self.page = 500
        self.absent: set = set()
        """Resources that the server does not know: a CRD that was removed."""
        self.cuts_watches = False
        """As a proxy that ends each answer at once."""
        self._server = None

    @contextmanager
    def running(self, port=0):
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = server = _Server(("127.0.0.1", port), handler)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            self.tell_watchers(None)
            server.drop()
            self._server = None

    def client(self):
        server = f"http://127.0.0.1:{self.port}" if self._server else "http://in-memory"
        cluster = Cluster(server=server, insecure=True)  # nothing is encrypted, and no authorities are read for it
        config = KubeConfig.from_one(user=User(token="t"), cluster=cluster, namespace="criproxy-system")
        transport = None if self._server else self.transport()
        return AsyncClient(
            config.get(), namespace="criproxy-system", field_manager="criproxy-cluster", transport=transport
        )

    def transport(self):
        return InMemory(self)

    def put(self, plural, body, namespace=""):
        """A new object, or another in its place."""
        with self.lock:
            key = (plural, namespace, body["metadata"]["name"])
            body = copy.deepcopy(body)
            body["metadata"].setdefault("uid", f"uid-{key[2]}")
            return self._store(key, body, "MODIFIED" if key in self.objects else "ADDED")

    def get(self, plural, name, namespace=""):
        return self.objects[plural, namespace, name]

    def remove(self, plural, name, namespace=""):
        with self.lock:
            gone = self.objects.pop((plural, namespace, name))
            self.version += 1
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self._tell(plural, {"type": "DELETED", "object": gone})

    def forget(self):
        """As a compaction does: watches that are open end, and those from before get 410."""
        with self.lock:
            self.version += 1
            self.oldest, self.history = self.version, []
            self.tell_watchers(None)

    def lies_s(self, name):
        """For how long a patch that has come now lies there."""
        self.begun.append(name)
        return sum(seconds for pattern, seconds in self.slow.items() if re.match(pattern, name))

    def fail(self, pattern, status, times=1, body=None):
        self.faults.append([pattern, status, times, body])

    def sent(self, body):
        data = json.dumps(body, ensure_ascii=False).encode()
        for usual, odd in self.odd.items():
            data = data.replace(usual, odd)
        return data

    def tell_watchers(self, event):
        for _, tell in list(self.watchers):
            tell(event)

    def seen(self, verb, resource):
        return [name for did, what, name in self.requests if (did, what) == (verb, resource)]

    def may(self, verb, resource, name):
        return self.allowed is None or not {(verb, resource), (verb, resource, name)}.isdisjoint(self.allowed)

    def _store(self, key, body, kind):
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = body
        self._tell(key[0], {"type": kind, "object": body})
        return body

    def _tell(self, plural, event):
        line = self.sent(event) + b"\n"
        self.history.append((self.version, plural, line))
        for wanted, tell in list(self.watchers):
            if wanted == plural:
                tell(line)

    def answer(self, method, path, query, kind, body):  # noqa: PLR0911, PLR0912
        """Status and object."""
        found = _PATH.fullmatch(path)
        if found is None:
            return failure(404, f"no such path: {path}")
        plural, name, part = found["plural"], found["name"] or "", found["part"] or ""
        namespace = found["namespace"] or ""
        resource = f"{plural}/{part}" if part else plural
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method)
        verb = verb or ("get" if name else "watch" if "watch" in query else "list")
        if verb in ("watch", "list") and (chosen := query.get("fieldSelector", "")).startswith("metadata.name="):
            name = chosen.partition("=")[2]
        with self.lock:
            self.requests.append((verb, resource, name))
            asked = f"{method} {path}{'?continue' if 'continue' in query else ''}"
            for fault in self.faults:
                if fault[2] > 0 and re.search(fault[0], asked):
                    fault[2] -= 1
                    return failure(fault[1], "as the test wants it") if fault[3] is None else (fault[1], fault[3])
            if not self.may(verb, resource, name):
                return forbidden(verb, resource, name)
            if plural in self.absent:
                return failure(404, "the server could not find the requested resource")
            if verb == "watch":
                return 200, {}
            if verb == "list":
                return self._list(plural, namespace, query)
            if part == "eviction":
                return self._evict((plural, namespace, name), body)
            if verb == "create":
                name = body["metadata"]["name"]
                if (plural, namespace, name) in self.objects:
                    return failure(409, f'{plural} "{name}" already exists')
                return 201, self.put(plural, body, namespace)
            if (plural, namespace, name) not in self.objects:
                return self._missing((plural, namespace, name), resource, kind, body)
            if verb == "get":
                return 200, self.objects[plural, namespace, name]
            return self._write(verb, (plural, namespace, name), part, kind, body)

    def _evict(self, key, body):
        """It goes at once, if it is the one that is meant."""
        meta = self.objects.get(key, {}).get("metadata")
        if meta is None:
            return failure(404, f"{key} not found")
        meant = (body.get("deleteOptions") or {}).get("preconditions") or {}
        if any(meta.get(name) != value for name, value in meant.items()):
            return failure(409, "the precondition has failed")
        self.remove(key[0], key[2], key[1])
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _missing(self, key, resource, kind, body):
        """What is not there can be applied, by whoever may create it."""
        plural, namespace, name = key
        if kind != APPLY:
            return failure(404, f'{plural} "{name}" not found')
        self.requests.append(("create", resource, name))
        if not self.may("create", resource, name):
            return forbidden("create", resource, name)
        return 201, self.put(plural, body, namespace)

    def watch(self, path, query, tell):
        """What is said at once, whether that is all, and what to take out of `watchers` at the end."""
        plural = path.rpartition("/")[2]
        watcher = (plural, tell)
        with self.lock:
            since = int(query.get("resourceVersion", "0"))
            over = since < self.oldest
            if over:
                lines = [json.dumps({"type": "ERROR", "object": failure(410, "too old")[1]}).encode() + b"\n"]
            elif self.cuts_watches:
                lines = []
            else:
                lines = [line for version, about, line in self.history if version > since and about == plural]
            self.watchers.append(watcher)
        return lines, over, watcher

    def _list(self, plural, namespace, query):
        items = [one for (p, n, _), one in sorted(self.objects.items()) if p == plural and namespace in ("", n)]
        first = int(query.get("continue", "0"))
        size = int(query.get("limit", self.page))
        more = str(first + size) if first + size < len(items) else ""
        meta = {"resourceVersion": str(self.version), "continue": more}
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items[first : first + size]}

    def _write(self, verb, key, part, kind, body):
        old = copy.deepcopy(self.objects[key])
        if verb == "update":
            if body["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
                return failure(409, "the object has been modified")
            new = copy.deepcopy(body)
            new["metadata"]["uid"] = old["metadata"]["uid"]
        elif kind == "application/json-patch+json":
            new = old
            if not all(patched(new, change) for change in body):
                return failure(422, "the test has failed")
        else:
            version = old["metadata"]["resourceVersion"]
            if body.get("metadata", {}).get("resourceVersion", version) != version:
                return failure(409, "the object has been modified")
            new = merged(old, body)
        if part == "status":
            meta = (
                new["metadata"] if key[0] == "pods" else old["metadata"]
            )  # of Pods, the API server lets it be written
            new = {**old, "metadata": meta, "status": new.get("status", {})}
        elif "status" in old:
            new["status"] = old["status"]
        if new == self.objects[key]:
            return 200, self.objects[key]  # no change, no version
        return 200, self._store(key, new, "MODIFIED")


def patched(document, change):
    """One change of a JSON patch, done in place. Whether it could be."""
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in change["path"].split("/")[1:]]
    for step in steps:
        document = document[int(step) if isinstance(document, list) else step]
    last = int(last) if isinstance(document, list) else last
    if change["op"] == "test":
        return document[last] == change["value"]
    if change["op"] == "remove":
        del document[last]
    else:
        document[last] = change["value"]
    return True


def failure(code, message):
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def forbidden(verb, resource, name):
    """In the words of a real one, by which a lack of rights differs from what a webhook refuses."""
    return failure(403, f'{resource} "{name}" is forbidden: User "us" cannot {verb} resource "{resource}"')


def merged(old, patch):
    """JSON merge patch; conditions by their type, as the strategic one does it."""
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif name == "conditions" and isinstance(value, list):
            mine = {one["type"]: one for one in old.get(name, [])}
            for one in value:
                mine[one["type"]] = {**mine.get(one["type"], {}), **one}
            new[name] = list(mine.values())
        else:
            new[name] = merged(old.get(name, {}), value)
    return new


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.open = set()

    def handle_error(self, request, client_address):
        """A client that went away is none of a test's business."""

    def process_request_thread(self, request, client_address):
        self.open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.open.discard(request)

    def drop(self):
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(2)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: FakeKube

    def log_message(self, *_):
        pass

    def _serve(self):
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.command == "PATCH":
            time.sleep(self.api.lies_s(parts.path.rpartition("/")[2]))
        with self.api.lock:
            kind = self.headers.get("Content-Type", "").partition(";")[0]
            status, body = self.api.answer(self.command, parts.path, query, kind, json.loads(data or b"{}"))
            data = self.api.sent(body)
        if "watch" in query and status == 200:
            return self._watch(parts.path, query)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _watch(self, path, query):
        api = self.api
        events: queue.SimpleQueue = queue.SimpleQueue()
        lines, over, watcher = api.watch(path, query, events.put)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in lines:
                self._chunk(line)
            while not (over or api.cuts_watches):
                try:
                    line = events.get(timeout=float(query.get("timeoutSeconds", "3600")))
                except queue.Empty:
                    break
                if line is None:
                    break
                self._chunk(line)
            self._chunk(b"")
        finally:
            api.watchers.remove(watcher)

    def _chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class InMemory(httpx2.AsyncBaseTransport):
    def __init__(self, api):
        self._api = api

    async def handle_async_request(self, request):
        api, path, query = self._api, request.url.path, dict(request.url.params)
        data = await request.aread()
        if api.hangs and api.hangs in path:
            await asyncio.Event().wait()
        await asyncio.sleep(ANSWERS_IN_S)
        if request.method == "PATCH":
            await asyncio.sleep(api.lies_s(path.rpartition("/")[2]))
        kind = request.headers.get("Content-Type", "").partition(";")[0]
        status, body = api.answer(request.method, path, query, kind, json.loads(data or b"{}"))
        if request.method == "PATCH" and api.loses and api.loses in path:
            raise httpx2.ReadError("cut", request=request)
        await asyncio.sleep(api.answers_in_s - ANSWERS_IN_S)
        headers = {"Content-Type": "application/json"}
        if "watch" in query and status == 200:
            return httpx2.Response(status, headers=headers, stream=_Events(api, path, query))
        return httpx2.Response(status, headers=headers, content=api.sent(body))


class _Events(httpx2.AsyncByteStream):
    def __init__(self, api, path, query):
        self._api = api
        self._come: asyncio.Queue = asyncio.Queue()
        self._lines, self._over, self._watcher = api.watch(path, query, self._come.put_nowait)
        self._lasts_s = float(query.get("timeoutSeconds", "3600"))

    async def __aiter__(self):
        for line in self._lines:
            yield line
        while not (self._over or self._api.cuts_watches):
            try:
                async with asyncio.timeout(self._lasts_s):
                    line = await self._come.get()
            except TimeoutError:
                return
            if line is None:
                return
            if isinstance(line, Exception):
                raise httpx2.ReadError("cut") from line
            yield line

    async def aclose(self):
        if self._watcher in self._api.watchers:
            self._api.watchers.remove(self._watcher)
