"""Whatever write fails, and wherever a process dies: between any two writes the box is bounded and at lowest priority.

The real drivers, on the fake kernel, with every single write in turn failing; the bound is read from the files
themselves after each write.
"""

import asyncio
import errno
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from criproxy.cgroup import files
from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.model import UNLIMITED, AdmissionError, Limits, Unlimited
from tests.fakes.clock import FakeClock
from tests.fakes.kernel import NO_LIMIT_V1, FakeKernel

BOX, POD = "/offline", "/offline/poda"
MIB = 1 << 20
PLACE = parse_kubelet_parent("/kubepods/poda")


class Node(FakeKernel):
    """A kernel that fails the write number `fails_at` (from 0), and calls `watch` after each write that it takes."""

    def __init__(self, root: Path, version: int, lacks: tuple[str, ...] = ()) -> None:
        super().__init__(root, version, lacks)
        self.fails_at = -1
        self.watch: Callable[[], None] = lambda: None
        self.driver: CgroupDriver = detect(self, str(root))

    def write(self, file: str, value: str) -> None:
        if self.fails_at == 0:
            self.fails_at = -1
            raise CgroupError(f"cannot write {value!r} to {file}: EIO", errno.EIO)
        self.fails_at -= 1
        super().write(file, value)
        self.watch()

    # --- what the kernel's files bound, told without the driver ------------------------------------------------------

    def cores(self) -> float:
        if self.version == 2:
            quota, period = self.text(BOX, "cpu.max").split()
        else:
            quota, period = (self.text(BOX, f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)

    def memory_bytes(self) -> float:
        limit = self.text(BOX, "memory.limit_in_bytes", "memory.max").replace("max", str(NO_LIMIT_V1))
        return math.inf if int(limit) >= NO_LIMIT_V1 else int(limit)

    def is_lowest(self) -> bool:
        if "cpu.idle" in self.lacks:
            return self.text(BOX, "cpu.shares", "cpu.weight") == ("1" if self.version == 2 else "2")
        return self.text(BOX, "cpu.idle") == "1"


def made(root: Path, version: int, lacks: tuple[str, ...], limits: Limits) -> Node:
    """A node whose box is in force, with a pod."""
    root.mkdir()
    node = Node(root, version, lacks)
    node.driver.ensure(BOX)
    node.driver.write(BOX, limits)
    node.driver.ensure_pod(POD, PodLimits())
    return node


def write_watched(node: Node, limits: Limits) -> bool:
    """Write limits; after each single write the bound is at most the larger of the old and the new. True: it was done.

    What the kernel can't reclaim may stay, so memory that is lowered is bounded by the old limit only.
    """
    most_cores = max(node.cores(), _in_force(limits["cpu"]))
    most_bytes = max(node.memory_bytes(), _number(limits["memory"]))

    def check() -> None:
        assert node.cores() <= most_cores
        assert node.memory_bytes() <= most_bytes
        assert node.is_lowest()

    node.watch = check
    try:
        node.driver.write(BOX, limits)
        if limits["memory"] is not UNLIMITED:
            node.driver.memory.reclaim(BOX, limits["memory"])  # type: ignore[arg-type]
    except CgroupError as error:
        assert error.errno == errno.EIO
        return False
    finally:
        check()
        node.watch = lambda: None
    return True


def _in_force(cores: float | Unlimited) -> float:
    """The quota is in whole us, and has a least."""
    return math.inf if cores is UNLIMITED else files.quota_us(cores) / files.CFS_PERIOD_US


def _number(limit: object) -> float:
    return math.inf if limit is UNLIMITED else limit  # type: ignore[return-value]


KERNELS = [
    pytest.param(1, (), id="v1"),
    pytest.param(1, ("cpu.idle", "memory.memsw.limit_in_bytes"), id="v1-old"),
    pytest.param(2, (), id="v2"),
    pytest.param(2, ("cpu.idle", "memory.swap.max"), id="v2-old"),
]
SMALL, LARGE = {"cpu": 0.5, "memory": 64 * MIB}, {"cpu": 3.0, "memory": 4096 * MIB}
LIFTED = {"cpu": UNLIMITED, "memory": UNLIMITED}
TRANSITIONS = [
    pytest.param(SMALL, LARGE, id="raised"),
    pytest.param(LARGE, SMALL, id="lowered"),
    pytest.param(SMALL, LIFTED, id="lifted"),
    pytest.param(LIFTED, SMALL, id="bounded"),
    pytest.param(LARGE, {"cpu": 0.25, "memory": 8192 * MIB}, id="cpu-down-memory-up"),
    pytest.param(LARGE, {"cpu": 4.0, "memory": 32 * MIB}, id="cpu-up-memory-down"),
]


def interrupted(make: Callable[[int], Node]) -> Iterator[tuple[int, Node]]:
    """Nodes whose first, second, … write will fail; ends with the caller's loop."""
    for number in itertools.count():
        node = make(number)
        node.fails_at = number
        yield number, node


@pytest.mark.parametrize(("version", "lacks"), KERNELS)
@pytest.mark.parametrize(("old", "new"), TRANSITIONS)
@pytest.mark.parametrize(("anon", "cache"), [(40 * MIB, 20 * MIB), (900 * MIB, 1500 * MIB)], ids=["some", "full"])
def test_limits_are_safe_wherever_they_are_interrupted(  # noqa: PLR0917
    tmp_path: Path, version: int, lacks: tuple[str, ...], old: Limits, new: Limits, anon: int, cache: int
) -> None:
    fits = anon + cache <= _number(old["memory"])

    def make(number: int) -> Node:
        node = made(tmp_path / str(number), version, lacks, old)
        if fits:
            node.use(POD, anon, cache)
        return node

    for number, node in interrupted(make):
        if write_watched(node, new):
            break
        assert number < 40, "the driver never comes to an end"
        assert write_watched(node, new)
        assert node.cores() == _number(new["cpu"])
    assert number > 0, "no write was interrupted"
    node.use(POD, 0, 0)
    for _ in range(40):  # what is full is approached in steps
        write_watched(node, new)
    assert (node.cores(), node.memory_bytes()) == (_number(new["cpu"]), _number(new["memory"]))


@pytest.mark.parametrize("period_us", [10_000, 1_000_000], ids=["shorter", "longer"])
def test_period_of_somebody_else_makes_no_interruption_unsafe(tmp_path: Path, period_us: int) -> None:
    def make(number: int) -> Node:
        node = made(tmp_path / str(number), 1, (), SMALL)
        node.by_hand(f"cpu,cpuacct{BOX}/cpu.cfs_period_us", str(period_us))
        node.by_hand(f"cpu,cpuacct{BOX}/cpu.cfs_quota_us", str(period_us // 2))
        return node

    for _, node in interrupted(make):
        if write_watched(node, {"cpu": 0.25, "memory": 64 * MIB}):
            break
        assert write_watched(node, {"cpu": 0.25, "memory": 64 * MIB})
    assert node.cores() == 0.25


@pytest.mark.parametrize(("version", "lacks"), KERNELS)
def test_priority_that_somebody_raised_is_put_back_before_anything_else(
    tmp_path: Path, version: int, lacks: tuple[str, ...]
) -> None:
    node = made(tmp_path / "node", version, lacks, SMALL)
    file = ("cpu.weight" if version == 2 else "cpu.shares") if lacks else "cpu.idle"
    node.by_hand(f"{node.where('cpu', BOX)}/{file}", "0" if file == "cpu.idle" else "1024")
    node.writes.clear()

    node.driver.write(BOX, LARGE)

    assert Path(node.writes[0][0]).name == file


@pytest.mark.parametrize(("version", "lacks"), KERNELS)
def test_pod_is_in_a_bounded_box_or_refused_wherever_its_start_is_interrupted(
    tmp_path: Path, version: int, lacks: tuple[str, ...]
) -> None:
    def make(number: int) -> Node:
        (tmp_path / str(number)).mkdir()
        return Node(tmp_path / str(number), version, lacks)

    for number, node in interrupted(make):
        box = Box(node.driver, BoxSettings(SMALL), lambda: UNLIMITED, FakeClock(), timeout_s=60.0)
        try:
            asyncio.run(box.pods.admit(PLACE, 0))
        except AdmissionError:
            there = node.exists(node.where("cpu", POD))
            assert not there or (node.is_lowest() and node.cores() == 0.5 and node.memory_bytes() == 64 * MIB)
        else:
            break
        finally:
            box.close()
        assert number < 60, "the pod never comes in"
    assert number > 3, "hardly a write was interrupted"
    assert node.is_lowest()
    assert (node.cores(), node.memory_bytes()) == (0.5, 64 * MIB)


LIMITS = st.fixed_dictionaries(
    {
        "cpu": st.just(UNLIMITED) | st.floats(0.01, 8.0),
        "memory": st.just(UNLIMITED) | st.integers(4 * MIB, 16_000 * MIB),
    }
)


@pytest.mark.slow
@hypothesis_settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([1, 2]),
    LIMITS,
    st.lists(st.tuples(LIMITS, st.integers(-1, 8), st.integers(0, 4000), st.integers(0, 4000)), max_size=6),
)
def test_limits_are_safe_through_any_history_of_interruptions(
    version: int, first: Limits, steps: list[tuple[Limits, int, int, int]]
) -> None:
    with TemporaryDirectory() as directory:
        node = made(Path(directory, "node"), version, (), first)
        for limits, fails_at, anon, cache in steps:
            if (anon + cache) * MIB <= node.memory_bytes():
                node.use(POD, anon * MIB, cache * MIB)
            node.fails_at = fails_at
            write_watched(node, limits)
        node.fails_at = -1
        assert write_watched(node, SMALL)
