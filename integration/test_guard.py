"""The guard on the real kernel: its own node of two cgroups, real load, the real quota. Nothing here is about speed."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from criproxy.cgroup import files
from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.counter import CpuTimes
from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, PodLimits
from criproxy.cgroup.kernel_files import CPU_USAGE
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.cgroup.pressure import PressureListener, online_pressure
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Clock
from criproxy.control.guard import CpuGuard
from criproxy.control.guardlaw import GuardLaw, Outlook
from criproxy.model import UNLIMITED

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups are made and limited"),
]

WAIT_S = 30.0
CPUS = len(os.sched_getaffinity(0))
LIMITS = {"cpu": 0.9 * CPUS, "memory": 256 << 20}


@dataclass
class Node:
    """A prefix of the test's own, which is the whole node to the guard: what else the machine does is not online's."""

    driver: CgroupDriver
    box: Box
    prefix: str
    counters: CpuTimes
    busy: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def kubepods(self) -> str:
        return f"{self.prefix}/kubepods"

    def cpu_times(self) -> tuple[float, float]:
        return self.counters.read()

    async def squeeze(self, cores: float) -> object:
        return await self.box.squeeze(cores)

    def quota_cores(self) -> float:
        cores = self.driver.read(f"{self.prefix}/offline")["cpu"]
        assert isinstance(cores, float)
        return cores

    def burn(self, path: str, count: int) -> None:
        for _ in range(count):
            child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            self.busy.append(child)
            for mount in mounts():
                Path(f"{mount}{path}").mkdir(parents=True, exist_ok=True)  # as the runtime makes it, where it joins
                Path(f"{mount}{path}/cgroup.procs").write_text(str(child.pid))

    def rest(self) -> None:
        while self.busy:
            child = self.busy.pop()
            child.kill()
            child.wait()


def mounts() -> list[str]:
    found = files.parse_mounts(Tree().read("/proc/self/mountinfo"))
    return sorted({*found.v1.values(), *([found.v2] if found.v2 else [])})


@pytest.fixture
def node() -> Iterator[Node]:
    tree = Tree()
    driver = detect(tree)
    box = Box(driver, BoxSettings({"cpu": 0.1, "memory": 64 << 20}), lambda: UNLIMITED, Clock())
    prefix = f"/criproxy-guard-{os.getpid()}"
    counters = CpuTimes(*(driver.files.file(CPU_USAGE, path) for path in (prefix, f"{prefix}/offline")), whole=True)
    node = Node(driver, box, prefix, counters)
    driver.ensure(f"{node.prefix}/offline")
    for mount in mounts():
        tree.mkdir(f"{mount}{node.kubepods}")
        cpuset = Path(f"{mount}{node.kubepods}/cpuset.cpus")
        if cpuset.exists() and not cpuset.read_text().strip() and "cpuset" in mount:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (cpuset.parent / name).write_text(Path(f"{mount}{node.prefix}/{name}").read_text())
    yield node
    node.rest()
    counters.close()
    box.close()
    deadline = time.monotonic() + WAIT_S
    while not all(tree.remove(f"{mount}{node.prefix}") for mount in mounts()):
        assert time.monotonic() < deadline, f"{node.prefix} can't be removed"
        time.sleep(0.05)


@asynccontextmanager
async def guarded(node: Node, listener: PressureListener) -> AsyncIterator[CpuGuard]:
    """The box with `LIMITS` in force, a pod in it, and the guard at work; nothing is predicted."""
    place = parse_kubelet_parent(f"{node.kubepods}/podx")
    await node.box.apply(LIMITS)
    await node.box.pods.admit(place, 0)
    outlook = Outlook(float(CPUS), 0.9 * CPUS, 0.0)
    guard = CpuGuard(
        node,
        listener,
        Clock(),
        GuardLaw(floor_cores=0.1, watermark_ratio=0.9),
        counters=Silent(),
        log=structlog.get_logger(),
    )
    guard.decided(outlook)
    running = asyncio.create_task(guard.run())
    try:
        yield guard
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Silent:
    status_calls = 0

    def count(self, name: str, *labels: str, by: float = 1) -> None: ...


async def until(condition: object, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


def test_counters_of_a_cgroup_that_is_removed_and_made_anew_are_the_new_ones(node: Node) -> None:
    tree = Tree()
    node.driver.ensure_pod(pod := f"{node.prefix}/offline/pod1", PodLimits())
    node.burn(pod, 1)
    time.sleep(0.2)
    node.rest()
    _, before_s = node.cpu_times()
    for mount in mounts():
        assert tree.remove(f"{mount}{node.prefix}/offline")
    with pytest.raises(FileNotFoundError):
        node.cpu_times()
    node.driver.ensure(f"{node.prefix}/offline")
    _, after_s = node.cpu_times()
    for mount in mounts():
        assert tree.remove(f"{mount}{node.prefix}/offline")
    node.driver.ensure(f"{node.prefix}/offline")
    assert (before_s > 0.0, after_s, node.cpu_times()[1]) == (True, 0.0, 0.0)


def test_online_step_up_lowers_the_real_quota_and_the_tick_after_it_finds_no_drift(node: Node) -> None:
    async def play() -> None:
        async with guarded(node, PressureListener(lambda: online_pressure(node.driver, node.box.path))) as guard:
            await asyncio.sleep(0.3)
            assert guard.ceiling() is None
            assert node.quota_cores() == pytest.approx(0.9 * CPUS, abs=0.01)
            node.burn(node.kubepods, CPUS)
            await until(lambda: guard.ceiling() and node.quota_cores() < 0.9 * CPUS - 0.05, "a lower quota")
            ceiling = guard.ceiling()
            assert ceiling is not None
            assert "online stepped up" in ceiling.reason
            assert guard.status().failures == 0
        assert await node.box.apply(LIMITS) != ()
        assert node.quota_cores() == pytest.approx(0.9 * CPUS, abs=0.01)
        assert node.box.state().drift == 0

    asyncio.run(play())


def test_where_the_kernel_reports_no_pressure_the_guard_says_so(node: Node) -> None:
    if online_pressure(node.driver, f"{node.prefix}/offline") is not None and Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel reports pressure")

    async def play() -> None:
        async with guarded(node, PressureListener(lambda: online_pressure(node.driver, node.box.path))) as guard:
            await until(lambda: "usage alone" in guard.status().pressure, "the guard's word")

    asyncio.run(play())


def test_online_that_waits_is_heard_of_until_its_cgroup_goes(node: Node) -> None:
    file = online_pressure(node.driver, f"{node.prefix}/offline")
    if file is None or not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel reports no pressure of a cgroup")

    async def play() -> None:
        listener = PressureListener(lambda: file)
        heard = asyncio.Event()
        listener.follow(0.0, heard.set)
        assert listener.note.startswith(f"listening to {file}, windows of ")
        await asyncio.sleep(0.5)
        node.burn(node.kubepods, 3 * CPUS)
        await until(heard.is_set, "a report of pressure")
        assert listener.take()
        node.rest()
        Tree().rmdir(str(Path(file).parent))
        await until(lambda: listener.note == "not listening", "the end of the cgroup to be noticed")
        listener.follow(10.0, heard.set)
        assert "ENOENT" in listener.note
        listener.close()

    asyncio.run(play())
