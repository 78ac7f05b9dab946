import shutil
import subprocess

import pytest

from integration.demo.curve import Curve, Play
from integration.demo.load import duties, offline_command, online_command

PLAY = Play(Curve("flat", ((0.0, 1.0), (60.0, 1.0))), seconds=1.0, peak_cores=1.0)


@pytest.mark.parametrize(
    ("wanted", "cores", "expected"),
    [
        pytest.param((0.0, 1.0, 2.0), 2, (0, 500, 1000), id="shared by the workers"),
        pytest.param((5.0,), 2, (1000,), id="never above all the time"),
        pytest.param((0.3333,), 1, (333,), id="rounded"),
        pytest.param((), 4, (), id="empty"),
    ],
)
def test_duties_of_wanted_cores_are_permille_of_each_worker(
    wanted: tuple[float, ...], cores: int, expected: tuple[int, ...]
) -> None:
    assert duties(wanted, cores) == expected


def test_online_command_of_a_long_play_fits_into_one_argument() -> None:
    """The kernel takes 128 KiB per argument (execve(2), MAX_ARG_STRLEN)."""
    script = online_command(Play(PLAY.curve, 86400.0, 1.0), 64)[2]
    assert len(script.encode()) < 128 << 10


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed")
@pytest.mark.parametrize("command", [online_command(PLAY, 2), offline_command(2)], ids=["online", "offline"])
def test_command_parsed_by_busybox_has_no_syntax_error(command: tuple[str, ...]) -> None:
    done = subprocess.run(("busybox", *command[:1], "-n", *command[1:]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
