import msgspec
import pytest

from criproxy.config.settings import Control
from integration.demo.curve import Curve, Play
from integration.demo.stage import half_life_s, max_raise_ratio, raise_after_s


def play(length_s: float, seconds: float) -> Play:
    return Play(Curve("flat", ((0.0, 1.0), (length_s, 1.0))), seconds, 1.0)


@pytest.mark.parametrize(
    ("length_s", "seconds", "half_life", "raise_after"),
    [
        pytest.param(86400, 90, 0.9375, 0.0625, id="a day in 90 s"),
        pytest.param(86400, 86400, 900, 60, id="a day in a day"),
        pytest.param(60, 86400, 900, 60, id="slower than it was"),
        pytest.param(3600, 90, 22.5, 1.5, id="an hour in 90 s"),
        pytest.param(86400, 10, 900 / 8640, 60 / 8640, id="as fast as it goes"),
    ],
)
def test_times_of_the_control_loop_are_compressed_as_the_trace_is_and_taken_by_criproxy(
    length_s: float, seconds: float, half_life: float, raise_after: float
) -> None:
    short = play(length_s, seconds)
    assert half_life_s(short) == pytest.approx(half_life)
    assert raise_after_s(short) == pytest.approx(raise_after)
    assert max_raise_ratio(short) == pytest.approx(min(0.1 * 60.0 / raise_after, 1.0))
    msgspec.convert({"half_life_s": half_life_s(short), "raise_after_s": raise_after_s(short)}, Control)
