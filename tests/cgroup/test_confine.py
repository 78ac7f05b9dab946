"""The box is kept to CPUs: files of both versions, and systemd's properties."""

import asyncio
import contextlib
import errno
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect, detect_any
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.model import CPU, UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus, parse_cpus
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import FakeKernel
from tests.fakes.systemd import FakeSystemd, names

BOX, POD = "/kubelet/offline", "/kubelet/offline/poda"
CONTAINER = f"{POD}/container"
SLICE, SLICE_DIRECTORY = "offline.slice", "/offline.slice"
LIMITS = {"cpu": 0.5, "memory": 512 << 20}


def cpus(text: str) -> frozenset[int]:
    return parse_cpus(text)


# --- cgroup v1 ---------------------------------------------------------------------------------------------------


@dataclass
class V1:
    kernel: FakeKernel
    driver: CgroupDriver

    def make_container(self, cpus: str, path: str = CONTAINER) -> None:
        """As runc: what its parent has, then what it was told."""
        self.kernel.mkdir(f"{self.kernel.root}/cpuset{path}")
        self.kernel.by_hand(f"cpuset{path}/cpuset.cpus", cpus)
        self.kernel.by_hand(f"cpuset{path}/cpuset.mems", "0")
        self.kernel.by_hand(f"cpuset{path}/cgroup.procs", "7")

    def held(self, *paths: str) -> list[str]:
        return [format_cpus(parse_cpus(self.kernel.file(f"cpuset{path}/cpuset.cpus"))) for path in paths]


@pytest.fixture
def v1(tmp_path: Path) -> V1:
    kernel = FakeKernel(tmp_path, 1)
    node = V1(kernel, detect(kernel, kernel.root))
    node.driver.ensure(BOX)
    node.driver.ensure_pod(POD, PodLimits())
    return node


def test_v1_box_and_all_in_it_are_narrowed_from_the_bottom_up(v1: V1) -> None:
    v1.make_container("0-3")

    changes = v1.driver.confine(BOX, cpus("0-1"))

    assert v1.held(BOX, POD, CONTAINER) == ["0-1"] * 3
    assert [(change.old, change.new, change.drift) for change in changes] == [("0-3", "0-1", False)]
    assert v1.driver.confine(BOX, cpus("0-1")) == ()


def test_v1_box_and_all_in_it_are_widened_again(v1: V1) -> None:
    v1.make_container("0-3")
    v1.driver.confine(BOX, cpus("0"))

    v1.driver.confine(BOX, cpus("0-2"))

    assert v1.held(BOX, POD, CONTAINER) == ["0-2"] * 3


def test_v1_box_that_moves_to_other_cpus_goes_over_the_union(v1: V1) -> None:
    v1.make_container("0-3")
    v1.driver.confine(BOX, cpus("0"))

    v1.driver.confine(BOX, cpus("3"))

    assert v1.held(BOX, POD, CONTAINER) == ["3"] * 3


def test_v1_container_with_cpus_of_its_own_keeps_those_that_are_the_boxs(v1: V1) -> None:
    v1.make_container("2-3")
    v1.driver.confine(BOX, cpus("0-2"))
    narrowed = v1.held(BOX, POD, CONTAINER)

    v1.driver.confine(BOX, cpus("0-3"))

    assert narrowed == ["0-2", "0-2", "2"]
    assert v1.held(BOX, POD, CONTAINER) == ["0-3", "0-3", "2"]


def test_v1_container_none_of_whose_cpus_is_left_has_the_boxs(v1: V1) -> None:
    v1.make_container("3")

    v1.driver.confine(BOX, cpus("0-1"))

    assert v1.held(CONTAINER) == ["0-1"]


def test_v1_new_pod_starts_within_the_boxs_cpus(v1: V1) -> None:
    v1.driver.confine(BOX, cpus("0"))

    v1.driver.ensure_pod("/kubelet/offline/podb", PodLimits())

    assert v1.held("/kubelet/offline/podb") == ["0"]


def test_v1_ensure_leaves_the_boxs_cpus_alone(v1: V1) -> None:
    v1.driver.confine(BOX, cpus("0"))
    v1.kernel.writes.clear()

    v1.driver.ensure(BOX)

    assert v1.kernel.writes == []


def test_v1_box_has_its_parents_cpus_when_nothing_bounds_it(v1: V1) -> None:
    v1.driver.confine(BOX, cpus("0"))

    v1.driver.confine(BOX, UNLIMITED)

    assert v1.held(BOX, POD) == ["0-3"] * 2


def test_v1_cpus_that_the_parent_lacks_are_left_out(v1: V1) -> None:
    v1.driver.confine(BOX, cpus("2-9"))

    assert v1.held(BOX) == ["2-3"]


@pytest.mark.parametrize("leaves", ["", "8-9"])
def test_v1_box_without_a_cpu_keeps_what_it_has(v1: V1, leaves: str) -> None:
    v1.driver.confine(BOX, cpus("0-1"))

    with pytest.raises(CgroupError, match="keeps the CPUs that it has"):
        v1.driver.confine(BOX, cpus(leaves))

    assert v1.held(BOX) == ["0-1"]


def test_v1_container_that_comes_amid_a_change_is_narrowed_too(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    write = v1.kernel.write
    came: list[str] = []

    def write_beside_runc(file: str, value: str) -> None:
        if file.endswith(f"{BOX}/cpuset.cpus") and not came:
            came.append(file)
            v1.make_container("0-3")
            v1.kernel.by_hand(f"cpuset{POD}/cpuset.cpus", "0-3")
        write(file, value)

    monkeypatch.setattr(v1.kernel, "write", write_beside_runc)

    v1.driver.confine(BOX, cpus("0"))

    assert v1.held(BOX, POD, CONTAINER) == ["0"] * 3


def test_v1_container_that_goes_amid_a_change_is_no_error(v1: V1, monkeypatch: pytest.MonkeyPatch) -> None:
    v1.make_container("0-3")
    read = v1.kernel.read

    def read_what_has_gone(file: str) -> str:
        if CONTAINER in file:
            raise CgroupError("gone", errno.ENODEV)
        return read(file)

    v1.kernel.by_hand(f"cpuset{CONTAINER}/cpuset.cpus", "0")
    monkeypatch.setattr(v1.kernel, "read", read_what_has_gone)

    v1.driver.confine(BOX, cpus("0-1"))

    assert v1.held(BOX, POD) == ["0-1"] * 2


def test_v1_memory_nodes_are_the_parents_and_a_containers_own_stay(v1: V1) -> None:
    v1.kernel.by_hand("cpuset/cpuset.mems", "0-1")
    v1.kernel.by_hand("cpuset/kubelet/cpuset.mems", "0-1")
    v1.driver.confine(BOX, cpus("0"))
    v1.make_container("0")
    v1.kernel.by_hand(f"cpuset{CONTAINER}/cpuset.mems", "1")  # of the static memory manager

    v1.driver.confine(BOX, cpus("0"))

    mems = [v1.kernel.file(f"cpuset{path}/cpuset.mems") for path in (BOX, POD, CONTAINER)]
    assert [parse_cpus(text) for text in mems] == [{0, 1}, {0, 1}, {1}]


def test_v1_somebody_elses_cpus_are_put_back_and_counted(v1: V1) -> None:
    v1.driver.confine(BOX, cpus("0"))
    v1.kernel.by_hand(f"cpuset{BOX}/cpuset.cpus", "0-3")

    changes = v1.driver.confine(BOX, cpus("0"))

    assert [(change.old, change.new, change.drift) for change in changes] == [("0-3", "0", True)]


CPUS = st.frozensets(st.integers(0, 3), min_size=1)


@settings(max_examples=25)
@given(steps=st.lists(CPUS, max_size=6), own=CPUS, nested=CPUS)
def test_v1_any_order_of_changes_keeps_all_within(
    tmp_path_factory: pytest.TempPathFactory, steps: list[frozenset[int]], own: frozenset[int], nested: frozenset[int]
) -> None:
    """The fake kernel refuses each write that leaves a child outside its parent."""
    kernel = FakeKernel(tmp_path_factory.mktemp("node"), 1)
    node = V1(kernel, detect(kernel, kernel.root))
    node.driver.ensure(BOX)
    node.driver.ensure_pod(POD, PodLimits())
    node.make_container(format_cpus(own))
    node.make_container(format_cpus(own & nested or own), f"{CONTAINER}/nested")

    for step in steps:
        node.driver.confine(BOX, step)
        box, pod, container, inner = map(parse_cpus, node.held(BOX, POD, CONTAINER, f"{CONTAINER}/nested"))
        assert box == pod == step
        assert set() < inner <= container <= step


@pytest.mark.parametrize("writes", range(5))
@pytest.mark.parametrize("then", ["0-1", "0", "2"])
def test_v1_change_that_was_cut_off_is_made_up_for_by_the_next_process(
    v1: V1, monkeypatch: pytest.MonkeyPatch, writes: int, then: str
) -> None:
    v1.make_container("0-3")
    v1.driver.confine(BOX, cpus("0"))
    write, left = v1.kernel.write, [()] * writes

    def write_until_killed(file: str, value: str) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(file, value)

    monkeypatch.setattr(v1.kernel, "write", write_until_killed)
    with contextlib.suppress(KeyboardInterrupt):
        v1.driver.confine(BOX, cpus("0-1"))
    monkeypatch.undo()

    detect(v1.kernel, v1.kernel.root).confine(BOX, cpus(then))

    assert v1.held(BOX, POD) == [then] * 2
    assert parse_cpus(v1.held(CONTAINER)[0]) <= cpus(then)


# --- cgroup v2 ---------------------------------------------------------------------------------------------------


@dataclass
class V2:
    kernel: FakeKernel
    driver: CgroupDriver

    @property
    def held(self) -> str:
        return self.kernel.file(f"cg{BOX}/cpuset.cpus")


@pytest.fixture
def v2(tmp_path: Path) -> V2:
    kernel = FakeKernel(tmp_path, 2, cpusets=True)
    node = V2(kernel, detect(kernel, kernel.root))
    node.driver.ensure(BOX)
    return node


def test_v2_box_has_the_cpus_and_none_of_its_own_when_nothing_bounds_it(v2: V2) -> None:
    held = []
    for text in ("0-1,3", "2", "0-3"):
        v2.driver.confine(BOX, cpus(text))
        held.append(v2.held)
    again = v2.driver.confine(BOX, cpus("0-3"))
    v2.driver.confine(BOX, UNLIMITED)

    assert held == ["0-1,3", "2", "0-3"]
    assert again == ()
    assert v2.held == ""


def test_v2_cpus_that_an_administrator_gave_the_box_stay_while_kubelet_bounds_nobody(v2: V2) -> None:
    v2.kernel.by_hand(f"cg{BOX}/cpuset.cpus", "2-3")
    v2.kernel.writes.clear()

    assert v2.driver.confine(BOX, UNLIMITED) == ()
    assert (v2.held, v2.kernel.writes) == ("2-3", [])


def test_v2_no_cpu_at_all_would_mean_all_of_them(v2: V2) -> None:
    v2.driver.confine(BOX, cpus("0"))

    with pytest.raises(CgroupError, match="keeps the CPUs that it has"):
        v2.driver.confine(BOX, cpus(""))

    assert v2.held == "0"


def test_v2_cpus_none_of_which_is_online_would_mean_all_of_them(v2: V2) -> None:
    v2.driver.confine(BOX, cpus("0"))

    with pytest.raises(CgroupError, match="keeps the CPUs that it has"):
        v2.driver.confine(BOX, cpus("7"))

    assert v2.held == "0"


def test_v2_cpus_some_of_which_are_online_are_the_boxs(v2: V2) -> None:
    v2.driver.confine(BOX, cpus("3,7"))

    assert v2.held == "3,7"


def test_v2_cpus_of_a_partition_above_are_the_boxs(v2: V2) -> None:
    """The cgroup above the partition does not run on them."""
    v2.kernel.by_hand("cg/cpuset.cpus.effective", "0-1")
    v2.kernel.by_hand("cg/kubelet/cpuset.cpus.effective", "2-3")

    v2.driver.confine(BOX, cpus("2"))

    assert v2.held == "2"


def test_v2_cpus_of_a_partition_beside_it_are_never_the_boxs(v2: V2) -> None:
    """The kernel refuses a cpuset that has some of them, or ends the partition. A CPU that is offline is nobody's."""
    held = []
    for effective in ("0-1", "0-3"):
        v2.kernel.by_hand("cg/kubelet/cpuset.cpus.effective", effective)
        v2.driver.confine(BOX, cpus("0-3,7"))
        held.append(v2.held)

    assert held == ["0-1,7", "0-3,7"]


def test_box_beside_a_partition_says_which_cpus_are_not_its_own(v2: V2) -> None:
    v2.kernel.by_hand("cg/kubelet/cpuset.cpus.effective", "0-1")
    box = Box(v2.driver, BoxSettings(LIMITS), lambda: cpus("0-3"), FakeClock())

    asyncio.run(box.pods.admit(parse_kubelet_parent("/kubelet/kubepods/besteffort/poda"), 0))

    assert v2.held == "0-1"
    assert box.state().cpus == "0-1"
    above = "2-3 are not of the cgroup above the box (its cpuset, or a partition beside it)"
    assert box.state().cores == f"what kubelet leaves; {above}"


def test_v2_kernel_without_cpusets_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    kernel = FakeKernel(tmp_path / "without", 2)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    with pytest.raises(CgroupError, match=r"cpuset\.cpus does not exist"):
        driver.confine(BOX, cpus("0"))


def test_v2_empty_cpuset_is_written_as_an_empty_line(v2: V2) -> None:
    """The kernel sees no write of 0 bytes."""
    v2.driver.confine(BOX, cpus("0"))
    v2.driver.confine(BOX, UNLIMITED)

    assert [value for file, value in v2.kernel.writes if file.endswith("cpuset.cpus")] == ["0", "\n"]


def test_v2_box_with_processes_has_all_cpus_by_number_until_they_have_ended(v2: V2) -> None:
    """The kernel refuses it an empty cpuset. What is above it changes with CPUs that come and go."""
    v2.driver.ensure_pod(POD, PodLimits())
    v2.kernel.by_hand(f"cg{POD}/cgroup.procs", "7")
    v2.driver.confine(BOX, cpus("0"))

    changes = v2.driver.confine(BOX, UNLIMITED)
    held = [v2.held]
    again = v2.driver.confine(BOX, UNLIMITED)
    v2.kernel.by_hand("cg/kubelet/cpuset.cpus.effective", "0-1")
    v2.driver.confine(BOX, UNLIMITED)
    held.append(v2.held)
    v2.kernel.by_hand(f"cg{POD}/cgroup.procs", "")
    v2.driver.confine(BOX, UNLIMITED)

    assert [(change.old, change.new, change.drift) for change in changes] == [("0", "0-3", False)]
    assert again == ()
    assert [*held, v2.held] == ["0-3", "0-1", ""]


# --- systemd -----------------------------------------------------------------------------------------------------


@dataclass
class Systemd:
    kernel: FakeKernel
    systemd: FakeSystemd
    driver: CgroupDriver

    def tick(self, leaves: str) -> None:
        self.driver.ensure(SLICE)
        self.driver.confine(SLICE, cpus(leaves))
        self.driver.write(SLICE, LIMITS)

    @property
    def held(self) -> str:
        return self.kernel.file(f"{'cg' if self.kernel.version == 2 else 'cpuset'}{SLICE_DIRECTORY}/cpuset.cpus")


def made(root: Path, version: int) -> Systemd:
    kernel = FakeKernel(root, version)
    systemd = FakeSystemd(kernel)
    return Systemd(kernel, systemd, detect_any(kernel, systemd, kernel.root))


def test_systemd_v2_is_told_and_keeps_the_cpus_through_a_reset(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0,2-3")
    node.systemd.calls.clear()
    node.systemd.reset(SLICE)
    node.tick("0,2-3")

    assert node.systemd.units[SLICE]["AllowedCPUs"] == b"\x0d"
    assert parse_cpus(node.held) == {0, 2, 3}
    assert node.systemd.calls == [], "what it knows it is not told again"


def test_systemd_v2_is_told_no_cpu_of_a_partition_beside_the_box(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.kernel.by_hand("cg/cpuset.cpus.effective", "0-1")

    node.tick("0-3")

    assert node.systemd.units[SLICE]["AllowedCPUs"] == b"\x03"
    assert node.held == "0-1"


def test_systemd_v2_changes_cpus_in_one_call_and_the_limits_stay_in_force(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0-3")
    node.driver.write_limit(SLICE, CPU, 0.25)
    node.systemd.calls.clear()

    node.driver.confine(SLICE, cpus("0"))

    assert names(node.systemd.calls) == ["set"]
    assert node.held == "0"
    assert node.driver.read(SLICE)["cpu"] == 0.25, "systemd has put an older one back"


def test_systemd_v2_changes_cpus_and_keeps_what_an_operator_has_set(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0-3")
    by_hand = {"CPUQuotaPerSecUSec": 100_000, "MemoryMax": 128 << 20, "MemoryHigh": 96 << 20, "MemorySwapMax": 7 << 20}
    node.systemd.by_hand(SLICE, CPUWeight=50, IOWeight=50, **by_hand)

    node.driver.confine(SLICE, cpus("0-1"))

    assert node.held == "0-1"
    assert node.driver.read(SLICE) == {"cpu": 0.1, "memory": 128 << 20, "memory_high": 96 << 20}
    files = ("cpu.idle", "cpu.weight", "io.weight", "memory.swap.max")
    assert [node.kernel.text(SLICE_DIRECTORY, file) for file in files] == ["0", "50", "default 50", str(7 << 20)]


def test_systemd_v2_puts_back_somebody_elses_limits_after_a_change_of_cpus(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0-3")
    node.systemd.by_hand(SLICE, MemoryMax=4 << 30, MemoryHigh=4 << 30)

    node.tick("0-1")
    node.systemd.reset(SLICE)

    assert node.driver.read(SLICE) == LIMITS


def test_systemd_v2_changes_cpus_and_leaves_what_an_operator_has_written_to_files(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0-3")
    for file, text in (("cpu.max", "30000 100000"), ("memory.max", "max"), ("memory.high", str(64 << 20))):
        node.kernel.by_hand(f"cg{SLICE_DIRECTORY}/{file}", text)

    node.driver.confine(SLICE, cpus("0-1"))

    assert node.driver.read(SLICE) == {"cpu": 0.3, "memory": UNLIMITED, "memory_high": 64 << 20}


def test_systemd_v2_change_of_cpus_amid_a_growing_usage_kills_nobody(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0-3")
    node.kernel.by_hand(f"cg{SLICE_DIRECTORY}/memory.max", str(256 << 20))
    node.kernel.use(SLICE_DIRECTORY, anon=300 << 20)

    node.driver.confine(SLICE, cpus("0-1"))

    assert node.driver.read(SLICE)["memory"] == 512 << 20


def test_systemd_v2_that_does_not_answer_has_the_box_leave_its_cpus_all_the_same(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0-3")
    node.systemd.away = True
    with pytest.raises(CgroupError, match="no answer"):
        node.driver.confine(SLICE, cpus("0"))
    held = node.held

    node.systemd.away = False
    node.driver.confine(SLICE, cpus("0"))
    node.systemd.reset(SLICE)

    assert (held, node.held) == ("0", "0")


def test_systemd_v2_that_does_not_answer_and_has_made_no_file_is_the_error(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.driver.ensure(SLICE)
    node.systemd.away = True

    with pytest.raises(CgroupError, match="no answer"):
        node.driver.confine(SLICE, cpus("0"))


def test_systemd_v2_is_told_that_nothing_bounds_the_box_any_more(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0")

    node.driver.confine(SLICE, UNLIMITED)

    assert node.systemd.units[SLICE]["AllowedCPUs"] == b""
    assert node.held == ""


def test_systemd_v2_is_not_asked_when_nothing_bounds_the_box(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.driver.ensure(SLICE)
    node.systemd.calls.clear()

    assert node.driver.confine(SLICE, UNLIMITED) == ()
    assert node.systemd.calls == []


def test_systemd_v2_somebody_elses_cpus_are_put_back_in_systemd_too(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0")
    node.systemd.by_hand(SLICE, AllowedCPUs=b"\x0f")

    node.tick("0")
    node.systemd.reset(SLICE)

    assert node.held == "0"


def test_systemd_v2_slice_that_was_made_anew_has_its_cpus(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0")
    node.systemd.stop(SLICE)

    node.tick("0")

    assert node.held == "0"


def test_systemd_v2_that_did_not_make_the_file_is_told_again(tmp_path: Path) -> None:
    node = made(tmp_path, 2)
    node.tick("0")
    Path(node.kernel.root, f"cg{SLICE_DIRECTORY}/cpuset.cpus").unlink()
    with pytest.raises(CgroupError, match="does not exist"):
        node.tick("0")

    node.tick("0")

    assert node.held == "0"


@pytest.mark.parametrize("leaves", ["", "8-9"])
def test_systemd_v2_box_without_a_cpu_keeps_what_it_has(tmp_path: Path, leaves: str) -> None:
    node = made(tmp_path, 2)
    node.kernel.by_hand("cg/cpuset.cpus.effective", "0-3")
    node.tick("0")

    with pytest.raises(CgroupError, match="keeps the CPUs that it has"):
        node.driver.confine(SLICE, cpus(leaves))

    assert node.systemd.units[SLICE]["AllowedCPUs"] == b"\x01"


def test_systemd_v1_box_that_lost_its_cpuset_has_its_cpus_once_it_is_kept_to_them(tmp_path: Path) -> None:
    node = made(tmp_path, 1)
    node.tick("0")
    node.kernel.rmdir(f"{node.kernel.root}/cpuset{SLICE_DIRECTORY}")
    node.driver.ensure_pod("offline-poda.slice", PodLimits())

    node.driver.confine(SLICE, cpus("0"))

    assert node.held == "0"
    assert node.kernel.file(f"cpuset{SLICE_DIRECTORY}/offline-poda.slice/cpuset.cpus") == "0"


def test_systemd_v1_has_no_say_in_cpusets(tmp_path: Path) -> None:
    node = made(tmp_path, 1)
    node.tick("0")

    assert node.held == "0"
    assert "AllowedCPUs" not in node.systemd.units[SLICE]


# --- pods that stay on some of the box's CPUs ------------------------------------------------------------------------


def test_v1_pod_and_all_in_it_are_pinned_and_freed(v1: V1) -> None:
    v1.make_container("0-3")

    changes = v1.driver.confine(POD, cpus("1"))
    pinned = v1.held(BOX, POD, CONTAINER)
    again = v1.driver.confine(POD, cpus("1"))
    v1.driver.confine(POD, cpus("2-3"))
    moved = v1.held(BOX, POD, CONTAINER)
    v1.driver.confine(POD, UNLIMITED)

    assert [(change.old, change.new) for change in changes] == [("0-3", "1")]
    assert again == ()
    assert pinned == ["0-3", "1", "1"]
    assert moved == ["0-3", "2-3", "2-3"]
    assert v1.held(BOX, POD, CONTAINER) == ["0-3"] * 3


def test_v1_pinned_pod_follows_a_box_that_is_narrowed_and_is_pinned_anew(v1: V1) -> None:
    v1.make_container("0-3")
    v1.driver.confine(POD, cpus("1"))

    v1.driver.confine(BOX, cpus("2-3"))
    v1.driver.confine(POD, cpus("3"))

    assert v1.held(BOX, POD, CONTAINER) == ["2-3", "3", "3"]


def test_v1_pod_that_another_process_had_pinned_follows_the_box_until_it_is_pinned_anew(v1: V1) -> None:
    v1.make_container("0-3")
    v1.driver.confine(POD, cpus("1"))
    successor = detect(v1.kernel, v1.kernel.root)

    successor.confine(BOX, UNLIMITED)
    free = v1.held(BOX, POD, CONTAINER)
    successor.confine(POD, cpus("2"))

    assert free == ["0-3"] * 3
    assert v1.held(BOX, POD, CONTAINER) == ["0-3", "2", "2"]


@pytest.mark.parametrize("pin", [UNLIMITED, cpus("0")], ids=["freed", "pinned"])
def test_v1_pod_with_a_container_on_other_cpus_is_left_as_it_is(v1: V1, pin: Cpus | Unlimited) -> None:
    v1.make_container("1")

    assert v1.driver.confine(POD, pin) == ()
    assert v1.held(BOX, POD, CONTAINER) == ["0-3", "0-3", "1"]


def test_v1_pin_outside_the_box_changes_nothing(v1: V1) -> None:
    v1.driver.confine(BOX, cpus("0-1"))

    assert v1.driver.confine(POD, cpus("3")) == ()
    assert v1.held(POD) == ["0-1"]


def test_v1_without_cpusets_says_why_pods_can_t_be_pinned(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 1)
    mountinfo = tmp_path / "self/mountinfo"
    mountinfo.write_text("".join(line for line in mountinfo.read_text().splitlines(True) if "/cpuset rw" not in line))
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    with pytest.raises(CgroupError, match="no cpuset hierarchy"):
        driver.confine(POD, cpus("1"))


def test_v2_pod_is_pinned_by_one_file_and_freed_by_an_empty_one(v2: V2) -> None:
    v2.driver.ensure_pod(POD, PodLimits())

    changes = v2.driver.confine(POD, cpus("1"))
    again = v2.driver.confine(POD, cpus("1"))
    held = v2.kernel.file(f"cg{POD}/cpuset.cpus")
    v2.driver.confine(POD, UNLIMITED)

    assert (len(changes), again, held) == (1, (), "1")
    assert v2.kernel.file(f"cg{POD}/cpuset.cpus") == ""


def test_v2_pod_with_processes_is_freed_by_all_that_the_node_has(v2: V2) -> None:
    v2.driver.ensure_pod(POD, PodLimits())
    v2.kernel.by_hand("cg/cpuset.cpus.effective", "0-3")
    v2.driver.confine(POD, cpus("1"))
    v2.kernel.by_hand(f"cg{POD}/cgroup.procs", "7")

    v2.driver.confine(POD, UNLIMITED)

    assert v2.kernel.file(f"cg{POD}/cpuset.cpus") == "0-3"


def test_v2_pod_with_a_container_on_other_cpus_is_left_as_it_is(v2: V2) -> None:
    """It would run wherever the pod does, and kubelet may have given these to an online pod."""
    v2.driver.ensure_pod(POD, PodLimits())
    v2.kernel.mkdir(f"{v2.kernel.root}/cg{CONTAINER}")
    v2.kernel.by_hand(f"cg{CONTAINER}/cpuset.cpus", "0-1")

    assert v2.driver.confine(POD, cpus("2")) == ()
    assert len(v2.driver.confine(POD, cpus("1"))) == 1


def test_v2_pod_whose_container_comes_with_other_cpus_is_freed_of_its_pin(v2: V2) -> None:
    """A DRA driver or a plugin of NRI names them once the pod is pinned, and it would run on the pin alone."""
    v2.driver.ensure_pod(POD, PodLimits())
    v2.driver.confine(POD, cpus("3"))
    v2.kernel.mkdir(f"{v2.kernel.root}/cg{CONTAINER}")
    v2.kernel.by_hand(f"cg{CONTAINER}/cpuset.cpus", "0-2")

    freed = v2.driver.confine(POD, cpus("3"))
    held = v2.kernel.file(f"cg{POD}/cpuset.cpus")

    assert (len(freed), held) == (1, "")
    assert v2.driver.confine(POD, cpus("3")) == ()
    assert len(v2.driver.confine(POD, cpus("2"))) == 1


def test_v2_without_the_controller_says_why_pods_can_t_be_pinned(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, 2)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)
    driver.ensure_pod(POD, PodLimits())

    driver.confine(POD, UNLIMITED)
    with pytest.raises(CgroupError, match=r"cpuset.cpus does not exist, so offline pods can't be kept on some"):
        driver.confine(POD, cpus("1"))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("pin", [UNLIMITED, cpus("1")], ids=["freed", "pinned"])
def test_pod_that_has_gone_is_no_error(tmp_path: Path, version: int, pin: Cpus | Unlimited) -> None:
    kernel = FakeKernel(tmp_path, version, cpusets=True)
    driver = detect(kernel, kernel.root)
    driver.ensure(BOX)

    assert driver.confine(POD, pin) == ()
