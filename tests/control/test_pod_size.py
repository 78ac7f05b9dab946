"""A pod lies about its size when it does so for an hour on end."""

from collections.abc import Callable

import pytest

from criproxy.control.pod_size import SLOT_S, Seen, Size, SizeState, step

LOOK_S = 5.0
ASKED = 1.0


def lived(
    hours: float, use: Callable[[float], float], asked: float | None = ASKED, waiting_ratio: float | None = None
) -> SizeState | None:
    """What is known after so many hours, looked at each 5 s. `use` of seconds since the start."""
    state = None
    for at in range(round(hours * 3600 / LOOK_S)):
        t_s = (at + 1) * LOOK_S
        state = step(state, Seen(1000.0 + t_s, LOOK_S, use(t_s), asked, waiting_ratio))
    return state


def verdict(state: SizeState | None) -> Size | None:
    return None if state is None else state.verdict()


@pytest.mark.parametrize(
    ("hours", "use", "size"),
    [
        pytest.param(1.01, lambda _: 3.1, Size.TOO_SMALL, id="three-times-as-much-for-an-hour"),
        pytest.param(0.98, lambda _: 3.1, Size.FITS, id="not-yet-an-hour"),
        pytest.param(2, lambda _: 2.9, Size.FITS, id="not-three-times"),
        pytest.param(1.01, lambda _: 0.3, Size.TOO_LARGE, id="less-than-a-third"),
        pytest.param(2, lambda _: 0.34, Size.FITS, id="a-third"),
        pytest.param(1.01, lambda _: 0.0, Size.TOO_LARGE, id="nothing"),
        pytest.param(2, lambda t_s: 9.0 if t_s % 60 < 30 else 0.0, Size.TOO_SMALL, id="in-bursts-of-half-a-minute"),
        pytest.param(2, lambda t_s: 0.1 if t_s % 3000 > SLOT_S else 1.0, Size.FITS, id="works-each-50-minutes"),
        pytest.param(1.5, lambda t_s: 9.0 if t_s < 3000 else 0.0, Size.FITS, id="changes-within-the-hour"),
    ],
)
def test_pod_lies_when_all_means_of_an_hour_say_so(hours: float, use: Callable[[float], float], size: Size) -> None:
    assert verdict(lived(hours, use)) == size


def test_pod_that_waits_for_cpu_has_not_asked_for_too_much() -> None:
    assert verdict(lived(2, lambda _: 0.1, waiting_ratio=0.2)) is Size.FITS
    assert verdict(lived(2, lambda _: 0.1, waiting_ratio=0.05)) is Size.TOO_LARGE
    assert verdict(lived(2, lambda _: 9.0, waiting_ratio=0.9)) is Size.TOO_SMALL


@pytest.mark.parametrize("asked", [None, 0.0, float("nan"), float("inf")])
def test_pod_that_asks_for_nothing_does_not_lie(asked: float | None) -> None:
    assert lived(0.1, lambda _: 9.0, asked) is None


def test_pod_that_is_resized_begins_anew() -> None:
    state = lived(2, lambda _: 9.0)
    assert verdict(step(state, Seen(9000.0, LOOK_S, 9.0, 8.0))) is Size.FITS
