import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.demo.arguments import DAY
from integration.demo.curve import DAY_S, Curve, Play, TraceError, read_curve

RAMP = Curve("ramp", ((0.0, 0.0), (100.0, 50.0), (200.0, 25.0)))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("t_s", "expected"),
    [
        pytest.param(-5, 0.0, id="before the first point"),
        pytest.param(50, 25.0, id="between two points"),
        pytest.param(100, 50.0, id="at a point"),
        pytest.param(150, 37.5, id="falling"),
        pytest.param(999, 25.0, id="after the last point"),
    ],
)
def test_curve_at_a_moment_is_linear_between_points(t_s: float, expected: float) -> None:
    assert RAMP.at(t_s) == pytest.approx(expected)


def test_play_compressed_and_scaled_keeps_the_shape() -> None:
    play = Play(RAMP, seconds=20, peak_cores=2.0)
    assert play.compression == 10
    assert [play.wanted_cores(t) for t in (0, 5, 10, 15, 20)] == pytest.approx([0, 1.0, 2.0, 1.5, 1.0])


@pytest.mark.parametrize("t_s", [-0.01, 20.01])
def test_play_outside_its_time_wants_nothing(t_s: float) -> None:
    assert Play(RAMP, seconds=20, peak_cores=2.0).wanted_cores(t_s) == 0


@given(
    usage=st.lists(st.floats(0, 1e6), min_size=2, max_size=30).filter(lambda values: max(values) > 1e-3),
    seconds=st.floats(1, 1e4),
    peak_cores=st.floats(0.1, 256),
    share=st.floats(0, 1),
)
def test_play_never_wants_more_than_its_peak(
    usage: list[float], seconds: float, peak_cores: float, share: float
) -> None:
    play = Play(Curve("any", tuple((60.0 * k, u) for k, u in enumerate(usage))), seconds, peak_cores)
    assert 0 <= play.wanted_cores(share * seconds) <= peak_cores * (1 + 1e-9)


@pytest.mark.parametrize(("seconds", "count"), [(20, 200), (0.95, 10), (1, 10)])
def test_play_steps_cover_its_whole_time(seconds: float, count: int) -> None:
    assert len(Play(RAMP, seconds, 2.0).steps(0.1)) == count


def test_play_steps_hold_the_value_of_their_middle() -> None:
    assert Play(RAMP, 20, 2.0).steps(10) == pytest.approx((1.0, 1.5))


def test_read_curve_of_the_shipped_day_spans_24_hours_with_a_night_and_a_burst() -> None:
    curve = read_curve(DAY)
    assert curve.length_s == DAY_S
    assert 0 < min(u for _, u in curve.points) < 0.2
    assert 0.9 < curve.peak <= 1
    rises = [b[1] - a[1] for a, b in zip(curve.points, curve.points[1:], strict=False)]
    assert max(rises) > 0.3


TWO = "id,t,u\na,1000,1\nb,1000,7\na,1060,2\nb,1060,9\n"


@pytest.mark.parametrize(("wanted", "peak"), [(None, 2.0), ("a", 2.0), ("b", 9.0)])
def test_read_curve_of_several_series_takes_the_first_or_the_named_one(
    tmp_path: Path, wanted: str | None, peak: float
) -> None:
    curve = read_curve(write(tmp_path / "two.csv", TWO), wanted)
    assert (curve.id, curve.peak, curve.length_s) == (wanted or "a", peak, 60)


def test_read_curve_compressed_with_gzip_reads_the_same(tmp_path: Path) -> None:
    plain = write(tmp_path / "two.csv", TWO)
    (tmp_path / "packed").write_bytes(gzip.compress(TWO.encode()))
    assert read_curve(tmp_path / "packed") == read_curve(plain)


def test_read_curve_unordered_and_other_columns_is_put_in_order(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", "u,host,t,id\n2,x,60,a\n1,x,0,a\n")
    assert read_curve(file).points == ((0, 1), (60, 2))


def test_read_curve_longer_than_a_day_takes_the_first_day(tmp_path: Path) -> None:
    rows = "".join(f"a,{hour * 3600},{hour}\n" for hour in range(50))
    assert read_curve(write(tmp_path / "t.csv", f"id,t,u\n{rows}")).length_s == DAY_S


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("time,usage\n1,2\n", "no column 'id'", id="no header"),
        pytest.param("", "no column 'id'", id="empty"),
        pytest.param("id,t,u\n", "has no series", id="no rows"),
        pytest.param("id,t,u\na,0,1\n", "no two samples", id="one sample"),
        pytest.param("id,t,u\na,0,0\na,1,0\n", "no usage above 0", id="all zero"),
        pytest.param("id,t,u\na,0,1\na,1,x\n", "line 3: u is 'x'", id="usage no number"),
        pytest.param("id,t,u\na,0,1\na,1,-1\n", "line 3: u is '-1'", id="usage negative"),
        pytest.param("id,t,u\na,0,1\na,1,nan\n", "line 3: u is 'nan'", id="usage nan"),
        pytest.param("id,t,u\na,,1\na,1,1\n", "line 2: t is ''", id="time missing"),
    ],
)
def test_read_curve_of_a_bad_file_names_file_value_and_remedy(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path / "bad.csv", text)
    with pytest.raises(TraceError) as error:
        read_curve(file)
    assert str(file) in str(error.value) and says in str(error.value)


def test_read_curve_with_unknown_id_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no series 'z'.*\(a, b\)"):
        read_curve(write(tmp_path / "two.csv", TWO), "z")


@pytest.mark.parametrize("content", [b"\x1f\x8bbroken", b"\xff\xfe\x00id,t,u"], ids=["gzip", "binary"])
def test_read_curve_of_a_broken_file_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(TraceError, match="cannot be read"):
        read_curve(tmp_path / "broken")


def test_read_curve_of_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_curve(tmp_path / "none.csv")
