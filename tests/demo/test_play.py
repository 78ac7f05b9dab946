from pathlib import Path

import msgspec
import pytest

from criproxy.config.settings import Control
from integration.demo import DemoError
from integration.demo.load import Play
from integration.demo.node import config
from integration.demo.play import Sample, draw, in_words, line


def play(length_s: float, seconds: float) -> Play:
    return Play(((0.0, 1.0), (length_s, 1.0)), seconds, 1.0)


def sample(
    t_s: float, limit: float | None = 1.0, *, online: float = 0.5, box: float = 1.0, wanted: float = 0.5
) -> Sample:
    return Sample(t_s, wanted, online, online + box + 0.1, box, None if limit is None else 0.6, limit, 0.9)


@pytest.mark.parametrize(
    ("length_s", "seconds", "half_life_s", "raise_after_s"),
    [
        pytest.param(86400, 90, 0.9375, 0.0625, id="a day in 90 s"),
        pytest.param(60, 86400, 900, 60, id="slower than it was"),
        pytest.param(3600, 90, 22.5, 1.5, id="an hour in 90 s"),
        pytest.param(86400, 10, 900 / 8640, 60 / 8640, id="as fast as it goes"),
    ],
)
def test_times_of_the_control_loop_are_compressed_as_the_trace_is_and_taken_by_criproxy(
    length_s: float, seconds: float, half_life_s: float, raise_after_s: float
) -> None:
    control = msgspec.convert(config(play(length_s, seconds), 1)["control"], Control)
    assert (control.half_life_s, control.raise_after_s) == pytest.approx((half_life_s, raise_after_s))
    assert control.max_raise_ratio == pytest.approx(min(0.1 * 60.0 / raise_after_s, 1.0))


def test_figures_are_core_seconds_and_shares_and_the_last_line_is_short() -> None:
    words = in_words([sample(0), sample(1), sample(3, box=0.4), sample(4, 0.2, online=0.4)], 2)
    assert words[0] == "Offline work got 2.8 core-seconds in 4 s: 49% of the 5.7 that all else left idle on 2 cores."
    assert words[1].startswith("Online wanted 2.0 core-seconds and used 1.9 (95%).") and words[1].endswith("used 0.4.")
    assert "from 0.20 to 1.00 cores, and held it back (it was throttled) for 90%" in words[2]
    short = "In short: 64% of the CPU was used; offline got 49% of what was left, and online lost 5% of what it wanted."
    assert words[-1] == short


def test_figures_of_one_sample_say_that_the_machine_was_too_busy() -> None:
    with pytest.raises(DemoError, match="too busy"):
        in_words([sample(0)], 2)


def test_line_holds_every_value() -> None:
    text = line(sample(65, None), 2)
    assert text.startswith(" 65.0 s  node 1.60/2  online 0.50 of 0.50 wanted  predicted    –  box limit    –  box 1.00")
    assert text.endswith("throttled  90%")


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2])
def test_draw_of_any_samples_writes_a_png(tmp_path: Path, count: int) -> None:
    draw([sample(0.5, None), sample(1.0)][:count], play(86400, 10), 2, tmp_path / "plot.png", "a subtitle")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
