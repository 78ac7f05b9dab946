"""Threads in real time, of real processes in a cgroup tree of plain files."""

import os
import threading
from pathlib import Path

import pytest

from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.realtime import RealtimeFound, RealtimeThreads
from tests.fakes.kernel import FakeKernel

BOX, POD = "/kubelet/offline", "/kubelet/offline/poda"


class Node:
    def __init__(self, root: Path, version: int) -> None:
        self.kernel = FakeKernel(root, version)
        driver = detect(self.kernel, self.kernel.root)
        driver.ensure(BOX)
        driver.ensure_pod(POD, PodLimits())
        self.container = f"{root}/{'cpu,cpuacct' if version == 1 else 'cg'}{POD}/main"
        self.kernel.mkdir(self.container)
        self.file = Path(self.container, "tasks" if version == 1 else "cgroup.threads")
        for directory in self.kernel.below(os.path.dirname(self.container)):
            Path(directory, self.file.name).write_text("")

    def look(self, *threads: int) -> dict[str, str]:
        self.file.write_text("\n".join(map(str, threads)))
        return self.read({"s1": 0}, 100).words

    def read(self, seen: dict[str, int], most: int) -> RealtimeFound:
        return RealtimeThreads(self.kernel, self.kernel.root).read({"s1": POD, "s2": f"{BOX}/podb"}, seen, most)


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, request.param)


def test_ordinary_threads_and_those_that_have_ended_are_no_finding(node: Node) -> None:
    assert node.look(os.getpid(), 2**22 + 1) == {}


@pytest.mark.parametrize("policy", [os.SCHED_FIFO, os.SCHED_RR, os.SCHED_FIFO | 0x40000000])
def test_thread_in_real_time_is_found_beside_ordinary_ones(
    node: Node, policy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: policy if thread == 7 else 0)
    name = "SCHED_RR" if policy == os.SCHED_RR else "SCHED_FIFO"
    assert node.look(5, 7) == {"s1": f"thread 7 runs under {name}"}


def test_real_thread_in_real_time_is_found(node: Node) -> None:
    """As far as this machine lets the test have one."""
    found: list[dict[str, str]] = []

    def run() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except PermissionError:
            return
        found.append(node.look(os.getpid(), threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if not found:
        pytest.skip("no realtime threads for this user here")
    assert "SCHED_RR" in found[0]["s1"]


def test_pod_whose_cgroup_has_gone_is_no_finding(node: Node) -> None:
    assert node.read({"s2": 0}, 100) == RealtimeFound({}, {})


def test_no_more_threads_are_looked_at_than_asked_and_the_rest_is_left(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def policy_of(thread: int) -> int:
        looked.append(thread)
        return os.SCHED_FIFO if thread == 9 else os.SCHED_OTHER

    monkeypatch.setattr(os, "sched_getscheduler", policy_of)
    node.file.write_text("5\n6\n7\n8\n9\n")
    assert node.read({"s1": 0, "s2": 0}, 2) == RealtimeFound({}, {"s1": 2, "s2": 0})
    assert node.read({"s1": 2, "s2": 0}, 2) == RealtimeFound({}, {"s1": 4, "s2": 0})
    assert node.read({"s1": 4, "s2": 0}, 2) == RealtimeFound({"s1": "thread 9 runs under SCHED_FIFO"}, {})
    assert looked == [5, 6, 7, 8, 9]
