"""Capacity from kernel files, as they are and as they should not be."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from criproxy.control.capacity import CapacityReader
from criproxy.model import UNLIMITED, Capacity

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
    made = structs.replace(reader("0-7\n", cpuset), leaves=lambda: leaves, isolated=tmp_path / "isolated")
    assert made.read().for_box_cores == for_box


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
