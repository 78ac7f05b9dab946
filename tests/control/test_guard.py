"""The guard's loop against a fake node, on a clock that jumps."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from criproxy.control.guard import CpuGuard
from criproxy.control.guardlaw import GuardLaw, Outlook
from tests.fakes.clock import FakeClock, Stop
from tests.fakes.control import FakeGuardedBox
from tests.fakes.counters import FakeCounters
from tests.fakes.log import FakeLog

LAW = GuardLaw(floor_cores=0.1, watermark_ratio=0.9)
OUTLOOK = Outlook(capacity_cores=4.0, limit_cores=3.0, predicted_cores=0.6)


@dataclass
class FakePressure:
    note: str = "not listening"
    reports: int = 0
    closed: int = 0
    heard: Callable[[], object] = bool

    def follow(self, now_s, heard):
        self.note, self.heard = "listening", heard

    def report(self):
        self.reports += 1
        self.heard()

    def take(self):
        self.reports, had = max(0, self.reports - 1), self.reports
        return had > 0

    def close(self):
        self.closed += 1


class Bench:
    def __init__(self, law=LAW, outlook=OUTLOOK):
        self.clock, self.log, self.outlook = FakeClock(), FakeLog(), outlook
        self.node, self.pressure, self.counters = FakeGuardedBox(self.clock), FakePressure(), FakeCounters()
        self.guard = CpuGuard(
            self.node,
            self.pressure,
            self.clock,
            law,
            counters=self.counters,
            log=self.log,
        )

    def run(self, looks):
        """So many looks, each after its pause but for the first."""
        self.clock.slept.clear()
        self.clock.stop_after = looks
        self.guard.decided(self.outlook)
        with pytest.raises(Stop):
            asyncio.run(self.guard.run())
        return self.clock.slept

    def sleeps_while(self, *events):
        """How often it has slept when each of these was called and dealt with."""

        async def go():
            running, slept = asyncio.create_task(self.guard.run()), []
            for event in events:
                event()
                await asyncio.sleep(0.001)
                slept.append(len(self.clock.slept))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return slept

        self.clock.slept.clear()
        self.clock.stop_after = 50
        return asyncio.run(go())


@pytest.fixture
def bench():
    bench = Bench()
    bench.run(20)
    return bench


def test_guard_steady_load_writes_nothing_and_looks_each_interval(bench):
    assert bench.run(5) == [0.05] * 5
    assert (bench.node.squeezed, bench.guard.ceiling()) == ([], None)


def test_guard_step_squeezes_the_box_within_one_look(bench):
    bench.node.online_cores = 2.0
    bench.run(1)
    assert bench.node.squeezed == [pytest.approx(1.6)]
    assert bench.guard.ceiling().cores == bench.node.squeezed[0]
    assert sum(bench.counters.of("guard_squeezes")) == 1


@pytest.mark.parametrize(("node_s", "box_s"), [(2.6e6, 0.0), (2.6e6, 2.6e6), (0.0, 2.6e6)], ids=["node", "both", "box"])
def test_guard_impossible_look_neither_squeezes_nor_blinds(bench, node_s, box_s):
    """Taken for a step it would squeeze for seconds and, judged false, raise the bar for hours."""
    bench.node.jumps(node_s, box_s)
    bench.run(20)
    assert (bench.node.squeezed, bench.guard.ceiling(), bench.guard.status().squeezes) == ([], None, 0)
    bench.node.online_cores = 2.0
    bench.run(1)
    assert bench.node.squeezed == [pytest.approx(1.6, abs=0.02)]


def test_guard_looks_sooner_after_an_alarm_for_a_moment(bench):
    bench.node.online_cores = 2.0
    assert bench.run(5) == [0.025] * 3 + [0.05] * 2


@pytest.mark.parametrize(
    ("cost_s", "pause_s"),
    [
        pytest.param(0.0005, 0.05, id="cheap"),
        pytest.param(0.0006, 0.06, id="over-a-hundredth"),
        pytest.param(0.002, 0.2, id="dear"),
        pytest.param(0.1, 0.5, id="at-least-twice-a-second"),
    ],
)
def test_guard_whose_looks_are_dear_takes_a_hundredth_of_a_core(bench, cost_s, pause_s):
    bench.node.cost_s = cost_s
    assert bench.run(4) == pytest.approx([0.05] + [pause_s] * 3)
    bench.node.cost_s = 0.0
    assert bench.run(2) == [0.05] * 2


def test_guard_look_that_is_dear_once_changes_nothing(bench):
    bench.node.cost_s = 0.1
    bench.run(1)
    bench.node.cost_s = 0.0
    assert bench.run(2) == [0.05] * 2


def test_guard_whose_looks_are_dear_looks_sooner_after_an_alarm(bench):
    bench.node.cost_s = 0.002
    bench.run(2)
    bench.node.online_cores = 2.0
    assert bench.run(5) == pytest.approx([0.025] * 3 + [0.2] * 2)


def test_guard_pressure_squeezes(bench):
    bench.node.box_cores = 3.4
    bench.pressure.reports = 1
    bench.run(20)
    assert bench.node.squeezed == []
    bench.pressure.reports = 1
    bench.run(2)
    assert len(bench.node.squeezed) == 1


def test_guard_gives_back_what_it_took_for_waiting_that_is_not_the_boxs(bench):
    bench.run(4)
    bench.node.box_cores, bench.pressure.reports = 3.4, 100
    bench.run(8)
    squeezed, held = len(bench.node.squeezed), bench.guard.ceiling()
    bench.guard.acquit(True)
    given_back = bench.guard.ceiling()
    bench.run(40)
    assert (squeezed > 0, held is not None, given_back) == (True, True, None)
    assert len(bench.node.squeezed) == squeezed
    assert (bench.guard.status().false_alarms, sum(bench.counters.of("guard_false_alarms"))) == (1, 1)
    bench.guard.acquit(False)
    bench.run(8)
    assert len(bench.node.squeezed) > squeezed


def test_guard_keeps_a_squeeze_for_a_step_whoever_online_waits_for(bench):
    bench.run(4)
    bench.node.online_cores = 3.0
    bench.run(4)
    bench.guard.acquit(True)
    assert bench.guard.ceiling() is not None
    assert sum(bench.counters.of("guard_false_alarms")) == 0


def test_guard_false_alarm_is_told(bench):
    bench.node.online_cores = 1.0
    bench.run(2)
    bench.node.online_cores = 0.6
    bench.run(25)
    assert (sum(bench.counters.of("guard_squeezes")), sum(bench.counters.of("guard_false_alarms"))) == (1, 1)


OPEN = Outlook(capacity_cores=4.0, limit_cores=4.0, predicted_cores=4.0)
"""By evidence: nothing tells of harm, and all of the node is expected of online."""


def test_guard_of_an_open_box_looks_with_each_tick_alone_whatever_online_does():
    bench = Bench(outlook=OPEN)

    def tick():
        bench.clock.advance(1.0)
        bench.node.online_cores = 4.0 - bench.node.online_cores
        bench.guard.decided(OPEN)

    assert bench.sleeps_while(*[tick] * 5) == [0] * 5
    assert bench.node.squeezed == []


def test_guard_of_an_open_box_squeezes_at_a_report_of_waiting_and_rests_when_all_is_given_back():
    bench = Bench(outlook=OPEN)

    async def go():
        running = asyncio.create_task(bench.guard.run())
        for _ in range(3):
            bench.clock.advance(1.0)
            bench.guard.decided(OPEN)
            await asyncio.sleep(0.001)
        bench.node.box_cores = 3.4
        bench.clock.advance(0.5)
        bench.pressure.report()
        await asyncio.sleep(0.05)  # the clock jumps, so it looks as often as it can until it rests
        slept = len(bench.clock.slept)
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return slept

    slept = asyncio.run(go())
    assert bench.node.squeezed == [pytest.approx(1.7, abs=0.1)]
    assert bench.guard.ceiling() is None
    assert 40 < slept == len(bench.clock.slept) < 200


@pytest.mark.parametrize("how", ["off", "no box"])
def test_guard_that_has_nothing_to_guard_rests_without_a_timer(bench, how):
    bench.node.online_cores = 2.0
    bench.run(2)
    assert bench.guard.ceiling() is not None
    if how == "off":
        bench.guard.configure(None)
    else:
        bench.node.has_box = False
    before = len(bench.node.squeezed)
    assert bench.sleeps_while(*[lambda: bench.guard.decided(OUTLOOK)] * 5) == [0] * 5
    assert bench.guard.ceiling() is None
    assert len(bench.node.squeezed) == before
    assert bench.guard.status().enabled == (how != "off")


def test_guard_before_the_first_decision_rests_without_a_timer():
    bench = Bench()
    assert bench.sleeps_while(bench.guard.wake, lambda: bench.guard.configure(LAW)) == [0, 0]


@pytest.mark.parametrize("wake", ["a decision", "a pod starts"])
def test_guard_looks_at_once_when_a_box_has_appeared(bench, wake):
    bench.node.has_box = False
    bench.sleeps_while(lambda: bench.guard.decided(OUTLOOK))
    bench.node.has_box = True
    if wake == "a decision":
        assert bench.run(5) == [0.05] * 5
    else:
        bench.clock.slept.clear()
        bench.clock.stop_after = 5
        bench.guard.wake()
        with pytest.raises(Stop):
            asyncio.run(bench.guard.run())
        assert bench.clock.slept == [0.05] * 5


def test_guard_switched_on_again_does_not_judge_the_time_between(bench):
    bench.guard.configure(None)
    bench.node.online_cores = 4.0
    bench.clock.advance(3.0)
    bench.sleeps_while(bench.guard.wake)
    bench.guard.configure(LAW)
    bench.node.online_cores = 0.6
    bench.run(1)
    bench.run(20)
    assert bench.node.squeezed == []


def test_guard_box_made_anew_is_no_step(bench):
    bench.node.made_anew()
    bench.run(3)
    assert bench.node.squeezed == []


@pytest.mark.parametrize("stalls", [1, 2, 3, 4])
def test_guard_that_is_held_up_between_the_counters_sees_no_step(bench, stalls):
    bench.node.box_cores = 3.0
    bench.run(2)
    bench.node.stalls = stalls
    bench.run(10)
    assert bench.node.squeezed == []
    bench.node.online_cores = 3.0
    bench.run(2)
    assert bench.node.squeezed != []


@pytest.mark.parametrize("where", ["read_error", "squeeze_error"])
def test_guard_failure_is_counted_logged_once_and_survived(bench, where):
    setattr(bench.node, where, OSError("EIO"))
    for online in (2.0, 3.0):
        bench.node.online_cores = online
        bench.run(1)
    assert bench.guard.status().failures == 2
    assert bench.log.names().count("guard_failed") == 1
    setattr(bench.node, where, None)
    bench.node.online_cores = 4.0
    bench.run(3)
    assert bench.node.squeezed[-1] == 0.1


def test_guard_tells_once_where_it_hears_of_pressure(bench):
    assert [fields for level, event, fields in bench.log.events if event == "guard_pressure"] == [{"note": "listening"}]
    assert bench.guard.status().pressure == "listening"
    assert bench.pressure.closed == 1, "run has ended"


def test_guard_whose_reads_are_slow_still_sees_a_step(bench):
    """As where thousands of cgroups are summed up for each."""
    bench.node.read_s = bench.node.cost_s = 0.004
    bench.run(5)
    bench.node.online_cores = 2.0
    bench.run(3)
    assert bench.node.squeezed != []


def test_guard_that_cannot_read_at_one_moment_hears_of_pressure_all_the_same():
    bench = Bench()
    bench.node.stalls = 1000
    bench.run(3)
    assert (bench.pressure.note, bench.node.squeezed) == ("listening", [])
