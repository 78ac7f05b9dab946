"""What is cgroup v2's own: controllers enabled from the top down, memory.high before memory.max, swap."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, PodLimits
from criproxy.cgroup.kernel_driver import processes_in
from criproxy.model import UNLIMITED
from tests.cgroup.sinking import bring
from tests.fakes.kernel import FakeKernel

BOX, POD = "/kubelet/offline", "/kubelet/offline/poda"
MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path, 2)


@pytest.fixture
def driver(kernel: FakeKernel) -> CgroupDriver:
    return detect(kernel, kernel.root)


@pytest.mark.parametrize("path", ["", "/kubelet", BOX])
def test_controllers_that_exist_are_enabled_from_the_top_down(
    kernel: FakeKernel, driver: CgroupDriver, path: str
) -> None:
    driver.ensure(BOX)

    assert kernel.file(f"cg{path}/cgroup.subtree_control") == "cpu hugetlb io memory pids"


def test_controller_that_somebody_else_enabled_stays(kernel: FakeKernel, driver: CgroupDriver) -> None:
    kernel.by_hand("cg/cgroup.subtree_control", "misc")

    driver.ensure(BOX)

    assert kernel.file("cg/cgroup.subtree_control") == "cpu hugetlb io memory misc pids"


def test_pod_has_the_controllers(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB))

    assert kernel.file(f"cg{POD}/cgroup.controllers") == "cpu hugetlb io memory pids"
    assert kernel.file(f"cg{POD}/memory.max") == str(64 * MIB)


def test_swap_is_off_while_memory_is_limited(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    limited = kernel.file(f"cg{BOX}/memory.swap.max")
    driver.write(BOX, {"cpu": 1.0, "memory": UNLIMITED})

    assert (limited, kernel.file(f"cg{BOX}/memory.swap.max")) == ("0", "max")


def test_kernel_without_swap_has_its_memory_limited_too(tmp_path: Path) -> None:
    (tmp_path / "noswap").mkdir()
    kernel = FakeKernel(tmp_path / "noswap", 2, lacks=("memory.swap.max",))
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert kernel.file(f"cg{BOX}/memory.max") == str(512 * MIB)


def test_high_stands_at_the_limit_and_is_lifted_with_it(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    limited = kernel.file(f"cg{BOX}/memory.high")
    driver.write(BOX, {"cpu": 1.0, "memory": UNLIMITED})

    assert (limited, kernel.file(f"cg{BOX}/memory.high")) == (str(512 * MIB), "max")


def test_high_is_not_written_again_while_nothing_can_be_reclaimed(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    kernel.use(BOX, 2000 * MIB)
    bring(driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})
    kernel.writes.clear()

    bring(driver, BOX, {"cpu": 1.0, "memory": 64 * MIB})

    assert kernel.writes == []
    assert kernel.file(f"cg{BOX}/memory.high") == str(64 * MIB)


SQUEEZED = {"cpu": 1.0, "memory": 512 * MIB, "memory_high": 64 * MIB}


def test_squeeze_reclaims_the_box_and_leaves_the_limit_that_kills(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    kernel.use(BOX, 100 * MIB, 300 * MIB)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    driver.write(BOX, SQUEEZED)
    while driver.memory.reclaim(BOX, 64 * MIB):
        pass
    kernel.anon[kernel.where("memory", BOX)] = 500 * MIB  # it grows all the same, and nobody is killed
    driver.write(BOX, SQUEEZED)

    assert (kernel.file(f"cg{BOX}/memory.high"), kernel.file(f"cg{BOX}/memory.max")) == (str(64 * MIB), str(512 * MIB))
    assert kernel.cache[kernel.where("memory", BOX)] == 0


def test_squeeze_of_a_box_that_uses_less_holds_at_once_and_ends_with_the_next_write(
    kernel: FakeKernel, driver: CgroupDriver
) -> None:
    driver.ensure(BOX)
    kernel.use(BOX, 10 * MIB)
    driver.write(BOX, SQUEEZED)
    held = kernel.file(f"cg{BOX}/memory.high"), kernel.file(f"cg{BOX}/memory.max")
    changes = driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert held == (str(64 * MIB), str(512 * MIB))
    assert kernel.file(f"cg{BOX}/memory.high") == str(512 * MIB)
    assert [(change.file.rpartition("/")[2], change.drift) for change in changes] == [("memory.high", False)]


def test_squeeze_that_the_kernel_holds_is_read_back_and_survives_who_wrote_it(
    kernel: FakeKernel, driver: CgroupDriver
) -> None:
    driver.ensure(BOX)
    driver.write(BOX, SQUEEZED)
    again = detect(kernel, kernel.root)
    held = again.read(BOX)
    again.write(BOX, held)
    after = kernel.file(f"cg{BOX}/memory.high")
    again.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert (held, after) == (SQUEEZED, str(64 * MIB))
    assert again.read(BOX) == {"cpu": 1.0, "memory": 512 * MIB}


def test_squeeze_is_never_above_the_limit(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {**SQUEEZED, "memory_high": 4096 * MIB})

    assert kernel.file(f"cg{BOX}/memory.high") == str(512 * MIB)


def test_io_weight_is_the_lowest_and_a_devices_own_stays(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    kernel.by_hand(f"cg{BOX}/io.weight", "default 100\n8:0 50")
    kernel.by_hand(f"cg{BOX}/io.bfq.weight", "default 100")
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})
    written = kernel.file(f"cg{BOX}/io.weight"), kernel.file(f"cg{BOX}/io.bfq.weight")
    kernel.by_hand(f"cg{BOX}/io.weight", "default 1\n8:0 50")
    kernel.writes.clear()

    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert written == ("default 1", "default 1")
    assert kernel.writes == []


def test_kernel_without_io_weights_is_bounded_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    kernel = FakeKernel(tmp_path / "plain", 2, lacks=("io.weight",))
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert kernel.file(f"cg{BOX}/memory.max") == str(512 * MIB)


def test_oom_group_is_left_off(kernel: FakeKernel, driver: CgroupDriver) -> None:
    driver.ensure(BOX)
    driver.write(BOX, {"cpu": 1.0, "memory": 512 * MIB})

    assert kernel.file(f"cg{BOX}/memory.oom.group") == "0"


@pytest.mark.parametrize("lacks", [(), ("cgroup.kill",)], ids=["by-the-kernel", "before-5.14"])
def test_pod_is_killed_by_the_kernel_at_once_where_it_can(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    (tmp_path / "node").mkdir()
    kernel = FakeKernel(tmp_path / "node", 2, lacks=lacks)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())
    kernel.by_hand(f"cg{POD}/cgroup.procs", "17")
    kernel.writes.clear()

    driver.kill_pod(POD)

    assert processes_in(driver.files, POD) == ()
    assert kernel.writes == ([] if lacks else [(f"{kernel.root}/cg{POD}/cgroup.kill", "1")])
