"""CPU counters, in either version's words, and as cgroups go and come."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from criproxy.cgroup.counter import CpuCounter, CpuTimes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "counter"


@pytest.fixture
def counter(file: Path) -> Iterator[CpuCounter]:
    counter = CpuCounter(str(file))
    yield counter
    counter.close()


@pytest.fixture
def removed_answer_enodev(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel answers for the open file of a cgroup that was removed."""
    pread = os.pread

    def as_the_kernel(fd: int, length: int, offset: int) -> bytes:
        if not os.fstat(fd).st_nlink:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", as_the_kernel)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("1500000000\n", 1.5, id="v1"),
        pytest.param("0\n", 0.0, id="v1-new"),
        pytest.param("usage_usec 1500000\nuser_usec 9\nsystem_usec 9\n" + "nr_periods 0\n" * 9, 1.5, id="v2"),
        pytest.param(f"usage_usec {2**63}\nuser_usec 1\n", 2**63 / 1e6, id="v2-longest"),
    ],
)
def test_counter_is_read_as_seconds(file: Path, counter: CpuCounter, text: str, seconds: float) -> None:
    file.write_text(text)
    assert counter.seconds() == pytest.approx(seconds)


def test_counter_follows_its_file(file: Path, counter: CpuCounter) -> None:
    seen = []
    for nanoseconds in (1_000_000_000, 12_000_000_000):
        file.write_text(f"{nanoseconds}\n")
        seen.append(counter.seconds())
    assert seen == [1.0, 12.0]


def test_counter_of_a_cgroup_that_was_never_there_raises_until_it_is(file: Path, counter: CpuCounter) -> None:
    with pytest.raises(FileNotFoundError):
        counter.seconds()
    file.write_text("1000000000\n")
    assert counter.seconds() == 1.0


@pytest.mark.usefixtures("removed_answer_enodev")
def test_counter_of_a_cgroup_that_is_gone_raises_until_it_is_made_anew(file: Path, counter: CpuCounter) -> None:
    file.write_text("1000000000\n")
    seen = [counter.seconds()]
    file.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            counter.seconds()
    file.write_text("2000000000\n")
    seen.append(counter.seconds())
    assert seen == [1.0, 2.0]


@pytest.mark.usefixtures("removed_answer_enodev")
def test_counter_of_a_cgroup_made_anew_between_two_looks_is_the_new_ones(file: Path, counter: CpuCounter) -> None:
    file.write_text("1000000000\n")
    counter.seconds()
    file.unlink()
    file.write_text("2000000000\n")
    assert counter.seconds() == 2.0


def test_counter_closes_its_file(file: Path) -> None:
    file.write_text("0\n")
    before = os.listdir("/proc/self/fd")
    times = CpuTimes(str(file), str(file), whole=True)
    times.read()
    during = os.listdir("/proc/self/fd")
    times.close()
    assert (len(during), len(os.listdir("/proc/self/fd"))) == (len(before) + 2, len(before))
