"""The watch for threads in real time, which the test scripts."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from criproxy.model import PodRef, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.realtime import SOON_S, RealtimeWatch
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
BY_NRI, BY_CRI = '[proxy]\nfront = "nri"\n', '[proxy]\nfront = "cri"\n'
ALLOWS = f'{BY_NRI}[hardening]\nallow = [{{ namespace = true, equals = "drivers" }}]\n'


@dataclass
class Bench:
    stops: bool = False
    config: str = BY_NRI
    says: dict[str, str] | Exception = field(default_factory=dict)
    stopped: list[tuple[str, str]] = field(default_factory=list)
    asked: list[Mapping[str, str]] = field(default_factory=list)
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

    def read(self, placements: Mapping[str, str]) -> dict[str, str]:
        self.asked.append(placements)
        if isinstance(self.says, Exception):
            raise self.says
        return {id: words for id, words in self.says.items() if id in placements}

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


def test_nobody_is_looked_at_where_the_capability_is_dropped() -> None:
    bench = Bench(config=BY_CRI)
    bench.part.found = {POD: FIFO}
    assert bench.look({"s1": FIFO}) == []
    assert (bench.asked, bench.part.found, bench.part.pause_s) == ([], {}, None)


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
    assert (len(bench.asked), bench.part.pause_s) == (2, bench.part.EVERY_S)


def test_failure_is_told_of_once_and_keeps_what_is_known() -> None:
    bench = Bench()
    bench.look({"s1": FIFO})
    assert bench.look(OSError("no")) == [("look_failed", None)]
    assert bench.look(OSError("no")) == []
    assert bench.part.found == {POD: FIFO}
