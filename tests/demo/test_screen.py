import io

import pytest
from rich.console import Console

from integration.demo.sample import Sample, Setting
from integration.demo.screen import PlainScreen, picture
from integration.demo.spark import columns, spark

SETTING = Setting(
    "a day", seconds=10, compression=8640, capacity_cores=2.0, floor_cores=0.1, half_life_s=1.0, cgroup_version=2
)


def sample(t_s: float) -> Sample:
    return Sample(t_s, 0.5, 0.51, 1.62, 1.03, 0.64, 1.05, 0.87, "capacity less prediction")


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        pytest.param([], (None, None, None, None), id="nothing"),
        pytest.param([(0, 1.0), (5, 3.0)], (1.0, 1.0, 3.0, None), id="a gap repeats"),
        pytest.param([(0, 1.0), (1, 3.0)], (2.0, None, None, None), id="mean of a column"),
        pytest.param([(0, None), (3, 2.0)], (None, 2.0, None, None), id="unknown is empty"),
        pytest.param([(-1, 1.0), (99, 2.0)], (1.0, 1.0, 1.0, 2.0), id="outside is put at the ends"),
    ],
)
def test_columns_fit_points_into_the_width(
    points: list[tuple[float, float | None]], expected: tuple[float | None, ...]
) -> None:
    assert columns(points, 10, 4) == expected


@pytest.mark.parametrize(
    ("values", "height", "expected"),
    [
        pytest.param((0, 0.5, 1, 2), 1, ("▁▄██",), id="one line"),
        pytest.param((0, 0.5, 0.75, 1), 2, ("  ▄█", "▁███"), id="two lines"),
        pytest.param((None, 1), 1, (" █",), id="unknown"),
    ],
)
def test_spark_draws_values_as_blocks(values: tuple[float | None, ...], height: int, expected: tuple[str, ...]) -> None:
    assert spark(values, 1.0, height) == expected


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (160, 50)])
def test_picture_fits_the_terminal_and_shows_every_value(width: int, height: int) -> None:
    console = Console(width=width, height=height, file=io.StringIO())
    stories = [(float(t), f"story {t}") for t in range(4)]
    drawn = picture([sample(0), sample(2.5)], SETTING, ["a", "b", "c", "d"], stories, width=width, height=height)
    lines = console.render_lines(drawn, pad=False)
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    assert len(lines) <= height
    for part in ("0.50 cores", "0.51 cores", "1.62 cores", "1.03 cores", "0.64 cores", "1.05 cores", "87%", "story 3"):
        assert part in text
    if width >= 80:
        assert "cgroup v2" in text and "day 06:00" in text


def test_plain_screen_shows_one_line_every_few_seconds() -> None:
    out = io.StringIO()
    screen = PlainScreen(SETTING, out)
    for tick in range(14):
        screen.show([sample(tick * 0.5)])
    assert len(out.getvalue().splitlines()) == 3
