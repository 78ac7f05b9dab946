"""Pods with a CPU limit are kept on CPUs, whoever has set the limit; and freed when that is no longer asked for."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.naming import BoxPath
from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import Tree
from criproxy.model import UNLIMITED, Asked, ContainerKind, PodRef, Sandbox
from criproxy.pods.cpu_assignments import CpuAssignments, CpusOfBox
from criproxy.pods.cpu_pinning import AT_ONCE, SETTLED_S, TURN_EVERY_S, CpuPinning
from criproxy.pods.runtime import ListedContainer, Running
from tests.fakes.bench import PartBench
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import machine
from tests.fakes.part import round_of
from tests.fakes.pods import FakeInventory

BOX = "/offline"
LOOK_S = 3.0
UNKNOWN = Topology(Tree(), None, "/nowhere", "/nowhere")


class Bench(PartBench):
    """A box on four CPUs; kubelet's cgroups of pods are the driver's `kubelets`."""

    def __init__(
        self, cpus: int = 4, version: int = 2, enabled: bool | None = True, *, topology: Topology = UNKNOWN
    ) -> None:
        super().__init__()
        self.cpus, self.driver = cpus, FakeDriver()
        self.driver.version = version
        self.driver.idle_s = dict.fromkeys(range(cpus), 0.0)
        self.box = Box(self.driver, BoxSettings({"cpu": 0.1, "memory": 1 << 20}), lambda: UNLIMITED, self.clock)
        self.inventory = FakeInventory()
        self.of_box = CpusOfBox(cast(Any, self.inventory))
        self.held_off: set[str] = set()
        hold_offs = SimpleNamespace(covers=lambda pod: pod.uid in self.held_off)
        shared = self.shared(inventory=self.inventory, holds=SimpleNamespace(hold_offs=hold_offs))
        self.part = CpuPinning(shared, self.box, self.of_box, topology, enabled)
        self.round = round_of(self.part, self.log, self.clock)

    def runs(
        self,
        uid: str,
        limit: float | None = None,
        *,
        asked_millicores: int = 0,
        qos: str = "/burstable",
        containers: Mapping[str, Asked] | None = None,
    ) -> None:
        pod = PodRef(uid, "batch", uid)
        sandbox = Sandbox(uid, pod, self.path(uid), cpu_limit_millicores=asked_millicores, containers=containers or {})
        self.inventory.placed = (*self.inventory.placed, sandbox)
        self.resize(uid, limit, qos)

    def resize(self, uid: str, limit: float | None, qos: str = "/burstable") -> None:
        self.driver.kubelets[f"/kubepods{qos}/pod{uid}"] = PodLimits(cpu_cores=UNLIMITED if limit is None else limit)

    def path(self, uid: str) -> str:
        return f"{BOX}/pod{uid}"

    def looks(
        self, number: int = 2, idle: dict[int, float] | None = None, used: dict[str, float] | None = None
    ) -> None:
        """So many looks; between two, the CPUs were idle for these parts of the time, and pods used so many cores."""

        async def looks() -> None:
            if self.box.path is None:
                await self.box.adopt(BoxPath(BOX))
            for _ in range(number):
                self.clock.advance(LOOK_S)
                for cpu, ratio in (idle or dict.fromkeys(range(self.cpus), 1.0)).items():
                    self.driver.idle_s[cpu] += LOOK_S * ratio
                for uid, cores in (used or {}).items():
                    path = self.path(uid)
                    self.driver.used_s[path] = self.driver.used_s.get(path, 0.0) + LOOK_S * cores
                await self.round.look(self.part)

        asyncio.run(looks())

    def look_again(self, seconds: float = 0.05, idle: Mapping[int, float] | None = None) -> None:
        """A look so soon after the last one."""

        async def look() -> None:
            self.clock.advance(seconds)
            for cpu, ratio in (idle or {}).items():
                self.driver.idle_s[cpu] += seconds * ratio
            await self.round.look(self.part)

        asyncio.run(look())

    def pinned(self) -> dict[str, int | None]:
        """On how many CPUs each pod is, by the driver; None: on all."""
        held = self.driver.pins.items()
        return {path.removeprefix(f"{BOX}/pod"): None if cpus is None else len(cpus) for path, cpus in held}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("qos", ["", "/burstable", "/besteffort"])
def test_pod_is_pinned_by_the_limit_that_kubelet_has_set(bench: Bench, qos: str) -> None:
    bench.runs("a", 1.5, qos=qos)

    bench.looks()

    assert bench.pinned() == {"a": 2}
    assert bench.part.pinned == {bench.path("a"): bench.driver.pins[bench.path("a")]}


def test_pod_is_pinned_as_soon_as_its_sandbox_runs(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    assert not bench.part.wake.is_set
    bench.runs("b", 1.0)
    (sandbox,) = (one for one in bench.inventory.placed if one.id == "b")
    bench.part.pod_started(Running(sandbox, "b", ""))
    assert bench.part.wake.is_set

    bench.look_again()

    assert bench.pinned() == {"a": 1, "b": 1}
    assert bench.part.pinned[bench.path("a")] != bench.part.pinned[bench.path("b")]


def test_container_that_starts_asks_for_no_look_as_its_pod_is_pinned(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.part.pod_started(Running(bench.inventory.placed[0], "c", "main"))
    assert not bench.part.wake.is_set


def test_look_that_comes_too_soon_moves_nobody(bench: Bench) -> None:
    """Both wait on one CPU for long enough; the look after that has had no time to measure that another is idle."""
    bench.runs("a", 1.0)
    bench.looks(6, used={"a": 1.0})
    before = dict(bench.part.pinned)
    (cpu,) = before[bench.path("a")]
    busy = {other: float(other != cpu) for other in range(4)}
    bench.runs("b", 1.0)
    for _ in range(20):
        bench.look_again(idle=busy)
    assert bench.part.pinned[bench.path("a")] == before[bench.path("a")]


def test_pod_is_pinned_by_the_limit_that_its_annotations_say(bench: Bench) -> None:
    bench.runs("a", asked_millicores=1000, qos="/besteffort")

    bench.looks()

    assert bench.pinned() == {"a": 1}


def test_limit_that_kubelet_lowers_is_taken_up_within_a_minute(bench: Bench) -> None:
    bench.runs("a", 3.0)
    bench.looks()
    bench.resize("a", 1.0)

    bench.looks(round(TURN_EVERY_S / LOOK_S) + 1)

    assert bench.pinned() == {"a": 1}


def test_limit_of_an_init_container_pins_until_the_others_run(bench: Bench) -> None:
    asked = {"fetch": Asked(0, 0, 3000, ContainerKind.INIT), "main": Asked(0, 0, 1000)}
    bench.runs("a", asked_millicores=3000, qos="/besteffort", containers=asked)
    bench.looks()
    at_first = bench.pinned()
    bench.inventory.containers = {"a": (ListedContainer("c1", "a", "main", running=True),)}

    bench.looks(round(TURN_EVERY_S / LOOK_S) + 1)

    assert (at_first, bench.pinned()) == ({"a": 3}, {"a": 1})


def test_init_container_without_a_limit_pins_nothing_until_the_others_run(bench: Bench) -> None:
    asked = {"fetch": Asked(kind=ContainerKind.INIT), "main": Asked(0, 0, 1000)}
    bench.runs("a", qos="/besteffort", containers=asked)
    bench.inventory.containers = {"a": (ListedContainer("c0", "a", "fetch", running=True),)}
    bench.looks()
    at_first = bench.pinned()
    bench.inventory.containers = {"a": (ListedContainer("c1", "a", "main", running=True),)}

    bench.looks(round(TURN_EVERY_S / LOOK_S) + 1)

    assert (at_first.get("a"), bench.pinned()) == (None, {"a": 1})


def test_pod_is_never_pinned_on_isolated_cpus_though_they_are_idle(tmp_path: Path) -> None:
    (tmp_path / "isolated").write_text("2-3\n")
    bench = Bench(topology=Topology(Tree(), None, str(tmp_path), "/nowhere"))
    bench.runs("a", 1.0)

    bench.looks(20, idle={0: 0.35, 1: 0.30, 2: 0.99, 3: 0.99}, used={"a": 0.2})

    assert bench.part.pinned[bench.path("a")] <= {0, 1}
    assert bench.part.section() == {"isolated_cpus": "2-3"}
    assert list(bench.part.rows()) == [("isolated CPUs", "2-3: no pod is pinned there (isolcpus, nohz_full)")]


def test_pod_has_threads_of_two_cores_of_one_node(tmp_path: Path) -> None:
    cores = (frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7}))
    nodes = (frozenset(range(4)), frozenset(range(4, 8)))
    bench = Bench(8, topology=machine(tmp_path, cores, nodes))
    bench.runs("a", 2.0)

    bench.looks()

    assert bench.part.pinned[bench.path("a")] in [{first, second} for first in (4, 5) for second in (6, 7)]


def test_pod_whose_limit_is_lowered_stays_on_its_node_though_the_other_is_emptier(tmp_path: Path) -> None:
    nodes = (frozenset(range(4)), frozenset(range(4, 8)))
    bench = Bench(8, topology=machine(tmp_path, [frozenset({cpu}) for cpu in range(8)], nodes))
    bench.runs("a", 2.0)
    bench.looks()
    before = bench.part.pinned[bench.path("a")]
    (node,) = (one for one in nodes if before <= one)

    bench.resize("a", 1.0)
    bench.part.resize_done(bench.inventory.placed[0])
    bench.looks(idle={cpu: 0.9 if cpu in node else 1.0 for cpu in range(8)})

    after = bench.part.pinned[bench.path("a")]
    assert len(after) == 1
    assert after <= node
    assert bench.counters.of("pods_moved") == [], "it does not get more there"


def test_pods_without_a_limit_or_with_one_of_all_cpus_have_all(bench: Bench) -> None:
    bench.runs("a")
    bench.runs("b", 4.0)

    bench.looks()

    assert set(bench.pinned().values()) <= {None}
    assert bench.part.pinned == {}


def test_limit_that_kubelet_changes_is_taken_up_within_a_minute(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    bench.resize("a", 2.0)

    bench.looks(round(TURN_EVERY_S / LOOK_S) + 1)

    assert bench.pinned() == {"a": 2}


@pytest.mark.parametrize("late", [False, True], ids=["before it tells", "after it tells"])
def test_limit_of_a_resize_is_taken_up_at_once(bench: Bench, late: bool) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    sandbox = bench.inventory.placed[0]
    if not late:
        bench.resize("a", 2.0)
    bench.part.resize_asked(sandbox)
    bench.part.resize_done(sandbox)
    bench.looks(1)
    bench.resize("a", 2.0)

    bench.looks(round(SETTLED_S / LOOK_S) - 1)

    assert bench.pinned() == {"a": 2}


def test_limits_of_many_pods_are_read_by_turns_and_of_a_started_container_at_once(bench: Bench) -> None:
    for number in range(2 * AT_ONCE + 1):
        bench.runs(f"{number:03}", 1.0)
    bench.looks()

    def read(looks: int) -> set[str]:
        bench.driver.log.clear()
        bench.looks(looks)
        return {path for name, *(path,) in bench.driver.log if name == "cpu_limit" and "burstable" in path}

    minutes = [read(round(TURN_EVERY_S / LOOK_S)) for _ in range(3)]
    bench.part.pod_started(Running(bench.inventory.placed[7], "c1", "main"))

    assert [len(one) for one in minutes] == [AT_ONCE] * 3
    assert len(set.union(*minutes)) == 2 * AT_ONCE + 1
    assert read(1) == {"/kubepods/burstable/pod007"}


def test_pod_that_waits_is_moved_and_counted(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    first = bench.part.pinned[bench.path("a")]
    full = {cpu: float(cpu not in first) for cpu in range(4)}

    bench.looks(5, full, {"a": 0.2})
    assert bench.driver.pins[bench.path("a")] == bench.part.pinned[bench.path("a")]

    assert not bench.part.pinned[bench.path("a")] & first
    assert bench.counters.of("pods_moved") == [1]


def test_nothing_is_asked_of_the_kernel_while_there_is_no_offline_pod(bench: Bench) -> None:
    bench.looks(3)

    assert [name for name, *_ in bench.driver.log if "cpu" in name or name == "pin"] == []


def test_pod_with_cpus_of_its_own_is_left_to_kubelet(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.runs("b", 1.0)
    bench.of_box.state = CpuAssignments(frozenset({0, 1}), {"a": frozenset({3})})

    bench.looks()

    assert set(bench.part.pinned) == {bench.path("b")}
    assert bench.part.pinned[bench.path("b")] <= {0, 1, 2}, "nor is another pod on these"


def test_v1_beside_the_static_cpu_manager_nothing_is_pinned() -> None:
    bench = Bench(version=1)
    bench.runs("a", 1.0)
    bench.looks()
    bench.of_box.state = CpuAssignments(frozenset({0, 1, 2}), {})

    bench.looks()

    assert bench.pinned() == {"a": None}


@pytest.mark.parametrize("version", [1, 2])
def test_kubelet_that_names_cpus_though_its_file_says_nothing_of_it_is_given_way_to(version: int) -> None:
    """Or v1 could not start a container in a pod that stays on others, and v2 ran it on an online pod's."""
    bench = Bench(version=version)
    bench.runs("a", 1.0)
    bench.looks()
    bench.of_box.contradicted = "kubelet bounds containers to CPUs, and its file says nothing of it"

    bench.looks(1)

    assert bench.pinned() == {"a": None}
    assert bench.part.pinned == {}


def test_pods_are_freed_once_when_that_is_switched_off_also_those_of_a_process_before(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.driver.pins[bench.path("a")] = frozenset({2})
    bench.part.enabled = False

    bench.looks(3)
    bench.part.enabled = True
    bench.looks()

    entries = [entry for entry in bench.driver.log if entry[0] == "pin"]
    assert (entries[0], len(entries)) == (("pin", bench.path("a"), "all"), 2)
    assert bench.pinned() == {"a": 1}


def test_pods_that_have_gone_leave_nothing_behind_where_none_is_pinned(bench: Bench) -> None:
    bench.part.enabled = False
    for number in range(3):
        bench.part.pod_started(
            Running(Sandbox(f"s{number}", PodRef(f"u{number}", "ns", "n"), f"/box/pod{number}"), "s", "")
        )
    assert bench.part._unsettled
    bench.looks(1)
    assert not bench.part._unsettled


def test_what_is_not_ours_to_change_stays(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    held = dict(bench.driver.pins)
    bench.part.enabled = None
    bench.runs("b", 1.0)

    bench.looks(5)

    assert bench.driver.pins == held


def test_pod_that_an_operator_holds_off_stays_as_it_is(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    bench.driver.pins[bench.path("a")] = frozenset({0, 1})
    bench.held_off.add("a")

    bench.looks(3)
    held = bench.driver.pins[bench.path("a")]
    bench.held_off.clear()
    bench.looks()

    assert held == {0, 1}
    assert bench.pinned() == {"a": 1}


def test_nothing_is_told_any_more_once_the_last_pod_has_gone(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.looks()
    bench.driver.fail_on.add("pin")
    bench.looks()
    bench.inventory.placed = ()

    bench.looks(1)

    assert (bench.part.pinned, bench.part.failure) == ({}, "")


def test_first_look_only_measures(bench: Bench) -> None:
    bench.runs("a", 1.0)

    bench.looks(1)

    assert bench.pinned() == {}


def test_failure_is_logged_once_and_the_next_look_tries_again(bench: Bench) -> None:
    bench.runs("a", 1.0)
    bench.driver.fail_on.add("pin")
    bench.looks(2)
    failed = bench.part.failure

    bench.driver.fail_on.clear()
    bench.looks()

    assert "cannot pin" in failed
    assert bench.part.failure == ""
    assert bench.log.names().count("look_failed") == 1
    assert bench.pinned() == {"a": 1}
