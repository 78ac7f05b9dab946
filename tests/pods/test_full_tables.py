"""The watch of the kernel's tables: when it says something, and whom it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import structlog

from criproxy.cgroup.kernel_tables import TABLES, Holding, Use
from criproxy.model import PodRef, Sandbox
from criproxy.pods.kernel_tables import ROWS, KernelTablesWatch
from criproxy.pods.shared import PodsShared
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.part import look

T = TypeVar("T")

ONE, TWO = PodRef("1", "batch", "one"), PodRef("2", "batch", "two")
PODS = (Sandbox("s1", ONE, "/offline/pod1"), Sandbox("s2", TWO, "/offline/pod2"))


@dataclass
class Bench:
    uses: dict[str, Use] = field(default_factory=dict)
    held: dict[str, Holding] = field(default_factory=dict)
    running_pods: tuple[Sandbox, ...] = PODS
    asked: int = 0
    counted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = FakeClock()
        shared = PodsShared(self, self, no_hold_offs(clock), self, clock, structlog.get_logger())  # type: ignore[arg-type]
        self.watch = KernelTablesWatch(shared, self, self)  # type: ignore[arg-type]

    def count(self, name: str, table: str) -> None:
        assert name == "kernel_tables_full"
        self.counted.append(table)

    def read(self) -> dict[str, Use]:
        return self.uses

    def holdings(self, placements: Mapping[str, str]) -> dict[str, Holding]:
        assert placements == {"s1": "/offline/pod1", "s2": "/offline/pod2"}
        self.asked += 1
        return self.held

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    def look(self, uses: dict[str, Use]) -> list[Any]:
        self.uses = uses
        with structlog.testing.capture_logs() as log:
            look(self.watch, structlog.get_logger())
        return [(entry["table"], entry["pod"]) for entry in log if entry["event"] == "kernel_table_full"]


def test_tables_with_room_are_shown_and_no_pod_is_looked_at() -> None:
    bench = Bench()
    assert bench.look({"keys": Use(79, 100), "aio": Use(0, 0)}) == []
    assert (bench.asked, list(bench.watch.problems())) == (0, [])
    assert bench.watch.section() == {
        "kernel_tables": {"keys": {"used": 79, "most": 100}, "aio": {"used": 0, "most": 0}}
    }


@pytest.mark.parametrize(
    ("table", "held", "pod", "named"),
    [
        pytest.param("keys", {"s1": Holding(9), "s2": Holding(keys=True)}, TWO, "without a seccomp profile", id="keys"),
        pytest.param("files", {"s1": Holding(900), "s2": Holding(64)}, ONE, "has most of them", id="files"),
        pytest.param("inotify", {"s1": Holding(900), "s2": Holding(64)}, ONE, "has most files open", id="inotify"),
        pytest.param("ptys", {"s1": Holding(1), "s2": Holding(64)}, TWO, "has most files open", id="ptys"),
        pytest.param("epoll", {"s1": Holding(900), "s2": Holding(64)}, ONE, "has most files open", id="epoll"),
        pytest.param("tcp", {"s1": Holding(99, 1), "s2": Holding(0, 5)}, TWO, "most connections", id="tcp"),
        pytest.param("signals", {"s1": Holding(900), "s2": Holding()}, None, "does not tell whose", id="signals"),
        pytest.param("conntrack", {"s1": Holding(99, 1), "s2": Holding(0, 5)}, TWO, "most connections", id="conntrack"),
        pytest.param("aio", {"s1": Holding(900), "s2": Holding()}, None, "does not tell whose", id="aio"),
        pytest.param("keys", {"s1": Holding(9), "s2": Holding(9)}, None, "no offline pod seems", id="keys-of-others"),
    ],
)
def test_table_that_is_nearly_full_is_told_with_who_may_fill_it(
    table: str, held: dict[str, Holding], pod: PodRef | None, named: str
) -> None:
    bench = Bench(held=held)
    assert bench.look({table: Use(80, 100)}) == [(table, str(pod) if pod else "")]
    assert bench.look({table: Use(90, 100)}) == [], "once"
    (problem,) = bench.watch.problems()
    assert "90 % are used" in problem
    assert named in problem
    assert pod is None or f"offline pod {pod} " in problem
    assert bench.counted == [table]
    bench.look({table: Use(1, 100)})
    assert list(bench.watch.problems()) == []


def test_node_without_offline_pods_has_none_to_answer_for_it() -> None:
    bench = Bench(running_pods=())
    assert bench.look({"inotify": Use(1, 1)}) == [("inotify", "")]
    (problem,) = bench.watch.problems()
    assert "of root's inotify instances or watches all are used" in problem
    assert bench.asked == 0


def test_each_table_has_its_words() -> None:
    assert ROWS.keys() == TABLES.keys()
