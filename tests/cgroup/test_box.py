"""The box: bounded before a pod enters, one order of events, never a wait for ever."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from criproxy.cgroup.box import Box, BoxSettings, BoxState, Held
from criproxy.cgroup.box.limits import SETTLED_S
from criproxy.cgroup.box.pods import ORPHAN_S, STARTING_MOST_S, STARTING_S
from criproxy.cgroup.driver import AbsentDriver, CgroupDriver, CgroupError, HeldLimit, PodLimits
from criproxy.cgroup.kernel_files import weight_of
from criproxy.cgroup.naming import parse_box, parse_kubelet_parent
from criproxy.cgroup.pressure import online_pressure
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.model import UNLIMITED, AdmissionError, Limits, Resources, Unlimited, Usage, UsageReading
from criproxy.model.cpulist import Cpus
from tests.fakes.clock import FakeClock
from tests.fakes.driver import FakeDriver
from tests.fakes.waiting import until

FLOOR = {"cpu": 0.1, "memory": 64 << 20}
DECIDED = {"cpu": 1.5, "memory": 512 << 20}
SETTINGS = BoxSettings(FLOOR)
QUARTER = BoxSettings(FLOOR, {"pids": 0.25})
LIFTED = {"cpu": UNLIMITED, "memory": UNLIMITED}
A, B = parse_kubelet_parent("/kubepods/poda"), parse_kubelet_parent("/kubepods/besteffort/podb")
ELSEWHERE = parse_kubelet_parent("/kubelet/kubepods/podc")
SLICE = parse_kubelet_parent("kubepods-besteffort-poda.slice")
T = TypeVar("T")


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Allowed:
    """The CPUs that kubelet leaves to the box."""

    def __init__(self) -> None:
        self.cpus: Cpus | Unlimited = UNLIMITED

    def __call__(self) -> Cpus | Unlimited:
        return self.cpus


@pytest.fixture
def allowed() -> Allowed:
    return Allowed()


def made(driver: FakeDriver, clock: FakeClock, settings: BoxSettings = SETTINGS, timeout_s: float = 60.0) -> Box:
    return Box(driver, settings, lambda: UNLIMITED, clock, timeout_s=timeout_s)


@pytest.fixture
def box(driver: FakeDriver, clock: FakeClock, allowed: Allowed) -> Iterator[Box]:
    box = Box(driver, SETTINGS, allowed, clock, timeout_s=60.0)
    yield box
    box.close()


def run(*steps: Callable[[], Awaitable[object]]) -> list[object]:
    async def in_order() -> list[object]:
        return [await step() for step in steps]

    return asyncio.run(in_order())


# --- CPUs --------------------------------------------------------------------------------------------------------


def test_box_is_kept_to_its_cpus_before_its_first_pod_enters(box: Box, driver: FakeDriver, allowed: Allowed) -> None:
    allowed.cpus = frozenset({0, 2})

    run(lambda: box.pods.admit(A, 0))

    in_order = [name for name, *_ in driver.log]
    assert "confine" in in_order[: in_order.index("ensure_pod")]
    assert (driver.cpus["/offline"], box.state().cpus) == ({0, 2}, "0,2")


def test_slice_is_kept_to_its_cpus_after_its_pod_has_entered_too(
    box: Box, driver: FakeDriver, allowed: Allowed
) -> None:
    allowed.cpus = frozenset({0, 2})

    run(lambda: box.pods.admit(SLICE, 0))

    in_order = [name for name, *_ in driver.log]
    pod = in_order.index("ensure_pod")
    assert "confine" in in_order[:pod]
    assert in_order[pod + 1] == "confine", "on v1, systemd may have taken the box's cpuset away meanwhile"


def test_box_follows_its_cpus_when_told_and_with_each_decision(box: Box, driver: FakeDriver, allowed: Allowed) -> None:
    run(lambda: box.pods.admit(A, 0))
    free = dict(driver.cpus), box.state().cpus
    held = []
    for cpus, step in (({0}, box.confine), ({0, 1}, lambda: box.apply(DECIDED))):
        allowed.cpus = frozenset(cpus)
        run(step)
        held.append(driver.cpus["/offline"])
    allowed.cpus = UNLIMITED
    run(box.confine)

    assert free == ({}, "")
    assert held == [{0}, {0, 1}]
    assert (driver.cpus["/offline"], box.state().cpus) == (UNLIMITED, "")


def test_confine_without_a_box_makes_none(box: Box, driver: FakeDriver, allowed: Allowed) -> None:
    allowed.cpus = frozenset({0})

    assert run(box.confine) == [()]
    assert driver.log == []


def test_box_that_does_not_keep_to_its_cpus_lets_no_pod_in_and_has_its_limits_all_the_same(
    box: Box, driver: FakeDriver, allowed: Allowed
) -> None:
    allowed.cpus = frozenset({0})
    driver.fail_on = {"confine"}

    with pytest.raises(AdmissionError, match="cannot confine: EIO"):
        run(lambda: box.apply(DECIDED), lambda: box.pods.admit(A, 0))

    assert (driver.boxes["/offline"], box.state().limits) == (DECIDED, DECIDED)
    assert "poda" not in driver.pods("/offline")
    assert not box.state().welcome


def test_box_of_running_pods_is_taken_over_with_its_cpus(box: Box, driver: FakeDriver, allowed: Allowed) -> None:
    allowed.cpus = frozenset({1})
    driver.ensure("/offline")
    driver.log.clear()

    run(lambda: box.adopt(parse_box("/offline")))

    assert driver.cpus["/offline"] == {1}


# --- admission ---------------------------------------------------------------------------------------------------


def test_first_pod_finds_the_floor_in_force_before_it_enters(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 4096))

    assert [call[0] for call in driver.log[:4]] == ["ensure", "write_limit", "write", "ensure_pod"]
    assert driver.boxes["/offline"] == FLOOR


def test_pod_finds_the_last_decision_in_force(box: Box, driver: FakeDriver) -> None:
    early, *_ = run(lambda: box.apply(DECIDED), lambda: box.pods.admit(A, 0))

    assert early == ()
    assert driver.boxes["/offline"] == DECIDED


@pytest.mark.parametrize(
    ("change", "settles"),
    [
        pytest.param(lambda driver, box, allowed, clock: None, False, id="nothing"),
        pytest.param(lambda driver, box, allowed, clock: clock.advance(0.9), False, id="within-the-second"),
        pytest.param(lambda driver, box, allowed, clock: clock.advance(1.1), True, id="later"),
        pytest.param(
            lambda driver, box, allowed, clock: driver.boxes.update({"/offline": {**FLOOR, "cpu": UNLIMITED}}),
            True,
            id="somebody-lifted-the-CPU-limit",
        ),
        pytest.param(
            lambda driver, box, allowed, clock: driver.boxes.update({"/offline": {**FLOOR, "memory": 1 << 40}}),
            True,
            id="somebody-raised-the-memory-limit",
        ),
        pytest.param(
            lambda driver, box, allowed, clock: driver.limits.update({("/offline", "pids"): UNLIMITED}),
            True,
            id="somebody-lifted-the-limit-on-processes",
        ),
        pytest.param(lambda driver, box, allowed, clock: driver.boxes.clear(), True, id="the-box-has-gone"),
        pytest.param(lambda driver, box, allowed, clock: box.configure(QUARTER), True, id="new-settings"),
        pytest.param(lambda driver, box, allowed, clock: setattr(allowed, "cpus", frozenset({0})), True, id="CPUs"),
    ],
)
def test_pod_that_follows_another_at_once_has_the_box_settled_anew_only_if_it_is_not_as_it_was_left(
    box: Box, driver: FakeDriver, allowed: Allowed, clock: FakeClock, *, change: Callable[..., None], settles: bool
) -> None:
    run(lambda: box.pods.admit(A, 0))
    change(driver, box, allowed, clock)
    before = len(driver.log)

    run(lambda: box.pods.admit(B, 0))

    calls = [name for name, *_ in driver.log[before:]]
    assert ("write" in calls) is settles
    assert "ensure_pod" in calls
    assert driver.boxes["/offline"] == FLOOR
    assert driver.limits.get(("/offline", "pids")) is not UNLIMITED


def test_box_that_could_not_be_bounded_is_settled_for_the_next_pod_too(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0))
    driver.fail_on = {"write"}
    with pytest.raises(CgroupError):
        run(lambda: box.apply(FLOOR))
    driver.fail_on = set()
    before = len(driver.log)

    run(lambda: box.pods.admit(B, 0))

    assert "write" in [name for name, *_ in driver.log[before:]]


@pytest.mark.parametrize("step", ["ensure", "write", "ensure_pod"])
def test_pod_is_refused_when_the_kernel_refuses(box: Box, driver: FakeDriver, step: str) -> None:
    driver.fail_on = {step}

    with pytest.raises(AdmissionError, match=f"cannot {step}: EIO"):
        run(lambda: box.pods.admit(A, 0))

    assert "poda" not in driver.pods("/offline")


def test_box_that_could_not_be_bounded_welcomes_again_after_a_success(box: Box, driver: FakeDriver) -> None:
    driver.fail_on = {"write"}
    with pytest.raises(AdmissionError):
        run(lambda: box.pods.admit(A, 0))
    closed = box.state()
    driver.fail_on = set()

    run(lambda: box.apply(DECIDED))

    assert (closed.welcome, closed.reason) == (False, "cannot write: EIO")
    assert (box.state().welcome, box.state().reason) == (True, "")


def test_pod_whose_anchor_cannot_be_had_is_refused(box: Box, driver: FakeDriver) -> None:
    driver.fail_on = {"keep_anchors"}

    with pytest.raises(AdmissionError, match="cannot keep_anchors"):
        run(lambda: box.pods.admit(SLICE, 0))


def test_sweep_names_pods_in_the_shape_of_the_box(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(SLICE, 0))
    box.pods.forget("poda")

    (swept,) = run(lambda: box.pods.sweep(()))

    assert (swept, driver.log[-1]) == (("poda",), ("remove_pod", "offline-poda.slice"))


def test_pod_of_another_prefix_is_refused_while_the_box_is_in_use(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0))

    with pytest.raises(AdmissionError, match=r"/kubelet/offline.*/offline still has 1 pods"):
        run(lambda: box.pods.admit(ELSEWHERE, 0))

    assert box.state().path == "/offline"
    assert "/kubelet/offline" not in driver.boxes


def test_box_moves_with_kubelets_prefix_when_it_is_empty(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.adopt(A.box), lambda: box.pods.admit(ELSEWHERE, 0))

    assert box.state().path == "/kubelet/offline"
    assert driver.boxes["/kubelet/offline"] == FLOOR


def test_update_pod_changes_the_pods_own_limit(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 4096), lambda: box.pods.update_pod(A, Resources(memory_limit_bytes=8192)))

    assert driver.pods_in["/offline"]["poda"].memory_bytes == 8192


# --- processes and threads, and what kubelet sets on its own cgroup of a pod ------------------------------------


@pytest.fixture
def kubelets(driver: FakeDriver) -> PodLimits:
    limits = PodLimits(memory_bytes=4096, cpu_weight=100, pids=64, hugetlb={"hugetlb.2MB.max": "0"})
    driver.kubelets["/kubepods/besteffort/podb"] = limits
    return limits


def test_pids_are_bounded_before_a_pod_enters_and_put_back_each_tick(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, QUARTER)
    run(lambda: box.pods.admit(A, 0))
    first = box.state().in_use["pids"]
    driver.limits["/offline", "pids"] = 1000

    (changes,) = run(lambda: box.apply(FLOOR))
    box.close()

    assert first == box.state().in_use["pids"] == HeldLimit(250, 7)
    assert [change.file for change in changes] == ["pids.max"]  # type: ignore[attr-defined]


def test_pids_stay_bounded_when_the_limits_are_lifted(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, QUARTER)

    run(lambda: box.pods.admit(A, 0), box.release)
    box.close()

    assert (driver.boxes["/offline"], box.state().in_use["pids"]) == (LIFTED, HeldLimit(250, 7))


def test_pids_of_an_adopted_box_are_bounded(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, QUARTER)

    run(lambda: box.adopt(A.box))
    box.close()

    assert driver.limits["/offline", "pids"] == 250


@pytest.mark.parametrize("fails", ["confine", "write_limit"])
def test_limits_hold_and_memory_sinks_though_cpus_or_pids_can_not_be_had(
    box: Box, driver: FakeDriver, allowed: Allowed, fails: str
) -> None:
    async def go() -> None:
        await box.pods.admit(A, 0)
        await box.apply({"cpu": 1.0, "memory": 4000})
        allowed.cpus = frozenset({0})
        driver.fail_on = {fails}
        driver.log.clear()
        with pytest.raises(CgroupError, match=f"cannot {fails}"):
            await box.apply({"cpu": 0.5, "memory": 1000})

    asyncio.run(go())
    assert "write" in [call[0] for call in driver.log]
    assert driver.boxes["/offline"]["cpu"] == 0.5


def test_pids_stay_as_they_are_while_the_config_is_not_known(driver: FakeDriver, clock: FakeClock) -> None:
    driver.boxes["/offline"], driver.limits["/offline", "pids"] = FLOOR, 50
    box = made(driver, clock, BoxSettings(FLOOR, {"pids": 0.33}, only_lower=True))
    run(lambda: box.adopt(A.box), lambda: box.apply(FLOOR))
    box.close()
    assert driver.limits["/offline", "pids"] == 50


def test_limit_that_was_decided_takes_the_place_of_the_share(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, QUARTER)

    run(lambda: box.pods.admit(A, 0), lambda: box.apply({**DECIDED, "pids": 100}))
    decided = driver.limits["/offline", "pids"]
    held = box.state().limits
    run(lambda: box.apply(DECIDED))
    box.close()

    assert (decided, driver.limits["/offline", "pids"]) == (100, 250)
    assert held == {**DECIDED, "pids": 100}
    assert box.state().limits == DECIDED


def test_usage_without_a_box_is_read_by_a_thread_where_that_takes_long(
    box: Box, driver: FakeDriver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of CPUs make /proc/stat long; kubelet's calls are not to wait for it each second."""
    read, took_s = driver.node_usage, iter((0.0005, 0.002, 0.002, 0.0005, 0.0005))

    def slowly() -> Usage:
        clock.advance(next(took_s))
        return read()

    monkeypatch.setattr(driver, "node_usage", slowly)
    threads = []
    for _ in range(5):
        driver.threads.clear()
        run(box.usage)
        threads.append(driver.threads["node_usage"] == {"cgroup-reader"})
    assert threads == [False, False, True, True, False]


def test_what_is_lifted_is_all_that_is_decided_about(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, BoxSettings({**FLOOR, "pids": 100}, {"pids": 0.25}))

    run(lambda: box.pods.admit(A, 0))
    floor = driver.limits["/offline", "pids"]
    run(box.release)
    box.close()

    assert (floor, driver.limits["/offline", "pids"]) == (100, UNLIMITED)
    assert box.state().limits == {**LIFTED, "pids": UNLIMITED}


def test_settings_hold_from_the_next_call_on(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock)
    box.configure(BoxSettings(DECIDED, {"pids": 0.5}))

    run(lambda: box.pods.admit(A, 0))
    box.close()

    assert (driver.boxes["/offline"], driver.limits["/offline", "pids"]) == (DECIDED, 500)


def test_pods_that_another_process_has_admitted_are_starting(box: Box) -> None:
    box.pods.expect(["poda", "podb"])
    assert box.pods.starting == 2


def test_box_whose_pids_can_not_be_bounded_lets_nobody_in(box: Box, driver: FakeDriver) -> None:
    driver.fail_on = {"write_limit"}

    with pytest.raises(AdmissionError, match="cannot write_limit"):
        run(lambda: box.pods.admit(A, 0))

    assert driver.boxes["/offline"] == FLOOR
    assert not box.state().welcome


def test_pod_has_what_kubelet_set_on_its_own_cgroup(box: Box, driver: FakeDriver, kubelets: PodLimits) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))

    assert driver.pods_in["/offline"] == {"poda": PodLimits(), "podb": kubelets}


@pytest.mark.parametrize(
    ("kubelet_bytes", "asked_bytes", "expected"),
    [
        pytest.param(4096, 8192, 4096, id="kubelets-wins"),
        pytest.param(None, 8192, 8192, id="asked-for-where-kubelet-set-none"),
        pytest.param(None, 0, None, id="none"),
    ],
)
def test_memory_limit_of_a_pod_is_kubelets_else_the_one_it_asks_for(
    box: Box, driver: FakeDriver, kubelet_bytes: int | None, asked_bytes: int, expected: int | None
) -> None:
    driver.kubelets["/kubepods/besteffort/podb"] = PodLimits(memory_bytes=kubelet_bytes)

    run(lambda: box.pods.admit(B, asked_bytes))

    assert driver.pods_in["/offline"]["podb"] == PodLimits(memory_bytes=expected)


def test_update_keeps_the_pids_and_takes_the_new_weight(box: Box, driver: FakeDriver, kubelets: PodLimits) -> None:
    run(lambda: box.pods.admit(B, 4096))
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=200)

    run(lambda: box.pods.update_pod(B, Resources(memory_limit_bytes=8192)))

    assert driver.pods_in["/offline"]["podb"] == replace(kubelets, cpu_weight=200, memory_bytes=8192)


def test_carry_follows_kubelet_without_a_call(box: Box, driver: FakeDriver, kubelets: PodLimits) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    now = replace(kubelets, pids=128, memory_bytes=2048)
    driver.kubelets["/kubepods/besteffort/podb"] = now
    driver.log.clear()

    carried = run(lambda: box.pods.carry((A, B)), lambda: box.pods.carry((A, B)))

    assert (carried, driver.log) == ([("podb",), ()], [("ensure_pod", "/offline/podb")])
    assert driver.pods_in["/offline"]["podb"] == now


def test_carry_takes_back_a_resize_that_kubelet_was_refused(box: Box, driver: FakeDriver, kubelets: PodLimits) -> None:
    before = replace(kubelets, memory_bytes=4096, cpu_cores=0.5)
    driver.kubelets["/kubepods/besteffort/podb"] = before
    resized = Resources(cpu_shares=102_400, cpu_quota_us=-1, cpu_period_us=100_000, memory_limit_bytes=8192)
    run(lambda: box.pods.admit(B, 0), lambda: box.pods.update_pod(B, resized))
    meanwhile = driver.pods_in["/offline"]["podb"]

    run(lambda: box.pods.carry((B,)))

    assert (meanwhile.memory_bytes, meanwhile.cpu_cores, driver.pods_in["/offline"]["podb"]) == (
        8192,
        UNLIMITED,
        before,
    )


def test_carry_leaves_a_memory_limit_alone_that_kubelet_does_not_know(
    box: Box, driver: FakeDriver, kubelets: PodLimits
) -> None:
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, memory_bytes=None)
    run(lambda: box.pods.admit(B, 4096))
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, pids=128, memory_bytes=None)

    assert run(lambda: box.pods.carry((B,))) == [("podb",)]
    driver.pods_in["/offline"]["podb"] = replace(driver.pods_in["/offline"]["podb"], memory_bytes=4096)
    assert run(lambda: box.pods.carry((B,))) == [()]


@pytest.mark.parametrize(
    ("version", "weight", "cores"), [pytest.param(1, 512, None, id="v1"), pytest.param(2, 20, 0.5, id="v2")]
)
def test_resize_takes_all_of_the_pods_values_from_the_request_as_kubelets_cgroup_may_still_have_the_old_ones(
    driver: FakeDriver, kubelets: PodLimits, version: int, weight: int, cores: float | None
) -> None:
    driver.version = version
    box = Box(driver, SETTINGS, lambda: UNLIMITED, FakeClock())
    old = replace(kubelets, cpu_weight=4000, cpu_cores=None if version == 1 else 4.0, memory_bytes=4096)
    driver.kubelets["/kubepods/besteffort/podb"] = old
    resized = Resources(cpu_shares=512, cpu_quota_us=25_000, cpu_period_us=50_000, memory_limit_bytes=8192)

    run(lambda: box.pods.admit(B, 0), lambda: box.pods.update_pod(B, resized))

    held = driver.pods_in["/offline"]["podb"]
    assert held == replace(old, cpu_weight=weight, cpu_cores=cores, memory_bytes=8192)


def test_carry_goes_on_when_one_pod_takes_no_limit(box: Box, driver: FakeDriver, kubelets: PodLimits) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    for path in ("/kubepods/poda", "/kubepods/besteffort/podb"):
        driver.kubelets[path] = replace(kubelets, pids=128)
    driver.stubborn = {"/offline/poda"}

    with pytest.raises(CgroupError, match="poda: EBUSY"):
        run(lambda: box.pods.carry((A, B)))

    assert driver.pods_in["/offline"]["podb"].pids == 128


def test_carry_without_news_or_without_kubelets_cgroup_writes_nothing(
    box: Box, driver: FakeDriver, kubelets: PodLimits
) -> None:
    (nowhere, *_) = run(lambda: box.pods.carry((A,)), lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    driver.log.clear()

    assert (nowhere, run(lambda: box.pods.carry((A, B))), driver.log) == ((), [()], [])


# --- limits ------------------------------------------------------------------------------------------------------


def test_apply_returns_what_was_written_and_counts_drift(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0))
    driver.drifted = True

    changes, again = run(lambda: box.apply(DECIDED), lambda: box.apply(DECIDED))

    assert [change.drift for change in changes] == [True]  # type: ignore[attr-defined]
    assert again == ()
    assert (box.state().drift, box.state().limits) == (1, DECIDED)


@pytest.fixture
def bounded(box: Box, driver: FakeDriver) -> Box:
    """To `DECIDED`, with a pod in it; what the driver does from now on is logged."""
    run(lambda: box.pods.admit(A, 0), lambda: box.apply(DECIDED))
    driver.log.clear()
    return box


def writes(driver: FakeDriver) -> list[tuple[str, ...]]:
    return [call for call in driver.log if call[0] == "write"]


def test_limits_that_a_reading_has_just_found_in_force_are_not_written_again(bounded: Box, driver: FakeDriver) -> None:
    *_, unread = run(bounded.usage, lambda: bounded.apply(DECIDED), lambda: bounded.apply(DECIDED))

    assert unread == ()
    assert len(writes(driver)) == 1, "by the second one, before which nothing was read"
    run(bounded.usage, lambda: bounded.apply({**DECIDED, "cpu": 0.5}))
    assert driver.boxes["/offline"]["cpu"] == 0.5


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda box, driver, clock: driver.boxes.update({"/offline": FLOOR}), id="somebody-writes"),
        pytest.param(lambda box, driver, clock: driver.boxes.pop("/offline"), id="box-is-gone"),
        pytest.param(lambda box, driver, clock: setattr(driver, "idle", False), id="somebody-takes-its-priority"),
        pytest.param(lambda box, driver, clock: box.configure(QUARTER), id="new-settings"),
        pytest.param(lambda box, driver, clock: clock.advance(SETTLED_S), id="all-files-are-due"),
    ],
)
def test_what_a_reading_has_not_found_in_force_is_written(
    bounded: Box, driver: FakeDriver, clock: FakeClock, happens: Callable[[Box, FakeDriver, FakeClock], object]
) -> None:
    happens(bounded, driver, clock)
    run(bounded.usage, lambda: bounded.apply(DECIDED))

    assert len(writes(driver)) == 1
    assert driver.boxes["/offline"] == DECIDED


def test_limit_that_the_guard_has_squeezed_since_the_reading_is_written(bounded: Box, driver: FakeDriver) -> None:
    run(bounded.usage, lambda: bounded.squeeze(0.7), lambda: bounded.apply(DECIDED))

    assert driver.boxes["/offline"] == DECIDED


def test_squeeze_lowers_the_cpu_limit_alone(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.apply(DECIDED), lambda: box.pods.admit(A, 0), lambda: box.squeeze(0.7))

    assert driver.boxes["/offline"] == {"cpu": 0.7, "memory": DECIDED["memory"]}
    assert box.state().limits == {"cpu": 0.7, "memory": DECIDED["memory"]}
    assert box.state().drift == 0


def test_squeeze_holds_for_the_next_pod_and_gives_way_to_the_next_decision(box: Box, driver: FakeDriver) -> None:
    run(
        lambda: box.apply(DECIDED), lambda: box.pods.admit(A, 0), lambda: box.squeeze(0.7), lambda: box.pods.admit(B, 0)
    )
    squeezed = driver.boxes["/offline"]

    run(lambda: box.apply(DECIDED))

    assert squeezed == {"cpu": 0.7, "memory": DECIDED["memory"]}
    assert driver.boxes["/offline"] == DECIDED


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="no-box"),
        pytest.param([lambda box: box.pods.admit(A, 0)], id="no-decision"),
        pytest.param(
            [lambda box: box.apply({"cpu": 0.5, "memory": 1 << 20}), lambda box: box.pods.admit(A, 0)],
            id="lower-already",
        ),
        pytest.param(
            [lambda box: box.apply(DECIDED), lambda box: box.pods.admit(A, 0), lambda box: box.release()], id="released"
        ),
    ],
)
def test_squeeze_never_raises_a_limit_nor_makes_one(
    box: Box, driver: FakeDriver, before: list[Callable[[Box], Awaitable[object]]]
) -> None:
    run(*(lambda step=step: step(box) for step in before))

    assert run(lambda: box.squeeze(0.7)) == [()]
    assert "squeeze" not in [name for name, *_ in driver.log]


def test_squeeze_of_an_unlimited_box_limits_it(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.apply(LIFTED), lambda: box.pods.admit(A, 0), lambda: box.squeeze(0.7))

    assert driver.boxes["/offline"] == {"cpu": 0.7, "memory": UNLIMITED}


def test_cpu_times_are_none_without_a_box_or_its_files(box: Box) -> None:
    before = box.cpu_times()
    run(lambda: box.pods.admit(A, 0))

    assert (before, box.cpu_times()) == (None, None)


@pytest.mark.parametrize(("exact", "node_s"), [(True, 9.0), (False, 5.0)], ids=["exact", "sampled"])
def test_cpu_times_of_a_node_that_is_sampled_are_those_of_kubepods_and_the_box(
    box: Box, driver: FakeDriver, tmp_path: Path, exact: bool, node_s: float
) -> None:
    driver.counters = str(tmp_path)
    for cgroup, seconds in {"": 9, "kubelet/kubepods": 3, "kubelet/offline": 2}.items():
        (tmp_path / cgroup).mkdir(parents=True, exist_ok=True)
        (tmp_path / cgroup / "cpu.stat").write_text(f"usage_usec {seconds}000000\n")
    driver.counts_the_node = exact
    run(lambda: box.pods.admit(ELSEWHERE, 0))

    assert box.cpu_times() == (node_s, 2.0)


def count_cpu(driver: FakeDriver, counters: Path) -> None:
    """The node and the box have used some."""
    driver.counters = str(counters)
    for cgroup in ("kubepods", "offline"):
        (counters / cgroup).mkdir()
        (counters / cgroup / "cpu.stat").write_text("usage_usec 1000000\n")


def test_cpu_times_are_of_a_box_that_may_have_pods(
    box: Box, driver: FakeDriver, clock: FakeClock, tmp_path: Path
) -> None:
    count_cpu(driver, tmp_path)
    told = []
    for step in (
        lambda: box.pods.admit(A, 0),
        lambda: box.pods.sweep(()),  # it is starting
        lambda: box.pods.sweep({"poda"}),
        lambda: box.pods.sweep(()),
        lambda: box.pods.update_pod(A, Resources()),
        lambda: box.pods.sweep(()),
        lambda: box.pods.admit(B, 0),
        lambda: box.pods.sweep({"podb"}),
        lambda: box.pods.sweep(()),
        lambda: box.adopt(parse_box("/offline")),
    ):
        run(step)
        told.append(box.cpu_times() is not None)
        for name in box.pods.admitted if len(told) in {2, 8} else ():
            box.pods.forget(name)

    assert told == [True, True, True, False, True, False, True, True, False, True]


def test_cpu_times_are_not_of_a_box_whose_pods_have_all_ended(box: Box, driver: FakeDriver, tmp_path: Path) -> None:
    count_cpu(driver, tmp_path)
    told = []
    for step in (
        lambda: box.pods.admit(A, 0),
        lambda: box.pods.sweep({"poda"}, {"poda"}),  # it is starting again
        lambda: box.pods.sweep({"poda"}, {"poda"}),
        lambda: box.pods.admit(B, 0),
        lambda: box.pods.sweep({"poda", "podb"}, {"poda"}),
        lambda: box.pods.sweep({"poda"}, {"poda"}),
    ):
        run(step)
        told.append(box.cpu_times() is not None)
        for name in box.pods.admitted if len(told) in {2, 5} else ():
            box.pods.forget(name)
    box.pods.started("poda")
    told.append(box.cpu_times() is not None)

    assert driver.pods_in["/offline"].keys() == {"poda"}
    assert told == [True, True, False, True, True, False, True]


def test_apply_that_fails_is_still_what_the_next_pod_gets(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0))
    driver.fail_on = {"write"}
    with pytest.raises(CgroupError):
        run(lambda: box.apply(DECIDED))
    driver.fail_on = set()

    run(lambda: box.pods.admit(B, 0))

    assert driver.boxes["/offline"] == DECIDED


def test_release_lifts_the_limits_and_the_next_pod_is_bounded_by_the_floor(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.apply(DECIDED), lambda: box.pods.admit(A, 0), box.release)
    lifted = driver.boxes["/offline"]

    run(lambda: box.pods.admit(B, 0))

    assert lifted == LIFTED
    assert driver.boxes["/offline"] == FLOOR


def test_each_tick_without_a_box_wakes_up_no_thread_and_what_it_decided_holds_for_the_first_pod(
    box: Box, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def woken(*_: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "run", woken)
        found: Any = run(box.usage, lambda: box.apply(DECIDED))
    (usages, _), changes = found
    assert (usages.box, changes) == (None, ())
    run(lambda: box.pods.admit(A, 0))
    assert driver.boxes["/offline"] == DECIDED


def test_release_without_a_box_writes_nothing(box: Box, driver: FakeDriver) -> None:
    run(box.release)

    assert driver.log == []


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param(DECIDED, DECIDED, id="bounded"),
        pytest.param({**DECIDED, "memory_high": 64 << 20}, {**DECIDED, "memory_high": 64 << 20}, id="squeezed"),
        pytest.param(LIFTED, FLOOR, id="released_before"),
        pytest.param({"cpu": 1.5, "memory": UNLIMITED}, {"cpu": 1.5, "memory": FLOOR["memory"]}, id="half"),
        pytest.param(None, FLOOR, id="gone"),
    ],
)
def test_adopted_box_keeps_the_limits_that_the_kernel_holds(
    box: Box, driver: FakeDriver, held: Limits | None, expected: Limits
) -> None:
    if held is not None:
        driver.boxes["/offline"], driver.pods_in["/offline"] = held, {"poda": PodLimits()}

    run(lambda: box.adopt(parse_box("/offline")))

    assert driver.boxes["/offline"] == expected
    assert box.pods.names == ({"poda"} if held is not None else set())


@pytest.mark.parametrize(
    ("held", "decided", "then"),
    [
        pytest.param({"cpu": 16.0, "memory": 64 << 30}, DECIDED, DECIDED, id="large-limits-of-the-night-are-lowered"),
        pytest.param(
            {"cpu": 0.5, "memory": 64 << 20}, DECIDED, {"cpu": 0.5, "memory": 64 << 20}, id="small-ones-are-not-raised"
        ),
        pytest.param(
            {"cpu": 0.5, "memory": 64 << 30}, DECIDED, {"cpu": 0.5, "memory": 512 << 20}, id="each-for-itself"
        ),
        pytest.param({"cpu": 0.5, "memory": 64 << 20}, LIFTED, {"cpu": 0.5, "memory": 64 << 20}, id="nor-lifted"),
        pytest.param(
            {**LIFTED, "memory": 64 << 30, "memory_high": 64 << 20},
            DECIDED,
            {**LIFTED, "memory": 512 << 20, "memory_high": 64 << 20},
            id="nor-given-back",
        ),
        pytest.param(LIFTED, DECIDED, LIFTED, id="what-was-lifted-stays-so"),
        pytest.param(
            {"cpu": UNLIMITED, "memory": 64 << 30},
            DECIDED,
            {"cpu": UNLIMITED, "memory": 512 << 20},
            id="also-one-of-them",
        ),
    ],
)
def test_limits_are_only_lowered_while_the_config_is_not_known(
    box: Box, driver: FakeDriver, held: Limits, decided: Limits, then: Limits
) -> None:
    driver.boxes["/offline"] = held
    box.configure(BoxSettings(FLOOR, only_lower=True))

    run(lambda: box.apply(decided), lambda: box.adopt(parse_box("/offline")))
    assert (driver.boxes["/offline"], box.state().limits) == (held, held)
    run(lambda: box.apply(FLOOR), lambda: box.apply(decided))
    assert (driver.boxes["/offline"], box.state().limits) == (then, then)

    box.configure(SETTINGS)
    run(lambda: box.apply(decided))
    assert driver.boxes["/offline"] == decided


def test_adopted_box_takes_the_decision_that_was_made_already(box: Box, driver: FakeDriver) -> None:
    driver.boxes["/offline"] = {"cpu": 3.0, "memory": 1 << 30}

    run(lambda: box.apply(DECIDED), lambda: box.adopt(parse_box("/offline")))

    assert driver.boxes["/offline"] == DECIDED


def test_usage_is_of_the_node_alone_until_there_is_a_box(box: Box) -> None:
    found: Any = run(box.usage, lambda: box.pods.admit(A, 0), box.usage)
    (before, _), _, (after, _) = found

    assert (before.node, before.box) == (Usage(10.0, 1000), None)
    assert after.box == Usage(1.0, 100)


def test_node_s_counter_that_could_not_be_read_at_one_moment_is_read_again(
    box: Box, driver: FakeDriver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, late_s = driver.node_usage, [0.2, 0.2, 0.0]

    def node_usage() -> Usage:
        clock.advance(late_s.pop(0))
        return read()

    monkeypatch.setattr(driver, "node_usage", node_usage)
    found: Any = run(box.usage)
    ((usage, _),) = found

    assert (late_s, usage.read_s) == ([], clock.monotonic_s())


def test_what_is_read_beside_usage_is_read_in_the_same_wake_up_and_fails_alone(box: Box) -> None:
    def fails(driver: CgroupDriver, path: str) -> str:
        raise OSError(path)

    found: Any = run(lambda: box.pods.admit(A, 0), lambda: box.usage(lambda _, path: path), lambda: box.usage(fails))
    _, (_, path), (usage, failure) = found

    assert path == "/offline"
    assert isinstance(usage, UsageReading)
    assert isinstance(failure, OSError)


# --- sweep -------------------------------------------------------------------------------------------------------


def test_sweep_removes_empty_pods_that_the_runtime_does_not_know(
    box: Box, driver: FakeDriver, clock: FakeClock
) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    clock.now += STARTING_S + 1

    (removed,) = run(lambda: box.pods.sweep({"poda"}))

    assert removed == ("podb",)
    assert set(driver.pods("/offline")) == box.pods.names == {"poda"}


def test_sweep_keeps_a_pod_that_is_being_admitted(box: Box, driver: FakeDriver, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0))
    clock.now += STARTING_S - 1

    (removed,) = run(lambda: box.pods.sweep(set()))

    assert removed == ()
    assert driver.pods("/offline") == ("poda",)


def test_sweep_keeps_a_pod_while_kubelet_waits_for_its_sandbox(box: Box, clock: FakeClock) -> None:
    """Four minutes, by default."""
    run(lambda: box.pods.admit(A, 64 << 20))
    clock.now += 239
    waited = run(lambda: box.pods.sweep(set()))
    box.pods.forget("poda")

    assert waited == [()]
    assert run(lambda: box.pods.sweep(set())) == [("poda",)]


def test_pods_that_start_are_those_let_in_without_a_container_that_runs(box: Box, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    both = box.pods.starting
    box.pods.forget("poda")
    box.pods.started("poda")
    box.pods.started("poda")
    one = box.pods.starting
    clock.now += STARTING_MOST_S + 1

    assert (both, one, box.pods.starting) == (2, 1, 0)


def test_adopt_lifted_never_bounds_the_box(box: Box, driver: FakeDriver) -> None:
    driver.boxes["/offline"], driver.pods_in["/offline"] = DECIDED, {"poda": PodLimits()}

    run(lambda: box.adopt(parse_box("/offline"), lifted=True))

    assert driver.boxes["/offline"] == LIFTED
    assert box.pods.names == {"poda"}
    assert [entry for entry in driver.log if entry[0] == "write"] == [("write", "/offline")]


def test_sweep_does_not_wait_for_a_pod_that_is_forgotten(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0))
    box.pods.forget("poda")

    assert run(lambda: box.pods.sweep(set())) == [("poda",)]


def test_sweep_keeps_a_pod_that_another_process_has_admitted(box: Box, driver: FakeDriver, clock: FakeClock) -> None:
    driver.boxes["/offline"], driver.pods_in["/offline"] = DECIDED, {"poda": PodLimits(), "podb": PodLimits()}
    box.pods.expect(["poda"])
    assert box.pods.admitted == ("poda",)

    assert run(lambda: box.adopt(parse_box("/offline")), lambda: box.pods.sweep(set()))[1] == ("podb",)

    clock.now += STARTING_S + 1
    assert run(lambda: box.pods.sweep(set())) == [("poda",)]


def test_settle_waits_for_a_write_whose_caller_has_gone(box: Box, driver: FakeDriver) -> None:
    async def play() -> None:
        asyncio.create_task(box.pods.admit(A, 0)).cancel()
        cut = asyncio.create_task(box.pods.admit(B, 0))
        await asyncio.sleep(0)
        cut.cancel()
        await box.settle()
        assert box.pods.admitted == ("podb",)
        assert driver.pods("/offline") == ("podb",)

    asyncio.run(play())


@pytest.mark.parametrize("apart", ["cgroup-killer", "cgroup-reaper", "cgroup-disks"])
def test_settle_waits_for_what_other_threads_do_whose_caller_has_gone(box: Box, driver: FakeDriver, apart: str) -> None:
    """A kill, or a bound on a disk."""
    gate, did = threading.Event(), list[str]()

    def job(*_: object) -> None:
        gate.wait(5.0)
        did.append("done")

    async def play() -> None:
        await box.pods.admit(A, 0)
        asked = box.writes("bound disks", job, apart=apart)
        cut = asyncio.create_task(asked)
        await asyncio.sleep(0.01)
        cut.cancel()
        settled = asyncio.create_task(box.settle())
        await asyncio.sleep(0.01)
        assert not settled.done()
        gate.set()
        await settled
        assert did == ["done"]

    asyncio.run(play())


def test_limit_that_is_written_while_the_box_settles_has_no_memory_sink_afterwards(
    box: Box, driver: FakeDriver
) -> None:
    driver.in_use = 500 << 20

    async def play() -> None:
        await box.pods.admit(A, 0)
        await box.apply(DECIDED)
        driver.gate.clear()
        applied = asyncio.create_task(box.apply(LOW))
        await asyncio.sleep(0.01)
        settled = asyncio.create_task(box.settle())
        await asyncio.sleep(0.01)
        driver.gate.set()
        await settled
        await asyncio.gather(applied, return_exceptions=True)
        await asyncio.sleep(0.02)
        assert not driver.reclaiming.is_set()

    asyncio.run(play())


def test_sweep_keeps_a_pod_that_was_admitted_again(box: Box, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0))
    clock.now += STARTING_S + 1
    run(lambda: box.pods.admit(A, 0))

    assert run(lambda: box.pods.sweep(set())) == [()]


def test_sweep_keeps_a_pod_with_processes(box: Box, driver: FakeDriver, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0))
    driver.busy = {"poda"}
    clock.now += STARTING_S + 1

    assert run(lambda: box.pods.sweep(set())) == [()]
    assert box.pods.names == {"poda"}


def test_processes_of_a_pod_that_is_gone_are_killed_after_a_while_and_its_place_goes(
    box: Box, driver: FakeDriver, clock: FakeClock
) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    box.pods.forget("poda")
    box.pods.forget("podb")
    driver.busy = {"poda", "podb"}

    assert run(lambda: box.pods.reap({"b"})) == [NOTHING_KILLED]
    clock.now += ORPHAN_S - 1
    assert run(lambda: box.pods.reap({"b"}), lambda: box.pods.sweep({"podb"})) == [NOTHING_KILLED, ()]
    clock.now += 1
    assert run(lambda: box.pods.reap({"b"}), lambda: box.pods.sweep({"podb"})) == [(("poda",), None), ("poda",)]
    assert [step for step in driver.log if step[0] == "kill_pod"] == [("kill_pod", "/offline/poda")]


def test_pod_that_came_back_is_not_killed_for_having_been_gone(box: Box, driver: FakeDriver, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0))
    box.pods.forget("poda")
    driver.busy = {"poda"}
    for uids in (set(), {"a"}, set()):
        assert run(partial(box.pods.reap, uids)) == [NOTHING_KILLED]
        clock.now += ORPHAN_S - 1


def test_pod_that_is_starting_is_not_killed(box: Box, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.reap(set()))
    clock.now += ORPHAN_S
    assert run(lambda: box.pods.reap(set())) == [NOTHING_KILLED]


def test_limits_are_written_while_processes_of_pods_that_are_gone_are_killed(
    box: Box, driver: FakeDriver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And pods are evicted. A pod that has come back meanwhile is not killed."""
    killing, gate = threading.Event(), threading.Event()
    kill = driver.kill_pod

    def kill_slowly(pod: str) -> None:
        killing.set()
        gate.wait(5.0)
        kill(pod)

    evicted = list[str]()
    monkeypatch.setattr(driver, "kill_pod", kill_slowly)

    async def scenario() -> object:
        for place in (A, B):
            await box.pods.admit(place, 0)
            box.pods.forget(place.name)
        await box.pods.reap(set())
        clock.now += ORPHAN_S
        reaping = asyncio.create_task(box.pods.reap(set()))
        await until(killing.is_set)
        async with asyncio.timeout(2.0):
            await box.pods.admit(B, 0)
            await box.writes("kill a pod", lambda *_: evicted.append("podc"), apart="cgroup-killer")
        box.pods.forget("podb")
        assert not reaping.done()
        gate.set()
        return await reaping

    assert asyncio.run(scenario()) == (("poda",), None)
    assert evicted == ["podc"]
    assert [step for step in driver.log if step[0] == "kill_pod"] == [("kill_pod", "/offline/poda")]


NOTHING_KILLED = ((), None)


def test_orphan_that_can_not_be_killed_keeps_no_other_from_being_killed(
    box: Box, driver: FakeDriver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = list[str]()

    def kill(pod: str) -> None:
        if pod == "/offline/poda":
            raise CgroupError("a fork bomb")
        killed.append(pod)

    monkeypatch.setattr(driver, "kill_pod", kill)
    for place in (A, B):
        run(partial(box.pods.admit, place, 0))
        box.pods.forget(place.name)
    run(lambda: box.pods.reap(set()))
    clock.now += ORPHAN_S

    names, failure = asyncio.run(box.pods.reap(set()))
    assert (names, str(failure), killed) == (("podb",), "a fork bomb", ["/offline/podb"])


def test_reaping_without_a_box_kills_nothing(box: Box) -> None:
    assert run(lambda: box.pods.reap(set())) == [NOTHING_KILLED]


def test_sweep_without_a_box_removes_nothing(box: Box) -> None:
    assert run(lambda: box.pods.sweep(set())) == [()]


# --- jobs of features --------------------------------------------------------------------------------------------


def test_features_jobs_get_driver_and_path_and_run_on_the_thread_that_is_right_for_them(
    box: Box, driver: FakeDriver
) -> None:
    def job(with_driver: object, path: str) -> tuple[object, str, str]:
        return with_driver, path, threading.current_thread().name

    steps = (
        lambda: box.reads("read", job),
        lambda: box.writes("write", job),
        lambda: box.writes("write slowly", job, apart="cgroup-disks"),
    )

    assert run(*steps) == [None] * 3
    run(lambda: box.pods.admit(A, 0))
    threads = ("cgroup-reader", "cgroup-writer", "cgroup-disks")
    assert run(*steps) == [(driver, "/offline", thread) for thread in threads]


def test_features_job_that_writes_is_of_the_box_that_a_job_before_it_makes(box: Box) -> None:
    async def scenario() -> object:
        admission = asyncio.create_task(box.pods.admit(A, 0))
        await asyncio.sleep(0)
        path = await box.writes("write", lambda _, path: path)
        await admission
        return path

    assert asyncio.run(scenario()) == "/offline"


def test_features_slow_job_keeps_neither_limits_nor_readings_waiting_and_its_timeout_is_counted(
    driver: FakeDriver, clock: FakeClock
) -> None:
    box, gate = made(driver, clock, timeout_s=0.05), threading.Event()

    async def scenario() -> None:
        await box.pods.admit(A, 0)
        with pytest.raises(StuckError, match="cannot bound disks: no answer"):
            await box.writes("bound disks", lambda *_: gate.wait(), apart="cgroup-disks")
        await box.apply(DECIDED)
        await box.usage()

    asyncio.run(scenario())
    gate.set()
    box.close()
    assert (box.state().welcome, box.state().timeouts) == (True, 1)


# --- calls that block --------------------------------------------------------------------------------------------


def test_blocked_write_times_out_then_fails_fast_then_recovers(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, timeout_s=2.0)
    driver.gate.clear()

    async def scenario() -> None:
        with pytest.raises(AdmissionError, match=r"admit /offline/poda: no answer from the kernel within 2 s"):
            await box.pods.admit(A, 0)
        with pytest.raises(StuckError, match="still blocked in the kernel"):
            await box.apply(DECIDED)
        stuck = box.state()
        usages, _ = await box.usage()
        driver.gate.set()
        await until(lambda: not box.state().reason)

        assert (stuck.welcome, stuck.reason, stuck.timeouts) == (False, "a cgroup write is blocked in the kernel", 1)
        assert isinstance(usages, UsageReading)
        assert usages.box is not None

    asyncio.run(scenario())
    assert driver.pods("/offline") == ("poda",)
    box.close()


def test_blocked_write_does_not_block_the_event_loop(box: Box, driver: FakeDriver) -> None:
    driver.gate.clear()

    async def scenario() -> bool:
        admission = asyncio.create_task(box.pods.admit(A, 0))
        await until(driver.writing.is_set)
        pending = not admission.done()
        driver.gate.set()
        await admission
        return pending

    assert asyncio.run(scenario())


def test_limits_wait_for_the_pod_that_is_under_way_and_for_none_that_waits_behind_it(
    box: Box, driver: FakeDriver
) -> None:
    pods = [parse_kubelet_parent(f"/kubepods/pod{number}") for number in range(20)]

    async def scenario() -> None:
        await box.apply(DECIDED)
        await box.pods.admit(A, 0)
        driver.gate.clear()
        driver.writing.clear()
        under_way = asyncio.create_task(box.apply({**DECIDED, "cpu": 1.2}))
        await until(driver.writing.is_set)
        admissions = asyncio.gather(*(box.pods.admit(pod, 0) for pod in pods))
        limits = asyncio.gather(box.squeeze(0.7), box.confine())
        await asyncio.sleep(0.01)
        driver.log.clear()
        driver.gate.set()
        await asyncio.gather(under_way, admissions, limits)

    asyncio.run(scenario())
    in_order = [name for name, *_ in driver.log]
    assert "squeeze" in in_order[: in_order.index("ensure_pod")]
    assert in_order.count("ensure_pod") == len(pods)
    assert driver.boxes["/offline"]["cpu"] == 0.7


def test_pods_that_start_one_after_another_are_no_write_that_hangs(
    driver: FakeDriver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, ensure_pod = made(driver, clock, timeout_s=0.1), driver.ensure_pod

    def slowly(path: str, limits: PodLimits) -> None:
        time.sleep(0.03)
        ensure_pod(path, limits)

    monkeypatch.setattr(driver, "ensure_pod", slowly)

    async def scenario() -> None:
        pods = [parse_kubelet_parent(f"/kubepods/pod{number}") for number in range(10)]
        await asyncio.gather(*(box.pods.admit(pod, 0) for pod in pods))

    asyncio.run(scenario())
    assert (box.state().welcome, box.state().timeouts) == (True, 0)
    box.close()


def test_pod_is_killed_while_a_write_is_blocked(box: Box, driver: FakeDriver) -> None:
    driver.gate.clear()

    async def scenario() -> None:
        admission = asyncio.create_task(box.pods.admit(A, 0))
        await until(driver.writing.is_set)
        await box.writes("kill a pod", lambda driver, _: driver.kill_pod("/offline/podb"), apart="cgroup-killer")
        assert not admission.done()
        driver.gate.set()
        await admission

    asyncio.run(scenario())
    assert ("kill_pod", "/offline/podb") in driver.log


def test_admission_whose_caller_vanishes_is_remembered(box: Box, driver: FakeDriver) -> None:
    driver.gate.clear()

    async def scenario() -> None:
        admission = asyncio.create_task(box.pods.admit(A, 0))
        await until(driver.writing.is_set)
        admission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await admission
        driver.gate.set()
        assert await box.pods.sweep(set()) == ()

    asyncio.run(scenario())
    assert box.pods.names == {"poda"}


def test_every_change_runs_on_one_thread(box: Box, driver: FakeDriver) -> None:
    async def scenario() -> None:
        await asyncio.gather(
            box.pods.admit(A, 0), box.apply(DECIDED), box.pods.admit(B, 0), box.pods.sweep(set()), box.release()
        )

    asyncio.run(scenario())

    assert set().union(*driver.threads.values()) == {"cgroup-writer"}


# --- memory that must be reclaimed -------------------------------------------------------------------------------

LOW = {"cpu": 0.5, "memory": 128 << 20}


def sinking(box: Box, driver: FakeDriver, steps: Callable[[], Awaitable[T]]) -> T:
    """What `steps` give while the kernel is busy reclaiming 500 MiB down to `LOW`."""
    driver.in_use = 500 << 20

    async def scenario() -> T:
        await box.pods.admit(A, 0)
        await box.apply(DECIDED)
        driver.reclaim_gate.clear()
        await box.apply(LOW)
        await until(driver.reclaiming.is_set)
        result = await steps()
        assert not driver.reclaim_gate.is_set()
        driver.reclaim_gate.set()
        await box.settle()
        return result

    return asyncio.run(scenario())


def test_cpu_limits_and_pods_never_wait_for_memory_that_is_reclaimed(box: Box, driver: FakeDriver) -> None:
    async def steps() -> list[Limits]:
        await box.squeeze(0.3)
        squeezed = driver.boxes["/offline"]
        await box.apply({**LOW, "cpu": 1.0})
        applied = driver.boxes["/offline"]
        await box.pods.admit(B, 4096)
        await box.pods.sweep(set())
        await box.usage()
        return [squeezed, applied]

    assert sinking(box, driver, steps) == [{"cpu": 0.3, "memory": 500 << 20}, {"cpu": 1.0, "memory": 500 << 20}]
    assert driver.pods_in["/offline"] == {"poda": PodLimits(), "podb": PodLimits(memory_bytes=4096)}
    assert driver.threads["reclaim"] == {"cgroup-reclaimer"}


def test_box_tells_what_is_wanted_in_force_and_used(box: Box, driver: FakeDriver) -> None:
    async def steps() -> BoxState:
        await box.usage()
        return box.state()

    state = sinking(box, driver, steps)

    assert (state.wanted, state.limits) == (LOW, {"cpu": 0.5, "memory": 500 << 20})
    assert state.memory == Held(used_bytes=500 << 20, wanted_bytes=128 << 20)
    assert state.welcome, "the bound in force is above the wanted one, but it is one"


SQUEEZED = {**DECIDED, "memory_high": 128 << 20}


def test_memory_that_was_squeezed_before_a_restart_is_reclaimed_at_once(box: Box, driver: FakeDriver) -> None:
    """Systemd has written its own memory.high meanwhile, which is the limit."""
    driver.in_use = 500 << 20
    driver.boxes["/offline"] = SQUEEZED

    async def reclaimed() -> None:
        await box.adopt(parse_box("/offline"))
        await until(driver.reclaiming.is_set)

    asyncio.run(reclaimed())

    assert ("reclaim", "/offline", str(128 << 20)) in driver.log


def test_squeezed_memory_is_reclaimed_below_its_limit_which_stays(box: Box, driver: FakeDriver) -> None:
    driver.in_use = 500 << 20

    async def scenario() -> None:
        await box.pods.admit(A, 0)
        await box.apply(SQUEEZED)
        await until(driver.reclaiming.is_set)
        await box.settle()
        await box.usage()
        for _ in range(3):
            await box.apply(SQUEEZED)

    asyncio.run(scenario())

    assert [call[-1] for call in driver.log if call[0] == "reclaim"] == [str(128 << 20)], "then it is there"
    assert driver.boxes["/offline"] == SQUEEZED
    assert box.state().memory == Held(used_bytes=128 << 20, wanted_bytes=DECIDED["memory"]), "its bound is the limit"


def test_squeezed_memory_is_not_reclaimed_by_a_limit_that_kills(driver: FakeDriver, clock: FakeClock) -> None:
    driver.version, driver.in_use = 1, 500 << 20
    box = made(driver, clock)

    async def scenario() -> None:
        await box.pods.admit(A, 0)
        await box.apply({**DECIDED, "memory": 900 << 20, "memory_high": 128 << 20})
        await box.settle()

    asyncio.run(scenario())
    box.close()

    assert not any(name == "reclaim" for name, *_ in driver.log)
    assert not box.spares_memory


def test_next_limit_follows_what_was_reclaimed(box: Box, driver: FakeDriver) -> None:
    async def nothing() -> None: ...

    sinking(box, driver, nothing)

    run(lambda: box.apply(LOW))

    assert box.state().limits == LOW


def test_one_reclaim_runs_at_a_time_and_to_what_is_wanted_by_then(box: Box, driver: FakeDriver) -> None:
    async def steps() -> None:
        for size in (100 << 20, 80 << 20):
            await box.apply({"cpu": 0.5, "memory": size})

    sinking(box, driver, steps)

    assert [size for name, *_, size in driver.log if name == "reclaim"] == [str(128 << 20)]


def test_release_lifts_the_limits_only_after_the_step_that_is_under_way(box: Box, driver: FakeDriver) -> None:
    async def steps() -> None:
        lifting = asyncio.create_task(box.release())
        await asyncio.sleep(0.01)
        assert driver.boxes["/offline"] == {"cpu": 0.5, "memory": 500 << 20}
        driver.reclaim_gate.set()
        await lifting
        driver.reclaim_gate.clear()

    sinking(box, driver, steps)

    assert driver.boxes["/offline"] == LIFTED


def test_reclaim_that_fails_is_told_by_the_next_apply_and_tried_again(box: Box, driver: FakeDriver) -> None:
    driver.in_use, driver.fail_on = 500 << 20, {"reclaim"}

    async def scenario() -> None:
        await box.pods.admit(A, 0)
        with pytest.raises(CgroupError, match="cannot reclaim: EIO"):
            await applied_often()
        driver.fail_on = set()
        with contextlib.suppress(CgroupError):  # of one that was under way
            await applied_often()
        await applied_often()

    async def applied_often() -> None:
        for _ in range(20):
            await box.apply(LOW)
            await asyncio.sleep(0.002)

    asyncio.run(scenario())
    assert box.state().limits == LOW


def test_reclaim_that_hangs_keeps_no_pod_out(driver: FakeDriver, clock: FakeClock) -> None:
    box = made(driver, clock, timeout_s=0.05)

    async def steps() -> BoxState:
        await until(lambda: box.state().timeouts > 0)
        await box.apply(LOW)
        await box.pods.admit(B, 0)
        return box.state()

    state = sinking(box, driver, steps)
    box.close()

    assert (state.welcome, state.timeouts) == (True, 1)


def test_resize_of_a_pod_reclaims_beside_what_writes(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 8192))
    driver.boxes["/offline/poda"] = FLOOR

    run(lambda: box.pods.update_pod(A, Resources(memory_limit_bytes=4096)))

    assert driver.log[-2:] == [("reclaim", "/offline/poda", "4096"), ("ensure_pod", "/offline/poda")]
    assert driver.pods_in["/offline"]["poda"].memory_bytes == 4096
    assert driver.threads["reclaim"] == {"cgroup-reclaimer"}


def test_box_of_a_machine_without_cgroups_lets_nobody_in_and_says_why(clock: FakeClock) -> None:
    box = Box(AbsentDriver("no cgroup mount"), SETTINGS, lambda: UNLIMITED, clock, timeout_s=60.0)

    run(lambda: box.apply(DECIDED))
    with pytest.raises(AdmissionError, match="no cgroup mount"):
        run(lambda: box.pods.admit(A, 0))
    found: Any = run(box.usage)
    ((usage, _),) = found
    assert "no cgroup mount" in str(usage)
    state, file = box.state(), online_pressure(AbsentDriver(""), "/offline")
    box.close()

    assert (state.welcome, state.reason, file) == (False, "no cgroup mount", None)


def test_box_that_is_taken_over_keeps_what_an_operator_has_set_while_hands_are_off(
    box: Box, driver: FakeDriver
) -> None:
    by_hand: Limits = {"cpu": 7.0, "memory": UNLIMITED}
    driver.boxes["/offline"], driver.pods_in["/offline"] = by_hand, {"poda": PodLimits()}
    box.configure(replace(SETTINGS, hands_off=True))

    run(lambda: box.adopt(parse_box("/offline")))
    assert (driver.boxes["/offline"], box.state().limits, box.pods.names) == (by_hand, by_hand, {"poda"})

    box.configure(SETTINGS)
    run(lambda: box.apply(DECIDED))
    assert driver.boxes["/offline"] == DECIDED


def test_pod_that_is_not_named_is_carried_nothing(box: Box, driver: FakeDriver, kubelets: PodLimits) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    for path in ("/kubepods/poda", "/kubepods/besteffort/podb"):
        driver.kubelets[path] = replace(kubelets, pids=128)
    assert run(lambda: box.pods.carry((B,))) == [(B.name,)]


@pytest.mark.parametrize(("version", "weight"), [pytest.param(1, 2048, id="v1"), pytest.param(2, 79, id="v2")])
def test_pod_of_the_lowest_weight_has_that_of_the_shares_that_it_asks_for_and_keeps_it(
    driver: FakeDriver, kubelets: PodLimits, version: int, weight: int
) -> None:
    driver.version = version
    box = Box(driver, SETTINGS, lambda: UNLIMITED, FakeClock())
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=2 if version == 1 else 1)

    run(lambda: box.pods.admit(B, 0, 2048))
    assert driver.pods_in["/offline"]["podb"].cpu_weight == weight
    assert run(lambda: box.pods.carry((A, B))) == [()]
    run(lambda: box.pods.update_pod(B, Resources(memory_limit_bytes=4096)))
    assert driver.pods_in["/offline"]["podb"].cpu_weight == weight

    after_restart = Box(driver, SETTINGS, lambda: UNLIMITED, FakeClock())
    after_restart.pods.know_asked({"podb": 2048})
    run(lambda: after_restart.adopt(B.box))
    assert run(lambda: after_restart.pods.carry((A, B))) == [()]
    after_restart.pods.know_asked({"podb": 1024})
    assert run(lambda: after_restart.pods.carry((A, B))) == [("podb",)]


@pytest.mark.parametrize("version", [1, 2])
def test_pod_that_waits_for_others_keeps_what_it_asks_for_while_those_that_run_are_listed(
    driver: FakeDriver, kubelets: PodLimits, version: int
) -> None:
    driver.version = version
    box, gate = Box(driver, SETTINGS, lambda: UNLIMITED, FakeClock()), threading.Event()
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=2 if version == 1 else 1)

    async def play() -> None:
        other = asyncio.ensure_future(box._threads.writer.run("let others in", gate.wait))
        await asyncio.sleep(0)
        admission = asyncio.ensure_future(box.pods.admit(B, 0, 2048))
        await asyncio.sleep(0)
        box.pods.know_asked({"poda": 512})
        gate.set()
        await asyncio.gather(other, admission)

    run(play)
    assert driver.pods_in["/offline"]["podb"].cpu_weight == weight_of(2048, version)


def test_pod_whose_claim_is_lowered_has_what_is_left_of_it_or_kubelets_weight(
    box: Box, driver: FakeDriver, kubelets: PodLimits
) -> None:
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=1)
    run(lambda: box.pods.admit(B, 0, 8192))
    for most, shares in ((2048, 2048), (4096, 2048), (0, 2)):
        box.pods.lower_shares({"podb": most, "podz": 7})
        run(lambda: box.pods.carry((B,)))
        assert driver.pods_in["/offline"]["podb"].cpu_weight == weight_of(shares, 2)


def test_pod_has_no_weight_above_that_of_all_cpus_of_the_node(
    box: Box, driver: FakeDriver, kubelets: PodLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a forged record says: no scheduler has placed a pod here that asks for more."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=1)
    run(lambda: box.pods.admit(B, 0, 262144))
    assert driver.pods_in["/offline"]["podb"].cpu_weight == weight_of(4096, 2)


def test_weight_of_kubelets_own_goes_before_what_a_pod_asks_for(
    box: Box, driver: FakeDriver, kubelets: PodLimits
) -> None:
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=500)
    run(lambda: box.pods.admit(B, 0, 2048))
    assert driver.pods_in["/offline"]["podb"].cpu_weight == 500


def test_shares_of_a_pod_that_is_starting_stay_when_those_that_run_are_listed(
    box: Box, driver: FakeDriver, kubelets: PodLimits
) -> None:
    driver.kubelets["/kubepods/besteffort/podb"] = replace(kubelets, cpu_weight=1)
    run(lambda: box.pods.admit(B, 0, 2048))
    box.pods.know_asked({})
    assert run(lambda: box.pods.carry((A, B))) == [()]
    box.pods.forget(B.name)
    box.pods.know_asked({})
    assert run(lambda: box.pods.carry((A, B))) == [("podb",)]


# --- page cache ----------------------------------------------------------------------------------------------------


def dropped(driver: FakeDriver) -> list[str]:
    return [call[1] for call in driver.log if call[0] == "drop_cache"]


def test_page_cache_of_ended_pods_is_dropped_to_the_end_and_once(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0), lambda: box.pods.admit(B, 0))
    driver.caches = {"poda": 3, "podb": 5}
    assert run(lambda: box.memory.drop_caches(())) == [0], "both are starting"
    box.pods.forget("poda")
    box.pods.forget("podb")

    assert run(lambda: box.memory.drop_caches({"podb"}), lambda: box.memory.drop_caches({"podb"})) == [3, 0]
    assert set(dropped(driver)) == {"/offline/poda"}
    assert len(dropped(driver)) == 4
    driver.caches["poda"] = 2
    assert run(lambda: box.memory.drop_caches({"poda", "podb"}), lambda: box.memory.drop_caches({"podb"})) == [0, 2], (
        "it ran again"
    )


def test_page_cache_that_takes_long_is_left_for_the_next_time(box: Box, driver: FakeDriver, clock: FakeClock) -> None:
    run(lambda: box.pods.admit(A, 0))
    box.pods.forget("poda")
    driver.caches = {"poda": 10}
    drop = driver.drop_cache

    def slow(pod: str) -> int | None:
        clock.now += 2.0
        return drop(pod)

    driver.drop_cache = slow  # type: ignore[method-assign]
    assert run(lambda: box.memory.drop_caches(()), lambda: box.memory.drop_caches(())) == [2, 2]


def test_page_cache_waits_while_a_limit_is_to_sink(box: Box, driver: FakeDriver) -> None:
    run(lambda: box.pods.admit(A, 0))
    box.pods.forget("poda")
    driver.caches, box.memory._sink_to = {"poda": 10}, 1
    assert run(lambda: box.memory.drop_caches(())) == [0]
    assert dropped(driver) == []


def test_without_a_box_there_is_no_page_cache_to_drop(box: Box) -> None:
    assert run(lambda: box.memory.drop_caches(())) == [0]


def test_box_of_before_is_found_by_its_pods(box: Box, driver: FakeDriver) -> None:
    assert run(box.pods.found) == [None]
    run(lambda: box.pods.admit(B, 0))
    assert run(box.pods.found) == [B.box]
