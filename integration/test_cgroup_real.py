"""The cgroup driver of this machine (v1 or v2) and the box, on the real kernel, with real processes.

Everything is below a cgroup of its own, `/criproxy-test-<pid>`, which is gone afterwards.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from criproxy.cgroup import files, kernel_files
from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.kernel_driver import processes_in
from criproxy.cgroup.kernel_files import KernelFile, weight_of
from criproxy.cgroup.naming import parse_box, parse_kubelet_parent
from criproxy.cgroup.pod_waiting import pods_cpu
from criproxy.cgroup.tiers import tiered
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Clock
from criproxy.control.pod_speed import pod_speed
from criproxy.model import UNLIMITED, LimitChange, Limits, Unlimited
from criproxy.model.cpulist import Cpus

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups are made and limited")

MIB = 1 << 20
LIFTED: Limits = {"cpu": UNLIMITED, "memory": UNLIMITED}
GENEROUS: Limits = {"cpu": 1.0, "memory": 512 * MIB}
WINDOWS, WINDOW_S = 5, 3.0
"""Of the windows the median counts: for one or two, the kernel may leave loops of one weight on one CPU."""

# Obeys one command per line: `spin`, `hold MIB`, `drop`, `cache MIB FILE`; answers when it is done.
_CHILD = """
import os, sys
held = b""
for line in sys.stdin:
    word, *rest = line.split()
    if word == "hold":
        held = b"x" * (int(rest[0]) << 20)
    elif word == "drop":
        held = b""
    elif word == "cache":
        with open(rest[1], "wb") as file:
            for _ in range(int(rest[0])):
                file.write(bytes(1 << 20))
            os.fsync(file.fileno())
    print("ok", flush=True)
    while word == "spin":
        pass
"""


@dataclass
class Ground:
    """A prefix of our own on the real tree, and the processes that were started in it."""

    driver: CgroupDriver
    mounts: files.Mounts
    prefix: str
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def box(self) -> str:
        return f"{self.prefix}/offline"

    @property
    def hierarchies(self) -> list[str]:
        return sorted({*self.mounts.v1.values(), *([self.mounts.v2] if self.mounts.v2 else [])})

    def file(self, path: str, v1: str, v2: str) -> Path:
        controller = v1.partition(".")[0]
        root, name = (self.mounts.v1[controller], v1) if self.driver.version == 1 else (self.mounts.v2, v2)
        return Path(f"{root}{path}/{name}")

    def pod(self, name: str) -> str:
        self.driver.ensure_pod(f"{self.box}/{name}", PodLimits())
        return self.as_the_runtime_makes_it(f"{self.box}/{name}")

    def as_the_runtime_makes_it(self, cgroup: str) -> str:
        """In each hierarchy that it joins, with its parents."""
        for hierarchy in self.hierarchies:
            Path(f"{hierarchy}{cgroup}").mkdir(parents=True, exist_ok=True)
        return cgroup

    def start(self, cgroup: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children.append(child)
        self.as_the_runtime_makes_it(cgroup)
        for hierarchy in self.hierarchies:
            Path(f"{hierarchy}{cgroup}/cgroup.procs").write_text(str(child.pid))
        return child

    def stop(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        child.communicate()


def bring(ground: Ground, limits: Limits) -> tuple[LimitChange, ...]:
    """What the box does in one tick and the next."""
    changes = ground.driver.write(ground.box, limits)
    assert limits["memory"] is not UNLIMITED
    while ground.driver.memory.reclaim(ground.box, int(limits["memory"])):
        pass
    return (*changes, *ground.driver.write(ground.box, limits))


def tell(child: subprocess.Popen[str], command: str) -> None:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{command}\n")
    child.stdin.flush()
    assert child.stdout.readline() == "ok\n"


@pytest.fixture
def ground() -> Iterator[Ground]:
    tree = Tree()
    ground = Ground(
        detect(tree), files.parse_mounts(tree.read("/proc/self/mountinfo")), f"/criproxy-test-{os.getpid()}"
    )
    ground.driver.ensure(ground.box)
    ground.driver.write(ground.box, GENEROUS)
    yield ground
    for child in ground.children:
        ground.stop(child)
    deadline = time.monotonic() + 20
    while not all(tree.remove(hierarchy + ground.prefix) for hierarchy in ground.hierarchies):
        assert time.monotonic() < deadline, f"{ground.prefix} is still in use"
        time.sleep(0.05)


# Mounts without a source, and at what is no UTF-8, and tells which version of cgroups is found beside them.
_ODD_MOUNTS = """
import ctypes, os, sys
from criproxy.cgroup.detect import detect
from criproxy.cgroup.tree import Tree
libc = ctypes.CDLL(None, use_errno=True)
for name in (b"plain", b"no utf-8 \\xff\\xfe", b"a\\rb\\x85 - c"):
    directory = os.fsencode(sys.argv[1]) + b"/" + name
    os.mkdir(directory)
    if libc.mount(b"", directory, b"tmpfs", 0, b"") != 0:
        raise OSError(ctypes.get_errno(), "mount")
print(detect(Tree()).version)
"""


def test_cgroups_are_found_beside_odd_mounts(tmp_path: Path) -> None:
    alone = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", _ODD_MOUNTS, str(tmp_path)]

    found = subprocess.run(alone, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, timeout=60, check=True)

    assert int(found.stdout) == detect(Tree()).version


def test_process_in_a_pod_is_in_the_box_in_every_controller(ground: Ground) -> None:
    pod = ground.pod("poda")

    child = ground.start(pod)

    lines = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
    assert {line.split(":", 2)[2] for line in lines} == {pod}
    assert processes_in(ground.driver.files, ground.box) == (child.pid,)


def test_box_follows_the_cpus_of_its_parent(ground: Ground) -> None:
    if ground.driver.version != 1:
        pytest.skip("cgroup v2 does so by itself")
    cpuset = Path(ground.mounts.v1["cpuset"])
    everything = (cpuset / "cpuset.cpus").read_text()
    if everything.strip().isdigit():
        pytest.skip("this machine has one CPU")
    pod = ground.pod("poda")
    cpus = [Path(f"{cpuset}{path}/cpuset.cpus") for path in (ground.prefix, ground.box, pod)]
    for file in reversed(cpus):  # as the kernel takes a CPU away that is unplugged
        file.write_text(everything.strip().replace("-", ",").partition(",")[0])
    child = ground.start(pod)
    cpus[0].write_text(everything)

    ground.driver.confine(ground.box, UNLIMITED)

    assert [file.read_text() for file in cpus] == [everything] * 3
    assert os.sched_getaffinity(child.pid) == os.sched_getaffinity(0)


def test_box_and_what_runs_in_it_keep_to_its_cpus(ground: Ground) -> None:
    there = frozenset(os.sched_getaffinity(0))
    if len(there) < 2:
        pytest.skip("this machine has one CPU")
    child = ground.start(ground.pod("poda"))
    last = frozenset({max(there)})
    rest = there - last
    steps: list[Cpus | Unlimited] = [rest, last, there, rest, UNLIMITED]
    held: list[list[Cpus]] = []
    for cpus in steps:
        ground.driver.ensure(ground.box)
        ground.driver.confine(ground.box, cpus)
        later = ground.start(ground.pod(f"podb{len(held)}"))
        held.append([frozenset(os.sched_getaffinity(one.pid)) for one in (child, later)])

    assert held == [[cpus, cpus] for cpus in (rest, last, there, rest, there)]


def test_box_is_at_the_lowest_priority(ground: Ground) -> None:
    weight, idle = ground.file(ground.box, "cpu.shares", "cpu.weight"), ground.file(ground.box, "cpu.idle", "cpu.idle")
    if not idle.exists():
        assert weight.read_text() in ("2\n", "1\n")
        return
    assert idle.read_text() == "1\n"
    with pytest.raises(CgroupError, match="EINVAL"):
        Tree().write(str(weight), "100")


def test_quota_bounds_the_sum_of_two_busy_pods(ground: Ground) -> None:
    ground.driver.write(ground.box, {"cpu": 0.3, "memory": 512 * MIB})
    for name in ("poda", "podb"):
        tell(ground.start(ground.pod(name)), "spin")
    start_s, before = time.monotonic(), ground.driver.usage(ground.box)
    time.sleep(4)

    after, elapsed_s = ground.driver.usage(ground.box), time.monotonic() - start_s

    assert before is not None and after is not None
    used_s = after.cpu_usage_s - before.cpu_usage_s
    # One period more than the window may fall into it, and each CPU may keep 5 ms of a period's quota for the next.
    assert 0 < used_s <= 0.3 * (elapsed_s + 0.1) * 1.05 + 0.005 * (os.cpu_count() or 1)


@pytest.mark.alone
def test_busy_mid_pod_leaves_little_to_a_low_one_that_asks_for_as_much(
    ground: Ground, say: Callable[[str], object]
) -> None:
    """By their weights alone, in a box of the lowest priority: 64 to 1."""
    asked, version = 1024, ground.driver.version
    for name in ("podlow", "podmid"):
        weight = tiered(weight_of(asked, version), name == "podmid", version)
        ground.driver.ensure_pod(f"{ground.box}/{name}", PodLimits(cpu_weight=weight))
        for _ in range(os.cpu_count() or 1):
            tell(ground.start(f"{ground.box}/{name}"), "spin")
    ground.driver.write(ground.box, {"cpu": UNLIMITED, "memory": 512 * MIB})
    most = ("262144", "10000")[version - 1]
    ground.file(ground.prefix, "cpu.shares", "cpu.weight").write_text(most)  # the machine's other work hardly counts

    def cpu_s(name: str) -> float:
        usage = ground.driver.usage(f"{ground.box}/{name}")
        assert usage is not None
        return usage.cpu_usage_s

    ratios = []
    for _ in range(WINDOWS):
        before_s = cpu_s("podlow"), cpu_s("podmid")
        time.sleep(WINDOW_S)
        ratios.append((cpu_s("podmid") - before_s[1]) / (cpu_s("podlow") - before_s[0]))

    ratio = statistics.median(ratios)
    say(f"mid got {ratio:.0f} times the CPU of low, {ratio / (ratio + 1):.1%} of what both got")
    assert ratio / (ratio + 1) >= 0.95


@pytest.mark.parametrize("by", ["pressure", "threads"])
def test_busy_pod_is_seen_to_want_what_it_does_not_get_and_one_that_sleeps_to_want_nothing(
    ground: Ground, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "pressure" and ground.driver.version == 1:
        pytest.skip("cgroup v1 has no pressure files")
    if by == "threads":
        monkeypatch.setattr(kernel_files, "CPU_PRESSURE", KernelFile())
    ground.driver.write(ground.box, {"cpu": 0.3, "memory": 512 * MIB})
    busy, idle = (ground.pod(name) for name in ("poda", "podb"))
    tell(ground.start(busy), "spin")
    tell(ground.start(idle), "drop")
    start_s, before = time.monotonic(), pods_cpu(ground.driver.files, (busy, idle))
    time.sleep(5)
    now, seconds = pods_cpu(ground.driver.files, (busy, idle)), time.monotonic() - start_s
    found = {pod: pod_speed(1.0, before[pod], now[pod], seconds) for pod in (busy, idle)}

    slow, asleep = found[busy], found[idle]
    assert slow is not None
    assert slow.wanted > 0.8, found
    assert slow.ratio < 0.5, found
    assert asleep is None or not asleep.counts, found


def test_limits_change_while_pods_run(ground: Ground) -> None:
    for name in ("poda", "podb"):
        tell(ground.start(ground.pod(name)), "spin")

    for cores, size in [(0.5, 256), (0.05, 128), (1.5, 1024), (0.01, 64), (0.7, 300)] * 2:
        limits = {"cpu": cores, "memory": size * MIB}
        changes = ground.driver.write(ground.box, limits)
        assert ground.driver.read(ground.box) == limits
        assert changes and not any(change.drift for change in changes)
    assert ground.driver.write(ground.box, LIFTED)
    assert ground.driver.read(ground.box) == LIFTED


def test_drift_is_put_back(ground: Ground) -> None:
    quota = ground.file(ground.box, "cpu.cfs_quota_us", "cpu.max")
    quota.write_text("max" if quota.name == "cpu.max" else "-1")
    limit = ground.file(ground.box, "memory.limit_in_bytes", "memory.max")
    limit.write_text(str(300 * MIB))

    changes = ground.driver.write(ground.box, GENEROUS)

    assert {Path(change.file).name for change in changes if change.drift} == {quota.name, limit.name}
    assert ground.driver.read(ground.box) == GENEROUS
    assert ground.driver.write(ground.box, GENEROUS) == ()


def test_memory_limit_below_the_usage_is_approached_and_kills_nobody(ground: Ground) -> None:
    child = ground.start(ground.pod("poda"))
    tell(child, "hold 96")
    tight = {"cpu": 1.0, "memory": 32 * MIB}

    bring(ground, tight)
    approached = ground.driver.read(ground.box)["memory"]
    again = bring(ground, tight)
    alive = child.poll() is None
    tell(child, "drop")
    changes = bring(ground, tight)

    assert alive
    assert isinstance(approached, int) and 96 * MIB <= approached < 160 * MIB
    assert ground.driver.read(ground.box) == tight
    assert not any(change.drift for change in (*again, *changes))


def needs_a_disk(ground: Ground) -> Mapping[str, int]:
    """To be called once files have been read: those in memory can't be dropped. Returns the box's memory.stat."""
    stat = files.parse_flat_keyed(ground.file(ground.box, "memory.stat", "memory.stat").read_text())
    if stat.get("total_shmem", stat.get("shmem", 0)) > 100 * MIB:
        pytest.skip(f"needs a file system on a disk at {Path(__file__).parent}: this one is in memory")
    return stat


def test_memory_limit_below_page_cache_drops_the_cache(ground: Ground) -> None:
    # Beside this file and not in a temporary directory, which may be in memory itself.
    file = Path(__file__).parent / f".cache-{os.getpid()}"
    child = ground.start(ground.pod("poda"))
    try:
        tell(child, f"cache 128 {file}")
        stat = needs_a_disk(ground)
        bring(ground, {"cpu": 1.0, "memory": 48 * MIB})
    finally:
        file.unlink(missing_ok=True)

    assert stat.get("total_cache", stat.get("file", 0)) > 100 * MIB
    assert ground.driver.read(ground.box)["memory"] == 48 * MIB
    assert child.poll() is None


@pytest.mark.parametrize("protected", [False, True], ids=["alike", "in-tiers"])
def test_reclaim_in_the_box_takes_what_a_low_pod_has_before_what_a_mid_one_has(
    ground: Ground, protected: bool, say: Callable[[str], object]
) -> None:
    if ground.driver.version == 1:
        pytest.skip("cgroup v1 protects no memory within a cgroup that is at its limit")
    beside = Path(__file__).parent
    own = {name: beside / f".cache-{name}-{os.getpid()}" for name in ("podmid", "podlow")}
    stat = {name: ground.file(f"{ground.box}/{name}", "memory.stat", "memory.stat") for name in own}

    def cached() -> dict[str, int]:
        return {name: files.parse_flat_keyed(stat[name].read_text())["file"] for name in own}

    try:
        for name, file in own.items():  # mid first: what was read first goes first, where nothing is protected
            pod = f"{ground.box}/{name}"
            ground.driver.ensure_pod(pod, PodLimits(protected=protected and name == "podmid"))
            tell(ground.start(pod), f"cache 96 {file}")
        needs_a_disk(ground)
        before = cached()
        bring(ground, {"cpu": 1.0, "memory": 128 * MIB})
        left = cached()
    finally:
        for file in own.values():
            file.unlink(missing_ok=True)

    say(
        f"page cache of mid {before['podmid'] >> 20} -> {left['podmid'] >> 20} MiB, "
        f"of low {before['podlow'] >> 20} -> {left['podlow'] >> 20} MiB"
    )
    assert min(before.values()) > 90 * MIB
    assert (left["podmid"] > 90 * MIB) == protected


@pytest.mark.parametrize("drops", [False, True], ids=["left", "dropped"])
def test_page_cache_of_a_pod_that_has_ended_stays_charged_to_the_box_unless_it_is_dropped(
    ground: Ground, drops: bool
) -> None:
    """The containers' own cgroups are gone by then, as a runtime removes them when they end."""
    box = Box(ground.driver, BoxSettings(GENEROUS), lambda: UNLIMITED, Clock())
    pod, file = ground.pod("poda"), Path(__file__).parent / f".cache-{os.getpid()}"
    usage = ground.file(ground.box, "memory.usage_in_bytes", "memory.current")
    container = f"{pod}/main"
    for hierarchy in ground.hierarchies:
        Path(hierarchy + container).mkdir()
    for name in ("cpuset.cpus", "cpuset.mems") if ground.driver.version == 1 else ():
        of = [ground.file(path, name, name) for path in (pod, container)]
        of[1].write_text(of[0].read_text())
    child = ground.start(container)
    try:
        tell(child, f"cache 128 {file}")
        needs_a_disk(ground)
        ground.stop(child)
        remove = Tree().remove
        deadline = time.monotonic() + 20
        while not all(remove(hierarchy + container) for hierarchy in ground.hierarchies):
            assert time.monotonic() < deadline
        before = int(usage.read_text())

        async def after() -> tuple[int, tuple[str, ...]]:
            await box.adopt(parse_box(ground.box))
            dropped = await box.memory.drop_caches(()) if drops else 0
            return dropped, await box.pods.sweep(())

        dropped, swept = asyncio.run(after())
        left = int(usage.read_text())
    finally:
        box.close()
        file.unlink()
    assert before > 120 * MIB
    assert swept == ("poda",)
    assert (left < 16 * MIB, dropped > 110 * MIB) == (drops, drops), f"{left} bytes are left, {dropped} were dropped"


def test_cpu_and_pods_do_not_wait_for_page_cache_that_sinks(ground: Ground) -> None:
    """As a ratio: the slowest of them against the time that the memory takes."""
    file = Path(__file__).parent / f".cache-{os.getpid()}"
    ground.driver.write(ground.box, {"cpu": 1.0, "memory": 1600 * MIB})
    child = ground.start(ground.pod("poda"))
    place = parse_kubelet_parent(f"{ground.prefix}/kubepods/besteffort/podb")
    box = Box(ground.driver, BoxSettings({"cpu": 0.2, "memory": 64 * MIB}), lambda: UNLIMITED, Clock())

    async def timed(call: Callable[[], Awaitable[object]]) -> float:
        began_s = time.monotonic()
        await call()
        return time.monotonic() - began_s

    async def scenario() -> tuple[float, dict[str, float]]:
        await box.adopt(place.box)
        began_s = time.monotonic()
        lowering = asyncio.create_task(box.apply({"cpu": 1.0, "memory": 48 * MIB}))
        await asyncio.sleep(0.01)
        calls = {
            "squeeze": await timed(lambda: box.squeeze(0.5)),
            "admission": await timed(lambda: box.pods.admit(place, 0)),
            "limit": await timed(lambda: box.apply({"cpu": 0.7, "memory": 48 * MIB})),
        }
        await lowering
        while ground.driver.read(ground.box)["memory"] != 48 * MIB:
            await box.apply({"cpu": 0.7, "memory": 48 * MIB})
            await asyncio.sleep(0.01)
        return time.monotonic() - began_s, calls

    try:
        tell(child, f"cache 1024 {file}")
        stat = needs_a_disk(ground)
        sinking_s, calls = asyncio.run(scenario())
    finally:
        file.unlink(missing_ok=True)
        box.close()

    print(f"memory took {sinking_s * 1000:.0f} ms,", {name: f"{s * 1000:.1f} ms" for name, s in calls.items()})
    assert stat.get("total_cache", stat.get("file", 0)) > 900 * MIB
    assert max(calls.values()) < sinking_s / 2
    assert child.poll() is None


def test_pod_limit_below_its_usage_is_an_error_and_kills_nobody(ground: Ground) -> None:
    pod = ground.pod("poda")
    child = ground.start(pod)
    tell(child, "hold 64")

    with pytest.raises(CgroupError, match="bytes are in use"):
        ground.driver.ensure_pod(pod, PodLimits(memory_bytes=16 * MIB))

    tell(child, "drop")
    ground.driver.ensure_pod(pod, PodLimits(memory_bytes=128 * MIB))
    assert ground.file(pod, "memory.limit_in_bytes", "memory.max").read_text() == f"{128 * MIB}\n"


@pytest.mark.parametrize("short", ["pod", "container"])
def test_kernel_that_kills_for_memory_ends_a_pod_whole_unless_a_container_has_hit_its_own_limit(
    ground: Ground, short: str
) -> None:
    if ground.driver.version == 1:
        pytest.skip("cgroup v1 has no memory.oom.group")
    pod, neighbour = ground.pod("poda"), ground.pod("podb")
    main, sidecar = f"{pod}/main", f"{pod}/sidecar"
    at = Path(f"{ground.mounts.v2}{pod}")
    (at / "cgroup.subtree_control").write_text("+memory")
    for container in (main, sidecar):
        Path(f"{ground.mounts.v2}{container}").mkdir()
    if short == "pod":
        ground.driver.ensure_pod(pod, PodLimits(memory_bytes=128 * MIB))
    else:
        (at / "main/memory.max").write_text(str(128 * MIB))
    hog, beside, other = (ground.start(cgroup) for cgroup in (main, sidecar, neighbour))
    for child in (beside, other):
        tell(child, "hold 1")

    assert hog.stdin is not None
    hog.stdin.write("hold 400\n")
    hog.stdin.flush()

    assert hog.wait(60) == -signal.SIGKILL
    if short == "pod":
        assert beside.wait(60) == -signal.SIGKILL
    else:
        tell(beside, "hold 2")
    tell(other, "hold 2")


def test_quota_below_a_childs_holds(ground: Ground) -> None:
    pod = ground.pod("poda")
    child_quota = ground.file(pod, "cpu.cfs_quota_us", "cpu.max")
    child_quota.write_text("80000")

    ground.driver.write(ground.box, {"cpu": 0.5, "memory": 512 * MIB})

    assert ground.driver.read(ground.box)["cpu"] == 0.5
    kept = ground.driver.version == 2
    assert child_quota.read_text() == ("80000 100000\n" if kept else "-1\n")


def test_box_bounds_admits_and_sweeps(ground: Ground) -> None:
    places = [parse_kubelet_parent(f"{ground.prefix}/kubepods/besteffort/{name}") for name in ("poda", "podb")]
    box = Box(ground.driver, BoxSettings({"cpu": 0.2, "memory": 64 * MIB}), lambda: UNLIMITED, Clock())

    async def scenario() -> None:
        for place in places:
            await box.pods.admit(place, 32 * MIB)
            box.pods.forget(place.name)
        child = ground.start(places[0].in_box)
        assert await box.pods.sweep(set()) == ("podb",)
        assert box.pods.names == {"poda"}
        ground.stop(child)
        while not await box.pods.sweep(set()):  # noqa: ASYNC110 - the kernel tells nobody when a cgroup is empty
            await asyncio.sleep(0.05)

    asyncio.run(scenario())
    box.close()
    assert ground.driver.read(ground.box) == {"cpu": 0.2, "memory": 64 * MIB}
    assert not any(Path(f"{hierarchy}{place.in_box}").exists() for hierarchy in ground.hierarchies for place in places)


@pytest.mark.parametrize("lifted", ["cpu", "memory", "pids", "box"])
def test_limit_that_somebody_lifts_between_two_pods_is_back_before_the_second_one_enters(
    ground: Ground, lifted: str
) -> None:
    one, other = (parse_kubelet_parent(f"{ground.prefix}/kubepods/besteffort/{name}") for name in ("poda", "podb"))
    settings = BoxSettings({"cpu": 0.2, "memory": 64 * MIB}, {"pids": 0.1})
    box = Box(ground.driver, settings, lambda: UNLIMITED, Clock())
    files_of = {
        "cpu": [("cpu.cfs_quota_us", "cpu.max")],
        "memory": [("memory.memsw.limit_in_bytes", "memory.swap.max"), ("memory.limit_in_bytes", "memory.max")],
        "pids": [("pids.max", "pids.max")],
    }

    def lift() -> None:
        for v1, v2 in files_of.get(lifted, []):
            file = ground.file(ground.box, v1, v2)
            if file.exists():  # without swap accounting, one does not
                file.write_text("-1" if ground.driver.version == 1 and v1 != v2 else "max")
        for hierarchy in ground.hierarchies if lifted == "box" else ():
            Path(f"{hierarchy}{ground.box}").rmdir()

    async def scenario() -> None:
        await box.pods.admit(one, 0)
        box.pods.forget(one.name)
        assert await box.pods.sweep(set()) == ("poda",)
        lift()
        await box.pods.admit(other, 0)

    asyncio.run(scenario())
    box.close()
    assert ground.driver.read(ground.box) == {"cpu": 0.2, "memory": 64 * MIB}
    held = ground.driver.read_limit(ground.box, "pids")
    assert held is not None and held.limit is not UNLIMITED
    assert ground.driver.exists(other.in_box)


def test_remove_of_a_pod_in_use_leaves_it_whole(ground: Ground) -> None:
    pod = ground.pod("poda")
    for hierarchy in ground.hierarchies:
        Path(f"{hierarchy}{pod}/container").mkdir()
    child = ground.start(pod)

    assert not ground.driver.remove_pod(pod)
    assert all(Path(f"{hierarchy}{pod}/container").exists() for hierarchy in ground.hierarchies)
    ground.stop(child)
    deadline = time.monotonic() + 20
    while not ground.driver.remove_pod(pod) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ground.driver.pods(ground.box) == ()


def test_killed_pod_is_empty_and_can_be_removed(ground: Ground) -> None:
    pod, other = ground.pod("poda"), ground.pod("podb")
    child, neighbour = ground.start(pod), ground.start(other)

    ground.driver.kill_pod(pod)

    assert child.wait(20) == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while not ground.driver.remove_pod(pod) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ground.driver.pods(ground.box) == ("podb",)
    assert processes_in(ground.driver.files, ground.box) == (neighbour.pid,)


def test_node_usage_counts_up(ground: Ground) -> None:
    before = ground.driver.node_usage()
    deadline_s = time.process_time() + 0.3
    while time.process_time() < deadline_s:
        pass
    after = ground.driver.node_usage()

    assert after.cpu_usage_s - before.cpu_usage_s >= 0.25
    assert after.working_set_bytes > 16 * MIB
