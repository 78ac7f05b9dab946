"""How near the node is to kubelet's eviction, and what the box has to answer for."""

import asyncio
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from criproxy.cgroup.box import Held
from criproxy.cgroup.pod_use import PodCounters
from criproxy.control.memory_pressure import EvictionHard
from criproxy.model import UNLIMITED, Limits, Unlimited, Usage, UsageReading
from criproxy.model.signals import PodCpuTimes
from criproxy.pods.memory_relief import MemoryRelief, ReliefSettings
from criproxy.pods.stopping import ON_OVER_LIMIT
from tests.fakes.bench import PartBench
from tests.fakes.box import FakeBox
from tests.fakes.hold_offs import held_off
from tests.fakes.pods import FakeInventory

T = TypeVar("T")

MIB, GIB = 1 << 20, 1 << 30
HARD = EvictionHard(100 * MIB, 0.0, "evictionHard in /c")


class Bench(PartBench):
    def __init__(self, *, active: bool = True, stop: bool = True) -> None:
        super().__init__(*([ON_OVER_LIMIT] if active and stop else []))
        limits = {"cpu": 1.0, "memory": 128 * MIB}
        self.box = FakeBox("/offline", 2, limits, limits, Held(501 * MIB, 128 * MIB))
        self.hard = HARD
        self.given: Limits = {"cpu": 1.0, "memory": 128 * MIB}
        self.due: Limits | None = None
        box: Any = self.box
        last: Any = SimpleNamespace(last={})
        settings = ReliefSettings(active, 100 * MIB)
        self.inventory = FakeInventory()
        shared = self.shared(inventory=self.inventory)
        self.relief = MemoryRelief(shared, box, last, lambda: self.hard, self, settings)  # type: ignore[arg-type]
        self.relief.hard = HARD

    def pods_hold(self, *amounts: int) -> None:
        """So many pods run, and each holds so much, as was read just now."""
        counters = [PodCounters(PodCpuTimes(0.0, {}), amount) for amount in amounts]
        self.inventory.placed = ()
        for one in range(len(amounts)):
            self.inventory.place(f"{one}")
        readings = self.relief.shared.readings
        readings.at_s = self.clock.monotonic_s()
        readings.of = {f"/offline/pod{one}": counted for one, counted in enumerate(counters)}

    def pass_by(self, count: int, available: int = 140 * MIB, box: int = 501 * MIB, anon: int = 0) -> None:
        """So many seconds."""
        for _ in range(count):
            self.judge(1.0, available, box, anon)

    def judge(self, seconds: float, available: int, box: int | None, anon: int | None = None) -> None:
        """So much later."""
        self.clock.now += seconds
        used = None if box is None else Usage(0.0, box, memory_bytes=GIB, anon_bytes=box if anon is None else anon)
        usage = UsageReading(Usage(0.0, 4 * GIB - available), used, self.clock.now)
        due = self.given if self.due is None else self.due
        decider: Any = SimpleNamespace(given=self.given, due=due.get)
        self.relief.judge(self.clock.now, usage, 4 * GIB, decider)


def test_box_above_its_bound_is_to_answer_for_it_when_that_lasts() -> None:
    bench = Bench()
    bench.pass_by(2)
    soon = bench.relief.accountable
    bench.pass_by(1)

    assert (soon, bench.relief.accountable) == (False, True)
    assert next(bench.relief.problems()) == (
        "memory.available is 140.00 MiB, and kubelet evicts pods below 100.00 MiB, while the box is 373.00 MiB above "
        "its memory limit"
    )


def test_evidence_has_the_page_cache_that_a_working_set_has_not() -> None:
    bench = Bench()
    bench.judge(1.0, GIB, 1 * MIB)

    assert bench.relief.evidence is not None
    assert (bench.relief.evidence.box, bench.relief.evidence.charged) == (1 * MIB, GIB)


@pytest.mark.parametrize(
    ("available", "box"),
    [
        pytest.param(50 * MIB, 128 * MIB, id="online-fills-the-node-and-the-box-is-within-its-bound"),
        pytest.param(50 * MIB, 0, id="box-uses-nothing"),
    ],
)
def test_box_within_its_bound_answers_for_nothing(available: int, box: int) -> None:
    bench = Bench()
    bench.pass_by(30, available, box)

    assert (bench.relief.accountable, list(bench.relief.problems())) == (False, [])


def test_far_from_kubelets_eviction_there_is_no_problem() -> None:
    bench = Bench()
    bench.pass_by(30, GIB)

    assert list(bench.relief.problems()) == []


def test_what_the_ladder_takes_off_the_bound_is_not_to_be_answered_for() -> None:
    bench = Bench()
    bench.given = {"cpu": 1.0, "memory": GIB}  # the kernel holds 128 MiB by now
    bench.pass_by(30)

    assert not bench.relief.accountable


def test_before_the_first_decision_there_is_no_bound() -> None:
    bench = Bench()
    bench.given = {}
    bench.pass_by(30)

    assert not bench.relief.accountable


def test_report_tells_and_has_nobody_answer() -> None:
    bench = Bench(stop=False)
    bench.pass_by(30)
    bench.pass_by(1, GIB, 100 * MIB)

    assert not bench.relief.accountable
    assert [(event, fields.get("remedy")) for _, event, fields in bench.log.events] == [
        ("memory_over_limit", "none: memory.on_over_limit"),
        ("memory_within_limit", None),
    ]


def test_nothing_is_answered_for_while_the_limits_are_not_ours_to_set() -> None:
    bench = Bench(active=False)
    bench.pass_by(30)

    assert (bench.relief.accountable, list(bench.relief.problems())) == (False, [])


def test_between_samples_far_apart_each_look_judges_what_is_in_use() -> None:
    bench = Bench()
    bench.pass_by(1, 2 * GIB, 100 * MIB)
    found = []
    for box in (501 * MIB, 501 * MIB, 501 * MIB, 120 * MIB):
        bench.judge(2.0, 140 * MIB, box)
        found.append(bench.relief.accountable)

    assert found == [False, True, True, False], "it lasts, and then a pod was killed"
    assert bench.relief.evidence and bench.relief.evidence.box == 120 * MIB


def test_box_whose_anonymous_memory_alone_is_above_its_limit_can_not_be_reclaimed() -> None:
    bench = Bench()
    bench.pass_by(1, available=GIB, anon=131 * MIB)

    assert bench.relief.irreducible(0.0) == (
        "the box's anonymous memory alone, 131.00 MiB, is above its limit of 128.00 MiB, and can't be reclaimed"
    )
    assert bench.relief.irreducible(bench.clock.boottime_s()) == "", "it is not known yet what has gone since"
    assert bench.relief.excess_bytes == 373 * MIB


def test_what_ended_pods_have_left_in_the_box_costs_no_other_pod_and_is_a_problem() -> None:
    bench = Bench()
    bench.pods_hold(60 * MIB, 40 * MIB)
    bench.pass_by(1, available=GIB, anon=501 * MIB)

    assert bench.relief.irreducible(0.0) == ""
    assert list(bench.relief.problems()) == [
        "ended pods have left 401.00 MiB in the box that can't be reclaimed, as in files of a tmpfs: the box stays "
        "above its memory limit until somebody removes them, and no pod is stopped for it"
    ]
    bench.pods_hold(60 * MIB, 80 * MIB)
    assert bench.relief.irreducible(0.0)
    assert list(bench.relief.problems()) == []


@pytest.mark.parametrize(
    ("left", "spared"),
    [
        pytest.param(4 * MIB, False, id="a-small-remainder"),
        pytest.param(128 * MIB, False, id="as-much-as-the-limit"),
        pytest.param(132 * MIB, True, id="more-than-the-limit"),
    ],
)
def test_what_ended_pods_have_left_spares_pods_only_where_their_end_would_be_no_cure(left: int, spared: bool) -> None:
    bench = Bench()
    bench.pods_hold(100 * MIB, 27 * MIB)
    bench.pass_by(1, available=GIB, anon=127 * MIB + left)

    assert (bench.relief.irreducible(0.0) == "", bool(list(bench.relief.problems()))) == (spared, spared)


@pytest.mark.parametrize("unknown", ["not read", "read long ago", "one was not read", "no pod runs"])
def test_what_is_not_known_of_pods_is_theirs(unknown: str) -> None:
    bench = Bench()
    bench.pods_hold(60 * MIB, 40 * MIB)
    readings = bench.relief.shared.readings
    if unknown == "not read":
        readings.of = {}
    elif unknown == "read long ago":
        readings.at_s -= 61.0
    elif unknown == "one was not read":
        bench.inventory.place("new")
    else:
        bench.inventory.placed = ()
    bench.pass_by(1, available=GIB, anon=501 * MIB)

    assert bench.relief.irreducible(0.0)


@pytest.mark.parametrize(
    ("bench", "anon", "bound"),
    [
        pytest.param({}, 130 * MIB, 128 * MIB, id="hardly-above-its-limit"),
        pytest.param({}, 131 * MIB, 100 * MIB, id="limit-is-the-floor-as-after-a-cold-start"),
        pytest.param({}, 131 * MIB, UNLIMITED, id="no-limit"),
        pytest.param({"stop": False}, 131 * MIB, 128 * MIB, id="report"),
        pytest.param({"active": False}, 131 * MIB, 128 * MIB, id="limits-are-not-ours"),
    ],
)
def test_box_can_be_reclaimed_or_that_is_not_to_be_answered(
    bench: dict[str, bool], anon: int, bound: float | Unlimited
) -> None:
    made = Bench(**bench)
    made.given = {"cpu": 1.0, "memory": bound}
    made.pass_by(1, available=GIB, anon=anon)

    assert made.relief.irreducible(0.0) == ""


@pytest.mark.parametrize(
    ("bound", "irreducible"),
    [
        pytest.param(GIB, False, id="the-floor"),
        pytest.param(500 * MIB, True, id="what-online-leaves-of-it"),
        pytest.param(128 * MIB, False, id="what-always-stays"),
    ],
)
def test_limit_below_a_floor_that_gave_way_is_there_for_online(bound: float, irreducible: bool) -> None:
    bench = Bench()
    bench.relief.settings = replace(bench.relief.settings, floor_bytes=GIB)
    bench.given = {"cpu": 1.0, "memory": bound}
    bench.pass_by(1, available=GIB, anon=2 * GIB)

    assert bool(bench.relief.irreducible(0.0)) == irreducible


@pytest.mark.parametrize(
    ("due", "irreducible"),
    [
        pytest.param(200 * MIB, False, id="online-leaves-it-more-than-it-has"),
        pytest.param(110 * MIB, True, id="online-leaves-it-less"),
    ],
)
def test_limit_that_is_lower_than_online_needs_it_costs_no_pod(due: float, irreducible: bool) -> None:
    bench = Bench()
    bench.due = {"cpu": 1.0, "memory": due}
    bench.pass_by(1, available=GIB, anon=131 * MIB)
    sampled, then_s = bench.relief.irreducible(0.0), bench.clock.boottime_s()
    bench.judge(9.0, GIB, 131 * MIB)

    assert (bool(sampled), bool(bench.relief.irreducible(then_s))) == (irreducible, irreducible)


def test_box_that_an_operator_holds_criproxy_off_is_not_to_be_brought_back() -> None:
    bench = Bench()
    bench.holds.hold_offs = held_off(bench.clock, "")
    bench.pass_by(1, available=GIB, anon=131 * MIB)

    assert bench.relief.irreducible(0.0) == ""


def test_threshold_is_read_and_what_is_not_known_is_said_once() -> None:
    bench = Bench()
    unknown = EvictionHard(problem="no kubelet")
    for hard in (HARD, replace(HARD, soft_bytes=GIB), unknown, unknown):
        bench.hard = hard
        asyncio.run(bench.relief.look())

    assert bench.log.names() == ["eviction_threshold", "eviction_threshold_unknown"]
    known, lost = (fields for _, _, fields in bench.log.events)
    assert known["memory_available"] == "100.00 MiB, soft 1.00 GiB"
    assert lost["consequence"] == "100.00 MiB is assumed, kubelet's default"
    assert bench.relief.status().problem == "no kubelet"


def test_swap_that_no_limit_bounds_is_a_problem_while_the_box_may_use_it() -> None:
    bench = Bench()
    seen = []
    for swaps in (False, True, False):
        bench.box.driver.swaps = swaps
        asyncio.run(bench.relief.look())
        seen.append([problem.partition(":")[0] for problem in bench.relief.problems()])

    assert seen == [[], ["a limit on the box's memory swaps offline pods out to disk"], []]


def test_what_is_kept_free_follows_the_threshold() -> None:
    bench = Bench()
    before = bench.relief.kept_free(4 * GIB)
    bench.relief.hard = replace(HARD, size_bytes=GIB)

    assert (before, bench.relief.kept_free(4 * GIB)) == (200 * MIB, GIB + 100 * MIB)
