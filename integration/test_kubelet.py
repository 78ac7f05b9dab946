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

from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree, hierarchies, of_process, unkept, version
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import UNJUDGED, Criproxy
from integration.lab.kubelet import SYSCTLS, PodStatus, find_kubelet, static_pod
from integration.lab.node import KubeletNode
from integration.lab.process import LabError, all_pids, argv_of, birth_of, is_running, wait_until
from integration.lab.watch import Watch, lives

pytestmark = pytest.mark.timeout(2400)  # the first test boots kubelet on slow nodes, twice

Say = Callable[[str], object]

WATCH_S = 300.0
POLL_S = 0.5
ALONE_S = 120.0
"""Kubelet 1.20 gives up 5 s after its start when no runtime answers; on an emulated node that is a minute."""
WELL_S = 300.0
RESTART_S = 300.0
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


class Node(KubeletNode):
    """Kubelet and its runtime, with criproxy in between or not."""

    def boot(self) -> None:
        """Start everything in order, and the standing pods."""
        self.containerd.start()
        self.wait_well()
        for manifest in STANDING.values():
            self.kubelet.add_pod(manifest)
        for name in STANDING:
            self.kubelet.wait_running(name)

    def fates_before_boot(self) -> list[str]:
        """Start everything but the runtime in the worst order; returns how kubelet fared."""
        fates = [self.fate_of_kubelet()]
        if self.criproxy:
            self.criproxy.start(until_ready=False)
            fates.append(self.fate_of_kubelet())
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
                if controller not in unkept()
            }
        return found

    def kubelets_cgroup(self, pod: PodStatus) -> str:
        """What kubelet itself makes for a standing pod."""
        return f"{self.root}/kubepods{QOS[qos_of(pod.name)][0]}/pod{pod.uid}"

    def kubelets_directories(self, pod: PodStatus) -> list[Path]:
        """Where it is, of the hierarchies that kubelet knows: devices, rdma, and v2 beside v1, are runc's."""
        own = [h for h in hierarchies() if h.version == version() and not {"devices", "rdma"} & {*h.controllers}]
        return [found for h in own if (found := h.directory(self.kubelets_cgroup(pod))).is_dir()]

    def pods_in_box(self) -> set[str]:
        """The uids that have a directory in the box, in any hierarchy."""
        names = Tree(f"{self.root}/offline").children()
        return {name.removeprefix("pod") for name in names if name.startswith("pod")}

    def pods_in_status(self) -> set[str]:
        return {pod["uid"] for pod in self.proxy.status()["pods"]}

    def calls(self) -> dict[tuple[str, str], int]:
        """What kubelet has called so far, by method and status code."""
        code, text = self.proxy.http("/metrics")
        assert code == 200, "no answer would count as no call"
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
    kubelets_directories: Mapping[str, int]


@pytest.fixture(scope="module")
def machine(say: Say, pytestconfig: pytest.Config) -> list[str]:
    """What belongs to the machine's own kubelet, before any of the lab's ran."""
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        say(f"kubelet: {find_kubelet()}")
    return machines_kubelet()


@pytest.fixture(scope="module")
def runtime_comes_last(request: pytest.FixtureRequest) -> bool:
    """Whether kubelet has to fare without a runtime first: minutes on an emulated node, for one test alone."""
    asking = test_kubelet_started_first_fares_as_it_does_directly_and_runs_all_pods_once.__name__
    return any(item.name == asking for item in request.session.items)


@pytest.fixture(scope="module")
def direct(say: Say, machine: list[str], runtime_comes_last: bool) -> Direct:
    with Node.up(proxied=False, starts=False) as node:
        fates = node.fates_before_boot() if runtime_comes_last else []
        node.boot()
        pods = node.standing()
        places = {place: where for pod in pods.values() for place, where in node.places(pod).items()}
        directories = {name: len(node.kubelets_directories(pod)) for name, pod in pods.items()}
    say(f"{len(pods)} pods ran directly on containerd")
    return Direct(fates, places, directories)


@pytest.fixture(scope="module")
def booted(say: Say, direct: Direct, runtime_comes_last: bool) -> Iterator[tuple[Node, list[str]]]:
    """The node with criproxy, all standing pods running, and how kubelet fared before it had a runtime.

    Not beside the direct one: a kubelet removes the logs of the other's pods.
    """
    with Node.up({"interference": UNJUDGED}, starts=False) as node:
        fates = node.fates_before_boot() if runtime_comes_last else []
        node.boot()
        say(f"{len(STANDING)} pods run through criproxy")
        yield node, fates


@pytest.fixture(scope="module")
def watch(booted: tuple[Node, list[str]], say: Say) -> Iterator[Watch]:
    """Watches the standing pods from now on."""
    node, _ = booted
    pods = node.standing()
    offline = {pod.uid for name, pod in pods.items() if name.startswith("offline")}
    own_directories = {name: node.kubelets_directories(pod) for name, pod in pods.items()}

    def kubelet() -> Iterator[str]:
        for name, pod in node.standing().items():
            if pod.restarts:
                yield f"{name} was restarted {pod.restarts} times"
        for name, directories in own_directories.items():
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
def test_kubelets_own_cgroup_of_a_pod_stays_and_an_offline_one_is_empty(node: Node, direct: Direct, name: str) -> None:
    pod = node.standing()[name]
    assert len(node.kubelets_directories(pod)) == direct.kubelets_directories[name] > 0
    assert (Tree(node.kubelets_cgroup(pod)).pids() == set()) == name.startswith("offline")


def test_kubelet_at_work_has_every_call_answered_ok(node: Node, say: Say) -> None:
    before, began_s = node.calls(), time.monotonic()

    def asked() -> dict[tuple[str, str], int]:
        since = {key: count - before.get(key, 0) for key, count in node.calls().items() if count != before.get(key, 0)}
        return since if since.get(("ListPodSandbox", "OK"), 0) >= 20 else {}

    since, seconds = wait_until(asked, WELL_S, "20 lists of kubelet's", poll_s=POLL_S), time.monotonic() - began_s
    say(f"kubelet makes {sum(since.values()) / seconds:.1f} calls a second with {len(STANDING)} pods")
    assert {code for _, code in since} == {"OK"}


def test_summary_has_container_statistics_of_offline_pods(node: Node) -> None:
    """Those that an online pod has; some come with a second sample."""
    wanted = {("cpu", "usageCoreNanoSeconds"), ("memory", "workingSetBytes")}
    lacking: set[str] = set()

    def counted() -> dict[str, dict[str, Any]]:
        pods = {pod["podRef"]["uid"]: pod.get("containers", []) for pod in node.kubelet.summary()["pods"]}
        found = {name: containers[0] for name, pod in node.standing().items() if (containers := pods.get(pod.uid))}
        lacking.clear()
        lacking.update(STANDING.keys() - found.keys())
        for name, one in found.items():
            lacking.update(f"{name}: {part}.{key}" for part, key in wanted if not one.get(part, {}).get(key))
            if "usedBytes" not in one.get("rootfs", {}):  # it is 0 on a tmpfs
                lacking.add(f"{name}: rootfs.usedBytes")
        parts = ("cpu", "memory", "rootfs")
        keys = {name: {part: sorted(one.get(part, {})) for part in parts} for name, one in found.items()}
        lacking.update(f"{name}: {own}" for name, own in keys.items() if own != keys.get("online-besteffort"))
        return {} if lacking else found

    try:
        found = wait_until(counted, WELL_S, "statistics of all pods", node.kubelet.log, POLL_S)
    except LabError as error:
        raise LabError(f"{error}\nlacking: {sorted(lacking)}") from error
    for name, pod in node.standing().items():
        answer = node.client.call("ContainerStats", cri.ContainerStatsRequest(container_id=pod.containers["main"]))
        assert found[name]["name"] == "main"
        assert 0 < found[name]["cpu"]["usageCoreNanoSeconds"] <= answer.stats.cpu.usage_core_nano_seconds.value
        assert 0 < found[name]["memory"]["workingSetBytes"] < 64 << 20


# --- offline pods that fail -----------------------------------------------------------------------------------------


def wait_restarted(node: Node, pod: PodStatus) -> PodStatus:
    """Wait until kubelet has restarted a pod's container, once."""

    def restarted() -> PodStatus | None:
        now = node.kubelet.pods()[pod.name]
        return now if now.is_running and now.restarts == 1 else None

    again = wait_until(restarted, RESTART_S, f"the restart of {pod.name}", node.kubelet.log, POLL_S)
    assert again is not None
    return again


def test_offline_container_that_crashes_is_started_anew_in_the_box(node: Node, say: Say) -> None:
    with node.kubelet.running(static_pod("crash", labels=OFFLINE)) as pod:
        (sandbox,) = lives(node.client)[pod.uid].sandboxes
        own_watch = Watch(node.client, {pod.uid: pod.name}, {}, say)
        own_watch.start()
        os.kill(node.client.pid_of(pod.containers["main"]), signal.SIGKILL)
        again = wait_restarted(node, pod)
        assert again.containers != pod.containers
        assert lives(node.client)[pod.uid].sandboxes == (sandbox,)
        assert all_in_box(node.places(again))
        wait_until(lambda: len(own_watch.changes) >= 2, WELL_S, "a watch to see a process's end and another container")
        own_watch.end()


def test_offline_sandbox_that_crashes_is_started_anew_in_the_box(node: Node) -> None:
    with node.kubelet.running(static_pod("crash-sandbox", labels=OFFLINE)) as pod:
        (sandbox,) = lives(node.client)[pod.uid].sandboxes
        os.kill(node.client.pause_pid_of(sandbox.id), signal.SIGKILL)

        def restarted() -> bool:
            life = lives(node.client)[pod.uid]
            running = [one.attempt for one in life.sandboxes if one.running]
            return running == [1] and any(one.running for one in life.containers)

        wait_until(restarted, RESTART_S, "the sandbox's restart", node.kubelet.log, POLL_S)
        assert all_in_box(node.places(pod))


def test_liveness_probe_runs_through_the_proxy_and_restarts_an_offline_container_that_fails_it(node: Node) -> None:
    manifest = static_pod("probed", labels=OFFLINE)
    manifest["spec"]["containers"][0]["livenessProbe"] = {
        "exec": {"command": ["sh", "-c", "! test -e /dead"]},
        "periodSeconds": 1,
        "timeoutSeconds": 60,
        "failureThreshold": 1,
    }
    key = ("ExecSync", "OK")
    before = node.calls().get(key, 0)
    with node.kubelet.running(manifest) as pod:
        wait_until(lambda: node.calls().get(key, 0) >= before + 5, WELL_S, "five probes", node.kubelet.log, POLL_S)
        assert node.kubelet.pods()[pod.name].restarts == 0
        node.client.exec_sync(Container(pod.containers["main"], Pod("", cri.PodSandboxConfig())), ["touch", "/dead"])
        assert all_in_box(node.places(wait_restarted(node, pod)))


# --- restarts -------------------------------------------------------------------------------------------------------


def kill_everything(node: Node) -> None:
    for part in (node.kubelet, node.proxy, node.containerd):
        part.kill()


def take_criproxy_away(node: Node) -> None:
    node.proxy.stop()
    time.sleep(20)


def start_kubelet_before(node: Node, part: Criproxy | Containerd) -> None:
    part.stop()
    node.kubelet.stop()
    node.fate_of_kubelet()


HAPPENINGS: Mapping[str, Callable[[Node], None]] = {
    "kubelet-stopped": lambda node: node.kubelet.stop(),
    "kubelet-killed": lambda node: node.kubelet.kill(),
    "containerd-stopped": lambda node: node.containerd.stop(),
    "containerd-killed": lambda node: node.containerd.kill(),
    "criproxy-stopped": lambda node: node.proxy.stop(),
    "criproxy-killed": lambda node: node.proxy.kill(),
    "criproxy-away-for-20-s": take_criproxy_away,
    "kubelet-started-before-criproxy": lambda node: start_kubelet_before(node, node.proxy),
    "kubelet-started-before-containerd": lambda node: start_kubelet_before(node, node.containerd),
    "all-killed": kill_everything,
}


@pytest.mark.parametrize("happening", HAPPENINGS)
def test_restart_befalls_no_pod_and_the_next_offline_pod_is_in_the_box(
    node: Node, watch: Watch, happening: str
) -> None:
    HAPPENINGS[happening](node)
    node.wait_well()
    # A pod that starts and ends shows that all parts work together again, and kubelet has looked at the others too.
    with node.kubelet.running(static_pod(f"after-{happening}", labels=OFFLINE)) as pod:
        assert all_in_box(node.places(pod))
    assert watch.changes == []


# --- pods that go ---------------------------------------------------------------------------------------------------


def test_deleted_pods_leave_nothing_behind(node: Node, say: Say) -> None:
    pods = [node.kubelet.run(static_pod(f"deleted-{kind}", labels={CLASS: kind})) for kind in ("online", "offline")]
    births = {pid: birth_of(pid) for pod in pods for pid in node.pids(pod).values()}
    uids = {pod.uid for pod in pods}
    sandboxes = [one.id for uid in uids for one in lives(node.client)[uid].sandboxes]
    left: Mapping[str, Callable[[], object]] = {
        "processes": lambda: [pid for pid, birth in births.items() if is_running(pid) and birth_of(pid) == birth],
        "shims": lambda: [pid for pid in all_pids() if set(argv_of(pid)) & set(sandboxes)],
        "kubelet's cgroups": lambda: [
            path for path in Tree(f"{node.root}/kubepods").cgroups([version()]) if path.rpartition("/pod")[2] in uids
        ],
        "containers": lambda: [life for uid in uids if (life := lives(node.client).get(uid)) and life.containers],
        "sandboxes": lambda: uids & lives(node.client).keys(),
        "cgroups in the box": lambda: uids & node.pods_in_box(),
        "entries in the status": lambda: uids & node.pods_in_status(),
    }
    there = {what for what, find in left.items() if find()}
    assert there == left.keys()

    began_s = time.monotonic()
    for pod in pods:
        node.kubelet.remove_pod(pod.name)

    def gone() -> bool:
        for what in sorted(there):
            if not left[what]():
                there.remove(what)
                say(f"deleted pods have left no {what} after {time.monotonic() - began_s:.0f} s")
        return not there

    wait_until(gone, GONE_S, "deleted pods to leave nothing behind", node.kubelet.log, POLL_S)
    assert [what for what, find in left.items() if find()] == []


# --- the machine ----------------------------------------------------------------------------------------------------


def machines_kubelet() -> list[str]:
    """What a kubelet of the machine's own has, or would have: its files, its cgroup, its sysctls."""
    return [
        *sorted(str(path) for path in Path("/var/lib/kubelet").rglob("*")),
        *(str(path) for h in hierarchies() for path in h.mount.glob("*kube*")),
        *(f"{name} = {Path('/proc/sys', name).read_text()}" for name in SYSCTLS),
    ]


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses (in the kernel's hexadecimal) and ports that a process listens on. Source: proc_pid_net(5)."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            own.add(os.readlink(descriptor))
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    listens = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    return {(address, int(port, 16)) for address, port in listens}


def test_kubelet_of_the_machine_is_not_touched(node: Node, machine: list[str]) -> None:
    assert machines_kubelet() == machine
    sockets = listening(node.kubelet.pid)
    assert {address for address, _ in sockets} == {"0100007F"}
    assert not {port for _, port in sockets} & {10250, 10255, 10248}


# --- the watch's end ------------------------------------------------------------------------------------------------


def test_no_standing_pod_was_restarted_in_five_minutes(node: Node, watch: Watch) -> None:
    wait_until(lambda: watch.changes or watch.seconds >= WATCH_S, WATCH_S + 60, "the watch's end", poll_s=POLL_S)
    assert watch.changes == []
    assert min(watch.looks.values()) >= 30
    offline = {pod.uid for name, pod in node.standing().items() if name.startswith("offline")}
    wait_until(lambda: node.pods_in_status() == offline, GONE_S, "the status to have the standing pods only")
    wait_until(lambda: node.pods_in_box() == offline, GONE_S, "the box to have the standing pods only")
