"""The largest offline pod goes before kubelet evicts an online one, and does not come straight back."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.cgroup.box import BoxState, Held
from criproxy.cgroup.driver import CgroupError
from criproxy.control.memory_pressure import PAUSE_S, EvictionHard
from criproxy.model import PodRef, Sandbox, Snapshot
from criproxy.pods.memory_relief import GRACE_S, HOLD_S, MemoryRelief
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_OVER_LIMIT, BudgetError, Holds, PodStopper
from tests import rows

T = TypeVar("T")

MIB, GIB = 1 << 20, 1 << 30
HARD = EvictionHard(100 * MIB, 0.0, "evictionHard in /c")
SMALL, LARGE = (Sandbox(f"s{n}", PodRef(f"u{n}", "batch", f"job{n}"), f"/offline/podu{n}") for n in (1, 2))


def snapshot(t_s: float, available: int, box: int) -> Snapshot:
    node = 4 * GIB - available
    return rows.snapshot(t_s, (4.0, 1.0, 0.0, 1.0), (4 * GIB, node, box, max(0, node - box)))


class Clock:
    now_s = 1000.0

    def boottime_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Box:
    memory: dict[str, int] = field(default_factory=lambda: {"/offline/podu1": 50 * MIB, "/offline/podu2": 400 * MIB})
    held: Held | None = field(default_factory=lambda: Held(501 * MIB, 128 * MIB))
    fails: bool = False

    def state(self) -> BoxState:
        limits = {"cpu": 1.0, "memory": 128 * MIB}
        return BoxState("/offline", 2, limits, True, "", 0, 0, (), wanted=limits, memory=self.held)

    async def memory_of(self, pods: Collection[str]) -> dict[str, int]:
        if self.fails:
            raise CgroupError("cannot read")
        return {pod: size for pod, size in self.memory.items() if pod in pods}


@dataclass
class Inventory:
    """An ended sandbox of the same pod, too: kubelet leaves it there for a while."""

    placed: tuple[Sandbox, ...] = (SMALL, LARGE, replace(LARGE, id="ended"))
    running_pods: tuple[Sandbox, ...] = (SMALL, LARGE)


class Bench:
    def __init__(self, *, active: bool = True, stop: bool = True) -> None:
        self.clock, self.box, self.inventory = Clock(), Box(), Inventory()
        self.stopped: list[str] = []
        self.counted = 0
        self.runtime_down = False
        self.hard = HARD
        self.holds = Holds(self.clock, frozenset([ON_OVER_LIMIT] if active and stop else []))  # type: ignore[arg-type]
        self.relief = MemoryRelief(
            active,
            PodsShared(self.inventory, self, self.holds, self, self.clock, structlog.get_logger()),  # type: ignore[arg-type]
            self.box,  # type: ignore[arg-type]
            PodStopper(self, structlog.get_logger()),  # type: ignore[arg-type]
            lambda: self.hard,
            self,  # type: ignore[arg-type]
        )
        self.relief.hard = HARD
        self.runner = asyncio.Runner()

    def pass_by(self, count: int, available: int = 140 * MIB, box: int = 501 * MIB) -> None:
        """So many seconds."""
        self.runner.run(self.seconds(count, available, box))

    async def stop(self, sandbox_id: str) -> None:
        if self.runtime_down:
            raise ConnectionError("no runtime")
        self.stopped.append(sandbox_id)

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    def count(self, name: str) -> None:
        assert name == "memory_evictions"
        self.counted += 1

    async def seconds(self, count: int, available: int = 140 * MIB, box: int = 501 * MIB) -> None:
        """A tick each second, while `_relieve` runs."""
        relieving = asyncio.create_task(self.relief._relieve())
        for _ in range(count):
            self.clock.now_s += 1.0
            self.relief.sampled(snapshot(self.clock.now_s, available, box))
            for _ in range(10):
                await asyncio.sleep(0)
        relieving.cancel()


def test_largest_offline_pod_is_stopped_and_the_next_after_a_pause() -> None:
    bench = Bench()
    bench.pass_by(3)
    first = list(bench.stopped)
    bench.pass_by(9)
    paused = list(bench.stopped)
    bench.pass_by(1)

    assert (first, paused, bench.stopped) == (["s2"], ["s2"], ["s2", "s1"])
    assert bench.counted == 2
    assert PAUSE_S == 10.0


def test_reason_says_how_near_it_was_and_why_this_pod() -> None:
    bench = Bench()
    with capture_logs() as logs:
        bench.pass_by(3)

    evicted = next(entry for entry in logs if entry["event"] == "evict")
    assert evicted["pod"] == "batch/job2"
    assert evicted["reason"] == (
        "memory.available is 140.00 MiB, and kubelet evicts pods below 100.00 MiB, while the box is 373.00 MiB above "
        "its memory limit; this pod uses the most, 400.00 MiB"
    )
    assert bench.relief.status().last == f"batch/job2: {evicted['reason']}"


@pytest.mark.parametrize(
    ("available", "box"),
    [
        pytest.param(GIB, 501 * MIB, id="far-from-it"),
        pytest.param(50 * MIB, 128 * MIB, id="online-fills-the-node-and-the-box-is-within-its-bound"),
        pytest.param(50 * MIB, 0, id="box-uses-nothing"),
    ],
)
def test_no_pod_is_stopped(available: int, box: int) -> None:
    bench = Bench()
    bench.pass_by(30, available, box)

    assert bench.stopped == []
    assert bench.holds.held(LARGE.pod) == ""


def test_report_tells_and_stops_nothing_and_keeps_nobody_out() -> None:
    bench = Bench(stop=False)
    bench.pass_by(30)

    assert bench.stopped == []
    assert "kubelet evicts pods below 100.00 MiB" in next(bench.relief.problems())
    assert bench.holds.held(LARGE.pod) == ""


def test_nothing_is_done_while_the_limits_are_not_ours_to_set() -> None:
    bench = Bench(active=False)
    bench.pass_by(30)

    assert (bench.stopped, list(bench.relief.problems())) == ([], [])


def test_stopped_pod_is_held_for_a_while_and_others_while_it_is_over() -> None:
    bench = Bench()
    bench.pass_by(3)
    over = bench.holds.held(SMALL.pod), bench.holds.held(LARGE.pod)
    bench.pass_by(1, GIB, 100 * MIB)
    after = bench.holds.held(SMALL.pod), bench.holds.held(LARGE.pod)
    bench.clock.now_s += HOLD_S

    assert all(over)
    assert after[0] == ""
    assert "not let in for" in after[1]
    assert bench.holds.held(LARGE.pod) == ""


def test_pod_is_neither_stopped_nor_held_when_the_setting_ends_while_the_largest_is_sought() -> None:
    bench = Bench()
    memory_of = bench.box.memory_of

    async def slowly(pods: Collection[str]) -> dict[str, int]:
        bench.holds.configure(frozenset())
        bench.relief.configure(True)
        return await memory_of(pods)

    bench.box.memory_of = slowly  # type: ignore[method-assign]
    bench.pass_by(3)

    assert bench.stopped == []
    assert bench.holds.held(LARGE.pod) == ""


def test_pod_that_does_not_stop_does_not_keep_the_next() -> None:
    bench = Bench()
    bench.runtime_down = True
    bench.pass_by(3)
    bench.runtime_down = False
    bench.pass_by(11)

    assert bench.stopped == ["s1"]


@pytest.mark.parametrize("memory", [{}, {"/offline/podu1": 4096}], ids=["nothing-there", "next-to-nothing"])
def test_pods_without_memory_are_left_alone(memory: dict[str, int]) -> None:
    bench = Bench()
    bench.box.memory = memory
    with capture_logs() as logs:
        bench.pass_by(3)

    assert bench.stopped == []
    assert "memory_not_relieved" in [entry["event"] for entry in logs]


def test_memory_that_can_not_be_read_is_logged_and_tried_again() -> None:
    bench = Bench()
    bench.box.fails = True
    bench.pass_by(3)
    bench.box.fails = False
    bench.pass_by(11)

    assert bench.stopped == ["s2"]


def test_threshold_is_read_and_what_is_not_known_is_said_once() -> None:
    bench = Bench()
    with capture_logs() as logs:
        for hard in (
            HARD,
            replace(HARD, size_bytes=GIB),
            EvictionHard(problem="no kubelet"),
            EvictionHard(problem="no kubelet"),
        ):
            bench.hard = hard
            asyncio.run(bench.relief.read_threshold())

    assert [entry["event"] for entry in logs] == ["eviction_threshold", "eviction_threshold_unknown"]
    assert logs[1]["consequence"] == "100.00 MiB is assumed, kubelet's default"
    assert bench.relief.status().problem == "no kubelet"


def test_what_is_kept_free_follows_the_threshold() -> None:
    bench = Bench()
    before = bench.relief.kept_free(4 * GIB)
    bench.relief.hard = replace(HARD, size_bytes=GIB)

    assert (before, bench.relief.kept_free(4 * GIB)) == (200 * MIB, GIB + 100 * MIB)


class Budgets:
    """Lets only these go. What it was asked for is `asked`."""

    def __init__(self, *names: str) -> None:
        self.names, self.asked = names, list[tuple[str, int | None]]()

    async def evict(self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None) -> float | None:
        self.asked.append((pod.name, grace_s))
        if pod.name not in self.names:
            raise BudgetError("none")
        return 16.0


def test_largest_pod_that_its_budget_keeps_runs_on_unheld_and_the_next_is_evicted() -> None:
    bench = Bench()
    bench.relief.stopper.evicts = budgets = Budgets("job1")
    bench.pass_by(3)
    assert budgets.asked == [("job2", GRACE_S), ("job1", GRACE_S)]
    assert (bench.stopped, bench.counted) == ([], 1)
    held = bench.holds.held(LARGE.pod), bench.holds.held(SMALL.pod)
    assert ["it was stopped" in one for one in held] == [False, True]
    assert "of those whose disruption budgets let them go" in bench.relief.status().last


def test_largest_pod_is_stopped_at_the_runtime_where_all_budgets_hold() -> None:
    """As kubelet does it, whose own eviction knows no budgets, and would take an online pod."""
    bench = Bench()
    bench.relief.stopper.evicts = Budgets()
    bench.pass_by(3)
    assert bench.stopped == ["s2"]
