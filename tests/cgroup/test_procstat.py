"""What /proc/PID/stat says, of the test's own process and of names that try to confuse."""

import os
from pathlib import Path

import pytest

from criproxy.cgroup.processes import ProcessStat, read_stat

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
REST = "S 7 1 1 0 -1 4194560 1 2 3 4 250 50 9000 900 20 0 1 0 4711 1000 10"


@pytest.mark.parametrize("name", ["sh", "a b", "x) S 1 (", ")", "", "a\nb", "a\rb", "\x1c", os.fsdecode(b"\xff\x80")])
def test_fields_are_found_behind_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12/stat").write_bytes(os.fsencode(f"12 ({name}) {REST}\n"))
    assert read_stat(tmp_path, 12, 100) == ProcessStat(parent=7, cpu_s=3.0, started=4711)


def test_own_process_is_read() -> None:
    found = read_stat(Path("/proc"), os.getpid(), TICKS_PER_S)
    assert found is not None
    assert found.parent == os.getppid()
    assert found.cpu_s == pytest.approx(sum(os.times()[:2]), abs=0.5)


def test_process_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_stat(tmp_path, 12, 100) is None
