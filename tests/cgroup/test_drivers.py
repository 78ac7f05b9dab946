"""What both drivers promise, against a fake kernel of either version."""

import errno
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from criproxy.cgroup import kernel_files
from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.kernel_driver import KernelDriver, processes_in
from criproxy.cgroup.v2 import V2Hierarchy
from criproxy.model import UNLIMITED, LimitChange, Unlimited, Usage
from tests.cgroup.sinking import bring
from tests.fakes.kernel import FakeKernel

BOX = "/kubelet/offline"
POD = f"{BOX}/poda"
MIB = 1 << 20
LIFTED = {"cpu": UNLIMITED, "memory": UNLIMITED}


@dataclass(frozen=True)
class Node:
    kernel: FakeKernel
    driver: CgroupDriver

    def names(self, by_v1: str, by_v2: str) -> str:
        return by_v1 if self.kernel.version == 1 else by_v2

    @property
    def cpu(self) -> str:
        return self.names("cpu,cpuacct", "cg")

    @property
    def memory(self) -> str:
        return self.names("memory", "cg")

    def limit(self, path: str) -> str:
        return self.kernel.text(path, "memory.limit_in_bytes", "memory.max")

    def quota(self, path: str) -> str:
        return self.kernel.text(path, "cpu.cfs_quota_us", "cpu.max")

    def enter(self, path: str, pids: str) -> None:
        self.kernel.by_hand(f"{self.memory}{path}/cgroup.procs", pids)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    kernel = FakeKernel(tmp_path, request.param)
    return Node(kernel, detect(kernel, str(tmp_path)))


@pytest.fixture
def box(node: Node) -> Node:
    node.driver.ensure(BOX)
    node.driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    return node


def test_ensure_twice_changes_nothing_the_second_time(node: Node) -> None:
    node.driver.ensure(BOX)
    node.kernel.writes.clear()

    node.driver.ensure(BOX)

    assert node.driver.exists(BOX)
    assert node.kernel.writes == []


NO_SWAP_ACCOUNTING = ("memory.swap.max", "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes")


@pytest.mark.parametrize(
    ("lacks", "swap_kb", "memory"),
    [
        pytest.param(NO_SWAP_ACCOUNTING, 2048, 512 * MIB, id="not-counted"),
        pytest.param(NO_SWAP_ACCOUNTING, 0, 512 * MIB, id="none-on-the-node"),
        pytest.param(NO_SWAP_ACCOUNTING, 2048, UNLIMITED, id="not-limited"),
        pytest.param((), 2048, 512 * MIB, id="counted"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_limited_box_may_be_swapped_out_where_the_kernel_does_not_count_swap(
    tmp_path: Path, version: int, lacks: tuple[str, ...], swap_kb: int, memory: int | Unlimited
) -> None:
    kernel = FakeKernel(tmp_path, version, lacks)
    kernel.by_hand("meminfo", f"{kernel.read(f'{tmp_path}/meminfo')}\nSwapTotal: {swap_kb} kB\n")
    driver = detect(kernel, str(tmp_path))
    without = driver.may_swap(BOX)
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": memory})

    assert not without
    assert driver.may_swap(BOX) == bool(lacks and swap_kb and memory is not UNLIMITED)


def test_priority_that_the_kernel_refuses_keeps_no_limit_from_holding(node: Node) -> None:
    node.driver.ensure(BOX)
    node.kernel.contested.add(f"{node.kernel.root}/{node.cpu}{BOX}/cpu.idle")

    with pytest.raises(CgroupError, match=r"cpu\.idle"):
        node.driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert node.driver.read(BOX) == {"cpu": 1.0, "memory": 512 * MIB}


def test_write_bounds_the_box_at_the_lowest_priority(node: Node) -> None:
    node.driver.ensure(BOX)

    changes = node.driver.write(BOX, {"cpu": 0.5, "memory": 100 * MIB + 1})

    assert node.driver.read(BOX) == {"cpu": 0.5, "memory": 100 * MIB}
    assert node.kernel.text(BOX, "cpu.idle") == "1"
    assert not any(change.drift for change in changes)
    assert node.driver.write(BOX, {"cpu": 0.5, "memory": 100 * MIB + 1}) == ()


def test_write_without_cpu_idle_takes_the_lowest_weight(tmp_path: Path, node: Node) -> None:
    (tmp_path / "old").mkdir()
    kernel = FakeKernel(tmp_path / "old", node.kernel.version, lacks=("cpu.idle",))
    driver = detect(kernel, str(tmp_path / "old"))
    driver.ensure(BOX)

    driver.write(BOX, LIFTED)

    assert not driver.cpu_idle
    assert kernel.text(BOX, "cpu.shares", "cpu.weight") == node.names("2", "1")


def test_driver_tells_the_version_and_whether_there_is_cpu_idle(box: Node) -> None:
    driver = detect(box.kernel, box.kernel.root)

    assert (driver.version, driver.cpu_idle) == (box.kernel.version, True)


def test_write_up_and_down_reaches_each_limit(box: Node) -> None:
    for cores, size in [(2.0, 900 * MIB), (0.25, 64 * MIB), (0.001, 0), (3.5, 4096), (1.0, 2000 * MIB)]:
        box.driver.write(BOX, {"cpu": cores, "memory": size})
        assert box.driver.read(BOX) == {"cpu": max(cores, 0.01), "memory": size}


def test_write_of_no_limits_lifts_them_and_keeps_the_priority(box: Node) -> None:
    box.driver.write(BOX, LIFTED)

    assert box.driver.read(BOX) == LIFTED
    assert box.kernel.text(BOX, "cpu.idle") == "1"


def test_write_puts_drift_back_and_says_so(box: Node) -> None:
    quota = box.names("cpu.cfs_quota_us", "cpu.max")
    box.kernel.by_hand(f"{box.cpu}{BOX}/{quota}", box.names("-1", "max 100000"))
    box.kernel.by_hand(f"{box.cpu}{BOX}/cpu.idle", "0")

    changes = box.driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert {(Path(change.file).name, change.drift) for change in changes} == {(quota, True), ("cpu.idle", True)}
    assert box.driver.read(BOX) == {"cpu": 1.0, "memory": 512 * MIB}


def test_write_of_a_new_limit_is_no_drift(box: Node) -> None:
    changes = box.driver.write(BOX, {"cpu": 0.7, "memory": 256 * MIB})

    assert changes
    assert not any(change.drift for change in changes)


def test_write_to_a_file_that_somebody_else_holds_fails(box: Node) -> None:
    file = f"{box.kernel.root}/{box.cpu}{BOX}/{box.names('cpu.cfs_quota_us', 'cpu.max')}"
    box.kernel.contested.add(file)

    with pytest.raises(CgroupError, match="who else writes it") as caught:
        box.driver.write(BOX, {"cpu": 0.5, "memory": 512 * MIB})

    assert file in str(caught.value)


def test_box_that_was_made_anew_starts_without_drift(box: Node) -> None:
    hierarchies = (
        ("cpu,cpuacct", "cpuset", "memory", "pids", "systemd", "unified") if box.kernel.version == 1 else ("cg",)
    )
    for hierarchy in hierarchies:
        box.kernel.rmdir(f"{box.kernel.root}/{hierarchy}{BOX}")
    box.driver.ensure(BOX)

    changes = box.driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert changes
    assert not any(change.drift for change in changes)


# --- memory ------------------------------------------------------------------------------------------------------


def test_memory_limit_below_page_cache_reclaims_it(box: Node) -> None:
    box.kernel.use(BOX, anon=10 * MIB, cache=400 * MIB)

    bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})

    assert box.driver.read(BOX)["memory"] == 64 * MIB


def test_write_waits_for_no_reclaim_and_leaves_a_bound_above_the_usage(box: Node) -> None:
    box.driver.write(BOX, LIFTED)
    box.kernel.use(BOX, anon=100 * MIB, cache=900 * MIB)

    changes = box.driver.write(BOX, {"cpu": 0.5, "memory": 64 * MIB})

    assert box.kernel.cache == {box.kernel.where("memory", BOX): 900 * MIB}
    assert box.driver.read(BOX) == {"cpu": 0.5, "memory": 1008 * MIB}
    assert not any(change.drift for change in changes)


def test_limit_that_rises_while_memory_is_reclaimed_is_no_drift_and_no_contest(box: Node) -> None:
    """The step that is under way ends right after the new limit was written."""
    box.kernel.use(BOX, cache=500 * MIB)
    write = box.kernel.write

    def amid(path: str, value: str) -> None:
        box.kernel.write = write  # type: ignore[method-assign]
        changes.extend(box.driver.write(BOX, {"cpu": 1.0, "memory": 600 * MIB}))
        write(path, value)

    changes: list[LimitChange] = []
    box.kernel.write = amid  # type: ignore[method-assign, assignment]
    box.driver.memory.reclaim(BOX, 400 * MIB)
    left = box.kernel.text(BOX, "memory.limit_in_bytes", "memory.high")
    changes += box.driver.write(BOX, {"cpu": 1.0, "memory": 600 * MIB})

    assert left == str(400 * MIB)
    assert box.driver.read(BOX) == {"cpu": 1.0, "memory": 600 * MIB}
    assert not any(change.drift for change in changes)


def test_reclaim_takes_one_step_at_a_time_and_never_raises(box: Node) -> None:
    box.driver.write(BOX, {"cpu": 1.0, "memory": 20_000 * MIB})
    box.kernel.use(BOX, cache=1000 * MIB)

    goes_on = [box.driver.memory.reclaim(BOX, 300 * MIB) for _ in range(4)]

    assert goes_on == [True, True, False, False]
    assert box.kernel.cache == {box.kernel.where("memory", BOX): 300 * MIB}
    assert not box.driver.memory.reclaim(BOX, 900 * MIB)
    assert box.kernel.text(BOX, "memory.limit_in_bytes", "memory.high") == str(300 * MIB)


def test_memory_limit_below_anonymous_memory_is_approached_without_a_kill(box: Node) -> None:
    box.kernel.use(BOX, anon=200 * MIB, cache=100 * MIB)
    box.kernel.writes.clear()

    bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})

    assert len(box.kernel.writes) <= 5, "it goes on trying what the kernel has refused"
    held = box.driver.read(BOX)["memory"]
    assert isinstance(held, int)
    assert 200 * MIB < held <= 210 * MIB


def test_memory_limit_goes_on_when_memory_becomes_free_and_counts_no_drift(box: Node) -> None:
    box.kernel.use(BOX, anon=200 * MIB)
    bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})
    again = bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})
    box.kernel.use(BOX, anon=20 * MIB)

    changes = bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})

    assert again == ()
    assert box.driver.read(BOX)["memory"] == 64 * MIB
    assert not any(change.drift for change in changes)


def test_memory_limit_being_approached_is_never_raised(box: Node) -> None:
    box.kernel.use(BOX, anon=200 * MIB)
    bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})
    before = box.driver.read(BOX)["memory"]
    box.kernel.use(BOX, anon=205 * MIB)

    bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})

    assert box.driver.read(BOX)["memory"] == before


def test_memory_limit_far_below_the_usage_sinks_in_steps(box: Node) -> None:
    box.driver.write(BOX, {"cpu": 1.0, "memory": 20_000 * MIB})
    box.kernel.use(BOX, cache=10_000 * MIB)

    bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})
    first = box.driver.usage(BOX)
    for _ in range(6):
        bring(box.driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})

    assert first is not None
    assert 7_000 * MIB < first.working_set_bytes < 9_000 * MIB
    assert box.driver.read(BOX)["memory"] == 64 * MIB


# --- usage -------------------------------------------------------------------------------------------------------


def test_usage_of_a_cgroup_that_does_not_exist_is_none(node: Node) -> None:
    assert node.driver.usage(BOX) is None
    assert not node.driver.exists(BOX)
    assert node.driver.pods(BOX) == ()
    assert processes_in(node.driver.files, BOX) == ()


def test_usage_counts_working_set_and_throttling(box: Node) -> None:
    box.kernel.use(BOX, anon=10 * MIB)

    usage = box.driver.usage(BOX)

    assert usage == Usage(1.5, 10 * MIB - 4096, 2.5, 10 * MIB, anon_bytes=8292, reclaimable_bytes=4096)


def test_page_cache_and_slab_are_not_given_back(box: Node) -> None:
    box.kernel.use(BOX, anon=10 * MIB)
    row = box.driver.files.file(kernel_files.MEMORY_STAT, BOX)
    prefix = "total_" if box.driver.version == 1 else ""
    with open(row, "a", encoding="ascii") as stat:
        stat.write(f"\n{prefix}active_file 20480\n{'' if box.driver.version == 1 else 'slab_reclaimable 8192'}\n")
    usage = box.driver.usage(BOX)

    assert usage is not None
    assert usage.reclaimable_bytes == 4096 + 20480 + (0 if box.driver.version == 1 else 8192)


def test_node_usage_of_v1_is_the_root_cgroups_cpu_and_the_nodes_memory(tmp_path: Path) -> None:
    assert detect(FakeKernel(tmp_path, 1), str(tmp_path)).node_usage() == Usage(1.5, 500 * 1024)


def test_node_usage_of_v2_is_what_its_cpus_were_not_idle_and_the_nodes_memory(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2)
    now_s = [100.0]
    version = V2Hierarchy(f"{tmp_path}/cg", kernel, str(tmp_path), lambda: now_s[0])
    driver = KernelDriver(version, kernel, str(tmp_path))

    kernel.idle({0: 10.0, 1: 20.0})
    first = driver.node_usage()
    now_s[0] += 2.0
    kernel.idle({0: 10.5, 1: 22.0})

    assert (first, driver.node_usage()) == (Usage(0.0, 500 * 1024), Usage(1.5, 500 * 1024))


# --- pods --------------------------------------------------------------------------------------------------------


def test_pod_is_made_at_the_lowest_weight_with_its_own_limit(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB))

    assert box.driver.pods(BOX) == ("poda",)
    assert box.kernel.text(POD, "cpu.shares", "cpu.weight") == box.names("2", "1")
    assert box.limit(POD) == str(64 * MIB)
    assert box.quota(POD) == box.names("-1", "max 100000")


def test_pod_without_memory_limit_keeps_the_one_it_has(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB))
    box.driver.ensure_pod(POD, PodLimits())

    assert box.limit(POD) == str(64 * MIB)


def test_pod_limit_below_its_usage_is_an_error_and_no_kill(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB))
    box.kernel.use(POD, anon=32 * MIB)

    with pytest.raises(CgroupError, match="bytes are in use"):
        box.driver.ensure_pod(POD, PodLimits(memory_bytes=16 * MIB))


def test_pod_without_a_box_is_refused_by_the_kernel(node: Node) -> None:
    with pytest.raises(CgroupError) as caught:
        node.driver.ensure_pod(POD, PodLimits())

    assert caught.value.errno == errno.ENOENT


def test_pods_leave_out_what_is_not_a_pods(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits())
    box.kernel.mkdir(f"{box.kernel.root}/{box.cpu}{BOX}/other")

    assert box.driver.pods(BOX) == ("poda",)


def test_remove_takes_an_empty_pod_from_every_controller(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits())
    for hierarchy in (box.cpu, box.memory):
        box.kernel.mkdir(f"{box.kernel.root}/{hierarchy}{POD}/container")

    assert box.driver.remove_pod(POD)

    assert not list(Path(box.kernel.root).rglob("poda"))
    assert box.driver.exists(BOX)
    assert box.driver.remove_pod(POD)


def test_remove_of_a_pod_with_a_process_leaves_it_whole(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits())
    for container in ("empty", "busy", "empty_too"):
        box.kernel.mkdir(f"{box.kernel.root}/{box.memory}{POD}/{container}")
    box.enter(f"{POD}/busy", "17")
    before = sorted(Path(box.kernel.root).rglob("*"))

    assert not box.driver.remove_pod(POD)

    assert sorted(Path(box.kernel.root).rglob("*")) == before
    assert processes_in(box.driver.files, POD) == processes_in(box.driver.files, BOX) == (17,)


def test_kill_of_a_pod_ends_all_that_is_in_it_and_nothing_beside_it(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits())
    box.driver.ensure_pod(f"{BOX}/podb", PodLimits())
    box.kernel.mkdir(f"{box.kernel.root}/{box.memory}{POD}/container")
    box.enter(f"{POD}/container", "17")
    box.enter(f"{BOX}/podb", "18")

    box.driver.kill_pod(POD)

    assert processes_in(box.driver.files, BOX) == (18,)
    assert box.driver.remove_pod(POD)


OUTSIDE = [
    "",
    "/",
    "/kubelet",
    BOX,
    "/kubepods/besteffort/poda",
    "/kubelet/offline/../kubepods/poda",
    "/kubelet/offline/../poda",
    "/kubelet/offline/poda/container",
    "/kubelet/offline/other",
    "/kubelet/offline/",
    "offline/poda",
    "offline-poda-b.slice",
    "kubepods-poda.slice",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_remove_and_make_of_what_is_no_pod_in_a_box_are_refused(box: Node, path: str) -> None:
    box.kernel.writes.clear()
    before = sorted(Path(box.kernel.root).rglob("*"))

    with pytest.raises(CgroupError):
        box.driver.remove_pod(path)
    with pytest.raises(CgroupError):
        box.driver.kill_pod(path)
    with pytest.raises(CgroupError):
        box.driver.ensure_pod(path, PodLimits())

    assert sorted(Path(box.kernel.root).rglob("*")) == before
    assert box.kernel.writes == []


@pytest.mark.parametrize("path", ["", "/", "/kubepods", "/kubepods/poda", "/x/../offline", POD, "offline.slice"])
def test_ensure_and_write_of_what_is_no_box_are_refused(node: Node, path: str) -> None:
    with pytest.raises(CgroupError):
        node.driver.ensure(path)
    with pytest.raises(CgroupError):
        node.driver.write(path, LIFTED)

    assert node.kernel.writes == []


@pytest.mark.parametrize("path", ["/..", "/a/../b", "a", "/a\0b"])
def test_reading_outside_the_tree_is_refused(node: Node, path: str) -> None:
    for reading in (node.driver.usage, node.driver.exists, partial(processes_in, node.driver.files)):
        with pytest.raises(CgroupError, match="not an absolute cgroup path"):
            reading(path)
