"""Pods of the box that leave, single ones and all: which, when, and again."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.model import PodRef, Sandbox
from criproxy.pods.part import NodeSettings
from criproxy.pods.pod_stops import PodStops
from criproxy.pods.runtime import ListedContainer
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import (
    ON_CLOSE,
    ON_DISABLE,
    ON_RUNTIME_OVERLOAD,
    ON_UNBOUNDED,
    BudgetError,
    Evicts,
    Holds,
    KnownPod,
    Leave,
    RefusedError,
    StopBudget,
    StopRequests,
)
from tests.fakes.clock import FakeClock
from tests.fakes.counters import FakeCounters
from tests.fakes.hold_offs import held_off
from tests.fakes.part import node_settings
from tests.fakes.pods import FakePodsRuntime

ON = node_settings()
EVICT = node_settings("colocation.on_disable = 'evict'", enabled=False)


def sandbox(uid: str) -> Sandbox:
    return Sandbox(f"sandbox-{uid}", PodRef(uid, "batch", f"job-{uid}"), f"/offline/pod{uid}")


@dataclass
class Bench:
    settings: NodeSettings = ON
    runtime: FakePodsRuntime = field(default_factory=FakePodsRuntime)
    held_off: tuple[str, ...] = ()
    evicts: Evicts | None = None

    def __post_init__(self) -> None:
        clock, runtime = FakeClock(), self.runtime
        stops_by = frozenset([ON_DISABLE, ON_CLOSE, ON_UNBOUNDED, ON_RUNTIME_OVERLOAD])
        self.hold_offs = held_off(clock, *self.held_off)
        holds = Holds(clock, self.hold_offs, stops_by)
        log = structlog.get_logger()
        shared = PodsShared(runtime, runtime, holds, FakeCounters(), clock, log, self.evicts)  # type: ignore[arg-type]
        self.clock = clock
        self.requests = StopRequests(clock)
        self.part = PodStops(shared, self.requests, shared.stopper())
        self.part.configure(self.settings)

    def look(self) -> None:
        asyncio.run(self.part.look())


class NoBudget:
    """Lets no pod go."""

    async def known(self, *, within_s: float) -> Mapping[str, KnownPod]:
        return {}

    async def evict(
        self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None, still: Callable[[], bool] = bool
    ) -> float | None:
        raise BudgetError("minAvailable 1")

    def promised_cores(self) -> float | None:
        return None

    def stopped(self, pod: PodRef, why: str) -> None:
        pass


def test_pods_stay_while_colocation_is_on() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),)))
    bench.look()
    assert bench.runtime.stopped == []


def test_nothing_is_stopped_while_lists_do_not_hold() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"),), ready=False))
    bench.look()
    assert bench.runtime.stopped == []


def test_evict_stops_each_pod_once() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))))
    bench.look()
    bench.look()
    assert sorted(bench.runtime.stopped) == ["sandbox-a", "sandbox-b"]


def test_pod_that_has_ended_is_not_asked_to_leave_but_one_whose_container_runs_on_without_its_sandbox_is() -> None:
    up = ListedContainer("c", "sandbox-b", "main", running=True)
    ended = {"sandbox-a", "sandbox-b"}
    pods = tuple(map(sandbox, "abc"))
    bench = Bench(EVICT, FakePodsRuntime(pods, ended=ended, containers={"sandbox-b": (up,)}))
    bench.look()
    assert sorted(bench.runtime.stopped) == ["sandbox-b", "sandbox-c"]


def test_evict_is_not_held_up_by_a_pod_that_does_not_stop_and_tries_it_again() -> None:
    names = "abcdef"
    runtime = FakePodsRuntime(tuple(map(sandbox, names)), stubborn={"sandbox-a", "sandbox-d"})
    bench = Bench(EVICT, runtime)
    with pytest.raises(ConnectionError):
        bench.look()
    assert sorted(runtime.stopped) == ["sandbox-b", "sandbox-c", "sandbox-e", "sandbox-f"]
    runtime.stubborn.clear()
    bench.look()
    assert sorted(runtime.stopped) == [f"sandbox-{name}" for name in names]


def test_pods_are_evicted_again_when_the_switch_has_been_on_in_between() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"),)))
    for settings in (EVICT, ON, EVICT):
        bench.part.configure(settings)
        bench.look()
    assert bench.runtime.stopped == ["sandbox-a"] * 2


def test_what_happens_to_pods_asks_for_a_look() -> None:
    for happens in (
        lambda part: part.configure(ON),
        lambda part: part.pods_listed(),
        lambda part: part.pod_removed(sandbox("a")),
        lambda part: part.requests.stop(sandbox("a"), "why", ON_UNBOUNDED),
    ):
        part = Bench().part
        part.wake._is_set = False
        happens(part)
        assert part.wake.is_set


# --- how many ---


def few(bench: Bench) -> list[str]:
    """All pods of the bench are to go singly, as they overload the runtime."""
    for one in bench.runtime.placed:
        bench.requests.stop(one, "why", ON_RUNTIME_OVERLOAD)
    bench.look()
    return [one.removeprefix("sandbox-") for one in bench.runtime.stopped]


def others(bench: Bench, *ids: str) -> None:
    """Another part, whose rules match these, has them stopped."""
    leave = Leave(sandbox("x").pod, "why", ON_UNBOUNDED)
    asyncio.run(bench.part.shared.stopper().stop_all(dict.fromkeys(ids, leave)))


def test_pods_go_within_the_budget_that_the_node_s_file_names() -> None:
    bench = Bench(node_settings("interference.evict_most = 3"), FakePodsRuntime(tuple(map(sandbox, "abcdefghij"))))
    assert few(bench) == ["a", "b", "c"]
    assert few(bench) == ["a", "b", "c"]
    assert list(bench.part.problems()) == [
        "7 offline pods wait to be stopped, as at most 3 go in ten minutes (interference.evict_most)"
    ]
    bench.clock.advance(600.0)
    assert few(bench)[3:] == ["d", "e", "f"]


def test_what_counts_in_the_budget_is_saved_soon() -> None:
    """A process that is killed before that gives the next one a new budget."""
    budget = StopBudget()
    budget.takes("s1", Leave(sandbox("x").pod, "why", ON_RUNTIME_OVERLOAD), 0.0)
    assert budget.counts.is_set


def test_one_budget_holds_for_all_parts_that_stop_pods_and_all_pods_leave_whatever_it_says() -> None:
    bench = Bench(ON, FakePodsRuntime(tuple(map(sandbox, "abcdefghij"))))
    others(bench, *"12345")
    assert len(few(bench)) == 6
    bench.part.configure(EVICT)
    bench.look()
    assert len(bench.runtime.stopped) == 15


def test_pods_of_the_box_that_got_out_of_it_neither_wait_for_the_budget_nor_use_it_up() -> None:
    bench = Bench(ON, FakePodsRuntime(tuple(map(sandbox, "abcdefgh"))))
    others(bench, *"12345")
    for one in bench.runtime.placed:
        bench.requests.stop(one, "its process 7 runs outside the box", ON_UNBOUNDED)
    bench.look()
    assert len(bench.runtime.stopped) == 5 + 8
    others(bench, *"67")
    assert bench.runtime.stopped[5 + 8 :] == ["6"]


def test_pod_that_waits_for_the_budget_goes_at_once_when_it_gets_out_of_the_box() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),)))
    others(bench, *"123456")
    assert "a" not in few(bench)
    bench.requests.stop(sandbox("a"), "its process 7 runs outside the box", ON_UNBOUNDED)
    assert "a" in few(bench)


def test_pod_whose_disruption_budget_holds_it_takes_no_room_of_the_others() -> None:
    class Holding:
        async def evict(self, pod: PodRef, *_: object, **__: object) -> float:
            if pod.uid < "h":
                raise BudgetError("no more than this")
            return 30.0

    bench = Bench(ON, FakePodsRuntime(tuple(map(sandbox, "abcdefghij"))), evicts=Holding())  # type: ignore[arg-type]
    leaves = {one.id: Leave(one.pod, "why", ON_UNBOUNDED) for one in bench.runtime.placed}
    for _ in range(2):
        asyncio.run(bench.part.stopper.stop_all(leaves, patient=leaves.keys()))
    assert set(bench.part.stopper.evicted) == {f"sandbox-{uid}" for uid in "hij"}


def test_pod_that_waits_for_the_budget_may_start_containers_until_it_goes() -> None:
    bench = Bench(ON, FakePodsRuntime(tuple(map(sandbox, "abcdefg"))))
    holds = bench.part.shared.holds
    for one in bench.runtime.placed:
        bench.requests.stop(one, "why", ON_RUNTIME_OVERLOAD, held="it printed")
    assert [holds.held_itself(one.pod) for one in bench.runtime.placed] == [""] * 7
    bench.look()
    *going, waiting = [holds.held_itself(one.pod) for one in bench.runtime.placed]
    said = f"it was stopped, as it printed ({ON_RUNTIME_OVERLOAD}), so it is not let in for 300 s"
    assert (going, waiting) == ([said] * 6, "")


def test_pods_that_disruption_budgets_hold_are_asked_for_by_turns() -> None:
    asked: list[str] = []

    class Holding(NoBudget):
        async def evict(self, pod: PodRef, *args: Any, **words: Any) -> float | None:
            asked.append(pod.uid)
            return await super().evict(pod, *args, **words)

    uids = "abcdefghijkl"
    bench = Bench(ON, FakePodsRuntime(tuple(map(sandbox, uids))), evicts=Holding())
    leaves = {one.id: Leave(one.pod, "why", ON_UNBOUNDED) for one in bench.runtime.placed}
    for _ in range(4):
        asyncio.run(bench.part.stopper.stop_all(leaves, patient=leaves.keys()))
        bench.clock.advance(60.0)
    assert "".join(asked) == uids * 2


# --- single pods -----------------------------------------------------------------------------------------------------


def test_single_pod_is_evicted_once_and_the_others_stay() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"), sandbox("b"))))
    with capture_logs() as log:
        for _ in range(2):
            bench.requests.stop(sandbox("a"), "it is outside the box", ON_UNBOUNDED)
            bench.look()
    assert bench.runtime.stopped == ["sandbox-a"]
    assert [(entry["event"], entry["pod"], entry["reason"]) for entry in log] == [
        ("stop", "batch/job-a", "it is outside the box")
    ]


def test_single_pod_that_does_not_stop_is_tried_again_and_forgotten_when_it_has_gone() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),), stubborn={"sandbox-a"}))
    bench.requests.stop(sandbox("a"), "why", ON_UNBOUNDED)
    with pytest.raises(ConnectionError):
        bench.look()
    bench.runtime.stubborn.clear()
    bench.look()
    assert bench.runtime.stopped == ["sandbox-a"]
    bench.runtime.placed = ()
    bench.look()
    bench.runtime.placed = (sandbox("a"),)
    bench.look()
    assert bench.runtime.stopped == ["sandbox-a"]


def test_pod_that_criproxy_is_held_off_is_not_stopped_and_the_others_are() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), held_off=("b",))
    bench.requests.stop(sandbox("b"), "it printed", ON_RUNTIME_OVERLOAD)
    bench.look()
    assert bench.runtime.stopped == ["sandbox-a"]


def test_switch_waits_for_the_budgets_of_pods_but_not_for_one_that_no_limit_holds() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), evicts=NoBudget())
    bench.requests.stop(sandbox("b"), "it runs outside the box", ON_UNBOUNDED)
    bench.look()
    assert bench.runtime.stopped == ["sandbox-b"]


class Away(NoBudget):
    """Has no answer of an API server, or, with `refuses`, one that it evicts no pod; `grace_s` once it does."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.grace_s: float | None = None
        self.asked: list[str] = []
        self.then: Callable[[], None] = lambda: None

    async def evict(self, pod: PodRef, *_: Any, **__: Any) -> float | None:
        self.asked.append(pod.uid)
        self.then()
        if self.refuses and self.grace_s is None:
            raise RefusedError(self.refuses)
        return self.grace_s


STAY = [
    "2 offline pods stay in the box, within its limits, though colocation is off: the API server has not had them "
    "evicted; it is asked again each minute, and the log says what it answers (not_evicted)"
]


@pytest.mark.parametrize("refuses", ["", "pods may not be evicted by this node"], ids=["no-answer", "refused"])
def test_switch_stops_no_pod_at_the_runtime_that_kubelet_would_start_anew_without_bounds(refuses: str) -> None:
    evicts = Away(refuses)
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), evicts=evicts)
    for _ in range(2):
        bench.look()
        bench.clock.advance(60.0)
    assert (bench.runtime.stopped, sorted(evicts.asked)) == ([], ["a", "a", "b", "b"])
    assert list(bench.part.problems()) == STAY
    evicts.grace_s = 45.0
    bench.look()
    assert set(bench.part.stopper.evicted) == {"sandbox-a", "sandbox-b"}
    assert list(bench.part.problems()) == []


def test_pods_that_stay_are_no_problem_once_colocation_is_on_again() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), evicts=Away())
    bench.look()
    assert list(bench.part.problems()) == STAY
    bench.part.configure(ON)
    bench.look()
    assert list(bench.part.problems()) == []


def test_pod_that_is_not_to_go_any_more_while_the_api_server_is_asked_is_no_problem() -> None:
    evicts = Away()
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"),)), evicts=evicts)
    evicts.then = lambda: bench.part.shared.holds.configure(frozenset())
    with capture_logs() as log:
        bench.look()
    assert [entry["event"] for entry in log] == ["not_stopped_any_more"]
    assert (bench.runtime.stopped, list(bench.part.problems())) == ([], [])


def test_pod_that_a_budget_holds_once_the_api_server_answers_is_no_problem() -> None:
    evicts = Away()
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), evicts=evicts)
    bench.look()
    assert list(bench.part.problems()) == STAY

    def holds() -> None:
        raise BudgetError("minAvailable 1")

    evicts.then = holds
    with capture_logs() as log:
        bench.look()
        bench.look()
    assert [(entry["event"], entry["budget"]) for entry in log] == [("eviction_waits", "minAvailable 1")] * 2
    assert (bench.runtime.stopped, list(bench.part.problems())) == ([], [])


def test_schedule_that_closes_stops_pods_at_the_runtime_where_nobody_answers() -> None:
    """What starts meanwhile is kept out of a box that is closed, and waits."""
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),)), evicts=Away())
    bench.part.all_leave = ("the schedule is off", ON_CLOSE)
    bench.look()
    assert bench.runtime.stopped == ["sandbox-a"]


def test_request_that_nobody_repeats_is_over_when_a_hold_off_ends() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),)), held_off=("a",))
    bench.requests.stop(sandbox("a"), "it printed", ON_RUNTIME_OVERLOAD)
    bench.look()
    bench.clock.advance(3 * 3600.0)
    bench.hold_offs._all = {}
    bench.look()
    assert bench.runtime.stopped == []


def test_request_that_is_repeated_stands_when_a_hold_off_ends() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),)), held_off=("a",))
    for _ in range(180):
        bench.requests.stop(sandbox("a"), "it printed", ON_RUNTIME_OVERLOAD)
        bench.look()
        bench.clock.advance(60.0)
    bench.hold_offs._all = {}
    bench.look()
    assert bench.runtime.stopped == ["sandbox-a"]
