"""What matters most, on whatever node this is: placement, limits in force, giving back, and coming back after kill -9.

On a throwaway node criproxy stands before the node's own containerd, with kubelet's cgroups at the root, as in real
life; on any other machine everything is a lab's own.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.lab import cgroups
from integration.lab.cgroups import Tree
from integration.lab.client import Container, CriClient, Pod
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config, Criproxy, static
from integration.lab.directory import cgroup_root, claimed
from integration.lab.images import BUSYBOX
from integration.lab.naming import driver, placement
from integration.lab.pods import assert_within
from integration.lab.process import LabError, is_running, wait_until
from integration.lab.throwaway import CONTAINERD_SOCKET, IMAGE, is_throwaway
from integration.lab.usage import Cgroup, busy_loops

pytestmark = pytest.mark.alone

Say = Callable[[str], object]

MIB = 1 << 20
WAIT_S = 120.0
CLASS = "colocation.criproxy.io/class"
FOREVER = ("sleep", "2147483647")
CORES, MEMORY_BYTES = 0.5, 256 * MIB
STATIC = static(CORES, MEMORY_BYTES, control={"interval_s": 0.2})
SHARE_LEFT = 0.8
"""Of what the box had, at most, once an online pod is as busy as can be."""
FLOOR_CORES = 0.1
"""What it keeps always."""
OPEN_CORES = 0.4
"""What it gets, at least, on a node that has next to nothing else to do."""
DYNAMIC: Config = {
    "colocation": {"enabled": True},
    "control": {"predictor": "histogram", "half_life_s": 2.0, "percentile": 0.5},
    "guard": {"enabled": False},
    "cpu": {"min_cores": FLOOR_CORES, "bound": "prediction"},
}
MEASURE_S, PERIOD_S, TOLERANCE = 5.0, 0.1, 1.05
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "blkio")
"""Of v1: what a box is for. Others are for the runtime to join or not."""


@dataclass(frozen=True, slots=True)
class Site:
    """A criproxy before a runtime; kubepods and the box lie below the cgroup `root` ("": at the top)."""

    proxy: Criproxy
    client: CriClient
    root: str
    image: str

    @property
    def box(self) -> Cgroup:
        return Cgroup(f"{self.root}/offline")

    def run(self, kind: str, command: tuple[str, ...] = FOREVER) -> tuple[Pod, Container]:
        """A pod as kubelet would start it, and its container."""
        uid = str(uuid.uuid4())
        Tree(parent := f"{self.root}/kubepods/besteffort/pod{uid}").make()
        pod = self.client.run_pod(f"{kind}-{uid[:4]}", uid=uid, labels={CLASS: kind}, cgroup_parent=parent)
        return pod, self.client.run_container(pod, "main", command, image=self.image)

    def place(self, pod: Pod) -> str:
        """Where an offline pod belongs."""
        return f"{self.box.path}/pod{pod.config.metadata.uid}"

    def pids(self, pod: Pod, container: Container) -> list[int]:
        return [self.client.pid(pod), self.client.pid(container)]

    def start(self) -> None:
        """Start criproxy once more."""
        self.proxy.start()
        wait_until(self.client.is_ready, WAIT_S, "the client's connection", self.proxy.log)

    def listed(self) -> list[tuple[str, str]]:
        """Uid and placement of the offline pods in the status."""
        return sorted((pod["uid"], pod["placement"]) for pod in self.proxy.status()["pods"])

    def wait_limits(self) -> None:
        wait_until(self._holds_limits, WAIT_S, "the static limits", self.proxy.log)

    def _holds_limits(self) -> bool:
        try:
            found = (self.box.quota_cores(), self.box.memory_limit_bytes())
        except (OSError, ValueError):  # no box yet, or no limit
            return False
        return found == (CORES, MEMORY_BYTES)


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, say: Say) -> Iterator[Site]:
    say(f"cgroup v{cgroups.version()}, {driver().value} driver")
    if is_throwaway():
        with claimed() as lab:
            yield from _stage(lab, CONTAINERD_SOCKET, "", IMAGE)
    else:
        containerd: Containerd = request.getfixturevalue("containerd")
        root = f"{cgroup_root(containerd.directory)}/smoke"
        yield from _stage(containerd.directory, containerd.socket, root, BUSYBOX)


def _stage(lab: Path, runtime: Path, root: str, image: str) -> Iterator[Site]:
    proxy = Criproxy(lab, runtime, STATIC)
    proxy.start()
    with CriClient(proxy.socket) as client:
        yield Site(proxy, client, root, image)
    proxy.stop()


@pytest.fixture
def site(stage: Site) -> Iterator[Site]:
    yield stage
    stage.client.remove_all_pods()


def carrying() -> tuple[str, ...]:
    """The controllers, as `of_process` names them, in which an offline pod must be in the box."""
    return ("",) if cgroups.version() == 2 else CONTROLLERS


def has_lowest_priority(box: Cgroup) -> bool:
    idle = box.file("cpu", "cpu.idle")
    if idle.exists():
        return idle.read_text() == "1\n"
    return box.file("cpu", "cpu.shares" if cgroups.version() == 1 else "cpu.weight").read_text() in ("2\n", "1\n")


def test_offline_pod_is_in_the_box_with_its_limits_in_force_and_online_is_not(site: Site) -> None:
    online, in_online = site.run("online")
    offline, in_offline = site.run("offline", busy_loops())
    site.wait_limits()

    assert_within(online.id, f"{site.root}/kubepods/besteffort/pod{online.config.metadata.uid}")
    assert_within(offline.id, site.place(offline))
    for what in (offline, in_offline):
        paths = cgroups.of_process(site.client.pid(what))
        assert {paths[controller] for controller in carrying()} == {f"{site.place(offline)}/{what.id}"}
    assert has_lowest_priority(site.box)
    assert site.client.exec_sync(in_online, ["true"]).exit_code == 0


def test_offline_pod_that_could_use_every_cpu_uses_the_box_s_quota(site: Site) -> None:
    site.run("offline", busy_loops())
    site.wait_limits()
    time.sleep(1)
    began_s, before_s = time.monotonic(), site.box.cpu_s()
    time.sleep(MEASURE_S)
    used_s, elapsed_s = site.box.cpu_s() - before_s, time.monotonic() - began_s
    assert 0 < used_s <= TOLERANCE * CORES * (elapsed_s + PERIOD_S)


def test_status_has_the_offline_pods_and_no_online_pod(site: Site) -> None:
    site.run("online")
    offline, _ = site.run("offline")
    wanted = [(offline.config.metadata.uid, placement(site.place(offline)))]
    wait_until(lambda: site.listed() == wanted, WAIT_S, f"the status to list {wanted}", site.proxy.log)


def test_killed_criproxy_leaves_pods_and_limits_and_is_back_with_both(site: Site) -> None:
    offline, container = site.run("offline")
    site.wait_limits()
    pids = site.pids(offline, container)
    site.proxy.kill()
    assert [is_running(pid) for pid in pids] == [True, True]
    assert (site.box.quota_cores(), site.box.memory_limit_bytes()) == (CORES, MEMORY_BYTES)
    site.box.lift_quota()  # somebody else, meanwhile

    site.start()
    site.wait_limits()
    wanted = [(offline.config.metadata.uid, placement(site.place(offline)))]
    wait_until(lambda: site.listed() == wanted, WAIT_S, f"the status to list {wanted}", site.proxy.log)
    assert site.pids(offline, container) == pids
    another, _ = site.run("offline")
    for pod in (offline, another):
        assert_within(pod.id, site.place(pod))


def test_place_of_a_removed_offline_pod_goes_and_the_box_stays(site: Site) -> None:
    offline, _ = site.run("offline")
    assert Tree(site.place(offline)).directories()
    site.client.stop_and_remove(offline)
    wait_until(lambda: Tree(site.place(offline)).directories() == [], WAIT_S, "the pod's place to go", site.proxy.log)
    site.wait_limits()


def opened(site: Site) -> float:
    """The box's quota in cores, once it has one worth giving back."""

    def quota() -> float | None:
        cores = site.box.quota_cores()
        return cores if cores is not None and cores >= OPEN_CORES else None

    try:
        found = wait_until(quota, WAIT_S, f"{OPEN_CORES} cores in the box", site.proxy.log)
    except LabError as error:
        if is_throwaway():
            raise
        pytest.skip(f"others keep this machine busy: {error}")
    assert found is not None
    return found


def test_box_gives_back_what_an_online_pod_uses(site: Site, say: Say) -> None:
    site.proxy.stop()
    site.proxy.configure(DYNAMIC)
    site.start()
    site.run("offline")
    had = opened(site)
    site.run("online", busy_loops())

    def given_back() -> bool:
        has = site.box.quota_cores()
        return has is not None and has <= SHARE_LEFT * had

    wait_until(given_back, WAIT_S, f"less than the {had:.2f} cores that the box had", site.proxy.log)
    say(f"the box had {had:.2f} cores and has {site.box.quota_cores():.2f} beside a busy online pod")
