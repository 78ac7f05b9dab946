"""containerd restarts on a busy node: criproxy's first answers are containerd's own, or UNAVAILABLE.

Kubelet ends a pod whose sandbox is not listed, not found or not ready ("No ready sandbox for pod can be found").
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from integration.lab import containerd as containerd_lab
from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree
from integration.lab.churn import Spec, bring_up
from integration.lab.client import Container, CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import ENGINES, QUICK, Config, Criproxy
from integration.lab.cut import RECOVERING
from integration.lab.directory import cgroup_root
from integration.lab.node import Node
from integration.lab.process import wait_until

pytestmark = pytest.mark.timeout(900)

Say = Callable[[str], object]
Outcome = tuple[str, str]
"""A status code's name with its details, or OK with what kubelet reads of the answer."""

CLASS = "colocation.criproxy.io/class"
RESTARTS = 4
BURNERS = 3
AFTERWARDS_S = 3.0
WELL_S = 300.0
CONFIG: Config = {"colocation": {"enabled": True}, "control": QUICK, "cpu": {"min_cores": 0.5}}


def of_pods(answer: cri.ListPodSandboxResponse) -> str:
    return " ".join(sorted(f"{pod.metadata.uid}:{pod.state}" for pod in answer.items))


def of_pod(answer: cri.PodSandboxStatusResponse) -> str:
    return f"{answer.status.metadata.uid}:{answer.status.state}"


def of_containers(answer: cri.ListContainersResponse) -> str:
    return " ".join(sorted(f"{one.pod_sandbox_id}/{one.metadata.name}:{one.state}" for one in answer.containers))


def of_status(answer: cri.StatusResponse) -> str:
    return " ".join(f"{one.type}:{one.status}" for one in answer.status.conditions if one.type == "RuntimeReady")


@dataclass(eq=False)
class Watcher(threading.Thread):
    """Asks at one socket, over and over, what kubelet asks to learn which pods there are. `seen`: by what was asked."""

    socket: Path
    containers: list[Container]
    seen: dict[str, Counter[Outcome]] = field(default_factory=dict)
    rounds: int = 0

    def __post_init__(self) -> None:
        super().__init__(name="watcher", daemon=True)
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        with CriClient(self.socket) as client:
            while not self._ended.wait(0.01):
                self.look(client)
                self.rounds += 1

    def look(self, client: CriClient) -> None:
        ask = self._ask
        ask(client, "Status", cri.StatusRequest(), of_status)
        ask(client, "ListPodSandbox", cri.ListPodSandboxRequest(), of_pods)
        ask(client, "ListContainers", cri.ListContainersRequest(), of_containers)
        for one in self.containers:
            request = cri.PodSandboxStatusRequest(pod_sandbox_id=one.pod.id)
            ask(client, "PodSandboxStatus", request, of_pod, one.pod.config.metadata.uid)

    def _ask(self, client: CriClient, method: str, request: Message, read: Callable[[Any], str], of: str = "") -> None:
        try:
            outcome = "OK", read(client.call(method, request))
        except grpc.RpcError as error:
            outcome = error.code().name, error.details() or ""
        self.seen.setdefault(f"{method} {of}".strip(), Counter())[outcome] += 1


def astray(proxied: Watcher, direct: Watcher, steady: dict[str, Outcome]) -> list[str]:
    """What the proxy answered that is neither the whole truth, nor containerd's own answer, nor UNAVAILABLE."""
    return [
        f"{what}: {code}: {text} ({count} times); steady: {steady[what]}; directly: {dict(direct.seen[what])}"
        for what, outcomes in proxied.seen.items()
        for (code, text), count in outcomes.items()
        if code != "UNAVAILABLE"
        and (code, text) not in {steady[what], ("UNKNOWN", RECOVERING)}
        and (code, text) not in direct.seen[what]
    ]


@dataclass(frozen=True, slots=True)
class Stage:
    containerd: Containerd
    criproxy: Criproxy
    containers: list[Container]

    def watcher(self, socket: Path) -> Watcher:
        return Watcher(socket, self.containers)

    def steady(self) -> dict[str, Outcome]:
        """What containerd answers at rest."""
        watcher = self.watcher(self.containerd.socket)
        with CriClient(self.containerd.socket) as client:
            watcher.look(client)
        return {what: outcome for what, outcomes in watcher.seen.items() for outcome in outcomes}


@pytest.fixture(params=ENGINES)
def stage(lab: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with Node.before(lab, {**CONFIG, "proxy": {"engine": request.param}}) as node:
        kinds = ("online", "offline", "online", "offline")
        containers = [node.run(kind, str(number)) for number, kind in enumerate(kinds)]
        yield Stage(node.containerd, node.proxy, containers)


@contextlib.contextmanager
def busy_cpus() -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def test_containerd_that_restarts_under_load_loses_no_pod_in_the_proxy_s_answers(stage: Stage, say: Say) -> None:
    steady = stage.steady()
    assert steady["ListPodSandbox"] == ("OK", "0:0 1:0 2:0 3:0"), "all are ready"
    direct, *proxied = watchers = [
        stage.watcher(socket) for socket in (stage.containerd.socket, *[stage.criproxy.socket] * 2)
    ]
    with busy_cpus():
        for watcher in watchers:
            watcher.start()
        for number in range(RESTARTS):
            if number % 2:
                stage.containerd.stop()
            else:
                stage.containerd.kill()
            stage.containerd.start()
            time.sleep(AFTERWARDS_S)
        rounds = [watcher.rounds for watcher in watchers]
        wait_until(
            lambda: all(w.rounds > before + 1 for w, before in zip(watchers, rounds, strict=True)), WELL_S, "answers"
        )
        for watcher in watchers:
            watcher.end()
    for name, watcher in zip(("directly", "proxied", "proxied"), watchers, strict=True):
        kinds = Counter[str]()
        for what, outcomes in watcher.seen.items():
            for (code, text), count in outcomes.items():
                kinds["steady" if (code, text) == steady[what] else f"{code} {text[:80]}"] += count
        say(f"{name}: {watcher.rounds} rounds; {dict(kinds)}")
    assert [line for watcher in proxied for line in astray(watcher, direct, steady)] == []
    assert stage.steady() == steady, "no pod has been lost"
    assert all(("OK" in {code for code, _ in outcomes}) for w in watchers for outcomes in w.seen.values())


def shim_of(pause: int) -> int:
    """The pid of the shim whose child this is."""
    return int(Path(f"/proc/{pause}/stat").read_text().rpartition(")")[2].split()[1])


def test_pod_whose_shim_is_slow_is_lost_by_a_restart_of_containerd_itself_and_criproxy_says_what_it_says(
    stage: Stage, say: Say
) -> None:
    """containerd 1.6 ends a pod whose shim does not answer within 5 s of its start, as on an overloaded node.

    Source: containerd 1.6, runtime/v2/shim_load.go; io.containerd.timeout.shim.load.
    """
    slow, *others = stage.containers
    with CriClient(stage.containerd.socket) as client:
        pause = client.pid(slow.pod)
        standing = {one.pod.config.metadata.uid: client.pid(one.pod) for one in others}
    shim = shim_of(pause)
    stage.containerd.kill()
    os.kill(shim, signal.SIGSTOP)
    try:
        stage.containerd.start()
    finally:
        os.kill(shim, signal.SIGCONT)
    wait_until(stage.criproxy.is_ready, WELL_S, "readiness", stage.criproxy.log)
    direct, proxied = (stage.watcher(socket) for socket in (stage.containerd.socket, stage.criproxy.socket))
    for watcher in (direct, proxied):
        with CriClient(watcher.socket) as client:
            watcher.look(client)
    say(f"directly: {direct.seen['ListPodSandbox']}, {direct.seen['PodSandboxStatus 0']}")
    assert proxied.seen == direct.seen
    assert all(Path(f"/proc/{pid}").exists() for pid in standing.values()), "the other pods run on"


SLOW_S = 8.0
PATIENT = """
[timeouts]
  "io.containerd.timeout.shim.load" = "30s"
"""


def test_pod_whose_shim_is_slow_lives_where_containerd_waits_for_longer(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy that the docs name."""
    monkeypatch.setattr(containerd_lab, "CONFIG", containerd_lab.CONFIG + PATIENT)
    containerd = Containerd(lab)
    containerd.start()
    parent = f"{cgroup_root(lab)}/kubepods/besteffort/pod0"
    Tree(parent).make()
    with CriClient(containerd.socket) as client:
        pod = bring_up(client, Spec("0", parent, {})).pod
        pause = client.pid(pod)
        shim = shim_of(pause)
        containerd.kill()
        os.kill(shim, signal.SIGSTOP)
        waking = threading.Timer(SLOW_S, os.kill, (shim, signal.SIGCONT))
        waking.start()
        try:
            containerd.start()
        finally:
            waking.join()
        (listed,) = client.list_pods()
    assert listed.state == cri.PodSandboxState.SANDBOX_READY
    assert Path(f"/proc/{pause}").exists()
