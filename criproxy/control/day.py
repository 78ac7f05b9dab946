"""The last day in numbers, and the last hour in more of them, for who looks at curves (`criproxy page`). Pure.

    seconds   an hour of what each second was like
    minutes   a day of the least, the mean and the most of each minute, and what was forecast for the hour after it
    marks     what happened: squeezes, closings, rungs of the ladder, pods that had to leave; the last `MOST_MARKS`

All of it is as large from the beginning on as it becomes: 12 series of 4-byte numbers and two of forecasts, 400 kB,
and 100 kB of marks at most. A place in a series belongs to a second or minute of CLOCK_BOOTTIME, so that a clock that
is set moves nothing.
"""

import json
import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field, to_builtins

from criproxy.control.resources import RESOURCES
from criproxy.model import UNLIMITED, Decision, Snapshot

HOUR_S: Final = 3600
DAY_MINUTES: Final = 1440

MOST_MARKS: Final = 400
MOST_REASON: Final = 240
"""Characters of a mark's reason, in JSON of ASCII alone; what is longer is cut."""

SERIES: Final = ("capacity", "online", "box", "prediction", "limit", "kept")
"""Of each resource. `kept`: what kubelet must find free, lest it evict pods."""

SCALES: Final[Mapping[str, float]] = {"cores": 1e-3, "bytes": float(1 << 20)}
"""In JSON, amounts are whole numbers of this, by the resource's unit."""

_NONE: Final = math.nan


class Kind(StrEnum):
    """What a mark is of."""

    SQUEEZE = "squeeze"
    CLOSING = "closing"
    OPENING = "opening"
    RUNG = "rung"
    LEAVING = "leaving"


class DayMark(Struct, frozen=True):
    """Something that happened at `t_s` (CLOCK_BOOTTIME). `of`: the resource, or the pod; "": neither. `state`: the
    rung, or what was left in words.
    """

    t_s: float
    kind: Kind
    reason: str
    of: str = ""
    state: str = ""


class Ring:
    """A series of one number per step of time, of which the last `length` are known. NaN: there is none."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._values = array("f", [_NONE]) * length
        self._last = -1

    def put(self, step: int, value: float) -> None:
        """`step` counts steps of time; those that are left out have no number, and one that is past changes nothing."""
        if step < self._last:
            return
        for missed in range(max(self._last + 1, step - self.length + 1), step):
            self._values[missed % self.length] = _NONE
        self._values[step % self.length] = value
        self._last = step

    def between(self, first: int, last: int) -> list[float]:
        """Of these steps. Other threads than the one that puts may call it."""
        values, end = self._values[:], self._last
        return [
            values[step % self.length] if end - self.length < step <= end else _NONE for step in range(first, last + 1)
        ]


class _Minute(Struct):
    """The minute that goes on."""

    least: float = math.inf
    most: float = -math.inf
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.least, self.most = min(self.least, value), max(self.most, value)
        self.total += value
        self.count += 1


class Series:
    """One number that changes."""

    def __init__(self) -> None:
        self.seconds = Ring(HOUR_S)
        self.minutes = {name: Ring(DAY_MINUTES) for name in ("least", "mean", "most")}
        self._minute, self._now = -1, _Minute()

    def put(self, t_s: float, value: float) -> None:
        """NaN or infinite: there is none."""
        minute = int(t_s // 60)
        if minute != self._minute:
            self._close()
            self._minute, self._now = minute, _Minute()
        self.seconds.put(int(t_s), value if math.isfinite(value) else _NONE)
        if math.isfinite(value):
            self._now.add(value)

    def _close(self) -> None:
        now = self._now
        if now.count:
            for name, value in (("least", now.least), ("mean", now.total / now.count), ("most", now.most)):
                self.minutes[name].put(self._minute, value)


HOUR: Final = "hour"
"""What online should not exceed within an hour, as it was last forecast in each minute."""


def _hours() -> dict[str, Ring]:
    return {row.name: Ring(DAY_MINUTES) for row in RESOURCES.values() if row.sampling is not None}


def _empty() -> dict[str, dict[str, Series]]:
    return {row.name: {name: Series() for name in SERIES} for row in RESOURCES.values() if row.sampling is not None}


class Day(Struct, eq=False):
    """See the module. One thread puts; any may ask."""

    _series: dict[str, dict[str, Series]] = field(default_factory=_empty)
    _hours: dict[str, Ring] = field(default_factory=_hours)
    _marks: deque[DayMark] = field(default_factory=lambda: deque(maxlen=MOST_MARKS))
    _squeezed: bool = False
    _closed: str = ""

    def sampled(self, snapshot: Snapshot, decision: Decision, closed: str) -> None:
        """What was seen, and what is in force. `closed`: why no new offline pod is let in; "": they are."""
        t_s = snapshot.t_s
        for name, series in self._series.items():
            for key, value in _amounts(name, snapshot, decision).items():
                series[key].put(t_s, value)
            decided = decision.resources.get(name)
            hour = None if decided is None else decided.prediction.hour
            self._hours[name].put(int(t_s // 60), _NONE if hour is None or not math.isfinite(hour) else hour)
        guard = decision.guard
        if guard is not None and not self._squeezed:
            self.mark(t_s, Kind.SQUEEZE, guard.reason, "cpu", f"{guard.cores:.2f} cores")
        self._squeezed = guard is not None
        if bool(closed) != bool(self._closed):
            self.mark(t_s, Kind.CLOSING if closed else Kind.OPENING, closed or "new offline pods are let in")
        self._closed = closed

    def mark(self, t_s: float, kind: Kind, reason: str, of: str = "", state: str = "") -> None:
        """May be called from any thread."""
        self._marks.append(DayMark(t_s, kind, _short(reason), _short(of), _short(state)))

    # --- as JSON ----------------------------------------------------------------------------------------------------

    def to_json(self, now_s: float, wall_s: float, since_s: float = -math.inf) -> str:
        """What is newer than `since_s`, at `now_s` (CLOCK_BOOTTIME) and `wall_s` (UTC), at which times are then.

        ASCII, 1 MiB at most. Made in small pieces: nothing keeps other threads from running for long.
        """
        shift_s = wall_s - now_s
        first = max(int(now_s) - HOUR_S + 1, _first(since_s - shift_s, 1))
        first_minute = max(int(now_s // 60) - DAY_MINUTES, _first(since_s - shift_s, 60))
        last, last_minute = int(now_s), int(now_s // 60) - 1
        seconds, minutes = [], []
        for name, series in self._series.items():
            scale = SCALES[RESOURCES[name].unit]
            seconds.append(f'"{name}":{{{",".join(_texts(series, first, last, scale))}}}')
            forecast = _numbers(self._hours[name].between(first_minute, last_minute), scale)
            texts = [*_minute_texts(series, first_minute, last_minute, scale), f'"{HOUR}":[{forecast}]']
            minutes.append(f'"{name}":{{{",".join(texts)}}}')
        marks = [one for one in tuple(self._marks) if one.t_s + shift_s > since_s]
        shown = [{**to_builtins(one), "t_s": round(one.t_s + shift_s, 1)} for one in marks]
        return (
            f'{{"now_s":{wall_s:.1f},"scales":{json.dumps(dict(SCALES))},'
            f'"seconds":{{"first_s":{first + shift_s:.1f},"step_s":1,{",".join(seconds)}}},'
            f'"minutes":{{"first_s":{first_minute * 60 + shift_s:.1f},"step_s":60,{",".join(minutes)}}},'
            f'"marks":{json.dumps(shown)}}}'
        )


def _first(t_s: float, step_s: int) -> int:
    """The step at this moment: it was not over then, and comes again."""
    return int(t_s // step_s) if math.isfinite(t_s) else 0


def _amounts(name: str, snapshot: Snapshot, decision: Decision) -> Mapping[str, float]:
    sample, decided = snapshot.of.get(name), decision.resources.get(name)
    if sample is None or decided is None:
        return dict.fromkeys(SERIES, _NONE)
    level = decided.prediction.level
    return {
        "capacity": sample.capacity,
        "online": sample.online,
        "box": sample.box,
        "prediction": _NONE if level is None else level,
        "limit": _NONE if decided.limit is UNLIMITED else decided.limit,
        "kept": decided.bounds.kept,
    }


def _texts(series: Mapping[str, Series], first: int, last: int, scale: float) -> Iterator[str]:
    for name, one in series.items():
        yield f'"{name}":[{_numbers(one.seconds.between(first, last), scale)}]'


def _minute_texts(series: Mapping[str, Series], first: int, last: int, scale: float) -> Iterator[str]:
    for name, one in series.items():
        kinds = (f'"{kind}":[{_numbers(ring.between(first, last), scale)}]' for kind, ring in one.minutes.items())
        yield f'"{name}":{{{",".join(kinds)}}}'


def _numbers(values: list[float], scale: float) -> str:
    return ",".join(["null" if math.isnan(value) else f"{value / scale:.0f}" for value in values])


def _short(text: str) -> str:
    """So much of it as `MOST_REASON` characters of JSON hold."""
    ascii_only = text.encode("ascii", "backslashreplace").decode()
    return ascii_only if len(ascii_only) <= MOST_REASON else f"{ascii_only[: MOST_REASON - 3]}..."
