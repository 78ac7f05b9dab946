"""Stock schedulers that fight for full nodes, with kubelets that are played: what becomes of the pods.

Each node has `SLOTS` of a resource that it lends. Each scheduler always has pods that wait. A pod that is bound is
admitted as kubelet does it: what does not fit ends for good (`OutOf…`), the rest ends after a while and makes room.
"""

import heapq
import http.client
import json
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from integration.lab.control_plane import ANSWER_S, ApiError, ControlPlane, find_program
from integration.lab.ports import free_ports
from integration.lab.process import Process

CPU = "kubernetes.io/batch-cpu"
SLOTS = 8
SLOT = 1000
WRITERS = 6
WAITING = 20
"""Pods of each scheduler."""

ADMITTED_S = (0.02, 0.08)
"""From when kubelet sees a pod until it decides on it."""

PODS = "/api/v1/namespaces/default/pods"


class Api:
    """The API server on a connection that is kept, for one thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self._address = plane.url.removeprefix("https://")
        self._context: ssl.SSLContext = plane.context_of("admin")
        self._made: http.client.HTTPSConnection | None = None

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """Raises ApiError or OSError."""
        try:
            self._made = made = self._made or http.client.HTTPSConnection(
                self._address, timeout=ANSWER_S, context=self._context
            )
            made.request(method, path, None if body is None else json.dumps(body), {"Content-Type": content})
            answer = made.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._made = None
            raise OSError(str(error)) from error
        if answer.status >= 400:
            raise ApiError(answer.status, data.decode(errors="replace"))
        return json.loads(data)


class Crowd:
    """`names` are the schedulers'; each keeps `WAITING` pods. Pods live for `life_s` on average.

    `failed` has the reasons of kubelet's refusals, with when each was; `placed` how many were admitted.
    """

    def __init__(self, plane: ControlPlane, nodes: int, names: tuple[str, ...], life_s: float) -> None:
        self._plane = plane
        self._nodes = [f"node-{number}" for number in range(nodes)]
        self._names = names
        self._life_s = life_s
        self._schedulers: list[Process] = []
        self._lock = threading.Condition()
        self._jobs: list[tuple[float, int, Callable[[Api], None]]] = []
        self._numbers = count()
        self._on_node: dict[str, set[str]] = {name: set() for name in self._nodes}
        self._known: dict[str, str] = {}
        """By uid, pods that are there: the scheduler's name while it waits, "" after."""
        self._ended: set[str] = set()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failed: list[tuple[float, str]] = []
        self.placed = 0
        self.waits_s: list[float] = []
        self._made_s: dict[str, float] = {}
        self.errors: Counter[str] = Counter()

    # --- its life -----------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Nodes, each full of pods that nobody has scheduled. Raises ApiError."""
        api = Api(self._plane)
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", CPU: str(SLOTS * SLOT)}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        for name in self._nodes:
            api.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
            merge = "application/merge-patch+json"
            api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, merge)
            api.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, merge)
        for number in range(len(self._nodes) * SLOTS):
            api.call("POST", PODS, _pod("", self._nodes[number % len(self._nodes)]))

    def start(self) -> None:
        for name in self._names:
            self._schedulers.append(start_scheduler(self._plane, name))
        for target in (self._watch, *[self._write] * WRITERS, self._feed):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            self._threads.append(thread)

    def run(self, seconds: float) -> "Tally":
        """What has happened within these seconds."""
        failed, placed, waits = len(self.failed), self.placed, len(self.waits_s)
        time.sleep(seconds)
        return Tally(self.placed - placed, len(self.failed) - failed, sorted(self.waits_s[waits:]))

    def end(self) -> None:
        self._stop.set()
        with self._lock:
            self._lock.notify_all()
        for thread in self._threads:
            thread.join(ANSWER_S)
        for one in self._schedulers:
            one.kill()

    @property
    def schedulers(self) -> list[Process]:
        return self._schedulers

    # --- kubelets -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError, http.client.HTTPException, ValueError):
                self._watch_once()

    def _watch_once(self) -> None:
        listed = Api(self._plane).call("GET", PODS)
        for pod in listed["items"]:
            self._see(pod)
        context = self._plane.context_of("admin")
        made = http.client.HTTPSConnection(self._plane.url.removeprefix("https://"), timeout=90, context=context)
        version = listed["metadata"]["resourceVersion"]
        made.request("GET", f"{PODS}?watch=1&allowWatchBookmarks=1&resourceVersion={version}")
        answer = made.getresponse()
        while not self._stop.is_set():
            if not (line := answer.readline()):
                return
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            if event["type"] == "DELETED":
                with self._lock:
                    self._known.pop(event["object"]["metadata"]["uid"], None)
            elif event["type"] != "BOOKMARK":
                self._see(event["object"])

    def _see(self, pod: Any) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        node = pod["spec"].get("nodeName", "")
        with self._lock:
            if uid in self._ended or (node and node not in self._on_node):
                return
            before = self._known.get(uid)
            if not node:
                if before is None:
                    self._known[uid] = pod["spec"]["schedulerName"]
                return
            self._known[uid] = ""
            if before == "" or pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
                return
            if made_s := self._made_s.pop(name, None):
                self.waits_s.append(time.monotonic() - made_s)
            self._later(random.uniform(*ADMITTED_S), lambda api: self._admit(api, uid, name, node))

    def _admit(self, api: Api, uid: str, name: str, node: str) -> None:
        with self._lock:
            fits = len(self._on_node[node]) < SLOTS
            if fits:
                self._on_node[node].add(uid)
                self.placed += 1
                self._later(random.expovariate(1 / self._life_s), lambda api: self._end(api, uid, name, node))
            else:
                self.failed.append((time.monotonic(), node))
                self._ended.add(uid)
        if not fits:
            status = {"phase": "Failed", "reason": f"OutOf{CPU}"}
            api.call("PATCH", f"{PODS}/{name}/status", {"status": status}, "application/merge-patch+json")
            api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _end(self, api: Api, uid: str, name: str, node: str) -> None:
        with self._lock:
            self._on_node[node].discard(uid)
            self._ended.add(uid)
        status = {"phase": "Succeeded"}
        api.call("PATCH", f"{PODS}/{name}/status", {"status": status}, "application/merge-patch+json")
        api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    # --- who makes pods -----------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        api = Api(self._plane)
        while not self._stop.wait(0.02):
            with self._lock:
                waiting = Counter(self._known.values())
            for name in self._names:
                for _ in range(min(WAITING - waiting[name], 5)):
                    with suppress(OSError, ApiError):
                        made = api.call("POST", PODS, _pod(name))
                        with self._lock:
                            self._made_s[made["metadata"]["name"]] = time.monotonic()
                            self._known.setdefault(made["metadata"]["uid"], name)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, job: Callable[[Api], None]) -> None:
        """With the lock."""
        heapq.heappush(self._jobs, (time.monotonic() + seconds, next(self._numbers), job))
        self._lock.notify()

    def _write(self) -> None:
        api = Api(self._plane)
        while True:
            with self._lock:
                while not self._stop.is_set():
                    wait_s = self._jobs[0][0] - time.monotonic() if self._jobs else 1.0
                    if wait_s <= 0:
                        break
                    self._lock.wait(wait_s)
                if self._stop.is_set():
                    return
                *_, job = heapq.heappop(self._jobs)
            try:
                job(api)
            except (OSError, ApiError) as error:
                self.errors[str(error)[:80]] += 1


class Tally:
    """`failed`: what kubelet has refused of what was bound. `waits_s`, sorted: from when it was made to its bind."""

    def __init__(self, placed: int, failed: int, waits_s: list[float]) -> None:
        self.placed = placed
        self.failed = failed
        self.waits_s = waits_s

    @property
    def failed_ratio(self) -> float:
        return self.failed / max(self.placed + self.failed, 1)

    def __str__(self) -> str:
        wait_s = self.waits_s[len(self.waits_s) // 2] if self.waits_s else float("nan")
        return f"{self.placed} placed, {self.failed} failed ({self.failed_ratio:.1%}), wait p50 {wait_s:.2f} s"


def start_scheduler(plane: ControlPlane, name: str, extenders: Sequence[Any] = ()) -> Process:
    """A stock kube-scheduler with one profile of this name. `extenders`: as its configuration has them."""
    kubeconfig = plane.kubeconfig(name, "/O=system:masters/CN=system:kube-scheduler")
    file = plane.directory / f"{name}.json"
    file.write_text(json.dumps({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": name}],
        "extenders": [*extenders],
    }))  # fmt: skip
    (port,) = free_ports(1)
    own = [f"--cert-dir={plane.directory / name}", "--bind-address=127.0.0.1", f"--secure-port={port}"]
    program: list[str | Path] = [find_program("kube-scheduler"), f"--config={file}", *own]
    return Process(name, program, plane.directory / f"{name}.log")


def _pod(scheduler: str, node: str = "") -> Any:
    resources = {"requests": {CPU: str(SLOT)}, "limits": {CPU: str(SLOT)}}
    spec = {"containers": [{"name": "c", "image": "busybox", "resources": resources}]}
    where = {"nodeName": node} if node else {"schedulerName": scheduler}
    labels = {"colocation.criproxy.io/class": "offline"}
    meta = {"generateName": f"{scheduler or 'first'}-", "labels": labels}
    return {"metadata": meta, "spec": {**spec, **where, "automountServiceAccountToken": False}}
