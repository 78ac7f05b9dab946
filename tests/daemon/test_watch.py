"""When a changed file is worth reading."""

from collections.abc import Callable
from pathlib import Path

import pytest

from criproxy.daemon.watch import FileWatch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_text("old")
    return path


def test_file_that_is_left_alone_has_not_changed(file: Path) -> None:
    watch = FileWatch(file)
    assert [watch.changed() for _ in range(3)] == [False, False, False]


def test_changed_file_is_told_once_and_only_at_rest(file: Path) -> None:
    watch = FileWatch(file)
    file.write_text("")
    first = watch.changed()
    file.write_text("new, in full")
    assert [first, *(watch.changed() for _ in range(3))] == [False, False, True, False]


def test_file_that_was_changed_and_changed_back_by_rename_is_told(file: Path) -> None:
    watch = FileWatch(file)
    copy = file.with_name("copy")
    copy.write_text("old")
    copy.rename(file)
    assert [watch.changed(), watch.changed()] == [False, True]


def test_file_that_vanishes_and_comes_back_is_told_each_time(file: Path) -> None:
    watch = FileWatch(file)
    file.unlink()
    assert [watch.changed() for _ in range(3)] == [False, True, False]
    file.write_text("new")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_file_that_was_read_is_not_told_again(file: Path) -> None:
    watch = FileWatch(file)
    file.write_text("new text")
    watch.read()
    assert [watch.changed(), watch.changed()] == [False, False]


@pytest.mark.parametrize("change", [lambda d: (d / "a.toml").write_text("b"), lambda d: (d / "a.toml").unlink()])
def test_dropin_that_changes_or_vanishes_is_told(file: Path, change: Callable[[Path], object]) -> None:
    directory = file.with_name("f.d")
    directory.mkdir()
    (directory / "a.toml").write_text("a, in full")
    watch = FileWatch(file)
    change(directory)
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_first_dropin_is_told(file: Path) -> None:
    watch = FileWatch(file)
    file.with_name("f.d").mkdir()
    assert [watch.changed() for _ in range(2)] == [False, False]
    (file.with_name("f.d") / "a.toml").write_text("a")
    assert [watch.changed() for _ in range(3)] == [False, True, False]
