"""Capacity from kernel files, as they are and as they should not be."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.topology import Topology, WholeCores
from criproxy.cgroup.tree import Tree
from criproxy.control.capacity import CapacityReader
from criproxy.model import UNLIMITED, Capacity
from criproxy.model.cpulist import format_cpus, parse_cpus
from tests.fakes.clock import FakeClock
from tests.fakes.driver import FakeDriver

MEMINFO = "MemTotal:        2048 kB\nMemFree:         1024 kB\n"


@pytest.fixture
def reader(tmp_path):
    def make(online="0-3\n", cpuset="0-3\n", meminfo=MEMINFO):
        files = {"online": online, "cpuset": cpuset, "meminfo": meminfo}
        paths = {name: tmp_path / name for name in files}
        for name, text in files.items():
            if text is not None:
                paths[name].write_text(text)
        return CapacityReader(paths["cpuset"] if cpuset is not None else None, paths["online"], paths["meminfo"])

    return make


SIXTEEN = parse_cpus("0-15")


@pytest.fixture
def machine(tmp_path):
    """Eight cores of two hyperthreads, n and n + 8."""
    for cpu in SIXTEEN:
        (siblings := tmp_path / f"cpu{cpu}/topology/thread_siblings_list").parent.mkdir(parents=True)
        siblings.write_text(f"{format_cpus({cpu % 8, cpu % 8 + 8})}\n")
    return tmp_path


def box_at(directory, leaves, exclusive=frozenset(), *, whole=False):
    """With the machine's cores as this directory tells them."""
    cores = WholeCores(Topology(Tree(), None, str(directory)), frozenset, lambda: exclusive)
    return Box(FakeDriver(), BoxSettings({}, whole_cores=whole), lambda: leaves, FakeClock(), cores=cores)


@pytest.mark.parametrize(
    ("online", "cpuset", "cores", "outside_cores"),
    [
        ("0-3\n", "0-3\n", 4.0, 0.0),
        ("0\n", "0-3\n", 1.0, 0.0),
        ("0-3\n", "1,3\n", 2.0, 2.0),
        ("0-1,4-7,9\n", "0-127\n", 7.0, 0.0),
        ("0-3\n", None, 4.0, 0.0),
    ],
    ids=["all", "unplugged", "narrow-cpuset", "ranges", "no-cpuset"],
)
def test_capacity_counts_online_cpus_within_the_root_cpuset(reader, online, cpuset, cores, outside_cores):
    assert reader(online, cpuset).read() == Capacity(cores, 2048 * 1024, outside_cores)


@pytest.mark.parametrize(
    ("files", "leaves", "for_box"),
    [
        pytest.param(("0-7\n", "\n"), UNLIMITED, None, id="all"),
        pytest.param(("0-7\n", "\n"), frozenset({0, 1, 9}), 2.0, id="the CPU manager's"),
        pytest.param(("0-7\n", "2-7\n"), UNLIMITED, 2.0, id="isolcpus"),
        pytest.param(("0-3\n", "2-7\n"), frozenset({1, 2}), 1.0, id="both, and a partition"),
        pytest.param(("0-7\n", "(null)\n"), frozenset(range(8)), None, id="no list"),
        pytest.param(("0-7\n", "\n"), frozenset(), 0.0, id="none is left"),
    ],
)
def test_cores_for_the_box_are_those_that_it_may_run_on(reader, tmp_path, files, leaves, for_box):
    cpuset, isolated = files
    (tmp_path / "isolated").write_text(isolated)
    made = structs.replace(reader("0-7\n", cpuset), for_box=box_at(tmp_path, leaves).pods.may_have)
    assert made.read().for_box_cores == for_box


@pytest.mark.parametrize("manager", ["none", "static"])
def test_cpus_of_nohz_full_are_not_for_the_box(reader, tmp_path, manager):
    (tmp_path / "nohz_full").write_text("4-15\n")
    leaves = UNLIMITED if manager == "none" else parse_cpus("0-15")
    made = structs.replace(reader("0-15\n", "0-15\n"), for_box=box_at(tmp_path, leaves).pods.may_have)
    assert made.read().for_box_cores == 4.0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("exclusive", "nohz_full", "for_box"),
    [
        pytest.param("0-5", "", (4.0, 4.0), id="siblings"),
        pytest.param("", "0-3", (12.0, 8.0), id="threads of whole cores are isolated"),
        pytest.param("0-7", "", (8.0, 8.0), id="nothing but siblings is left"),
        pytest.param("", "", (None, None), id="all"),
    ],
)
def test_cpus_for_the_box_on_hyperthreads_are_those_that_it_is_kept_to(
    reader, machine, exclusive, nohz_full, for_box, *, whole
):
    """Without a limit."""
    (machine / "nohz_full").write_text(f"{nohz_full}\n")
    alone = parse_cpus(exclusive)
    leaves = SIXTEEN - alone
    box = box_at(machine, leaves, alone, whole=whole)
    made = structs.replace(reader("0-15\n", "0-15\n"), for_box=box.pods.may_have)
    cores = WholeCores(Topology(Tree(), None, str(machine)), frozenset, lambda: alone)
    kept = cores.choose(leaves, UNLIMITED)[0] if whole else cores.spare(leaves)[0]

    assert made.read().for_box_cores == for_box[whole]
    assert box.pods.may_have(SIXTEEN) == kept


def test_exclusive_cpus_are_not_for_the_box_where_the_cores_are_not_told(reader, tmp_path):
    alone = parse_cpus("0-1")
    for whole in (False, True):
        box = box_at(tmp_path, parse_cpus("2-7"), alone, whole=whole)
        made = structs.replace(reader("0-7\n", "0-7\n"), for_box=box.pods.may_have)
        assert made.read().for_box_cores == 6.0


def test_capacity_follows_hot_plug(reader):
    made = reader()
    made.read()
    made.online.write_text("0-7\n")
    made.cpuset.write_text("0-7\n")
    made.meminfo.write_text("MemTotal: 4096 kB\n")
    assert made.read() == Capacity(8.0, 4096 * 1024)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"online": "0-x\n"}, "online holds '0-x', not a list of CPUs"),
        ({"cpuset": "\n"}, "no CPU is both in"),
        ({"meminfo": "MemFree: 1 kB\n"}, "meminfo has no MemTotal"),
    ],
    ids=["garbage", "empty-cpuset", "no-total"],
)
def test_capacity_of_a_bad_file_raises_and_names_it(reader, files, problem):
    with pytest.raises(ValueError, match=problem):
        reader(**files).read()


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/online").exists(), reason="needs Linux")
def test_capacity_of_this_machine_is_what_the_kernel_says():
    capacity = CapacityReader(None).read()
    assert capacity.cores == os.sysconf("SC_NPROCESSORS_ONLN")
    assert capacity.memory_bytes == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=1e-6)
