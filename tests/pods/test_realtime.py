"""The watch for threads in real time, which the test scripts."""

from collections.abc import Mapping
from typing import Any, TypeVar

from criproxy.model import PodRef, Sandbox
from criproxy.pods.realtime import RealtimeWatch
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED
from tests.fakes.bench import PartBench

T = TypeVar("T")

POD, OTHER = PodRef("1", "batch", "job"), PodRef("2", "batch", "other")
PLACED = (Sandbox("s1", POD, "/offline/pod1"), Sandbox("s2", OTHER, "/offline/pod2"))
FIFO = "thread 7 runs under SCHED_FIFO"


class Bench(PartBench):
    running_pods = PLACED

    def __init__(self, *settings: str) -> None:
        super().__init__(*settings)
        self.says: dict[str, str] | Exception = {}
        self.watch = RealtimeWatch(self.shared(), self, self, self)  # type: ignore[arg-type]

    def read(self, placements: Mapping[str, str]) -> dict[str, str]:
        assert placements == {"s1": "/offline/pod1", "s2": "/offline/pod2"}
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def sees(self, says: dict[str, str] | Exception) -> list[Any]:
        self.says = says
        self.log.events.clear()
        self.look(self.watch)
        return [(event, fields.get("pod")) for _, event, fields in self.log.events]


def test_pod_is_told_once_until_it_has_ended() -> None:
    bench = Bench()
    assert bench.sees({"s1": FIFO}) == [("realtime_in_box", "batch/job")]
    assert bench.sees({"s1": FIFO, "s2": FIFO}) == [("realtime_in_box", "batch/other")]
    assert bench.watch.found == {POD: FIFO, OTHER: FIFO}
    assert bench.sees({}) == []
    assert bench.watch.found == {}
    assert bench.stopped == []


def test_pod_is_stopped_when_the_config_says_so() -> None:
    bench = Bench(ON_UNBOUNDED)
    bench.sees({"s1": FIFO})
    assert [one for one, _ in bench.stopped] == ["s1"]


def test_pod_that_was_stopped_is_not_let_in_at_once() -> None:
    bench = Bench(ON_UNBOUNDED)
    bench.sees({"s1": FIFO})
    held = bench.holds.held(POD), bench.holds.held(OTHER)
    bench.clock.now += HOLD_S
    assert "not let in for 300 s" in held[0]
    assert (held[1], bench.holds.held(POD)) == ("", "")


def test_failure_is_told_once_and_keeps_what_is_known() -> None:
    bench = Bench()
    bench.sees({"s1": FIFO})
    assert bench.sees(OSError("no")) == [("look_failed", None)]
    assert bench.sees(OSError("no")) == []
    assert bench.watch.found == {POD: FIFO}
