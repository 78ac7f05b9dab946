"""Memory that offline pods don't use is taken back from the box alone, where that is asked for and can be."""

import asyncio
from pathlib import Path

import pytest

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.model import UNLIMITED
from criproxy.pods.proactive_reclaim import ProactiveReclaim
from tests.fakes.bench import PartBench
from tests.fakes.kernel import FakeKernel
from tests.fakes.part import node_settings

MIB = 1 << 20
FLOOR = {"cpu": 0.1, "memory": 4096 * MIB}
POD = parse_kubelet_parent("/kubepods/besteffort/poda")


class Bench(PartBench):
    """A box with a pod, which has page cache."""

    def __init__(self, root: Path, version: int = 2, lacks: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.kernel = FakeKernel(root, version, lacks)
        self.box = Box(detect(self.kernel, self.kernel.root), BoxSettings(FLOOR), lambda: UNLIMITED, self.clock)
        self.part = ProactiveReclaim(self.shared(), self.box, True)

    def looks(self, number: int, *, admitted: bool = True) -> list[str]:
        """What was asked of memory.reclaim in so many looks, each some seconds after the other."""
        self.kernel.writes.clear()
        if admitted and self.box.path is None:
            asyncio.run(self.box.pods.admit(POD, 0))
            self.kernel.use("/offline", cache=1000 * MIB)
        self.look(self.part, number)
        return [f"{Path(file).parent.name} {value}" for file, value in self.kernel.writes if "reclaim" in file]

    def events(self) -> list[str]:
        return [event for event in self.log.names() if event.startswith("proactive_reclaim")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_hundredth_of_the_box_is_taken_back_from_the_second_look_on(bench: Bench) -> None:
    asked = bench.looks(3)

    first = 1000 * MIB // 100 // 4096 * 4096
    assert asked[0] == f"offline {first}"
    assert len(asked) == 2
    assert sum(bench.counters.of("proactively_reclaimed_bytes")) == bench.part.taken_bytes > 1.9 * first


def test_guarantee_of_the_box_is_left(bench: Bench) -> None:
    bench.looks(1)
    bench.kernel.by_hand("cg/offline/memory.low", str(500 * MIB))
    asked = bench.looks(1)
    bench.kernel.by_hand("cg/offline/memory.low", "max")

    assert asked == [f"offline {5 * MIB}"]
    assert bench.looks(1) == []


def test_box_that_waits_for_memory_is_left_alone(bench: Bench) -> None:
    bench.looks(1)
    bench.kernel.by_hand("cg/offline/memory.pressure", "some avg10=9.00 avg60=9.00 avg300=9.00 total=900000")

    assert bench.looks(1) == []


def test_limit_that_sinks_goes_first(bench: Bench) -> None:
    bench.looks(1)
    bench.box.memory._sink_to = 1

    assert bench.looks(1) == []


def test_anonymous_memory_that_can_not_be_taken_back_is_no_failure(bench: Bench) -> None:
    bench.looks(1)
    bench.kernel.use("/offline", 1000 * MIB)

    assert len(bench.looks(1)) == 1
    assert (bench.part.failure, bench.part.taken_bytes, bench.events()) == ("", 0, [])


@pytest.mark.parametrize(
    ("version", "lacks", "words"),
    [
        pytest.param(1, (), "cgroup v1 has no memory.reclaim", id="v1"),
        pytest.param(2, ("memory.reclaim",), "memory.reclaim does not exist: it takes Linux 5.19", id="before-5.19"),
        pytest.param(2, ("memory.pressure",), "memory.pressure does not exist: this kernel has no", id="no-psi"),
    ],
)
def test_kernel_that_can_not_is_told_once(tmp_path: Path, version: int, lacks: tuple[str, ...], words: str) -> None:
    bench = Bench(tmp_path, version, lacks)

    assert bench.looks(3) == []
    assert words in bench.part.section()["proactive_reclaim"]
    assert bench.events() == ["proactive_reclaim_not_here"]


def test_without_a_box_nothing_is_asked_for(bench: Bench) -> None:
    assert bench.looks(2, admitted=False) == []
    assert bench.part.failure == ""


ON = node_settings("memory.proactive_reclaim = true")


def test_part_that_is_off_never_wakes_up_and_one_that_is_on_looks_each_6_s(bench: Bench) -> None:
    bench.part.configure(node_settings())
    off = bench.part.pause_s, bench.part.wake.is_set
    bench.part.configure(ON)

    assert off == (None, False)
    assert (bench.part.pause_s, bench.part.wake.is_set) == (6.0, True)


def test_status_says_what_was_taken_back_where_that_is_asked_for(bench: Bench) -> None:
    bench.part.taken_bytes = 64 * MIB
    bench.part.configure(node_settings())
    off = list(bench.part.rows())
    bench.part.configure(ON)

    assert off == []
    assert list(bench.part.rows()) == [("reclaim", "64.00 MiB taken back from offline pods so far")]
