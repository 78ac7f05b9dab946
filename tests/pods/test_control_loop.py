"""The control loop, look by look, against a fake node, and its schedule against a fake clock."""

import asyncio
import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.cgroup.driver import CgroupError
from criproxy.control.decider import Decider, LoopSettings
from criproxy.control.evidence import NOTHING_SEEN, HarmSeen
from criproxy.control.policy import DynamicSettings, StaticSettings
from criproxy.control.predictor import CalibratedPredictor
from criproxy.control.series import PredictorSettings
from criproxy.model import UNLIMITED, Capacity, GivingBack, GuardCeiling
from criproxy.model.modes import Mode
from criproxy.pods.control_loop import ControlLoop
from tests.control.predictor_helpers import level_of
from tests.fakes.clock import FakeClock
from tests.fakes.control import GIB, FakeBox, FakeCapacity, FakeObserver
from tests.fakes.log import FakeLog
from tests.fakes.part import round_of
from tests.rows import laws

POLICY = laws(DynamicSettings(floor=0.1), DynamicSettings(floor=GIB))
SETTINGS = LoopSettings(POLICY, PredictorSettings(kind="histogram"))
FLOORS = {"cpu": 0.1, "memory": GIB}


class Harm:
    """What answers harm: it says what the test has it say, at each look, and how often it takes one."""

    def __init__(self):
        self.pace_s, self.seen, self.innocent = None, NOTHING_SEEN, False
        self.judged, self.followed = 0, 0
        self.raises: Exception | None = None

    def job(self):
        return None

    def judge(self, now_s, reading):
        self.judged += 1
        if self.raises:
            raise self.raises

    def follow(self):
        self.followed += 1

    def cease(self):
        pass

    def wait_for_checkpoint(self, waits):
        pass


class Relief:
    """Notes what it judges."""

    def __init__(self):
        self.judged: list[tuple[Any, Any]] = []

    def kept_free(self, capacity_bytes):
        return 0.0

    def judge(self, now_s, usage, capacity_bytes, decider):
        self.judged.append((decider.given["memory"], decider.due("memory")))


class Node:
    """A loop with all its fakes; `ticks` lets a second pass before each look."""

    def __init__(self, settings=SETTINGS):
        self.clock, self.capacity, self.log = FakeClock(), FakeCapacity(), FakeLog()
        self.box = FakeBox(self.clock)
        self.observer = FakeObserver()
        self.held, self.outlook = None, None
        self.woken = 0
        self.innocent = []
        self.harm, self.relief = Harm(), Relief()
        port: Any = self
        self.loop = ControlLoop(
            port, port.box, self.capacity, Decider(settings, port.log), self.observer, port, port.relief, port.harm
        )

    def foresees(self, resource, level):
        predictors: Any = self.loop.decider._predictors
        predictors[resource] = Foresees(level)

    def ceiling(self):
        return self.held

    def acquit(self, innocent):
        self.innocent.append(innocent)

    def decided(self, outlook):
        self.outlook = outlook
        self.woken += 1

    def wake(self):
        self.woken += 1

    def ticks(self, count=1, seconds=1.0):
        """Returns for each look whether it was without a failure."""

        async def go():
            done = []
            for _ in range(count):
                self.clock.advance(seconds)
                await round_of(self.loop, self.log).look(self.loop)
                done.append(not self.loop.failure)
            return done

        return asyncio.run(go())

    def looks_at_harm(self):
        """Between two samples."""
        self.harm.pace_s = 0.5
        self.ticks(1, 0.5)

    def run(self, sleeps):
        self.clock.slept.clear()
        self.clock.stop_after = sleeps + 1
        with contextlib.suppress(BaseExceptionGroup):  # of one Stop
            asyncio.run(round_of(self.loop, self.log, self.clock).run())
        return self.clock.slept[1:]  # the first is how long after the beginning the first look comes


class Recorder:
    """Notes all samples that reach a loop's predictors, and the capacity that came with each."""

    def __init__(self, loop):
        self.samples: list[tuple[float, float]] = []
        decider = loop.decider
        decider._predictors = {name: Noted(one, self.samples) for name, one in decider._predictors.items()}


class Noted:
    """A predictor whose samples are noted."""

    def __init__(self, predictor, samples):
        self.predictor, self.samples = predictor, samples

    def observe(self, t_s, wall_s, usage, capacity):
        self.samples.append((usage, capacity))
        return self.predictor.observe(t_s, wall_s, usage, capacity)

    @property
    def note(self):
        return self.predictor.note

    @property
    def learning(self):
        return self.predictor.learning


@pytest.fixture
def node():
    return Node()


def test_tick_tells_the_guard_what_it_has_decided_from_the_guard_aside():
    node = Node()
    before = node.outlook
    node.ticks(20)
    free = node.box.limits["cpu"]  # type: ignore[index]
    node.held = GuardCeiling(0.5, "a step")
    node.ticks()
    outlook = node.outlook
    assert before is None
    assert node.box.limits["cpu"] == 0.5 < free  # type: ignore[index,operator]
    assert (outlook.capacity_cores, outlook.limit_cores) == (4.0, pytest.approx(free, abs=0.1))
    assert outlook.predicted_cores == node.observer.seen[-1][1].resources["cpu"].prediction.level
    node.held = None
    node.ticks()
    assert node.box.limits["cpu"] == pytest.approx(free, abs=0.1)  # type: ignore[index]


def test_tick_tells_the_guard_that_an_unlimited_box_is_infinite():
    node = Node(replace(SETTINGS, policy=laws(StaticSettings(UNLIMITED), StaticSettings(UNLIMITED))))
    node.ticks(3)
    assert node.outlook.limit_cores == math.inf


def test_tick_first_one_has_no_rates_and_changes_nothing(node):
    assert node.ticks() == [True]
    assert (node.box.applied, node.observer.seen) == ([], [])


def test_tick_cold_start_gives_the_floor_and_says_so(node):
    node.ticks(3)
    assert node.box.limits == FLOORS
    assert "cold start, 2 of 3 samples" in node.observer.seen[-1][1].resources["cpu"].reason


@pytest.mark.parametrize(
    ("kind", "law", "ticks"),
    [
        pytest.param("calibrated", DynamicSettings(floor=GIB / 8), 400, id="prediction-falls-slowly"),
        pytest.param("histogram", DynamicSettings(floor=GIB / 8, max_raise_ratio=0.01), 20, id="limit-climbs"),
    ],
)
def test_tick_what_online_leaves_the_box_is_known_before_the_box_may_have_it(kind, law, ticks):
    policy = laws(DynamicSettings(floor=0.1), law)
    node = Node(replace(SETTINGS, policy=policy, predictor=PredictorSettings(kind=kind)))
    node.ticks(ticks)
    snapshot, _, _ = node.observer.seen[-1]
    memory = snapshot.of["memory"]
    assert node.loop.decider.due("memory") == pytest.approx(0.9 * memory.capacity - memory.online, rel=0.05)
    assert law.floor < node.loop.decider.given["memory"] < 0.7 * node.loop.decider.due("memory")  # type: ignore[operator]


def test_tick_what_online_leaves_the_box_is_by_the_prediction_once_that_is_not_careful(node):
    node.ticks(20)
    assert node.loop.decider.due("memory") == node.loop.decider.given["memory"]


def test_tick_steady_load_leaves_the_rest_to_the_box(node):
    node.ticks(20)
    snapshot, decision, _ = node.observer.seen[-1]
    assert snapshot.of["cpu"].online == pytest.approx(1.0)
    assert node.box.limits["cpu"] == pytest.approx(4 * 0.9 - 1.0, abs=0.06)
    assert node.box.limits["memory"] == pytest.approx(16 * GIB * 0.9 - 4 * GIB, rel=0.03)
    assert decision.limits == node.box.limits


def test_tick_online_step_up_lowers_in_the_same_tick(node):
    node.ticks(20)
    node.box.online_cores = 3.0
    node.ticks()
    assert node.box.limits["cpu"] <= 4 * 0.9 - 3.0 + 1e-9
    assert node.observer.seen[-1][1].resources["cpu"].reason.startswith("lowered")
    assert len(node.observer.seen[-1][2]) == 1


def test_tick_capacity_unplugged_bounds_the_box_in_the_same_tick(node):
    node.ticks(20)
    node.capacity.value = replace(node.capacity.value, cores=2.0)
    node.ticks()
    assert node.box.limits["cpu"] <= 2 * 0.9 - 1.0 + 1e-9


def test_tick_memory_unplugged_bounds_the_box_in_the_same_tick(node):
    node.ticks(20)
    node.capacity.value = replace(node.capacity.value, memory_bytes=8 * GIB)
    node.ticks()
    assert node.box.limits["memory"] <= 8 * GIB * 0.9 - 4 * GIB


def test_tick_capacity_plugged_in_is_given_by_and_by():
    node = Node(replace(SETTINGS, policy=laws(DynamicSettings(0.1, max_raise_ratio=0.1), POLICY.resources["memory"])))
    node.ticks(40)
    before = node.box.limits["cpu"]  # type: ignore[index]
    node.capacity.value = replace(node.capacity.value, cores=8.0)
    given = []
    for _ in range(10):
        node.ticks()
        given.append(node.box.limits["cpu"])  # type: ignore[index]
    assert given[0] == pytest.approx(before + 0.8)  # type: ignore[operator]
    assert given[-1] == pytest.approx(8 * 0.9 - 1.0, abs=0.06)


def test_tick_cold_start_of_the_calibrated_predictor_gives_the_floor_and_says_so():
    node = Node(replace(SETTINGS, predictor=PredictorSettings(kind="calibrated")))
    node.ticks(60)
    assert node.box.limits == FLOORS
    reason = node.observer.seen[-1][1].resources["cpu"].reason
    assert reason.startswith(
        "held at 0.10 cores: the floor, above 4.00 cores x 0.90 - predicted 4.00 cores (learning, 0 "
    )
    node.ticks(60)
    decision = node.observer.seen[-1][1]
    assert decision.limits["cpu"] <= 4 * 0.9 - 1.25
    assert "(learning, " in decision.resources["cpu"].reason
    node.ticks(300)
    decision = node.observer.seen[-1][1]
    assert decision.resources["cpu"].reason.endswith("(falling slowly from an earlier, higher one)")
    node.ticks(3600)
    _, decision, _ = node.observer.seen[-1]
    assert {decided.prediction.note for decided in decision.resources.values()} == {""}
    assert decision.limits["cpu"] > 2.0


def test_tick_guards_ceiling_bounds_the_limit_from_this_tick_to_the_last_that_it_is_there(node):
    node.ticks(20)
    free = node.box.limits["cpu"]
    node.held = GuardCeiling(0.5, "online waits")
    node.ticks()
    assert node.box.limits["cpu"] == 0.5
    node.held = None
    node.ticks()
    assert node.box.limits["cpu"] == pytest.approx(free, abs=0.02)


def test_tick_that_falls_back_keeps_to_the_floor_below_the_guard_too(node):
    node.ticks(20)
    node.held, node.box.usage_error = GuardCeiling(0.01, "online waits"), OSError("gone")
    node.ticks(61)
    assert node.box.limits == FLOORS


def test_tick_pods_that_start_get_more_than_the_floor_while_they_do(node):
    node.box.online_cores = 3.0
    node.ticks(20)
    before, node.box.starting = node.box.limits["cpu"], 5
    node.ticks()
    meanwhile, node.box.starting = node.box.limits["cpu"], 0
    node.ticks()
    assert (meanwhile, before) == (pytest.approx(0.6), pytest.approx(node.box.limits["cpu"]))
    assert before < 0.6
    assert node.loop.history.records()[-2].decision.starting == 5


def test_tick_dry_run_decides_and_writes_nothing():
    node = Node(replace(SETTINGS, kept_by=Mode.DRY_RUN))
    node.ticks(10)
    assert node.box.applied == []
    assert node.observer.seen[-1][1].limits["cpu"] > 2.0
    assert {record.kept_by for record in node.loop.history.records()} == {Mode.DRY_RUN}


def test_tick_static_policy_applies_what_is_configured():
    node = Node(replace(SETTINGS, policy=laws(StaticSettings(1.5), StaticSettings(UNLIMITED))))
    node.ticks(5)
    assert node.box.limits == {"cpu": 1.5, "memory": UNLIMITED}


def test_guard_takes_a_look_with_each_tick_also_when_nothing_is_decided(node):
    """The box may have gone and come meanwhile, which a guard at rest does not see."""
    node.ticks()  # the first reading gives no rate
    first = node.woken
    node.box.usage_error = OSError("gone")
    node.ticks(2)
    assert (first, node.woken, node.outlook) == (1, 3, None)


@pytest.mark.parametrize("where", ["usage_error", "apply_error"])
def test_tick_failure_keeps_the_limits_is_counted_and_logged_once(node, where):
    node.ticks(10)
    before, heard = node.box.limits, len(node.observer.seen)
    setattr(node.box, where, OSError("cpu.stat is gone"))
    assert node.ticks(5) == [False] * 5
    assert node.box.limits == before
    assert node.observer.failed == 5
    assert node.log.names() == ["look_failed"]
    assert "cpu.stat is gone" in node.log.events[0][2]["error"]
    assert len(node.observer.seen) == heard
    setattr(node.box, where, None)
    assert node.ticks(2) == [True, True]
    assert node.log.names() == ["look_failed", "look_succeeded"]
    assert len(node.observer.seen) == heard + 2


def test_tick_drift_is_logged_once_until_a_tick_finds_none(node):
    node.ticks(10)
    node.box.drifts = True
    node.ticks(3)
    fought_over = node.log.names()
    node.box.drifts = False
    node.ticks(1)
    node.box.drifts = True
    node.ticks(2)
    assert fought_over == ["box_drifted"]
    assert node.log.names() == ["box_drifted"] * 2
    assert set(node.log.events[0][2]["files"]) == {"cpu.max"}


def test_tick_another_kind_of_failure_is_logged_again(node):
    node.box.usage_error = OSError("one")
    node.ticks(3)
    node.box.usage_error = KeyError("two")
    node.ticks(3)
    assert node.log.names() == ["look_failed", "look_failed"]


def test_tick_listener_that_raises_fails_the_tick_not_the_loop(node):
    node.ticks(5)
    node.observer.deaf = True
    assert node.ticks(2) == [False, False]
    assert node.log.names() == ["look_failed"]


def test_tick_observer_that_always_raises_does_not_keep_the_box_from_the_floor(node):
    node.ticks(20)
    node.observer.deaf, node.box.usage_error = True, OSError("gone")
    assert node.ticks(61) == [False] * 61
    assert node.box.limits == FLOORS


def test_tick_tells_how_long_it_took(node):
    node.box.apply_takes_s = 0.25
    node.ticks(5)
    assert node.observer.seconds == [0.25] * 4


def test_tick_without_samples_for_a_horizon_falls_back_to_the_floor_once(node):
    node.ticks(20)
    high, heard = node.box.limits, len(node.observer.seen)
    node.box.usage_error = OSError("gone")
    node.ticks(60)
    assert node.box.limits == high
    node.ticks(1)
    assert node.box.limits == FLOORS
    assert "can't be predicted (no sample for 61 s)" in node.loop.history.records()[-1].decision.resources["cpu"].reason
    assert len(node.observer.seen) == heard
    node.box.usage_error = None
    node.ticks(3)
    assert node.box.limits["cpu"] > 2.0


def test_tick_impossible_sample_is_told_once_and_bounds_nothing(node):
    node.ticks(20)
    before = node.box.limits
    node.box.jump_s = 2.6e6
    node.ticks(1)
    assert (node.box.limits, len(node.observer.discarded)) == (before, 1)
    node.ticks(1)
    assert node.box.limits == before
    assert node.loop.predictors()["cpu"].prediction < 1.1
    assert node.log.names() == ["sample_discarded"]
    assert node.log.events[0][2]["reason"] == node.observer.discarded[0]


def test_tick_impossible_samples_for_a_horizon_fall_back_to_the_floor(node):
    node.ticks(20)
    for _ in range(61):
        node.box.jump_s = 2.6e6
        assert node.ticks(1) == [True]
    assert node.box.limits == FLOORS
    assert len(node.observer.discarded) == 61
    assert node.log.names() == ["sample_discarded"]


def test_tick_after_the_machine_was_suspended_goes_on_as_before(node):
    node.ticks(20)
    before = node.box.limits
    node.clock.suspend(3600.0)
    node.ticks(2)
    assert node.observer.seen[-1][0].of["cpu"].online == pytest.approx(1.0)
    assert node.box.limits["cpu"] == pytest.approx(before["cpu"], abs=0.06)
    assert node.observer.discarded == []


def test_time_that_the_machine_was_suspended_was_not_measured(node):
    node.run(100)
    node.clock.during = lambda: node.clock.suspend(3600.0)
    node.box.online_cores = 3.0
    node.run(1)
    node.clock.during = lambda: None
    node.box.online_cores = 1.0
    node.run(60)
    assert node.observer.missed == []
    assert node.observer.seen[-1][1].resources["cpu"].prediction.recent == pytest.approx(1.0 + 2.0 / 160.0, abs=0.01)


events = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 2.0, 3600.0]),
        st.sampled_from([0.0, 0.01, 3.0, 2.6e6, -2.6e6]),
        st.sampled_from([1.0, 2.0, 4.0, 64.0]),
        st.sampled_from([GIB, 16 * GIB]),
        st.integers(0, 2**50),
    ),
    max_size=30,
)


@hypothesis_settings(deadline=None, max_examples=50)
@given(events)
def test_tick_whatever_happens_no_predictor_gets_more_than_the_capacity(events):
    node = Node()
    got = Recorder(node.loop)
    for suspended_s, jump_s, cpus, memory_bytes, online_bytes in events:
        node.clock.suspend(suspended_s)
        node.capacity.value = Capacity(cpus, memory_bytes)
        node.box.jump_s, node.box.online_bytes = jump_s, online_bytes
        node.ticks(1)
    assert all(0.0 <= usage <= capacity for usage, capacity in got.samples)


def test_tick_that_can_neither_read_nor_write_for_long_stays_alive(node):
    node.ticks(20)
    node.box.usage_error = node.box.apply_error = OSError("gone")
    assert node.ticks(100) == [False] * 100
    assert node.observer.failed == 100


def test_tick_while_applying_fails_goes_on_towards_the_newest_limit(node):
    node.ticks(20)
    node.box.apply_error = OSError("EBUSY")
    node.box.online_cores = 3.0
    node.ticks(3)
    node.box.apply_error = None
    node.ticks(1)
    assert node.box.limits["cpu"] <= 4 * 0.9 - 3.0 + 1e-9


def test_run_ticks_by_deadline_without_drift(node):
    node.box.apply_takes_s = 0.25
    slept = node.run(50)
    assert slept[0] == 1.0
    assert slept[1:] == [pytest.approx(0.75)] * 49
    assert node.clock.now == pytest.approx(1050.0)
    assert node.observer.missed == []


@pytest.mark.parametrize(("takes", "missed"), [(1.25, 1), (2.0, 1), (7.5, 7)])
def test_run_overrun_deadlines_are_skipped_and_counted(node, takes, missed):
    node.run(5)
    node.box.apply_takes_s = takes
    node.run(1)
    assert sum(node.observer.missed) == missed
    assert (node.clock.now - 1000.0) == int(node.clock.now - 1000.0)


def test_run_is_ended_by_cancellation(node):
    async def go():
        task = asyncio.ensure_future(round_of(node.loop, node.log, node.clock).run())
        node.clock.sleep = asyncio.sleep
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert node.log.events == []


def test_settings_replaced_keep_what_the_predictors_know(node):
    node.ticks(20)
    before = node.loop.predictors()
    node.loop.set_to(
        replace(SETTINGS, policy=laws(DynamicSettings(0.1, watermark_ratio=0.5), POLICY.resources["memory"]))
    )
    assert node.loop.predictors() == before
    node.ticks()
    assert node.box.limits["cpu"] == pytest.approx(4 * 0.5 - 1.0, abs=0.06)


def test_settings_with_another_percentile_keep_the_level(node):
    node.ticks(20)
    node.loop.set_to(replace(SETTINGS, predictor=PredictorSettings(kind="calibrated", percentile_ratio=0.95)))
    cpu = node.loop.decider._predictors["cpu"]
    assert isinstance(cpu, CalibratedPredictor)
    assert cpu.checkpoint().samples == 19
    assert level_of(cpu) == pytest.approx(1.0, abs=0.06)
    assert node.log.events == []


def test_settings_with_another_half_life_start_cold_and_say_so(node):
    node.ticks(20)
    node.loop.set_to(replace(SETTINGS, predictor=PredictorSettings(kind="histogram", half_life_s=60.0)))
    assert node.log.names() == ["predictor_starts_cold"] * len(node.loop.predictors())
    assert node.loop.predictors()["cpu"].samples == 0


def test_restored_loop_continues_where_the_old_one_was(node):
    node.ticks(20)
    young = Node()
    young.clock.now = node.clock.now
    young.loop.restore(node.loop.predictors(), 0.0)
    young.ticks(2)
    assert young.box.limits["cpu"] == pytest.approx(node.box.limits["cpu"], abs=0.06)  # type: ignore[index]


def test_history_holds_changes_and_reasons(node):
    node.ticks(100)
    records = node.loop.history.records()
    assert 8 < len(records) < 20
    assert all(math.isfinite(record.snapshot.of["cpu"].online) for record in records)
    assert all(record.applied for record in records)


# --- harm that is seen ------------------------------------------------------------------------------------------------


def cores(node: Any) -> Any:
    return node.box.limits["cpu"]


BY_EVIDENCE = replace(SETTINGS, cpu_by_evidence=True)


def test_ladder_takes_its_share_of_each_resource_and_the_policy_goes_on_beside(node):
    node.ticks(20)
    free = dict(node.box.limits)
    node.harm.seen = HarmSeen({"cpu": 0.0, "memory": 0.5})
    node.ticks()
    held = dict(node.box.limits)
    node.harm.seen = NOTHING_SEEN
    node.ticks()
    reason = node.observer.seen[-2][1].resources["cpu"].reason
    of_memory = node.observer.seen[-2][1].resources["memory"]
    assert held["cpu"] == 0.1
    assert held["memory"] == free["memory"], "who hits it is killed, and the box may be innocent"
    assert held["memory_high"] == of_memory.high == pytest.approx((free["memory"] + GIB) / 2, abs=GIB / 10)
    assert "squeezed to the floor, as online is harmed" in reason
    assert "reclaimed down to" in of_memory.reason
    assert node.box.limits == free, "it is given back at once: the ladder alone says how slowly"


def test_ladder_that_holds_to_the_prediction_changes_no_limit_and_says_so(node):
    node.ticks(20)
    free = dict(node.box.limits)
    node.harm.seen = HarmSeen({"cpu": 1.0})
    node.ticks()
    assert node.box.limits == free
    assert "no more than the prediction" in node.observer.seen[-1][1].resources["cpu"].reason


def test_look_at_harm_between_two_samples_is_in_force_at_once_and_takes_no_sample(node):
    node.ticks(20)
    node.harm.seen = HarmSeen({"cpu": 0.0})
    node.looks_at_harm()
    squeezed = cores(node)
    node.harm.seen = NOTHING_SEEN
    node.looks_at_harm()  # with a sample
    given, written = cores(node), len(node.box.applied)
    node.looks_at_harm()
    assert (squeezed, given) == (0.1, pytest.approx(4 * 0.9 - 1.0, abs=0.06))
    assert len(node.box.applied) == written, "nothing has changed"
    assert len(node.observer.seen) == 20


def test_look_at_harm_before_any_sample_bounds_nothing(node):
    node.harm.seen = HarmSeen({"cpu": 0.0})
    node.looks_at_harm()
    assert (node.box.applied, node.harm.judged, node.harm.followed) == ([], 1, 1)


@pytest.mark.parametrize("where", ["usage_error", "apply_error"])
def test_what_fails_of_a_look_keeps_harm_from_being_answered_by_nothing(node, where):
    node.ticks(5)
    setattr(node.box, where, OSError("gone"))
    node.ticks(3)
    assert (node.harm.judged, node.harm.followed) == (8, 8)


def test_signals_that_can_not_be_read_are_told_once_and_the_sample_counts(node):
    def fails(driver, path):
        raise CgroupError("it hangs")

    node.harm.job = lambda: fails
    assert node.ticks(5) == [False] * 5
    assert node.log.names() == ["look_failed"]
    assert (len(node.observer.seen), node.observer.failed) == (4, 0)


def test_harm_that_can_not_be_judged_keeps_nothing_from_being_bounded(node):
    node.harm.raises = KeyError("odd")
    assert node.ticks(20) == [False] * 20
    assert cores(node) == pytest.approx(4 * 0.9 - 1.0, abs=0.06)


def test_memory_is_judged_by_what_the_policy_has_just_decided(node):
    node.ticks(20)
    assert len(node.relief.judged) == 19
    assert node.relief.judged[-1][0] == node.observer.seen[-1][1].limits["memory"]


def test_look_at_harm_gives_no_more_than_the_floor_once_no_sample_has_come_for_a_horizon(node):
    """A look that finds harm must not raise the box to what was predicted a minute ago."""
    node.ticks(20)
    node.box.usage_error = OSError("gone")
    node.ticks(61)
    node.harm.seen = HarmSeen({"cpu": 0.9})
    node.looks_at_harm()
    assert node.box.limits == FLOORS


def test_static_limit_gives_way_to_proven_harm_too():
    node = Node(replace(SETTINGS, policy=laws(StaticSettings(3.0, 0.5), StaticSettings(8 * GIB, GIB))))
    node.ticks(3)
    node.harm.seen = HarmSeen({"cpu": 0.0})
    node.ticks()
    assert cores(node) == 0.5


def test_by_evidence_the_box_has_at_once_what_the_ladder_gives_back_and_what_the_guard_took_in_strides():
    law = DynamicSettings(0.1, max_raise_ratio=0.1)
    node = Node(replace(BY_EVIDENCE, policy=laws(law, POLICY.resources["memory"])))
    node.ticks(20)

    def see(**shares: float) -> float:
        node.harm.seen = HarmSeen(shares, node.clock.now, cpu_idle=True)
        node.ticks()
        return float(cores(node))

    for _ in range(20):
        opened = see()
    assert (opened, see(cpu=0.0), see()) == (4.0, 0.1, 4.0)
    predicted = see(cpu=1.0)
    assert (see(cpu=0.0), see(cpu=1.0), see()) == (0.1, predicted, 4.0)
    node.held = GuardCeiling(0.5, "online waits")
    assert see() == 0.5
    node.held = None
    assert see() == pytest.approx(0.9)


def test_by_evidence_the_box_gets_all_of_the_node_while_nothing_tells_of_harm():
    node = Node(BY_EVIDENCE)
    node.ticks(20)
    predicted = cores(node)
    node.harm.seen = HarmSeen({}, node.clock.now, cpu_idle=True)
    node.ticks()
    opened = cores(node)
    outlook = node.outlook
    node.harm.seen = HarmSeen({"cpu": 1.0}, node.clock.now, cpu_idle=True)
    node.ticks()
    squeezed = cores(node)
    node.harm.seen = HarmSeen({}, node.clock.now - 60.0, cpu_idle=True)
    node.ticks()
    assert (opened, outlook.limit_cores) == (4.0, 4.0)
    assert outlook.predicted_cores == 4.0, "no use of the node by online is an alarm of the guard's"
    assert squeezed == pytest.approx(predicted, abs=0.1)
    assert cores(node) == pytest.approx(predicted, abs=0.1)
    assert "not by evidence, as no signal for CPU" in node.observer.seen[-1][1].resources["cpu"].reason


def test_by_evidence_without_cpu_idle_the_prediction_bounds_the_box():
    node = Node(BY_EVIDENCE)
    node.ticks(20)
    node.harm.seen = HarmSeen({}, node.clock.now, cpu_idle=False)
    node.ticks()
    assert cores(node) == pytest.approx(4 * 0.9 - 1.0, abs=0.06)


def test_by_evidence_without_eyes_the_ladder_still_holds():
    node = Node(BY_EVIDENCE)
    node.ticks(20)
    node.harm.seen = HarmSeen({"cpu": 0.0})
    node.ticks()
    assert cores(node) == 0.1


def test_guards_ceiling_holds_below_what_the_ladder_leaves():
    node = Node(BY_EVIDENCE)
    node.ticks(20)
    node.harm.seen = HarmSeen({}, node.clock.now, cpu_idle=True)
    node.held = GuardCeiling(0.5, "online waits")
    node.ticks()
    assert (cores(node), node.outlook.limit_cores) == (0.5, 4.0)


def test_limits_are_only_lowered_while_the_checkpoint_is_awaited():
    node = Node(replace(SETTINGS, policy=laws(StaticSettings(2.0), StaticSettings(2 * GIB))))
    held = {"cpu": 0.5, "memory": 3 * GIB, "memory.high": GIB}
    node.loop.wait_for_checkpoint(True)
    node.ticks(2)
    unknown = list(node.box.applied)
    node.box.limits = held
    node.ticks(1)
    lowered = node.box.limits
    node.loop.wait_for_checkpoint(False)
    node.ticks(1)

    assert unknown == [], "the box keeps what it has until it is known"
    assert lowered == {"cpu": 0.5, "memory": 2 * GIB, "memory.high": GIB}
    assert node.box.limits == {"cpu": 2.0, "memory": 2 * GIB}


class Foresees:
    """A predictor that says one level whatever it observes."""

    def __init__(self, level: float) -> None:
        self.level, self.note, self.learning = level, "", False

    def observe(self, *_):
        return self.level


@pytest.mark.parametrize("known", [True, False], ids=["a box that is known", "a box that is known later"])
def test_memory_that_was_promised_before_a_restart_stays_promised_while_the_checkpoint_is_awaited(known):
    node, held = Node(), {"cpu": 0.5, "memory": 8 * GIB}
    node.box.online_bytes = 2 * GIB
    node.foresees("memory", 10.0 * GIB)
    node.box.limits = held if known else None
    node.loop.wait_for_checkpoint(True)
    node.ticks(2)
    node.box.limits = held
    node.ticks(1)
    awaited = node.box.limits["memory"]
    node.loop.giving_back = lambda: GivingBack(GIB, 5.0 * GIB, 6.0 * GIB)
    node.loop.wait_for_checkpoint(False)
    node.ticks(1)
    promised = node.box.limits["memory"]
    node.loop.giving_back = lambda: None
    node.ticks(1)

    assert (awaited, promised) == (8 * GIB, 6 * GIB)
    assert node.box.limits["memory"] < 6 * GIB, "nothing is to be given back any more"


def test_memory_that_online_uses_waits_for_no_checkpoint():
    node = Node()
    node.box.online_bytes = 10 * GIB
    node.foresees("memory", 12.0 * GIB)
    node.box.limits = {"cpu": 0.5, "memory": 8 * GIB}
    node.loop.wait_for_checkpoint(True)
    node.ticks(2)
    limit_bytes = node.box.limits["memory"]
    assert limit_bytes is not UNLIMITED
    assert limit_bytes <= (16 * 0.9 - 10) * GIB


def memory_of(node):
    """In GiB: what the box has."""
    limit = node.box.limits["memory"]
    assert limit is not UNLIMITED
    return limit / GIB


def least_memory(node, ticks):
    """The least that the box has in as many looks."""
    found = []
    for _ in range(ticks):
        node.ticks()
        found.append(memory_of(node))
    return min(found)


CALIBRATED = replace(SETTINGS, predictor=PredictorSettings(kind="calibrated", horizon_s=12.0))


@pytest.mark.parametrize(
    "predictor",
    [
        pytest.param({"half_life_s": 600.0}, id="half-life"),
        pytest.param({"horizon_s": 30.0}, id="horizon"),
        pytest.param({"kind": "histogram", "half_life_s": 600.0}, id="kind"),
    ],
)
def test_memory_of_the_box_stays_while_a_predictor_with_other_settings_learns(predictor):
    node = Node(CALIBRATED)
    node.box.online_bytes = 2 * GIB
    node.ticks(3600)
    before = memory_of(node)
    node.loop.set_to(replace(CALIBRATED, predictor=replace(CALIBRATED.predictor, **predictor)))
    assert before > 11.0
    assert least_memory(node, 1800) > 0.95 * before


def test_memory_of_the_box_stays_after_an_absence_that_has_made_the_level_worthless():
    before, after = Node(CALIBRATED), Node(CALIBRATED)
    before.ticks(3600)
    after.box.limits, after.box.online_bytes = {"cpu": 0.5, "memory": 10 * GIB}, 2 * GIB
    after.clock.advance(3600.0 + 2 * 3600.0)
    after.loop.restore(before.loop.predictors(), 0.0)
    after.ticks(2)
    assert "predictor_starts_cold" in after.log.names()
    assert least_memory(after, 1800) >= 10.0


def test_memory_that_online_uses_is_its_own_at_once_while_a_predictor_learns():
    node = Node(CALIBRATED)
    node.box.limits, node.box.online_bytes = {"cpu": 0.5, "memory": 10 * GIB}, 2 * GIB
    node.ticks(10)
    node.box.online_bytes = 9 * GIB
    node.ticks()
    assert memory_of(node) <= 16 * 0.9 - 9


def test_memory_of_a_box_that_is_harm_is_not_kept_while_a_predictor_learns():
    node = Node(CALIBRATED)
    node.box.limits = {"cpu": 0.5, "memory": 10 * GIB}
    node.harm.seen = HarmSeen({"memory": 0.0})
    node.ticks(3)
    assert memory_of(node) == 1.0
