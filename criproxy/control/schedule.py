"""The schedule: which time window holds at a moment, until when, and what comes next.

Times of day are the local clock's. A time means the first moment at which that clock shows it or more: where the clock
is put back, the first of the two; where it is put forward past it, the moment of the jump. So a window is always one
stretch of time, and one that ends where the next begins leaves no gap. No clock is read here: the moment is given.
"""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, Literal

from msgspec import Struct

WindowMode = Literal["dynamic", "static", "off"]

DAY_NAMES: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60

_BACK_DAYS: Final = 3
_AHEAD_DAYS: Final = 9
"""A week, and what begins before it, or moves with the zone."""

_DAY_S: Final = 86400.0


class Window(Struct, frozen=True):
    """On each of `days` (0 is Monday) from `start_minute` to `end_minute` of the day; into the next day when not later.

    `name` is what an operator calls it.
    """

    name: str
    days: frozenset[int]
    start_minute: int
    end_minute: int
    mode: WindowMode

    def __post_init__(self) -> None:
        if not (0 <= self.start_minute < DAY_MINUTES and 0 < self.end_minute <= DAY_MINUTES):
            raise ValueError(f"{self.name}: a window is from 00:00 to 24:00 at most")
        if self.start_minute == self.end_minute:
            raise ValueError(f"{self.name}: it ends when it begins; a whole day is 00:00 to 24:00")


class WeekSchedule(Struct, frozen=True):
    """Where windows overlap, the first of them holds; outside of all, `outside`."""

    windows: tuple[Window, ...]
    outside: WindowMode
    zone: tzinfo


class SchedulePhase(Struct, frozen=True):
    """What holds from `since_s` until just before `until_s` (UTC; None: beyond a week), as worked out for `at_s`.

    `since_s` None: for longer than two days. `window` is its index in the schedule, None outside of all, and `after`
    that of what follows. `closes_s`: when the schedule is next off, None while it is; `opens_s`: when it is
    next on, None while it is; either also None when that is beyond a week.
    """

    at_s: float
    window: int | None
    mode: WindowMode
    since_s: float | None
    until_s: float | None
    after: int | None
    closes_s: float | None
    opens_s: float | None

    def holds_at(self, wall_s: float) -> bool:
        """For a day around `at_s` at most: what is beyond a week must be looked for again."""
        if abs(wall_s - self.at_s) > _DAY_S:
            return False
        return (self.since_s is None or self.since_s <= wall_s) and (self.until_s is None or wall_s < self.until_s)


def phase_at(schedule: WeekSchedule, wall_s: float) -> SchedulePhase:
    """The phase at a moment (UTC, seconds since 1970)."""
    runs = _runs(schedule, wall_s)
    at = bisect_right(runs, wall_s, key=lambda run: run[0]) - 1
    since_s, window = runs[at]
    mode, coming = _mode(schedule, window), runs[at + 1 :]
    turns_s = (start_s for start_s, then in coming if (_mode(schedule, then) == "off") != (mode == "off"))
    turn_s = next(turns_s, None)
    until_s, after = coming[0] if coming else (None, window)
    return SchedulePhase(
        at_s=wall_s,
        window=window,
        mode=mode,
        since_s=since_s if at > 0 else None,
        until_s=until_s,
        after=after,
        closes_s=None if mode == "off" else turn_s,
        opens_s=turn_s if mode == "off" else None,
    )


def phase_in_words(schedule: WeekSchedule, phase: SchedulePhase) -> str:
    """What holds, until when, and what comes next, for an operator."""
    now = _in_words(schedule, phase.window)
    if phase.until_s is None:
        return f"{now} for more than a week"
    return f"{now} until {clock_in_words(schedule, phase.until_s)}, then {_in_words(schedule, phase.after)}"


def clock_in_words(schedule: WeekSchedule, wall_s: float) -> str:
    """A moment as the schedule's clock shows it, such as `Mon 22:00 CET`."""
    face = datetime.fromtimestamp(wall_s, UTC).astimezone(schedule.zone)
    return f"{DAY_NAMES[face.weekday()].capitalize()} {face:%H:%M %Z}"


def moment(day: date, minute: int, zone: tzinfo) -> float:
    """The first moment (UTC) at which the zone's clock shows `minute` of `day`, or more; 24:00 is the next day's 0:00.

    Source: PEP 495 (fold), PEP 615.
    """
    naive = datetime.combine(day, time()) + timedelta(minutes=minute)
    first_s = naive.replace(tzinfo=zone).timestamp()
    if datetime.fromtimestamp(first_s, UTC).astimezone(zone).replace(tzinfo=None) == naive:
        return first_s
    # The clock jumps past it. fold=0 counts on from before the jump, and fold=1 back from after it.
    low, high = round(naive.replace(tzinfo=zone, fold=1).timestamp()), round(first_s)
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, UTC).astimezone(zone).replace(tzinfo=None) >= naive:
            high = middle
        else:
            low = middle
    return float(high)


def _runs(schedule: WeekSchedule, wall_s: float) -> list[tuple[float, int | None]]:
    """From when on which window holds: what held some days before a moment, and each change until a week after it."""
    stretches = tuple(_stretches(schedule, wall_s))
    first_s, last_s = wall_s - (_BACK_DAYS - 1) * _DAY_S, wall_s + (_AHEAD_DAYS - 1) * _DAY_S
    edges = sorted({edge for start_s, end_s, _ in stretches for edge in (start_s, end_s) if first_s < edge <= last_s})
    runs = [(first_s, _holding(stretches, first_s))]
    for edge in edges:
        if (window := _holding(stretches, edge)) != runs[-1][1]:
            runs.append((edge, window))
    return runs


def _stretches(schedule: WeekSchedule, wall_s: float) -> Iterator[tuple[float, float, int]]:
    """Start, end and window of all that happens around a moment."""
    today = datetime.fromtimestamp(wall_s, UTC).astimezone(schedule.zone).date()
    for ahead in range(-_BACK_DAYS, _AHEAD_DAYS + 1):
        day = today + timedelta(days=ahead)
        for index, window in enumerate(schedule.windows):
            if day.weekday() not in window.days:
                continue
            last = day if window.end_minute > window.start_minute else day + timedelta(days=1)
            start_s = moment(day, window.start_minute, schedule.zone)
            end_s = moment(last, window.end_minute, schedule.zone)
            if start_s < end_s:  # not so where the clock jumps past all of it
                yield start_s, end_s, index


def _holding(stretches: tuple[tuple[float, float, int], ...], wall_s: float) -> int | None:
    return min((index for start_s, end_s, index in stretches if start_s <= wall_s < end_s), default=None)


def _in_words(schedule: WeekSchedule, window: int | None) -> str:
    where = "outside of all windows" if window is None else f"window {schedule.windows[window].name}"
    return f"{where} ({_mode(schedule, window)})"


def _mode(schedule: WeekSchedule, window: int | None) -> WindowMode:
    return schedule.outside if window is None else schedule.windows[window].mode
