"""The schedule: which window holds when, also where clocks change, and what holds for all schedules and moments."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from criproxy.control.schedule import DAY_MINUTES, WeekSchedule, Window, moment, phase_at

no_deadline = hypothesis_settings(deadline=None)

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
WEEK = frozenset(range(7))
WORKDAYS = frozenset(range(5))
NIGHT = Window("night", WORKDAYS, 22 * 60, 6 * 60, "dynamic")
WEEKEND = Window("weekend", frozenset({5, 6}), 0, DAY_MINUTES, "static")


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def phase(text, *windows, outside="off", zone=BERLIN):
    return phase_at(WeekSchedule(windows, outside, zone), datetime.fromisoformat(text).replace(tzinfo=zone).timestamp())


def local(seconds, zone=BERLIN):
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).astimezone(zone).isoformat()


# 2026-03-09 is a Monday.
@pytest.mark.parametrize(
    ("now", "window", "mode", "since", "until", "after", "closes"),
    [
        pytest.param("2026-03-09T21:59:59", None, "off", "2026-03-09T00:00:00+01:00", "2026-03-09T22:00:00+01:00",
                     0, None, id="before"),
        pytest.param("2026-03-09T22:00:00", 0, "dynamic", "2026-03-09T22:00:00+01:00", "2026-03-10T06:00:00+01:00",
                     None, "2026-03-10T06:00:00+01:00", id="opens"),
        pytest.param("2026-03-10T05:59:59", 0, "dynamic", "2026-03-09T22:00:00+01:00", "2026-03-10T06:00:00+01:00",
                     None, "2026-03-10T06:00:00+01:00", id="after-midnight"),
        pytest.param("2026-03-10T06:00:00", None, "off", "2026-03-10T06:00:00+01:00", "2026-03-10T22:00:00+01:00",
                     0, None, id="closed"),
        pytest.param("2026-03-14T03:00:00", 0, "dynamic", "2026-03-13T22:00:00+01:00", "2026-03-14T06:00:00+01:00",
                     1, "2026-03-16T00:00:00+01:00", id="first-of-two-that-overlap"),
        pytest.param("2026-03-15T12:00:00", 1, "static", "2026-03-14T06:00:00+01:00", "2026-03-16T00:00:00+01:00",
                     None, "2026-03-16T00:00:00+01:00", id="two-days-are-one-phase"),
    ],
)  # fmt: skip
def test_phase_of_a_week_is(now, window, mode, since, until, after, closes):  # noqa: PLR0917
    found = phase(now, NIGHT, WEEKEND)
    assert (found.window, found.mode, found.after) == (window, mode, after)
    assert (local(found.since_s), local(found.until_s), local(found.closes_s)) == (since, until, closes)


def test_phase_without_windows_never_ends():
    found = phase("2026-03-09T12:00:00", outside="static")
    assert (found.window, found.mode, found.since_s, found.until_s, found.closes_s) == (
        None,
        "static",
        None,
        None,
        None,
    )


def test_phase_that_always_holds_never_ends_nor_closes():
    found = phase("2026-03-09T12:00:00", Window("all", WEEK, 0, DAY_MINUTES, "dynamic"))
    assert (found.window, found.since_s, found.until_s, found.closes_s) == (0, None, None, None)


def test_phase_off_does_not_close():
    found = phase("2026-03-09T12:00:00", Window("noon", WEEK, 11 * 60, 13 * 60, "off"), outside="dynamic")
    assert (found.mode, found.after, found.closes_s) == ("off", None, None)


@pytest.mark.parametrize(
    ("zone", "day", "minute", "expected"),
    [
        pytest.param(BERLIN, "2026-03-29", 120, "2026-03-29T01:00:00", id="skipped-first"),
        pytest.param(BERLIN, "2026-03-29", 150, "2026-03-29T01:00:00", id="skipped"),
        pytest.param(BERLIN, "2026-03-29", 180, "2026-03-29T01:00:00", id="first-after-the-jump"),
        pytest.param(BERLIN, "2026-03-29", 119, "2026-03-29T00:59:00", id="last-before-the-jump"),
        pytest.param(BERLIN, "2026-10-25", 150, "2026-10-25T00:30:00", id="twice-the-first"),
        pytest.param(BERLIN, "2026-10-25", 180, "2026-10-25T02:00:00", id="after-both"),
        pytest.param(BERLIN, "2026-10-24", DAY_MINUTES, "2026-10-24T22:00:00", id="24-o-clock"),
        pytest.param(ZoneInfo("Australia/Lord_Howe"), "2026-10-04", 135, "2026-10-03T15:30:00", id="half-an-hour"),
        pytest.param(ZoneInfo("Pacific/Apia"), "2011-12-30", 720, "2011-12-30T10:00:00", id="a-day-that-is-not"),
        pytest.param(ZoneInfo("America/Sao_Paulo"), "2018-11-04", 0, "2018-11-04T03:00:00", id="no-midnight"),
    ],
)
def test_moment_where_the_clock_changes_is_the_first_that_shows_it(zone, day, minute, expected):
    assert moment(datetime.fromisoformat(day).date(), minute, zone) == utc(expected)


@pytest.mark.parametrize(
    ("evening", "hours"),
    [("2026-03-28T23:00:00", 7.0), ("2026-10-24T23:00:00", 9.0), ("2026-06-01T23:00:00", 8.0)],
    ids=["spring", "autumn", "summer"],
)
def test_window_over_the_night_of_a_change_ends_by_the_clock(evening, hours):
    found = phase(evening, Window("night", WEEK, 22 * 60, 6 * 60, "dynamic"))
    assert (found.until_s - found.since_s) / 3600.0 == hours


def test_window_inside_the_skipped_hour_does_not_happen_and_the_repeated_one_happens_once():
    skipped = Window("skipped", WEEK, 130, 170, "dynamic")
    for minute in range(24 * 60):
        wall_s = utc("2026-03-28T23:00:00") + 60 * minute
        assert phase_at(WeekSchedule((skipped,), "off", BERLIN), wall_s).window is None
    moments = [utc("2026-10-24T22:00:00") + 60 * minute for minute in range(25 * 60)]
    held = [m for m in moments if phase_at(WeekSchedule((skipped,), "off", BERLIN), m).window == 0]
    assert held == [utc("2026-10-25T00:10:00") + 60 * minute for minute in range(40)]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (60, 60), (-1, 5), (0, 1441), (1440, 5), (5, 0)])
def test_window_of_no_time_of_day_is_refused(start, end):
    with pytest.raises(ValueError, match="w: "):
        Window("w", WEEK, start, end, "off")


# --- properties ---

minutes = st.tuples(st.integers(0, DAY_MINUTES - 1), st.integers(1, DAY_MINUTES)).filter(
    lambda pair: pair[0] != pair[1]
)
modes = st.sampled_from(["dynamic", "static", "off"])
windows = st.builds(
    lambda days, span, mode: Window("w", days, span[0], span[1], mode), st.frozensets(st.integers(0, 6)), minutes, modes
)
schedules = st.builds(
    WeekSchedule,
    st.lists(windows, max_size=4).map(tuple),
    modes,
    st.sampled_from([UTC, BERLIN, NEW_YORK, ZoneInfo("Australia/Lord_Howe"), ZoneInfo("Asia/Kathmandu")]),
)
walls = st.floats(utc("2025-01-01"), utc("2027-01-01"))


def shown(schedule, wall_s):
    return datetime.fromtimestamp(wall_s, UTC).astimezone(schedule.zone)


def clock_is_steady(schedule, wall_s):
    return len({shown(schedule, wall_s + hours * 3600).utcoffset() for hours in range(-50, 200, 5)}) == 1


def by_the_clock(schedule, wall_s):
    """Which window holds, told from the clock's face alone; right only while nobody turns the clock."""
    face = shown(schedule, wall_s)
    minute = face.hour * 60 + face.minute
    for index, window in enumerate(schedule.windows):
        start, end = window.start_minute, window.end_minute
        today, yesterday = face.weekday() in window.days, (face.weekday() - 1) % 7 in window.days
        if start < end:
            if today and start <= minute < end:
                return index
        elif (today and minute >= start) or (yesterday and minute < end):
            return index
    return None


@no_deadline
@given(schedules, walls)
def test_phase_is_what_the_clock_shows_while_nobody_turns_it(schedule, wall_s):
    assume(clock_is_steady(schedule, wall_s))
    assert phase_at(schedule, wall_s).window == by_the_clock(schedule, wall_s)


@no_deadline
@given(schedules, walls, st.floats(0.0, 1.0))
def test_phase_is_the_same_until_it_ends_and_then_what_was_announced(schedule, wall_s, part):
    found = phase_at(schedule, wall_s)
    assert found.holds_at(wall_s)
    until_s = wall_s + 3 * 86400.0 if found.until_s is None else found.until_s
    later = phase_at(schedule, min(wall_s + part * (until_s - wall_s), until_s - 0.001))
    assert (later.window, later.mode) == (found.window, found.mode)
    if found.until_s is not None:
        following = phase_at(schedule, found.until_s)
        assert following.window == found.after
        assert following.window != found.window
        assert following.since_s == found.until_s
        assert phase_at(schedule, found.until_s - 0.001).window == found.window


@no_deadline
@given(schedules, walls)
def test_phase_closes_at_the_first_moment_that_is_off(schedule, wall_s):
    found = phase_at(schedule, wall_s)
    if found.mode == "off":
        assert found.closes_s is None
        return
    at_s, edge = wall_s, found
    while edge.until_s is not None and edge.until_s <= wall_s + 7 * 86400.0 and edge.mode != "off":
        at_s, edge = edge.until_s, phase_at(schedule, edge.until_s)
    if edge.mode == "off":
        assert found.closes_s == at_s
    else:
        assert found.closes_s is None or found.closes_s > wall_s + 7 * 86400.0


@no_deadline
@given(schedules, walls)
def test_phase_a_week_later_is_the_same_while_nobody_turns_the_clock(schedule, wall_s):
    assume(clock_is_steady(schedule, wall_s))
    now, then = phase_at(schedule, wall_s), phase_at(schedule, wall_s + 7 * 86400.0)
    assert (now.window, now.mode, now.after) == (then.window, then.mode, then.after)


@no_deadline
@given(st.sampled_from([BERLIN, NEW_YORK, ZoneInfo("Australia/Lord_Howe")]), st.integers(0, 800), st.integers(0, 1440))
def test_moment_is_the_first_to_show_a_time_on_any_day(zone, days, minute):
    day = (datetime(2025, 1, 1) + timedelta(days=days)).date()
    naive = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minute)
    found = moment(day, minute, zone)
    faces = [
        datetime.fromtimestamp(found + offset, UTC).astimezone(zone).replace(tzinfo=None) for offset in (-7200, -60, -1)
    ]
    assert datetime.fromtimestamp(found, UTC).astimezone(zone).replace(tzinfo=None) >= naive
    assert all(face < naive for face in faces)
