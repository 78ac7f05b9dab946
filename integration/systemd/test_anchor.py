"""Anchors on the systemd of this node: an offline pod's own slice keeps its controllers, with one and not without."""

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.kernel_driver import processes_in
from integration.lab.process import wait_until
from integration.systemd.slice_lab import BOX, V1, Box, directory, shown, systemctl, text

pytestmark = pytest.mark.skipif(V1, reason="kubelet looks at controllers on cgroup v2 alone")

CHECKED = {"cpu", "cpuset", "memory", "pids"}
"""Of what kubelet checks, those that systemd manages."""

BESTEFFORT, BURSTABLE = "kubepods-besteffort.slice", "kubepods-burstable.slice"
ANCHOR = "kubepods-besteffort-criproxy.slice"
UID = "0c2d7f86_98b3_4d8e_a3a9_a5ecb5a3e0cc"
SETTLED_S = 2


class Pod:
    """A pod that kubelet has made a slice for, as newer ones do: transient, with weight, tasks and memory."""

    def __init__(self, parent: str = BESTEFFORT, uid: str = UID) -> None:
        self.slice = f"{parent.removesuffix('.slice')}-pod{uid}.slice"
        self.in_box = f"offline-pod{uid}.slice"
        properties = "4 CPUWeight t 1 TasksMax t 4000 MemoryMax t 67108864 MemoryAccounting b true"
        manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
        call = ["busctl", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", self.slice, "replace"]
        subprocess.run([*call, *properties.split(), "0"], check=True, capture_output=True, timeout=60)
        wait_until(lambda: directory(self.slice).exists(), 60, f"{self.slice} to start")

    @property
    def controllers(self) -> set[str]:
        return set(text(self.slice, "cgroup.controllers").split())

    def lacks(self) -> set[str]:
        return CHECKED - self.controllers


@pytest.fixture
def box() -> Iterator[Box]:
    lab = Box()
    lab.tick()
    yield lab
    lab.close()
    systemctl("stop", "kubepods.slice")


def start_in_box(box: Box, pod: Pod, *, anchored: bool = True) -> str:
    """As RunPodSandbox of an offline pod: returns the scope."""
    box.driver.ensure_pod(pod.in_box, PodLimits())
    if anchored:
        box.driver.keep_anchors(BOX)
    return box.run(pod.in_box)


EVENTS = [
    pytest.param(lambda: systemctl("daemon-reload"), id="daemon-reload"),
    pytest.param(lambda: systemctl("daemon-reexec"), id="daemon-reexec"),
    pytest.param(lambda: systemctl("restart", "containerd"), id="containerd-restarted"),
    pytest.param(lambda: systemctl("set-property", "--runtime", BESTEFFORT, "CPUWeight=1"), id="qos-update"),
]


def test_pod_slice_loses_a_controller_without_an_anchor(box: Box) -> None:
    pod, other = Pod(), Pod(uid="ffff")
    ordinary = box.run(other.slice)  # a pod of kubelet's brings all controllers, and takes them away with it
    start_in_box(box, pod, anchored=False)
    while_it_runs = pod.lacks()
    box.end(ordinary)

    wait_until(lambda: pod.lacks() == {"cpuset"}, 30, "systemd to take cpuset away")
    assert while_it_runs == set()


def test_pod_slice_keeps_its_controllers_with_an_anchor(box: Box) -> None:
    pod, other = Pod(), Pod(uid="ffff")
    ordinary = box.run(other.slice)
    start_in_box(box, pod)
    box.end(ordinary)
    systemctl("stop", other.slice)

    time.sleep(SETTLED_S)

    assert pod.lacks() == set()
    assert shown(ANCHOR, "ActiveState") == "active"
    assert processes_in(box.driver.files, ANCHOR) == ()


@pytest.mark.parametrize("event", EVENTS)
def test_anchor_holds_through(box: Box, event: Callable[[], object]) -> None:
    pod = Pod()
    start_in_box(box, pod)

    event()
    time.sleep(SETTLED_S)

    assert (pod.lacks(), box.driver.keep_anchors(BOX)) == (set(), ())


def test_anchor_holds_while_other_pods_come_and_go(box: Box) -> None:
    pod = Pod()
    start_in_box(box, pod)
    for number in range(3):
        other = Pod(uid=f"eeee{number}")
        box.end(box.run(other.slice))
        systemctl("stop", other.slice)
        assert pod.lacks() == set()


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda: systemctl("stop", ANCHOR), id="stopped"),
        pytest.param(lambda: systemctl("set-property", "--runtime", ANCHOR, "AllowedCPUs="), id="cpus-taken"),
    ],
)
def test_anchor_that_is_lost_is_back_after_one_look(box: Box, loss: Callable[[], object]) -> None:
    pod = Pod()
    start_in_box(box, pod)

    loss()
    wait_until(lambda: "cpuset" in pod.lacks(), 30, "systemd to take cpuset away")

    assert box.driver.keep_anchors(BOX) == (ANCHOR,)
    assert (pod.lacks(), box.driver.keep_anchors(BOX)) == (set(), ())


def test_anchors_are_where_pods_came_from_and_go_with_the_last(box: Box) -> None:
    first, second = Pod(), Pod(BURSTABLE, uid="bbbb")
    scopes = [start_in_box(box, pod) for pod in (first, second)]
    both = {unit for unit in (ANCHOR, "kubepods-burstable-criproxy.slice") if shown(unit, "ActiveState") == "active"}
    none = shown("kubepods-criproxy.slice", "ActiveState")
    box.end(scopes[1])
    systemctl("stop", second.slice)  # kubelet's clean-up

    changed = box.driver.keep_anchors(BOX)

    assert (len(both), none, changed) == (2, "inactive", ("kubepods-burstable-criproxy.slice",))
    assert shown(ANCHOR, "ActiveState") == "active"
    box.end(scopes[0])
    box.driver.remove_pod(first.in_box)
    assert box.driver.keep_anchors(BOX) == (ANCHOR,)
    assert not directory(ANCHOR).exists()
    assert directory(first.slice).exists()
