"""On which CPUs the box runs and what is used of them, from the files of either version."""

from pathlib import Path

import pytest

from criproxy.cgroup.cpu_use import cpu_use
from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import TICKS_PER_S, Tree
from tests.fakes.kernel import FakeKernel
from tests.fakes.machine import machine

BOX, POD = "/offline", "/offline/poda"


@pytest.mark.parametrize("version", [1, 2])
def test_use_is_of_the_boxs_cpus_and_of_those_pods_that_are_there(tmp_path: Path, version: int) -> None:
    kernel = FakeKernel(tmp_path, version, cpusets=True)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())
    (tmp_path / "stat").write_text(f"cpu 0 0 0 0 0 0\ncpu0 0 0 0 {2 * TICKS_PER_S} {TICKS_PER_S} 0\nintr 0\n")
    directory, name = ("cpuset", "cpuset.effective_cpus") if version == 1 else ("cg", "cpuset.cpus.effective")
    kernel.by_hand(f"{directory}{BOX}/{name}", "0,2")

    topology = machine(tmp_path / "machine", (frozenset({0, 1}), frozenset({2, 3})), (frozenset(range(4)),))

    found = cpu_use(driver.files, BOX, (POD, "/offline/podgone"), topology, kernel.root)

    assert (found.cpus, found.idle_s, found.used_s) == ({0, 2}, {0: 3.0}, {POD: 1.5}), "as the fake kernel counts it"
    assert (set(found.cores), found.nodes) == ({frozenset({0, 1}), frozenset({2, 3})}, (frozenset(range(4)),))
    (tmp_path / "machine" / "isolated").write_text("2-3\n")
    found = cpu_use(driver.files, BOX, (), topology, kernel.root)
    assert (found.cpus, found.isolated) == ({0}, {2}), "what is idle there is kept for others"


def test_use_is_known_where_the_kernel_says_nothing_of_cores_and_nodes(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2, cpusets=True)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)
    (tmp_path / "stat").write_text("cpu 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0\n")
    kernel.by_hand(f"cg{BOX}/cpuset.cpus.effective", "0")

    found = cpu_use(driver.files, BOX, (), Topology(Tree(), None, "/nowhere", "/nowhere"), kernel.root)

    assert (found.cpus, found.cores, found.nodes) == ({0}, (), ())
