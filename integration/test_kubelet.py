"""A real kubelet with static pods, directly on containerd and through criproxy: what becomes of them, and where.

One node serves all tests, in their order, while a watch looks at its standing pods for five minutes: through restarts
of everything, nothing may befall them. Pods of a test's own come and go beside them.
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.lab.cgroups import Tree, hierarchies, of_process, version
from integration.lab.clean import clean, leftovers
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Criproxy
from integration.lab.directory import cgroup_root, claimed
from integration.lab.kubelet import SYSCTLS, Kubelet, PodStatus, find_kubelet, static_pod
from integration.lab.process import LabError, all_pids, argv_of, is_running, wait_until
from integration.lab.watch import Watch, lives

pytestmark = pytest.mark.timeout(1200)  # the first run builds kubelet

Say = Callable[[str], object]

WATCH_S = 300.0
POLL_S = 0.5
ALONE_S = 30.0
"""Kubelet 1.20 gives up 5 s after its start when no runtime answers."""
WELL_S = 120.0
RESTART_S = 180.0
"""For what kubelet finds at its next look at a pod, at most a minute later."""
GONE_S = 300.0
"""Kubelet collects ended sandboxes once a minute, from its start on, and containers in the round before."""

CLASS = "colocation.criproxy.io/class"
OFFLINE = {CLASS: "offline"}
BUSY = ("sh", "-c", "while :; do sleep 0.2; done")
AMOUNTS = {"cpu": "100m", "memory": "64Mi"}
QOS: Mapping[str, tuple[str, Mapping[str, Mapping[str, str]]]] = {
    "besteffort": ("/besteffort", {}),
    "burstable": ("/burstable", {"requests": AMOUNTS, "limits": {"cpu": "500m", "memory": "128Mi"}}),
    "guaranteed": ("", {"requests": AMOUNTS, "limits": AMOUNTS}),
}
"""Where kubelet puts a pod below kubepods, and the resources that make it so."""
STANDING = {
    **{
        f"{kind}-{qos}": static_pod(f"{kind}-{qos}", BUSY, labels={CLASS: kind}, resources=resources)
        for kind in ("online", "offline")
        for qos, (_, resources) in QOS.items()
    },
    "system-besteffort": static_pod("system-besteffort", namespace="kube-system", labels=OFFLINE),
}
"""The pods that run all the time."""

Places = dict[tuple[str, str], dict[str, str]]
"""By pod and "sandbox" or "container": the cgroup per controller, below the lab's, without uid and id."""


@dataclass(frozen=True)
class Node:
    """Kubelet and its runtime, with criproxy in between or not. `client` is one of containerd itself."""

    containerd: Containerd
    criproxy: Criproxy | None
    kubelet: Kubelet
    client: CriClient

    @property
    def root(self) -> str:
        return self.kubelet.cgroup_root

    @property
    def proxy(self) -> Criproxy:
        assert self.criproxy is not None
        return self.criproxy

    def boot(self) -> list[str]:
        """Start everything in the worst order, and the standing pods; returns how kubelet fared before the end."""
        fates = [self.fate_of_kubelet()]
        if self.criproxy:
            self.criproxy.start(until_ready=False)
            fates.append(self.fate_of_kubelet())
        self.containerd.start()
        self.wait_well()
        for manifest in STANDING.values():
            self.kubelet.add_pod(manifest)
        for name in STANDING:
            self.kubelet.wait_running(name)
        return fates

    def fate_of_kubelet(self) -> str:
        """What becomes of a kubelet that is started now, without a runtime that answers."""
        if not self.kubelet.is_alive():
            self.kubelet.start(until_ready=False)
        try:
            wait_until(lambda: not self.kubelet.is_alive(), ALONE_S, "kubelet's end")
        except LabError:
            return "waits"
        return "ends"

    def wait_well(self) -> None:
        """Start what does not run, as a service manager does, and wait until all of it is ready."""
        if not self.containerd.is_alive():
            self.containerd.start()
        if self.criproxy:
            if not self.criproxy.is_alive():
                self.criproxy.start()
            wait_until(self.criproxy.is_ready, WELL_S, "criproxy's readiness", self.criproxy.log)
        if not self.kubelet.is_alive():
            self.kubelet.start()
        wait_until(self.kubelet.is_ready, WELL_S, "kubelet's readiness", self.kubelet.log, POLL_S)

    def run(self, manifest: Mapping[str, Any]) -> PodStatus:
        """Start a pod of the test's own."""
        self.kubelet.add_pod(manifest)
        return self.kubelet.wait_running(manifest["metadata"]["name"])

    @contextlib.contextmanager
    def running(self, manifest: Mapping[str, Any]) -> Iterator[PodStatus]:
        pod = self.run(manifest)
        yield pod
        self.kubelet.remove_pod(pod.name)
        self.kubelet.wait_gone(pod)

    def standing(self) -> dict[str, PodStatus]:
        return {name: pod for name, pod in self.kubelet.pods().items() if name in STANDING}

    def pids(self, pod: PodStatus) -> dict[tuple[str, str], int]:
        """The processes of what runs of a pod, by "sandbox" or "container" and id."""
        life = lives(self.client)[pod.uid]
        sandboxes = {("sandbox", one.id): self.client.pause_pid_of(one.id) for one in life.sandboxes if one.running}
        containers = {("container", one.id): self.client.pid_of(one.id) for one in life.containers if one.running}
        return sandboxes | containers

    def places(self, pod: PodStatus) -> Places:
        found: Places = {}
        for (kind, own_id), pid in self.pids(pod).items():
            found[pod.name, kind] = {
                controller: path.removeprefix(self.root).replace(pod.uid, "UID").replace(own_id, "ID")
                for controller, path in of_process(pid).items()
            }
        return found

    def kubelets_cgroups(self, pod: PodStatus, qos: str) -> list[Path]:
        """The directories that kubelet itself makes for a pod."""
        return Tree(f"{self.root}/kubepods{QOS[qos][0]}/pod{pod.uid}").directories([version()])

    def pods_in_box(self) -> set[str]:
        """The uids that have a directory in the box, in any hierarchy."""
        boxes = [hierarchy.directory(f"{self.root}/offline") for hierarchy in hierarchies()]
        return {directory.name.removeprefix("pod") for box in boxes for directory in box.glob("pod*")}

    def pods_in_status(self) -> set[str]:
        return {pod["uid"] for pod in self.proxy.status()["pods"]}

    def calls(self) -> dict[tuple[str, str], int]:
        """What kubelet has called so far, by method and status code."""
        text = self.proxy.http("/metrics")[1]
        counts: dict[tuple[str, str], int] = {}
        for labels, count in re.findall(r"^criproxy_calls_total\{(.*)\} (\S+)$", text, re.MULTILINE):
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            key = (named["method"], named["code"])
            counts[key] = counts.get(key, 0) + int(float(count))
        return counts


@dataclass(frozen=True)
class Direct:
    """What there was to see of the standing pods directly on containerd, in a lab of its own before."""

    fates: list[str]
    places: Places
    kubelets_cgroups: Mapping[str, int]


@pytest.fixture(scope="module")
def say(pytestconfig: pytest.Config) -> Say:
    """Writes a line to the terminal, past pytest's capture."""
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    began_s = time.monotonic()
    return lambda text: reporter and reporter.write_line(f"  [{time.monotonic() - began_s:3.0f} s] {text}")


@pytest.fixture(scope="module")
def machine(say: Say, pytestconfig: pytest.Config) -> list[str]:
    """What belongs to the machine's own kubelet, before any of the lab's ran."""
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        say(f"kubelet: {find_kubelet()}")
    return machines_kubelet()


@pytest.fixture(scope="module")
def direct(say: Say, machine: list[str]) -> Direct:
    with claimed() as lab:
        try:
            containerd = Containerd(lab)
            with CriClient(containerd.socket) as client:
                node = Node(containerd, None, Kubelet(lab, containerd.socket), client)
                fates = node.boot()
                pods = node.standing()
                places = {place: where for pod in pods.values() for place, where in node.places(pod).items()}
                cgroups = {name: len(node.kubelets_cgroups(pod, qos_of(name))) for name, pod in pods.items()}
        finally:
            clean(lab)
    assert leftovers(lab) == []
    say(f"{len(pods)} pods ran directly on containerd")
    return Direct(fates, places, cgroups)


@pytest.fixture(scope="module")
def booted(say: Say, direct: Direct) -> Iterator[tuple[Node, list[str]]]:
    """The node with criproxy, all standing pods running, and how kubelet fared before it had a runtime.

    Not beside the direct one: a kubelet removes the logs of the other's pods.
    """
    with claimed() as lab:
        try:
            containerd = Containerd(lab)
            criproxy = Criproxy(lab, containerd.socket, {"colocation": {"enabled": True}})
            with CriClient(containerd.socket) as client:
                node = Node(containerd, criproxy, Kubelet(lab, criproxy.socket), client)
                fates = node.boot()
                say(f"{len(STANDING)} pods run through criproxy")
                yield node, fates
        finally:
            clean(lab)
    assert leftovers(lab) == []


@pytest.fixture(scope="module")
def watch(booted: tuple[Node, list[str]], say: Say) -> Iterator[Watch]:
    """Watches the standing pods from now on."""
    node, _ = booted
    pods = node.standing()
    offline = {pod.uid for name, pod in pods.items() if name.startswith("offline")}
    own_cgroups = {name: node.kubelets_cgroups(pod, qos_of(name)) for name, pod in pods.items()}

    def kubelet() -> Iterator[str]:
        for name, pod in node.standing().items():
            if pod.restarts:
                yield f"{name} was restarted {pod.restarts} times"
        for name, directories in own_cgroups.items():
            for directory in directories:
                if not directory.is_dir():
                    yield f"kubelet's own {directory} of {name} has gone"

    def criproxy() -> Iterator[str]:
        code, body = node.proxy.http("/status")
        if code != 200:
            raise ConnectionError(code)
        status = json.loads(body)
        if not status["runtime"]["ready"]:
            raise ConnectionError("no runtime")
        if missing := offline - {pod["uid"] for pod in status["pods"]}:
            yield f"not in the status: {missing}"

    with CriClient(node.containerd.socket) as client:
        names = {pod.uid: name for name, pod in pods.items()}
        watch = Watch(client, names, {"kubelet": kubelet, "criproxy": criproxy}, say)
        watch.start()
        yield watch
        watch.end()


@pytest.fixture
def node(booted: tuple[Node, list[str]], watch: Watch) -> Node:
    """The node, watched, and well, whatever the last test did."""
    booted[0].wait_well()
    return booted[0]


def qos_of(name: str) -> str:
    return name.partition("-")[2]


def in_box(place: Mapping[str, str]) -> dict[str, str]:
    """Where something that is there directly on containerd is to be when its pod is offline."""
    return {
        controller: re.sub(r"^/kubepods(/besteffort|/burstable)?/", "/offline/", path)
        for controller, path in place.items()
    }


def all_in_box(places: Places) -> bool:
    """Whether sandbox and container run, in the box, in every controller that the box is for."""
    return {kind for _, kind in places} == {"sandbox", "container"} and all(
        path == "/offline/podUID/ID" for place in places.values() for path in place.values()
    )


# --- where pods run -------------------------------------------------------------------------------------------------


def test_kubelet_started_first_fares_as_it_does_directly_and_runs_all_pods_once(
    node: Node, direct: Direct, booted: tuple[Node, list[str]]
) -> None:
    assert set(booted[1]) == set(direct.fates)
    found = lives(node.client)
    assert {
        pod.name: [(one.attempt, one.running) for one in (*found[pod.uid].sandboxes, *found[pod.uid].containers)]
        for pod in node.standing().values()
    } == {name: [(0, True), (0, True)] for name in STANDING}


@pytest.mark.parametrize("name", STANDING)
def test_pod_runs_where_it_does_directly_unless_it_is_offline(node: Node, direct: Direct, name: str) -> None:
    expected = {place: where for place, where in direct.places.items() if place[0] == name}
    assert {kind for _, kind in expected} == {"sandbox", "container"}
    if name.startswith("offline"):
        expected = {place: in_box(where) for place, where in expected.items()}
    assert node.places(node.standing()[name]) == expected


@pytest.mark.parametrize("name", STANDING)
def test_kubelets_own_cgroup_of_a_pod_stays_and_an_offline_ones_is_empty(
    node: Node, direct: Direct, name: str
) -> None:
    own = node.kubelets_cgroups(node.standing()[name], qos_of(name))
    offline = name.startswith("offline")
    inside = 0 if offline else direct.kubelets_cgroups[name]  # a directory each for sandbox and container
    assert len([path for path in own if path.name.startswith("pod")]) > 0
    assert len(own) == (len([path for path in own if path.name.startswith("pod")]) if offline else inside)
