"""Files that criproxy keeps: no wait and no bound-less read, whatever lies there; and for its own user alone."""

import os
import stat
from pathlib import Path

import pytest

from criproxy.concurrency import statefile

HERE = Path(statefile.__file__).parent.parent
KEEPERS = (
    "cgroup/disk_keepers.py",
    "daemon/bypass.py",
    "daemon/checkpoint.py",
    "daemon/kubernetes.py",
    "kube/policy.py",
    "pods/hold_offs.py",
    "pods/unbounded.py",
)


def test_file_is_read_up_to_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"a" * (1 << 20))
    assert len(statefile.read(file, 1 << 20)) == 1 << 20
    file.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(ValueError, match="more than 1 MiB"):
        statefile.read(file, 1 << 20)


def test_what_is_no_file_is_not_waited_for_and_leaves_no_descriptor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError, match="no regular file"):
        statefile.read(tmp_path / "fifo", 10)
    with pytest.raises(IsADirectoryError):
        statefile.read(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        statefile.read(tmp_path / "none", 10)
    assert os.listdir("/proc/self/fd") == before


def test_file_is_private_also_where_one_was_left_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "left").write_text("x")
    (tmp_path / "left").chmod(0o644)
    for name in ("left", "new"):
        with open(tmp_path / name, "wb", opener=statefile.private):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), open(tmp_path / "link", "wb", opener=statefile.private):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_content_is_written_as_a_whole_and_private(tmp_path: Path) -> None:
    file = tmp_path / "state" / "x"
    for content in (b"one", b"two"):
        statefile.write(file, content)
        assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (content, 0o600)
    assert os.listdir(file.parent) == ["x"]


@pytest.mark.parametrize("file", KEEPERS)
def test_who_keeps_state_writes_it_so(file: str) -> None:
    text = (HERE / file).read_text()
    assert "opener=statefile.private" in text or "statefile.write" in text
    assert "write_text(" not in text
    assert "write_bytes(" not in text
    assert "read_bytes(" not in text


def test_what_a_power_failure_may_take_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("waits"))
    statefile.write(tmp_path / "state", b"new", durable=False)
    assert (tmp_path / "state").read_bytes() == b"new"
