"""Anchors: one in each of kubelet's slices that an offline pod came from, and nowhere else."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.kernel_files import Properties
from criproxy.cgroup.naming import directory_of
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd

BOX, POD = "offline.slice", "offline-poda.slice"
BESTEFFORT, BURSTABLE = "kubepods-besteffort-criproxy.slice", "kubepods-burstable-criproxy.slice"


class Systemd(FakeSystemd):
    """Gives a slice with AllowedCPUs its cpuset; `deaf`: it does not."""

    deaf = False

    def start(self, unit: str, properties: Properties) -> None:
        super().start(unit, properties)
        mask = properties.get("AllowedCPUs")
        if isinstance(mask, bytes):
            cpu = "" if self.deaf else str(int.from_bytes(mask, "little").bit_length() - 1)
            Path(f"{self._directories(unit)[0]}/cpuset.cpus").write_text(cpu)


class Node:
    def __init__(self, root: Path, *, cpuset: str = "0-1") -> None:
        self.kernel = FakeKernel(root, 2)
        if cpuset:
            Path(root, "cg/cpuset.cpus.effective").write_text(cpuset)
        self.systemd = Systemd(self.kernel)
        self.driver: CgroupDriver = detect_any(self.kernel, self.systemd, self.kernel.root)
        self.driver.ensure(BOX)
        self.driver.write(BOX, {"cpu": 1.0, "memory": 64 << 20})

    def from_kubelet(self, qos: str, pod: str) -> str:
        """Kubelet's own slice of a pod."""
        unit = f"kubepods{qos}-{pod}.slice"
        self.systemd.start(unit, {})
        return unit

    def anchors(self) -> set[str]:
        found = Path(self.kernel.root, "cg/kubepods.slice").rglob("*-criproxy.slice")
        return {path.name for path in found if (path / "cpuset.cpus").read_text()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("qos", "anchor"),
    [("-besteffort", BESTEFFORT), ("-burstable", BURSTABLE), ("", "kubepods-criproxy.slice")],
    ids=["besteffort", "burstable", "guaranteed"],
)
def test_slice_that_a_pod_came_from_is_anchored(node: Node, qos: str, anchor: str) -> None:
    node.from_kubelet(qos, "poda")
    node.driver.ensure_pod(POD, PodLimits())

    assert node.driver.keep_anchors(BOX) == (anchor,)
    assert node.anchors() == {anchor}
    assert node.systemd.units[anchor]["AllowedCPUs"] == b"\x01"


def test_pods_of_kubelet_alone_need_no_anchor(node: Node) -> None:
    node.from_kubelet("-besteffort", "podb")
    node.driver.ensure_pod(POD, PodLimits())

    assert (node.driver.keep_anchors(BOX), node.anchors()) == ((), set())


def test_anchor_that_holds_costs_no_call(node: Node) -> None:
    node.from_kubelet("-besteffort", "poda")
    node.driver.ensure_pod(POD, PodLimits())
    node.driver.keep_anchors(BOX)
    node.systemd.calls.clear()

    assert (node.driver.keep_anchors(BOX), node.systemd.calls) == ((), [])


@pytest.mark.parametrize("loss", ["stopped", "cpus taken away"])
def test_anchor_that_is_lost_is_put_back(node: Node, loss: str) -> None:
    node.from_kubelet("-besteffort", "poda")
    node.driver.ensure_pod(POD, PodLimits())
    node.driver.keep_anchors(BOX)
    if loss == "stopped":
        node.systemd.stop(BESTEFFORT)
    else:
        Path(f"{node.kernel.root}/cg{directory_of(BESTEFFORT)}/cpuset.cpus").write_text("")

    assert node.driver.keep_anchors(BOX) == (BESTEFFORT,)
    assert node.anchors() == {BESTEFFORT}


def test_anchor_goes_with_the_last_pod_of_its_slice(node: Node) -> None:
    node.from_kubelet("-besteffort", "poda")
    burstable = node.from_kubelet("-burstable", "podb")
    node.driver.ensure_pod(POD, PodLimits())
    node.driver.ensure_pod("offline-podb.slice", PodLimits())
    node.driver.keep_anchors(BOX)

    node.systemd.stop(burstable)

    assert node.driver.keep_anchors(BOX) == (BURSTABLE,)
    assert node.anchors() == {BESTEFFORT}
    node.driver.remove_pod(POD)
    assert node.driver.keep_anchors(BOX) == (BESTEFFORT,)
    assert node.anchors() == set()


def test_anchor_that_has_no_effect_is_an_error(node: Node) -> None:
    node.systemd.deaf = True
    node.from_kubelet("-besteffort", "poda")
    node.driver.ensure_pod(POD, PodLimits())

    with pytest.raises(CgroupError, match=r"cpuset\.cpus is empty .* kubelet would kill"):
        node.driver.keep_anchors(BOX)


def test_node_without_cpusets_needs_no_anchor(tmp_path: Path) -> None:
    node = Node(tmp_path, cpuset="")
    node.from_kubelet("-besteffort", "poda")
    node.driver.ensure_pod(POD, PodLimits())

    assert node.driver.keep_anchors(BOX) == ()


def test_anchor_takes_a_cpu_of_its_parents(node: Node) -> None:
    node.from_kubelet("-besteffort", "poda")
    Path(f"{node.kernel.root}/cg/kubepods.slice/cpuset.cpus.effective").write_text("11-12")
    node.driver.ensure_pod(POD, PodLimits())

    node.driver.keep_anchors(BOX)

    assert node.systemd.units[BESTEFFORT]["AllowedCPUs"] == b"\x00\x08"


def test_cgroupfs_box_has_no_anchors(node: Node) -> None:
    node.driver.ensure("/offline")
    node.driver.ensure_pod("/offline/poda", PodLimits())

    assert node.driver.keep_anchors("/offline") == ()


def test_kubelets_slices_are_looked_at_only(node: Node) -> None:
    kubelets = node.from_kubelet("-besteffort", "poda")
    node.driver.ensure_pod(POD, PodLimits())
    node.systemd.calls.clear()

    node.driver.keep_anchors(BOX)
    node.driver.remove_pod(POD)
    node.driver.keep_anchors(BOX)

    assert {unit for _, unit in node.systemd.calls} == {BESTEFFORT, POD}
    assert node.kernel.exists(f"{node.kernel.root}/cg{directory_of(kubelets)}")
