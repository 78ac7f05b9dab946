"""When disks are switched: once at the start, at a change of the setting, each minute while they are to be kept."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from criproxy.cgroup.disk_keepers import Keeper, Kept
from criproxy.cgroup.disk_weight import DiskWeight
from criproxy.pods.disk_keeping import DiskKeeping
from tests.fakes.bench import PartBench
from tests.fakes.part import node_settings

T = TypeVar("T")

BFQ, NONE = DiskWeight("sda", "bfq"), DiskWeight("sdb", "", "scheduler none keeps to no weight")

FAILED = Kept(failures={"sda": "it takes cgroup v2"})


class Keepers:
    """`has_changed_some`: as the record says."""

    def __init__(self) -> None:
        self.asked: list[Keeper] = []
        self.answers: list[Kept | Exception] = []
        self.has_changed_some = False

    def keep(self, keeper: Keeper) -> Kept:
        self.asked.append(keeper)
        answer = self.answers.pop(0) if self.answers else Kept()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench(PartBench):
    def __init__(self, keeper: Keeper | None) -> None:
        super().__init__()
        self.keepers = Keepers()
        self.says: tuple[DiskWeight, ...] | Exception = ()
        self.version, self.path = 2, "/offline"
        self.begun: set[str] = set()
        bench: Any = self
        self.part = DiskKeeping(self.shared(), bench, bench.keepers, bench, bench, keeper)

    def read(self, version: int, box: str | None) -> tuple[DiskWeight, ...]:
        assert (version, box) == (2, "/offline")
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def __getitem__(self, name: str) -> "Bench":
        """Its own threads."""
        self.begun.add(name)
        return self

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    def looks(self, number: int = 1) -> list[str]:
        """The events."""
        self.look(self.part, number)
        self.part.close()
        events = self.log.names()
        self.log.events.clear()
        return events

    def sees(self, says: tuple[DiskWeight, ...] | Exception) -> list[str]:
        self.says = says
        return self.looks()


@pytest.mark.parametrize(
    ("keeper", "has_changed_some", "asked"),
    [
        pytest.param(None, True, [], id="not-ours"),
        pytest.param("leave", False, [], id="nothing-asked-for"),
        pytest.param("leave", True, ["leave"], id="to-be-put-back"),
        pytest.param("io.cost", False, ["io.cost"], id="io.cost"),
    ],
)
def test_disks_are_touched_where_that_is_asked_for(
    keeper: Keeper | None, has_changed_some: bool, asked: list[str]
) -> None:
    bench = Bench(keeper)
    bench.keepers.has_changed_some = has_changed_some
    bench.looks()

    assert bench.keepers.asked == asked
    assert ("disk-keepers" in bench.begun) == bool(asked), "no thread without need"


def test_what_was_done_is_logged_and_what_could_not_be_once() -> None:
    bench = Bench("io.cost")
    bench.keepers.answers = [FAILED, FAILED, Kept({"sda": "io.cost on"}), OSError("full")]

    assert bench.looks(4) == ["disk_weight_not_switched", "disk_weight_switched", "look_failed"]


def test_failures_are_forgotten_with_the_setting() -> None:
    bench = Bench("io.cost")
    bench.keepers.answers = [FAILED]
    bench.looks()
    bench.part.configure(node_settings("io.weight = 'leave'"))
    bench.looks()

    assert bench.part.kept == Kept()


def test_change_of_the_setting_alone_asks_for_a_look_at_once() -> None:
    bench, asked = Bench("leave"), []
    for keeper in ("leave", "bfq"):
        bench.part.configure(node_settings(f"io.weight = '{keeper}'"))
        asked.append(bench.part.wake.is_set)

    assert asked == [False, True]


def test_each_change_of_what_keeps_to_the_weight_is_told_once() -> None:
    bench = Bench(None)
    assert bench.sees((BFQ, NONE)) == ["disk_weight_in_force", "disk_weight_not_in_force"]
    assert bench.sees((BFQ, NONE)) == []
    assert bench.sees((BFQ,)) == ["disk_weight_in_force"]
    assert bench.part.disks() == (BFQ,)


def test_failure_to_see_it_is_told_once_and_keeps_what_is_known() -> None:
    bench = Bench(None)
    bench.sees((BFQ,))
    assert bench.sees(OSError("no")) == ["look_failed"]
    assert bench.sees(OSError("no")) == []
    assert bench.part.disks() == (BFQ,)
    assert bench.sees((BFQ,)) == ["look_succeeded"]


def test_machine_without_cgroups_is_not_looked_at() -> None:
    bench = Bench(None)
    bench.version = 0
    assert bench.sees(AssertionError("not to be read")) == []


def test_status_tells_why_a_disk_could_not_be_switched() -> None:
    bench = Bench(None)
    bench.part.found = (DiskWeight("sda", "", "none keeps to it"), BFQ)
    bench.part.kept = Kept(failures={"sda": "no bfq here", "sdb": "not any more"})

    assert [disk.why for disk in bench.part.disks()] == ["none keeps to it (no bfq here)", ""]
