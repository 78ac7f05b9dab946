"""Hardware counters of online pods, with fake ones: which are opened, what is read, and why they are not there."""

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from criproxy.cgroup import work
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.tree import Tree
from criproxy.cgroup.work import DENIED, NO_COUNTERS, KernelCounters, WorkReader
from criproxy.model.signals import Missing, Work, WorkReading
from tests.fakes.clock import FakeClock


class FakeCounters:
    """Each read of a pair counts 100 cycles and 50 instructions. `error`: what the kernel refuses with."""

    def __init__(self) -> None:
        self.open_pairs: dict[tuple[int, int], str] = {}
        self.reads = 0
        self.error = 0

    def open(self, cgroup: int, cpu: int) -> tuple[int, int]:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        pair = (len(self.open_pairs) + 1000, cpu)
        self.open_pairs[pair] = f"{Path(os.readlink(f'/proc/self/fd/{cgroup}')).name}@{cpu}"
        return pair

    def read(self, pair: tuple[int, int]) -> Work:
        assert pair in self.open_pairs
        self.reads += 1
        return Work(100 * self.reads, 50 * self.reads)

    def close(self, pair: tuple[int, int]) -> None:
        del self.open_pairs[pair]


class Site:
    def __init__(self, root: Path, counters: FakeCounters | None = None) -> None:
        self.root, self.counters = root, counters or FakeCounters()
        (root / "online").write_text("0-1\n")
        tree = Tree()
        access = FileAccess(2, {"": str(root)}, (str(root),), tree)
        self.reader = WorkReader(access, tree, FakeClock(5.0), self.counters, str(root / "online"))

    def pod(self, uid: str) -> tuple[str, str]:
        (self.root / f"kubepods/burstable/pod{uid}").mkdir(parents=True)
        return self.paths(uid)

    @staticmethod
    def paths(uid: str) -> tuple[str, str]:
        return f"/kubepods/pod{uid}", f"/kubepods/burstable/pod{uid}"

    @property
    def counted(self) -> list[str]:
        return sorted(self.counters.open_pairs.values())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield Site(tmp_path)


def test_pod_is_counted_on_each_cpu_where_its_cgroup_is(site: Site) -> None:
    reading = site.reader.read({"a": site.pod("a"), "not-there": site.paths("b")})

    assert reading == WorkReading(5.0, {"a": Work(300, 150)})
    assert site.counted == ["poda@0", "poda@1"]


def test_counters_stay_open_until_the_pod_goes_or_nobody_asks(site: Site) -> None:
    pods = {"a": site.pod("a"), "b": site.pod("b")}
    site.reader.read(pods)
    first = dict(site.counters.open_pairs)
    site.reader.read(pods)
    same = site.counters.open_pairs == first
    site.reader.read({"b": pods["b"]})
    one = site.counted
    site.reader.stop()

    assert (same, one, site.counted) == (True, ["podb@0", "podb@1"], [])


def test_cpu_that_comes_is_counted_too(site: Site) -> None:
    pods = {"a": site.pod("a")}
    site.reader.read(pods)
    (site.root / "online").write_text("0-2\n")
    site.reader.read(pods)

    assert site.counted == ["poda@0", "poda@1", "poda@2"]


def test_no_more_counters_than_are_cheap(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_PAIRS", 5)
    reading = site.reader.read({uid: site.pod(uid) for uid in "abcd"})

    assert isinstance(reading, WorkReading)
    assert set(reading.of) == {"a", "b"}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        pytest.param(errno.ENOENT, NO_COUNTERS, id="virtual-machine"),
        pytest.param(errno.EOPNOTSUPP, NO_COUNTERS, id="no-such-event"),
        pytest.param(errno.EPERM, DENIED, id="seccomp"),
        pytest.param(errno.EACCES, DENIED, id="paranoid"),
        pytest.param(errno.EMFILE, "perf_event_open failed: Too many open files", id="too-many"),
    ],
)
def test_counters_that_are_not_to_be_had_are_missing_with_the_reason(site: Site, error: int, why: str) -> None:
    pods = {"a": site.pod("a")}
    site.counters.error = error
    missing = site.reader.read(pods)
    site.counters.error = 0

    assert missing == Missing(why)
    assert isinstance(site.reader.read(pods), WorkReading), "it is tried again"


def test_kernel_counts_or_says_why_not() -> None:
    """On this machine, whatever it is: a pair that counts, or an error that is understood."""
    counters = KernelCounters()
    cgroup = os.open("/sys/fs/cgroup", os.O_RDONLY)
    try:
        pair = counters.open(cgroup, 0)
    except OSError as error:
        assert error.errno in (*work._ABSENT, *work._DENIED, errno.ENOSYS, errno.EBADF)
    else:
        assert counters.read(pair).cycles >= 0
        counters.close(pair)
    finally:
        os.close(cgroup)


class RealDescriptors(FakeCounters):
    """Each counter takes a descriptor, as the kernel's does."""

    def open(self, cgroup: int, cpu: int) -> tuple[int, int]:
        pair = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
        self.open_pairs[pair] = str(cpu)
        return pair

    def close(self, pair: tuple[int, int]) -> None:
        super().close(pair)
        for descriptor in pair:
            os.close(descriptor)


def test_counters_leave_descriptors_to_the_sockets_and_files_of_everybody_else(tmp_path: Path) -> None:
    site = Site(tmp_path, RealDescriptors())
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 4 * len(os.listdir("/proc/self/fd")) + 64
    pods = {f"p{number}": site.pod(f"p{number}") for number in range(most)}
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        reading = site.reader.read(pods)
        taken = len(site.counters.open_pairs) * 2
    finally:
        site.reader.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))

    assert isinstance(reading, WorkReading)
    assert 0 < taken <= most // 2
