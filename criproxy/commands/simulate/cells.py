"""What a cell of a table says: an amount, perhaps with its unit, or a moment.

How a file writes both is found out from its first rows: whether a comma is the decimal point, and whether 01/02/2025 is
in January or February. Where these do not tell, SimulateError says so: a wrong guess gives a number that looks right.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate import SimulateError

UNITS: Final = {
    "cores": 1.0, "millicores": 1e-3,
    "bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip
"""What usage and capacity may be in."""

CPU_UNITS: Final = ("cores", "millicores")

PERCENT: Final = "%"
CORES: Final = "cores"
BYTES: Final = "bytes"

_MEANT: Final[Mapping[str, tuple[str, float]]] = {
    **dict.fromkeys(("%", "percent"), (PERCENT, 1.0)),
    **dict.fromkeys(("core", "cores", "CPU", "CPUs", "vCPU", "vCPUs"), (CORES, 1.0)),
    **dict.fromkeys(("m", "millicores", "mCPU"), (CORES, 1e-3)),
    **dict.fromkeys(("B", "byte", "bytes", "Bytes"), (BYTES, 1.0)),
    **{f"{prefix}B": (BYTES, 1000.0**power) for power, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}{b}": (BYTES, 1024.0**power) for power, prefix in enumerate("KMGTP", 1) for b in ("iB", "i")},
    "K": ("", 1e3), "Mil": ("", 1e6), "Bil": ("", 1e9),
}  # fmt: skip
"""Units by what Grafana, Kubernetes and people write: of what they are, and how many of it."""

_MISSING: Final = frozenset(
    ("", "-", "nan", "null", "none", "na", "n/a", "undefined", "no data", "inf", "+inf", "-inf")
)
_AMOUNT: Final = re.compile(r"([+-]?[0-9.,]{1,64}(?:[eE][+-]?[0-9]{1,3})?)[ \u00a0\u202f]?([A-Za-z%]{0,16})", re.ASCII)
_POINTS: Final = re.compile(r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})*(?:,[0-9]*)?|[+-]?[0-9]*,[0-9]+", re.ASCII)
"""A number whose decimal point is a comma."""
_COMMAS: Final = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?", re.ASCII)
"""A number with commas between thousands."""


class Amount(Struct, frozen=True):
    """A number, NaN for none; of what (`PERCENT`, `CORES`, `BYTES`, or "": it does not say); None: not understood."""

    value: float
    of: str | None = ""


_NONE: Final = Amount(math.nan)
_STRANGE: Final = Amount(math.nan, None)


def unit_of(title: str) -> tuple[str, str]:
    """The name of a column and the unit that stands behind it in brackets: `CPU usage [%]`; "" for none."""
    match = re.fullmatch(r"([^\[(]{1,200}?)\s*[\[(]([^\])]{1,20})[\])]", title)
    return (match[1], match[2]) if match else (title, "")


def known_unit(unit: str) -> bool:
    return unit in _MEANT


def amount(text: str, decimal_comma: bool = False, unit: str = "") -> Amount:
    """What a cell says; `unit` is the column's, where the cell has none."""
    if not decimal_comma and not unit:
        try:
            value = float(text)
        except ValueError:
            pass
        else:
            return Amount(value) if math.isfinite(value) else _NONE
    text = text.strip()
    if text.casefold() in _MISSING:
        return _NONE
    match = _AMOUNT.fullmatch(text)
    written = (match[2] or unit) if match else ""
    of, factor = _MEANT.get(written, (None, 1.0)) if written else ("", 1.0)
    try:
        value = _number(match[1], decimal_comma) * factor if match else math.nan
    except ValueError:
        return _STRANGE
    if match is None or of is None:
        return _STRANGE
    return Amount(value, of) if math.isfinite(value) else _NONE


def _number(text: str, decimal_comma: bool) -> float:
    """Raises ValueError."""
    if decimal_comma:
        if ("," in text or "." in text) and not _POINTS.fullmatch(text):
            raise ValueError
        return float(text.replace(".", "").replace(",", "."))
    if "," in text and not _COMMAS.fullmatch(text):
        raise ValueError
    return float(text.replace(",", ""))


def has_decimal_commas(texts: Iterable[str], name: str) -> bool:
    """Whether amounts are written as 1.234,5. Raises SimulateError where 1,234 may be either."""
    unclear = ""
    for text in texts:
        if "," not in text or (match := _AMOUNT.fullmatch(text.strip())) is None:
            continue
        number = match[1].lstrip("+-")
        whole, _, part = number.rpartition(",")
        if "." in part or "," in whole:
            return False
        if "." in whole or len(part) != 3 or whole.startswith("0") or len(whole) > 3 or not whole:
            return True
        unclear = unclear or text.strip()
    if unclear:
        raise SimulateError(
            f"{name}: {unclear[:40]!r} may have a decimal comma or one between thousands; write numbers with a point"
        )
    return False


# --- moments ----------------------------------------------------------------------------------------------------------

_CLOCK: Final = (
    r"[T ]+(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<part>[0-9]{1,9}))?)?"
    r"(?: ?(?P<half>[AaPp])[Mm])?"
    r"(?: ?(?P<east>[+-][0-9]{2}):?(?P<minutes>[0-9]{2})(?: ?[A-Z]{2,5})?| ?(?:UTC|GMT|Z))?"
)
_FORMS: Final = (
    re.compile(
        rf"(?P<year>[0-9]{{4}})(?P<between>[-/])(?P<month>[0-9]{{1,2}})(?P=between)(?P<day>[0-9]{{1,2}}){_CLOCK}"
    ),
    re.compile(rf"(?P<day>[0-9]{{1,2}})(?P<between>\.)(?P<month>[0-9]{{1,2}})\.(?P<year>[0-9]{{4}}),?{_CLOCK}"),
)
_SLASHES: Final = re.compile(rf"(?P<one>[0-9]{{1,2}})/(?P<two>[0-9]{{1,2}})/(?P<year>[0-9]{{4}}),?{_CLOCK}")
_LONGEST: Final = 64

_EXCEL_DAYS: Final = (36526.0, 73050.0)
"""2000 to 2100, as Excel counts days."""


class Moments(Struct, frozen=True):
    """How a file writes times. `day_first` is of dates with slashes: 31/01/2025; None: there are none."""

    day_first: bool | None = None
    decimal_comma: bool = False

    def read(self, text: str) -> float:
        """Unix seconds, UTC where no zone is named; NaN for no time."""
        try:
            return float(text)
        except ValueError:
            pass
        text = text.strip()
        if len(text) > _LONGEST:
            return math.nan
        if self.decimal_comma:
            number = amount(text, decimal_comma=True)
            if number.of == "" and math.isfinite(number.value):
                return number.value
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return self._written(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def _written(self, text: str) -> float:
        if match := next(filter(None, (form.fullmatch(text) for form in _FORMS)), None):
            day, month = match["day"], match["month"]
        elif (match := _SLASHES.fullmatch(text)) and self.day_first is not None:
            day, month = (match["one"], match["two"]) if self.day_first else (match["two"], match["one"])
        else:
            return math.nan
        hour, half, east = int(match["hour"]), match["half"], timedelta()
        if half:
            if not 1 <= hour <= 12:
                return math.nan
            hour = hour % 12 + (12 if half in "Pp" else 0)
        if match["east"]:
            east = timedelta(hours=int(match["east"]), minutes=int(f"{match['east'][0]}{match['minutes']}"))
        clock = hour, int(match["minute"]), int(match["second"] or 0)
        try:
            moment = datetime(int(match["year"]), int(month), int(day), *clock, tzinfo=timezone(east))
        except ValueError:
            return math.nan
        return moment.timestamp() + (float(f"0.{match['part']}") if match["part"] else 0.0)


def moments(texts: Iterable[str], decimal_comma: bool, name: str) -> Moments:
    """How these times are written. Raises SimulateError where that is not clear."""
    first, second, example, in_days = 0, 0, "", []
    for text in texts:
        if match := _SLASHES.match(text.strip()[:_LONGEST]):
            first, second, example = max(first, int(match["one"])), max(second, int(match["two"])), text.strip()
        elif example == "" and (number := amount(text, decimal_comma)).of == "" and math.isfinite(number.value):
            in_days.append(number.value)
    if (
        in_days
        and all(_EXCEL_DAYS[0] <= one <= _EXCEL_DAYS[1] for one in in_days)
        and not all(one.is_integer() for one in in_days)
    ):
        raise SimulateError(
            f"{name}: times such as {in_days[0]} look like Excel's days; have the column shown as yyyy-mm-dd hh:mm:ss, "
            "and save it as CSV again"
        )
    if example and (first > 12) == (second > 12):
        raise SimulateError(
            f"{name}: of times such as {example[:40]!r} it is not clear which is the month; write 2025-01-31 10:00:00"
        )
    return Moments(first > 12 if example else None, decimal_comma)
