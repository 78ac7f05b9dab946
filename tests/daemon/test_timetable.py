"""What holds when, from the config: limits, the door and the drain, at every moment of a week."""

from datetime import datetime
from pathlib import Path
from zoneinfo import TZPATH, reset_tzpath

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from criproxy.config.load import parse
from criproxy.control.policy import DynamicSettings, StaticSettings, safe_limits
from criproxy.daemon.settings import Timetable

MIB = 1 << 20
CONFIG = """
[cpu]
min_cores = 0.2
static_cores = 1.5
reserve_cores = 0.5
[memory]
min_bytes = 67_108_864
static_bytes = 536_870_912
[control]
policy = "schedule"
[schedule]
time_zone = "Europe/Berlin"
grace_s = 600
on_close = "evict"
windows = [
    { days = "mon-thu", start = "22:00", end = "06:00", policy = "dynamic" },
    { days = "sat,sun", start = "00:00", end = "24:00", policy = "static", cores = 3 },
    { days = "wed", start = "12:00", end = "13:00", policy = "static" },
]
"""


def table(text: str = CONFIG) -> Timetable:
    loaded = parse(text.encode(), "c")
    assert loaded.errors == ()
    return Timetable(loaded.config)


def at(text: str, timetable: Timetable):
    return timetable.stage(datetime.fromisoformat(f"{text}+01:00").timestamp())


# 2026-03-09 is a Monday.
@pytest.mark.parametrize(
    ("moment", "words", "closed", "drain"),
    [
        pytest.param("2026-03-09T21:00", "outside of all windows (off) until Mon 22:00 CET, then window mon-thu "
                     "22:00-06:00 (dynamic)", "the schedule is off until Mon 22:00 CET", True, id="off"),
        pytest.param("2026-03-09T22:00", "window mon-thu 22:00-06:00 (dynamic) until Tue 06:00 CET, then outside of "
                     "all windows (off)", "", False, id="open"),
        pytest.param("2026-03-10T05:49:59", "window mon-thu 22:00-06:00 (dynamic) until Tue 06:00 CET, then outside "
                     "of all windows (off)", "", False, id="open-still"),
        pytest.param("2026-03-10T05:50", "window mon-thu 22:00-06:00 (dynamic) until Tue 06:00 CET, then outside of "
                     "all windows (off)", "the schedule turns off at Tue 06:00 CET, within 600 s", False, id="grace"),
        pytest.param("2026-03-14T12:00", "window sat,sun 00:00-24:00 (static) until Mon 00:00 CET, then outside of "
                     "all windows (off)", "", False, id="weekend"),
    ],
)  # fmt: skip
def test_stage_tells_what_holds_and_whether_the_door_is_open(moment: str, words: str, closed: str, drain: bool) -> None:
    stage = at(moment, table())
    assert (stage.words, stage.closed, stage.drain, stage.off) == (words, closed, drain, drain)
    assert stage.policy.window == words


def test_stage_has_the_limits_of_its_window() -> None:
    timetable = table()
    night, weekend, noon = (
        at(m, timetable).policy for m in ("2026-03-09T23:00", "2026-03-14T12:00", "2026-03-11T12:30")
    )
    cpu = night.resources["cpu"]
    assert isinstance(cpu, DynamicSettings)
    assert (cpu.floor, cpu.reserve, cpu.max_raise_ratio) == (0.2, 0.5, 0.1)
    assert weekend.resources["cpu"] == StaticSettings(3.0, 0.2, 0.5)
    assert weekend.resources["memory"] == StaticSettings(512 * MIB, 64 * MIB)
    assert noon.resources["cpu"] == StaticSettings(1.5, 0.2, 0.5)


def test_stage_off_leaves_the_floor_and_says_so() -> None:
    policy = at("2026-03-09T12:00", table()).policy
    safe = safe_limits(policy)
    assert (safe["cpu"], safe["memory"]) == (0.2, 64 * MIB)
    assert isinstance(policy.resources["cpu"], StaticSettings)
    assert policy.resources["cpu"].why == "the floor, as the schedule is off"


def test_stage_squeezed_does_not_drain() -> None:
    stage = at("2026-03-09T12:00", table(CONFIG.replace('"evict"', '"squeeze"')))
    assert (stage.drain, stage.off, stage.closed) == (False, True, "the schedule is off until Mon 22:00 CET")


def test_stage_that_never_opens_says_no_more_than_that() -> None:
    text = '[control]\npolicy = "schedule"\n[schedule]\nwindows = [{start = "00:00", end = "24:00", policy = "off"}]'
    stage = at("2026-03-09T12:00", table(text))
    assert (stage.closed, stage.words) == (
        "the schedule is off",
        "window mon-sun 00:00-24:00 (off) for more than a week",
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", DynamicSettings),
        ('[control]\npolicy = "static"\n[cpu]\nstatic_cores = 1\n[memory]\nstatic_bytes = 4_194_304', StaticSettings),
    ],
)
def test_stage_without_a_schedule_is_always_open(text: str, kind: type) -> None:
    stage = at("2026-03-09T12:00", table(text))
    assert (stage.words, stage.closed, stage.drain) == ("", "", False)
    assert isinstance(stage.policy.resources["cpu"], kind)


def test_stages_of_a_config_that_is_read_anew_have_the_rules_of_the_zone_of_now(tmp_path: Path) -> None:
    europe = next(folder for folder in (Path(one, "Europe") for one in TZPATH) if folder.is_dir())
    zone = tmp_path / "Europe/Berlin"
    zone.parent.mkdir()
    reset_tzpath((tmp_path,))
    try:
        for city, words in (("Berlin", "CET"), ("Lisbon", "WET")):
            zone.write_bytes((europe / city).read_bytes())
            assert at("2026-03-09T12:00", table()).closed == f"the schedule is off until Mon 22:00 {words}"
    finally:
        reset_tzpath()


WEEK_S = 7 * 86400
START_S = datetime.fromisoformat("2026-03-23T00:00:00+01:00").timestamp()


@pytest.mark.slow
@hypothesis_settings(deadline=None)
@given(st.lists(st.floats(0.0, 2.0 * WEEK_S), min_size=1, max_size=8))
def test_stage_does_not_depend_on_what_was_asked_before(moments: list[float]) -> None:
    """Also when the wall clock jumps, back too; the week has a change of the clocks in it."""
    kept = table()
    for moment in moments:
        assert kept.stage(START_S + moment) == table().stage(START_S + moment)


def test_stage_after_weeks_without_a_change_and_after_a_clock_that_was_years_ahead() -> None:
    """On the spring Sunday, 02:00 to 03:00 is not: nothing changes then for two weeks."""
    window = '{ days = "sun", start = "02:00", end = "03:00", policy = "off" }'
    text = f'[control]\npolicy = "schedule"\n[schedule]\ntime_zone = "Europe/Berlin"\nwindows = [{window}]'
    for outside in ("dynamic", "static"):
        whole = f'{text}\noutside = "{outside}"\n[cpu]\nstatic_cores = 1\n[memory]\nstatic_bytes = 4_194_304'
        kept = table(whole)
        first_s = datetime.fromisoformat("2027-03-20T00:00:00+01:00").timestamp()
        hours = [first_s + 3600.0 * hour for hour in range(23 * 24)]
        ahead_s = datetime.fromisoformat("2036-03-26T00:00:00+01:00").timestamp()
        for moment in (*hours, ahead_s, *hours):
            stage, fresh = kept.stage(moment), table(whole).stage(moment)
            assert (stage.off, stage.closed, stage.drain) == (fresh.off, fresh.closed, fresh.drain)
            assert stage.policy.resources == fresh.policy.resources


@hypothesis_settings(deadline=None)
@given(st.floats(0.0, 2.0 * WEEK_S), st.floats(1.0, 7200.0))
def test_stage_lets_no_pod_in_that_would_be_stopped_within_the_grace_period(moment: float, grace_s: float) -> None:
    timetable = table(CONFIG.replace("grace_s = 600", f"grace_s = {grace_s}"))
    stage = timetable.stage(START_S + moment)
    later = [timetable.stage(START_S + moment + part * grace_s) for part in (0.01, 0.5, 0.99)]
    if not stage.closed:
        assert not any(one.drain for one in later)
    assert not stage.drain or stage.closed
