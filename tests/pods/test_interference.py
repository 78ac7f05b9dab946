"""The part that answers harm: from the kernel's counters to what is held, who is let in, and which pod goes."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.kernel_files import KernelFile
from criproxy.concurrency.worker import StuckError
from criproxy.control.evidence import HarmSeen
from criproxy.control.interference.detectors import IO
from criproxy.control.interference.ladder import (
    EvictionOrder,
    Hold,
    LadderSettings,
    LadderState,
    Rung,
    RungState,
    Transition,
)
from criproxy.control.interference.responder import ResponderState
from criproxy.control.interference.service_checks import ANNOTATION, ServiceSignal
from criproxy.control.memory_pressure import EvictionHard, Evidence
from criproxy.control.pod_speed import Feedback
from criproxy.daemon.checkpoint import CheckpointFile, Remembered
from criproxy.model import CPU, MEMORY, Pod, PodRef, Sandbox
from criproxy.model.signals import (
    CpuSpent,
    DiskCounters,
    DiskIo,
    DiskRate,
    MemoryRoom,
    Missing,
    OwnLimits,
    PodStall,
    SignalReading,
    Stall,
    Throttling,
    Work,
    WorkReading,
)
from criproxy.pods.disk_bounds import DiskBounds, DisksUse
from criproxy.pods.eviction import EvictionState
from criproxy.pods.interference import NO_HIGH, NO_IO_MAX, InterferenceSettings, InterferenceState, InterferenceWatch
from criproxy.pods.service_checks import AskedService
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_HARM, ON_OVER_LIMIT, ON_STARVED, Holds
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.log import FakeLog
from tests.fakes.part import round_of

GIB = 1 << 30
POD = Sandbox("s1", PodRef("u1", "batch", "job"), "/offline/podu1")
ON = InterferenceSettings(acts=True)
NONE = Missing("not in this test")


@dataclass
class Node:
    """The kernel: each second, online waits as a function of how much of each resource the box is left says, in s."""

    clock: FakeClock
    waits: Callable[[Mapping[str, float]], float] = lambda shares: 0.0
    own_s: float = 0.0
    own_complete: bool = True
    disk: DiskCounters | Missing = NONE
    io_waits: float = 0.0
    seen: HarmSeen = field(default_factory=HarmSeen)
    readings: list[bool] = field(default_factory=list)
    spares_memory: bool = True
    uses: tuple[float, float, float] | None = None
    """Cores that online, the box and others use; None: not known."""
    spent: CpuSpent = field(default_factory=lambda: CpuSpent(0.0, 0.0, 0.0, 0.0, 0.0, 4))
    memory_waits: Callable[[Mapping[str, float]], float] | None = None
    path: str | None = "/offline"
    disk_limits: dict[str, DiskRate | None] = field(default_factory=dict)
    fails: Exception | None = None
    cpi: Callable[[Mapping[str, float]], float] | None = None
    counts_work: bool = False
    online: Collection[str] = ()
    pod_waits: dict[str, Callable[[Mapping[str, float]], float]] = field(default_factory=dict)
    """Of each pod, by its uid, as `waits`."""
    work: Work = field(default_factory=lambda: Work(0, 0))
    meanwhile: Callable[[], object] = lambda: None
    _some_s: float = 0.0
    _io_s: float = 0.0
    _memory_s: float = 0.0
    _throttled_s: float = 0.0
    _pods_s: dict[str, float] = field(default_factory=dict)

    async def reads(self, what: str, job: Callable[[Any, str], Any]) -> Any:
        return job(self, "/offline")

    async def writes(self, what: str, job: Callable[[Any, str], Any], *, apart: str = "") -> Any:
        return job(self, "/offline")

    def of_box(
        self, box: str, *, own_limits: bool, online: Collection[str] = (), counts_work: bool = False
    ) -> SignalReading:
        self.readings.append(own_limits)
        self.online, self.counts_work = online, counts_work
        self.meanwhile()
        if self.fails:
            raise self.fails
        now_s = self.clock.boottime_s()
        self._some_s += self.waits(self.seen.shares)
        self._io_s += self.io_waits
        self._throttled_s += self.own_s
        of = {"/kubepods/poda": Throttling(self._throttled_s, now_s)}
        for uid, waits in self.pod_waits.items():
            self._pods_s[uid] = self._pods_s.get(uid, 0.0) + waits(self.seen.shares)
        pods = {uid: PodStall(f"/kubepods/pod{uid}", Stall(now_s, some_s)) for uid, some_s in self._pods_s.items()}
        own = OwnLimits(now_s, of, now_s, self.own_complete) if own_limits else None
        return SignalReading(
            cpu=Stall(now_s, self._some_s),
            memory=self._memory(now_s),
            io=Stall(now_s, self._io_s),
            run_queue=NONE,
            room=MemoryRoom(100 * GIB, 50 * GIB, 50 * GIB),
            memory_stat=NONE,
            disks=self.disk,
            pids=NONE,
            cpu_use=NONE if self.uses is None else self._spent(now_s, self.uses),
            own_limits=own,
            pods=pods,
            cpu_idle=True,
            disk_limits=self.disk_limits,
            work=self._worked(now_s) if counts_work else None,
        )

    def _spent(self, now_s: float, uses: tuple[float, float, float]) -> CpuSpent:
        online, box, others = uses
        last = self.spent
        self.spent = CpuSpent(
            now_s, last.busy_s + online + box + others, last.online_s + online, last.box_s + box, 0.0, 4
        )
        return self.spent

    @property
    def files(self) -> "Node":
        return self

    def read_if_there(self, row: KernelFile, path: str) -> dict[str, DiskRate | None]:
        """io.max."""
        return dict(self.disk_limits)

    def file(self, row: KernelFile, path: str) -> str:
        return "io.max"

    def write(self, row: KernelFile, path: str, value: tuple[str, DiskRate | None]) -> None:
        number, rate = value
        others = {other: held for other, held in self.disk_limits.items() if other != number}
        self.disk_limits = others if rate is None else {**others, number: rate}

    def _worked(self, now_s: float) -> WorkReading:
        cpi = self.cpi(self.seen.shares) if self.cpi else 1.0
        self.work = Work(self.work.cycles + 10**9, self.work.instructions + round(10**9 / cpi))
        return WorkReading(now_s, {"u9": self.work})

    def _memory(self, now_s: float) -> Stall | Missing:
        if self.memory_waits is None:
            return NONE
        self._memory_s += self.memory_waits(self.seen.shares)
        return Stall(now_s, self._memory_s)


@dataclass
class Relief:
    accountable: bool = False
    excess_bytes: float = 7.0
    too_much_s: float = -1.0
    """When it was seen last that the box can't be reclaimed to its bound."""
    hard: EvictionHard = field(default_factory=EvictionHard)
    evidence: Evidence | None = None

    def irreducible(self, after_s: float) -> str:
        return "too much of it" if self.too_much_s > after_s else ""


@dataclass
class Speeds:
    """`starve`: why one is to go. `asked`: how many were to."""

    starve: str = ""
    asked: int = 0
    feedback: Feedback | None = None
    held: bool = False

    def why_one_is_to_go(self) -> str:
        return "" if self.held else self.starve

    def ladder_holds_cpu(self, holds: bool) -> None:
        self.held = holds

    def one_was_to_go(self) -> None:
        self.asked += 1

    def restore(self, saved: Feedback | None) -> None:
        self.feedback = saved


class Bench:
    def __init__(self, settings: InterferenceSettings = ON, pods: int = 1) -> None:
        self.clock, self.log, self.relief, self.speeds = FakeClock(), FakeLog(), Relief(), Speeds()
        self.node = Node(self.clock)
        self.holds = Holds(self.clock, no_hold_offs(self.clock), frozenset([ON_OVER_LIMIT, ON_HARM, ON_STARVED]))
        self.running_pods: tuple[Sandbox, ...] = (POD,) * pods
        self.places_known = True
        self.words: tuple[ServiceSignal, ...] = ()
        self.asked: tuple[AskedService, ...] = ()
        self.been_well: frozenset[str] = frozenset()
        self.innocent: list[bool] = []
        self.eviction_state = EvictionState()
        self.orders: list[tuple[EvictionOrder, str]] = []
        self.goes: tuple[str, ...] | None = ("job",)
        self.chooses: asyncio.Event | None = None
        self.stops: asyncio.Event | None = None
        """What is waited for without an emergency."""
        self.ended: list[EvictionOrder] = []
        self.leaving = frozenset[str]()
        self.outside: dict[str, Pod] = {}
        self.counted: list[tuple[str, ...]] = []
        self.told: list[Transition] = []
        self.saved = 0
        self.watch = self.made(settings)

    def made(self, settings: InterferenceSettings) -> InterferenceWatch:
        port: Any = self
        node: Any = self.node
        shared = PodsShared(port, port, self.holds, port, self.clock, self.log, tells=port)
        relief: Any = self.relief
        disks, speeds = DiskBounds(shared, node), cast(Any, self.speeds)
        return InterferenceWatch(shared, node, node, relief, port, port, disks, speeds, self.save, settings, 0)

    def signals(self) -> tuple[ServiceSignal, ...]:
        return self.words

    def checkpoint(self) -> EvictionState:
        return self.eviction_state

    def restore(self, state: EvictionState, shift_s: float) -> None:
        self.eviction_state = EvictionState({one: until_s + shift_s for one, until_s in state.tried.items()})

    @property
    def well(self) -> frozenset[str]:
        return self.been_well

    def recall(self, well: frozenset[str]) -> None:
        self.been_well = well

    def services(self) -> tuple[AskedService, ...]:
        return self.asked

    def count(self, *names: str) -> None:
        self.counted.append(names)

    def transition(self, one: Transition) -> None:
        self.told.append(one)

    def save(self) -> None:
        self.saved += 1

    async def evict(
        self,
        order: EvictionOrder,
        setting: str,
        excess_bytes: float,
        chosen: Callable[[tuple[str, ...]], object],
    ) -> tuple[str, ...] | None:
        assert excess_bytes == self.relief.excess_bytes
        self.orders.append((order, setting))
        if not order.emergency and self.chooses is not None:
            await self.chooses.wait()
        if self.goes is not None:
            chosen(self.goes)
        if not order.emergency and self.stops is not None:
            await self.stops.wait()
        self.ended.append(order)
        return self.goes

    def look(self) -> None:
        """What the control loop does with the watch."""
        reading: SignalReading | Exception | None = None
        if (job := self.watch.job()) is not None and self.node.path is not None:
            driver: Any = self.node
            try:
                reading = job(driver, self.node.path)
            except CgroupError as error:
                reading = error
        self.watch.judge(self.clock.boottime_s(), reading)
        self.innocent.append(self.watch.innocent)
        self.node.seen = self.watch.seen
        self.watch.follow()

    def looks(self, count: int) -> None:
        async def go() -> None:
            for _ in range(count):
                self.clock.advance(1.0)
                self.look()
                await self.watch.evict()
                await round_of(self.watch.disks, self.log).look(self.watch.disks)

        asyncio.run(go())

    def moves(self) -> list[tuple[str, str]]:
        return [(one.transition.resource, one.transition.after.value) for one in reversed(self.watch.status().moves)]

    def rung(self, resource: str) -> str:
        return next(one.rung for one in self.watch.status().rungs if one.resource == resource)


def by_the_box(shares: Mapping[str, float]) -> float:
    """Half a second of each, unless the box has its floor of CPU."""
    return 0.01 if shares.get(CPU, 1.0) == 0.0 else 0.5


def test_box_that_harms_online_is_tried_squeezed_and_given_back_when_calm() -> None:
    bench = Bench()
    bench.looks(3)
    bench.node.waits = by_the_box
    bench.looks(12)
    tried, held = bench.moves(), bench.node.seen.shares
    bench.node.waits = lambda _: 0.0
    bench.looks(200)

    assert tried[:2] == [(CPU, "tried"), (CPU, "squeezed")]
    marks = json.loads(bench.watch.shared.day.to_json(bench.clock.now, bench.clock.wall))["marks"]
    assert [(mark["of"], mark["state"]) for mark in marks if mark["kind"] == "rung"] == bench.moves()
    assert CPU in held
    assert (bench.node.seen.shares, bench.holds.closed, bench.rung(CPU)) == ({}, "", "open")
    assert bench.saved >= 3
    assert ("ladder_transitions", CPU, "tried") in bench.counted


def test_box_that_goes_on_harming_is_closed_and_says_why() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda shares: 0.2 if shares.get(CPU, 1.0) < 0.5 else 0.6
    bench.looks(40)

    assert bench.rung(CPU) == "closed"
    assert bench.holds.held(POD.pod) == bench.watch.closed == "the box harms online pods: CPU"
    reasons = [fields["reason"] for _, event, fields in bench.log.events if event == "ladder"]
    assert len(reasons) == len(bench.watch.status().moves)
    assert reasons == [one.reason for one in bench.told], "the cluster is told, too"
    assert all(reasons)


def test_pod_goes_when_harm_lasts_and_its_owner_is_barred_for_the_next() -> None:
    bench = Bench(replace(ON, ladder=LadderSettings(evict_after_s=5.0)))
    bench.looks(2)
    bench.node.waits = lambda shares: 0.3 * 0.6 ** len(bench.orders) if shares.get(CPU, 1.0) < 0.5 else 0.9
    bench.looks(60)

    assert len(bench.orders) >= 2
    assert [setting for _, setting in bench.orders] == [ON_HARM] * len(bench.orders)
    assert [sorted(order.barred) for order, _ in bench.orders[:2]] == [[], ["job"]]
    assert 0 < bench.watch.status().evictions <= 6


def test_pod_that_has_not_ended_yet_is_not_judged_by_the_harm_that_goes_on() -> None:
    bench = Bench()
    bench.looks(3)
    bench.node.waits = lambda shares: by_the_box(shares) + 0.15
    while not bench.orders:
        bench.looks(1)
    bench.leaving = frozenset({CPU})
    bench.looks(20)
    assert not bench.watch.checkpoint().responder.ladder.of(CPU).vain
    bench.leaving = frozenset()
    bench.looks(5)
    assert bench.watch.checkpoint().responder.ladder.of(CPU).vain
    assert len(bench.orders) == 1


def test_pod_goes_by_the_setting_for_it_where_the_box_can_not_be_reclaimed_to_its_limit() -> None:
    bench = Bench()
    bench.relief.too_much_s = bench.clock.boottime_s()
    bench.looks(30)

    ((order, setting),) = bench.orders  # and no other, before it is seen again
    assert (order.resource, order.reason, setting) == (MEMORY, "too much of it, for 5 s by now", ON_OVER_LIMIT)
    assert bench.moves() == []


def test_pod_goes_by_the_setting_for_it_where_pods_starve_and_the_next_waits() -> None:
    bench = Bench()
    bench.speeds.starve = "1 of 2 offline pods starve for CPU"
    bench.looks(8)

    ((order, setting),) = bench.orders
    assert (order.resource, order.starved, setting) == (CPU, True, ON_STARVED)
    assert order.reason == "1 of 2 offline pods starve for CPU, for 5 s by now"
    assert bench.moves() == [], "nobody is harmed"
    assert bench.speeds.asked == 1


@pytest.mark.parametrize("goes", [("job",), None])
def test_pods_that_starve_cost_no_more_than_the_budget(goes: tuple[str, ...] | None) -> None:
    bench = Bench()
    bench.goes, bench.speeds.starve = goes, "pods starve for CPU"
    bench.looks(500)
    budget = bench.watch.settings.ladder.budget

    if goes:
        assert len(bench.orders) == budget.of(emergency=False)
    assert bench.speeds.asked == len(bench.orders)


def test_pods_that_starve_as_the_ladder_holds_their_cpu_cost_nobody() -> None:
    bench = Bench()
    bench.node.waits = by_the_box
    bench.looks(60)
    held, before = dict(bench.node.seen.shares), len(bench.orders)
    bench.speeds.starve = "pods starve for CPU"
    bench.looks(10)
    orders, at_floor = len(bench.orders) - before, bench.speeds.held
    bench.node.waits = lambda shares: 0.0
    bench.speeds.starve = ""
    bench.looks(1000)

    assert CPU in held
    assert (orders, at_floor) == (0, True)
    assert (bench.rung(CPU), bench.speeds.held) == ("open", False)


def test_pod_does_not_go_for_those_that_starve_where_that_is_only_reported() -> None:
    bench = Bench()
    bench.holds.configure(frozenset([ON_OVER_LIMIT, ON_HARM]))
    bench.speeds.starve = "pods starve for CPU"
    bench.looks(30)

    assert bench.orders == []


def test_restart_keeps_how_what_pods_get_has_moved_what_is_published() -> None:
    bench = Bench()
    bench.speeds.feedback = Feedback(0.5, 6.0)
    written = msgspec.json.encode(bench.watch.checkpoint())
    bench.speeds.feedback = None
    bench.made(ON).restore(msgspec.json.decode(written, type=InterferenceState), 0.0)

    assert bench.speeds.feedback == Feedback(0.5, 6.0)


def test_box_is_given_back_where_what_is_left_of_the_signal_is_no_harm() -> None:
    """9 % is within the hysteresis below the bar: what was 50 % by the box is 9 % by online's own doing now."""
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda shares: 0.09 if shares.get(CPU, 1.0) == 0.0 else 0.5
    bench.looks(30)
    held, moves = bench.node.seen.shares, bench.moves()
    bench.node.waits = lambda _: 0.09
    bench.looks(300)

    assert (held, moves) == ({CPU: 0.0}, [(CPU, "tried"), (CPU, "squeezed")])
    assert (bench.node.seen.shares, bench.rung(CPU)) == ({}, "open")


def test_online_that_waits_for_its_own_limits_is_no_harm_and_the_guard_is_told() -> None:
    bench = Bench()
    bench.node.waits, bench.node.own_s = (lambda _: 0.5), 3.0
    bench.looks(30)

    assert bench.moves() == []
    assert bench.innocent[-20:] == [True] * 20
    assert bench.node.readings[:3] == [False, False, True], "own limits are read after an alarm only"


def test_pod_that_waits_for_the_box_is_heard_beside_one_that_waits_for_its_own_limit() -> None:
    bench = Bench()
    bench.node.waits, bench.node.own_s, bench.node.pod_waits = (lambda _: 0.5), 3.0, {"b": lambda _: 0.4}
    bench.looks(7)

    assert bench.moves()[:1] == [(CPU, "tried")]
    assert bench.innocent[:6] == [False] * 6


def test_box_that_uses_no_cpu_is_not_tried_for_it() -> None:
    bench = Bench()
    bench.node.uses = (1.0, 0.0, 0.1)
    bench.looks(5)
    bench.node.waits = lambda _: 0.8
    bench.looks(40)

    assert bench.moves() == []


def test_service_that_answers_later_than_a_test_begins_is_waited_for() -> None:
    """Its last word is of the floor, and says nothing of what is given back for the test."""
    bench = Bench()
    bench.node.spares_memory = False  # so that CPU alone is tried
    bench.watch = bench.made(replace(ON, ladder=replace(LadderSettings(), close_after_s=1.0, slow_phase_s=3.0)))
    bench.looks(3)
    for _ in range(60):
        asked_s, at_floor = bench.clock.boottime_s() + 0.9, bench.node.seen.shares.get(CPU) == 0.0
        bench.words = (ServiceSignal(PodRef("u9", "shop", "web"), 150.0 if at_floor else 400.0, 100.0, 3.0, asked_s),)
        bench.looks(1)

    assert bench.moves()[:3] == [(CPU, "tried"), (CPU, "squeezed"), (CPU, "closed")]


def test_word_of_a_service_costs_no_pod_however_long_it_lasts() -> None:
    bench = Bench()
    bench.node.spares_memory = False
    ladder = replace(LadderSettings(), close_after_s=1.0, slow_phase_s=3.0, evict_after_s=4.0)
    bench.watch = bench.made(replace(ON, ladder=ladder))
    bench.looks(3)
    for _ in range(600):
        asked_s, at_floor = bench.clock.boottime_s() + 0.9, bench.node.seen.shares.get(CPU) == 0.0
        bench.words = (ServiceSignal(PodRef("u9", "shop", "web"), 150.0 if at_floor else 400.0, 100.0, 3.0, asked_s),)
        bench.looks(1)

    assert (CPU, "closed") in bench.moves()
    assert (bench.orders, (CPU, "evicting") in bench.moves()) == ([], False)


def test_box_that_is_idle_as_it_is_squeezed_is_not_innocent_for_that() -> None:
    """Harm that is left at its floor must not be taken for what is usual without it."""
    bench = Bench()
    bench.relief.evidence = Evidence(0.0, 4 * GIB, GIB, 0, None, EvictionHard())
    bench.node.waits = by_the_box_and_a_little_more
    for _ in range(300):
        bench.node.uses = (0.5, 0.0 if bench.node.seen.shares.get(CPU) == 0.0 else 1.0, 0.1)
        bench.looks(1)

    bars = {one.name: one.bar for one in bench.watch.status().signals}
    assert bars["cpu_pressure"] < 20.0
    assert bench.rung(CPU) != "open"


def by_the_box_and_a_little_more(shares: Mapping[str, float]) -> float:
    return 0.2 if shares.get(CPU, 1.0) == 0.0 else 0.6


def test_box_is_tried_later_when_others_took_more_cpu_as_the_harm_began() -> None:
    moved_after_s = {}
    for others in (0.1, 2.0):
        bench = Bench()
        bench.node.uses = (0.5, 1.0, 0.1)
        bench.looks(60)
        bench.node.waits, bench.node.uses = (lambda _: 0.8), (0.5, 1.0, others)
        moved_after_s[others] = 0
        while not bench.moves():
            bench.looks(1)
            moved_after_s[others] += 1

    assert moved_after_s[0.1] <= 4
    assert moved_after_s[2.0] >= LadderSettings().spared_s


def test_online_that_is_calm_acquits_nobody() -> None:
    bench = Bench()
    bench.looks(10)

    assert bench.innocent == [False] * 10
    assert bench.node.readings == [False] * 10


def test_innocent_box_is_exonerated_and_the_guard_is_told() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda _: 0.14
    bench.looks(20)

    assert bench.moves() == [(CPU, "tried"), (CPU, "open")]
    assert ("exonerations", "cpu_pressure") in bench.counted
    assert bench.innocent[-5:] == [True] * 5, "it is harm still, and not by the box"


def by_its_memory(shares: Mapping[str, float]) -> float:
    return 0.01 if shares.get(MEMORY, 1.0) == 0.0 else 0.3


def test_memory_is_tried_and_squeezed_where_that_does_not_kill() -> None:
    bench = Bench()
    bench.node.memory_waits = by_its_memory
    bench.looks(35)

    assert bench.moves() == [(MEMORY, "tried"), (MEMORY, "squeezed")]
    assert all(not one.untried for one in bench.watch.status().rungs)


def test_memory_is_tried_where_all_that_the_box_has_is_page_cache() -> None:
    """The working set of a box that floods the node with what it reads once is next to nothing."""
    bench = Bench()
    bench.node.memory_waits = by_its_memory
    bench.relief.evidence = Evidence(0.0, 4 * GIB, GIB, 1 << 20, None, EvictionHard(), charged=GIB)
    bench.looks(35)

    assert bench.moves() == [(MEMORY, "tried"), (MEMORY, "squeezed")]


def test_memory_is_not_tried_where_the_box_has_next_to_none() -> None:
    bench = Bench()
    bench.node.memory_waits = by_its_memory
    bench.relief.evidence = Evidence(0.0, 4 * GIB, GIB, 1 << 20, None, EvictionHard(), charged=2 << 20)
    bench.looks(35)

    assert (MEMORY, "tried") not in bench.moves()


def test_memory_is_not_tried_without_memory_high_and_status_says_so() -> None:
    bench = Bench()
    bench.node.spares_memory = False
    bench.watch = bench.made(ON)
    bench.node.memory_waits = by_its_memory
    bench.looks(30)

    assert [one for one in bench.moves() if one[0] == MEMORY] == []
    untried = {one.resource: one.untried for one in bench.watch.status().rungs}
    assert (untried[CPU], untried[MEMORY]) == ("", NO_HIGH)
    bench.watch.set_to(replace(ON, ladder=replace(ON.ladder, half_ratio=0.4)))
    bench.looks(30)
    assert [one for one in bench.moves() if one[0] == MEMORY] == [], "new settings bring no experiment either"


@pytest.mark.parametrize(("spares", "share"), [(True, 0.0), (False, 1.0)], ids=["memory.high", "v1"])
def test_box_is_not_held_below_the_prediction_of_memory_where_that_would_kill(spares: bool, share: float) -> None:
    bench = Bench(replace(ON, enabled=False))
    bench.node.spares_memory, bench.relief.accountable = spares, True
    bench.watch = bench.made(replace(ON, enabled=False))
    bench.relief.evidence = Evidence(0.0, 4 * GIB, 4 * GIB - (130 << 20), GIB, 128 << 20, EvictionHard())
    bench.looks(2)
    status = {one.resource: one.share for one in bench.watch.status().rungs}
    written = msgspec.json.encode(bench.watch.checkpoint())
    held = bench.node.seen.shares
    bench.watch = bench.made(replace(ON, enabled=False))
    bench.watch.restore(msgspec.json.decode(written, type=InterferenceState), 0.0)

    assert held == bench.watch.seen.shares == {MEMORY: share}
    assert status[MEMORY] == share


def test_it_rests_without_pods() -> None:
    bench = Bench(pods=0)
    bench.looks(5)

    assert bench.node.readings == []
    assert "no pods" in bench.watch.status().resting


def test_what_is_remembered_of_harm_is_forgotten_while_there_are_no_pods() -> None:
    """New pods are tried at once, and held no longer for what others did an hour ago."""
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda _: 0.14
    bench.looks(12)
    paused, bench.running_pods = dict(bench.watch.checkpoint().responder.ladder.pauses), ()
    bench.looks(1)
    ladder = bench.watch.checkpoint().responder.ladder

    assert paused
    assert (ladder.pauses, ladder.t_s) == ({}, bench.clock.boottime_s())


def test_nothing_is_forgotten_before_it_is_known_which_pods_are_in_the_box() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda _: 0.14
    bench.looks(12)
    paused, bench.running_pods, bench.places_known = bench.watch.checkpoint().responder.ladder.pauses, (), False
    bench.looks(5)

    assert paused
    assert bench.watch.checkpoint().responder.ladder.pauses == paused


def test_without_pods_nothing_is_judged_once_there_is_nothing_left_to_forget() -> None:
    bench = Bench(pods=0)
    bench.looks(5)
    never = bench.watch.checkpoint().responder.ladder.t_s
    bench.running_pods = (POD,)
    bench.looks(1)
    last_s, bench.running_pods = bench.clock.boottime_s(), ()
    bench.looks(5)

    assert never is None
    assert bench.watch.checkpoint().responder.ladder.t_s == last_s


def test_status_says_how_many_pods_may_go_and_how_many_of_them_in_an_emergency_only() -> None:
    status = Bench().watch.status()

    assert (status.most, status.kept) == (6, 2)


def test_what_is_held_is_given_back_when_the_pods_have_gone() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda shares: 0.2 if shares.get(CPU, 1.0) < 0.5 else 0.6
    bench.looks(45)
    closed, bench.running_pods = bench.watch.closed, ()
    reads = len(bench.node.readings)
    bench.looks(250)

    assert closed
    assert (bench.watch.closed, bench.node.seen.shares, bench.rung(CPU)) == ("", {}, "open")
    assert len(bench.node.readings) == reads


def test_restart_begins_on_the_rung_and_lifts_nothing_before_the_first_look() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda shares: 0.2 if shares.get(CPU, 1.0) < 0.5 else 0.6
    bench.looks(45)
    bench.been_well = frozenset({"s9"})
    written = msgspec.json.encode(bench.watch.checkpoint())
    before = bench.watch.status()
    bench.been_well = frozenset()
    bench.holds.close("")
    bench.watch = bench.made(ON)
    bench.watch.restore(msgspec.json.decode(written, type=InterferenceState), 0.0)

    assert (bench.watch.seen.shares, bench.holds.closed) == ({CPU: 0.0}, before.closed)
    assert bench.watch.status().rungs == before.rungs
    assert bench.been_well == {"s9"}, "what this service says counts at once, also that it is not well"
    bench.looks(5)
    assert bench.rung(CPU) == "closed"


def test_ladder_is_remembered_over_a_reboot_and_the_first_restart_after_it(tmp_path: Path) -> None:
    bench = Bench()
    bench.clock.now = 1e6
    bench.looks(2)
    bench.node.waits = by_the_box
    bench.looks(45)
    file = CheckpointFile(tmp_path / "checkpoint", bench.clock, bench.log)
    file.write(Remembered({}, bench.watch.checkpoint()))
    before = bench.moves()
    bench.clock.now, bench.clock.wall = 100.0, bench.clock.wall + 300.0
    for _ in range(2):
        remembered, shift_s = file.load()
        assert remembered.interference is not None
        bench.watch = bench.made(ON)
        bench.watch.restore(remembered.interference, shift_s)
        bench.clock.advance(60.0)
        file.write(Remembered({}, bench.watch.checkpoint()))
    assert bench.moves() == before


def test_restart_gives_nothing_back_of_what_was_squeezed_since_the_conviction() -> None:
    """A kill leaves what was saved last: so that is no more than what the box had."""
    bench = Bench()
    bench.looks(2)
    bench.node.waits = by_the_box
    saves = []
    bench.save = bench.watch.save_soon = lambda: saves.append(bench.watch.checkpoint())  # type: ignore[method-assign]
    while bench.rung(CPU) != "squeezed":
        bench.looks(1)
    again = bench.made(ON)
    again.restore(saves[-1], 0.0)

    assert bench.node.seen.shares == {CPU: 0.0}


def test_memory_that_is_nearly_gone_costs_a_pod_at_once_when_the_box_has_to_answer_for_it() -> None:
    bench = Bench(replace(ON, enabled=False))
    bench.relief.evidence = Evidence(0.0, 4 * GIB, 4 * GIB - (130 << 20), GIB, 128 << 20, EvictionHard())
    bench.looks(5)
    within = list(bench.orders)
    bench.relief.accountable = True
    bench.looks(1)

    assert within == []
    assert [(order.resource, order.emergency, setting) for order, setting in bench.orders] == [
        (MEMORY, True, ON_OVER_LIMIT)
    ]
    assert bench.holds.closed == "the box harms online pods: memory"
    assert bench.node.readings == [], "of the kernel, nothing else is asked while it is off"


def test_where_no_pod_may_be_stopped_the_box_stays_closed_and_the_budget_whole() -> None:
    bench = Bench()
    bench.holds.configure(frozenset())
    bench.node.waits = lambda shares: 0.2 if shares.get(CPU, 1.0) < 0.5 else 0.6
    bench.looks(250)

    assert (bench.orders, bench.watch.status().evictions) == ([], 0)
    assert bench.holds.closed


@pytest.mark.parametrize(
    ("waits_for", "goes_on"),
    [
        pytest.param("chooses", False, id="the-choice-is-called-off"),
        pytest.param("stops", True, id="the-stop-goes-on"),
    ],
)
def test_emergency_waits_for_no_order_without_one(waits_for: str, goes_on: bool) -> None:
    bench = Bench(replace(ON, enabled=False))
    event = asyncio.Event()
    setattr(bench, waits_for, event)
    counts = list[int]()

    async def look() -> None:
        bench.clock.advance(1.0)
        bench.look()
        for _ in range(5):
            await asyncio.sleep(0)

    async def go() -> None:
        for _ in range(10):
            bench.relief.too_much_s = bench.clock.boottime_s() + 1.0
            await look()
            if bench.orders:
                break
        bench.relief.accountable = True
        bench.relief.evidence = Evidence(0.0, 4 * GIB, 4 * GIB - (130 << 20), GIB, 128 << 20, EvictionHard())
        for _ in range(2):
            await look()
        counts.append(bench.watch.status().evictions)
        event.set()
        await look()
        bench.watch.cease()

    asyncio.run(go())

    assert [order.emergency for order, _ in bench.orders[:2]] == [False, True]
    assert bench.ended[0].emergency
    assert any(not order.emergency for order in bench.ended) == goes_on
    assert counts == [2], "both are in the budget"


def test_pod_that_did_not_go_does_not_count() -> None:
    bench = Bench(replace(ON, enabled=False))
    bench.goes, bench.relief.accountable = None, True
    bench.relief.evidence = Evidence(0.0, 4 * GIB, 4 * GIB - (130 << 20), GIB, 128 << 20, EvictionHard())
    bench.looks(1)

    assert (len(bench.orders), bench.watch.status().evictions) == (1, 0)


def test_nothing_is_looked_at_nor_held_while_the_limits_are_not_ours() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = by_the_box
    bench.looks(6)
    held = bench.node.seen.shares
    bench.watch.set_to(replace(ON, acts=False))
    reads = len(bench.node.readings)
    bench.looks(5)

    assert held
    assert (bench.node.seen.shares, bench.holds.closed, len(bench.node.readings)) == ({}, "", reads)


def test_box_that_was_closed_when_colocation_was_switched_off_stands_open_meanwhile() -> None:
    """Else the alert that online is harmed fires for as long as it is off."""
    bench = Bench()
    closed = LadderState(100.0, {CPU: RungState(Rung.CLOSED, "cpu_pressure", 0.0, Hold(wait_s=5.0), closings=1)})
    bench.watch.restore(InterferenceState(ResponderState({}, closed)), 0.0)
    (gauge,) = [one for one in bench.watch.GAUGES if one.name == "ladder_rung"]

    def read() -> float:
        return cast(Mapping[str, float], gauge.read(bench.watch.now()))[CPU]

    before = read()
    bench.watch.set_to(replace(ON, acts=False))
    off, status = read(), bench.watch.status()
    bench.watch.set_to(ON)

    assert (before, off, read()) == (3.0, 0.0, 3.0)
    assert {one.reason for one in status.rungs} == {status.resting}


def test_new_settings_keep_where_each_resource_stands() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = by_the_box
    bench.looks(8)
    before = bench.rung(CPU)
    bench.watch.set_to(replace(ON, ladder=replace(ON.ladder, half_ratio=0.4)))

    assert before == bench.rung(CPU) == Rung.SQUEEZED


def test_kernel_that_does_not_answer_is_asked_again() -> None:
    bench = Bench()
    bench.node.fails = CgroupError("it hangs")
    bench.looks(3)
    bench.node.fails = None
    bench.looks(2)

    assert [one.value for one in bench.watch.status().signals if one.name == "cpu_pressure"] == [0.0]


def test_signals_of_the_look_before_are_shown_until_those_of_this_one_are_read() -> None:
    bench, shown = Bench(), list[bool]()
    bench.node.meanwhile = lambda: shown.append("cpu_pressure" in [one.name for one in bench.watch.status().signals])
    bench.looks(3)
    bench.node.fails = CgroupError("it hangs")
    bench.looks(1)

    assert shown == [False, True, True, True]
    assert bench.watch.status().signals == (), "they hold no more"


def test_what_is_held_is_given_back_when_nothing_can_be_seen_for_long() -> None:
    bench = Bench()
    bench.looks(2)
    bench.node.waits = by_the_box
    bench.looks(8)
    held, bench.node.fails = dict(bench.node.seen.shares), CgroupError("it hangs")
    bench.looks(20)
    soon = bench.node.seen.shares
    bench.looks(100)

    assert held == soon
    assert held
    assert bench.node.seen.shares == {}


@pytest.mark.parametrize(("its_bytes", "shown"), [(GIB, True), (GIB // 100, False)], ids=["much", "little"])
def test_waiting_for_io_counts_while_the_box_does_a_large_part_of_it(its_bytes: int, shown: bool) -> None:
    bench = Bench()
    bench.node.io_waits = 0.5
    for count in range(1, 12):
        bench.node.disk = DiskCounters(
            bench.clock.now + 1.0,
            {"8:0": DiskIo(count * GIB, count * 100)},
            {"8:0": DiskIo(count * its_bytes, count)},
            {"8:0": "sda"},
        )
        bench.looks(1)

    assert bool(bench.moves()) is shown


SDA, MIB = "8:0", 1 << 20
DISK_MIB = 100.0


class SlowDisk:
    """A disk of 100 MiB/s. Online wants some of it, and waits as others take its place; the box wants `box_mib`."""

    def __init__(self, bench: Bench, online_mib: float, box_mib: float, own_waits: float = 0.0) -> None:
        self.bench, self.online_mib, self.box_mib, self.own_waits = bench, online_mib, box_mib, own_waits
        self.node, self.box, self.done_mib = 0, 0, list[float]()
        self.waits = list[float]()

    def looks(self, count: int) -> None:
        for _ in range(count):
            limit = self.bench.node.disk_limits.get(SDA)
            most = self.box_mib if limit is None else min(self.box_mib, limit.bytes_per_s / MIB)
            its = min(most, DISK_MIB - min(self.online_mib, DISK_MIB / 2))
            load = (its + self.online_mib) / DISK_MIB
            self.bench.node.io_waits = max(self.own_waits, 0.6 if load >= 0.99 else max(0.0, load - 0.7))
            self.box, self.node = self.box + int(its * MIB), self.node + int((its + self.online_mib) * MIB)
            at_s, names = self.bench.clock.now + 1.0, {SDA: "sda"}
            node, box = DiskIo(self.node, self.node // MIB), DiskIo(self.box, self.box // MIB)
            self.bench.node.disk = DiskCounters(at_s, {SDA: node}, {SDA: box}, names)
            self.done_mib.append(its)
            self.waits.append(self.bench.node.io_waits)
            self.bench.looks(1)

    @property
    def bound_mib(self) -> float | None:
        held = self.bench.node.disk_limits.get(SDA)
        return None if held is None else held.bytes_per_s / MIB


def test_box_that_takes_the_disk_is_found_and_then_gets_what_hurts_nobody() -> None:
    bench = Bench()
    disk = SlowDisk(bench, online_mib=10.0, box_mib=0.0)
    disk.looks(10)
    disk.box_mib = 500.0
    disk.looks(15)
    moves, bound, harmed = bench.moves(), disk.bound_mib, sum(wait > 0.1 for wait in disk.waits)
    disk.looks(600)
    later = disk.waits[-500:]

    assert moves == [(IO, "tried"), (IO, "squeezed")]
    assert bound is not None and bound < 20.0
    assert harmed <= 8
    assert sum(wait > 0.1 for wait in later) < 0.03 * len(later), "online is not hurt again"
    assert sum(disk.done_mib[-100:]) / 100 > 40.0, "and offline gets most of what is left"
    assert bench.watch.status().disks[0].name == "sda"


def test_box_is_free_of_its_bound_once_it_wants_less() -> None:
    bench = Bench()
    disk = SlowDisk(bench, online_mib=10.0, box_mib=500.0)
    disk.looks(300)
    held = disk.bound_mib
    disk.box_mib = 1.0
    disk.looks(120)

    assert held is not None
    assert disk.bound_mib is None


def test_innocent_box_is_squeezed_for_the_experiment_alone() -> None:
    """Online waits for the disk whatever the box does."""
    bench = Bench()
    disk = SlowDisk(bench, online_mib=60.0, box_mib=30.0, own_waits=0.8)
    disk.looks(200)
    bounds = []
    for _ in range(400):
        disk.looks(1)
        bounds.append(disk.bound_mib)

    assert {move[1] for move in bench.moves() if move[0] == IO} == {"tried", "open"}
    assert sum(bound is not None for bound in bounds) < 0.06 * len(bounds)
    assert bounds[-1] is None


def test_box_that_does_no_io_is_not_suspected_by_what_a_service_says_either() -> None:
    bench = Bench()
    services_look(bench, lambda shares: 150.0, 10, 40)
    assert (CPU, "tried") in bench.moves()
    assert IO not in {move[0] for move in bench.moves()}


def test_disk_stays_bounded_over_a_restart_and_is_free_where_nobody_knows_why() -> None:
    bench = Bench()
    disk = SlowDisk(bench, online_mib=10.0, box_mib=500.0)
    disk.looks(12)
    state, held = msgspec.json.encode(bench.watch.checkpoint()), bench.node.disk_limits
    bench.watch = bench.made(ON)
    bench.watch.restore(msgspec.json.decode(state, type=InterferenceState), 0.0)
    disk.looks(1)
    after = bench.node.disk_limits
    bench.watch = bench.made(ON)
    bench.node.disk_limits |= {"8:16": None}
    disk.looks(2)

    assert held[SDA] is not None
    assert after[SDA] is not None
    assert bench.node.disk_limits == {"8:16": None}, "somebody else's stays"


@pytest.mark.parametrize(
    ("use", "stays"), [(DisksUse.LIFTED, False), (DisksUse.LEFT, True)], ids=["colocation-off", "held-off"]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_limits_on_disks_that_are_not_the_ladders_any_more(use: DisksUse, stays: bool, restarted: bool) -> None:
    bench = Bench()
    disk = SlowDisk(bench, online_mib=10.0, box_mib=500.0)
    disk.looks(12)
    if restarted:
        bench.watch = bench.made(replace(ON, acts=False, disks=use))
    else:
        bench.watch.set_to(replace(ON, acts=False, disks=use))
    held = bench.node.disk_limits
    asyncio.run(_due(bench))

    assert held
    assert bool(bench.node.disk_limits) is stays


async def _due(bench: Bench) -> None:
    """What the part does by itself when something is to be written."""
    bench.look()
    await bench.watch.disks.look()


def test_io_is_not_tried_without_io_max_and_status_says_so() -> None:
    bench = Bench()
    bench.node.spares_memory = False
    bench.watch = bench.made(ON)
    disk = SlowDisk(bench, online_mib=10.0, box_mib=500.0)
    disk.looks(30)
    untried = {one.resource: one.untried for one in bench.watch.status().rungs}

    assert IO not in {move[0] for move in bench.moves()}
    assert untried[IO] == NO_IO_MAX


def test_status_says_which_signals_are_here_and_why_others_are_not() -> None:
    bench = Bench()
    bench.looks(3)
    found = {one.name: one for one in bench.watch.status().signals}

    assert (found["cpu_pressure"].here, found["cpu_pressure"].value, found["cpu_pressure"].bar) == (True, 0.0, 10.0)
    assert (found["memory_pressure"].here, found["memory_pressure"].why) == (False, "not in this test")
    assert "box_io_share" not in found


def test_no_look_is_taken_while_what_was_held_back_is_not_known() -> None:
    bench = Bench()
    bench.watch.wait_for_checkpoint(True)
    bench.looks(3)
    waited = len(bench.node.readings)
    bench.watch.wait_for_checkpoint(False)
    bench.looks(1)

    assert (waited, len(bench.node.readings)) == (0, 1)


WEB = PodRef("u-web", "shop", "web")


def services_look(bench: Bench, percent: Callable[[Mapping[str, float]], float], every_s: int, seconds: int) -> None:
    """A service is asked each `every_s`; a look follows."""
    for second in range(seconds):
        if second % every_s == 0:
            now_s = bench.clock.boottime_s() + 0.5
            bench.words = (ServiceSignal(WEB, percent(bench.node.seen.shares), 250.0, 3.0, now_s),)
        bench.looks(1)


def test_service_that_says_it_is_harmed_has_the_cause_tried_and_squeezed() -> None:
    bench = Bench()
    services_look(bench, lambda shares: 80.0 if shares.get(CPU, 1.0) == 0.0 else 150.0, 1, 3)
    early = bench.moves()
    services_look(bench, lambda shares: 80.0 if shares.get(CPU, 1.0) == 0.0 else 150.0, 1, 2)
    before = bench.moves()
    services_look(bench, lambda shares: 80.0 if shares.get(CPU, 1.0) == 0.0 else 150.0, 1, 16)

    assert (early, before) == ([], [(CPU, "tried")]), "it is high for its 3 s only by the fourth answer"
    assert bench.moves() == [(CPU, "tried"), (CPU, "squeezed")]
    (shown,) = [one for one in bench.watch.status().signals if one.name == "service_check"]
    assert (shown.here, shown.note, shown.bar) == (True, "said by shop/web", 100.0)


def test_service_that_is_harmed_by_something_else_exonerates_the_box() -> None:
    bench = Bench()
    services_look(bench, lambda _: 150.0, 1, 40)

    assert [rung for resource, rung in bench.moves() if resource == CPU][:2] == ["tried", "open"]
    assert (MEMORY, "tried") in bench.moves()
    assert "squeezed" not in [rung for _, rung in bench.moves()]


def test_experiment_without_an_answer_to_it_is_called_off_and_proves_nothing() -> None:
    bench = Bench()
    bench.words = (ServiceSignal(WEB, 150.0, 250.0, 0.0, bench.clock.boottime_s()),)
    bench.looks(8)

    assert bench.moves() == [(CPU, "tried"), (CPU, "open")]
    assert "called off" in bench.watch.status().moves[0].transition.reason
    assert not any(name == "exonerations" for name, *_ in bench.counted)


@pytest.mark.parametrize(
    ("asked", "here", "why"),
    [
        ((), False, f"no online pod asks for it by the annotation {ANNOTATION}"),
        ((AskedService(WEB, None, "it has not been asked yet"),), True, "shop/web: it has not been asked yet"),
        ((AskedService(WEB, None),), True, "shop/web: it has not answered of late"),
    ],
    ids=["none", "not-yet", "stale"],
)
def test_status_says_why_no_service_is_heard(asked: tuple[AskedService, ...], here: bool, why: str) -> None:
    bench = Bench()
    bench.asked = asked
    bench.looks(1)
    (shown,) = [one for one in bench.watch.status().signals if one.name == "service_check"]

    assert (shown.here, shown.why, shown.value) == (here, why, None)


def test_services_are_not_heard_while_interference_is_off() -> None:
    bench = Bench(replace(ON, enabled=False))
    bench.words = (ServiceSignal(WEB, 900.0, 250.0, 0.0, bench.clock.boottime_s()),)
    bench.relief.evidence = Evidence(0.0, 4 * GIB, GIB, GIB, None, EvictionHard())
    bench.looks(10)

    assert bench.moves() == []
    assert "service_check" not in [one.name for one in bench.watch.status().signals]


def test_evidence_for_cpu_is_as_old_as_the_last_value() -> None:
    bench = Bench()
    bench.looks(3)

    assert (bench.node.seen.cpu_seen_s, bench.node.seen.cpu_idle) == (bench.clock.now, True)


# --- pods by themselves ----------------------------------------------------------------------------------------------


def waiting_for_itself(bench: Bench) -> None:
    """An online pod that always waits for 0.4 of its time, whatever the box has, and one that hardly waits."""
    bench.outside = {name: Pod(PodRef(f"u-{name}", "shop", name)) for name in ("accomplice", "victim")}
    bench.node.pod_waits = {"u-accomplice": lambda _: 0.4, "u-victim": lambda _: 0.01}
    bench.node.waits = lambda _: 0.41


def harmed_by_the_box(bench: Bench) -> None:
    bench.node.pod_waits["u-victim"] = by_the_box
    bench.node.waits = lambda shares: 1.0 - 0.6 * (1.0 - by_the_box(shares))


def test_victim_is_found_beside_a_pod_that_waits_as_much_by_itself() -> None:
    bench = Bench()
    waiting_for_itself(bench)
    bench.looks(3600)
    before = bench.moves()
    harmed_by_the_box(bench)
    bench.looks(60)

    assert "squeezed" not in [rung for _, rung in before]
    assert bench.innocent[3599], "what the one waits for is known not to be the box's doing"
    assert False in bench.innocent[3600:]
    found = bench.watch.status().moves
    assert (CPU, "squeezed") in [(one.transition.resource, one.transition.after.value) for one in found]
    assert {one.transition.signal for one in found if one.transition.after.value == "squeezed"} == {"pod_pressure"}


@pytest.mark.parametrize(("waits_s", "asked"), [(0.12, True), (0.08, False)], ids=["60-%", "40-%"])
def test_own_limits_are_read_from_half_of_a_pods_bar_on(waits_s: float, asked: bool) -> None:
    """Its bar is 20 % of its time. The sum of all pods waits for nothing."""
    bench = Bench()
    bench.outside = {"s9": Pod(PodRef("u9", "shop", "web"))}
    bench.node.pod_waits = {"u9": lambda shares: waits_s}
    bench.looks(4)
    assert bench.node.readings[-1] is asked


def test_pod_that_waits_by_itself_is_tried_ever_more_seldom() -> None:
    bench = Bench()
    waiting_for_itself(bench)
    bench.looks(600)
    tried = sum(names[:2] == ("ladder_transitions", CPU) and names[2] == "tried" for names in bench.counted)
    bench.looks(3600)
    later = sum(names[:2] == ("ladder_transitions", CPU) and names[2] == "tried" for names in bench.counted) - tried

    assert (0 < tried <= 12, later) == (True, 0)


def test_pod_that_its_own_limit_stops_is_no_victim() -> None:
    bench = Bench()
    bench.outside = {"s": Pod(PodRef("a", "shop", "limited"))}
    bench.node.pod_waits, bench.node.own_s = {"a": lambda _: 0.9}, 0.5
    bench.node.waits = lambda _: 0.05
    bench.looks(60)

    assert bench.moves() == []


# --- cycles per instruction ------------------------------------------------------------------------------------------


def busy_with(bench: Bench, cpi: Callable[[Mapping[str, float]], float]) -> None:
    """An online pod that takes so many cycles for an instruction, by what the box is left."""
    bench.outside = {"s9": Pod(PodRef("u9", "shop", "cart"), {"pod-template-hash": "1"})}
    bench.node.cpi = cpi


def test_box_that_slows_down_an_online_service_is_tried_and_squeezed_by_its_cycles_per_instruction() -> None:
    bench = Bench(replace(ON, cpi=True))
    busy_with(bench, lambda _: 1.0)
    bench.looks(330)
    before = bench.moves()
    busy_with(bench, lambda shares: 1.05 if shares.get(CPU, 1.0) == 0.0 else 1.8)
    bench.looks(45)

    assert before == []
    assert (bench.node.counts_work, bench.node.online) == (True, ("u9",))
    assert bench.moves()[:2] == [(CPU, "tried"), (CPU, "squeezed")]
    assert bench.watch.status().moves[-1].transition.signal == "cpi"


def test_box_is_exonerated_of_a_service_that_is_slow_by_itself() -> None:
    bench = Bench(replace(ON, cpi=True))
    busy_with(bench, lambda _: 1.0)
    bench.looks(330)
    busy_with(bench, lambda _: 1.8)
    bench.looks(60)

    assert (CPU, "tried") in bench.moves()
    assert not [one for one in bench.moves() if one[1] == "squeezed"]
    assert ("exonerations", "cpi") in bench.counted


def test_nothing_is_counted_unless_it_is_asked_for() -> None:
    bench = Bench()
    busy_with(bench, lambda _: 1.0)
    bench.looks(3)

    assert (bench.node.counts_work, bench.node.online) == (False, ("u9",))
    assert not [one for one in bench.watch.status().signals if one.name == "cpi"]


def test_what_is_usual_is_in_the_checkpoint() -> None:
    bench = Bench(replace(ON, cpi=True))
    busy_with(bench, lambda _: 1.0)
    bench.looks(330)
    state = msgspec.json.decode(msgspec.json.encode(bench.watch.checkpoint()), type=InterferenceState)
    again = bench.made(replace(ON, cpi=True))
    again.restore(state, 0.0)

    assert again.checkpoint().cpi["shop/pod-template-hash=1"].windows >= 30


# --- what is not known -----------------------------------------------------------------------------------------------


def test_waiting_that_own_limits_may_explain_is_no_evidence_for_cpu_while_they_can_not_be_read() -> None:
    """Else `cpu.bound = "evidence"` would leave the box open with nobody able to see harm."""
    bench = Bench()
    bench.looks(3)
    seen_s, bench.node.waits, bench.node.own_complete = bench.clock.now, lambda _: 0.9, False
    bench.looks(40)

    assert bench.moves() == []
    assert bench.node.seen.cpu_seen_s == seen_s


def test_failed_look_ends_what_the_look_before_has_shown() -> None:
    bench = Bench()
    bench.node.waits, bench.node.own_s = (lambda _: 0.5), 3.0
    bench.looks(10)
    acquitted, bench.node.fails = bench.innocent[-1], CgroupError("it hangs")
    bench.looks(1)

    assert acquitted
    assert not bench.innocent[-1], "the guard heeds reports again"


def test_failed_look_teaches_nothing_about_disks() -> None:
    """A disk that online waits for was seen last: it must not count as calm because nothing is seen now."""
    bench = Bench()
    disk = SlowDisk(bench, online_mib=10.0, box_mib=20.0)
    disk.looks(10)
    disk.box_mib = 500.0
    disk.looks(1)
    before = bench.watch.disks.state.of[SDA].calm
    bench.node.fails = CgroupError("it hangs")
    bench.looks(20)

    assert bench.watch.disks.state.of[SDA].calm == before


@pytest.mark.parametrize("use", [DisksUse.HELD, DisksUse.LEFT], ids=["bounded-on", "held-off-then"])
def test_slow_disk_that_took_the_bound_after_all_is_no_failure(use: DisksUse) -> None:
    bench = Bench()
    disks, writes = bench.watch.disks, bench.node.writes
    late = [StuckError("no answer from the kernel within 10 s")]

    async def slow(*args: Any, **more: Any) -> Any:
        done = await writes(*args, **more)
        if late:
            raise late.pop()
        return done

    bench.node.writes = slow  # type: ignore[method-assign]
    failures: list[str] = []

    async def go() -> None:
        rounds = round_of(disks, bench.log, bench.clock)
        for t in range(120):
            bench.clock.advance(1.0)
            io = {SDA: DiskIo(t * GIB, t * 1000)}
            limits = dict(bench.node.disk_limits)
            if use is DisksUse.LEFT and any(failures):
                disks.rest(use)
            else:
                disks.read(SignalReading.without(NONE, disks=DiskCounters(float(t), io, io, {}), disk_limits=limits))
                disks.keep(None if t < 50 else 0.0, calm=t < 50, innocent=False)
            if disks.wake.is_set:
                disks.wake._is_set = False
                await rounds.look(disks)
            failures.append(disks.failure)

    asyncio.run(go())
    assert bench.node.disk_limits[SDA] is not None
    assert (any(failures), failures[-1]) == (True, "")


def test_limits_on_disks_that_could_not_be_lifted_are_lifted_later() -> None:
    bench = Bench()
    disk = SlowDisk(bench, online_mib=10.0, box_mib=500.0)
    disk.looks(12)
    held, write = bench.node.disk_limits, bench.node.write

    def hangs(row: KernelFile, path: str, value: tuple[str, DiskRate | None]) -> None:
        raise CgroupError("a disk hangs")

    bench.node.write = hangs  # type: ignore[method-assign]
    bench.watch.set_to(replace(ON, acts=False, disks=DisksUse.LIFTED))
    bench.looks(2)
    bench.node.write = write  # type: ignore[method-assign]
    bench.looks(2)

    assert held
    assert bench.node.disk_limits == {}


def test_what_was_learned_of_signals_outlives_a_while_in_which_they_are_not_asked_for() -> None:
    """As while an operator holds criproxy off the box: an exoneration before it still counts after it."""
    bench = Bench()
    bench.looks(2)
    bench.node.waits = lambda _: 0.14
    bench.looks(20)
    learned = bench.watch.checkpoint().responder.monitors["cpu_pressure"]
    bench.watch.set_to(replace(ON, enabled=False))
    bench.looks(5)
    written = msgspec.json.encode(bench.watch.checkpoint())
    bench.watch = bench.made(replace(ON, enabled=False))
    bench.watch.restore(msgspec.json.decode(written, type=InterferenceState), 0.0)
    bench.watch.set_to(ON)

    assert learned.patience_s > 0.0
    assert bench.watch.checkpoint().responder.monitors["cpu_pressure"] == learned


def test_who_was_to_go_is_kept_over_a_restart() -> None:
    bench = Bench()
    bench.eviction_state = EvictionState({"s1": 50.0})
    written = msgspec.json.encode(bench.watch.checkpoint())
    bench.eviction_state = EvictionState()
    bench.watch.restore(msgspec.json.decode(written, type=InterferenceState), 7.0)

    assert bench.eviction_state == EvictionState({"s1": 57.0})


DOWN, HARMED = PodRef("u-down", "shop", "down"), PodRef("u-harmed", "shop", "harmed")


def they_say(bench: Bench, harmed: Callable[[Mapping[str, float]], float], down: float) -> None:
    """What two services say each second: one by how much the box is left, and one that has troubles of its own."""

    def signals() -> tuple[ServiceSignal, ...]:
        now_s = bench.clock.boottime_s()
        return (
            ServiceSignal(DOWN, down, None, 3.0, now_s),
            ServiceSignal(HARMED, harmed(bench.node.seen.shares), 250.0, 3.0, now_s),
        )

    bench.signals = signals  # type: ignore[method-assign]


def test_service_that_is_down_for_a_reason_of_its_own_does_not_outshout_one_that_the_box_harms() -> None:
    bench = Bench()
    they_say(bench, lambda _: 60.0, 200.0)
    bench.looks(900)
    before = set(bench.moves())
    they_say(bench, lambda shares: 60.0 if shares.get(CPU, 1.0) == 0.0 else 160.0, 200.0)
    bench.looks(60)

    assert {rung for _, rung in before} == {"tried", "open"}
    assert (CPU, "squeezed") in bench.moves()


def test_service_that_goes_down_amid_harm_acquits_the_box_for_a_moment_alone() -> None:
    bench = Bench()

    def by_the_half(shares: Mapping[str, float]) -> float:
        return 60.0 if shares.get(CPU, 1.0) < 0.5 else 180.0

    they_say(bench, by_the_half, 0.0)
    bench.looks(20)
    convicted = bench.moves()
    they_say(bench, by_the_half, 200.0)
    bench.looks(900)
    harmed = []
    for _ in range(100):
        bench.looks(1)
        harmed.append(by_the_half(bench.node.seen.shares) > 100.0)

    assert convicted == [(CPU, "tried"), (CPU, "squeezed")]
    assert sum(harmed) < 0.2 * len(harmed)
