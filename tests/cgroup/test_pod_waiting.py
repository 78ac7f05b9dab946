"""How long pods waited for CPU, from the files of either version."""

from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, PodLimits
from criproxy.cgroup.pod_waiting import MOST_THREADS, pods_cpu
from criproxy.model.signals import PodCpuTimes
from tests.fakes.kernel import FakeKernel

BOX, POD = "/offline", "/offline/poda"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


def node(tmp_path: Path, version: int) -> tuple[FakeKernel, CgroupDriver]:
    kernel = FakeKernel(tmp_path, version)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())
    return kernel, driver


def runs(kernel: FakeKernel, version: int, proc: Path, threads: dict[int, str]) -> None:
    """In a container of the pod, whose kernel has no PSI; by thread, its schedstat."""
    top = Path(kernel.root) / ("cpu,cpuacct" if version == 1 else "cg")
    (top / POD[1:] / "cpu.pressure").unlink(missing_ok=True)
    container = top / POD[1:] / "c1"
    container.mkdir(exist_ok=True)
    (container / ("tasks" if version == 1 else "cgroup.threads")).write_text("".join(f"{tid}\n" for tid in threads))
    for tid, schedstat in threads.items():
        if schedstat:
            (proc / str(tid)).mkdir(parents=True, exist_ok=True)
            (proc / str(tid) / "schedstat").write_text(schedstat)


def test_where_the_kernel_counts_pressure_it_says_how_long_some_thread_waited(tmp_path: Path) -> None:
    kernel, driver = node(tmp_path, 2)
    kernel.by_hand(f"cg{POD}/cpu.pressure", PRESSURE)

    assert pods_cpu(driver.files, (POD, "/offline/podgone")) == {POD: PodCpuTimes(1.5, {0: 2.5})}


@pytest.mark.parametrize("version", [1, 2])
def test_without_pressure_threads_say_it(tmp_path: Path, version: int) -> None:
    kernel, driver = node(tmp_path, version)
    runs(kernel, version, tmp_path / "p", {70: "5000 3000000000 3\n", 71: "1 500000000 1\n", 72: ""})

    found = pods_cpu(driver.files, (POD,), str(tmp_path / "p"))

    assert found == {POD: PodCpuTimes(1.5, {70: 3.0, 71: 0.5})}, "one has ended meanwhile"


def test_kernel_that_counts_no_waiting_says_nothing(tmp_path: Path) -> None:
    kernel, driver = node(tmp_path, 1)
    runs(kernel, 1, tmp_path / "p", {70: "0 0 0\n"})

    assert pods_cpu(driver.files, (POD,), str(tmp_path / "p"))[POD].waited_s == {}


def test_of_many_threads_the_same_few_are_looked_at(tmp_path: Path) -> None:
    kernel, driver = node(tmp_path, 1)
    runs(kernel, 1, tmp_path / "p", dict.fromkeys(range(100, 200), "5 1000000000 1\n"))

    first, second = (set(pods_cpu(driver.files, (POD,), str(tmp_path / "p"))[POD].waited_s) for _ in range(2))

    assert first == second
    assert 1 < len(first) <= MOST_THREADS
