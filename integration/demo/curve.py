"""A day of usage: read from a CSV trace, compressed into the play's seconds, scaled to this machine's cores."""

import csv
import gzip
import io
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DAY_S: Final = 86400.0
_GZIP_MAGIC: Final = b"\x1f\x8b"
_COLUMNS: Final = ("id", "t", "u")


class TraceError(Exception):
    """A trace cannot be played; the message names the file, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Usage over time. `points` are (seconds since the start, usage in the trace's own unit), in time's order."""

    id: str
    points: tuple[tuple[float, float], ...]

    @property
    def length_s(self) -> float:
        return self.points[-1][0]

    @property
    def peak(self) -> float:
        return max(u for _, u in self.points)

    def at(self, t_s: float) -> float:
        """Usage at `t_s`, linear between the points, the end points' value outside of them."""
        after = bisect_right(self.points, t_s, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (t0, u0), (t1, u1) = self.points[after - 1], self.points[after]
        return u0 + (u1 - u0) * (t_s - t0) / (t1 - t0)


@dataclass(frozen=True, slots=True)
class Play:
    """A curve as it is played here: its whole length in `seconds`, its peak at `peak_cores`."""

    curve: Curve
    seconds: float
    peak_cores: float

    @property
    def compression(self) -> float:
        """Seconds of the trace in one second of the play."""
        return self.curve.length_s / self.seconds

    def wanted_cores(self, t_s: float) -> float:
        """What the online pod wants `t_s` seconds into the play; nothing before and after it."""
        if not 0 <= t_s <= self.seconds:
            return 0.0
        return self.curve.at(t_s * self.compression) / self.curve.peak * self.peak_cores

    def steps(self, step_s: float) -> tuple[float, ...]:
        """The cores wanted in each step of `step_s` seconds: the curve's value in the middle of the step."""
        count = math.ceil(self.seconds / step_s - 1e-9)
        return tuple(self.wanted_cores(min((k + 0.5) * step_s, self.seconds)) for k in range(count))


def read_curve(path: Path, wanted_id: str | None = None, longest_s: float = DAY_S) -> Curve:
    """Read one series of a CSV with the columns id, t (seconds) and u (usage, any unit); gzip is recognised.

    The first id, or `wanted_id`; its first `longest_s` seconds. Raises TraceError.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(f"{path} cannot be read ({why}): give a CSV file with the columns id,t,u") from error
    rows = csv.DictReader(io.StringIO(text))
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise TraceError(f"{path} has no column {missing[0]!r} in its first line: it must begin with id,t,u")
    samples: dict[float, float] = {}
    seen: dict[str, None] = {}
    for row in rows:
        seen.setdefault(row["id"])
        wanted_id = row["id"] if wanted_id is None else wanted_id
        if row["id"] == wanted_id:
            samples[_number(path, rows.line_num, "t", row["t"])] = _number(path, rows.line_num, "u", row["u"])
    if not samples:
        some = ", ".join(list(seen)[:5]) or "none"
        raise TraceError(f"{path} has no series {wanted_id or ''!r}: choose --trace-id from those that it has ({some})")
    return _curve(path, wanted_id or "", sorted(samples.items()), longest_s)


def _curve(path: Path, series: str, samples: Sequence[tuple[float, float]], longest_s: float) -> Curve:
    start = samples[0][0]
    points = tuple((t - start, u) for t, u in samples if t - start <= longest_s)
    if len(points) < 2 or max(u for _, u in points) <= 0:
        raise TraceError(
            f"{path}: series {series!r} has no two samples, or no usage above 0, in its first "
            f"{longest_s / 3600:g} hours: choose another with --trace-id"
        )
    return Curve(series, points)


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (column == "u" and value < 0):
        kind = "a number of seconds" if column == "t" else "a usage of 0 or more"
        raise TraceError(f"{path}, line {line}: {column} is {text!r}: make it {kind}")
    return value
