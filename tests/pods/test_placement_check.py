"""Rounds of the placement check between a scripted runtime, that may lie, and a table of processes."""

import asyncio
import gc
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import astuple

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.processes import ProcCgroupReader
from criproxy.cgroup.strays import Stray
from criproxy.clients.http2.connection import CallError
from criproxy.concurrency.clock import Clock
from criproxy.model import PodRef, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.placement_check import CONFIRM_S, TOGETHER_S, PlacementCheck
from criproxy.pods.runtime import Process, Running, UnknownError
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED, Holds
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.part import look, node_settings, round_of

RUNC, KATA = "io.containerd.runc.v2", "io.containerd.kata.v2"
INSIDE, OUTSIDE = "0::/offline/pod1/x\n", "0::/system.slice/x\n"
POD = PodRef("1", "batch", "job")


def sandbox(uid: str = "1", box: str = "/offline") -> Running:
    pod = PodRef(uid, "batch", "job")
    return Running(Sandbox(f"s{uid}", pod, f"{box}/pod{uid}"), f"s{uid}", "")


def container(name: str = "main", uid: str = "1") -> Running:
    owner = sandbox(uid).sandbox
    return Running(owner, f"{owner.id}-{name}", name)


SANDBOX, MAIN, SIDE = sandbox(), container("main"), container("side")


@dataclass
class Node:
    """What runs, what the runtime says of it (an exception is raised), and where the processes are."""

    running: tuple[Running, ...] = ()
    processes: dict[str, Process | Exception] = field(default_factory=dict)
    cgroups: dict[int, str] = field(default_factory=dict)
    stuck: bool = False
    left: list[Stray] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    readings: int = 0
    """Of processes' cgroups, each a hop to another thread."""

    def running_of(self, ids: Collection[str]) -> tuple[Running, ...]:
        return tuple(one for one in self.running if one.id in ids)

    def run(self, one: Running, pid: int, cgroups: str = INSIDE, kind: str = RUNC, handler: str = "") -> None:
        self.running = (*self.running, one)
        self.processes[one.id] = Process(pid, kind, handler)
        self.cgroups[pid] = cgroups

    async def process_of(self, one: Running) -> Process:
        self.asked.append(one.id)
        process = self.processes[one.id]
        if isinstance(process, Exception):
            raise process
        return process

    def watch(self, observer: PodObserver) -> None:
        pass

    async def read(self, pids: Collection[int]) -> Mapping[int, str]:
        if self.stuck:
            raise CgroupError("no answer from the kernel")
        self.readings += bool(pids)
        return {pid: self.cgroups[pid] for pid in pids if pid in self.cgroups}

    async def strays(self, boxes: Mapping[int, str]) -> list[Stray]:
        return [one for one in self.left if one.first in boxes]


class Bench:
    def __init__(self, node: Node, stop: bool = False) -> None:
        self.node, self.clock = node, FakeClock()
        self.stopped: list[tuple[str, str]] = []
        self.holds = Holds(self.clock, no_hold_offs(self.clock), frozenset([ON_UNBOUNDED] if stop else []))
        self.counted = self.again = 0
        self.between: Callable[[], object] = lambda: None
        self.log: list[Any] = []
        self.check = PlacementCheck(
            PodsShared(node, node, self.holds, self, self.clock, structlog.get_logger()),  # type: ignore[arg-type]
            node,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
        )

    def stop(self, sandbox: Sandbox, why: str, setting: str) -> None:
        self.stopped.append((sandbox.id, why))

    def count(self, name: str) -> None:
        assert name in ("misplacements", "strays")
        self.counted += 1

    def round(self, *, everything: bool = True) -> list[str]:
        """A look, and those that it asks for within the minute; returns where misplaced ones are."""
        if everything:
            self.check.pods_listed()
        self.look()
        while (pause_s := self.check.pause_s) in (CONFIRM_S, TOGETHER_S):
            self.clock.advance(pause_s)
            self.between()
            self.again += 1
            self.look()
        assert self.clock.slept == [], "a look never sleeps"
        return [finding.detail for finding in self.check.misplaced]

    def look(self) -> None:
        with structlog.testing.capture_logs() as log:
            look(self.check, structlog.get_logger())
        self.log += log

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.log if entry["event"] != "look_succeeded"]


def misplaced(stop: bool = False, **where: Any) -> Bench:
    """A node with a container outside the box."""
    node = Node()
    node.run(SANDBOX, 10)
    node.run(MAIN, 11, OUTSIDE, **where)
    return Bench(node, stop)


# --- what is found -------------------------------------------------------------------------------------------------


def test_container_whose_first_thread_has_ended_is_in_the_box_where_its_others_are(tmp_path: Path) -> None:
    """As v1 shows it: in the root of each hierarchy."""
    shown = {"11": ("Z", "/"), "11/task/11": ("Z", "/"), "11/task/12": ("S", "/offline/pod1/x"), "13": ("Z", "/")}
    for name, (state, path) in shown.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{folder.name} (java) {state} 1{' 0' * 18}\n")
        (folder / "cgroup").write_text(f"4:cpu,cpuacct,memory:{path}\n")
    node = Node()
    node.run(MAIN, 11)
    node.run(SIDE, 13)
    reader = ProcCgroupReader(tmp_path)
    node.read = reader.read  # type: ignore[method-assign]

    bench = Bench(node, stop=True)

    assert (bench.round(), bench.stopped, bench.check.verified) == ([], [], 1)
    reader.close()


def test_what_is_in_the_box_is_no_finding_and_asked_for_once() -> None:
    node = Node()
    node.run(SANDBOX, 10)
    node.run(MAIN, 11)
    bench = Bench(node)
    assert [bench.round(), bench.round()] == [[], []]
    assert (bench.check.verified, node.asked) == (2, ["s1", "s1-main"])
    assert (bench.again, bench.events()) == (0, [])


def test_what_starts_within_half_a_second_shares_a_look_and_a_reading_of_proc() -> None:
    node = Node()
    bench = Bench(node)
    for number, one in enumerate((SANDBOX, MAIN, SIDE)):
        node.run(one, 10 + number)
    bench.check.pod_started(SANDBOX)
    bench.between = lambda: list(map(bench.check.pod_started, (MAIN, SIDE)))
    bench.round(everything=False)
    assert (bench.again, bench.check.verified) == (1, 3)
    assert (node.asked, node.readings) == (["s1", "s1-main", "s1-side"], 1)


def test_container_outside_is_found_told_with_its_remedy_and_counted_once() -> None:
    bench = misplaced()
    assert [bench.round(), bench.round()] == [["/system.slice/x"]] * 2
    assert (bench.counted, bench.events(), bench.stopped) == (1, ["misplaced"], [])
    assert bench.check.verified == 1
    told = bench.log[0]
    assert (told["pod"], told["container"], told["where"], told["box"]) == (
        "batch/job",
        "main",
        "/system.slice/x",
        "/offline",
    )
    assert "runtime class" in told["remedy"]
    assert astuple(bench.check.misplaced[0])[:3] == astuple(POD)


def test_remedy_of_a_slice_that_was_taken_for_a_path_is_the_runtime_s_cgroup_driver() -> None:
    node, one = Node(), Running(Sandbox("s1", POD, "offline-pod1.slice"), "s1", "")
    node.run(one, 10, "0::/system.slice/offline-pod1.slice:cri-containerd:s1\n")
    bench = Bench(node)
    bench.round()
    assert "SystemdCgroup = true" in bench.log[0]["remedy"]


def test_start_is_looked_at_alone() -> None:
    bench = misplaced()
    bench.node.run(SIDE, 12, "0::/elsewhere\n")
    bench.check.pod_started(SIDE)
    assert bench.round(everything=False) == ["/elsewhere"]
    assert set(bench.node.asked) == {"s1-side"}


def test_process_that_was_moved_out_after_its_start_is_found() -> None:
    node = Node()
    node.run(MAIN, 11)
    bench = Bench(node)
    bench.round()
    node.cgroups[11] = OUTSIDE
    assert bench.round() == ["/system.slice/x"]
    node.cgroups[11] = INSIDE
    assert bench.round() == []
    assert bench.events() == ["misplaced", "no_longer_misplaced"]


def test_suspicion_that_a_second_look_does_not_confirm_is_none() -> None:
    """As of a process that is ending, on v1."""
    bench = misplaced()
    bench.between = lambda: bench.node.processes.update({MAIN.id: Process(0, RUNC)})
    assert bench.round() == []
    assert (bench.again, bench.counted) == (1, 0)


def test_number_of_an_ended_process_that_is_another_s_by_now_is_no_finding() -> None:
    node = Node()
    node.run(MAIN, 11)
    bench = Bench(node)
    bench.round()
    node.cgroups[11] = OUTSIDE
    node.processes[MAIN.id] = Process(0, RUNC)
    assert bench.round() == []
    assert bench.again == 0


def test_many_suspects_wait_for_the_second_look_together() -> None:
    node = Node()
    for number in range(50):
        node.run(container(uid=str(number)), 100 + number, OUTSIDE)
    bench = Bench(node)
    assert len(bench.round()) == 50
    assert bench.again == 1


@pytest.mark.parametrize(
    "process",
    [
        pytest.param(Process(0, RUNC), id="no-process"),
        pytest.param(Process(99, RUNC), id="just-ended"),
        pytest.param(UnknownError("ContainerStatus: NOT_FOUND: not found"), id="removed"),
    ],
)
def test_container_that_has_ended_is_no_finding(process: Process | Exception) -> None:
    bench = misplaced()
    bench.node.processes[MAIN.id] = process
    assert bench.round() == []
    assert (bench.check.unknown, bench.events()) == ((), [])


def test_finding_goes_with_its_container() -> None:
    bench = misplaced()
    bench.round()
    bench.node.running = (SANDBOX,)
    assert bench.round() == []


# --- what can't be told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "handler", "why"),
    [
        pytest.param(Process(None), "", "the runtime does not tell its process", id="no-pid"),
        pytest.param(Process(11, KATA), "", KATA, id="type-of-virtual-machines"),
        pytest.param(Process(11), "kata", "kata", id="handler-of-virtual-machines"),
    ],
)
def test_container_of_another_kind_of_runtime_is_unknown_not_misplaced(
    process: Process, handler: str, why: str
) -> None:
    bench = misplaced(stop=True)
    bench.node.processes |= {MAIN.id: process, SANDBOX.id: Process(10, process.runtime_type, handler)}
    assert [bench.round(), bench.round()] == [[], []]
    assert [(f.container, why in f.detail) for f in bench.check.unknown] == [("main", True)]
    assert (bench.events(), bench.stopped) == (["placement_unknown"], [])
    assert bench.node.asked.count(MAIN.id) == 1


@pytest.mark.parametrize(
    ("kind", "handler"), [(RUNC, "kata"), ("", ""), ("", "crun"), ("io.containerd.runsc.v1", "gvisor")], ids=str
)
def test_container_of_a_runtime_of_processes_is_misplaced(kind: str, handler: str) -> None:
    bench = misplaced(kind=kind)
    bench.node.processes[SANDBOX.id] = Process(10, kind, handler)
    assert bench.round() == ["/system.slice/x"]


def test_sandbox_without_a_process_is_no_finding_and_asked_for_once() -> None:
    """As of CRI-O, which needs none for most pods."""
    node = Node()
    node.run(SANDBOX, 10)
    node.run(MAIN, 11)
    node.processes[SANDBOX.id] = Process(None)
    bench = Bench(node)
    assert [bench.round(), bench.round()] == [[], []]
    assert (bench.check.verified, bench.check.unknown, node.asked.count(SANDBOX.id)) == (1, (), 1)


def test_virtual_machine_in_the_box_is_well() -> None:
    node = Node()
    node.run(MAIN, 11, kind=KATA)
    bench = Bench(node)
    assert (bench.round(), bench.check.unknown) == ([], ())


# --- eviction ------------------------------------------------------------------------------------------------------


def test_pod_of_a_misplaced_container_is_evicted_when_the_config_says_so() -> None:
    bench = misplaced()
    bench.round()
    assert bench.stopped == []
    bench.holds.configure(frozenset([ON_UNBOUNDED]))
    bench.check.configure(node_settings())
    bench.round(everything=False)
    assert bench.stopped == [("s1", "it is outside the box, at /system.slice/x")]
    assert bench.holds.held(POD) == "", "it was moved after its start: the next one may be well"


def test_pod_that_was_misplaced_by_its_start_is_held_for_a_while() -> None:
    bench = misplaced(stop=True)
    bench.check.pod_started(MAIN)
    bench.round(everything=False)
    assert "the runtime put it outside the box, at /system.slice/x (colocation.on_unbounded)" in bench.holds.held(POD)
    assert bench.holds.held(PodRef("2", "batch", "job")) == ""
    bench.clock.now += HOLD_S
    assert bench.holds.held(POD) == ""


def test_hold_ends_when_evictions_are_switched_off() -> None:
    bench = misplaced(stop=True)
    bench.check.pod_started(MAIN)
    bench.round(everything=False)
    bench.holds.configure(frozenset())
    assert bench.holds.held(POD) == ""


# --- failures ------------------------------------------------------------------------------------------------------


def test_failure_for_one_does_not_keep_the_others_and_is_told_once() -> None:
    bench = misplaced()
    bench.node.run(SIDE, 12)
    bench.round()
    bench.node.processes[SANDBOX.id] = CallError("PodSandboxStatus", 4, "too late")
    bench.node.cgroups[10] = OUTSIDE
    assert [bench.round(), bench.round()] == [["/system.slice/x"]] * 2
    assert sorted(bench.events()) == ["look_failed", "misplaced"]
    assert bench.node.asked.count(SANDBOX.id) >= 2, "tried again"


class RuntimeAway(Node):
    async def process_of(self, one: Running) -> Process:
        raise CallError("PodSandboxStatus", 12, "")


def test_round_in_which_the_runtime_fails_for_all_leaves_little_behind() -> None:
    """A failure holds the frames that it has passed: what a frame keeps of it waits for the garbage collector."""
    bench = Bench(RuntimeAway(tuple(container(f"c{number}") for number in range(110))))
    gc.collect()
    gc.disable()
    try:
        bench.round()
        found = gc.collect()
    finally:
        gc.enable()
    assert bench.events() == ["look_failed"]
    assert found < 110


# --- single processes ----------------------------------------------------------------------------------------------

LEFT = Stray(11, 300, 7000, "/kubepods/podx")


def with_stray(*, stop: bool = False) -> Bench:
    """A node with a process of a container that has left the box."""
    node = Node(left=[LEFT])
    node.run(SANDBOX, 10)
    node.run(MAIN, 11)
    return Bench(node, stop)


def test_process_that_left_is_found_told_and_counted_once() -> None:
    bench = with_stray()
    assert [bench.round(), bench.round()] == [[], []]
    assert [(str(one), one.container, one.detail) for one in bench.check.strays] == [
        ("batch/job", "main", "its process 300 runs at /kubepods/podx")
    ]
    assert (bench.events(), bench.counted, bench.stopped) == (["stray_process"], 1, [])
    assert list(bench.check.problems()) == [
        "offline pod batch/job: its process 300 runs at /kubepods/podx, outside the box"
    ]
    bench.node.left = []
    bench.round()
    assert bench.check.strays == ()


def test_process_that_is_ending_is_no_stray() -> None:
    bench = with_stray()
    bench.between = lambda: setattr(bench.node, "left", [])
    bench.round()
    assert (bench.check.strays, bench.again, bench.counted) == ((), 1, 0)


def test_process_that_left_and_is_another_one_at_each_look_is_found() -> None:
    bench, numbers = with_stray(stop=True), count(301)

    def fork() -> None:
        number = next(numbers)
        bench.node.left = [Stray(11, number, 7 * number, "/kubepods")]

    bench.between = fork
    for _ in range(3):
        bench.round()
        fork()
    assert (len(bench.check.strays), bench.check.pause_s, bench.again) == (1, 60, 1)
    assert (bench.events(), bench.counted) == (["stray_process"], 3)
    assert {id for id, _ in bench.stopped} == {"s1"}


def test_commands_that_the_runtime_starts_during_each_look_are_no_strays() -> None:
    """The runtime puts what it executes into the container's namespaces, and then into its cgroup."""
    bench = with_stray(stop=True)
    numbers = iter(range(301, 330))

    def begin() -> None:
        bench.node.left = [Stray(11, number, number, "/init.scope", True) for number in (next(numbers, 0),) if number]

    bench.between = begin
    begin()
    bench.round()
    assert (bench.check.strays, bench.check.pause_s, bench.again, bench.stopped) == ((), 60, 29, [])


def test_container_that_was_back_in_the_box_is_suspected_anew() -> None:
    bench = with_stray()
    bench.round()
    bench.node.left, left = [], bench.node.left
    bench.round()
    bench.node.left = left
    bench.round()
    assert (bench.again, bench.events()) == (2, ["stray_process"] * 2)


def test_pod_of_a_process_that_left_is_stopped_and_held_when_the_config_says_so() -> None:
    bench = with_stray(stop=True)
    bench.round()
    assert [id for id, _ in bench.stopped] == ["s1"]
    assert "its process 300 runs at /kubepods/podx" in bench.holds.held(POD)


def test_processes_are_looked_at_each_minute_also_without_a_listing() -> None:
    bench = with_stray()
    bench.check.pod_started(MAIN)
    bench.node.left, left = [], bench.node.left
    bench.round(everything=False)
    bench.node.left = left
    assert bench.check.pause_s == 60
    bench.round(everything=False)
    assert len(bench.check.strays) == 1


def test_what_can_not_be_verified_is_a_problem_where_that_is_asked_for() -> None:
    bench = misplaced()
    bench.node.processes |= {MAIN.id: Process(None), SANDBOX.id: Process(10)}
    bench.round()
    assert list(bench.check.problems()) == []
    bench.check.configure(node_settings("[hardening]\nverified_only = true\n"))
    (problem,) = bench.check.problems()
    assert "of 1 containers of offline pods it can't be known" in problem


def test_kernel_that_does_not_answer_keeps_what_is_known() -> None:
    bench = misplaced()
    bench.round()
    bench.node.stuck = True
    assert bench.round() == ["/system.slice/x"]
    assert bench.events() == ["misplaced", "look_failed"]
    bench.node.stuck = False
    bench.round()
    bench.node.stuck = True
    bench.round()
    assert bench.events().count("look_failed") == 2, "it had ended in between"


def test_run_can_be_cancelled_in_the_middle_of_a_question_and_looks_again_later() -> None:
    node = Node()
    node.run(MAIN, 11)
    bench = Bench(node)
    asked = asyncio.Event()

    async def never(_: Running) -> Process:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def go() -> None:
        node.process_of = never  # type: ignore[assignment]
        bench.check.pods_listed()
        task = asyncio.create_task(round_of(bench.check, structlog.get_logger(), Clock()).run())
        await asyncio.wait_for(asked.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())


def test_run_looks_at_each_start() -> None:
    bench = misplaced()

    async def go() -> None:
        task = asyncio.create_task(round_of(bench.check, structlog.get_logger(), Clock()).run())
        while not bench.check.misplaced:
            bench.check.pod_started(MAIN)
            bench.clock.advance(CONFIRM_S)
            await asyncio.sleep(0)
        bench.node.running = ()
        while bench.check.misplaced:
            bench.check.pods_listed()
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(asyncio.wait_for(go(), 60))
