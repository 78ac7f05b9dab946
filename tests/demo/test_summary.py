from collections.abc import Sequence

import pytest

from integration.demo.sample import Sample, Setting, clock
from integration.demo.story import happening, line
from integration.demo.summary import Overlap, Squeeze, in_words, overlaps, squeezes, summarise

SETTING = Setting(
    "a day", seconds=10, compression=8640, capacity_cores=2.0, floor_cores=0.1, half_life_s=1.0, cgroup_version=1
)


def sample(
    t_s: float,
    limit: float | None = 1.0,
    online: float = 0.5,
    *,
    box: float = 1.0,
    wanted: float | None = None,
    prediction: float | None = 0.6,
    throttled: float = 0.9,
    rest: float = 0.1,
) -> Sample:
    return Sample(
        t_s=t_s, wanted_cores=online if wanted is None else wanted, online_cores=online, node_cores=online + rest + box,
        box_cores=box, prediction_cores=prediction, limit_cores=limit, throttled_ratio=throttled,
    )  # fmt: skip


def with_limits(*limits: float | None) -> list[Sample]:
    return [sample(float(t), limit) for t, limit in enumerate(limits)]


def test_summarise_counts_core_seconds_and_shares() -> None:
    summary = summarise([sample(0), sample(1), sample(3, box=0.4), sample(4, online=0.4, wanted=0.5)], SETTING)
    assert summary.offline_core_s == pytest.approx(1.0 + 2 * 0.4 + 1.0)
    assert summary.idle_core_s == pytest.approx(1.4 + 2 * 1.4 + 1.5)
    assert summary.idle_share == pytest.approx(2.8 / 5.7)
    assert summary.wanted_core_s == pytest.approx(2.0)
    assert summary.online_share == pytest.approx(1.9 / 2.0)
    assert summary.other_core_s == pytest.approx(0.4)
    assert summary.shortfall_cores == pytest.approx(0.1) and summary.shortfall_at_s == 4


@pytest.mark.parametrize("count", [0, 1])
def test_summarise_of_too_few_samples_raises(count: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        summarise([sample(0)] * count, SETTING)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param((1.0, 1.0, 1.0), [], id="flat"),
        pytest.param((1.0, 1.5, 1.9), [], id="only raised"),
        pytest.param((1.5, 0.5, 0.5), [Squeeze(0, 1, 1.5, 0.5)], id="one step"),
        pytest.param((1.5, 1.5, 1.0, 0.7, 0.4, 0.9), [Squeeze(1, 4, 1.5, 0.4)], id="several steps"),
        pytest.param((1.5, 1.0, 1.0, 0.5), [Squeeze(0, 3, 1.5, 0.5)], id="a tick's pause joins"),
        pytest.param(
            (1.5, 1.0, *[1.0] * 5, 0.5), [Squeeze(0, 1, 1.5, 1.0), Squeeze(6, 7, 1.0, 0.5)], id="a long pause parts"
        ),
        pytest.param((1.5, 0.5, 1.5, 0.5), [Squeeze(0, 1, 1.5, 0.5), Squeeze(2, 3, 1.5, 0.5)], id="a raise parts"),
        pytest.param((1.0, 0.9, 1.0), [], id="too small"),
        pytest.param((1.5, 1.48, 1.46, 0.5), [Squeeze(2, 3, 1.46, 0.5)], id="after a drift"),
        pytest.param((1.5, 1.47, 1.44, 1.41, 1.38, 1.35, 1.32, 1.29), [], id="a drift"),
        pytest.param((None, 1.0, None, 0.1), [], id="no limit before"),
    ],
)
def test_squeezes_are_the_falls_of_the_limit(limits: Sequence[float | None], expected: list[Squeeze]) -> None:
    assert list(squeezes(with_limits(*limits), 0.2)) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([(0, 1.0, 0.5), (1, 1.0, 0.8)], [], id="room enough"),
        pytest.param([(0, 1.5, 0.1), (1, 1.5, 0.8), (2, 0.5, 0.8)], [Overlap(0, 1)], id="limit follows"),
        pytest.param([(0, 1.5, 0.1), (1, 1.5, 0.8), (2, 1.5, 0.8)], [Overlap(0, 2)], id="until the end"),
        pytest.param([(0, None, 1.9), (1, None, 1.9)], [], id="no limit"),
        pytest.param([(0, 0.1, 1.9), (1, 0.1, 1.9)], [], id="at the floor"),
    ],
)
def test_overlaps_are_the_times_when_the_limit_stands_in_the_way(
    rows: list[tuple[float, float | None, float]], expected: list[Overlap]
) -> None:
    assert list(overlaps([sample(t, limit, online) for t, limit, online in rows], 2.0, 0.1)) == expected


def test_in_words_says_all_numbers() -> None:
    rows = [sample(0, 1.5, 0.1, box=1.5), sample(1, 1.5, 1.2, box=0.6, wanted=1.5), sample(2, 0.4, 1.2, box=0.4)]
    text = "\n".join(in_words(summarise(rows, SETTING), SETTING))
    assert "1.0 core-seconds in 10 s: 71% of the 1.4" in text
    assert "wanted 2.7 core-seconds and used 2.4 (89%); at worst it was 0.30 cores short for a moment, at 0:01" in text
    assert "squeezed once at 0:01: from 1.50 to 0.40 cores within 1.0 s" in text
    assert "Once online rose faster than predicted" in text and "after 1.0 s" in text
    assert "throttled) for 90%" in text
    assert text.endswith(
        "90% of the CPU was used; offline got 71% of what was left, and online lost 11% of what it wanted."
    )


def test_in_words_of_a_calm_play_says_that_nothing_happened() -> None:
    text = "\n".join(in_words(summarise([sample(0, throttled=0.0), sample(1, throttled=0.0)], SETTING), SETTING))
    assert "never squeezed" in text and "never short" in text and "never reached" in text


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        pytest.param([sample(0, None)], "no limit yet", id="no limit"),
        pytest.param([sample(0, prediction=None)], "learns", id="no prediction"),
        pytest.param([sample(0, 1.5), sample(1, 0.5)], "squeezed from 1.50 to 0.50", id="squeezed"),
        pytest.param([sample(0, 0.5), sample(1, 1.5, 0.1)], "grows from 0.50 to 1.50", id="grown"),
        pytest.param([sample(0, None), sample(1, 1.0)], "held at 1.00", id="no limit before"),
        pytest.param([sample(0, 1.5), sample(9, 0.5)], "held at 0.50", id="squeezed long ago"),
        pytest.param([sample(0, 1.5, 1.0)], "goes first by priority", id="in the way"),
        pytest.param([sample(0, 1.0)], "held at 1.00", id="throttled"),
        pytest.param([sample(0, 1.0, box=0.3, throttled=0.0)], "soak up 0.30", id="free"),
        pytest.param(
            [sample(0, 0.1, 1.4, box=0.1, rest=0.5)],
            "the machine is full (other programs use 0.50 cores)",
            id="at the floor",
        ),
    ],
)
def test_happening_tells_what_the_limit_does(rows: list[Sample], says: str) -> None:
    assert says in happening(rows, SETTING)


@pytest.mark.parametrize(("rest", "says"), [(2.9, "used 2.9 core-seconds."), (3.1, "which is a lot")])
def test_in_words_of_a_busy_machine_says_so(rest: float, says: str) -> None:
    assert says in "\n".join(in_words(summarise([sample(0), sample(1, rest=rest)], SETTING), SETTING))


def test_line_holds_every_value_of_the_picture() -> None:
    text = line([sample(65, 1.25, 0.5, box=1.2, wanted=0.55, prediction=None)], SETTING)
    for part in (
        "1:05",
        "day 156:00",
        "node 1.80/2",
        "online 0.50 of 0.55",
        "predicted    –",
        "limit 1.25",
        "box 1.20",
        "90%",
    ):
        assert part in text


@pytest.mark.parametrize(("t_s", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "60:00"), (-1, "0:00")])
def test_clock_of_seconds_is_minutes_and_seconds(t_s: float, text: str) -> None:
    assert clock(t_s) == text


def test_box_that_is_open_is_told_and_reaches_into_nobody() -> None:
    summary = summarise([sample(float(t), limit, online=1.9) for t, limit in enumerate((2.0, 2.0, 2.0, 1.0))], SETTING)
    assert (summary.open_ratio, len(summary.overlaps)) == (0.75, 1)
    assert "For 75% of the time nothing told of harm, and the box could use all that online left." in in_words(
        summary, SETTING
    )


def test_box_that_is_never_open_is_bounded_by_the_prediction() -> None:
    words = in_words(summarise(with_limits(1.0, 1.5, 1.0), SETTING), SETTING)
    assert "The box was bounded by what online was predicted to use, all the time." in words
