"""What is cgroup v1's own: a directory per hierarchy, cpusets, memsw, children's quotas."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.model import UNLIMITED
from tests.fakes.kernel import NO_LIMIT_V1, V1, FakeKernel

BOX, POD = "/kubelet/offline", "/kubelet/offline/poda"
MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path, 1)


@pytest.fixture
def driver(kernel: FakeKernel) -> CgroupDriver:
    return detect(kernel, kernel.root)


@pytest.mark.parametrize("hierarchy", V1)
def test_box_is_in_every_hierarchy_that_runc_joins_and_a_pod_where_it_is_bounded(
    kernel: FakeKernel, driver: CgroupDriver, hierarchy: str
) -> None:
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())

    left_to_runc = "blkio", "systemd", "unified"
    assert kernel.exists(f"{kernel.root}/{hierarchy}{BOX}")
    assert kernel.exists(f"{kernel.root}/{hierarchy}{POD}") is (hierarchy not in left_to_runc)


def test_pod_goes_from_every_hierarchy(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())
    for hierarchy in V1:  # runc has made the others
        kernel.mkdir(f"{kernel.root}/{hierarchy}{POD}")

    assert driver.remove_pod(POD)
    assert [hierarchy for hierarchy in V1 if kernel.exists(f"{kernel.root}/{hierarchy}{POD}")] == []


def test_cpuset_is_filled_from_the_top_down(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())

    for path in ("/kubelet", BOX, POD):
        assert kernel.file(f"cpuset{path}/cpuset.cpus") == "0-3"
        assert kernel.file(f"cpuset{path}/cpuset.mems") == "0"


def test_cpuset_of_an_existing_prefix_is_left_alone_and_passed_on(kernel: FakeKernel, driver: CgroupDriver) -> None:
    kernel.mkdir(f"{kernel.root}/cpuset/kubelet")
    kernel.by_hand("cpuset/kubelet/cpuset.cpus", "1,3")
    kernel.by_hand("cpuset/kubelet/cpuset.mems", "0")

    driver.ensure(BOX)

    assert not [file for file, _ in kernel.writes if "/kubelet/cpuset" in file]
    assert kernel.file(f"cpuset{BOX}/cpuset.cpus") == "1,3"


@pytest.mark.parametrize("hierarchy", V1)
def test_box_that_one_hierarchy_has_lost_is_made_there_anew(
    kernel: FakeKernel, driver: CgroupDriver, hierarchy: str
) -> None:
    driver.ensure(BOX)
    kernel.rmdir(f"{kernel.root}/{hierarchy}{BOX}")
    kernel.rmdir(f"{kernel.root}/{hierarchy}/kubelet")

    driver.ensure(BOX)

    assert kernel.exists(f"{kernel.root}/{hierarchy}{BOX}")


def test_cpuset_that_is_there_and_empty_is_filled(kernel: FakeKernel, driver: CgroupDriver) -> None:
    for path in ("/kubelet", BOX):
        kernel.mkdir(f"{kernel.root}/cpuset{path}")

    driver.ensure(BOX)

    assert [kernel.file(f"cpuset{path}/cpuset.cpus") for path in ("/kubelet", BOX)] == ["0-3", "0-3"]


def test_memsw_follows_the_limit_both_ways(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)

    for size in (100 * MIB, 50 * MIB, 200 * MIB):
        driver.write(BOX, {"cpu": 1.0, "memory": size})
        assert kernel.file(f"memory{BOX}/memory.memsw.limit_in_bytes") == str(size)


def test_limit_stays_while_memory_is_squeezed_as_it_would_kill(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 << 20, "memory_high": 64 << 20})

    assert kernel.file(f"memory{BOX}/memory.limit_in_bytes") == str(512 << 20)


def test_memory_without_swap_accounting_is_limited_too(tmp_path: Path) -> None:
    (tmp_path / "noswap").mkdir()
    kernel = FakeKernel(tmp_path / "noswap", 1, lacks=("memory.memsw.limit_in_bytes",))
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    driver.write(BOX, {"cpu": 1.0, "memory": 100 * MIB})

    assert kernel.file(f"memory{BOX}/memory.limit_in_bytes") == str(100 * MIB)


def test_quota_below_a_childs_strips_the_childs(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    driver.ensure_pod(POD, PodLimits())
    kernel.by_hand(f"cpu,cpuacct{POD}/cpu.cfs_quota_us", "80000")

    changes = driver.write(BOX, {"cpu": 0.5, "memory": 512 * MIB})

    assert kernel.file(f"cpu,cpuacct{BOX}/cpu.cfs_quota_us") == "50000"
    assert kernel.file(f"cpu,cpuacct{POD}/cpu.cfs_quota_us") == "-1"
    assert [(change.old, change.new) for change in changes if change.drift] == [("80000", "-1")]


def test_quota_above_the_box_that_forbids_its_own_is_named_and_memory_and_priority_hold(
    kernel: FakeKernel, driver: CgroupDriver
) -> None:
    driver.ensure(BOX)
    kernel.by_hand("cpu,cpuacct/kubelet/cpu.cfs_quota_us", "50000")

    with pytest.raises(CgroupError, match=r"/kubelet/cpu\.cfs_quota_us allows 0\.5 cores.* no limit of 2 cores .*lift"):
        driver.write(BOX, {"cpu": 2.0, "memory": 512 * MIB})

    assert kernel.file(f"memory{BOX}/memory.limit_in_bytes") == str(512 * MIB)
    assert kernel.file(f"cpu,cpuacct{BOX}/cpu.idle") == "1"


def test_quota_that_no_cgroup_above_the_box_forbids_is_the_kernels_error(
    kernel: FakeKernel, driver: CgroupDriver
) -> None:
    driver.ensure(BOX)
    kernel.by_hand("cpu,cpuacct/kubelet/cpu.cfs_quota_us", "50000")
    kernel.by_hand("cpu,cpuacct/kubelet/cpu.cfs_period_us", "10000")  # of which the fake kernel knows nothing

    with pytest.raises(CgroupError, match=r"offline/cpu\.cfs_quota_us: EINVAL"):
        driver.write(BOX, {"cpu": 2.0, "memory": 512 * MIB})


def test_period_of_somebody_else_is_put_back(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    kernel.by_hand(f"cpu,cpuacct{BOX}/cpu.cfs_period_us", "10000")

    changes = driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert [(change.old, change.new, change.drift) for change in changes] == [("10000", "100000", True)]


def test_hierarchical_memory_is_switched_on_where_the_kernel_leaves_it_off(
    kernel: FakeKernel, driver: CgroupDriver
) -> None:
    driver.ensure(BOX)
    kernel.by_hand(f"memory{BOX}/memory.use_hierarchy", "0")

    driver.ensure(BOX)

    assert kernel.file(f"memory{BOX}/memory.use_hierarchy") == "1"
    assert kernel.file(f"memory{BOX}/memory.limit_in_bytes") == str(NO_LIMIT_V1)


# --- CPUs that come and go ---------------------------------------------------------------------------------------


def cpus(kernel: FakeKernel, *paths: str) -> list[str]:
    return [kernel.file(f"cpuset{path}/cpuset.cpus") for path in paths]


@pytest.fixture
def container(kernel: FakeKernel, driver: CgroupDriver) -> str:
    """A container, with all of the box's CPUs, as runc gives them."""
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())
    path = f"{POD}/container"
    kernel.mkdir(f"{kernel.root}/cpuset{path}")
    kernel.by_hand(f"cpuset{path}/cpuset.cpus", "0-3")
    kernel.by_hand(f"cpuset{path}/cpuset.mems", "0")
    return path


def test_cpus_that_come_are_the_boxs_too(kernel: FakeKernel, driver: CgroupDriver, container: str) -> None:
    kernel.plug("0-5")
    kernel.by_hand("cpuset/kubelet/cpuset.cpus", "0-5")

    driver.confine(BOX, UNLIMITED)

    assert cpus(kernel, BOX, POD, container) == ["0-5"] * 3


def test_cpus_that_went_and_come_back_are_the_boxs_again(
    kernel: FakeKernel, driver: CgroupDriver, container: str
) -> None:
    kernel.plug("0-1")
    driver.confine(BOX, UNLIMITED)
    without = cpus(kernel, BOX, POD, container)
    kernel.plug("0-3")
    kernel.by_hand("cpuset/kubelet/cpuset.cpus", "0-3")

    driver.confine(BOX, UNLIMITED)

    assert without == ["0,1"] * 3
    assert cpus(kernel, BOX, POD, container) == ["0-3"] * 3


def test_cpus_that_are_others_now_are_reached_over_the_union(
    kernel: FakeKernel, driver: CgroupDriver, container: str
) -> None:
    kernel.cpuset_v2_mode = True  # else the kernel does not let the parent go first
    kernel.by_hand("cpuset/kubelet/cpuset.cpus", "2-5")
    kernel.writes.clear()

    driver.confine(BOX, UNLIMITED)

    paths = [BOX, POD, container]
    up, down = [(path, "0-5") for path in paths], [(path, "2-5") for path in reversed(paths)]
    written = [(file.removeprefix(f"{kernel.root}/cpuset").rpartition("/")[0], text) for file, text in kernel.writes]
    assert written == up + down


def test_cpus_that_a_container_was_given_stay(kernel: FakeKernel, driver: CgroupDriver, container: str) -> None:
    kernel.by_hand(f"cpuset{container}/cpuset.cpus", "2")
    kernel.plug("0-5")
    kernel.by_hand("cpuset/kubelet/cpuset.cpus", "0-5")

    driver.confine(BOX, UNLIMITED)

    assert cpus(kernel, BOX, POD, container) == ["0-5", "0-5", "2"]


def test_cpus_that_stay_are_not_written_again(kernel: FakeKernel, driver: CgroupDriver, container: str) -> None:
    kernel.writes.clear()

    driver.confine(BOX, UNLIMITED)

    assert kernel.writes == []


@pytest.mark.parametrize(("file", "lowest"), [("blkio.bfq.weight", "1"), ("blkio.weight", "10")], ids=["bfq", "cfq"])
def test_disk_weight_is_the_lowest_and_put_back(
    kernel: FakeKernel, driver: CgroupDriver, file: str, lowest: str
) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    assert kernel.file(f"blkio{BOX}/{file}") == lowest
    kernel.by_hand(f"blkio{BOX}/{file}", "300")

    changes = driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert [(Path(change.file).name, change.drift) for change in changes] == [(file, True)]
    assert kernel.file(f"blkio{BOX}/{file}") == lowest


def test_kernel_without_disk_weights_is_bounded_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    kernel = FakeKernel(tmp_path / "plain", 1, lacks=("blkio.weight", "blkio.bfq.weight"))
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert kernel.file(f"memory{BOX}/memory.limit_in_bytes") == str(512 * MIB)
