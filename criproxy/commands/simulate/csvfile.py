"""Rows from CSV: columns id, t and u by their names, or in this order where there is no header."""

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.findings import Flaw
from criproxy.commands.simulate.rows import Rows

if TYPE_CHECKING:
    from _csv import Reader

_NAMES: Final = {"id": ("id", "node", "instance"), "t": ("t", "time", "timestamp"), "u": ("u", "usage", "value")}
_FAMILY: Final = "family"


class _Columns(Struct, frozen=True):
    """Where the fields are; None: there is no such column."""

    t: int
    u: int
    id: int | None
    family: int | None
    others: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        return max(self.t, self.u, self.id or 0) + 1


def read_csv(lines: Iterable[str], name: str, rows: Rows, family: str | None) -> None:
    """Add the rows of a file. `family` names the column that the family is taken from, if not `family` itself.

    Without an id column, all rows are of one node that has the file's name. Raises SimulateError without the columns.
    """
    reader = csv.reader(line.replace("\0", "") for line in lines)
    first = next(_told(reader, name), None)
    if first is None:
        raise SimulateError(f"{name}: is empty; give rows of id,t,u")
    rows.begin(lambda _id, number: f"{name}:{number}")
    headless = len(first) >= 3 and math.isfinite(_number(first[1]) + _number(first[2]))
    columns = _Columns(t=1, u=2, id=0, family=None) if headless else _columns(first, name, family)
    for title in columns.others:
        rows.findings.note(Flaw.OTHER_COLUMN, f"{name}: {title}")
    only_id = PurePath(name).name.partition(".")[0]
    if headless:
        _add(first, reader.line_num, columns, only_id, rows)
    for fields in _told(reader, name):
        if len(fields) >= columns.needed:
            _add(fields, reader.line_num, columns, only_id, rows)
        else:
            rows.findings.note(Flaw.NOT_A_ROW, f"{name}:{reader.line_num}")


def _told(reader: "Reader", name: str) -> Iterator[list[str]]:
    try:
        yield from filter(None, reader)
    except csv.Error as error:
        raise SimulateError(f"{name}:{reader.line_num}: {error}; give rows of id,t,u") from error


def _add(fields: Sequence[str], number: int, columns: _Columns, only_id: str, rows: Rows) -> None:
    node_id = only_id if columns.id is None else fields[columns.id].strip()
    family = "" if columns.family is None or columns.family >= len(fields) else fields[columns.family].strip()
    rows.add(node_id, family, _time(fields[columns.t]), _number(fields[columns.u]), number)


def _columns(header: Sequence[str], name: str, family: str | None) -> _Columns:
    titles = [title.strip() for title in header]
    places = {title.lower(): place for place, title in reversed(list(enumerate(titles)))}
    found = {key: next((places[n] for n in names if n in places), None) for key, names in _NAMES.items()}
    t, u = found["t"], found["u"]
    listed = ", ".join(map(repr, titles[:10]))
    if t is None or u is None:
        raise SimulateError(f"{name}: has the columns {listed}; needed are t and u, and id for several nodes")
    if family is not None and family.lower() not in places:
        raise SimulateError(f"{name}: has no column {family} for the family; it has {listed}")
    family_place = places.get((family or _FAMILY).lower())
    known = {t, u, found["id"], family_place}
    others = tuple(title for place, title in enumerate(titles) if place not in known)
    return _Columns(t, u, found["id"], family_place, others)


def _number(text: str) -> float:
    """NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _time(text: str) -> float:
    """Unix seconds, or ISO 8601 (UTC where it names no zone); NaN for neither."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
