import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.demo import DemoError
from integration.demo.place import check_port, held
from integration.lab.process import LabError


@pytest.fixture
def short_path() -> Iterator[Path]:
    """As tmp_path, but short enough for sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def test_held_place_is_refused_to_another_by_its_pid(short_path: Path) -> None:
    base = short_path / "demo"
    with held(base), pytest.raises(DemoError, match=rf"Another demo is running in {base} \(pid {os.getpid()}\)"):  # noqa: SIM117
        with held(base):
            pytest.fail("held twice")


def test_held_place_when_let_go_is_gone_and_can_be_held_again(short_path: Path) -> None:
    for _ in range(2):
        with held(short_path / "demo") as place:
            assert place.base.is_dir() and not place.lab.exists()
        assert not (short_path / "demo").exists()


def test_held_place_let_go_by_an_error_keeps_what_was_not_cleaned(short_path: Path) -> None:
    with pytest.raises(RuntimeError), held(short_path / "demo") as place:
        place.lab.mkdir()
        raise RuntimeError
    with held(short_path / "demo") as place:
        assert place.lab.exists()


def test_held_place_after_a_dead_owner_is_taken_over(short_path: Path) -> None:
    base = short_path / "demo"
    (base / "lab").mkdir(parents=True)
    (base / "criproxy-demo.lock").write_text("1\n")
    with held(base) as place:
        assert place.lab.exists()


def test_held_of_somebody_elses_directory_is_refused_and_touches_nothing(short_path: Path) -> None:
    (short_path / "lab").mkdir()
    with pytest.raises(DemoError, match="not empty, and not a demo's"), held(short_path):
        pytest.fail("held")
    assert [path.name for path in short_path.iterdir()] == ["lab"]


def test_held_where_there_can_be_no_directory_says_so(short_path: Path) -> None:
    (short_path / "file").touch()
    with pytest.raises(DemoError, match=r"give another --directory"), held(short_path / "file" / "demo"):
        pytest.fail("held")


def test_held_of_a_name_too_long_for_sockets_says_so_and_makes_nothing(short_path: Path) -> None:
    base = short_path / ("x" * 100)
    with pytest.raises(LabError, match="use a shorter directory"), held(base):
        pytest.fail("held")
    assert not base.exists()


def test_held_lock_belongs_to_the_file_that_is_there(short_path: Path) -> None:
    with (
        held(short_path / "demo") as place,
        (place.base / "criproxy-demo.lock").open() as lock,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_check_port_taken_says_so_and_free_passes() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(DemoError, match=f"Port 127.0.0.1:{port} is taken.*--port"):
            check_port(port)
    check_port(port)
