"""What one process notes of the box, and the next one finds."""

from pathlib import Path

import pytest

from criproxy.cgroup.naming import parse_box
from criproxy.lastbox import LastBox


def last(file: Path, *existing: str) -> LastBox:
    return LastBox(file, lambda path: path in existing)


@pytest.mark.parametrize("path", ["/offline", "offline.slice", "/kubelet/offline"])
def test_noted_box_is_found_by_the_next_process_while_it_is_there(tmp_path: Path, path: str) -> None:
    last(tmp_path / "box").note(path)
    assert last(tmp_path / "box", path).find() == parse_box(path)
    assert last(tmp_path / "box").find() is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["box"]


def test_no_box_leaves_the_note_as_it_is(tmp_path: Path) -> None:
    notes = last(tmp_path / "box", "/offline")
    notes.note("/offline")
    notes.note(None)
    assert notes.find() == parse_box("/offline")


@pytest.mark.parametrize("content", [b"", b"/etc", b"\xff\xfe", b"/../offline"])
def test_note_that_names_no_box_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "box").write_bytes(content)
    assert LastBox(tmp_path / "box", lambda _: True).find() is None


def test_note_that_can_t_be_written_costs_nothing_and_is_tried_again(tmp_path: Path) -> None:
    notes = last(tmp_path / "later" / "box", "/offline")
    notes.note("/offline")
    assert notes.find() is None
    (tmp_path / "later").mkdir()
    notes.note("/offline")
    assert notes.find() == parse_box("/offline")
