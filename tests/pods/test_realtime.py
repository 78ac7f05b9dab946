"""The watch for threads in real time, which the test scripts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from criproxy.model import PodRef, Sandbox
from criproxy.pods.realtime import RealtimeWatch
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED, Holds
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.part import look

T = TypeVar("T")

POD, OTHER = PodRef("1", "batch", "job"), PodRef("2", "batch", "other")
PLACED = (Sandbox("s1", POD, "/offline/pod1"), Sandbox("s2", OTHER, "/offline/pod2"))
FIFO = "thread 7 runs under SCHED_FIFO"


@dataclass
class Bench:
    stops: bool = False
    says: dict[str, str] | Exception = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    running_pods: tuple[Sandbox, ...] = PLACED
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.holds = Holds(self.clock, no_hold_offs(self.clock), frozenset([ON_UNBOUNDED] if self.stops else []))
        self.watch = RealtimeWatch(
            PodsShared(self, self, self.holds, self, self.clock, structlog.get_logger()),  # type: ignore[arg-type]
            self,
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
        )

    def stop(self, sandbox: Sandbox, why: str, setting: str) -> None:
        self.stopped.append(sandbox.id)

    def read(self, placements: Mapping[str, str]) -> dict[str, str]:
        assert placements == {"s1": "/offline/pod1", "s2": "/offline/pod2"}
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    def look(self, says: dict[str, str] | Exception) -> list[Any]:
        self.says = says
        with structlog.testing.capture_logs() as log:
            look(self.watch, structlog.get_logger())
        return [(entry["event"], entry.get("pod")) for entry in log]


def test_pod_is_told_once_until_it_has_ended() -> None:
    bench = Bench()
    assert bench.look({"s1": FIFO}) == [("realtime_in_box", "batch/job")]
    assert bench.look({"s1": FIFO, "s2": FIFO}) == [("realtime_in_box", "batch/other")]
    assert bench.watch.found == {POD: FIFO, OTHER: FIFO}
    assert bench.look({}) == []
    assert bench.watch.found == {}
    assert bench.stopped == []


def test_pod_is_stopped_when_the_config_says_so() -> None:
    bench = Bench(stops=True)
    bench.look({"s1": FIFO})
    assert bench.stopped == ["s1"]


def test_pod_that_was_stopped_is_not_let_in_at_once() -> None:
    bench = Bench(stops=True)
    bench.look({"s1": FIFO})
    held = bench.holds.held(POD), bench.holds.held(OTHER)
    bench.clock.now += HOLD_S
    assert "not let in for 300 s" in held[0]
    assert (held[1], bench.holds.held(POD)) == ("", "")


def test_failure_is_told_once_and_keeps_what_is_known() -> None:
    bench = Bench()
    bench.look({"s1": FIFO})
    assert bench.look(OSError("no")) == [("look_failed", None)]
    assert bench.look(OSError("no")) == []
    assert bench.watch.found == {POD: FIFO}
