"""The watch for threads in real time, which the test scripts."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import structlog

from criproxy.cgroup.realtime import RealtimeFound
from criproxy.model import PodRef, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.realtime import MOST_THREADS, SOON_S, RealtimeWatch
from criproxy.pods.runtime import ListedSandbox, Running
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED, Holds
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.part import look, node_settings

T = TypeVar("T")

POD, OTHER = PodRef("1", "batch", "job"), PodRef("2", "drivers", "other")
PLACED = (Sandbox("s1", POD, "/offline/pod1"), Sandbox("s2", OTHER, "/offline/pod2"))
BOTH = {"s1": "/offline/pod1", "s2": "/offline/pod2"}
FIFO = "thread 7 runs under SCHED_FIFO"
BY_NRI = '[proxy]\nfront = "nri"\n'
ALLOWS = f'{BY_NRI}[hardening]\nallow = [{{ namespace = true, equals = "drivers" }}]\n'


@dataclass
class Bench:
    stops: bool = False
    config: str = BY_NRI
    says: dict[str, str] | Exception = field(default_factory=dict)
    stopped: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Mapping[str, str]] = field(default_factory=list)
    seen: list[Mapping[str, int]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    running_pods: tuple[Sandbox, ...] = PLACED
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.holds = Holds(self.clock, no_hold_offs(self.clock), frozenset([ON_UNBOUNDED] if self.stops else []))
        self.marked = tuple(ListedSandbox(one.id, one.pod, "", True, {}, {}, 0.0) for one in PLACED)
        self.part = RealtimeWatch(
            PodsShared(self, self, self.holds, self, self.clock, structlog.get_logger()),  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
        )
        self.part.configure(node_settings(self.config))

    def watch(self, observer: PodObserver) -> None:
        assert isinstance(observer, RealtimeWatch)

    def stop(self, sandbox: Sandbox, why: str, setting: str) -> None:
        self.stopped.append((sandbox.id, setting))

    def read(self, placements: Mapping[str, str], seen: Mapping[str, int], most: int) -> RealtimeFound:
        assert most == MOST_THREADS
        self.asked.append({id: placements[id] for id in seen})
        self.seen.append(seen)
        if isinstance(self.says, Exception):
            raise self.says
        return RealtimeFound({id: words for id, words in self.says.items() if id in seen}, self.left)

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    def look(self, says: dict[str, str] | Exception) -> list[Any]:
        self.says = says
        with structlog.testing.capture_logs() as log:
            look(self.part, structlog.get_logger())
        return [(entry["event"], entry.get("pod")) for entry in log]


def test_pod_is_told_of_once_until_it_has_ended() -> None:
    bench = Bench()
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job")]
    assert bench.look({"s1": FIFO, "s2": FIFO}) == [("realtime_in_box", "drivers/other")]
    assert bench.part.found == {POD: FIFO, OTHER: FIFO}
    assert bench.look({}) == []
    assert bench.part.found == {}
    assert bench.stopped == []
    assert bench.asked == [BOTH] * 3


def test_pod_is_stopped_and_not_let_in_at_once_when_the_config_says_so() -> None:
    bench = Bench(stops=True)
    bench.look({"s1": FIFO})
    held = bench.holds.held(POD), bench.holds.held(OTHER)
    bench.clock.now += HOLD_S
    assert bench.stopped == [("s1", ON_UNBOUNDED)]
    assert "not let in for 300 s" in held[0]
    assert (held[1], bench.holds.held(POD)) == ("", "")


@pytest.mark.parametrize("front", ["cri", "nri"])
def test_pods_are_looked_at_with_both_fronts_as_another_plugin_of_nri_may_choose_a_policy(front: str) -> None:
    bench = Bench(config=f'[proxy]\nfront = "{front}"\n')
    bench.part.configure(node_settings(bench.config, front=front))
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job")]
    (problem,) = bench.part.problems()
    assert "the scheduling class that another plugin of NRI gives it" in problem


def test_nobody_is_looked_at_while_the_box_does_not_bound() -> None:
    bench = Bench()
    bench.part.configure(node_settings(f'colocation.on_disable = "release"\n{BY_NRI}', enabled=False))
    assert bench.look({"s1": FIFO}) == []
    assert (bench.asked, bench.part.found) == ([], {})


def test_pod_is_only_reported_where_privileged_ones_are_let_in() -> None:
    """It has every capability by that, and its next try would have it again."""
    bench = Bench(stops=True, config=f"{BY_NRI}[hardening]\nrefuse_privileged = false\n")
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job")]
    assert (bench.stopped, bench.holds.held(POD)) == ([], "")
    (problem,) = bench.part.problems()
    assert "privileged" in problem


def test_pod_that_the_nodes_file_allows_all_of_it_may_run_so() -> None:
    bench = Bench(stops=True, config=ALLOWS)
    bench.look({"s1": FIFO, "s2": FIFO})
    assert (list(bench.part.found), bench.stopped) == ([POD], [("s1", ON_UNBOUNDED)])


def test_what_has_started_is_looked_at_a_moment_later_all_of_it_at_once() -> None:
    bench = Bench()
    bench.look({})
    assert bench.part.pause_s == bench.part.EVERY_S
    bench.part.wake._is_set = False
    for id in ("c1", "c2"):
        bench.part.pod_started(Running(PLACED[0], id, "main"))
    assert bench.part.wake.is_set
    asyncio.run(bench.part.look())
    assert (len(bench.asked), bench.part.pause_s) == (1, SOON_S)
    bench.clock.now += SOON_S
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job")]
    assert (len(bench.asked), bench.part.pause_s) == (2, bench.part.EVERY_S - SOON_S)


def test_what_starts_just_before_a_look_has_a_later_one_of_its_own() -> None:
    bench = Bench()
    bench.look({})
    bench.part.pod_started(Running(PLACED[0], "s1", ""))
    bench.clock.now += 1.9
    bench.part.pod_started(Running(PLACED[0], "c1", "main"))
    bench.clock.now += 0.1
    bench.look({})
    assert bench.part.pause_s == SOON_S
    bench.clock.now += SOON_S
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job")]


def test_pod_that_has_ended_is_found_no_more_though_no_other_runs() -> None:
    bench = Bench()
    bench.look({"s1": FIFO})
    bench.running_pods = ()
    bench.look({})
    assert (bench.part.found, len(bench.asked)) == ({}, 1)


def test_after_a_start_only_the_pods_that_started_are_looked_at() -> None:
    bench = Bench()
    bench.look({"s2": FIFO})
    bench.part.pod_started(Running(PLACED[0], "c1", "main"))
    bench.clock.now += SOON_S
    bench.look({})
    assert bench.asked == [BOTH, {"s1": "/offline/pod1"}]
    assert bench.part.found == {OTHER: FIFO}
    bench.clock.now += bench.part.EVERY_S - SOON_S
    bench.look({})
    assert (bench.asked[2:], bench.part.found) == ([BOTH], {})


def test_starts_without_a_pause_keep_nobody_from_the_look_of_each_minute() -> None:
    bench = Bench()
    bench.look({})
    for _ in range(int(bench.part.EVERY_S / SOON_S)):
        bench.part.pod_started(Running(PLACED[0], "c1", "main"))
        bench.clock.now += SOON_S
        bench.look({})
    assert [one for one in bench.asked[1:] if "s2" in one] == [BOTH]


def test_what_is_left_over_goes_on_a_moment_later_behind_what_has_started() -> None:
    bench = Bench()
    bench.left = {"s1": 500, "s2": 0}
    bench.look({})
    assert bench.part.pause_s == SOON_S
    bench.clock.now += SOON_S
    bench.part.pod_started(Running(PLACED[1], "c2", "main"))
    bench.clock.now += SOON_S
    bench.left = {}
    bench.look({})
    assert [list(one.items()) for one in bench.seen] == [[("s1", 0), ("s2", 0)], [("s2", 0), ("s1", 500)]]
    assert bench.part.pause_s == bench.part.EVERY_S - 2 * SOON_S


def test_pod_that_is_not_looked_through_yet_is_not_cleared() -> None:
    bench = Bench()
    bench.look({"s1": FIFO})
    bench.left = {"s1": 500}
    assert bench.look({}) == []
    assert bench.part.found == {POD: FIFO}


def test_what_failed_to_be_looked_at_keeps_its_turn() -> None:
    bench = Bench()
    bench.part.pod_started(Running(PLACED[0], "c1", "main"))
    bench.clock.now += SOON_S
    bench.look(OSError("no"))
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job"), ("look_succeeded", None)]


def test_failure_is_told_of_once_and_keeps_what_is_known() -> None:
    bench = Bench()
    bench.look({"s1": FIFO})
    assert bench.look(OSError("no")) == [("look_failed", None)]
    assert bench.part.pause_s == RealtimeWatch.EVERY_S, "what fails is tried again each minute, and no sooner"
    assert bench.look(OSError("no")) == []
    assert bench.part.found == {POD: FIFO}
