"""Rounds of the reconciler between a scripted runtime and a box that keeps its orders."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.cgroup.naming import parse_box
from criproxy.model import PodRef, Sandbox
from criproxy.pods.reconciler import AGAIN_S, EVERY_S, Reconciler, ReconcilerSettings
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
)
from tests.fakes.box import FakeBox
from tests.fakes.counters import FakeCounters
from tests.fakes.hold_offs import held_off
from tests.fakes.pods import FakePodsRuntime

ON = ReconcilerSettings(when_off=None, adopt=True)
RELEASE = replace(ON, when_off="release")
EVICT = replace(ON, when_off="evict")


def sandbox(uid: str, box: str = "/offline") -> Sandbox:
    return Sandbox(f"sandbox-{uid}", PodRef(uid, "batch", f"job-{uid}"), f"{box}/pod{uid}")


@dataclass
class Bench:
    settings: ReconcilerSettings = ON
    runtime: FakePodsRuntime = field(default_factory=FakePodsRuntime)
    box: FakeBox = field(default_factory=FakeBox)
    counters: FakeCounters = field(default_factory=FakeCounters)
    times: Iterable[float] = ()
    held_off: tuple[str, ...] = ()
    evicts: Evicts | None = None

    def __post_init__(self) -> None:
        self._times = iter(self.times)
        stops_by = frozenset([ON_DISABLE, ON_CLOSE, ON_UNBOUNDED, ON_RUNTIME_OVERLOAD])
        holds = Holds(self, held_off(self, *self.held_off), stops_by)  # type: ignore[arg-type]
        shared = PodsShared(self.runtime, self.runtime, holds, self.counters, self, structlog.get_logger(), self.evicts)  # type: ignore[arg-type]
        self.reconciler = Reconciler(
            self.settings,
            shared,
            self.box,  # type: ignore[arg-type]
            shared.stopper(),
        )

    def boottime_s(self) -> float:
        return next(self._times, 0.0)

    async def sleep(self, seconds: float, slack_s: float = 0.0, wake: object = None) -> None:
        await asyncio.sleep(seconds)

    def round(self, refresh: bool = False) -> None:
        asyncio.run(self.reconciler.round(refresh=refresh))

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run with a removal pending whenever it looks."""

        async def go() -> None:
            task = asyncio.create_task(self.reconciler.run())
            while not condition():
                self.reconciler.pod_removed(sandbox("a"))
                await asyncio.sleep(0)
            task.cancel()

        asyncio.run(asyncio.wait_for(go(), 60))


async def _ends(task: asyncio.Task[None]) -> bool:
    """Whether a task that is cancelled ends, and by that."""
    task.cancel()
    await asyncio.wait([task], timeout=5)
    return task.cancelled()


def test_reconciler_that_is_cancelled_as_something_happens_ends() -> None:
    async def go() -> bool:
        reconciler = Bench().reconciler
        task = asyncio.create_task(reconciler.run())
        await asyncio.sleep(0.01)
        reconciler.configure(ON)
        return await _ends(task)

    assert asyncio.run(go())


# --- adoption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "orders"),
    [
        pytest.param(ON, [("adopt", "/offline", False)], id="on"),
        pytest.param(RELEASE, [("adopt", "/offline", True)], id="off-release"),
        pytest.param(EVICT, [("adopt", "/offline", False)], id="off-evict"),
        pytest.param(ReconcilerSettings(None, adopt=False), [], id="config-not-known"),
    ],
)
def test_box_of_another_process_is_taken_over_without_a_pod_in_it(
    settings: ReconcilerSettings, orders: list[object]
) -> None:
    bench = Bench(settings)
    asyncio.run(bench.reconciler.take_over(parse_box("/offline")))
    assert bench.runtime.lists == 0
    assert bench.box.orders == orders


@pytest.mark.parametrize(
    ("settings", "orders"),
    [
        pytest.param(ON, [("adopt", "/offline", False)], id="on"),
        pytest.param(RELEASE, [("adopt", "/offline", True)], id="off-release"),
        pytest.param(EVICT, [("adopt", "/offline", False)], id="off-evict"),
        pytest.param(ReconcilerSettings(None, adopt=False), [], id="config-not-known"),
    ],
)
def test_connected_adopts_the_box_of_running_pods(settings: ReconcilerSettings, orders: list[object]) -> None:
    bench = Bench(settings, FakePodsRuntime((sandbox("a"), sandbox("b"))))
    asyncio.run(bench.reconciler.connected())
    assert bench.runtime.lists == 1
    assert bench.box.orders == orders


def test_connected_without_offline_pods_adopts_nothing() -> None:
    bench = Bench()
    asyncio.run(bench.reconciler.connected())
    assert bench.box.orders == []


def test_box_is_adopted_once_and_a_refusal_is_tried_again_without_holding_up_the_runtime() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox(error="no systemd"))
    asyncio.run(bench.reconciler.connected())
    bench.box.error = ""
    bench.round()
    bench.round()
    assert bench.box.orders == [("adopt", "/offline", False)] * 2


def test_connected_passes_the_failure_of_a_list_on() -> None:
    bench = Bench(runtime=FakePodsRuntime(down=True))
    with pytest.raises(ConnectionError):
        asyncio.run(bench.reconciler.connected())


# --- sweeping ------------------------------------------------------------------------------------------------------


def test_round_sweeps_what_the_runtime_does_not_know() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox(empty=("poda", "podgone")))
    bench.round()
    assert bench.box.known == {"poda"}
    assert bench.counters.of("box_swept") == [1]


def test_round_kills_what_pods_have_left_only_with_a_fresh_list() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox("/offline"))
    bench.round()
    assert bench.box.orders == []
    bench.round(refresh=True)
    assert bench.box.orders == [("reap", {"a"})]


def test_round_sweeps_nothing_while_lists_do_not_hold() -> None:
    bench = Bench(runtime=FakePodsRuntime(ready=False), box=FakeBox("/offline"))
    bench.round(refresh=True)
    assert (bench.runtime.lists, bench.box.known) == (0, None)


def test_round_sweeps_nothing_when_its_list_fails_and_tells_so_once() -> None:
    bench = Bench(runtime=FakePodsRuntime(down=True), box=FakeBox("/offline"))
    with structlog.testing.capture_logs() as log:
        bench.round(refresh=True)
        bench.round(refresh=True)
    assert bench.box.known is None
    assert [entry["event"] for entry in log] == ["upkeep_failed"]
    bench.runtime.down = False
    bench.round(refresh=True)
    assert bench.box.known == frozenset()


# --- the switch ----------------------------------------------------------------------------------------------------


def test_round_while_on_leaves_pods_and_limits_alone() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox("/offline"))
    bench.round()
    assert (bench.box.orders, bench.runtime.stopped) == ([], [])


def test_release_needs_no_runtime() -> None:
    bench = Bench(RELEASE, FakePodsRuntime((sandbox("a"),), ready=False), FakeBox("/offline"))
    bench.round()
    assert (bench.box.orders, bench.runtime.stopped) == (["release"], [])


def test_evict_stops_each_pod_once() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), FakeBox("/offline"))
    bench.round()
    bench.round()
    assert sorted(bench.runtime.stopped) == ["sandbox-a", "sandbox-b"]
    assert bench.box.orders == []


def test_evict_is_not_held_up_by_a_pod_that_does_not_stop_and_tries_it_again() -> None:
    names = "abcdef"
    runtime = FakePodsRuntime(tuple(map(sandbox, names)), stubborn={"sandbox-a", "sandbox-d"})
    bench = Bench(EVICT, runtime, FakeBox("/offline", empty=("podgone",)))
    bench.round()
    assert sorted(runtime.stopped) == ["sandbox-b", "sandbox-c", "sandbox-e", "sandbox-f"]
    assert bench.counters.of("box_swept") == [1]
    runtime.stubborn.clear()
    bench.round()
    assert sorted(runtime.stopped) == [f"sandbox-{name}" for name in names]


def test_stop_that_hangs_keeps_no_limit_from_being_lifted_and_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hangs(FakePodsRuntime):
        async def stop(self, sandbox_id: str) -> None:
            await super().stop(sandbox_id)
            await asyncio.Event().wait()

    monkeypatch.setattr("criproxy.pods.stopping.STOPS_S", 0.01)
    bench = Bench(EVICT, Hangs((sandbox("a"),)), FakeBox("/offline"))

    async def go() -> None:
        await bench.reconciler.round(refresh=False)
        await bench.reconciler.round(refresh=False)
        bench.reconciler.configure(RELEASE)
        await bench.reconciler.round(refresh=False)

    asyncio.run(go())
    assert (bench.box.orders, bench.runtime.stopped) == (["release"], ["sandbox-a"])


def test_pods_are_evicted_again_when_the_switch_has_been_on_in_between() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"),)), FakeBox("/offline"))
    for settings in (EVICT, ON, EVICT):
        bench.reconciler.configure(settings)
        bench.round()
    assert bench.runtime.stopped == ["sandbox-a"] * 2


# --- single pods -----------------------------------------------------------------------------------------------------


def test_single_pod_is_evicted_once_and_the_others_stay() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"), sandbox("b"))), FakeBox("/offline"))
    with structlog.testing.capture_logs() as log:
        for _ in range(2):
            bench.reconciler.stop(sandbox("a"), "it is outside the box", ON_UNBOUNDED)
            bench.round()
    assert bench.runtime.stopped == ["sandbox-a"]
    assert [(entry["event"], entry["pod"], entry["reason"]) for entry in log] == [
        ("stop", "batch/job-a", "it is outside the box")
    ]


def test_single_pod_that_does_not_stop_is_tried_again_and_forgotten_when_it_has_gone() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"),), stubborn={"sandbox-a"}), FakeBox("/offline"))
    bench.reconciler.stop(sandbox("a"), "why", ON_UNBOUNDED)
    bench.round()
    bench.runtime.stubborn.clear()
    bench.round()
    assert bench.runtime.stopped == ["sandbox-a"]
    bench.runtime.placed = ()
    bench.round()
    bench.runtime.placed = (sandbox("a"),)
    bench.round()
    assert bench.runtime.stopped == ["sandbox-a"]


# --- tending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [ON, RELEASE, EVICT], ids=["on", "release", "evict"])
def test_box_is_tended_whatever_the_switch_says(settings: ReconcilerSettings) -> None:
    bench = Bench(settings, box=FakeBox("offline.slice", 2))
    bench.box.driver.anchors = ("kubepods-criproxy.slice",)
    with structlog.testing.capture_logs() as logs:
        asyncio.run(bench.reconciler.tend_once())
    assert bench.box.driver.log == [("keep_anchors", "offline.slice")]
    assert [log["event"] for log in logs] == ["anchors_changed"]


def test_tending_that_fails_goes_on_and_is_logged_once() -> None:
    bench = Bench(box=FakeBox("offline.slice", 2, error="no systemd"))

    async def tend() -> None:
        for _ in range(3):
            await bench.reconciler.tend_once()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(tend())
    assert bench.box.jobs == ["tend"] * 3
    assert [log["event"] for log in logs] == ["anchors_failed"]


@pytest.mark.parametrize(
    ("version", "path"),
    [
        pytest.param(2, None, id="no-box"),
        pytest.param(2, "/offline", id="without-systemd"),
        pytest.param(1, "offline.slice", id="v1"),
    ],
)
def test_tending_where_nothing_needs_an_anchor_asks_nobody(version: int, path: str | None) -> None:
    bench = Bench(box=FakeBox(path, version))
    asyncio.run(bench.reconciler.tend_once())
    assert bench.box.jobs == []


# --- the schedule --------------------------------------------------------------------------------------------------


def test_run_lists_again_soon_after_a_removal_but_not_for_each_of_many() -> None:
    bench = Bench(times=(t / 4 * AGAIN_S for t in range(1_000_000)))
    bench.run_until(lambda: bench.runtime.lists >= 2)
    assert len(bench.counters.of("box_swept")) > bench.runtime.lists, "rounds after a removal alone do not list"


def test_run_goes_on_after_a_round_that_failed() -> None:
    bench = Bench(runtime=FakePodsRuntime(down=True), times=(t * EVERY_S for t in range(1_000_000)))
    bench.run_until(lambda: bench.runtime.lists >= 2)


def test_pod_that_does_not_stop_keeps_nothing_else_from_being_done() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)))
    bench.runtime.stubborn = {sandbox("a").id}
    bench.reconciler.stop(sandbox("a"), "why", ON_UNBOUNDED)
    bench.round(refresh=True)


def test_pod_that_criproxy_is_held_off_is_not_stopped_and_the_others_are() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), FakeBox("/offline"), held_off=("b",))
    bench.reconciler.stop(sandbox("b"), "it printed", ON_RUNTIME_OVERLOAD)
    bench.round(refresh=True)
    assert bench.runtime.stopped == ["sandbox-a"]


def test_shares_that_pods_ask_for_are_known_to_the_box_after_each_listing() -> None:
    asks = replace(sandbox("a"), cpu_shares=2048, mid=True)
    bench = Bench(ON, FakePodsRuntime((asks, sandbox("b"))), FakeBox("/offline"))
    asyncio.run(bench.reconciler.connected())
    assert (bench.box.shares, bench.box.mid) == ({"poda": 2048, "podb": 0}, ("poda",))
    bench.runtime.placed = (sandbox("b"),)
    bench.round(refresh=True)
    assert (bench.box.shares, bench.box.mid) == ({"podb": 0}, ())


def test_page_cache_is_dropped_of_all_but_the_pods_that_run_and_a_failure_keeps_nothing_else() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"), sandbox("b"))), FakeBox("/offline", empty=("podgone",), cache=5))
    bench.runtime.ended = {"sandbox-b"}
    with capture_logs() as logs:
        bench.round()
        bench.box.error = "no systemd"
        bench.round()
        bench.round()
    assert bench.box.drops == [frozenset({"poda"})] * 3
    assert bench.counters.of("page_cache_dropped_bytes") == [5]
    assert [entry["event"] for entry in logs].count("page_cache_dropped") == 1
    assert [entry["event"] for entry in logs].count("page_cache_stays") == 1
    assert bench.box.known == frozenset({"poda", "podb"})


class NoBudget:
    """Lets no pod go."""

    async def known(self, *, within_s: float) -> Mapping[str, KnownPod]:
        return {}

    async def evict(
        self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None, still: Callable[[], bool] = bool
    ) -> float | None:
        raise BudgetError("minAvailable 1")

    def stopped(self, pod: PodRef, why: str) -> None:
        pass


def test_switch_waits_for_the_budgets_of_pods_but_not_for_one_that_no_limit_holds() -> None:
    bench = Bench(EVICT, FakePodsRuntime((sandbox("a"), sandbox("b"))), FakeBox("/offline"), evicts=NoBudget())
    bench.reconciler.stop(sandbox("b"), "it runs outside the box", ON_UNBOUNDED)
    bench.round()
    assert bench.runtime.stopped == ["sandbox-b"]
