"""The NRI front before a real containerd: where containers are made, what is refused, and what a lost plugin costs.

By command: `[NRI_ROUNDS=50] [NRI_MINUTES=30] ./test integration integration/test_nri.py`, with the restarts and
hand-overs under creates, and pods under a real kubelet.
The times within a call: `python -m benchmarks.nri`.
"""

import contextlib
import dataclasses
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab import upgrades
from integration.lab.cgroups import of_process, version
from integration.lab.client import Container
from integration.lab.containerd import (
    FIRST_OOM_SCORE_ADJ,
    FIRST_VALIDATOR,
    Containerd,
    containerd_version,
    programs,
)
from integration.lab.criproxy import LETS_THE_LAB, UNJUDGED, Config, merged, static
from integration.lab.kubelet import PodStatus, static_pod
from integration.lab.node import CLASS, KubeletNode, Node
from integration.lab.process import LabError, timed, wait_until
from integration.lab.throwaway import SLOWER, is_throwaway
from integration.lab.usage import Cgroup
from integration.lab.watch import Watch

pytestmark = pytest.mark.timeout(3600)

ROUNDS = int(os.environ.get("NRI_ROUNDS", "15"))
MINUTES = float(os.environ.get("NRI_MINUTES", "2"))

WELL_S = 300.0 if is_throwaway() else 60.0
FOUND_S = 2.0 * SLOWER
FROZEN_S = 2.1
FOUND = ("nri_missed", "misplaced", "offline_pod_unbounded")
TOLD = (*FOUND, "nri_lost", "refused")
REQUIRED = {"required-plugins.noderesource.dev": '["criproxy"]'}


def configured(containerd: Containerd) -> Config:
    front = {"proxy": {"front": "nri", "nri": str(containerd.nri)}, "hardening": LETS_THE_LAB}
    return merged(static(1.0), front)


@contextlib.contextmanager
def started(lab: Path) -> Iterator[Node]:
    """A node whose runtime is asked directly, as kubelet does where it is not attached."""
    runtime = Containerd(lab, programs=programs(), nri_timeout="2s")
    runtime.start()
    with Node.before(runtime, configured(runtime)) as node:
        yield dataclasses.replace(node, client=node.direct)


@pytest.fixture
def node(lab: Path) -> Iterator[Node]:
    with started(lab) as node:
        yield node


def connected(node: Node) -> bool:
    return bool(node.proxy.status()["nri"]["connected"])


def test_the_box_has_offline_containers_through_a_pods_life_and_our_restart(node: Node) -> None:
    online, offline = node.run("online"), node.run("offline")
    assert not node.is_in_box(online)
    assert node.is_in_box(offline)
    assert not node.is_in_box(offline.pod)  # the sandbox was made before anybody was asked
    assert (oom_score_adj(node, offline) == 1000) == (containerd_version() >= FIRST_OOM_SCORE_ADJ)
    assert oom_score_adj(node, online) != 1000

    with pytest.raises(grpc.RpcError, match=r"criproxy refuses CreateContainer of offline pod .*privileged"):
        node.client.create_container(node.run_pod("offline", privileged=True), "boss", privileged=True)
    with pytest.raises(grpc.RpcError, match=r"criproxy refuses CreateContainer of offline pod .*/sys/fs/cgroup"):
        node.client.create_container(offline.pod, "reach", mounts={Path("/host"): Path("/sys/fs/cgroup")})
    node.client.create_container(node.run_pod("online", privileged=True), "boss", privileged=True)

    limits = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=400_000, cpu_shares=512)
    request = cri.UpdateContainerResourcesRequest(container_id=offline.id, linux=limits)
    node.client.call("UpdateContainerResources", request)
    uid = offline.pod.config.metadata.uid
    its = Cgroup(f"{node.box.path}/pod{uid}/{offline.id}")
    assert its.quota_cores() == (None if version() == 1 else 4.0)

    node.proxy.restart()
    wait_until(lambda: connected(node), WELL_S, "a connection", node.proxy.log)
    assert uid in [pod["uid"] for pod in node.proxy.status()["pods"]]
    assert node.is_in_box(node.client.run_container(offline.pod, "later", ("sleep", "1000")))
    wait_until(lambda: node.proxy.status()["placement"]["verified"] == 2, WELL_S, "two verified", node.proxy.log)
    assert node.proxy.status()["placement"]["misplaced"] == []
    assert "attach" not in node.proxy.status()["attached"]["where"], "there is nothing to attach"
    assert node.proxy.events("nri_call_failed", "interceptor_failed") == []


def oom_score_adj(node: Node, container: Container) -> int:
    return int(Path(f"/proc/{node.direct.pid(container)}/oom_score_adj").read_text())


def test_a_frozen_daemon_delays_online_once_and_is_told(node: Node) -> None:
    pods = [node.run_pod("online"), node.run_pod("online")]
    offline = node.run_pod("offline", annotations=REQUIRED)
    validates = not node.proxy.status()["nri"]["required_plugins"].startswith("no:")
    assert validates == (containerd_version() >= FIRST_VALIDATOR)
    os.kill(node.proxy.pid, signal.SIGSTOP)
    try:
        took_s = [timed(partial(node.client.create_container, pod, "main")) for pod in pods]
        assert took_s[0] < FROZEN_S + SLACK_S
        assert took_s[1] < 1.0 * SLOWER
        if validates:
            with pytest.raises(grpc.RpcError, match='required plugin "criproxy" not present'):  # for offline alone
                node.client.create_container(offline, "main")
    finally:
        os.kill(node.proxy.pid, signal.SIGCONT)
    wait_until(lambda: connected(node) and node.proxy.status()["nri"]["lost"] == 1, WELL_S, "a new connection")
    assert node.proxy.events("nri_lost")
    assert node.is_in_box(node.client.run_container(offline, "main", ("sleep", "1000")))


SLACK_S = 0.4 * SLOWER
"""What making the container takes by itself, on a busy machine."""


def test_what_started_while_we_were_away_is_found_and_its_next_container_is_in_the_box(node: Node) -> None:
    os.kill(node.proxy.pid, signal.SIGSTOP)
    try:
        missed = node.run("offline")  # delayed once, and made as if there were no plugin
        assert not node.is_in_box(missed)
    finally:
        os.kill(node.proxy.pid, signal.SIGCONT)
    wait_until(lambda: node.proxy.events(*FOUND), WELL_S, "it to be found", node.proxy.log)
    lost, found = node.proxy.events("nri_lost")[-1], node.proxy.events(*FOUND)[0]
    assert at_s(found) - at_s(lost) < FOUND_S
    wait_until(lambda: node.proxy.status()["nri"]["missed"] == 1, WELL_S, "it to be counted", node.proxy.log)
    assert node.is_in_box(node.client.run_container(missed.pod, "next", ("sleep", "1000")))
    wait_until(lambda: len(node.proxy.status()["placement"]["misplaced"]) == 1, WELL_S, "the first to be looked at")


STOPS_S = 100 if is_throwaway() else 20
"""How long the container that is being stopped takes."""


def test_hand_over_holds_up_no_pod_while_a_container_takes_its_time_to_stop(node: Node) -> None:
    """A plugin that registers would: the runtime waits for the stop first, and everything else for the plugin."""
    slow = node.client.run_container(node.run_pod("online"), "slow", ("sh", "-c", "trap '' TERM; sleep 1000"))
    offline = node.run_pod("offline")
    time.sleep(1.0 * SLOWER)  # until it ignores the signal
    stop = cri.StopContainerRequest(container_id=slow.id, timeout=STOPS_S)
    stopping = threading.Thread(target=node.client.call, args=("StopContainer", stop))
    stopping.start()
    try:
        upgrades.upgrade(node.proxy)
        took_s = timed(partial(node.run, "online"))
        later = node.client.run_container(offline, "main", ("sleep", "1000"))
        assert stopping.is_alive()
        assert took_s < STOPS_S / 2
        assert node.is_in_box(later)
        assert connected(node)
        assert node.proxy.status()["nri"]["lost"] == 0
    finally:
        stopping.join()
    assert len(node.proxy.events("nri_registered")) == 2


def at_s(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["ts"]).timestamp()


# --- by command -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Creates:
    """Creates offline and online pods and removes them, until it ends; what was made where, and what failed.

    `outside`: how long it took until each offline container that was made outside the box was told of, by its pod.
    """

    node: Node
    inside: int = 0
    outside: dict[str, float] = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)
    away: list[str] = dataclasses.field(default_factory=list)
    slowest_s: float = 0.0
    online: int = 0
    ends: threading.Event = dataclasses.field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ends.is_set():
            for kind in ("offline", "online"):
                try:
                    began_s = time.monotonic()
                    container = self.node.run(kind)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
                    inside = self.node.is_in_box(container)
                    if kind == "online":
                        self.online += 1
                        assert not inside
                    elif inside:
                        self.inside += 1
                    else:
                        uid = container.pod.config.metadata.uid
                        self.outside[uid] = timed(partial(wait_until_found, self.node, {uid}))
                    remove(self.node, container)
                except grpc.RpcError as error:
                    lost = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)
                    refused = "criproxy refuses" in str(error)
                    (self.failed if refused or not lost else self.away).append(str(error))


def remove(node: Node, container: Container) -> None:
    """As kubelet does it, containers first: a RemovePodSandbox that removes containers, too, and a plugin that
    registers just then lock containerd 2.4 for good.
    """
    node.client.call("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=container.pod.id))
    node.client.call("RemoveContainer", cri.RemoveContainerRequest(container_id=container.id))
    node.client.call("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=container.pod.id))


@contextlib.contextmanager
def creating(node: Node, threads: int) -> Iterator[list[Creates]]:
    each = [Creates(node) for _ in range(threads)]
    running = [threading.Thread(target=one.run) for one in each]
    for thread in running:
        thread.start()
    try:
        yield each
    finally:
        for one in each:
            one.ends.set()
        for thread in running:
            thread.join()


@pytest.mark.by_command
def test_hand_overs_under_creates_refuse_nothing_and_let_nothing_by(node: Node, say: Callable[[str], object]) -> None:
    with creating(node, 2) as each:
        took_s, starved = list[float](), 0
        for _ in range(ROUNDS):
            try:
                took_s.append(upgrades.upgrade(node.proxy))
            except LabError:  # the new one was given up, as the machine had no CPU for it, and the old one goes on
                starved += 1
            time.sleep(0.5)
    inside, online = sum(one.inside for one in each), sum(one.online for one in each)
    slowest_s = max(one.slowest_s for one in each)
    outside = [found_s for one in each for found_s in one.outside.values()]
    failed = [text for one in each for text in (*one.failed, *one.away)]
    say(f"{len(took_s)} hand-overs, each {max(took_s):.2f} s at most, {starved} given up")
    say(f"{inside} offline, {online} online, each {slowest_s:.2f} s at most")
    told = Counter(event["event"] for event in node.proxy.events(*TOLD))
    say(f"{len(failed)} refused or failed; outside the box, and found after so many seconds: {outside}; told: {told}")
    assert starved <= ROUNDS / 10
    assert failed == []
    assert outside == []
    upgrades.stop_all(node.proxy)


@pytest.mark.by_command
def test_each_pod_that_a_restart_of_the_runtime_lets_by_is_found(node: Node, say: Callable[[str], object]) -> None:
    """Pods are made from the moment on in which the runtime's CRI answers, as kubelet does, who has waited for it."""
    let_by, made, slowest_s = 0, 0, 0.0
    for _ in range(ROUNDS):
        node.containerd.kill()
        with eagerly_creating(node) as containers:
            node.containerd.start()
            wait_until(lambda containers=containers: len(containers) >= 3, WELL_S, "three pods")  # type: ignore[misc]
        outside = {one.pod.config.metadata.uid for one in containers if not node.is_in_box(one)}
        let_by, made = let_by + len(outside), made + len(containers)
        slowest_s = max(slowest_s, timed(partial(wait_until_found, node, outside)))
        for one in containers:
            remove(node, one)
    say(f"{ROUNDS} restarts of the runtime: {let_by} of {made} let by, each found {slowest_s:.2f} s later at most")
    assert slowest_s < FOUND_S


OFFLINE = {CLASS: "offline"}
RESOURCES = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
STANDING = {
    "online": static_pod("online", resources=RESOURCES),
    "offline": static_pod("offline", labels=OFFLINE, resources=RESOURCES),
    "offline-besteffort": static_pod("offline-besteffort", labels=OFFLINE),
}


@pytest.mark.by_command
def test_kubelet_kills_no_pod_of_a_node_with_this_front(say: Callable[[str], object]) -> None:
    """Some pods stand, others come and go; kubelet is started anew halfway."""
    config = {"hardening": LETS_THE_LAB, "interference": UNJUDGED}
    with KubeletNode.up(config, nri=True, programs=programs()) as node:
        wait_until(lambda: node.proxy.status()["nri"]["connected"], WELL_S, "a connection", node.proxy.log)
        standing = {name: node.kubelet.run(manifest) for name, manifest in STANDING.items()}
        passed = Counter[str]()
        watch = Watch(node.client, {pod.uid: name for name, pod in standing.items()}, {}, say)
        watch.start()
        ends_s, renewed = time.monotonic() + 60 * MINUTES, False
        while time.monotonic() < ends_s:
            for kind in ("online", "offline"):
                name = f"passing-{kind}-{passed[kind]}"
                with node.kubelet.running(static_pod(name, labels={CLASS: kind}, resources=RESOURCES)) as pod:
                    assert places(node, pod) == {"offline" if kind == "offline" else "kubepods"}
                passed[kind] += 1
            if not renewed and ends_s - time.monotonic() < 30 * MINUTES:
                renewed = True
                node.kubelet.stop()
                node.kubelet.start()
            time.sleep(5.0)
        watch.end()
        killed = killed_by_kubelet(node)
        say(f"{watch.seconds / 60:.0f} minutes: {dict(passed)}, {watch.looks} looks, kubelet ended {killed.total()}")
        assert watch.changes == []
        assert not [name for name in STANDING if killed[name]]
        assert {pod.restarts for pod in node.kubelet.pods().values()} == {0}
        assert {name: places(node, pod) for name, pod in standing.items()} == {
            name: {name.partition("-")[0].replace("online", "kubepods")} for name in STANDING
        }
        status = node.proxy.status()
        assert (status["placement"]["misplaced"], status["nri"]["missed"], status["nri"]["lost"]) == ([], 0, 0)


def places(node: KubeletNode, pod: PodStatus) -> set[str]:
    """Under which cgroups of the lab a pod's containers run."""
    found = {path for one in pod.containers.values() for path in of_process(node.client.pid_of(one)).values()}
    return {path.removeprefix(f"{node.root}/").partition("/")[0] for path in found}


def killed_by_kubelet(node: KubeletNode) -> Counter[str]:
    """How many containers kubelet has ended, by the pod's name."""
    ended = re.findall(r'"Killing container with a grace period" pod="default/(\S+?)"', node.kubelet.log.read_text())
    return Counter(name.removesuffix(f"-{node.kubelet.node}") for name in ended)


@contextlib.contextmanager
def eagerly_creating(node: Node) -> Iterator[list[Container]]:
    """A thread that makes offline pods as soon as, and as long as, it can."""
    containers: list[Container] = []
    ends = threading.Event()

    def create() -> None:
        while not ends.is_set():
            try:
                containers.append(node.run("offline"))
            except grpc.RpcError:  # the runtime is not there yet
                time.sleep(0.005)

    thread = threading.Thread(target=create)
    thread.start()
    try:
        yield containers
    finally:
        ends.set()
        thread.join()


def wait_until_found(node: Node, uids: set[str]) -> None:
    def found() -> bool:
        events = node.proxy.events(*FOUND)
        return all(any(uid in str(event) for event in events) for uid in uids)

    wait_until(found, WELL_S, f"{uids} to be found", node.proxy.log)
