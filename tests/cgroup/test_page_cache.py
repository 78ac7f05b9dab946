"""The page cache of an ended pod is taken back, in steps on v2, in one go on v1; what can't be taken back stays."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from tests.fakes.kernel import FakeKernel

BOX, POD = "/offline", "/offline/poda"
MIB = 1 << 20


def made(kernel: FakeKernel, *, cache: int, anon: int = 0) -> CgroupDriver:
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())
    kernel.use(POD, anon, cache)
    kernel.writes.clear()
    return driver


def all_of(driver: CgroupDriver) -> list[int]:
    found = []
    while (size := driver.memory.drop_cache(POD)) is not None:
        found.append(size)
    return found


def orders(kernel: FakeKernel) -> list[str]:
    return [value for file, value in kernel.writes if file.endswith(("memory.reclaim", "memory.force_empty"))]


def test_v2_takes_steps_and_swaps_nothing(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2)
    assert all_of(made(kernel, cache=100 * MIB, anon=MIB)) == [64 * MIB, 36 * MIB]
    assert orders(kernel) == [f"{64 * MIB} swappiness=0", f"{37 * MIB} swappiness=0", f"{MIB} swappiness=0"]


def test_v2_asks_without_swappiness_where_the_kernel_does_not_take_it_and_does_not_try_again(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2)
    kernel.takes_swappiness = False
    assert all_of(made(kernel, cache=100 * MIB)) == [64 * MIB, 36 * MIB]
    assert orders(kernel) == [f"{64 * MIB} swappiness=0", str(64 * MIB), str(36 * MIB)]


def test_v1_takes_all_in_one_go(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 1)
    assert all_of(made(kernel, cache=100 * MIB, anon=MIB)) == [100 * MIB]
    assert set(orders(kernel)) == {"0"}


@pytest.mark.parametrize(("version", "file"), [(1, "memory.force_empty"), (2, "memory.reclaim")])
def test_kernel_that_cannot_is_asked_for_nothing(tmp_path: Path, version: int, file: str) -> None:
    kernel = FakeKernel(tmp_path, version, (file,))
    assert all_of(made(kernel, cache=MIB)) == []
    assert kernel.cache[kernel.where("memory", POD)] == MIB


@pytest.mark.parametrize("version", [1, 2])
def test_pod_with_a_process_or_without_memory_or_gone_is_left_alone(tmp_path: Path, version: int) -> None:
    kernel = FakeKernel(tmp_path, version)
    driver = made(kernel, cache=0)
    assert driver.memory.drop_cache(POD) is None
    kernel.cache[kernel.where("memory", POD)] = MIB
    Path(kernel.where("memory", POD), "cgroup.procs").write_text("7")
    assert driver.memory.drop_cache(POD) is None
    assert driver.memory.drop_cache("/offline/podgone") is None
    assert orders(kernel) == []


def test_only_pods_of_the_box_are_touched(tmp_path: Path) -> None:
    driver = made(FakeKernel(tmp_path, 2), cache=0)
    with pytest.raises(CgroupError):
        driver.memory.drop_cache("/kubepods/poda")
