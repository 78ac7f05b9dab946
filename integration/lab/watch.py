"""Watches pods for whatever a restart would leave: other ids, attempts or states, an ended process, another cgroup."""

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import grpc

from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import of_process
from integration.lab.client import CriClient

INTERVAL_S = 1.0
REPORT_S = 30.0


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """A sandbox or container as the runtime lists it; `attempt` counts those before it."""

    id: str
    attempt: int
    running: bool


@dataclass(frozen=True, slots=True)
class Life:
    """All that the runtime knows of a pod, what has ended too, sorted by id."""

    sandboxes: tuple[Incarnation, ...]
    containers: tuple[Incarnation, ...]


def lives(client: CriClient) -> dict[str, Life]:
    """The pods in the runtime, by uid. Raises grpc.RpcError."""
    containers: dict[str, list[Incarnation]] = {}
    for one in client.call("ListContainers", cri.ListContainersRequest()).containers:
        found = Incarnation(one.id, one.metadata.attempt, one.state == cri.ContainerState.CONTAINER_RUNNING)
        containers.setdefault(one.pod_sandbox_id, []).append(found)
    pods: dict[str, list[Incarnation]] = {}
    for pod in client.list_pods():
        found = Incarnation(pod.id, pod.metadata.attempt, pod.state == cri.PodSandboxState.SANDBOX_READY)
        pods.setdefault(pod.metadata.uid, []).append(found)
    return {
        uid: Life(
            tuple(sorted(sandboxes)), tuple(sorted(c for sandbox in sandboxes for c in containers.get(sandbox.id, [])))
        )
        for uid, sandboxes in pods.items()
    }


class Watch(threading.Thread):
    """Looks once a second until `end`; `changes` says what was not as at the start, each thing once.

    `pods` are names by uid. `checks` are views of others than the runtime: each yields what is wrong, and may raise
    OSError or HTTPException when nobody answers. `looks` counts, by view ("runtime" too), those that were answered.
    """

    def __init__(
        self,
        client: CriClient,
        pods: Mapping[str, str],
        checks: Mapping[str, Callable[[], Iterator[str]]],
        say: Callable[[str], object],
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self.changes: list[str] = []
        self._client = client
        self._pods = pods
        self._checks = {"runtime": self._check_runtime, **checks}
        self.looks = dict.fromkeys(self._checks, 0)
        self._say = say
        self._ended = threading.Event()
        self._began_s = time.monotonic()
        self._first = lives(client)
        self._cgroups = {pid: (uid, of_process(pid)) for uid in pods for pid in self._pids(self._first[uid])}

    @property
    def seconds(self) -> float:
        """For how long it has watched."""
        return time.monotonic() - self._began_s

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        report_s = REPORT_S
        while not self._ended.wait(INTERVAL_S):
            for view, check in self._checks.items():
                self._look(view, check)
            if self.seconds >= report_s:
                report_s += REPORT_S
                looks = ", ".join(f"{view} {count}" for view, count in self.looks.items())
                self._say(f"watched {self.seconds:.0f} s (looks: {looks}): {self.changes or 'nothing has changed'}")

    def _look(self, view: str, check: Callable[[], Iterator[str]]) -> None:
        try:
            # Who is down, or going down, tells nothing.
            with contextlib.suppress(OSError, grpc.RpcError, http.client.HTTPException):
                for change in check():
                    self._note(f"{view}: {change}")
                self.looks[view] += 1
        except Exception as error:  # it would end the thread, and the watch be none
            self._note(f"{view}: {error!r}")

    def _note(self, change: str) -> None:
        if change not in self.changes:
            self.changes.append(change)

    def _check_runtime(self) -> Iterator[str]:
        for pid, (uid, expected) in self._cgroups.items():
            try:
                cgroups = of_process(pid)
            except OSError:
                yield f"process {pid} of {self._pods[uid]} has ended"
                continue
            if cgroups != expected:
                yield f"process {pid} of {self._pods[uid]} was in {expected} and is in {cgroups}"
        now = lives(self._client)
        for uid, name in self._pods.items():
            if now.get(uid) != self._first[uid]:
                yield f"{name} was {self._first[uid]} and is {now.get(uid)}"

    def _pids(self, life: Life) -> list[int]:
        sandboxes = [self._client.pause_pid_of(sandbox.id) for sandbox in life.sandboxes]
        return sandboxes + [self._client.pid_of(container.id) for container in life.containers]
