"""What the runtime does outside the box, from counters to the pod to blame; and where the counters come from."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import pytest

from criproxy.model import PodRef, Sandbox
from criproxy.pods.overhead import (
    LOUD_BYTES_PER_S,
    OVERLOAD_S,
    OutsideLoad,
    OverheadCounters,
    OverheadReader,
    OverheadWatch,
    PodLoad,
    Watched,
    load_between,
    to_blame,
)
from criproxy.pods.runtime import Process, Running
from criproxy.pods.stopping import HOLD_S, ON_RUNTIME_OVERLOAD
from tests.fakes.bench import PartBench

T = TypeVar("T")

A, B = (Sandbox(f"s{uid}", PodRef(uid, "batch", f"job-{uid}"), f"/offline/pod{uid}") for uid in "ab")
PODS = {A.id: A, B.id: B}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_CORES = 0.25


def load(before: OverheadCounters, after: OverheadCounters) -> OutsideLoad:
    return load_between(before, after, PODS, 10.0)


def of(load: OutsideLoad, sandbox: Sandbox) -> tuple[float, float]:
    """What was done for this one."""
    return next((pod.shim_cores, pod.log_bytes_per_s) for pod in load.pods if pod.sandbox == sandbox)


# --- from counters to work ---------------------------------------------------------------------------------------


def test_work_is_what_the_counters_have_grown_by() -> None:
    before = OverheadCounters(
        (1, 5.0), {(7, 1): ("sa", 1.0), (8, 1): ("sb", 2.0)}, {"c1": ("sa", 1, 1000), "c2": ("sb", 2, 5)}
    )
    after = OverheadCounters(
        (1, 9.0), {(7, 1): ("sa", 2.0), (8, 1): ("sb", 2.0)}, {"c1": ("sa", 1, 5000), "c2": ("sb", 2, 5)}
    )
    found = load(before, after)
    assert (found.runtime_cores, of(found, A), of(found, B)) == (0.4, (0.1, 400.0), (0.0, 0.0))
    assert found.pods[0].sandbox == A
    assert found.cores == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [
        pytest.param((1, 1000), (2, 300), 30.0, id="rotated"),
        pytest.param((1, 1000), (1, 300), 30.0, id="truncated"),
        pytest.param(None, (1, 10**9), 0.0, id="seen-for-the-first-time"),
        pytest.param((1, 1000), None, 0.0, id="gone"),
    ],
)
def test_log_grows_by_what_was_written_last(
    before: tuple[int, int] | None, after: tuple[int, int] | None, grown: float
) -> None:
    counters = [OverheadCounters(logs={} if file is None else {"c1": ("sa", *file)}) for file in (before, after)]
    assert load(*counters).log_bytes_per_s == grown


@pytest.mark.parametrize("before", [None, (2, 100.0)], ids=["not-known", "another-process"])
def test_runtime_that_was_not_there_before_is_not_known(before: tuple[int, float] | None) -> None:
    assert load(OverheadCounters(before), OverheadCounters((1, 5.0))).runtime_cores is None


def test_shim_of_the_same_number_that_is_another_does_not_count() -> None:
    assert (
        load(OverheadCounters(shims={(7, 1): ("sa", 1.0)}), OverheadCounters(shims={(7, 2): ("sa", 9.0)})).shim_cores
        == 0.0
    )


# --- who is to blame ---------------------------------------------------------------------------------------------


def did(runtime: float | None, **pods: tuple[float, float]) -> OutsideLoad:
    named = {"a": A, "b": B}
    return OutsideLoad(runtime, tuple(PodLoad(named[name], *one) for name, one in pods.items()))


@pytest.mark.parametrize(
    ("done", "blamed"),
    [
        pytest.param(did(0.9, a=(0.0, 2e7), b=(0.2, 0.0)), A, id="the-loudest"),
        pytest.param(did(0.1, a=(0.0, 0.0), b=(0.3, 0.0)), B, id="the-shim-that-works-most"),
        pytest.param(did(0.2, a=(0.1, 4 * LOUD_BYTES_PER_S)), A, id="runtime-and-shim-together"),
        pytest.param(did(0.9, a=(0.0, LOUD_BYTES_PER_S / 2)), None, id="busy-for-others"),
        pytest.param(did(0.9, a=(0.0, 2 * LOUD_BYTES_PER_S)), None, id="busy-for-others-beside-some-log"),
        pytest.param(did(0.2, a=(0.01, 2e7)), None, id="not-too-much"),
        pytest.param(did(None, a=(0.1, 2e7)), None, id="runtime-not-known"),
        pytest.param(did(0.9), None, id="no-offline-pod"),
    ],
)
def test_pod_is_to_blame_when_too_much_is_done_and_its_logs_or_shim_say_so(
    done: OutsideLoad, blamed: Sandbox | None
) -> None:
    found = to_blame(done, MAX_CORES)
    assert (found.sandbox if found else None) == blamed


# --- the reader --------------------------------------------------------------------------------------------------


class Proc:
    """A /proc, and logs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reader = OverheadReader(root)

    def process(
        self, pid: int, parent: int = 1, *, cgroup: str = "/system.slice", cpu_s: float = 0, born: int = 1
    ) -> None:
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        rest = f"S {parent} 1 1 0 -1 0 0 0 0 0 {int(cpu_s * TICKS_PER_S)} 0 0 0 20 0 1 0 {born} 0 0"
        (directory / "stat").write_text(f"{pid} (x) {rest}\n")
        (directory / "cgroup").write_text(f"0::{cgroup}\n")

    def pod(self, pid: int = 20, shim: int = 10, **of_shim: Any) -> Watched:
        self.process(shim, **of_shim)
        self.process(pid, shim, cgroup="/offline/poda/x")
        return watched_of("sa", A, pid, "")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_shim_is_the_parent_of_the_first_process(proc: Proc) -> None:
    watched = proc.pod(cpu_s=3.0, born=5)
    assert proc.reader.read(0, [watched]).shims == {(10, 5): ("sa", 3.0)}
    proc.process(10, cpu_s=4.0, born=5)
    (proc.root / "20" / "stat").unlink()  # the shim is known by now
    assert proc.reader.read(0, [watched]).shims == {(10, 5): ("sa", 4.0)}


def test_shim_of_a_whole_pod_counts_once(proc: Proc) -> None:
    sandbox = proc.pod(cpu_s=3.0)
    proc.process(21, 10, cgroup="/offline/poda/y")
    assert len(proc.reader.read(0, [sandbox, watched_of("c1", A, 21, "")]).shims) == 1


def test_shim_in_the_box_is_bounded_and_does_not_count(proc: Proc) -> None:
    assert proc.reader.read(0, [proc.pod(cgroup="/offline/poda/shim")]).shims == {}


def test_process_that_is_another_s_by_now_has_no_shim(proc: Proc) -> None:
    watched = proc.pod()
    proc.process(20, 10, cgroup="/kubepods/podx/y")
    assert proc.reader.read(0, [watched]).shims == {}


def test_shim_whose_number_went_to_another_is_looked_for_anew(proc: Proc) -> None:
    watched = proc.pod(born=5)
    proc.reader.read(0, [watched])
    proc.process(10, born=6)
    assert proc.reader.read(0, [watched]).shims == {}
    assert proc.reader.read(0, [watched]).shims == {(10, 6): ("sa", 0.0)}


def test_shim_of_a_process_whose_first_thread_has_ended_is_found(proc: Proc) -> None:
    watched = proc.pod(cpu_s=3.0, born=5)
    first = proc.root / "20"
    (first / "stat").write_text((first / "stat").read_text().replace(" S ", " Z "))
    (first / "cgroup").write_text("4:cpu,cpuacct,memory:/\n")  # as v1 shows it
    (first / "task/21").mkdir(parents=True)
    (first / "task/21/stat").write_text(f"21 (x) S 10{' 0' * 18}\n")
    (first / "task/21/cgroup").write_text("4:cpu,cpuacct,memory:/offline/poda/x\n")
    assert proc.reader.read(0, [watched]).shims == {(10, 5): ("sa", 3.0)}


def test_process_without_a_shim_has_none(proc: Proc) -> None:
    proc.process(20, 1, cgroup="/offline/poda/x")
    assert proc.reader.read(0, [watched_of("sa", A, 20, ""), watched_of("sb", B, 0, "")]).shims == {}


def test_runtime_and_logs_are_read_as_far_as_they_are_there(proc: Proc) -> None:
    proc.process(5, cpu_s=2.0, born=9)
    log = proc.root / "0.log"
    log.write_text("x" * 100)
    pipe = proc.root / "pipe"
    os.mkfifo(pipe)
    watched = [
        watched_of("c1", A, 0, str(log)),
        watched_of("c2", A, 0, "/not/there"),
        watched_of("c3", A, 0, str(pipe)),
    ]
    found = proc.reader.read(5, watched)
    assert (found.runtime, found.logs) == ((9, 2.0), {"c1": ("sa", log.stat().st_ino, 100)})
    assert proc.reader.read(6, []).runtime is None


# --- the watch ---------------------------------------------------------------------------------------------------


def watched_of(id: str, sandbox: Sandbox, pid: int, log: str) -> Watched:
    return Running(sandbox, id, ""), Process(pid, log=log)


class Bench(PartBench):
    """A node that the test scripts: `loud` is whether pod a prints. An Exception in `fails` is raised by the reader."""

    pid = 5

    def __init__(self, *settings: str, loud: bool = True) -> None:
        super().__init__(*settings)
        self.loud = loud
        self.fails: Exception | None = None
        self.readings = OverheadCounters((1, 0.0), {}, {"ca": ("sa", 1, 0)})
        self.running: tuple[Running, ...] = (Running(A, "sa", ""), Running(A, "ca", "main"))
        shared: Any = self.shared()
        shared.processes.update({one.id: Process(20, log="/var/log/x") for one in self.running})
        self.overhead = OverheadWatch(shared, self, self, self, MAX_CORES)  # type: ignore[arg-type]

    def read(self, runtime_pid: int, watched: Collection[Watched]) -> OverheadCounters:
        assert (runtime_pid, [one.id for one, _ in watched]) == (5, [one.id for one in self.running])
        if self.fails:
            raise self.fails
        return self.readings

    def watch(self, seconds: float) -> None:
        """Looks for so long."""
        for _ in range(round(seconds / OverheadWatch.EVERY_S)):
            self.clock.now += OverheadWatch.EVERY_S
            runtime, size_bytes = self.readings.runtime, self.readings.logs["ca"][2]
            assert runtime is not None
            more_s, more_bytes = (5.0, 10**8) if self.loud else (0.01, 100)
            self.readings = OverheadCounters((1, runtime[1] + more_s), {}, {"ca": ("sa", 1, size_bytes + more_bytes)})
            self.look(self.overhead)


def test_pod_that_prints_for_a_minute_is_told_once() -> None:
    bench = Bench()
    bench.watch(OVERLOAD_S)
    assert (bench.overhead.too_much, bench.log.names()) == ("", [])
    bench.watch(OVERLOAD_S)
    assert "batch/job-a" in bench.overhead.too_much
    assert "0.50 cores outside the box" in bench.overhead.too_much
    assert bench.log.names() == ["runtime_overloaded"]
    assert bench.stopped == []


def test_burst_is_not_told() -> None:
    bench = Bench()
    for _ in range(3):
        bench.loud = True
        bench.watch(OVERLOAD_S - OverheadWatch.EVERY_S)
        bench.loud = False
        bench.watch(OverheadWatch.EVERY_S)
    assert (bench.overhead.too_much, bench.log.names()) == ("", [])


def test_end_of_it_is_told() -> None:
    bench = Bench()
    bench.watch(2 * OVERLOAD_S)
    bench.loud = False
    bench.watch(OverheadWatch.EVERY_S)
    assert (bench.overhead.too_much, bench.log.names()) == ("", ["runtime_overloaded", "runtime_no_longer_overloaded"])


def test_quiet_pod_is_no_problem() -> None:
    bench = Bench(loud=False)
    bench.watch(10 * OVERLOAD_S)
    assert (bench.overhead.too_much, bench.log.names()) == ("", [])


def test_loudest_pod_is_evicted_when_the_config_says_so_one_in_a_minute() -> None:
    bench = Bench(ON_RUNTIME_OVERLOAD)
    bench.watch(OVERLOAD_S + OverheadWatch.EVERY_S)
    assert [one for one, _ in bench.stopped] == ["sa"]
    assert "colocation.on_runtime_overload" in bench.stopped[0][1]
    bench.watch(OVERLOAD_S - OverheadWatch.EVERY_S)
    assert len(bench.stopped) == 1
    bench.watch(OverheadWatch.EVERY_S)
    assert len(bench.stopped) == 2


def test_evicted_pod_is_held_for_a_while_and_no_other_one() -> None:
    bench = Bench(ON_RUNTIME_OVERLOAD)
    bench.watch(OVERLOAD_S)
    assert bench.holds.held(A.pod) == ""
    bench.watch(OverheadWatch.EVERY_S)
    assert "on_runtime_overload" in bench.holds.held(A.pod)
    assert bench.holds.held(B.pod) == ""
    bench.holds.configure(frozenset())
    assert bench.holds.held(A.pod) == ""
    bench.holds.configure(frozenset([ON_RUNTIME_OVERLOAD]))
    bench.clock.now += HOLD_S
    assert bench.holds.held(A.pod) == ""


def test_failure_is_told_once_and_measured_over_when_it_ends() -> None:
    bench = Bench(loud=False)
    bench.watch(2 * OverheadWatch.EVERY_S)
    bench.fails = OSError("the disk is away")
    bench.watch(3 * OverheadWatch.EVERY_S)
    assert bench.log.names() == ["look_failed"]
    bench.fails = None
    bench.watch(OverheadWatch.EVERY_S)
    counted = {name: by for name, _, by in bench.counters.counted[-3:]}
    assert counted == pytest.approx(
        {"runtime_cpu_seconds": 0.04, "offline_shim_cpu_seconds": 0.0, "offline_log_bytes": 400}
    )


def test_what_is_not_there_any_more_is_forgotten() -> None:
    bench = Bench()
    bench.watch(2 * OverheadWatch.EVERY_S)
    bench.running = ()
    bench.watch(OverheadWatch.EVERY_S)
    assert bench.overhead.load.pods == ()


def test_status_tells_the_three_loudest_pods() -> None:
    bench = Bench()
    bench.watch(2 * OverheadWatch.EVERY_S)
    assert [(one.name, one.log_bytes_per_s) for one in bench.overhead.status().pods] == [("job-a", 1e7)]
    head, text, *pods = next(bench.overhead.rows())
    assert (head, text.startswith("runtime 0.50 cores"), len(pods)) == ("overhead", True, 1)
