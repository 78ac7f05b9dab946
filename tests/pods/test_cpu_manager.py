"""Kubelet's CPU manager, by its state file: which CPUs are the box's, and that it follows."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from criproxy.model import UNLIMITED, AdmissionError, Pod, PodRef
from criproxy.model.cpulist import format_cpus
from criproxy.pods import cpu_manager
from criproxy.pods.cpu_manager import (
    IDLE_EVERY_S,
    NOBODY_BOUND,
    STATE_FILE,
    STATIC_EVERY_S,
    CpuAssignments,
    CpuManager,
    CpusOfBox,
    parse_state,
)
from tests.fakes.box import FakeBox
from tests.fakes.pods import FakeInventory
from tests.fakes.waiting import until

# As kubelet 1.20 writes it: one pod with two containers that have CPUs of their own.
STATIC = b'{"policyName":"static","defaultCpuSet":"0,4-7","entries":{"u1":{"a":"1","b":"2-3"}},"checksum":1353318690}'


def static(default: str, **entries: str) -> bytes:
    return json.dumps(
        {
            "policyName": "static",
            "defaultCpuSet": default,
            "entries": {uid: {"main": cpus} for uid, cpus in entries.items()},
            "checksum": 1,
        }
    ).encode()


# As kubelet 1.37 has it with PodLevelResourceManagers: a pod with three CPUs, of which one is a container's own, a pod
# with two CPUs that its containers share, and a pod with a container that has a CPU.
_IN_DATA = {
    "policyName": "static",
    "defaultCpuSet": "0",
    "entries": {"u1": {"a": "1"}, "u2": {"a": "4-5", "b": "4-5"}, "u3": {"a": "6"}},
    "podEntries": {"u1": {"cpuSet": "1-3"}, "u2": {"cpuSet": "4-5"}},
}
POOLS = {"u1": frozenset({1, 2, 3}), "u2": frozenset({4, 5}), "u3": frozenset({6})}


def enveloped(checkpoint: object) -> bytes:
    """As kubelet writes a checkpoint since 1.37: a text, beside what is there for kubelets of before."""
    beside = {"policyName": "static", "defaultCpuSet": "0", "entries": _IN_DATA["entries"], "checksum": 3413949283}
    return json.dumps({**beside, "data": json.dumps(checkpoint), "dataChecksum": 3106021461}).encode()


NONE = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'


@pytest.mark.parametrize(
    ("content", "state"),
    [
        pytest.param(STATIC, CpuAssignments(frozenset({0, 4, 5, 6, 7}), {"u1": frozenset({1, 2, 3})}), id="1.20"),
        pytest.param(static("0-1"), CpuAssignments(frozenset({0, 1})), id="nobody-has-any"),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0-1","checksum":1}', CpuAssignments(frozenset({0, 1})), id="bare"
        ),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0","entries":{"containerd://1":"1"},"checksum":1}',
            CpuAssignments(frozenset({0}), {"containerd://1": frozenset({1})}),
            id="before-1.18",
        ),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0","entries":{"u1":{"a":{"cpus":"1"}},"u2":["1"]},"new":[1]}',
            CpuAssignments(frozenset({0}), {"u1": frozenset(), "u2": frozenset()}, "entries of u1, entries of u2"),
            id="of-a-kubelet-to-come",
        ),
        pytest.param(
            json.dumps({**_IN_DATA, "checksum": 1}).encode(), CpuAssignments(frozenset({0}), POOLS), id="pools-1.36"
        ),
        pytest.param(enveloped(_IN_DATA), CpuAssignments(frozenset({0}), POOLS), id="pools-1.37"),
        pytest.param(
            enveloped({"policyName": "static", "defaultCpuSet": "0-1", "podEntries": {"u1": {"cpuSet": ""}}}),
            CpuAssignments(frozenset({0, 1}), {"u1": frozenset()}),
            id="the-data-counts",
        ),
        pytest.param(
            enveloped({**_IN_DATA, "baselines": {"u3": {"a": {"baseline": "6-7"}}}}),
            CpuAssignments(frozenset({0}), POOLS),
            id="baselines-are-of-the-past",
        ),
        pytest.param(
            enveloped({**_IN_DATA, "podEntries": {"u1": {"cpuSet": [1]}}}),
            CpuAssignments(frozenset({0}), {**POOLS, "u1": frozenset({1})}, "podEntries of u1"),
            id="pools-of-a-kubelet-to-come",
        ),
        pytest.param(NONE, NOBODY_BOUND, id="none"),
        pytest.param(b'{"policyName":"none","defaultCpuSet":"0-1","entries":{}}', NOBODY_BOUND, id="none-again"),
    ],
)
def test_state_is_what_the_file_says(content: bytes, state: CpuAssignments) -> None:
    assert parse_state(content) == state


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="nothing-in-it"),
        pytest.param(b"\xff", id="binary"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b'{"policyName":"static","defaultCpuSet":"all"}', id="no-cpus"),
        pytest.param(b'{"policyName":7}', id="a-number"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(enveloped({}), id="nothing-in-the-data"),
        pytest.param(enveloped([]), id="a-list-in-the-data"),
        pytest.param(b'{"policyName":"static","defaultCpuSet":"0","data":{}}', id="data-that-is-no-text"),
        pytest.param(enveloped({**_IN_DATA, "podEntries": {"u1": {"cpuSet": "all"}}}), id="no-cpus-of-a-pod"),
    ],
)
def test_file_that_is_none_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_state(content)


ONLINE = Pod(PodRef("on", "shop", "on"))


@dataclass
class Node:
    root_dir: Path
    box: FakeBox = field(default_factory=FakeBox)
    inventory: FakeInventory = field(default_factory=FakeInventory)

    def __post_init__(self) -> None:
        self.of_box = CpusOfBox(self.inventory)  # type: ignore[arg-type]
        log = structlog.get_logger()
        self.manager = CpuManager(self.root_dir / STATE_FILE, self.of_box, self.box, log)  # type: ignore[arg-type]

    def write(self, content: bytes) -> None:
        """As kubelet does: another file takes the place of the old one."""
        new = self.root_dir / ".new"
        new.write_bytes(content)
        new.rename(self.root_dir / "cpu_manager_state")

    def round(self) -> float:
        return asyncio.run(self.manager.round())

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
    assert (every_s, node.box.confined, node.manager.problem) == (IDLE_EVERY_S, 0, "")


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
    node.manager.rest()
    node.write(static("0-1"))
    with pytest.raises(AdmissionError, match="another criproxy"):
        node.within(0, 1)
    node.manager.resume()
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
    node.write(enveloped(_IN_DATA))
    node.round()
    before, exclusive = node.of_box.cpus(), node.of_box.exclusive()
    node.inventory.place("u1")

    node.round()

    assert (before, exclusive) == ({0}, {1, 2, 3, 4, 5, 6})
    assert (node.of_box.cpus(), node.of_box.own(), node.of_box.exclusive()) == ({0, 1, 2, 3}, {1, 2, 3}, {4, 5, 6})
    assert node.within(2, 3) == "0-3", "what is left of the pool is for the pod's containers without CPUs of their own"


def test_cpus_that_are_named_in_an_unknown_way_are_nobodys_of_the_box_and_a_problem(node: Node) -> None:
    node.write(enveloped({**_IN_DATA, "podEntries": {f"u{n}": {"cpuSet": [n]} for n in range(1, 6)}}))
    node.inventory.place("u2")

    with structlog.testing.capture_logs() as log:
        node.round()
        node.round()
    problem = node.manager.problem
    node.write(enveloped(_IN_DATA))
    node.round()

    assert "podEntries of u1, podEntries of u2, podEntries of u3): offline pods keep off them" in problem
    assert [entry["event"] for entry in log] == ["cpu_manager_state_unknown", "box_confined"], "once"
    assert node.manager.problem == ""


def test_file_that_is_gone_or_bad_changes_nothing(node: Node) -> None:
    node.write(static("0", u1="1"))
    node.round()

    (node.root_dir / "cpu_manager_state").unlink()
    node.round()
    gone = node.of_box.cpus(), node.manager.problem
    node.write(b"{")
    with structlog.testing.capture_logs() as log:
        node.round()
        node.round()
    bad = node.of_box.cpus(), node.manager.problem
    node.write(static("0-1"))
    node.round()

    assert gone == ({0}, "")
    assert bad[0] == {0}
    assert "cpu_manager_state is not to be read" in bad[1]
    assert [entry["event"] for entry in log] == ["cpu_manager_state_unreadable"], "once"
    assert (node.of_box.cpus(), node.manager.problem) == ({0, 1}, "")


def test_box_that_can_not_be_confined_is_tried_again_each_second_and_told(node: Node) -> None:
    node.write(static("0"))
    node.box.error = "cpuset.cpus: EBUSY"

    with structlog.testing.capture_logs() as log:
        every_s = node.round(), node.round()
    problem = node.manager.problem
    node.box.error = ""
    node.round()

    assert every_s == (STATIC_EVERY_S, STATIC_EVERY_S)
    assert "EBUSY" in problem
    assert [entry["event"] for entry in log] == ["box_not_confined"], "once"
    assert (node.manager.problem, node.box.confined) == ("", 1)


def test_start_of_a_pod_is_a_reason_to_look_at_once(node: Node) -> None:
    async def look() -> None:
        task = asyncio.create_task(node.manager.run())
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
        task = asyncio.create_task(node.manager.run())
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
        task = asyncio.create_task(node.manager.run())
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
    problem = node.manager.problem
    node.write(static("0-1"))
    node.within(0)

    assert before is UNLIMITED
    assert "set kubelet.root_dir" in problem
    assert node.manager.problem == ""
