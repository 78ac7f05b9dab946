"""The driver of slices: what it makes lasts through systemd's resets, and neither kills nor makes systemd wait."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from criproxy.cgroup.box.limits import BoxLimits, BoxSettings
from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.model import CPU, UNLIMITED, LimitChange, Limits, Unlimited
from criproxy.model.cpulist import Cpus
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd, names

BOX, POD = "offline.slice", "offline-poda_b.slice"
MIB = 1 << 20
LIMITS = {"cpu": 0.5, "memory": 512 * MIB}


@dataclass
class Node:
    kernel: FakeKernel
    systemd: FakeSystemd
    driver: CgroupDriver

    def tick(self, limits: Limits = LIMITS) -> tuple[LimitChange, ...]:
        """As the box does each second."""
        self.driver.ensure(BOX)
        changes = self.driver.write(BOX, limits)
        if limits["memory"] is not UNLIMITED:
            self.driver.memory.reclaim(BOX, limits["memory"])  # type: ignore[arg-type]
        return changes

    @property
    def is_v2(self) -> bool:
        return self.kernel.version == 2

    def file(self, name: str, path: str = "/offline.slice") -> str:
        return self.kernel.text(path, name)

    def cores(self) -> str:
        return self.kernel.text("/offline.slice", "cpu.cfs_quota_us", "cpu.max").split()[0]

    def use(self, anon: int = 0, cache: int = 0) -> None:
        self.kernel.use("/offline.slice/offline-poda_b.slice", anon, cache)


def made(root: Path, version: int) -> Node:
    kernel = FakeKernel(root, version)
    systemd = FakeSystemd(kernel)
    return Node(kernel, systemd, detect_any(kernel, systemd, kernel.root))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return made(tmp_path, request.param)


@pytest.fixture
def v2(tmp_path: Path) -> Node:
    return made(tmp_path, 2)


@pytest.fixture
def box(node: Node) -> Node:
    """With the limits in force and one pod."""
    node.tick()
    node.driver.ensure_pod(POD, PodLimits())
    node.systemd.calls.clear()
    return node


def test_box_is_a_slice_at_the_lowest_priority_with_its_limits(node: Node) -> None:
    node.tick()

    assert node.driver.read(BOX) == LIMITS
    assert node.file("cpu.idle") == "1"
    assert node.systemd.units[BOX]["MemoryMax"] == 512 * MIB
    assert node.systemd.units[BOX]["CPUQuotaPerSecUSec"] == 500_000
    if node.is_v2:
        assert (node.file("io.weight"), node.file("memory.swap.max")) == ("default 1", "0")


def test_box_is_also_where_systemd_makes_none(tmp_path: Path) -> None:
    node = made(tmp_path, 1)

    node.tick()

    assert node.kernel.file("cpuset/offline.slice/cpuset.cpus") == "0-3"


def test_tick_without_news_asks_systemd_for_nothing(box: Node) -> None:
    box.kernel.writes.clear()

    assert box.tick() == ()
    assert (box.systemd.calls, box.kernel.writes) == ([], [])


def test_news_are_told_in_one_call(box: Node) -> None:
    changes = box.tick({"cpu": 0.75, "memory": 256 * MIB})

    assert names(box.systemd.calls) == ["set"]
    assert not any(change.drift for change in changes)
    assert len(changes) >= 2


def test_squeezed_memory_is_put_back_after_systemd_has_written_the_limit(v2: Node) -> None:
    squeezed = {**LIMITS, "memory_high": 64 * MIB}
    v2.tick()
    v2.use(anon=10 * MIB)
    held = []
    for limits in (squeezed, {**squeezed, "cpu": 0.75}, squeezed, LIMITS):
        changes = v2.tick(limits)
        held.append((v2.file("memory.high"), v2.file("memory.max")))
        assert not any(change.drift for change in changes)

    assert held == [(str(64 * MIB), str(512 * MIB))] * 3 + [(str(512 * MIB), str(512 * MIB))]
    assert v2.systemd.units[BOX]["MemoryMax"] == 512 * MIB


def test_quota_is_written_once_for_each_change(v2: Node) -> None:
    v2.tick()
    v2.kernel.writes.clear()

    v2.tick({"cpu": 0.75, "memory": 256 * MIB})

    assert [value for file, value in v2.kernel.writes if file.endswith("cpu.max")] == ["75000 100000"]


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": 0.25, "memory": 64 * MIB},
        {"cpu": 3.0, "memory": 4096 * MIB},
        {"cpu": UNLIMITED, "memory": UNLIMITED},
        {"cpu": UNLIMITED, "memory": 64 * MIB},
    ],
    ids=str,
)
def test_limits_outlast_a_reset(box: Node, limits: Limits) -> None:
    box.tick(limits)

    box.systemd.reset(BOX)
    if not box.is_v2:  # systemd knows a first quota only
        box.tick(limits)

    assert box.driver.read(BOX) == limits
    assert box.file("cpu.idle") == "1"


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"CPUQuotaPerSecUSec": 2_000_000}, id="quota"),
        pytest.param({"MemoryMax": 4096 * MIB, "MemoryHigh": 4096 * MIB}, id="memory-up"),
        pytest.param({"MemoryMax": 64 * MIB}, id="memory-down"),
    ],
)
def test_what_somebody_else_sets_is_put_back_in_systemd_too_and_counted(box: Node, properties: dict[str, int]) -> None:
    box.systemd.by_hand(BOX, **properties)
    first, second = box.tick(), box.tick()
    box.systemd.reset(BOX)

    # On v1 the kernel takes no memory limit above that with swap, which systemd does not know.
    assert any(change.drift for change in first) or (not box.is_v2 and "MemoryHigh" in properties)
    assert second == ()
    assert box.driver.read(BOX) == LIMITS


def test_priority_that_somebody_else_raised_is_put_back_in_systemd_too(v2: Node) -> None:
    v2.tick()
    v2.systemd.by_hand(BOX, CPUWeight=500, IOWeight=500)
    changes = v2.tick()
    v2.systemd.reset(BOX)

    assert {(Path(change.file).name, change.drift) for change in changes} == {("cpu.idle", True), ("io.weight", True)}
    assert (v2.file("cpu.idle"), v2.file("io.weight")) == ("1", "default 1")


def test_priority_that_the_kernel_refuses_keeps_no_limit_of_a_slice_from_holding(box: Node) -> None:
    contested = f"{box.kernel.root}/{'cg' if box.is_v2 else 'cpu,cpuacct'}/offline.slice/cpu.idle"
    box.kernel.by_hand(contested, "0")
    box.kernel.contested.add(contested)
    low = {"cpu": 0.25, "memory": 256 * MIB}

    for _ in range(2):
        with pytest.raises(CgroupError, match=r"cpu\.idle"):
            box.tick(low)
        assert box.driver.read(BOX) == low
    assert names(box.systemd.calls) == ["set"], "each call gives a fresh quota"

    box.kernel.contested.clear()
    assert [Path(change.file).name for change in box.tick(low) if change.drift] == ["cpu.idle"]


def test_slice_that_is_found_in_a_hold_off_has_its_cpus_and_keeps_all_else(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick()
    node.systemd.by_hand(BOX, CPUWeight=500, IOWeight=500, CPUQuotaPerSecUSec=2_000_000)
    node.driver = detect_any(node.kernel, node.systemd, node.kernel.root)
    kept_to: list[Cpus | Unlimited] = [frozenset({0, 1})]
    limits = BoxLimits(node.driver, BoxSettings(LIMITS, hands_off=True), lambda: kept_to[0], None, FakeClock())

    limits.adopt(BOX, lifted=False)
    limits.confine(BOX)
    found = [node.file(file) for file in ("cpuset.cpus", "cpu.idle", "cpu.weight", "io.weight")]
    found.append(node.cores())
    limits.configure(BoxSettings(LIMITS))
    kept_to[0] = UNLIMITED
    limits.apply(LIMITS)
    node.systemd.reset(BOX)

    assert found == ["0-1", "0", "500", "default 500", "200000"]
    assert [node.file(file) for file in ("cpuset.cpus", "cpu.idle", "io.weight")] == ["", "1", "default 1"]
    assert node.driver.read(BOX) == LIMITS


def test_drift_on_top_of_a_new_limit_is_counted_too(v2: Node) -> None:
    v2.tick()
    v2.systemd.by_hand(BOX, CPUQuotaPerSecUSec=2_000_000)

    changes = v2.tick({"cpu": 0.25, "memory": 512 * MIB})

    assert [(change.file, change.drift) for change in changes] == [("offline.slice: CPUQuota", True)]


@pytest.mark.parametrize("file", ["cpu.max", "memory.max"])
@pytest.mark.parametrize("after", range(1, 6))
@pytest.mark.parametrize("fresh", [False, True], ids=["steady", "new-process"])
def test_limit_changed_amid_a_tick_is_put_back_by_the_next(
    v2: Node, monkeypatch: pytest.MonkeyPatch, file: str, after: int, fresh: bool
) -> None:
    """Somebody else writes right after one of the tick's reads of the file: whichever it is."""
    v2.tick()
    v2.driver.ensure_pod(POD, PodLimits())
    v2.tick()
    if fresh:
        v2.driver = detect_any(v2.kernel, v2.systemd, v2.kernel.root)
    read, left = v2.kernel.read, after

    def watched(path: str) -> str:
        nonlocal left
        text = read(path)
        left -= path.endswith(f"/offline.slice/{file}")
        if left == 0:
            left = -1
            v2.kernel.by_hand(f"cg/offline.slice/{file}", "100000 100000" if file == "cpu.max" else str(64 * MIB))
        return text

    monkeypatch.setattr(v2.kernel, "read", watched)
    v2.tick()
    v2.tick()

    assert v2.driver.read(BOX) == LIMITS


def test_slice_that_was_stopped_is_started_anew_and_bounded(node: Node) -> None:
    node.tick()
    node.systemd.stop(BOX)
    node.systemd.calls.clear()

    changes = node.tick()

    assert names(node.systemd.calls)[0] == "start"
    assert node.driver.read(BOX) == LIMITS
    assert any(change.drift for change in changes)


def test_squeeze_is_in_the_file_at_once_and_told_with_the_next_write(box: Node) -> None:
    box.driver.write_limit(BOX, CPU, 0.1)
    at_once, calls = box.cores(), list(box.systemd.calls)

    changes = box.tick({"cpu": 0.1, "memory": 512 * MIB})

    assert (at_once, calls, box.cores()) == ("10000", [], "10000")
    assert not any(change.drift for change in changes)
    assert box.systemd.units[BOX]["CPUQuotaPerSecUSec"] == (100_000 if box.is_v2 else 500_000)


def test_squeeze_that_the_next_limit_takes_back_is_gone_after_one_write(box: Node) -> None:
    box.driver.write_limit(BOX, CPU, 0.1)

    back = box.tick()
    after = box.tick()

    assert box.driver.read(BOX) == LIMITS
    assert [change.drift for change in back] == [False]
    assert after == ()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_sinks_without_a_kill_and_without_systemd_waiting(box: Node) -> None:
    box.use(anon=300 * MIB, cache=100 * MIB)

    for _ in range(4):
        box.tick({"cpu": 0.5, "memory": 64 * MIB})
        box.systemd.reset(BOX)

    told, size = box.systemd.units[BOX]["MemoryMax"], box.driver.read(BOX)["memory"]
    assert not box.systemd.waited
    assert size is not UNLIMITED
    assert isinstance(told, int)
    assert 300 * MIB <= size <= 330 * MIB
    assert 300 * MIB <= told <= 512 * MIB


def test_memory_that_sinks_bit_by_bit_is_not_told_each_time(box: Node) -> None:
    box.use(anon=300 * MIB)
    box.tick({"cpu": 0.5, "memory": 64 * MIB})
    box.systemd.calls.clear()

    for size in (299, 298, 297, 296):
        box.use(anon=size * MIB)
        box.tick({"cpu": 0.5, "memory": 64 * MIB})
    little = names(box.systemd.calls)
    box.use(anon=200 * MIB)
    box.tick({"cpu": 0.5, "memory": 64 * MIB})

    assert (little, names(box.systemd.calls)) == ([], ["set"])


def test_memory_rises_through_systemd_lest_it_put_an_older_limit_back(v2: Node) -> None:
    v2.tick()
    v2.systemd.away = True

    with pytest.raises(CgroupError, match="no answer"):
        v2.tick({"cpu": 0.25, "memory": 1024 * MIB})

    assert v2.driver.read(BOX) == {"cpu": 0.25, "memory": 512 * MIB}
    v2.systemd.away = False
    v2.tick({"cpu": 0.25, "memory": 1024 * MIB})
    assert v2.driver.read(BOX) == {"cpu": 0.25, "memory": 1024 * MIB}


@pytest.mark.slow
@hypothesis_settings(deadline=None, max_examples=80)
@given(
    version=st.sampled_from([1, 2]),
    steps=st.lists(
        st.tuples(
            st.floats(0.01, 8.0),
            st.integers(16, 4000),
            st.integers(0, 3000),
            st.sampled_from(["none", "reset", "away", "set-property", "stop"]),
        ),
        max_size=8,
    ),
)
def test_no_history_kills_or_makes_systemd_wait(
    tmp_path_factory: pytest.TempPathFactory, version: int, steps: list[tuple[float, int, int, str]]
) -> None:
    node = made(tmp_path_factory.mktemp("node"), version)
    node.tick()
    node.driver.ensure_pod(POD, PodLimits())
    for cores, size, anon, event in steps:
        held = node.driver.read(BOX)["memory"]
        if held is UNLIMITED or anon * MIB <= held:
            node.use(anon=anon * MIB)
        node.systemd.away = event == "away"
        limits = {"cpu": cores, "memory": size * MIB}
        if event == "away":
            try:
                node.tick(limits)
            except CgroupError:
                node.systemd.away = False
                node.systemd.reset(BOX)
            continue
        if event == "reset":
            node.systemd.reset(BOX)
        elif event == "set-property":
            node.systemd.by_hand(BOX, CPUQuotaPerSecUSec=7_000_000)
        elif event == "stop":
            node.use()
            node.driver.remove_pod(POD)
            node.systemd.stop(BOX)
        node.tick(limits)
        node.driver.ensure_pod(POD, PodLimits())
        assert node.driver.read(BOX)["cpu"] == pytest.approx(max(cores, 0.01), abs=1e-4)
    node.systemd.away = False
    node.use()
    for _ in range(20):
        node.tick()
    node.systemd.reset(BOX)
    node.tick()
    assert node.driver.read(BOX) == LIMITS
    assert version == 1 or not node.systemd.waited


# --- kinds of systemd ------------------------------------------------------------------------------------------------


def test_systemd_without_idle_weights_leaves_idle_as_it_was_written(v2: Node) -> None:
    v2.systemd.old = True
    v2.tick()
    v2.systemd.reset(BOX)

    v2.tick()

    assert v2.systemd.units[BOX]["CPUWeight"] == 1
    assert v2.file("cpu.idle") == "1"


def test_systemd_that_is_away_costs_no_limit_in_the_files(box: Node) -> None:
    box.systemd.away = True

    with pytest.raises(CgroupError):
        box.tick({"cpu": 0.25, "memory": 256 * MIB})

    assert box.driver.read(BOX) == {"cpu": 0.25, "memory": 256 * MIB}


# --- pods ------------------------------------------------------------------------------------------------------------


def test_pod_is_made_with_its_limit_and_the_lowest_weight(node: Node) -> None:
    node.tick()
    node.driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB + 5))

    assert node.driver.pods(BOX) == ("poda_b",)
    assert node.driver.read(POD)["memory"] == 64 * MIB
    weight = "cpu.weight" if node.is_v2 else "cpu.shares"
    assert node.file(weight, "/offline.slice/offline-poda_b.slice") == ("1" if node.is_v2 else "2")


def test_pod_is_made_where_systemd_has_removed_the_empty_box(tmp_path: Path) -> None:
    v1 = made(tmp_path, 1)
    v1.tick()
    boxes = [box for box in tmp_path.glob("*/offline.slice") if box.parent.name not in ("cpu,cpuacct", "memory")]
    for box in boxes:
        shutil.rmtree(box)

    v1.driver.ensure_pod(POD, PodLimits())

    assert boxes
    assert [box for box in boxes if not (box / POD).is_dir()] == []


@pytest.mark.parametrize("size", [32 * MIB, 128 * MIB], ids=["down", "up"])
def test_pod_is_resized_and_stays_so(box: Node, size: int) -> None:
    box.driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB))

    box.driver.ensure_pod(POD, PodLimits(memory_bytes=size))
    box.systemd.reset(POD)

    assert box.driver.read(POD)["memory"] == size


def test_pod_in_use_is_not_shrunk_to_death(box: Node) -> None:
    box.driver.ensure_pod(POD, PodLimits(memory_bytes=256 * MIB))
    box.use(anon=200 * MIB)

    with pytest.raises(CgroupError, match="are in use"):
        box.driver.ensure_pod(POD, PodLimits(memory_bytes=64 * MIB))

    box.systemd.reset(POD)
    assert not box.systemd.waited


def test_pod_with_a_process_is_not_stopped(box: Node) -> None:
    box.kernel.by_hand(f"{box.kernel.where('memory', '/offline.slice/offline-poda_b.slice')}/cgroup.procs", "7")

    assert not box.driver.remove_pod(POD)
    assert box.systemd.calls == []


def test_pod_that_does_not_stop_is_left_for_the_next_time(box: Node) -> None:
    box.systemd.stubborn = True

    assert not box.driver.remove_pod(POD)
    assert box.driver.pods(BOX) == ("poda_b",)


def test_removed_pod_leaves_no_directory_in_any_hierarchy(box: Node) -> None:
    assert box.driver.remove_pod(POD)

    assert list(Path(box.kernel.root).rglob("offline-poda_b.slice")) == []


@pytest.mark.parametrize(
    "unit", ["kubepods.slice", "kubepods-poda.slice", "offline-poda-b.slice", "system.slice", "-.slice", "podx.slice"]
)
def test_unit_that_is_not_ours_is_never_touched(box: Node, unit: str) -> None:
    for job in (box.driver.remove_pod, lambda pod: box.driver.ensure_pod(pod, PodLimits()), box.driver.ensure):
        with pytest.raises(CgroupError):
            job(unit)

    assert box.systemd.calls == []


def test_slices_are_never_made_by_hand(node: Node) -> None:
    node.tick()
    for root in Path(node.kernel.root).glob("*/offline.slice"):
        node.kernel.remove(str(root))
    kernel = detect_any(node.kernel, node.systemd, node.kernel.root)
    node.systemd.away = True

    with pytest.raises(CgroupError):
        kernel.ensure(BOX)
    with pytest.raises(CgroupError):
        kernel.ensure_pod(POD, PodLimits())

    assert not list(Path(node.kernel.root).glob("*/offline.slice"))
