"""Rounds of the reconciler between a scripted runtime and a box that keeps its orders."""

import asyncio
from dataclasses import dataclass, field

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import BoxPath, parse_box
from criproxy.model import PodRef, Sandbox
from criproxy.pods.part import NodeSettings
from criproxy.pods.reconciler import AFTER_REMOVAL_S, AGAIN_S, EVERY_S, Reconciler
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import Holds
from tests.fakes.box import FakeBox
from tests.fakes.clock import FakeClock
from tests.fakes.counters import FakeCounters
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.part import node_settings
from tests.fakes.pods import FakePodsRuntime

ON = node_settings()
RELEASE = node_settings(enabled=False)
EVICT = node_settings("colocation.on_disable = 'evict'", enabled=False)
DRY_RUN = node_settings(dry_run=True)


def sandbox(uid: str, box: str = "/offline") -> Sandbox:
    return Sandbox(f"sandbox-{uid}", PodRef(uid, "batch", f"job-{uid}"), f"{box}/pod{uid}")


@dataclass
class Bench:
    settings: NodeSettings = ON
    runtime: FakePodsRuntime = field(default_factory=FakePodsRuntime)
    box: FakeBox = field(default_factory=FakeBox)
    counters: FakeCounters = field(default_factory=FakeCounters)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        holds = Holds(self.clock, no_hold_offs(self.clock))
        runtime, log = self.runtime, structlog.get_logger()
        shared = PodsShared(runtime, runtime, holds, self.counters, self.clock, log)  # type: ignore[arg-type]
        self.reconciler = Reconciler(shared, self.box)  # type: ignore[arg-type]
        self.reconciler.configure(self.settings)

    def round(self, lists: bool = False) -> None:
        asyncio.run(self.reconciler.round(lists=lists))

    def look(self) -> tuple[int, int]:
        """How many rounds, and how many of them with a listing, there were by then."""
        asyncio.run(self.reconciler.look())
        return len(self.counters.of("box_swept")), self.runtime.lists

    def looks_after(self, seconds: float) -> tuple[int, int]:
        self.clock.advance(seconds + 1e-6)
        return self.look()


# --- adoption ------------------------------------------------------------------------------------------------------


ADOPTED = [
    pytest.param(ON, [("adopt", "/offline", False)], id="on"),
    pytest.param(RELEASE, [("adopt", "/offline", True)], id="off-release"),
    pytest.param(EVICT, [("adopt", "/offline", False)], id="off-evict"),
    pytest.param(DRY_RUN, [], id="dry-run"),
]


@pytest.mark.parametrize(("settings", "orders"), ADOPTED)
def test_box_with_pods_is_taken_over_although_the_runtime_is_away(settings: NodeSettings, orders: list[object]) -> None:
    bench = Bench(settings, FakePodsRuntime(ready=False), FakeBox(there="/offline"))
    bench.round()
    bench.round(lists=True)
    assert [one for one in bench.box.orders if one != "release"] == orders
    assert (bench.runtime.lists, bench.counters.of("box_swept")) == (0, [])


@pytest.mark.parametrize(("settings", "orders"), ADOPTED)
def test_box_of_another_process_is_taken_over_without_a_pod_in_it(settings: NodeSettings, orders: list[object]) -> None:
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
        pytest.param(DRY_RUN, [], id="dry-run"),
    ],
)
def test_connected_adopts_the_box_of_running_pods(settings: NodeSettings, orders: list[object]) -> None:
    bench = Bench(settings, FakePodsRuntime((sandbox("a"), sandbox("b"))))
    asyncio.run(bench.reconciler.connected())
    assert bench.runtime.lists == 1
    assert bench.box.orders == orders


def test_connected_without_offline_pods_adopts_nothing() -> None:
    bench = Bench()
    asyncio.run(bench.reconciler.connected())
    assert bench.box.orders == []


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


def test_nothing_is_swept_or_forgotten_before_it_is_known_which_pods_are_in_the_box() -> None:
    bench = Bench(box=FakeBox(empty=("poda",)))
    bench.box.shares = {"poda": 512}
    bench.runtime.places_known = False
    asyncio.run(bench.reconciler.take_over(parse_box("/kubelet/offline")))
    bench.round(lists=True)
    assert bench.counters.of("box_swept") == []
    assert (bench.box.shares, bench.box.drops) == ({"poda": 512}, [])
    bench.runtime.places_known = True
    bench.round(lists=True)
    assert bench.counters.of("box_swept") == [1]
    assert (bench.box.shares, bench.box.drops) == ({}, [frozenset()])


def test_round_tells_the_box_whose_pods_have_ended_but_not_of_one_that_has_another_sandbox_by_now() -> None:
    again = replace(sandbox("b"), id="sandbox-again")
    pods = (sandbox("a"), sandbox("b"), again, sandbox("c"))
    bench = Bench(runtime=FakePodsRuntime(pods, ended={"sandbox-a", "sandbox-b"}))
    bench.round()
    assert (bench.box.known, bench.box.ended) == ({"poda", "podb", "podc"}, {"poda"})


def test_round_kills_what_pods_have_left_only_with_a_fresh_list() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox("/offline"))
    bench.round()
    assert bench.box.orders == []
    bench.round(lists=True)
    assert bench.box.orders == [("reap", {"a"})]


def test_round_sweeps_nothing_while_lists_do_not_hold() -> None:
    bench = Bench(runtime=FakePodsRuntime(ready=False), box=FakeBox("/offline"))
    bench.round(lists=True)
    assert (bench.runtime.lists, bench.box.known) == (0, None)


# --- the switch ----------------------------------------------------------------------------------------------------


def test_round_while_on_leaves_limits_alone() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox("/offline"))
    bench.round()
    assert bench.box.orders == []


def test_release_needs_no_runtime() -> None:
    bench = Bench(RELEASE, FakePodsRuntime((sandbox("a"),), ready=False), FakeBox("/offline"))
    bench.round()
    assert bench.box.orders == ["release"]


def test_box_is_adopted_once_and_a_refusal_is_tried_again_without_holding_up_the_runtime() -> None:
    bench = Bench(runtime=FakePodsRuntime((sandbox("a"),)), box=FakeBox(error="no systemd"))
    asyncio.run(bench.reconciler.connected())
    bench.box.error = ""
    bench.round()
    bench.round()
    assert bench.box.orders == [("adopt", "/offline", False)] * 2


def test_round_sweeps_nothing_when_its_list_fails() -> None:
    bench = Bench(runtime=FakePodsRuntime(down=True), box=FakeBox("/offline"))
    with pytest.raises(ConnectionError):
        bench.round(lists=True)
    assert bench.box.known is None
    bench.runtime.down = False
    bench.round(lists=True)
    assert bench.box.known == frozenset()


def test_limits_are_lifted_though_the_list_fails() -> None:
    bench = Bench(RELEASE, FakePodsRuntime(down=True), FakeBox("/offline"))
    with pytest.raises(ConnectionError):
        bench.round(lists=True)
    assert bench.box.orders == ["release"]


def test_shares_that_pods_ask_for_are_known_to_the_box_after_each_listing() -> None:
    asks = replace(sandbox("a"), cpu_shares=2048, mid=True)
    bench = Bench(ON, FakePodsRuntime((asks, sandbox("b"))), FakeBox("/offline"))
    asyncio.run(bench.reconciler.connected())
    assert (bench.box.shares, bench.box.mid) == ({"poda": 2048, "podb": 0}, ("poda",))
    bench.runtime.placed = (sandbox("b"),)
    bench.round(lists=True)
    assert (bench.box.shares, bench.box.mid) == ({"podb": 0}, ())


def test_shares_that_pods_ask_for_are_known_to_the_box_before_it_is_taken_over() -> None:
    asks = replace(sandbox("a"), cpu_shares=2048, mid=True)
    bench = Bench(ON, FakePodsRuntime((asks,)))
    known: list[object] = []
    adopt = bench.box.adopt

    async def adopts(box: BoxPath, *, lifted: bool = False) -> None:
        known.append((bench.box.shares, bench.box.mid))
        await adopt(box, lifted=lifted)

    bench.box.adopt = adopts  # type: ignore[method-assign]
    asyncio.run(bench.reconciler.take_over(parse_box("/offline")))
    assert known == [({"poda": 2048}, ("poda",))]


def test_page_cache_is_dropped_of_all_but_the_pods_that_run_and_a_failure_keeps_nothing_else() -> None:
    bench = Bench(ON, FakePodsRuntime((sandbox("a"), sandbox("b"))), FakeBox("/offline", empty=("podgone",), cache=5))
    bench.runtime.ended = {"sandbox-b"}
    with capture_logs() as logs:
        bench.round()
        bench.box.error = "no systemd"
        with pytest.raises(CgroupError):
            bench.round()
    assert bench.box.drops == [frozenset({"poda"})] * 2
    assert bench.counters.of("page_cache_dropped_bytes") == [5]
    assert [entry["event"] for entry in logs].count("page_cache_dropped") == 1
    assert bench.box.known == frozenset({"poda", "podb"})
    assert len(bench.counters.of("box_swept")) == 2


# --- when ------------------------------------------------------------------------------------------------------------


def test_rounds_follow_events_a_moment_later_and_each_minute_all_is_listed() -> None:
    bench = Bench()
    assert bench.look() == (0, 0)
    assert bench.reconciler.pause_s == pytest.approx(AFTER_REMOVAL_S)
    assert bench.looks_after(AFTER_REMOVAL_S) == (1, 0)
    assert bench.reconciler.pause_s == pytest.approx(AGAIN_S), "after what happened, it lists soon"
    assert bench.looks_after(AGAIN_S) == (2, 1)
    assert bench.reconciler.pause_s == pytest.approx(EVERY_S)
    assert bench.looks_after(EVERY_S / 2) == (2, 1)
    assert bench.looks_after(EVERY_S / 2) == (3, 2)


def test_removals_that_go_on_and_on_keep_the_listing_from_nothing_and_are_not_listed_each() -> None:
    bench = Bench()
    bench.look()
    for _ in range(4 * int(AGAIN_S)):
        bench.reconciler.pod_removed(sandbox("a"))
        rounds, lists = bench.looks_after(0.25)
    assert (rounds, lists) == (4 * int(AGAIN_S), 0)
    assert bench.looks_after(0.25)[1] == 1


def test_round_that_fails_is_followed_by_others() -> None:
    bench = Bench(runtime=FakePodsRuntime(down=True))
    bench.looks_after(AFTER_REMOVAL_S)
    for tries in (1, 2):
        with pytest.raises(ConnectionError):
            bench.looks_after(EVERY_S)
        assert bench.runtime.lists == tries


def test_reconciler_that_begins_anew_lists_a_minute_later_and_not_at_once() -> None:
    bench = Bench()
    bench.looks_after(AFTER_REMOVAL_S)
    bench.reconciler.cease()
    assert bench.looks_after(2 * EVERY_S) == (1, 0)
    assert bench.reconciler.pause_s == pytest.approx(EVERY_S)
