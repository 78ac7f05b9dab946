"""Pods that come and go all the time, by clients that keep at it as kubelet does: list, compare, do the next step."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree
from integration.lab.client import CALL_S, STOP_S, Container, CriClient, Pod
from integration.lab.naming import spelled
from integration.lab.node import CLASS
from integration.lab.process import LabError

RETRY_S = 0.2
UID = "io.kubernetes.pod.uid"
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed; the times are CLOCK_MONOTONIC, `thread` is the caller's name."""

    thread: str
    method: str
    code: str
    details: str
    began_s: float
    ended_s: float


def is_offline(uid: str) -> bool:
    """Of a `Spec.of`."""
    return uid.startswith("offline-")


def place_of(root: str, uid: str) -> str:
    """Where a `Spec.of` belongs: in the box or where kubelet wants it."""
    return f"{root}/{'offline' if is_offline(uid) else 'kubepods/besteffort'}/pod{uid}"


class RecordingClient(CriClient):
    """A client that counts calls, keeps those that fail, and can hold all calls back. For many threads."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.failures: list[Failure] = []
        self.calls = 0
        self._turn = threading.Condition()
        self._held = False
        self._in_flight = 0

    def call(self, method: str, request: Message, timeout_s: float | None = CALL_S) -> Any:
        with self._turn:
            self._turn.wait_for(lambda: not self._held)
            self._in_flight += 1
            self.calls += 1
        began_s = time.monotonic()
        try:
            return super().call(method, request, timeout_s)
        except grpc.RpcError as error:
            who, code, details = threading.current_thread().name, error.code().name, error.details() or ""
            self.failures.append(Failure(who, method, code, details, began_s, time.monotonic()))
            raise
        finally:
            with self._turn:
                self._in_flight -= 1
                self._turn.notify_all()

    def probe(self) -> bool:
        """Whether Version is answered, by the way: neither counted nor held back."""
        try:
            super().call("Version", cri.VersionRequest(), CALL_S)
        except grpc.RpcError:
            return False
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this, no call is under way. Raises LabError when one does not end."""
        with self._turn:
            self._held = True
            quiet = self._turn.wait_for(lambda: not self._in_flight, STOP_S)
        try:
            if not quiet:
                raise LabError(f"{self._in_flight} calls have not ended after {STOP_S} s")
            yield
        finally:
            with self._turn:
                self._held = False
                self._turn.notify_all()


@dataclass(frozen=True, slots=True)
class Spec:
    """A pod as it should be. `cgroup_parent` as `naming` has it."""

    uid: str
    cgroup_parent: str
    labels: Mapping[str, str]

    @classmethod
    def of(cls, root: str, kind: str, name: str) -> Self:
        """A pod of a class (online, offline) whose uid begins with it, below `root`."""
        uid = f"{kind}-{name}"
        return cls(uid, f"{root}/kubepods/besteffort/pod{uid}", {CLASS: kind})

    def config(self, attempt: int) -> cri.PodSandboxConfig:
        host = cri.NamespaceOption(network=cri.NamespaceMode.NODE)
        return cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=self.uid, uid=self.uid, namespace="default", attempt=attempt),
            labels={UID: self.uid, **self.labels},
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=spelled(self.cgroup_parent),
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=host),
            ),
        )


def bring_up(client: CriClient, spec: Spec) -> Container:
    """One round: the pod's container, which runs; what stands in its way is removed. Raises grpc.RpcError."""
    sandboxes = _sandboxes(client, spec.uid)
    ready = [one for one in sandboxes if one.state == cri.PodSandboxState.SANDBOX_READY]
    for one in sandboxes:
        if one not in ready[:1]:
            client.stop_and_remove(one.id)
    if ready:
        pod = Pod(ready[0].id, spec.config(ready[0].metadata.attempt))
    else:
        config = spec.config(1 + max((one.metadata.attempt for one in sandboxes), default=-1))
        pod = Pod(client.call("RunPodSandbox", cri.RunPodSandboxRequest(config=config)).pod_sandbox_id, config)
    containers = client.call(
        "ListContainers", cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=pod.id))
    ).containers
    for one in containers:
        if one.state == cri.ContainerState.CONTAINER_RUNNING:
            return Container(one.id, pod)
    for one in containers:
        client.call("RemoveContainer", cri.RemoveContainerRequest(container_id=one.id))
    attempt = 1 + max((one.metadata.attempt for one in containers), default=-1)
    return client.run_container(pod, MAIN, ["sh", "-c", "while :; do sleep 0.1; done"], attempt=attempt)


def take_down(client: CriClient, spec: Spec) -> None:
    """One round: the pod is gone. Raises grpc.RpcError."""
    for one in _sandboxes(client, spec.uid):
        client.stop_and_remove(one.id)


def _sandboxes(client: CriClient, uid: str) -> list[cri.PodSandbox]:
    chosen = cri.PodSandboxFilter(label_selector={UID: uid})
    return list(client.call("ListPodSandbox", cri.ListPodSandboxRequest(filter=chosen)).items)


class Churn(threading.Thread):
    """Starts a pod, works with it, removes it, starts the next, until `finish`. `make(n)` is the n-th pod.

    `pods` counts those that have lived to their end. `error` is what ended the thread too early.
    """

    def __init__(self, name: str, client: CriClient, make: Callable[[int], Spec], seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.pods = 0
        self.error: Exception | None = None
        self._client = client
        self._make = make
        self._random = random.Random(seed)
        self._finished = threading.Event()
        self._ended = threading.Event()

    def finish(self) -> None:
        """Start no further pod, and wait until the last is gone; calls must succeed by now."""
        self._finished.set()
        self.join()

    def end(self) -> None:
        """Leave all as it is."""
        self._finished.set()
        self._ended.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._finished.is_set():
                self._live(self._make(self.pods))
                self.pods += 1
        except Exception as error:
            if not self._ended.is_set():
                self.error = error

    def _live(self, spec: Spec) -> None:
        Tree(spec.cgroup_parent).make()
        for _ in range(self._random.randint(1, 3)):
            self._insist(lambda: bring_up(self._client, spec))
            for _ in range(self._random.randint(0, 3)):
                self._insist(lambda: self._exec(spec))
            if self._random.random() < 0.5:
                self._insist(lambda: self._client.stop_container(bring_up(self._client, spec)))
            time.sleep(self._random.uniform(0, 0.2))
        self._insist(lambda: take_down(self._client, spec))
        Tree(spec.cgroup_parent).kill()  # as kubelet does with what a runtime that was killed has left
        Tree(spec.cgroup_parent).remove()

    def _exec(self, spec: Spec) -> None:
        answer = self._client.exec_sync(bring_up(self._client, spec), ["echo", "here"])
        if (answer.stdout, answer.exit_code) != (b"here\n", 0):
            raise LabError(f"exec in {spec.uid}: {answer}")

    def _insist(self, step: Callable[[], object]) -> None:
        while True:
            try:
                step()
            except grpc.RpcError:
                if self._ended.wait(RETRY_S):
                    raise
            else:
                return
