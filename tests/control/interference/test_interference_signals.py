"""Signals as arithmetic: tables of two readings each, and what holds for all of them."""

import cProfile
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.interference.signals import (
    CPU_SIGNALS,
    LEAST_WANTED_S,
    SignalValue,
    observed,
    pod_waits,
    values,
)
from criproxy.control.memory_pressure import EvictionHard
from criproxy.model.signals import (
    DiskCounters,
    DiskIo,
    MemoryRoom,
    MemoryStat,
    Missing,
    OwnLimits,
    PidsRoom,
    PodStall,
    RunQueue,
    SignalReading,
    Stall,
    ThreadTimes,
    Throttling,
)

GIB = 1 << 30
MIB = 1 << 20
NONE = Missing("of no matter here")
NOTHING = SignalReading.without(NONE)
HARD = EvictionHard()


def signal(name, before, now, hard=HARD):
    return next(value for value in values(before, now, hard) if value.name == name)


def judged(name, before, now):
    """Value, bound from above, and gap."""
    found = signal(name, before, now)
    return found.value, found.most, found.gap


# --- CPU pressure ----------------------------------------------------------------------------------------------------


def cpu(t_s, some_s, own=None, waits=None):
    pods = {path: PodStall(path, Stall(t_s, waited_s)) for path, waited_s in (waits or {}).items()}
    return replace(NOTHING, cpu=Stall(t_s, some_s), own_limits=own, pods=pods)


def own(t_s, of, online_s, complete=True):
    return OwnLimits(t_s, {path: Throttling(*times) for path, times in of.items()}, online_s, complete)


POD, CONTAINER, BESIDE = "/kubepods/burstable/poda", "/kubepods/burstable/poda/c", "/kubepods/burstable/poda/d"
OTHER = "/kubepods/burstable/podb"


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        pytest.param([({POD: (0.0, 0.0)}, 0.0), ({POD: (0.0, 2.0)}, 2.0)], 75.0, id="not-stopped"),
        # Four threads at a limit of one core of four: each runs for a quarter of the time, and waits for the rest.
        pytest.param([({POD: (0.0, 0.0)}, 0.0), ({POD: (6.0, 2.0)}, 2.0)], 0.0, id="one-core-of-four-and-nothing-else"),
        pytest.param([({POD: (0.0, 0.0)}, 0.0), ({POD: (1.0, 2.0)}, 10.0)], 65.0, id="a-small-part-of-online"),
        pytest.param([({POD: (5.0, 7.0)}, 7.0), ({POD: (6.0, 9.0)}, 17.0)], 65.0, id="only-what-has-grown"),
        pytest.param([({}, 0.0), ({POD: (1.0, 2.0)}, 10.0)], 65.0, id="a-pod-that-is-new"),
        pytest.param([({POD: (50.0, 90.0)}, 0.0), ({POD: (1.0, 2.0)}, 10.0)], 65.0, id="a-pod-made-anew"),
        pytest.param([({POD: (0.0, 9.0)}, 0.0), ({}, 10.0)], 75.0, id="an-unlimited-pod-gone"),
        pytest.param(
            [({POD: (0.0, 0.0), CONTAINER: (0.0, 0.0)}, 0.0), ({POD: (0.5, 2.0), CONTAINER: (0.5, 2.0)}, 10.0)],
            70.0,
            id="pod-and-its-container",
        ),
        pytest.param(
            [({}, 0.0), ({POD: (0.8, 2.0), CONTAINER: (0.5, 1.0), BESIDE: (0.5, 1.0), OTHER: (0.0, 3.0)}, 10.0)],
            65.0,
            id="pod-and-its-two-containers",
        ),
        pytest.param(
            [({}, 0.0), ({"/kubepods/burstable": (0.0, 9.0), POD: (0.5, 2.0), OTHER: (0.5, 3.0)}, 10.0)],
            65.0,
            id="two-pods",
        ),
    ],
)
def test_cpu_pressure_is_less_what_own_limits_explain(limits, value) -> None:
    before, now = (own(t_s, *limit) for t_s, limit in zip((10.0, 12.0), limits, strict=True))

    found = signal("cpu_pressure", cpu(10.0, 100.0, before), cpu(12.0, 101.5, now))

    assert found.value == pytest.approx(value)
    assert found.most == pytest.approx(75.0)
    assert not found.gap
    assert bool(found.note) == (value < 75.0)


QOS = "/kubepods/burstable"


@pytest.mark.parametrize(
    ("of", "waits", "value"),
    [
        pytest.param({POD: (7.0, 1.0)}, {POD: 1.9, OTHER: 0.8}, 40.0, id="the-other-waits-for-the-box"),
        pytest.param({POD: (7.0, 1.0)}, {POD: 1.9, OTHER: 0.02}, 1.5, id="the-other-does-not"),
        pytest.param({POD: (7.0, 1.0)}, {POD: 1.9}, 1.5, id="there-is-no-other"),
        pytest.param({POD: (7.0, 1.0)}, {OTHER: 1.9}, 89.0, id="no-more-than-all-of-online-waits"),
        pytest.param({POD: (7.0, 1.0), OTHER: (0.01, 1.0)}, {OTHER: 1.9}, 1.375, id="the-other-was-stopped-too"),
        pytest.param({POD: (7.0, 1.0), f"{OTHER}/c": (0.01, 1.0)}, {OTHER: 1.9}, 1.375, id="in-it-is-one-stopped"),
        pytest.param({QOS: (7.0, 1.0)}, {OTHER: 1.9}, 1.5, id="what-it-is-in-was-stopped"),
    ],
)
def test_pod_that_no_limit_stops_is_heard_beside_one_that_is_throttled(of, waits, value) -> None:
    before = cpu(10.0, 100.0, own(10.0, dict.fromkeys(of, (0.0, 0.0)), 0.0), dict.fromkeys(waits, 0.0))

    found = signal("cpu_pressure", before, cpu(12.0, 101.78, own(12.0, of, 8.0), waits))

    assert (found.value, found.most) == (pytest.approx(value), pytest.approx(89.0))
    assert ("was not stopped by any" in found.note) == (value > 2.0)


COMPLETE = own(12.0, {}, 1.0)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (None, None, "not read twice in a row"),
        (None, COMPLETE, "not read twice in a row"),
        (Missing("EIO"), COMPLETE, "not read twice in a row"),
        (COMPLETE, Missing("EIO"), "EIO"),
        (COMPLETE, own(12.0, {}, 1.0, complete=False), "more cgroups than are looked at"),
        (
            own(10.0, {POD: (1.0, 1.0)}, 1.0),
            COMPLETE,
            f"{POD}, which had been stopped by its own limit, has gone",
        ),
    ],
    ids=["not-asked-for", "asked-for-now", "failed-before", "failed-now", "too-many", "a-limited-pod-gone"],
)
def test_cpu_pressure_without_own_limits_has_only_a_bound_from_above(before, now, words) -> None:
    found = signal("cpu_pressure", cpu(10.0, 100.0, before), cpu(12.0, 101.5, now))

    assert (found.value, found.most) == (None, pytest.approx(75.0))
    assert words in found.gap


def test_cpu_pressure_of_nothing_needs_no_look_at_limits() -> None:
    assert judged("cpu_pressure", cpu(10.0, 100.0), cpu(12.0, 100.0)) == (0.0, 0.0, "")


@pytest.mark.parametrize("name", ["cpu_pressure", "memory_pressure", "io_pressure"])
@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (None, Stall(12.0, 1.0), "this is the first"),
        (NONE, Stall(12.0, 1.0), "this is the first"),
        (Stall(10.0, 5.0), Stall(12.0, 4.0), "gone back"),
        (Stall(12.0, 1.0), Stall(12.0, 1.0), "0.00 s ago"),
        (Stall(12.0, 1.0), Stall(11.0, 1.0), "-1.00 s ago"),
        (Stall(10.0, 1.0), Stall(12.0, 9.0), "no measurement"),
    ],
    ids=["first", "missing-before", "made-anew", "at-once", "time-goes-back", "jumped"],
)
def test_pressure_without_growth_has_no_value(name, before, now, words) -> None:
    field = name.removesuffix("_pressure")
    earlier = None if before is None else replace(NOTHING, **{field: before})

    found = signal(name, earlier, replace(NOTHING, **{field: now}))

    assert (found.value, found.most, found.absent) == (None, None, "")
    assert words in found.gap


def test_pressure_is_growth_by_time() -> None:
    before = replace(NOTHING, memory=Stall(10.0, 5.0), io=Stall(10.1, 7.0))
    now = replace(NOTHING, memory=Stall(14.0, 5.2), io=Stall(14.1, 11.1))

    assert signal("memory_pressure", before, now).value == pytest.approx(5.0)
    assert signal("io_pressure", before, now).value == 100.0  # a little more, as clock and counter are read apart


def test_what_is_missing_says_why() -> None:
    assert {value.absent for value in values(None, NOTHING, HARD)} == {NONE.why}
    assert all(value.value is None and value.most is None and not value.gap for value in values(None, NOTHING, HARD))


@pytest.mark.parametrize(
    ("value", "most", "shown", "ask"),
    [
        (None, None, None, False),
        (None, 5.0, 5.0, False),
        (3.0, 5.0, 3.0, False),
        (None, 8.0, None, True),
        (0.0, 75.0, 0.0, True),
        (75.0, 75.0, 75.0, True),
    ],
    ids=["unknown", "calm", "calm-known", "alarm", "explained", "proven"],
)
def test_own_limits_are_asked_for_on_an_alarm_only(value, most, shown, ask) -> None:
    assert observed(SignalValue("cpu_pressure", "%", value, most), 8.0) == (shown, ask)


def test_signals_for_cpu_are_among_all() -> None:
    assert set(CPU_SIGNALS) < {value.name for value in values(None, NOTHING, HARD)}


# --- run-queue delay -------------------------------------------------------------------------------------------------


def queue(t_s, threads, limits=None):
    sampled = RunQueue(t_s, {tid: ThreadTimes(*times) for tid, times in threads.items()})
    return replace(NOTHING, run_queue=sampled, own_limits=limits)


def stopped(t_s, **of):
    return OwnLimits(t_s, {f"/kubepods/pod{name}": Throttling(throttled_s) for name, throttled_s in of.items()})


IN_A, IN_B = "/kubepods/poda/c", "/kubepods/podb"


@pytest.mark.parametrize(
    ("before", "now", "value", "most"),
    [
        pytest.param({1: (IN_A, 5.0, 1.0)}, {1: (IN_A, 5.6, 1.2)}, 250.0, 250.0, id="one-thread"),
        pytest.param(
            {1: (IN_A, 0.0, 0.0), 2: (IN_B, 0.0, 0.0)},
            {1: (IN_A, 0.9, 0.0), 2: (IN_B, 0.0, 0.1)},
            100.0,
            100.0,
            id="two-threads",
        ),
        pytest.param({1: (IN_A, 5.0, 1.0)}, {1: (IN_A, 5.0, 1.0)}, 0.0, 0.0, id="asleep"),
        pytest.param(
            {1: (IN_A, 0.0, 0.0)}, {1: (IN_A, 0.0005, 0.0005)}, 0.5 / LEAST_WANTED_S, 0.5 / LEAST_WANTED_S, id="hardly"
        ),
        pytest.param(
            {1: (IN_A, 0.0, 0.0), 2: (IN_A, 9.0, 9.0), 3: (IN_A, 0.0, 0.0), 5: (IN_B, 0.0, 0.0)},
            {1: (IN_A, 0.9, 0.1), 2: (IN_A, 0.1, 0.1), 3: (IN_A, 80.0, 9.0), 4: (IN_A, 0.0, 5.0), 5: (IN_A, 0.0, 0.5)},
            100.0,
            100.0,
            id="new-and-other-threads-of-an-id",
        ),
    ],
)
def test_run_queue_delay_is_waiting_by_wanting(before, now, value, most) -> None:
    found = signal("run_queue_delay", queue(10.0, before, stopped(10.0)), queue(11.0, now, stopped(11.0)))

    assert (found.value, found.most, found.gap) == (pytest.approx(value), pytest.approx(most), "")


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        pytest.param((stopped(10.0, a=1.0), stopped(11.0, a=1.3)), 200.0, id="in-part"),
        pytest.param((stopped(10.0, a=1.0), stopped(11.0, a=9.0)), 0.0, id="wholly"),
        pytest.param((stopped(10.0, b=1.0), stopped(11.0, b=9.0)), 500.0, id="another-pod"),
        pytest.param((stopped(10.0), stopped(11.0, **{"a": 0.3, "a/c": 0.2})), 200.0, id="pod-and-container"),
        pytest.param((stopped(10.0), stopped(11.0, a=0.3)), 200.0, id="new"),
        pytest.param((None, stopped(11.0, a=0.3)), None, id="not-known-yet"),
        pytest.param((stopped(10.0, a=9.0), stopped(11.0)), None, id="gone"),
    ],
)
def test_run_queue_delay_is_less_what_limits_of_its_cgroups_explain(limits, value) -> None:
    before, now = limits

    found = signal(
        "run_queue_delay", queue(10.0, {1: (IN_A, 0.0, 0.0)}, before), queue(11.0, {1: (IN_A, 0.5, 0.5)}, now)
    )

    assert found.value == (value if value is None else pytest.approx(value))
    assert found.most == pytest.approx(500.0)
    assert bool(found.gap) == (value is None)


def test_run_queue_delay_needs_a_thread_that_is_read_twice() -> None:
    assert signal("run_queue_delay", queue(10.0, {1: (IN_A, 0.0, 0.0)}), queue(11.0, {2: (IN_A, 0.0, 0.0)})).gap
    assert signal("run_queue_delay", queue(10.0, {}), queue(10.01, {})).gap


def test_run_queue_delay_of_no_threads_is_none() -> None:
    assert judged("run_queue_delay", queue(10.0, {}), queue(11.0, {})) == (0.0, 0.0, "")


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "hard", "value"),
    [
        pytest.param(MemoryRoom(10 * GIB, GIB, GIB), EvictionHard(GIB), 100.0, id="at-kubelets-threshold"),
        pytest.param(MemoryRoom(10 * GIB, 2 * GIB, 2 * GIB), EvictionHard(GIB), 90.0, id="above-it"),
        pytest.param(MemoryRoom(10 * GIB, 9 * GIB, 2 * GIB), EvictionHard(GIB), 90.0, id="kubelets-is-less"),
        pytest.param(MemoryRoom(10 * GIB, 2 * GIB, 9 * GIB), EvictionHard(GIB), 90.0, id="the-kernels-is-less"),
        pytest.param(MemoryRoom(10 * GIB, None, 2 * GIB), EvictionHard(GIB), 90.0, id="an-old-kernel"),
        pytest.param(MemoryRoom(10 * GIB, GIB, GIB), EvictionHard(0, 0.1), 100.0, id="a-share"),
        pytest.param(MemoryRoom(10 * GIB, GIB, GIB), EvictionHard(0), 90.0, id="kubelet-evicts-none"),
        pytest.param(MemoryRoom(10 * GIB, 0, 0), EvictionHard(GIB), 110.0, id="beyond"),
        pytest.param(MemoryRoom(10 * GIB, 12 * GIB, 12 * GIB), EvictionHard(GIB), 0.0, id="more-than-there-is"),
    ],
)
def test_memory_shortage_is_how_near_kubelets_eviction_is(room, hard, value) -> None:
    found = signal("memory_shortage", None, replace(NOTHING, room=room), hard)

    assert (found.value, found.most, found.gap) == (pytest.approx(value), pytest.approx(value), "")


def test_memory_shortage_of_no_memory_at_all_is_not_known() -> None:
    assert signal("memory_shortage", None, replace(NOTHING, room=MemoryRoom(0, 0, 0))).gap


def counted(t_s, **of):
    return replace(NOTHING, memory_stat=MemoryStat(t_s, {f"workingset_{key}": value for key, value in of.items()}, "f"))


@pytest.mark.parametrize(
    ("before", "now", "value", "note"),
    [
        (counted(10.0, refault_file=100), counted(12.0, refault_file=300), 100.0, ""),
        (counted(10.0, refault=100), counted(12.0, refault=300), 100.0, ""),
        (counted(10.0, refault_file=100, refault_anon=50), counted(12.0, refault_file=300, refault_anon=150), 150.0,
         "50 pages/s of them from swap"),
        (counted(10.0, refault_file=100, refault_anon=50), counted(12.0, refault_file=0, refault_anon=150), None, ""),
        (counted(10.0, refault_file=100, refault_anon=50), counted(12.0, refault_file=300, refault_anon=0), None, ""),
        (None, counted(12.0, refault_file=300), None, ""),
        (NOTHING, counted(12.0, refault_file=300), None, ""),
    ],
    ids=["file", "before-5.9", "and-swap", "back", "swap-back", "first", "nothing-before"],
)  # fmt: skip
def test_refaults_are_pages_by_time(before, now, value, note) -> None:
    found = signal("refaults", before, now)

    assert (found.value, found.note) == (value, note)
    assert bool(found.gap) == (value is None)


@pytest.mark.parametrize(
    ("now", "why"), [(counted(12.0, activate=300), "f counts no refaults"), (NOTHING, NONE.why)], ids=["old", "missing"]
)
def test_refaults_that_the_kernel_does_not_count_are_absent(now, why) -> None:
    assert signal("refaults", None, now).absent == why


@pytest.mark.parametrize(
    ("pids", "value", "absent", "gap"),
    [
        (PidsRoom(9000, 10_000), 90.0, "", ""),
        (PidsRoom(0, 10_000), 0.0, "", ""),
        (PidsRoom(5, 0), None, "", "the node is said to have room for 0 processes"),
        (Missing("it was not read"), None, "it was not read", ""),
    ],
)
def test_pids_shortage_is_the_part_of_all_processes_that_there_can_be(pids, value, absent, gap) -> None:
    found = signal("pids_shortage", None, replace(NOTHING, pids=pids))
    assert (found.value, found.most, found.absent, found.gap) == (value, value, absent, gap)


# --- disks -----------------------------------------------------------------------------------------------------------


def disks(t_s, node, box):
    names = {"8:0": "sda", "8:16": "sdb"}
    of_node, of_box = ({number: DiskIo(*io) for number, io in of.items()} for of in (node, box))
    return replace(NOTHING, disks=DiskCounters(t_s, of_node, of_box, names))


SDA, SDB = "8:0", "8:16"


@pytest.mark.parametrize(
    ("before", "now", "value", "note"),
    [
        pytest.param(
            ({SDA: (0, 0)}, {SDA: (0, 0)}), ({SDA: (40 * MIB, 10)}, {SDA: (10 * MIB, 1)}), 25.0, "of sda", id="bytes"
        ),
        pytest.param(
            ({SDA: (0, 0)}, {SDA: (0, 0)}), ({SDA: (40 * MIB, 100)}, {SDA: (0, 90)}), 90.0, "of sda", id="operations"
        ),
        pytest.param(
            ({SDA: (90 * MIB, 9), SDB: (0, 0)}, {SDA: (90 * MIB, 9)}),
            ({SDA: (99 * MIB, 9), SDB: (40 * MIB, 0)}, {SDA: (90 * MIB, 9), SDB: (30 * MIB, 0)}),
            75.0,
            "of sdb",
            id="the-disk-that-it-takes-most-of",
        ),
        pytest.param(({SDA: (0, 0)}, {}), ({SDA: (MIB // 2, 9)}, {SDA: (MIB // 2, 9)}), 0.0, "", id="not-busy"),
        pytest.param(({}, {}), ({SDA: (40 * MIB, 0)}, {}), 0.0, "", id="no-box"),
        pytest.param(({}, {}), ({}, {SDA: (40 * MIB, 0)}), 0.0, "", id="a-disk-without-counters"),
        pytest.param(
            ({SDA: (0, 0)}, {SDA: (0, 0)}), ({SDA: (20 * MIB, 0)}, {SDA: (40 * MIB, 0)}), 100.0, "of sda", id="apart"
        ),
        pytest.param(
            ({SDA: (0, 0)}, {SDA: (80 * MIB, 0)}), ({SDA: (40 * MIB, 0)}, {SDA: (9 * MIB, 0)}), 0.0, "", id="box-anew"
        ),
        pytest.param(
            ({SDA: (80 * MIB, 0)}, {SDA: (0, 0)}), ({SDA: (40 * MIB, 0)}, {SDA: (9 * MIB, 0)}), 0.0, "", id="disk-anew"
        ),
    ],
)
def test_box_io_share_is_of_the_disk_that_it_takes_most_of(before, now, value, note) -> None:
    found = signal("box_io_share", disks(10.0, *before), disks(11.0, *now))

    assert (found.value, found.note, found.gap) == (pytest.approx(value), note, "")


# --- for all readings ------------------------------------------------------------------------------------------------

times = st.floats(0.0, 1e6)
counts = st.integers(0, 1 << 50)
paths = st.sampled_from([POD, CONTAINER, OTHER])
missing = st.just(NONE)
limits = st.builds(
    OwnLimits,
    times,
    st.dictionaries(paths, st.builds(Throttling, times, st.none() | times)),
    st.none() | times,
    st.booleans(),
)
disk = st.dictionaries(st.sampled_from([SDA, SDB]), st.builds(DiskIo, counts, counts))
memory_stat = st.dictionaries(st.sampled_from(["workingset_refault_file", "workingset_refault_anon"]), counts)
readings = st.builds(
    SignalReading,
    cpu=missing | st.builds(Stall, times, times),
    memory=missing | st.builds(Stall, times, times),
    io=missing | st.builds(Stall, times, times),
    run_queue=missing
    | st.builds(RunQueue, times, st.dictionaries(st.integers(1, 4), st.builds(ThreadTimes, paths, times, times))),
    pids=missing | st.builds(PidsRoom, counts, counts),
    room=missing | st.builds(MemoryRoom, counts, st.none() | counts, counts),
    memory_stat=missing | st.builds(MemoryStat, times, memory_stat),
    disks=missing | st.builds(DiskCounters, times, disk, disk, st.just({})),
    own_limits=st.none() | missing | limits,
)


@given(st.none() | readings, readings)
def test_any_readings_make_sane_values_or_say_why_there_is_none(before, now) -> None:
    for found in values(before, now, HARD):
        assert (found.value is None) == bool(found.absent or found.gap)
        assert not (found.absent and found.gap)
        if found.most is not None:
            assert 0.0 <= found.most < math.inf
            assert found.value is None or 0.0 <= found.value <= found.most


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=8),
    st.floats(1.0, 10.0),
)
def test_cpu_pressure_of_limits_alone_is_never_harm(cpus, seconds) -> None:
    """One pod at its limit, on each CPU running and stopped for some shares of the time: PSI's own mean over CPUs."""
    ran_s = [seconds * ran for ran, _, _ in cpus]
    stopped_s = [(seconds - ran) * share for ran, (_, share, _) in zip(ran_s, cpus, strict=True)]
    busy_s = [ran + stop for ran, stop in zip(ran_s, stopped_s, strict=True)]
    some_s = sum(stop * busy for stop, busy in zip(stopped_s, busy_s, strict=True)) / max(1e-9, sum(busy_s))

    before = cpu(0.0, 0.0, own(0.0, {POD: (0.0, 0.0)}, 0.0))
    now = cpu(seconds, some_s, own(seconds, {POD: (sum(stopped_s), sum(ran_s))}, sum(ran_s)))

    assert signal("cpu_pressure", before, now).value == pytest.approx(0.0, abs=1e-6)


def test_look_at_many_cgroups_of_onlines_takes_each_a_few_times_however_many_threads_are_sampled() -> None:
    """It is on the event loop, where kubelet's calls wait for it."""
    paths = [f"/kubepods/burstable/pod{number // 16}/{number}" for number in range(1024)]

    def read(t_s: float) -> SignalReading:
        return SignalReading(
            run_queue=RunQueue(t_s, {at: ThreadTimes(paths[at], 0.3 * t_s, 0.4 * t_s) for at in range(64)}),
            own_limits=OwnLimits(t_s, {path: Throttling(0.001 * t_s) for path in paths}),
            pods={path: PodStall(path.rpartition("/")[0]) for path in paths[::16]},
        )

    before, now, profile = read(10.0), read(11.0), cProfile.Profile()
    profile.runcall(lambda: (values(before, now, HARD), pod_waits(before, now)))
    calls = sum(one.callcount for one in profile.getstats())
    assert calls < 20 * len(paths)
