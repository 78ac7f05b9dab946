"""Signals as they are read: from trees of plain files, v1 and v2, with what is not there and what goes away."""

import asyncio
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from criproxy.cgroup import pod_stalls, run_queue
from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect, detect_signals
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.cgroup.run_queue import CGROUPS_A_READING, KEPT_THREADS, MOST_THREADS, THREADS_OF_A_CGROUP
from criproxy.cgroup.tree import Tree
from criproxy.control.interference.signals import pod_waits, values
from criproxy.control.memory_pressure import EvictionHard
from criproxy.model import UNLIMITED
from criproxy.model.signals import (
    CpuSpent,
    DiskIo,
    MemoryRoom,
    Missing,
    PidsRoom,
    PodStall,
    RunQueue,
    Stall,
    ThreadTimes,
    Throttling,
)
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import FakeKernel

BOX, ONLINE = "/offline", "/kubepods"
POD, CONTAINER = f"{ONLINE}/burstable/poda", f"{ONLINE}/burstable/poda/c"


class VanishingKernel(FakeKernel):
    """`doomed`: a cgroup that goes away as one of its files is being read."""

    doomed = ""

    def read(self, file: str) -> str:
        self._end(file)
        return super().read(file)

    def head(self, file: str, most_bytes: int) -> str:
        self._end(file)
        return super().head(file, most_bytes)

    def _end(self, file: str) -> None:
        if self.doomed and file.startswith(f"{self.doomed}/"):
            shutil.rmtree(self.doomed, ignore_errors=True)
            raise CgroupError(f"cannot read {file}: ENODEV", errno.ENODEV)


class Node:
    """A kernel with a box, kubepods, and one pod with one container in it."""

    def __init__(
        self, root: Path, version: int, lacks: tuple[str, ...] = (), *, pods: tuple[str, ...] = ("a",)
    ) -> None:
        self.root = root
        self.version = version
        self.kernel = VanishingKernel(root, version, lacks)
        detect(self.kernel, str(root)).ensure(BOX)
        self.make(ONLINE)
        self.make(f"{ONLINE}/burstable")
        for pod in pods:
            self.make(f"{ONLINE}/burstable/pod{pod}")
            self.make(f"{ONLINE}/burstable/pod{pod}/c")
        self.clock = FakeClock()
        self.reader = detect_signals(self.kernel, self.clock, str(root))

    def directory(self, controller: str, path: str) -> str:
        return self.kernel.where(controller, path)

    def make(self, path: str) -> None:
        for controller in ("cpu", "memory", "blkio") if self.version == 1 else ("cpu",):
            self.kernel.mkdir(self.directory(controller, path))
        if self.version == 2:
            Path(self.directory("cpu", path), "cgroup.subtree_control").write_text("cpu io memory")

    def write(self, controller: str, path: str, text: str) -> None:
        Path(self.directory(controller, path)).write_text(text)

    def thread(self, tid: int, ran_ns: int = 0, waited_ns: int = 0) -> None:
        (self.root / str(tid)).mkdir(exist_ok=True)
        (self.root / str(tid) / "schedstat").write_text(f"{ran_ns} {waited_ns} 1\n")

    def threads(self, path: str, *tids: int) -> None:
        name = "tasks" if self.version == 1 else "cgroup.threads"
        self.write("cpu", f"{path}/{name}", "".join(f"{tid}\n" for tid in tids))
        for tid in tids:
            self.thread(tid)

    def read(self, *, own_limits: bool = False):
        return self.reader.read(BOX, own_limits=own_limits)


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, request.param)


@pytest.fixture
def v1(tmp_path: Path) -> Node:
    return Node(tmp_path, 1)


@pytest.fixture
def v2(tmp_path: Path) -> Node:
    return Node(tmp_path, 2)


# --- pressure --------------------------------------------------------------------------------------------------------

SOME = "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000"
FULL = "full avg10=0.00 avg60=0.00 avg300=0.00 total=500000"


def test_pressure_is_that_of_kubepods(v2: Node) -> None:
    v2.write("cpu", f"{ONLINE}/cpu.pressure", SOME)
    v2.write("cpu", f"{ONLINE}/memory.pressure", f"{SOME}\n{FULL}")
    v2.write("cpu", f"{BOX}/io.pressure", SOME)

    reading = v2.read()

    assert reading.cpu.some_s == 2.5
    assert reading.memory.some_s == 2.5
    assert reading.io.some_s == 0.0


def test_pressure_of_v1_is_missing_and_threads_are_looked_at_instead(v1: Node) -> None:
    reading = v1.read()

    for signal in (reading.cpu, reading.memory, reading.io):
        assert signal == Missing("cgroup v1 reports no pressure (PSI) of cgroups")
    assert isinstance(reading.run_queue, RunQueue)


def without_psi(node: Node, cmdline: str) -> None:
    without_files(node)
    shutil.rmtree(node.root / "pressure")
    (node.root / "cmdline").write_text(cmdline)


def without_files(node: Node) -> None:
    for name in ("cpu", "memory", "io"):
        os.remove(f"{node.directory('cpu', ONLINE)}/{name}.pressure")


def switched_off(node: Node) -> None:
    without_files(node)
    node.write("cpu", f"{ONLINE}/cgroup.pressure", "0")


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (
            lambda node: without_psi(node, "quiet"),
            "this kernel was built without PSI, or has it off by default: then boot with psi=1",
        ),
        (
            lambda node: without_psi(node, "quiet psi=0"),
            "PSI is switched off on the kernel's command line (psi=0)",
        ),
        (
            lambda node: without_psi(node, "cgroup_disable=misc,pressure psi=1"),
            "PSI is switched off on the kernel's command line (cgroup_disable=misc,pressure)",
        ),
        (switched_off, "cg/kubepods/cgroup.pressure is 0: write 1 there"),
        (without_files, "cg/kubepods/cpu.pressure does not exist, although this kernel has PSI"),
        (
            lambda node: shutil.rmtree(node.directory("cpu", ONLINE)),
            "cg/kubepods/cpu.pressure does not exist: kubelet has not made its cgroup yet",
        ),
        (
            lambda node: node.write("cpu", f"{ONLINE}/cpu.pressure", "other words"),
            "a file has another form than is known: ",
        ),
    ],
    ids=["no-psi", "psi=0", "cgroup-disable", "switched-off", "gone", "no-kubepods", "garbled"],
)
def test_pressure_that_is_missing_says_why(v2: Node, prepare, why: str) -> None:
    prepare(v2)

    reading = v2.read()

    assert isinstance(reading.cpu, Missing)
    assert why in reading.cpu.why
    assert isinstance(reading.room, MemoryRoom)  # the others are read all the same


def test_pressure_that_the_kernel_refuses_is_told_as_switched_off(tmp_path: Path, monkeypatch) -> None:
    """Before Linux 6.1, the files are there with psi=0, too."""
    node = Node(tmp_path, 2)
    without_psi(node, "psi=0")
    read = node.kernel.read

    def refusing(file: str) -> str:
        if file.endswith(".pressure"):
            raise CgroupError(f"cannot read {file}: EOPNOTSUPP", errno.EOPNOTSUPP)
        return read(file)

    monkeypatch.setattr(node.kernel, "read", refusing)
    assert node.read().io == Missing("PSI is switched off on the kernel's command line (psi=0)")


# --- limits of online's own ------------------------------------------------------------------------------------------


def test_own_limits_are_read_only_when_asked_for(node: Node) -> None:
    assert node.read().own_limits is None


def test_own_limits_are_of_every_cgroup_below_kubepods(node: Node) -> None:
    found = node.read(own_limits=True).own_limits

    assert found.complete
    assert set(found.of) == {f"{ONLINE}/burstable", POD, CONTAINER}
    expected = Throttling(2.5) if node.version == 1 else Throttling(2.5, 1.5)
    assert found.of[CONTAINER] == expected
    assert found.online_s == (None if node.version == 1 else 1.5)


PODS = {"a": (f"{ONLINE}/besteffort/poda", POD), "b": (f"{ONLINE}/podb",)}


def uids(node: Node, pods: Mapping[str, Sequence[str]]) -> set[str]:
    """Those of the pods that can be read."""
    found = node.reader.read(BOX, own_limits=False, pods=pods).pods
    assert not isinstance(found, Missing)
    return set(found)


def test_each_pod_is_read_where_it_is(node: Node) -> None:
    if node.version == 2:
        node.write("cpu", f"{POD}/cpu.pressure", SOME)

    reading = node.reader.read(BOX, own_limits=False, pods=PODS)

    stall = None if node.version == 1 else Stall(node.clock.monotonic_s(), 2.5)
    assert reading.pods == {"a": PodStall(POD, stall)}


def test_pod_that_goes_is_left_out_and_its_file_closed(v2: Node) -> None:
    v2.write("cpu", f"{POD}/cpu.pressure", SOME)
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        v2.reader.read(BOX, own_limits=False, pods=PODS)
    kept = len(os.listdir("/proc/self/fd"))
    reading = v2.reader.read(BOX, own_limits=False, pods={})

    assert (kept - opened, reading.pods) == (1, {})
    assert len(os.listdir("/proc/self/fd")) == opened


def test_pod_whose_pressure_can_not_be_read_is_left_out(v2: Node) -> None:
    v2.make(f"{ONLINE}/podb")
    for path, text in ((POD, "nonsense"), (f"{ONLINE}/podb", SOME)):
        v2.write("cpu", f"{path}/cpu.pressure", text)

    assert uids(v2, PODS) == {"b"}
    v2.write("cpu", f"{POD}/cpu.pressure", SOME)
    assert uids(v2, PODS) == {"a", "b"}


def test_no_more_pods_are_read_than_may_be(v2: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_stalls, "MOST_PODS", 1)
    for pod in ("a", "b"):
        v2.make(f"{ONLINE}/burstable/pod{pod}")
        v2.write("cpu", f"{ONLINE}/burstable/pod{pod}/cpu.pressure", SOME)
    pods = {pod: (f"{ONLINE}/burstable/pod{pod}",) for pod in ("a", "b")}

    assert uids(v2, pods) == {"a"}
    assert uids(v2, {"b": pods["b"]}) == {"b"}


def test_own_limits_leave_out_a_pod_that_vanishes_amid_the_reading(node: Node) -> None:
    node.kernel.doomed = node.directory("cpu", POD)

    found = node.read(own_limits=True).own_limits

    assert set(found.of) == {f"{ONLINE}/burstable"}
    assert found.complete


def test_own_limits_of_very_many_cgroups_are_not_complete(node: Node, monkeypatch) -> None:
    monkeypatch.setattr("criproxy.cgroup.signals.MOST_CGROUPS", 2)

    found = node.read(own_limits=True).own_limits

    assert not found.complete
    assert set(found.of) == {f"{ONLINE}/burstable", POD}


def test_own_limits_without_the_cpu_controller_are_none(v2: Node) -> None:
    v2.write("cpu", f"{POD}/cpu.stat", "usage_usec 7000000")

    assert v2.read(own_limits=True).own_limits.of[POD] == Throttling(0.0, 7.0)


# --- run queues ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2])
def unpressed(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """Without pressure, in either version."""
    node = Node(tmp_path, request.param, pods=("a", "b"))
    if node.version == 2:
        without_psi(node, "psi=0")
        for file in Path(node.directory("cpu", ONLINE)).rglob("*.pressure"):
            file.unlink()
    return node


OF_B = f"{ONLINE}/burstable/podb/c"


def test_run_queue_has_threads_of_all_pods_with_their_cgroups(unpressed: Node) -> None:
    unpressed.threads(CONTAINER, 101, 102)
    unpressed.threads(OF_B, 201)
    unpressed.thread(102, 3_000_000_000, 500_000_000)

    assert unpressed.read().run_queue.threads == {
        101: ThreadTimes(CONTAINER, 0.0, 0.0),
        102: ThreadTimes(CONTAINER, 3.0, 0.5),
        201: ThreadTimes(OF_B, 0.0, 0.0),
    }


def test_run_queue_makes_a_signal_of_two_readings(unpressed: Node) -> None:
    unpressed.threads(CONTAINER, 101)
    before = unpressed.read(own_limits=True)
    unpressed.thread(101, 75_000_000, 25_000_000)
    unpressed.clock.advance(1.0)

    found = {value.name: value for value in values(before, unpressed.read(own_limits=True), EvictionHard())}

    assert found["run_queue_delay"].value == pytest.approx(250.0)
    assert found["cpu_pressure"].absent


def test_pods_are_told_apart_without_pressure_so_that_what_their_threads_wait_is_theirs(unpressed: Node) -> None:
    unpressed.threads(CONTAINER, 101)
    before = unpressed.reader.read(BOX, own_limits=False, pods=PODS)
    unpressed.thread(101, 300_000_000, 100_000_000)
    unpressed.clock.advance(1.0)
    now = unpressed.reader.read(BOX, own_limits=False, pods=PODS)

    assert before.pods == now.pods == {"a": PodStall(POD)}
    (wait,) = pod_waits(before, now).values()
    assert wait.path == POD and wait.percent == pytest.approx(25.0)


def test_pod_is_there_whose_file_says_that_the_kernel_has_no_pressure(v2: Node, monkeypatch) -> None:
    def not_supported(_: Tree, __: int, file: str) -> str:
        raise CgroupError(f"read {file}: EOPNOTSUPP", errno.EOPNOTSUPP)

    monkeypatch.setattr(Tree, "read_open", not_supported)
    v2.write("cpu", f"{POD}/cpu.pressure", SOME)

    assert v2.reader.read(BOX, own_limits=False, pods=PODS).pods == {"a": PodStall(POD)}


def test_pods_pressure_is_read_once_it_is_switched_on(v2: Node) -> None:
    os.remove(f"{v2.directory('cpu', POD)}/cpu.pressure")
    assert v2.reader.read(BOX, own_limits=False, pods=PODS).pods == {"a": PodStall(POD)}
    v2.write("cpu", f"{POD}/cpu.pressure", SOME)

    assert v2.reader.read(BOX, own_limits=False, pods=PODS).pods == {
        "a": PodStall(POD, Stall(v2.clock.monotonic_s(), 2.5))
    }


def test_run_queue_goes_on_without_what_has_ended(unpressed: Node) -> None:
    unpressed.threads(CONTAINER, 101, 102)
    unpressed.threads(OF_B, 201)
    unpressed.read()
    shutil.rmtree(unpressed.root / "102")
    unpressed.threads(CONTAINER, 101)
    unpressed.kernel.doomed = unpressed.directory("cpu", f"{ONLINE}/burstable/podb")

    assert set(unpressed.read().run_queue.threads) == {101, 201}
    shutil.rmtree(unpressed.root / "201")
    assert set(unpressed.read().run_queue.threads) == {101}


def test_run_queue_that_has_another_thread_s_id_by_now_is_read_anew(unpressed: Node) -> None:
    unpressed.threads(CONTAINER, 101)
    unpressed.read()
    shutil.rmtree(unpressed.root / "101")
    unpressed.threads(CONTAINER, 101)
    unpressed.thread(101, 7_000_000_000)

    assert unpressed.read().run_queue.threads == {101: ThreadTimes(CONTAINER, 7.0, 0.0)}


def test_run_queue_keeps_the_files_open_of_those_that_it_looks_at_alone(unpressed: Node) -> None:
    def opened() -> int:
        names = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum(name.startswith(str(unpressed.root)) and name.endswith("schedstat") for name in names)

    for tid in range(1000, 1000 + 5 * MOST_THREADS):
        unpressed.make(f"{ONLINE}/burstable/pod{tid}")
        unpressed.threads(f"{ONLINE}/burstable/pod{tid}", tid)
    most = 0
    for _ in range(8):
        unpressed.read()
        most = max(most, opened())

    assert 0 < most <= MOST_THREADS
    unpressed.reader._run_queue.forget()
    assert opened() == 0


def test_run_queue_is_not_looked_at_where_there_is_pressure(v2: Node) -> None:
    v2.threads(CONTAINER, 101)

    assert v2.read().run_queue == Missing("not needed: pressure is read, which sees all threads")


@pytest.mark.parametrize(
    ("text", "why"), [(None, "(CONFIG_SCHED_INFO)"), ("0 0 0\n", "(boot with delayacct)")], ids=["no-file", "zeros"]
)
def test_run_queue_that_the_kernel_does_not_count_says_so(v1: Node, text: str | None, why: str) -> None:
    file = v1.root / "self/schedstat"
    file.unlink() if text is None else file.write_text(text)

    assert v1.read().run_queue.why.endswith(why)


def test_run_queue_reads_a_bounded_number_of_threads_and_comes_to_each(tmp_path: Path) -> None:
    pods = 12
    node = Node(tmp_path, 1, pods=tuple(f"{pod}" for pod in range(pods)))
    all_threads: set[int] = set()
    for pod in range(pods):
        tids = range(1000 * (pod + 1), 1000 * (pod + 1) + 50)
        node.threads(f"{ONLINE}/burstable/pod{pod}/c", *tids)
        all_threads.update(tids)

    readings = [set(node.read().run_queue.threads) for _ in range(60)]

    assert max(map(len, readings)) <= MOST_THREADS + KEPT_THREADS
    assert set().union(*readings) == all_threads
    assert all(len(last & this) >= KEPT_THREADS for last, this in itertools.pairwise(readings))


def test_run_queue_stays_with_those_that_want_most(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    sleepers, busy = range(100, 500), (498, 499)
    node.threads(CONTAINER, *sleepers)
    watched = 0
    for second in range(1, 200):
        for tid in busy:
            node.thread(tid, second * 900_000_000, second * 100_000_000)
        watched += set(busy) <= set(node.read().run_queue.threads)

    assert watched >= 100  # from the moment when each was come across first


def noted(kernel: FakeKernel, method: str, monkeypatch) -> list[str]:
    """The paths that this method of the tree is called with from now on."""
    paths: list[str] = []
    original = getattr(kernel, method)

    def noting(path: str, most: int):
        paths.append(path)
        return original(path, most)

    monkeypatch.setattr(kernel, method, noting)
    return paths


def test_run_queue_takes_a_few_cgroups_at_a_time(tmp_path: Path, monkeypatch) -> None:
    node = Node(tmp_path, 1, pods=tuple(f"{pod}" for pod in range(CGROUPS_A_READING)))
    listed = noted(node.kernel, "head", monkeypatch)

    node.read()

    assert len(listed) == CGROUPS_A_READING


def test_run_queue_of_one_cgroup_is_looked_through_once(v1: Node, monkeypatch) -> None:
    walks = noted(v1.kernel, "first_below", monkeypatch)

    v1.read()

    assert len(walks) == 1


def test_run_queue_keeps_a_thread_of_each_cgroup_beside_one_with_many(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, pods=("a", "b"))
    hungry, victim = range(100, 200), 900
    node.threads(CONTAINER, *hungry)
    node.threads(f"{ONLINE}/burstable/podb/c", victim)
    for second in range(1, 20):
        for tid in hungry:
            node.thread(tid, 10**9 * second, 10**9 * second)
        node.thread(victim, 10**6 * second, 10**6 * second)
        found = node.read().run_queue.threads

    assert victim in found


def test_run_queue_takes_the_beginning_of_a_long_list_of_threads(v1: Node, monkeypatch) -> None:
    monkeypatch.setattr(run_queue, "_LIST_BYTES", 9)
    v1.threads(CONTAINER, 101, 102, 103)

    assert set(v1.read().run_queue.threads) == {101, 102}


def test_fresh_threads_of_a_cgroup_are_a_few_and_others_each_time(v1: Node) -> None:
    v1.threads(CONTAINER, *range(100, 100 + 3 * THREADS_OF_A_CGROUP))

    assert set(v1.read().run_queue.threads) == set(range(101, 124, 3))
    assert set(range(102, 124, 3)) < set(v1.read().run_queue.threads)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_room_is_the_nodes_by_both_measures(node: Node) -> None:
    assert node.read().room == MemoryRoom(1000 << 10, 400 << 10, 500 << 10)


STAT = "cpu  1000 10 500 90000 70 20 30 400 0 0\n" + "".join(
    f"cpu{number} 500 5 250 45000 35 10 15 200 0 0\n" for number in range(2)
)


def test_cpu_time_of_all_of_online_of_the_box_and_of_other_machines(node: Node) -> None:
    """By the hundredth of a second that /proc/stat counts in."""
    node.kernel.by_hand("stat", f"{STAT}intr 1 2 3\n")
    for path, used_s in ((ONLINE, 7.0), (BOX, 3.0)):
        if node.version == 1:
            node.write("cpu", f"{path}/cpuacct.usage", str(int(used_s * 1e9)))
        else:
            node.write("cpu", f"{path}/cpu.stat", f"usage_usec {int(used_s * 1e6)}\nthrottled_usec 0")
    spent = node.read().cpu_use

    assert isinstance(spent, CpuSpent)
    assert (spent.busy_s, spent.online_s, spent.box_s, spent.steal_s, spent.cpus) == (15.6, 7.0, 3.0, 4.0, 2)


def test_processes_are_counted_as_kubelet_does(node: Node) -> None:
    assert node.read().pids == PidsRoom(554, 32768)
    node.kernel.by_hand("sys/kernel/threads-max", "7000\n")
    assert node.read().pids == PidsRoom(554, 7000)


def test_processes_of_a_kernel_that_says_it_otherwise_are_not_known(node: Node) -> None:
    node.kernel.by_hand("loadavg", "2.08 2.19 2.79\n")
    reading = node.read()
    assert isinstance(reading.pids, Missing)
    assert isinstance(reading.room, MemoryRoom)


def test_memory_room_of_an_old_kernel_is_by_kubelets_measure(node: Node) -> None:
    (node.root / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 200 kB\n")

    assert node.read().room == MemoryRoom(1000 << 10, None, 500 << 10)


def test_memory_stat_is_of_kubepods_with_all_that_is_in_it(node: Node) -> None:
    found = node.read().memory_stat

    assert (found.of["workingset_refault_file"], found.of["inactive_file"]) == (7, 4096)
    assert "cache" not in found.of
    assert found.file.endswith("/kubepods/memory.stat")


# --- disks -----------------------------------------------------------------------------------------------------------

DISKSTATS = """\
   8       0 sda 100 10 2000 0 50 5 4000 0 0 0 0 0 0 0 0 0 0
 253       1 dm-1 1 0 8 0 0 0 0 0 0 0 0
"""


def test_disks_have_what_the_node_and_what_the_box_does(v2: Node) -> None:
    (v2.root / "diskstats").write_text(DISKSTATS)
    v2.write(
        "io", f"{BOX}/io.stat", "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=99 dios=9 cost.usage=3\n253:1 \n"
    )

    found = v2.read().disks

    assert found.node == {"8:0": DiskIo(6000 * 512, 165), "253:1": DiskIo(8 * 512, 1)}
    assert found.box == {"8:0": DiskIo(12288, 3), "253:1": DiskIo(0, 0)}
    assert found.names == {"8:0": "sda", "253:1": "dm-1"}


def test_disk_beside_one_without_counts_on_its_line_has_the_counts(v2: Node) -> None:
    """As Linux 5.15 to 5.18 print it."""
    (v2.root / "diskstats").write_text(DISKSTATS)
    v2.write("io", f"{BOX}/io.stat", "253:1 8:0 rbytes=4096 wbytes=8192 rios=1 wios=2\n")

    assert v2.read().disks.box == {"253:1": DiskIo(0, 0), "8:0": DiskIo(12288, 3)}


def test_disks_without_a_box_have_nothing_of_it(v2: Node) -> None:
    shutil.rmtree(v2.directory("io", BOX))

    assert v2.read().disks.box == {}


def test_disks_without_the_io_controller_are_missing(tmp_path: Path) -> None:
    node = Node(tmp_path, 2, lacks=("io.stat",))

    assert node.read().disks.why.endswith("/offline/io.stat does not exist: the io controller is not enabled there")


@pytest.mark.parametrize("kind", ["throttle", "bfq"])
def test_disks_of_v1_are_counted_by_what_the_kernel_has(v1: Node, kind: str) -> None:
    for path, size in (("", 90_000), (BOX, 30_000)):
        v1.write("blkio", f"{path}/blkio.{kind}.io_service_bytes_recursive", blkio(size))
        v1.write("blkio", f"{path}/blkio.{kind}.io_serviced_recursive", blkio(size // 1000))

    assert v1.read().disks.box == {"8:0": DiskIo(30_000, 30)}


def blkio(count: int) -> str:
    sums = {
        "Read": count // 3,
        "Write": count - count // 3,
        "Sync": count,
        "Async": 0,
        "Discard": 7,
        "Total": count + 7,
    }
    return "".join(f"8:0 {name} {value}\n" for name, value in sums.items()) + f"Total {count + 7}"


def test_disks_of_a_v1_that_counts_none_are_missing(v1: Node) -> None:
    assert v1.read().disks == Missing("blkio of cgroup v1 counts no disk on this kernel")


def test_disks_of_v1_without_blkio_are_missing(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    file = tmp_path / "self/mountinfo"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "rw,blkio" not in line))
    node.reader = detect_signals(node.kernel, node.clock, str(tmp_path))

    assert node.read().disks == Missing("there is no cgroup v1 mount of blkio")


# --- all of it -------------------------------------------------------------------------------------------------------


def test_nothing_at_all_can_be_read_and_nothing_is_raised(node: Node) -> None:
    for controller in ("cpu", "memory", "blkio"):
        shutil.rmtree(node.directory(controller, ""), ignore_errors=True)
    for file in ("meminfo", "loadavg", "diskstats", "cmdline", "self/schedstat"):
        (node.root / file).unlink()

    reading = node.read(own_limits=True)

    kinds = (
        reading.cpu,
        reading.memory,
        reading.io,
        reading.run_queue,
        reading.room,
        reading.memory_stat,
        reading.pids,
    )
    for signal in kinds:
        assert isinstance(signal, Missing)
        assert signal.why


def test_a_path_that_is_no_box_is_refused(node: Node) -> None:
    reading = node.reader.read("/elsewhere", own_limits=True)

    assert "'/elsewhere' is not the path of a box" in reading.cpu.why


def test_box_on_slices_is_read_beside_its_kubepods(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    node.make("/kubepods.slice")
    node.write("cpu", "/kubepods.slice/cpu.pressure", SOME)

    assert node.reader.read("offline.slice", own_limits=False).cpu.some_s == 2.5


async def _read_through(box: Box, node: Node):
    try:
        before = await box.reads("read signals", lambda _, path: node.reader.of_box(path, own_limits=False))
        await box.pods.admit(parse_kubelet_parent("/kubepods/burstable/podz"), 0)
        return before, await box.reads("read signals", lambda _, path: node.reader.of_box(path, own_limits=True))
    finally:
        box.close()


def test_box_reads_signals_on_its_reading_thread(node: Node, monkeypatch) -> None:
    threads: set[str] = set()
    read = node.reader.read

    def noting(path: str, **how: Any):
        threads.add(threading.current_thread().name)
        return read(path, **how)

    monkeypatch.setattr(node.reader, "read", noting)
    driver = detect(node.kernel, str(node.root))
    box = Box(driver, BoxSettings({"cpu": 1.0, "memory": 1 << 30}), lambda: UNLIMITED, FakeClock())

    before, after = asyncio.run(_read_through(box, node))

    assert before is None  # no box yet, and so it is not known where kubelet's cgroup is
    assert isinstance(after.cpu, Stall if node.version == 2 else Missing)
    assert after.own_limits is not None
    assert threads == {"cgroup-reader"}


@pytest.mark.parametrize("version", [1, 2])
def test_second_reading_opens_no_file_of_the_box_nor_of_online_again(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read each second: to open one, look for its end and close it costs four times what reading it does."""
    node, opened, stay_open = Node(tmp_path, version), list[str](), set[str]()
    node.reader.read(BOX, own_limits=False)
    really_open, really_often = os.open, node.kernel.read_often

    def note(path: Any, *arguments: Any, **named: Any) -> int:
        opened.append(str(path))
        return really_open(path, *arguments, **named)

    def read_often(file: str) -> str:
        stay_open.add(file)
        return really_often(file)

    monkeypatch.setattr("criproxy.cgroup.tree.os.open", note)
    monkeypatch.setattr(node.kernel, "read_often", read_often)
    node.reader.read(BOX, own_limits=False)
    again = {file for file in opened if Path(file).exists()} - stay_open
    assert {Path(file).name for file in again} <= {"tasks", "cgroup.threads", "diskstats"}
    assert len(stay_open) > 5
