"""Tables of usage as programs export them: a row a sample, a column a node (Grafana's wide tables), `sadf -d`.

What separates columns, how numbers and times are written, and which column says what, is found out from the first rows.
A table that is understood in part is an error: a number from half a table looks like any other.
"""

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cells import (
    BYTES,
    CPU_UNITS,
    PERCENT,
    UNITS,
    Amount,
    Moments,
    amount,
    has_decimal_commas,
    known_unit,
    moments,
    unit_of,
)
from criproxy.commands.simulate.trace import Findings, Flaw, Rows

if TYPE_CHECKING:
    from _csv import Reader

_NAMES: Final = {
    "id": (
        "id", "node", "instance", "host", "hostname", "nodename", "machine", "machine_id", "vm", "vm_id", "server",
        "pod",
    ),
    "t": ("t", "time", "timestamp", "datetime", "ts", "_time"),
    "u": ("u", "usage", "value", "_value"),
}  # fmt: skip
_FAMILY: Final = "family"

_MEASURES: Final = frozenset(
    (
        *("cpu", "mem", "memory", "load", "load1", "load5", "load15", "disk", "net", "network", "swap", "usage"),
        *("user", "usr", "system", "sys", "idle", "iowait", "steal", "nice", "irq", "softirq", "used", "free", "total"),
        *("available", "cached", "buffers", "rx", "tx", "in", "out", "read", "write", "min", "max", "avg", "mean"),
        *(
            "median",
            "sum",
            "count",
            "percent",
            "request",
            "requests",
            "limit",
            "limits",
            "capacity",
            "p50",
            "p90",
            "p99",
        ),
    )
)
"""Titles of columns that are measures of one node, not nodes."""
_LEGEND: Final = re.compile(r'\w{0,200}\{\w{1,200}="([^"]{1,500})"\}', re.ASCII)
"""How Grafana calls a series that has no name: `{instance="a"}`."""

_SEPARATORS: Final = "\t;|,"
_SAMPLE: Final = 50
"""Lines by which it is known what separates columns."""
_ALIKE_RATIO: Final = 0.75
_LOOKED_AT: Final = 10_000
_MOST_CELLS: Final = 1_000_000
"""Rows, and cells, by which it is known what a column says."""
_MOST_COLUMNS: Final = 20_000

_STRANGE_AT_LEAST: Final = 10
_STRANGE_RATIO: Final = 0.01
"""With more rows than both that are not understood, the file is not: below, it is a line cut off, or a word amid it."""

_EARLIEST_S: Final = 1e9
"""2001: unix seconds above it are taken for such."""

_MOST_PERCENT: Final = 101.0
"""Above it, a percentage is not one of a node."""

_WANTED: Final = "give CSV with the columns id,t,u (node, time, usage), or the answer of /api/v1/query_range"

_REMEDIES: Final = {
    "time": "write it as 2025-01-31 10:00:00 or in unix seconds",
    "usage": "write it as 1234.5, 26.6% or 1.5 GiB",
    "number of fields": "write a row a sample, and numbers without commas or in quotes",
}

Record = tuple[int, Sequence[str]]
"""A row's number, as people count lines, and its fields."""


class TableReading(Struct):
    """One file on its way into `rows`, called `name`; usage is wanted in `unit`. Counts what is not understood."""

    name: str
    rows: Rows
    family: str | None = None
    unit: str = "cores"
    total: int = 0
    strange: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    of: dict[str, str] = field(default_factory=dict)
    """An example of each kind of amount."""

    def add(self, node_id: str, group: str, t: tuple[float, str], usage: tuple[Amount, str], number: int) -> None:
        """A sample, with the texts that its time and usage were. Raises SimulateError for what makes no sense."""
        self.total += 1
        (t_s, t_text), (found, text) = t, usage
        if math.isnan(t_s) and t_text.strip().casefold() not in ("", "nan", "null"):
            self._note("time", t_text, number)
        if found.of is None:
            self._note("usage", text, number)
        value = found.value
        if (found.of and math.isfinite(value)) or value:
            value = self.in_unit(found, text, number)
        self.rows.add(node_id, group, t_s, value, number, of_capacity=found.of == PERCENT)

    def in_unit(self, found: Amount, text: str, number: int) -> float:
        """What the text of a row says, percentages as such. Raises SimulateError where others have another unit."""
        of = found.of or ""
        if found.of is not None and math.isfinite(found.value) and of not in self.of:
            self.of[of] = text.strip()[:40]
            if len(self.of) > 1:
                one, two = map(repr, self.of.values())
                raise SimulateError(f"{self.name}:{number}: has both {one} and {two}; write all in one unit")
        if of == PERCENT:
            if found.value > _MOST_PERCENT:
                raise SimulateError(
                    f"{self.name}:{number}: {text.strip()[:40]!r} is more than all of a node; a percentage is one of "
                    "its capacity here, and not of one CPU: export cores"
                )
            return found.value
        if not of:
            return found.value
        if (of == BYTES) == (self.unit in CPU_UNITS):
            wanted = "CPU" if self.unit in CPU_UNITS else "memory"
            raise SimulateError(f"{self.name}:{number}: {text.strip()[:40]!r} is no amount of {wanted}; see --resource")
        return found.value / UNITS[self.unit]

    def skip(self, fields: Sequence[str], number: int) -> None:
        """A row that has not as many fields as the table has columns."""
        self.total += 1
        self.rows.findings.note(Flaw.NOT_A_ROW, f"{self.name}:{number}")
        self._note("number of fields", ", ".join(fields[:10]), number)

    def _note(self, what: str, text: str, number: int) -> None:
        self.strange[what] += 1
        self.examples.setdefault(what, f"{text.strip()[:40]!r} in line {number}")

    def finish(self) -> None:
        """Raises SimulateError where too much was not understood."""
        for what, count in self.strange.most_common(1):
            if count > max(_STRANGE_AT_LEAST, _STRANGE_RATIO * self.total):
                raise SimulateError(
                    f"{self.name}: in {count} of {self.total} rows the {what} is not understood, such as "
                    f"{self.examples[what]}; {_REMEDIES[what]}"
                )


# --- CSV --------------------------------------------------------------------------------------------------------------


def read_csv(lines: Iterable[str], reading: TableReading) -> None:
    """Add the rows of a file. Raises SimulateError without the columns, and where it is not clear what they say.

    Without an id column, it is the column of texts that tells rows of one time apart; where there is none, all rows are
    of one node that has the file's name.
    """
    name = reading.name
    lines = (line.replace("\0", "") for line in lines)
    head = list(itertools.islice(lines, _SAMPLE))
    if not any(line.strip() for line in head):
        raise SimulateError(f"{name}: is empty; {_WANTED}")
    plain = [line for line in head if line.strip() and not line.startswith(("#", "sep="))]
    said = next((line for line in head if line.startswith("sep=")), "").strip()[4:5]
    separator = said or _separator(plain)
    title = _title_in_comment(head, plain, separator)
    reader = csv.reader(_without_comments(itertools.chain(head, lines), title, name), delimiter=separator)
    try:
        _read(title and _fields(title.lstrip("# "), separator), _records(reader, name), reading, head)
    except csv.Error as error:
        raise SimulateError(f"{name}:{reader.line_num}: {error}; give rows of id,t,u") from error


def read_objects(objects: Sequence[Mapping[str, object]], reading: TableReading) -> None:
    """The same of flat JSON objects, one a row. Raises SimulateError, also where they have not all the same keys."""
    keys = list(objects[0])
    for number, one in enumerate(objects, 1):
        if one.keys() != objects[0].keys():
            raise SimulateError(f"{reading.name}: object {number} has other keys than the first; give each the same")
    records = ((number, [_text(one[key]) for key in keys]) for number, one in enumerate(objects, 1))
    _read(keys, records, reading, [", ".join(keys)])


class CapacityRow(Struct, frozen=True):
    """A node's capacity and its family or "", and where in the file they stand."""

    place: str
    node_id: str
    capacity: float
    family: str


def read_capacities(lines: Sequence[str], unit: str, name: str) -> Iterator[CapacityRow]:
    """The rows of a table of capacities, in `unit`. Raises ValueError without its columns, and SimulateError."""
    plain = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith(("#", "sep="))]
    separator = _separator([line for _, line in plain[:_SAMPLE]])
    rows = [(number, fields) for number, line in plain if (fields := _fields(line, separator))]
    header = rows[0][1] if rows else []
    titles = [unit_of(title.strip())[0].lower() for title in header]
    places = {**_known(titles, None), **{title: titles.index(title) for title in ("capacity",) if title in titles}}
    if not places.keys() >= {"id", "capacity"}:
        raise ValueError(f"it has the columns {_listed(titles)}")
    for number, fields in rows[1:]:
        if len(fields) < len(titles):
            raise SimulateError(f"{name}:{number}: has {len(fields)} of the {len(titles)} columns; write them all")
    of_capacity = unit_of(header[places["capacity"]].strip())[1]
    commas = has_decimal_commas((fields[places["capacity"]] for _, fields in rows[1:]), name)
    reading = TableReading(name, Rows(Findings()), unit=unit)
    for number, fields in rows[1:]:
        text = fields[places["capacity"]]
        found = amount(text, commas, of_capacity)
        if found.of is None or found.of == PERCENT or not math.isfinite(found.value):
            raise SimulateError(f"{name}:{number}: {text.strip()[:40]!r} is no capacity; write it as 16 or 64 GiB")
        family = fields[places[_FAMILY]].strip() if _FAMILY in places else ""
        capacity = reading.in_unit(found, text, number)
        yield CapacityRow(f"{name}:{number}", fields[places["id"]].strip(), capacity, family)


def are_rows(objects: Sequence[object]) -> bool:
    """Whether these are flat objects with a time and a usage."""
    first = objects[0] if objects else None
    if not isinstance(first, dict) or any(isinstance(value, dict | list) for value in first.values()):
        return False
    return _known([str(key) for key in first], None).keys() >= {"t", "u"} and all(isinstance(o, dict) for o in objects)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _fields(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line.strip("\r\n")], delimiter=separator), [])
    except csv.Error:  # who reads the whole file says so
        return []


def _separator(lines: Sequence[str]) -> str:
    """That by which most lines have the same number of fields, the more the better; the first of equals."""
    found = {}
    for one in _SEPARATORS:
        count, times = next(iter(Counter(len(_fields(line, one)) for line in lines).most_common(1)), (0, 0))
        if count > 1 and times >= _ALIKE_RATIO * len(lines):
            found[one] = count
    return max(found, key=found.__getitem__, default=",")


def _title_in_comment(head: Sequence[str], plain: Sequence[str], separator: str) -> str:
    """The header, where that is the comment before the first row, as sadf has it; "": it is not."""
    first = _fields(plain[0], separator) if plain else []
    if "t" in _known(first, None):
        return ""
    for line in itertools.takewhile(lambda one: not one.strip() or one.startswith(("#", "sep=")), head):
        titles = _fields(line.lstrip("# "), separator)
        if _is_sadf(titles) or ("t" in _known(titles, None) and len(titles) == len(first)):
            return line
    return ""


def _without_comments(lines: Iterable[str], title: str, name: str) -> Iterator[str]:
    """The lines; a comment is an empty one, so that lines are counted as people count them."""
    for line in lines:
        if not line.startswith(("#", "sep=")):
            yield line
            continue
        if title and line.split(";")[0] == title.split(";", maxsplit=1)[0] and line.strip() != title.strip():
            raise SimulateError(f"{name}: has several tables, with {line.strip()[:60]!r} amid it; give one of them")
        yield "\n"


def _records(reader: "Reader", name: str) -> Iterator[Record]:
    for fields in reader:
        if len(fields) > _MOST_COLUMNS:
            raise SimulateError(f"{name}: has more than {_MOST_COLUMNS} columns; {_WANTED}")
        if fields:
            yield reader.line_num, fields


# --- what the columns say ---------------------------------------------------------------------------------------------


class _UsageColumn(Struct, frozen=True):
    """A column of usage: where it is, whose (None: the row says it), and the unit of its title."""

    place: int
    node_id: str | None = None
    unit: str = ""


class _Form(Struct, frozen=True):
    """A table's titles (none: it has no header), where id, t and family are, and its columns of usage."""

    header: list[str]
    width: int
    places: Mapping[str, int]
    usages: Sequence[_UsageColumn]


def _read(titles: Sequence[str] | str, records: Iterator[Record], reading: TableReading, head: Sequence[str]) -> None:
    name = reading.name
    reading.rows.begin(lambda _id, number: f"{name}:{number}")
    first = None if titles else next(records, (0, ()))
    header = [title.strip() for title in (titles if first is None else first[1])]
    width = len(header)
    if first and (places := _without_header(header, name)):
        records, header = itertools.chain([first], records), []
    elif _is_sadf(header):
        header, records = ["id", "t", "u"], _from_sadf(header, records, name)
        places, width = _known(header, None), len(header)
    else:
        places = _known(header, reading.family)
    if "t" not in places:
        raise SimulateError(f"{name}: {_unknown(header, head)}")
    if reading.family is not None and _FAMILY not in places:
        raise SimulateError(f"{name}: has no column {reading.family} for the family; it has {_listed(header)}")
    looked_at = list(_first(records))
    whole = [fields for _, fields in looked_at if len(fields) >= width]
    if "u" not in places:
        usages = _wide(header, whole, places, name, head)
    elif header:
        _find_id(header, whole, places, name)
        for title in (title for place, title in enumerate(header) if place not in places.values() and title):
            reading.rows.findings.note(Flaw.OTHER_COLUMN, f"{name}: {title}")
        usages = [_UsageColumn(places["u"], None, _unit(header[places["u"]], name))]
    else:
        usages = [_UsageColumn(places["u"])]
    form = _Form(header, width, places, usages)
    _add(itertools.chain(looked_at, records), form, [fields for _, fields in looked_at], reading)


def _first(records: Iterator[Record]) -> Iterator[Record]:
    cells = 0
    for record in itertools.islice(records, _LOOKED_AT):
        yield record
        cells += len(record[1])
        if cells > _MOST_CELLS:
            return


def _add(records: Iterator[Record], form: _Form, looked_at: Sequence[Sequence[str]], reading: TableReading) -> None:
    name, places = reading.name, form.places
    needed = max(place for what, place in places.items() if what != _FAMILY)
    cells = (one[column.place] for one in looked_at for column in form.usages if column.place < len(one))
    commas = has_decimal_commas(cells, name)
    times = moments((one[places["t"]] for one in looked_at if places["t"] < len(one)), commas, name)
    has_ids = "id" in places or form.usages[0].node_id is not None
    only_id = "" if has_ids else reading.rows.node_of_file(name)
    for number, fields in records:
        if len(fields) <= needed or any(fields[form.width :]):
            reading.skip(fields, number)
            continue
        text = fields[places["t"]]
        if form.header and text.strip() == form.header[places["t"]]:
            continue  # files that were put one behind the other
        node_id = fields[places["id"]].strip() if "id" in places else only_id
        place = places.get(_FAMILY, len(fields))
        group = fields[place].strip() if place < len(fields) else ""
        t = times.read(text), text
        for column in form.usages:
            text = fields[column.place] if column.place < len(fields) else ""
            if column.node_id is None or text.strip():
                found = amount(text, commas, column.unit)
                reading.add(column.node_id or node_id, group, t, (found, text), number)
    reading.finish()


def _without_header(first: Sequence[str], name: str) -> dict[str, int]:
    """The columns of a file whose first line is a row, id,t,u or t,u; none: it is a header."""
    if len(first) == 2 and _is_time(first[0]) and _is_usage(first[1]):
        return {"t": 0, "u": 1}
    if len(first) < 3 or not any(map(_is_time, first[:2])) or not all(map(_is_usage, first[2:])):
        return {}
    if len(first) == 3 and _is_time(first[1]) and not _is_moment(first[0]):
        return {"id": 0, "t": 1, "u": 2}
    raise SimulateError(f"{name}: has {len(first)} columns and no header that says which is which; {_WANTED}")


def _is_time(text: str) -> bool:
    return math.isfinite(Moments(True, True).read(text)) or math.isfinite(Moments(False, True).read(text))


def _is_moment(text: str) -> bool:
    """Whether it can be nothing but a time, as a node may be called by a number."""
    return _is_time(text) and not (_is_usage(text) and Moments().read(text) < _EARLIEST_S)


def _is_usage(text: str) -> bool:
    return any(math.isfinite(amount(text, commas).value) for commas in (False, True))


def _known(header: Sequence[str], family: str | None) -> dict[str, int]:
    """Where the fields are that the file has; the first column of a name counts."""
    titles = [unit_of(title.strip())[0].lower() for title in header]
    places = {title: place for place, title in reversed(list(enumerate(titles)))}
    names = {**_NAMES, _FAMILY: ((family or _FAMILY).lower(),)}
    return {key: places[known[0]] for key, names in names.items() if (known := [n for n in names if n in places])}


def _unit(title: str, name: str) -> str:
    unit = unit_of(title)[1]
    if unit and not known_unit(unit):
        raise SimulateError(f"{name}: the unit of the column {title[:40]!r} is not known; give cores, bytes or %")
    return unit


def _listed(titles: Iterable[str]) -> str:
    return ", ".join(repr(title[:40]) for title in itertools.islice(titles, 10))


def _find_id(header: Sequence[str], fields: Sequence[Sequence[str]], columns: dict[str, int], name: str) -> None:
    """Add the column that names the node, if one does. Raises SimulateError where rows may be of several things."""
    if "id" not in columns:
        if (place := _that_tells_apart(header, fields, columns, name)) is not None:
            columns["id"] = place
        return
    known = [(one[columns["id"]], one[columns["t"]]) for one in fields]
    again = [times > 1 for times in map(Counter(known).__getitem__, known)]
    if not any(again):
        return
    twice = [one for one, is_again in zip(fields, again, strict=True) if is_again]
    for place in range(len(header)):
        if place in columns.values():
            continue
        told = {(one[columns["id"]], one[columns["t"]], one[place]) for one in twice}
        if len(told) > len({key[:2] for key in told}):
            raise SimulateError(
                f"{name}: has several rows for one {header[columns['id']][:40]} and time, of which "
                f"{header[place][:40]!r} says what each is of; keep those of one, or add them up"
            )


def _that_tells_apart(
    header: Sequence[str], whole: Sequence[Sequence[str]], columns: Mapping[str, int], name: str
) -> int | None:
    """The column that names the node; None: all rows are of one. Raises SimulateError where that is not clear."""
    times = [fields[columns["t"]] for fields in whole]
    others = [place for place in range(len(header)) if place not in columns.values()]
    values = {place: [fields[place].strip() for fields in whole] for place in others}
    varied = {place: found for place, found in values.items() if len({*found}) > 1}
    texts = {place: found for place, found in varied.items() if not all(map(_is_usage, found))}
    if len({*times}) < len(times):
        telling = [place for place, found in texts.items() if len({*zip(times, found, strict=True)}) == len(times)]
        if len(telling) == 1 or not varied:
            return telling[0] if telling else None
        unclear, why = sorted(telling or varied), "rows have one time, and"
    else:  # rows of several nodes may take turns
        unclear, why = [place for place, found in texts.items() if 2 * len({*found}) <= len(found)], "rows differ, and"
        if not unclear:
            return None
    listed = _listed(header[place] for place in unclear)
    raise SimulateError(
        f"{name}: {why} it is not clear which column names the node, of {listed}; call that one id, or remove them"
    )


# --- wide tables, sadf, and what else files look like -----------------------------------------------------------------


def _wide(
    header: Sequence[str], fields: Sequence[Sequence[str]], columns: Mapping[str, int], name: str, head: Sequence[str]
) -> list[_UsageColumn]:
    """The columns of a table that has one a node, as Grafana joins series by time. Raises SimulateError."""
    places = [place for place in range(len(header)) if place not in columns.values() and header[place]]
    cells = {place: [one[place] for one in fields if one[place].strip()] for place in places}
    are_usages = all(any(map(_is_usage, found)) or not found for found in cells.values())
    if not places or not are_usages or not any(cells.values()):
        raise SimulateError(f"{name}: {_unknown(header, head)}")
    plain = [unit_of(header[place])[0] for place in places]
    if measures := [title for title in plain if title.strip("% ").casefold() in _MEASURES or title.startswith("%")]:
        raise SimulateError(
            f"{name}: the columns {_listed(measures)} look like measures of one node, and not like nodes; keep the "
            "time and the one that is the usage, and call them t and u"
        )
    legends = [match[1] if (match := _LEGEND.fullmatch(title)) else title for title in plain]
    ids = legends if len({*legends}) == len(legends) else plain
    if len({*ids}) < len(ids):
        raise SimulateError(f"{name}: has two columns of one name, of {_listed(ids)}; give each node its own")
    return [_UsageColumn(place, one, _unit(header[place], name)) for place, one in zip(places, ids, strict=True)]


def _is_sadf(titles: Sequence[str]) -> bool:
    return list(titles[:3]) == ["hostname", "interval", "timestamp"]


def _from_sadf(titles: Sequence[str], records: Iterable[Record], name: str) -> Iterator[Record]:
    """Rows of host, time and the share of all CPUs that was used, of `sadf -d`'s table of CPU. Raises SimulateError."""
    if not {"CPU", "%idle"} <= {*titles}:
        raise SimulateError(
            f"{name}: is sadf's table of {_listed(titles[3:])}; export CPU (sadf -d FILE -- -u), and memory as id,t,u"
        )
    cpu, unused = titles.index("CPU"), [titles.index(one) for one in ("%idle", "%iowait", "%steal") if one in titles]
    parts = False
    for number, fields in records:
        if len(fields) < len(titles):  # the machine was started anew
            continue
        parts = fields[cpu] not in ("-1", "all")
        if parts:
            continue
        free = [amount(fields[place], "," in fields[place]).value for place in unused]
        yield number, (fields[0], fields[2], f"{100.0 - sum(free):.2f}%")
    if parts:
        raise SimulateError(f"{name}: has rows of single CPUs; export all together (sadf -d FILE -- -u)")


def _unknown(header: Sequence[str], head: Sequence[str]) -> str:
    """Why these titles are no table of usage, and what the file looks like, if that is known."""
    for form, words in _LOOKS:
        if any(form(line) for line in head[:10]):
            return words
    columns = f"has the columns {_listed(header)}; needed are t and u, and id for several nodes"
    return f"{columns}; or a time, and a column for each node"


def _matches(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern).match


_LOOKS: Final[Sequence[tuple[Callable[[str], object], str]]] = (
    (_matches(r"\s{0,20}<(?:!|html|\?xml)"), f"looks like a web page, perhaps one to log in; {_WANTED}"),
    (_matches(r"Linux \S{1,100} \("), "looks like sar's own table; export it with sadf -d FILE -- -u"),
    (_matches(r".{0,4096}\} =>"), "looks like promtool's text; ask it for JSON: promtool query range --format json"),
    (
        _matches(r"# (?:HELP|TYPE) |[a-zA-Z_:][\w:]{0,200}\{.{0,4096}\} \S+"),
        "looks like what Prometheus scrapes, one moment without time; ask it /api/v1/query_range",
    ),
    (_matches(r"\w{1,200}(?:,\w+=\S+){0,100} \w+=\S+ \d{10,}"), f"looks like InfluxDB's lines; {_WANTED}"),
)
