"""What `criproxy top` shows and what keys change, without a terminal."""

import pytest
from msgspec.structs import replace

from criproxy.commands.top.screen import HELP, KEYS, View, age, drawn, ordered, pressed, size, whole
from criproxy.model.modes import Mode, in_words
from criproxy.observe.status import OfflinePod, ScheduleStatus, Status
from tests.observe.status_samples import STATUS

POD = OfflinePod("u", "batch", "job", "/offline/podu")
PODS = (
    replace(POD, name="small", cpu_cores=0.5, memory_bytes=9 << 20, age_s=30.0, cpu_waiting_ratio=0.5),
    replace(POD, name="big", cpu_cores=12.25, cpu_asked_cores=4.0, memory_bytes=3 << 30, age_s=90000.0, cpus="0-3"),
    replace(POD, name="new", tier="mid", notice_s=30),
)


PLAIN = View()


def status(*pods: OfflinePod, **changed: object) -> Status:
    return replace(STATUS, pods=pods, **changed)


def texts(one: Status, view: View = PLAIN, width: int = 80, height: int = 24, failure: str = "") -> list[str]:
    return [line.text.rstrip() for line in drawn(one, view, width, height, failure)]


def names(view: View) -> list[str]:
    return [pod.name for pod in ordered(PODS, view)]


@pytest.mark.parametrize("missized", ["x", [1], [{"name": "a"}], {"uid": "a"}])
def test_section_that_is_no_criproxy_s_is_a_value_error(missized: object) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        drawn(status(*PODS, sections={"missized": missized}), PLAIN, 80, 24)


def test_screen_of_80_by_24_has_all_columns() -> None:
    shown = texts(status(*PODS, problems=()))
    assert shown[:8] == [
        "criproxy 0.1.0, up 1 h 2 min, 3 offline pods, by CPU in use",
        "CPU    4.00: online 1.75, box 1.25, free 1.00, limit 1.50",
        "memory 8G: online 3G, box 1G, free 4G, limit unlimited",
        "colocation on",
        "",
        "POD                       CPU   ASKS  WAIT    MEM  LIMIT    AGE   CPUS TIER NOTE",
        "batch/big               12.25   4.00     -     3G      -     1d    0-3    -    -",
        "batch/small              0.50      -   50%     9M      -    30s    all    -    -",
    ]
    assert shown[8] == "batch/new                   -      -     -      -      -      -    all  mid  30s"
    assert (len(shown), shown[-1]) == (24, KEYS)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10), (20, 3), (1, 1)])
def test_no_line_is_longer_than_the_terminal(width: int, height: int) -> None:
    for view in (View(), View(helps=True)):
        shown = drawn(status(*PODS * 40), view, width, height)
        assert len(shown) == height
        assert max(len(line.text) for line in shown) <= width


def test_help_fits_on_80_columns() -> None:
    assert max(map(len, (*HELP, KEYS))) <= 80


@pytest.mark.parametrize(
    ("changed", "failure", "line"),
    [
        ({"problems": ("it hangs", "b")}, "", "not well: it hangs (and 1 more: `criproxy status`)"),
        ({"problems": ("it hangs",)}, "nobody is there", "no answer: nobody is there"),
        ({"problems": (), "schedule": ScheduleStatus("", "it is night")}, "", "closed: it is night"),
    ],
    ids=["problems", "no-answer", "closed"],
)
def test_state_comes_first(changed: dict[str, object], failure: str, line: str) -> None:
    assert texts(status(**changed), failure=failure)[3] == line


@pytest.mark.parametrize("mode", Mode)
def test_mode_in_force_is_said(mode: Mode) -> None:
    assert texts(status(problems=(), modes=(mode.value,)), width=200)[3] == in_words(mode)


def test_several_modes_are_counted_and_the_schedule_says_why_it_is_closed() -> None:
    both = {"problems": (), "modes": ("closed", "held off"), "schedule": ScheduleStatus("", "it is night")}
    assert texts(status(**both))[3] == "closed: it is night (and 1 more: `criproxy status`)"


def test_pods_that_lie_have_a_line() -> None:
    lie = {"uid": "u", "resource": "cpu"}
    shown = texts(status(sections={"missized": [lie, {**lie, "resource": "memory"}]}))
    assert shown[4] == "1 pods have not used what they ask for, for an hour: `criproxy status`"


def test_name_that_a_terminal_would_obey_is_shown_in_words() -> None:
    shown = "".join(texts(status(replace(POD, name="\x1b[2J"))))
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("c", ["big", "small", "new"]),
        ("m", ["big", "small", "new"]),
        ("a", ["big", "small", "new"]),
        ("w", ["small", "big", "new"]),
        ("n", ["big", "new", "small"]),
    ],
)
def test_key_sorts_and_what_is_not_known_comes_last(key: str, order: list[str]) -> None:
    view = pressed(View(sort="m", first=2), key, len(PODS), 24)
    assert (names(view), view.first) == (order, 0)


def test_r_turns_the_order_round() -> None:
    assert names(pressed(View(), "r", 3, 24)) == ["small", "big", "new"]
    assert names(pressed(View(sort="n"), "r", 3, 24)) == ["small", "new", "big"]


def test_keys_scroll_no_further_than_the_pods() -> None:
    view, height = View(), 17
    for key, first in (
        ("up", 0),
        ("down", 1),
        ("page down", 11),
        ("end", 90),
        ("down", 90),
        ("page up", 80),
        ("home", 0),
    ):
        view = pressed(view, key, 100, height)
        assert view.first == first, key
    assert pressed(View(), "page down", 3, 24).first == 0


def test_pause_and_help_are_toggled_and_another_key_closes_the_help() -> None:
    assert pressed(pressed(View(), " ", 3, 24), "p", 3, 24) == View()
    assert "paused" in texts(status(*PODS), pressed(View(), " ", 3, 24))[0]
    helped = pressed(View(), "h", 3, 24)
    assert HELP[0] in texts(status(*PODS), helped)
    assert pressed(helped, "?", 3, 24) == pressed(helped, "x", 3, 24) == View()


def test_all_pods_are_printed_for_who_reads_no_live_screen() -> None:
    assert len(whole(status(*PODS * 40))) == 6 + 120


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1023, "0.999K"),
        (1 << 20, "1M"),
        (999.7 * (1 << 20), "0.976G"),
        (1.5 * (1 << 30), "1.5G"),
        (5 << 40, "5T"),
    ],
)
def test_size_takes_six_characters(size_bytes: float | None, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (59.4, "59s"), (60.0, "1m"), (3599.0, "59m"), (3700.0, "1h01m"), (1e6, "11d")]
)
def test_age_takes_six_characters(seconds: float | None, text: str) -> None:
    assert age(seconds) == text
