"""Kubelet's CPU manager, by its state file: which CPUs are the box's, and that it follows."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import Worker
from criproxy.model import UNLIMITED, AdmissionError, Pod, PodRef
from criproxy.model.cpulist import format_cpus
from criproxy.pods import cpu_manager
from criproxy.pods.cpu_assignments import CpusOfBox
from criproxy.pods.cpu_manager import IDLE_EVERY_S, STATE_FILE, STATIC_EVERY_S, CpuManager
from tests.fakes.box import FakeBox
from tests.fakes.cpu_state import IN_DATA, NONE, enveloped, static
from tests.fakes.part import round_of
from tests.fakes.pods import FakeInventory
from tests.fakes.waiting import until

ONLINE = Pod(PodRef("on", "shop", "on"))


@dataclass
class Node:
    root_dir: Path
    box: FakeBox = field(default_factory=FakeBox)
    inventory: FakeInventory = field(default_factory=FakeInventory)

    def __post_init__(self) -> None:
        self.of_box = CpusOfBox(self.inventory)  # type: ignore[arg-type]
        log, worker = structlog.get_logger(), Worker("cpu-manager", 5.0)
        self.manager = CpuManager(self.root_dir / STATE_FILE, self.of_box, self.box, Clock(), log, worker)  # type: ignore[arg-type]
        self.round_of = round_of(self.manager, log, Clock())

    def write(self, content: bytes) -> None:
        """As kubelet does: another file takes the place of the old one."""
        new = self.root_dir / ".new"
        new.write_bytes(content)
        new.rename(self.root_dir / "cpu_manager_state")

    def round(self) -> float:
        """One look; returns in how many seconds the next one is due."""
        asyncio.run(self.round_of.look(self.manager))
        return self.manager.pause_s

    @property
    def problem(self) -> str:
        return "; ".join(self.manager.problems())

    def within(self, *asked: int) -> str:
        return format_cpus(asyncio.run(self._within(frozenset(asked))))

    async def _within(self, asked: frozenset[int]) -> frozenset[int]:
        cpus = await self.manager.within(asked)
        assert cpus is not UNLIMITED
        return cpus


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("content", [None, NONE])
def test_without_a_static_policy_the_box_has_all_cpus_and_nothing_is_written(node: Node, content: bytes | None) -> None:
    if content is not None:
        node.write(content)

    every_s = node.round()

    assert node.of_box.cpus() is UNLIMITED
    assert (every_s, node.box.confined, node.problem) == (IDLE_EVERY_S, 0, "")


def test_box_follows_the_shared_pool(node: Node) -> None:
    node.write(static("0-1"))
    every_s = node.round()
    before = node.of_box.cpus()
    node.write(static("0", u1="1"))

    node.round()
    node.round()

    assert (every_s, before, node.of_box.cpus()) == (STATIC_EVERY_S, {0, 1}, {0})
    assert node.box.confined == 2, "once for each change"


def test_box_has_all_cpus_again_when_the_policy_is_none(node: Node) -> None:
    node.write(static("0"))
    node.round()
    node.write(NONE)

    every_s = node.round()

    assert (node.of_box.cpus(), every_s, node.box.confined) == (UNLIMITED, IDLE_EVERY_S, 2)


def test_process_that_has_handed_over_leaves_the_boxs_cpus_to_the_other(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()
    node.manager.cease()
    node.write(static("0-1"))
    with pytest.raises(AdmissionError, match="another criproxy"):
        node.within(0, 1)
    node.round()
    assert (node.within(0, 1), node.box.confined) == ("0-1", 2)


def test_cpus_of_an_offline_pod_alone_are_the_boxs_too(node: Node) -> None:
    node.write(static("0", u1="1", u2="2"))
    node.round()
    before, exclusive = node.of_box.cpus(), node.of_box.exclusive()
    node.inventory.place("u2")

    node.round()

    assert (before, node.of_box.cpus()) == ({0}, {0, 2})
    assert (exclusive, node.of_box.exclusive()) == ({1, 2}, {1})
    assert node.box.confined == 2


def test_pool_of_an_offline_pod_is_the_boxs_and_that_of_an_online_pod_is_not(node: Node) -> None:
    node.write(enveloped(IN_DATA))
    node.round()
    before, exclusive = node.of_box.cpus(), node.of_box.exclusive()
    node.inventory.place("u1")

    node.round()

    assert (before, exclusive) == ({0}, {1, 2, 3, 4, 5, 6})
    assert (node.of_box.cpus(), node.of_box.own(), node.of_box.exclusive()) == ({0, 1, 2, 3}, {1, 2, 3}, {4, 5, 6})
    assert node.within(2, 3) == "0-3", "what is left of the pool is for the pod's containers without CPUs of their own"


def test_cpus_that_are_named_in_an_unknown_way_are_nobodys_of_the_box_and_a_problem(node: Node) -> None:
    node.write(enveloped({**IN_DATA, "podEntries": {f"u{n}": {"cpuSet": [n]} for n in range(1, 6)}}))
    node.inventory.place("u2")

    with structlog.testing.capture_logs() as log:
        node.round()
        node.round()
    problem = node.problem
    node.write(enveloped(IN_DATA))
    node.round()

    assert "podEntries of u1, podEntries of u2, podEntries of u3): offline pods keep off them" in problem
    assert [entry["event"] for entry in log] == ["cpu_manager_state_unknown", "box_confined"], "once"
    assert node.problem == ""


def test_file_that_is_gone_or_bad_changes_nothing(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()

    (node.root_dir / "cpu_manager_state").unlink()
    node.round()
    gone = node.of_box.cpus(), node.problem
    node.write(b"{")
    with structlog.testing.capture_logs() as log:
        node.round()
        node.round()
    bad = node.of_box.cpus(), node.problem
    node.write(static("0-1"))
    node.round()

    assert gone == ({0}, "")
    assert bad[0] == {0}
    assert "cpu_manager_state is not to be read" in bad[1]
    assert [entry["event"] for entry in log] == ["look_failed"], "once"
    assert (node.of_box.cpus(), node.problem) == ({0, 1}, "")


def test_box_that_can_not_be_confined_is_tried_again_each_second_and_told(node: Node) -> None:
    node.write(static("0"))
    node.box.error = "cpuset.cpus: EBUSY"

    with structlog.testing.capture_logs() as log:
        every_s = node.round(), node.round()
    problem = node.problem
    node.box.error = ""
    node.round()

    assert every_s == (STATIC_EVERY_S, STATIC_EVERY_S)
    assert "EBUSY" in problem
    assert [entry["event"] for entry in log] == ["look_failed"], "once"
    assert (node.problem, node.box.confined) == ("", 1)


def test_start_of_a_pod_is_a_reason_to_look_at_once(node: Node) -> None:
    async def look() -> None:
        task = asyncio.create_task(node.round_of.run())
        await until(lambda: node.of_box.cpus() is not UNLIMITED)
        node.write(static("0", u1="1"))
        node.manager.pod_starts(ONLINE)
        async with asyncio.timeout(0.9 * STATIC_EVERY_S):
            await until(lambda: not (node.box.confined < 2))
        task.cancel()

    node.write(static("0-1"))
    asyncio.run(look())

    assert node.of_box.cpus() == {0}


def test_first_start_after_a_change_of_policy_is_looked_at_before_a_container_can_run(node: Node) -> None:
    async def start_pods() -> None:
        task = asyncio.create_task(node.round_of.run())
        node.manager.pod_starts(ONLINE)
        await until(lambda: node.manager._seen is not None)
        node.write(static("0", u1="1"))
        node.manager.pod_starts(ONLINE)
        async with asyncio.timeout(0.5 * STATIC_EVERY_S):
            await until(lambda: node.box.confined)
        task.cancel()

    node.write(NONE)
    asyncio.run(start_pods())

    assert node.of_box.cpus() == {0}


def test_many_starts_without_a_static_policy_are_one_look_in_a_while_and_none_is_missed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_manager, "TOGETHER_S", 0.05)
    looks = 0
    read = node.manager._read

    def counted() -> None:
        nonlocal looks
        looks += 1
        read()

    async def start_pods() -> None:
        task = asyncio.create_task(node.round_of.run())
        for _ in range(200):
            node.manager.pod_starts(ONLINE)
            await asyncio.sleep(0)
        before = looks
        node.write(static("0", u1="1"))  # kubelet came back with another policy, and the last start was told before
        await until(lambda: node.box.confined)
        task.cancel()
        assert before <= 2

    monkeypatch.setattr(CpuManager, "_read", lambda _: counted())
    node.write(NONE)
    asyncio.run(start_pods())

    assert node.of_box.cpus() == {0}


# --- requests -------------------------------------------------------------------------------------------------------


def test_cpus_that_are_the_boxs_cost_no_look(node: Node) -> None:
    node.write(static("0-1"))
    node.round()
    node.write(b"not read")

    assert node.within(1) == "0-1"
    assert node.box.confined == 1


def test_cpus_that_have_become_the_boxs_are_so_before_the_answer(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()
    node.write(static("0-1"))

    assert node.within(0, 1) == "0-1"
    assert node.box.confined == 2


def test_cpus_of_an_offline_pod_alone_are_the_boxs_before_the_answer(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()
    node.inventory.place("u1")

    assert node.within(1) == "0-1"
    assert node.box.confined == 2


def test_cpus_that_an_online_pod_has_alone_by_now_stay_so(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()

    assert node.within(0, 1) == "0"


def test_cpus_of_online_pods_alone_are_refused(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()

    with pytest.raises(AdmissionError, match=r"asks for the CPUs 1, and .* leaves 0 .* set kubelet\.root_dir"):
        node.within(1)


def test_box_that_does_not_follow_refuses(node: Node) -> None:
    node.write(static("0-1"))
    node.box.error = "cpuset.cpus: EBUSY"

    with pytest.raises(AdmissionError, match="EBUSY"):
        node.within(0)


def test_kubelet_that_bounds_without_a_file_that_says_so_is_a_problem_until_it_does(node: Node) -> None:
    before = asyncio.run(node.manager.within(frozenset({0})))
    problem = node.problem
    node.write(static("0-1"))
    node.within(0)

    assert before is UNLIMITED
    assert "set kubelet.root_dir" in problem
    assert node.problem == ""
