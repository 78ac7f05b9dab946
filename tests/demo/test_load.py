import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.demo import DemoError
from integration.demo.load import DAY, Play, online_command, read_play

RAMP = Play(((0.0, 0.0), (100.0, 50.0), (200.0, 25.0)), seconds=20, peak_cores=2.0)
FLAT = Play(((0.0, 1.0), (60.0, 1.0)), seconds=1.0, peak_cores=1.0)


def test_play_compressed_and_scaled_keeps_the_shape() -> None:
    assert RAMP.compression == 10
    assert [RAMP.wanted_cores(t) for t in (-1, 0, 5, 10, 15, 20, 21)] == pytest.approx([0, 0, 1.0, 2.0, 1.5, 1.0, 1.0])


@given(
    usage=st.lists(st.floats(0, 1e6), min_size=2, max_size=30).filter(lambda values: max(values) > 1e-3),
    seconds=st.floats(1, 1e4),
    peak_cores=st.floats(0.1, 256),
    share=st.floats(0, 1),
)
def test_play_never_wants_more_than_its_peak(
    usage: list[float], seconds: float, peak_cores: float, share: float
) -> None:
    play = Play(tuple((60.0 * k, u) for k, u in enumerate(usage)), seconds, peak_cores)
    assert 0 <= play.wanted_cores(share * seconds) <= peak_cores * (1 + 1e-9)


def test_shipped_day_spans_24_hours_with_a_night_and_a_burst() -> None:
    points = read_play(DAY, None, 90, 1.7).points
    usages = [u for _, u in points]
    assert points[-1][0] == 86400
    assert min(usages) < 0.2 and max(usages) > 0.9
    assert max(later - earlier for earlier, later in pairwise(usages)) > 0.3


@pytest.mark.parametrize(("wanted", "peak"), [(None, 2.0), ("a", 2.0), ("b", 9.0)])
def test_of_several_series_the_first_or_the_named_one_is_played(
    tmp_path: Path, wanted: str | None, peak: float
) -> None:
    (tmp_path / "two.csv").write_text("id,t,u\na,1000,1\nb,1000,7\na,1060,2\nb,1060,9\nb,99999,100\n")
    points = read_play(tmp_path / "two.csv", wanted, 10, 1).points
    assert (points[-1][0], max(u for _, u in points)) == (60, peak), "its first day alone, in any unit"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("time,usage\n1,many\n", "not a finite number", id="no number"),
        pytest.param("", "is empty", id="empty"),
        pytest.param("id,t,u\na,0,1\n", "no two samples", id="one sample"),
        pytest.param("id,t,u\na,0,0\na,1,0\n", "no usage", id="all zero"),
    ],
)
def test_bad_trace_names_file_and_remedy(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DemoError, match=f"bad.csv.*{says}"):
        read_play(tmp_path / "bad.csv", None, 10, 1)


def test_unknown_series_lists_those_there_are() -> None:
    with pytest.raises(DemoError, match=r"no series 'z'.*\['day'\]"):
        read_play(DAY, "z", 10, 1)


def test_each_worker_is_busy_for_its_part_of_the_curve() -> None:
    assert "WORKERS=2 STEP=100000 DUTIES='" + " ".join(["500"] * 10) + "'" in online_command(FLAT, 2)[2]


def test_online_command_of_a_long_play_fits_into_one_argument() -> None:
    """The kernel takes 128 KiB per argument (execve(2), MAX_ARG_STRLEN)."""
    assert len(online_command(Play(FLAT.points, 86400.0, 1.0), 64)[2].encode()) < 128 << 10


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed")
def test_command_parsed_by_busybox_has_no_syntax_error() -> None:
    shell, *script = online_command(FLAT, 2)
    done = subprocess.run(("busybox", shell, "-n", *script), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
