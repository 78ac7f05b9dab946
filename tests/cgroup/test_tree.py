"""Files that stay open; ending processes by pid, and none that only has the pid of one."""

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from criproxy.cgroup import tree as module
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.tree import Tree


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were opened, in order."""
    files: list[str] = []
    real: Callable[..., int] = os.open

    def open_(file: str, flags: int) -> int:
        files.append(file)
        return real(file, flags)

    monkeypatch.setattr(os, "open", open_)
    return files


@pytest.mark.parametrize("text", ["7", "a b\nc d", "", "0," * 20_000], ids=["number", "lines", "nothing", "long"])
def test_file_that_is_read_often_is_read_as_any_other(tmp_path: Path, text: str) -> None:
    tree, file = Tree(), tmp_path / "file"
    for now in (text, "9", text):
        file.write_text(f"{now}\n")
        assert tree.read_often(str(file)) == tree.read(str(file)) == now


def test_bytes_that_are_no_utf_8_are_read_as_names_of_files_are(tmp_path: Path) -> None:
    tree, file = Tree(), tmp_path / "file"
    file.write_bytes(b"1 /mnt/\xff\r\x85 x\n")
    fd = tree.open(str(file))

    read = [
        tree.read(str(file)),
        tree.read_often(str(file)),
        tree.read_open(fd, str(file)),
        tree.head(str(file), 100),
    ]

    tree.close(fd)
    assert read == [os.fsdecode(b"1 /mnt/\xff\r\x85 x")] * 4


def test_file_that_is_read_often_is_opened_once_a_thread(tmp_path: Path, opened: list[str]) -> None:
    tree, file = Tree(), tmp_path / "file"
    file.write_text("1")
    reads = [lambda: tree.read_often(str(file))] * 3
    for _ in range(2):
        thread = threading.Thread(target=lambda: [read() for read in reads])
        thread.start()
        thread.join()
    assert opened == [str(file)] * 2


def test_file_of_a_cgroup_that_has_gone_is_opened_anew(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel answers ENODEV then, for the file that is still open."""
    tree, file = Tree(), tmp_path / "file"
    file.write_text("of the old one")
    tree.read_often(str(file))
    file.unlink()
    with monkeypatch.context() as gone:
        gone.setattr(os, "pread", _gone)
        with pytest.raises(CgroupError, match=f"cannot read {file}: ENOENT") as raised:
            tree.read_often(str(file))
        assert raised.value.errno == errno.ENOENT
        file.write_text("of the new one")
        assert tree.read_often(str(file)) == "of the new one"
    assert tree.read_often(str(file)) == "of the new one"
    assert len(opened) == 5, "once, anew and not there, opened and gone, anew, and once more"


def _gone(*_: int) -> bytes:
    raise OSError(errno.ENODEV, "No such device")


def test_files_that_stay_open_are_not_many(tmp_path: Path) -> None:
    tree = Tree()
    for number in range(3 * module._MOST_OPEN):
        (tmp_path / str(number)).write_text(str(number))
        assert tree.read_often(f"{tmp_path}/{number}") == str(number)
    assert len(tree._opened()) <= module._MOST_OPEN


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    child.wait()


def test_kill_ends_a_process_and_passes_over_one_that_is_gone(child: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    Tree().kill(lambda: [gone.pid, child.pid])
    assert child.wait(20) == -signal.SIGKILL


def test_kill_lets_a_pid_be_that_is_told_no_longer(child: subprocess.Popen[bytes]) -> None:
    told = iter([[child.pid], []])
    Tree().kill(lambda: next(told))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)


def test_kill_ends_what_is_forked_while_it_lists() -> None:
    """Each that is killed has one more at the next look, as of a fork bomb that is seen once only."""
    children = [subprocess.Popen(["sleep", "60"])]

    def listed() -> list[int]:
        if len(children) < 6:
            children.append(subprocess.Popen(["sleep", "60"]))
        return [one.pid for one in children]

    try:
        Tree().kill(listed)
        assert [one.wait(20) for one in children] == [-signal.SIGKILL] * 6
    finally:
        for one in children:
            one.kill()
            one.wait()


def test_kill_of_what_is_started_as_fast_as_it_is_killed_is_a_cgroup_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_KILLS", 3)
    started = itertools.count(1)

    def killed(_: Tree, chosen: Sequence[int], pids: Callable[[], Collection[int]]) -> tuple[set[int], set[int]]:
        return set(chosen), set(pids())

    monkeypatch.setattr(Tree, "_kill", killed)
    with pytest.raises(CgroupError, match="as fast as they are killed: 1 of them"):
        Tree().kill(lambda: [next(started)])


def test_kill_goes_on_with_the_descriptors_that_there_are(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, real, opened = subprocess.Popen(["sleep", "60"]), os.pidfd_open, list[int]()

    def few(pid: int) -> int:
        opened.append(pid)
        if len(opened) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", few)
    try:
        Tree().kill(lambda: [child.pid, other.pid])
        assert (child.wait(20), other.wait(20)) == (-signal.SIGKILL, -signal.SIGKILL)
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(("call", "number"), [("pidfd_open", errno.EMFILE), ("pidfd_send_signal", errno.ENOMEM)])
def test_kill_that_the_system_has_no_means_for_is_a_cgroup_error(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os if call == "pidfd_open" else signal, call, failing)

    with pytest.raises(CgroupError, match="cannot kill") as caught:
        Tree().kill(lambda: [child.pid])

    assert caught.value.errno == number


def test_directory_without_others_in_it_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, listed, real = Tree(), list[str](), os.scandir
    for name in ("a/b", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/b/cpu.max").touch()

    def scandir(directory: str) -> object:
        listed.append(directory)
        return real(directory)

    monkeypatch.setattr(os, "scandir", scandir)
    assert sorted(tree.children(str(tmp_path))) == ["a", "d"]
    assert sorted(tree.children(f"{tmp_path}/a")) == ["b", "c"]
    assert [tree.children(f"{tmp_path}/{name}") for name in ("a/b", "d", "none")] == [(), (), ()]
    (tmp_path / "d/e").mkdir()
    assert tree.children(f"{tmp_path}/d") == ("e",)
    assert listed == [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/none", f"{tmp_path}/d"]
