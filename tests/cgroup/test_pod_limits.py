"""Processes of the box, what a pod had by kubelet's own cgroup, and what containers ask for: in force in the box, with
every driver.
"""

import asyncio
import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.driver import CgroupDriver, CgroupError, ContainerLimits, HeldLimit, PodLimits
from criproxy.cgroup.naming import directory_of, parse_kubelet_parent
from criproxy.model import CPU, UNLIMITED, AdmissionError, LimitChange, Resources
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd, names

MIB = 1 << 20
LIMITS = {"cpu": 1.0, "memory": 512 * MIB}
ALLOWED = 32768
"""The fake kernel's pid_max, which is below its threads-max."""


@dataclass(frozen=True)
class Node:
    kernel: FakeKernel
    systemd: FakeSystemd
    driver: CgroupDriver
    by_systemd: bool

    @property
    def is_v2(self) -> bool:
        return self.kernel.version == 2

    @property
    def box(self) -> str:
        return "offline.slice" if self.by_systemd else "/offline"

    @property
    def pod(self) -> str:
        return "offline-poda.slice" if self.by_systemd else "/offline/poda"

    def file(self, path: str, name: str) -> str:
        return f"{self.kernel.where(name.partition('.')[0], directory_of(path))}/{name}"

    def text(self, path: str, name: str) -> str:
        return self.kernel.file(self.file(path, name))

    def set_by_kubelet(self, **values: str) -> str:
        """Kubelet's own cgroup of the pod, with the values of its files; returns its path."""
        path = "kubepods-burstable-poda.slice" if self.by_systemd else "/kubepods/burstable/poda"
        hierarchies = ["cg"] if self.is_v2 else ["cpu,cpuacct", "memory", "pids", "hugetlb"]
        for hierarchy in hierarchies:
            directory = Path(self.kernel.root, hierarchy)
            for part in Path(directory_of(path)).parts[1:]:
                if self.is_v2:
                    self.kernel.write(f"{directory}/cgroup.subtree_control", "+cpu +hugetlb +memory +pids")
                directory /= part
                self.kernel.mkdir(str(directory))
        for name, value in values.items():
            self.kernel.by_hand(self.file(path, name), value)
        return path

    def write_pids(self, ratio: float) -> tuple[LimitChange, ...]:
        capacity = self.driver.capacity(self.box, "pids")
        return () if capacity is None else self.driver.write_limit(self.box, "pids", max(1, int(ratio * capacity)))

    def tick(self, ratio: float = 0.25) -> list[tuple[str, bool]]:
        """The changes of the box's processes, and whether each was drift."""
        self.driver.ensure(self.box)
        self.driver.write(self.box, LIMITS)
        return [(change.new, change.drift) for change in self.write_pids(ratio)]


@pytest.fixture(params=[(1, False), (2, False), (1, True), (2, True)], ids=["v1", "v2", "v1-systemd", "v2-systemd"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    version, by_systemd = request.param
    kernel = FakeKernel(tmp_path, version)
    systemd = FakeSystemd(kernel)
    return Node(kernel, systemd, detect_any(kernel, systemd, kernel.root), by_systemd)


# --- the box ---------------------------------------------------------------------------------------------------------


def test_box_has_its_share_of_what_the_kernel_allows(node: Node) -> None:
    assert node.tick() == [(str(ALLOWED // 4), False)]
    assert node.tick() == []
    assert node.text(node.box, "pids.max") == str(ALLOWED // 4)
    assert node.driver.read_limit(node.box, "pids") == HeldLimit(ALLOWED // 4, 0)
    if node.by_systemd:
        assert node.systemd.units[node.box]["TasksMax"] == ALLOWED // 4


def test_box_has_its_share_of_what_kubelet_leaves_to_pods(node: Node) -> None:
    node.set_by_kubelet()
    node.kernel.by_hand(node.file("kubepods.slice" if node.by_systemd else "/kubepods", "pids.max"), "2000")

    node.tick()

    assert node.text(node.box, "pids.max") == "500"


def test_box_is_never_bounded_to_nothing(node: Node) -> None:
    node.kernel.by_hand("sys/kernel/threads-max", "20")

    node.tick(0.001)

    assert node.text(node.box, "pids.max") == "1"


@pytest.mark.parametrize("value", ["max", "17"])
def test_limit_on_processes_that_somebody_else_set_is_put_back_and_counted(node: Node, value: str) -> None:
    node.tick()
    node.kernel.by_hand(node.file(node.box, "pids.max"), value)

    assert node.tick() == [(str(ALLOWED // 4), True)]
    assert node.text(node.box, "pids.max") == str(ALLOWED // 4)


def test_share_that_changes_is_no_drift(node: Node) -> None:
    node.tick()

    assert node.tick(0.5) == [(str(ALLOWED // 2), False)]


def test_kernel_without_the_controller_limits_nothing_and_refuses_nobody(node: Node) -> None:
    node.tick()
    for file in Path(node.kernel.root).rglob("pids.max"):
        file.unlink()

    assert node.tick() == []
    assert node.driver.read_limit(node.box, "pids") is None
    node.driver.ensure_pod(node.pod, PodLimits(pids=64))


def test_limit_on_processes_outlasts_what_systemd_resets(node: Node) -> None:
    if not node.by_systemd:
        pytest.skip("systemd does not write there")
    node.tick()
    node.systemd.calls.clear()
    node.systemd.reset(node.box)

    assert node.tick() == []
    assert node.systemd.calls == []


def test_limit_that_systemd_was_not_told_is_told_by_the_next_tick(node: Node) -> None:
    if not node.by_systemd:
        pytest.skip("systemd has no part in it")
    node.tick()
    node.systemd.away = True
    with pytest.raises(CgroupError):
        node.write_pids(0.5)
    at_once = node.text(node.box, "pids.max")
    node.systemd.away = False

    node.tick(0.5)

    assert (at_once, node.systemd.units[node.box]["TasksMax"]) == (str(ALLOWED // 2), ALLOWED // 2)


def test_another_share_of_processes_leaves_a_squeeze_in_force(node: Node) -> None:
    """Systemd writes all that it was told when it is told of one."""
    node.tick()
    node.driver.write_limit(node.box, CPU, 0.1)
    node.write_pids(0.5)
    assert node.driver.read(node.box)["cpu"] == pytest.approx(0.1)


# --- pods ------------------------------------------------------------------------------------------------------------


def test_new_cgroup_of_a_pod_is_read_only_where_it_was_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods: the second one's start tells of nothing but itself."""
    node.tick()
    node.driver.ensure_pod(node.pod, PodLimits())
    reads, read = list[str](), node.kernel.read

    def noted(file: str) -> str:
        reads.append(file)
        return read(file)

    monkeypatch.setattr(node.kernel, "read", noted)
    other = node.pod.replace("poda", "podb")

    node.driver.ensure_pod(other, PodLimits(pids=UNLIMITED, cpu_cores=UNLIMITED if node.is_v2 else None))

    of_pod = [Path(file).name for file in reads if "podb" in file and "cpuset" not in file]
    written = "cpu.weight" if node.is_v2 else "cpu.shares"
    first = [written, *["memory.oom.group"] * 2] if node.is_v2 else [written]
    assert of_pod == first if not node.by_systemd else written in of_pod
    assert node.text(other, written) in ("1", "2")
    assert node.text(other, "pids.max") == "max"


def test_pod_has_in_the_box_what_kubelet_set_on_its_own_cgroup(node: Node) -> None:
    node.tick()
    cpu = {"cpu.weight": "20", "cpu.max": "50000 100000"} if node.is_v2 else {"cpu.shares": "512"}
    huge = "hugetlb.2MB.max" if node.is_v2 else "hugetlb.2MB.limit_in_bytes"
    own = node.set_by_kubelet(**cpu, **{"pids.max": "64", huge: "4194304"})

    found = node.driver.pod_limits(own)
    node.driver.ensure_pod(node.pod, found)

    carried = {**cpu, "pids.max": "64", huge: "4194304"}
    assert {name: node.text(node.pod, name) for name in carried} == carried
    assert node.driver.pod_limits(node.pod) == found
    assert own in parse_kubelet_parent(own).at_kubelet


def test_pod_of_which_kubelet_says_nothing_has_the_lowest_weight_and_no_limits(node: Node) -> None:
    node.tick()

    node.driver.ensure_pod(node.pod, PodLimits())

    held = node.driver.pod_limits(node.pod)
    assert (held.cpu_weight, held.pids, held.memory_bytes) == (1 if node.is_v2 else 2, UNLIMITED, None)


def test_pods_limits_outlast_a_reset_and_an_update_of_memory(node: Node) -> None:
    node.tick()
    limits = PodLimits(cpu_weight=300, pids=64)
    node.driver.ensure_pod(node.pod, limits)

    node.driver.ensure_pod(node.pod, PodLimits(memory_bytes=64 * MIB, cpu_weight=300, pids=64))
    if node.by_systemd:
        node.systemd.reset(node.pod)

    held = node.driver.pod_limits(node.pod)
    assert (held.cpu_weight, held.pids, held.memory_bytes) == (300, 64, 64 * MIB)


def test_pod_follows_a_resize(node: Node) -> None:
    node.tick()
    node.driver.ensure_pod(node.pod, PodLimits(cpu_weight=300, pids=64, cpu_cores=0.5 if node.is_v2 else None))

    node.driver.ensure_pod(node.pod, PodLimits(cpu_weight=100, pids=32, cpu_cores=UNLIMITED if node.is_v2 else None))

    held = node.driver.pod_limits(node.pod)
    assert (held.cpu_weight, held.pids) == (100, 32)
    assert held.cpu_cores == (UNLIMITED if node.is_v2 else None)
    if node.by_systemd:
        assert names(node.systemd.calls).count("start") >= 2


@pytest.mark.parametrize(
    ("kubelets", "asked_bytes", "expected"),
    [
        pytest.param(str(40 * MIB), 0, 40 * MIB, id="kubelets"),
        pytest.param(str(40 * MIB), 24 * MIB, 40 * MIB, id="kubelets-beside-an-annotation"),
        pytest.param("", 24 * MIB, 24 * MIB, id="annotation"),
        pytest.param("", 0, None, id="none"),
    ],
)
def test_memory_limit_of_a_pod_that_is_let_in_is_the_one_on_kubelets_cgroup(
    node: Node, kubelets: str, asked_bytes: int, expected: int | None
) -> None:
    name, none = ("memory.max", "max") if node.is_v2 else ("memory.limit_in_bytes", "9223372036854771712")
    place = parse_kubelet_parent(node.set_by_kubelet(**{name: kubelets or none}))
    box = Box(node.driver, BoxSettings({"cpu": 0.1, "memory": 64 * MIB}), lambda: UNLIMITED, FakeClock())

    asyncio.run(box.pods.admit(place, asked_bytes))

    assert node.driver.pod_limits(node.pod).memory_bytes == expected


def test_huge_pages_that_the_box_has_no_files_for_refuse_nobody(node: Node) -> None:
    node.tick()
    node.driver.ensure_pod(node.pod, PodLimits(hugetlb={"hugetlb.1GB.max": "0"}))

    assert "hugetlb.1GB.max" not in node.driver.pod_limits(node.pod).hugetlb


def test_limits_of_a_pod_that_goes_while_they_are_read_are_none_and_not_the_lowest(node: Node) -> None:
    path = node.set_by_kubelet()
    read = node.kernel.read

    def going(file: str) -> str:
        text = read(file)
        shutil.rmtree(Path(file).parent)
        for other in Path(node.kernel.root).rglob(Path(file).parent.name):
            shutil.rmtree(other)
        return text

    node.kernel.read = going  # type: ignore[method-assign]

    with pytest.raises(CgroupError) as caught:
        node.driver.pod_limits(path)

    assert caught.value.errno == errno.ENOENT


def carried_anew(node: Node, meanwhile: Callable[[], object]) -> tuple[str, ...]:
    """The pods whose limits were put back after this had happened."""
    place = parse_kubelet_parent(node.set_by_kubelet())
    box = Box(node.driver, BoxSettings({"cpu": 0.1, "memory": 64 * MIB}), lambda: UNLIMITED, FakeClock())

    async def carried() -> tuple[str, ...]:
        await box.pods.admit(place, 0)
        meanwhile()
        again = await box.pods.carry((place,))
        assert await box.pods.carry((place,)) == ()
        return again

    return asyncio.run(carried())


def test_kernel_kills_a_pod_whole_and_the_box_never(node: Node) -> None:
    if not node.is_v2:
        pytest.skip("cgroup v1 has no memory.oom.group")
    admitted = list[str]()

    def reset() -> None:
        admitted.append(node.text(node.pod, "memory.oom.group"))
        node.kernel.by_hand(node.file(node.pod, "memory.oom.group"), "0")

    carried = carried_anew(node, reset)

    assert (admitted, carried) == (["1"], ("poda",))
    assert (node.text(node.pod, "memory.oom.group"), node.text(node.box, "memory.oom.group")) == ("1", "0")


@pytest.mark.parametrize("off", ["cpu", "pids"])
def test_what_kubelet_has_set_counts_where_systemd_has_switched_another_controller_off(node: Node, off: str) -> None:
    if not node.is_v2:
        pytest.skip("a hierarchy of cgroup v1 has its controllers everywhere")
    names = {"memory.max": str(64 * MIB), "pids.max": "128", "cpu.weight": "500"}
    place = parse_kubelet_parent(node.set_by_kubelet(**names))
    directory = Path(node.kernel.root, "cg", directory_of(place.at_kubelet[1]).lstrip("/"))
    for file in directory.glob(f"{off}.*"):
        if file.name != "cpu.stat":
            file.unlink()
    box = Box(node.driver, BoxSettings({"cpu": 0.1, "memory": 64 * MIB}), lambda: UNLIMITED, FakeClock())

    async def carried() -> tuple[str, ...]:
        await box.pods.admit(place, 0)
        return await box.pods.carry((place,))

    assert asyncio.run(carried()) == ()
    held = node.driver.pod_limits(node.pod)
    assert held.memory_bytes == 64 * MIB
    assert held.cpu_weight == (500 if off == "pids" else 1)
    assert held.pids == (128 if off == "cpu" else UNLIMITED)


def test_kernel_without_oom_groups_has_nothing_carried_again_and_again(node: Node) -> None:
    def lack() -> None:
        for file in Path(node.kernel.root).rglob("memory.oom.group"):
            file.unlink()

    assert carried_anew(node, lack) == ()


@pytest.mark.parametrize("mid", [True, False])
def test_what_a_pod_of_a_tier_has_is_not_carried_again_and_again(node: Node, mid: bool) -> None:
    place = parse_kubelet_parent(node.set_by_kubelet())
    box = Box(node.driver, BoxSettings({"cpu": 0.1, "memory": 64 * MIB}, tiers=True), lambda: UNLIMITED, FakeClock())

    async def carried_twice() -> list[tuple[str, ...]]:
        await box.pods.admit(place, 0, mid=mid)
        return [await box.pods.carry((place,)) for _ in range(2)]

    assert asyncio.run(carried_twice()) == [(), ()]


# --- containers of a pod ---------------------------------------------------------------------------------------------

ID = "4f" * 32
ASKED = ContainerLimits(cpu_weight=79, memory_bytes=64 * MIB)


def started(node: Node, **values: str) -> str:
    """A container of the pod, with the values of its files, as runc makes it; returns its path."""
    node.driver.ensure(node.box)
    node.driver.write(node.box, LIMITS)
    node.driver.ensure_pod(node.pod, PodLimits())
    name = f"cri-containerd-{ID}.scope" if node.by_systemd else ID
    parent = "/offline.slice/offline-poda.slice" if node.by_systemd else node.pod
    path = f"{parent}/{name}"
    for hierarchy in ["cg"] if node.is_v2 else ["cpu,cpuacct", "memory"]:
        directory = Path(node.kernel.root, f"{hierarchy}{parent}")
        if node.is_v2:
            node.kernel.write(f"{directory}/cgroup.subtree_control", "+cpu +memory")
        node.kernel.mkdir(f"{directory}/{name}")
    node.kernel.by_hand(node.file(path, weight(node)), values.get("weight", lowest(node)))
    if "memory" in values:
        node.kernel.by_hand(node.file(path, memory(node)), values["memory"])
    if node.by_systemd:
        node.systemd.scope(path)
    return path


def weight(node: Node) -> str:
    return "cpu.weight" if node.is_v2 else "cpu.shares"


def lowest(node: Node) -> str:
    return "1" if node.is_v2 else "2"


def memory(node: Node) -> str:
    return "memory.max" if node.is_v2 else "memory.limit_in_bytes"


def held(node: Node, path: str) -> tuple[str, str]:
    return node.text(path, weight(node)), node.text(path, memory(node))


def test_container_has_what_it_asks_for_and_the_second_time_nothing_is_written(node: Node) -> None:
    path = started(node)

    first = node.driver.settle_container(node.pod, ID, ASKED)

    assert held(node, path) == ("79", str(64 * MIB))
    assert len(first) == 2
    assert node.driver.settle_container(node.pod, ID, ASKED) == ()
    if node.by_systemd:
        unit = node.systemd.units[path.rpartition("/")[2]]
        assert (unit["CPUWeight" if node.is_v2 else "CPUShares"], unit["MemoryMax"]) == (79, 64 * MIB)


def test_what_the_runtime_writes_anew_with_an_update_is_put_back(node: Node) -> None:
    path = started(node)
    node.driver.settle_container(node.pod, ID, ASKED)
    node.kernel.by_hand(node.file(path, weight(node)), lowest(node))

    assert len(node.driver.settle_container(node.pod, ID, ASKED)) == 1
    assert held(node, path) == ("79", str(64 * MIB))


def test_container_that_is_killed_whole_stays_so_when_systemd_is_told_of_its_limits(node: Node) -> None:
    """Kubelet has runc write memory.oom.group by file; systemd writes what it makes of the scope's own settings."""
    path = started(node)
    if node.is_v2:
        node.kernel.by_hand(node.file(path, "memory.oom.group"), "1")

    node.driver.settle_container(node.pod, ID, ASKED)

    assert held(node, path) == ("79", str(64 * MIB))
    assert not node.is_v2 or node.text(path, "memory.oom.group") == "1"


def test_pod_is_killed_whole_also_after_its_memory_limit_has_changed(node: Node) -> None:
    node.driver.ensure(node.box)
    for size in (64 * MIB, 32 * MIB, 96 * MIB):
        node.driver.ensure_pod(node.pod, PodLimits(memory_bytes=size, oom_group=True))

        assert not node.is_v2 or node.text(node.pod, "memory.oom.group") == "1"


@pytest.mark.parametrize("limit", [32, 128])
def test_what_kubelet_gave_stays_and_the_lower_memory_limit_holds(node: Node, limit: int) -> None:
    path = started(node, weight="50", memory=str(limit * MIB))

    node.driver.settle_container(node.pod, ID, ASKED)

    assert held(node, path) == ("50", str(min(limit, 64) * MIB))


def test_memory_limit_is_not_brought_below_what_is_in_use_and_follows_it(node: Node) -> None:
    path = started(node)
    node.kernel.use(path, 100 * MIB)

    node.driver.settle_container(node.pod, ID, ASKED)
    between = int(node.text(path, memory(node)))
    node.kernel.use(path, 10 * MIB)
    node.driver.settle_container(node.pod, ID, ASKED)

    assert 100 * MIB <= between < 110 * MIB
    assert held(node, path) == ("79", str(64 * MIB))


@pytest.mark.parametrize("id", ["", "0" * 64])
def test_container_that_has_no_cgroup_is_none_of_ours(node: Node, id: str) -> None:
    path = started(node)
    before = held(node, path)

    assert node.driver.settle_container(node.pod, id, ASKED) == ()
    assert held(node, path) == before


def test_only_containers_of_pods_in_the_box_are_touched(node: Node) -> None:
    with pytest.raises(CgroupError):
        node.driver.settle_container("kubepods-poda.slice" if node.by_systemd else "/kubepods/poda", ID, ASKED)


@pytest.mark.parametrize("node", [(2, False), (2, True)], ids=["v2", "v2-systemd"], indirect=True)
def test_resize_that_was_refused_leaves_the_pod_unsqueezed(node: Node) -> None:
    place = parse_kubelet_parent(node.set_by_kubelet(**{"memory.max": str(100 * MIB)}))
    box = Box(node.driver, BoxSettings({"cpu": 0.1, "memory": 64 * MIB}), lambda: UNLIMITED, FakeClock())
    asyncio.run(box.pods.admit(place, 0))
    node.kernel.use(directory_of(node.pod), anon=95 * MIB)

    async def refused() -> tuple[str, ...]:
        with pytest.raises(AdmissionError):
            await box.pods.update_pod(place, Resources(memory_limit_bytes=64 * MIB))
        return await box.pods.carry([place])

    assert asyncio.run(refused()) == (() if node.by_systemd else ("poda",))
    assert node.text(node.pod, "memory.high") in ("max", str(100 * MIB))
    assert node.text(node.pod, "memory.max") == str(100 * MIB)
    assert asyncio.run(box.pods.carry([place])) == ()


def test_conmon_beside_a_container_gets_nothing_of_what_the_container_asks_for(node: Node) -> None:
    path = started(node)
    parent = path.rpartition("/")[0]
    conmon = f"{parent}/crio-conmon-{ID}{'.scope' if node.by_systemd else ''}"
    for hierarchy in ["cg"] if node.is_v2 else ["cpu,cpuacct", "memory"]:
        node.kernel.mkdir(f"{node.kernel.root}/{hierarchy}{conmon}")
    names = node.kernel.children

    def conmon_first(directory: str) -> tuple[str, ...]:
        return tuple(sorted(names(directory), key=lambda one: "conmon" not in one))

    node.kernel.children = conmon_first  # type: ignore[method-assign]
    before = held(node, conmon)

    node.driver.settle_container(node.pod, ID, ASKED)

    assert held(node, path) == ("79", str(64 * MIB))
    assert held(node, conmon) == before
