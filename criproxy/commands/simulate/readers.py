"""From files to traces: CSV, plain or gzip, and answers of Prometheus; and what each node's capacity is."""

import csv
import gzip
import io
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.trace import Findings, Flaw, Rows, Trace

if TYPE_CHECKING:
    from _csv import Reader

Capacities = Callable[[str], tuple[float, str] | None]
"""Per id: the capacity, and the family or ""; None when it is not known."""

_FAMILY: Final = "family"

MOST_LINE: Final = 1 << 20
"""Characters of a line of CSV."""

MOST_ANSWER: Final = 64 << 20
"""Characters of a JSON file, which is read as a whole, and takes some ten times as much memory."""

MOST_TEXT: Final = 512 << 20
"""Characters of a file, unpacked: a few hundred kilobytes of gzip may hold as much."""

MOST_LINES: Final = 20_000_000
"""Of a file; a row takes 24 bytes."""

_MOST_BLANK: Final = 1000
"""Lines before the first that is not."""


def load(paths: Sequence[str], capacity: str, family: str | None) -> tuple[list[Trace], Findings]:
    """The traces of CSV files and range-query answers. `capacity` is a number, or a file with one per id.

    Raises SimulateError when a file can't be understood, or no row of all is of use.
    """
    findings = Findings()
    capacity_of = capacities(capacity)
    rows = Rows(findings)
    for path in paths:
        _read(path, rows, family)
    traces = list(rows.traces(capacity_of))
    if not traces:
        why = "; ".join(findings.lines()) or "there are no rows"
        raise SimulateError(f"{', '.join(map(name_of, paths))}: no usable row: {why}")
    return traces, findings


def _read(path: str, rows: Rows, family: str | None) -> None:
    name, text = name_of(path), pieces(path, rows.findings)
    head = []
    for line in text:
        head.append(line)
        if line.strip():
            break
        if len(head) > _MOST_BLANK:
            raise SimulateError(f"{name}: begins with more than {_MOST_BLANK} empty lines; give rows of id,t,u")
    whole = itertools.chain(head, text)
    if head and head[-1].lstrip()[:1] in ("{", "["):
        read_prometheus(_together(whole, name), name, rows, family)
    else:
        read_csv(_whole_lines(whole, name), name, rows, family)


def capacities(text: str) -> Capacities:
    """A number for all nodes; or a file, CSV (id,capacity and perhaps family) or JSON (such rows, or id: capacity).

    Raises SimulateError when it is neither.
    """
    try:
        number = float(text)
    except ValueError:
        return _capacity_file(text).get
    if not 0.0 < number < math.inf:
        raise SimulateError(f"--capacity {text}: must be above 0")
    return lambda _id: (number, "")


def _capacity_file(path: str) -> dict[str, tuple[float, str]]:
    text = _together(pieces(path, Findings()), path)
    try:
        content = json.loads(text) if text.lstrip()[:1] in ("{", "[") else list(csv.DictReader(io.StringIO(text)))
        if isinstance(content, dict):
            content = [{"id": node_id, "capacity": value} for node_id, value in content.items()]
        known = {str(row["id"]): (float(row["capacity"]), str(row.get("family") or "")) for row in content}
    except (ValueError, TypeError, KeyError, RecursionError, csv.Error) as error:
        why = repr(error)[:300]
        raise SimulateError(f"--capacity {path}: is neither a number nor a file of id,capacity ({why})") from error
    for node_id, (capacity, _) in known.items():
        if not 0.0 < capacity < math.inf:
            raise SimulateError(f"--capacity {path}: {node_id} has {capacity}, which must be above 0")
    return known


def _number(value: object) -> float:
    """NaN for what is no number; Prometheus, too, writes values as text."""
    try:
        return float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        return math.nan


# --- files as text ----------------------------------------------------------------------------------------------------

_GZIP_MAGIC: Final = b"\x1f\x8b"


def name_of(path: str) -> str:
    """How messages call the file."""
    return "standard input" if path == "-" else path


def lines(path: str, findings: Findings) -> Iterator[str]:
    """The lines of a file. Raises SimulateError as `pieces`, and for a line of more than `MOST_LINE` characters."""
    return _whole_lines(pieces(path, findings), name_of(path))


def _whole_lines(pieces: Iterable[str], name: str) -> Iterator[str]:
    for number, piece in enumerate(pieces, 1):
        if len(piece) > MOST_LINE:
            raise SimulateError(f"{name}:{number}: a line of more than {MOST_LINE >> 20} MiB; give a row a line")
        if number > MOST_LINES:
            raise SimulateError(f"{name}: more than {MOST_LINES} lines; give fewer nodes at a time")
        yield piece


def _together(pieces: Iterable[str], name: str) -> str:
    found, size = list[str](), 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > MOST_ANSWER:
            raise SimulateError(
                f"{name}: JSON of more than {MOST_ANSWER >> 20} MiB; ask for fewer nodes or a longer step"
            )
    return "".join(found)


def pieces(path: str, findings: Findings) -> Iterator[str]:
    """The lines of a file, one of more than `MOST_LINE` characters in pieces that are longer than that.

    Bytes that are no UTF-8 are replaced; a gzip stream that breaks off ends early, and is noted. Raises SimulateError
    when it can't be read, or has more than `MOST_TEXT` characters.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
            try:
                text = io.TextIOWrapper(unpacked, encoding="utf-8-sig", errors="replace", newline="")
                left = MOST_TEXT
                while piece := text.readline(MOST_LINE + 1):
                    left -= len(piece)
                    if left < 0:
                        raise SimulateError(
                            f"{name_of(path)}: more than {MOST_TEXT >> 20} MiB of text; give fewer nodes at a time"
                        )
                    yield piece
            except (EOFError, zlib.error, gzip.BadGzipFile):
                findings.note(Flaw.CUT_OFF, name_of(path))
    except OSError as error:
        raise SimulateError(f"{name_of(path)}: {error.strerror or error}; give a file that can be read") from error


# --- CSV --------------------------------------------------------------------------------------------------------------

_NAMES: Final = {
    "id": (
        "id", "node", "instance", "host", "hostname", "nodename", "machine", "machine_id", "vm", "vm_id", "server",
        "pod",
    ),
    "t": ("t", "time", "timestamp"),
    "u": ("u", "usage", "value"),
}  # fmt: skip

_LOOKED_AT: Final = 10_000
"""Rows by which it is known what a column says, where none has the name of an id."""


def read_csv(lines: Iterable[str], name: str, rows: Rows, family: str | None) -> None:
    """Add the rows of a file. `family` names the column that the family is taken from, if not `family` itself.

    Without an id column, it is the column of texts that tells rows of one time apart; where there is none, all rows are
    of one node that has the file's name. Raises SimulateError without the columns, and where that is not clear.
    """
    reader = csv.reader(line.replace("\0", "") for line in lines)
    try:
        _read_rows(reader, name, rows, family)
    except csv.Error as error:
        raise SimulateError(f"{name}:{reader.line_num}: {error}; give rows of id,t,u") from error


def _read_rows(reader: "Reader", name: str, rows: Rows, family: str | None) -> None:
    filled: Iterator[list[str]] = filter(None, reader)
    first = next(filled, None)
    if first is None:
        raise SimulateError(f"{name}: is empty; give rows of id,t,u")
    rows.begin(lambda _id, number: f"{name}:{number}")
    if len(first) >= 3 and math.isfinite(_number(first[1]) + _number(first[2])):
        columns = {"id": 0, "t": 1, "u": 2}
        filled = itertools.chain([first], filled)
    else:
        columns = _columns(first, name, family)
        if "id" not in columns:
            looked_at = list(itertools.islice(filled, _LOOKED_AT))
            filled = itertools.chain(looked_at, filled)
            if (place := _that_tells_apart(first, looked_at, columns, name)) is not None:
                columns["id"] = place
        for place, title in enumerate(first):
            if place not in columns.values():
                rows.findings.note(Flaw.OTHER_COLUMN, f"{name}: {title.strip()}")
    needed = max(place for column, place in columns.items() if column != _FAMILY)
    only_id = PurePath(name).name.partition(".")[0]
    for fields in filled:
        if len(fields) <= needed:
            rows.findings.note(Flaw.NOT_A_ROW, f"{name}:{reader.line_num}")
            continue
        node_id = fields[columns["id"]].strip() if "id" in columns else only_id
        place = columns.get(_FAMILY, len(fields))
        group = fields[place].strip() if place < len(fields) else ""
        rows.add(node_id, group, _time(fields[columns["t"]]), _number(fields[columns["u"]]), reader.line_num)


def _columns(header: Sequence[str], name: str, family: str | None) -> dict[str, int]:
    """Where the fields are that the file has; the first column of a name counts."""
    titles = [title.strip() for title in header]
    places = {title.lower(): place for place, title in reversed(list(enumerate(titles)))}
    names = {**_NAMES, _FAMILY: ((family or _FAMILY).lower(),)}
    columns = {key: places[known[0]] for key, names in names.items() if (known := [n for n in names if n in places])}
    listed = ", ".join(repr(title[:40]) for title in titles[:10])
    if not columns.keys() >= {"t", "u"}:
        raise SimulateError(f"{name}: has the columns {listed}; needed are t and u, and id for several nodes")
    if family is not None and _FAMILY not in columns:
        raise SimulateError(f"{name}: has no column {family} for the family; it has {listed}")
    return columns


def _that_tells_apart(
    header: Sequence[str], looked_at: Sequence[Sequence[str]], columns: Mapping[str, int], name: str
) -> int | None:
    """The column that names the node; None: all rows are of one. Raises SimulateError where that is not clear."""
    whole = [fields for fields in looked_at if len(fields) >= len(header)]
    times = [fields[columns["t"]] for fields in whole]
    others = [place for place in range(len(header)) if place not in columns.values()]
    values = {place: [fields[place].strip() for fields in whole] for place in others}
    varied = {place: found for place, found in values.items() if len({*found}) > 1}
    texts = {place: found for place, found in varied.items() if any(math.isnan(_number(one)) for one in found)}
    if len({*times}) < len(times):
        telling = [place for place, found in texts.items() if len({*zip(times, found, strict=True)}) == len(times)]
        if len(telling) == 1 or not varied:
            return telling[0] if telling else None
        unclear, why = sorted(telling or varied), "rows have one time, and"
    else:  # rows of several nodes may take turns
        unclear, why = [place for place, found in texts.items() if 2 * len({*found}) <= len(found)], "rows differ, and"
        if not unclear:
            return None
    listed = ", ".join(repr(header[place].strip()[:40]) for place in unclear[:10])
    raise SimulateError(
        f"{name}: {why} it is not clear which column names the node, of {listed}; call that one id, or remove them"
    )


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


# --- Prometheus -------------------------------------------------------------------------------------------------------

_NODE_LABELS: Final = ("node", "instance")


def read_prometheus(text: str, name: str, rows: Rows, family: str | None) -> None:
    """Add the values of a matrix: the whole answer, or its `data`, or its `result`.

    A series is named by the labels in which the series differ. `family` names the label that the family is taken from,
    if not `family` itself. Raises SimulateError on anything else.
    """
    matrix = _matrix(text, name)
    metrics = [metric if isinstance(metric := one.get("metric"), dict) else {} for one in matrix]
    labels = [{str(key): str(value) for key, value in metric.items()} for metric in metrics]
    if family is not None and not any(family in one for one in labels):
        raise SimulateError(f"{name}: no series has the label {family} for the family")
    rows.begin(lambda node_id, number: f"{name}:{node_id}[{number}]")
    for one, metric, node_id in zip(matrix, labels, _ids(labels, name), strict=True):
        group = metric.get(family or _FAMILY, "")
        for number, value in enumerate(one.get("values") or ()):
            if isinstance(value, list) and len(value) == 2:
                rows.add(node_id, group, _number(value[0]), _number(value[1]), number)
            else:
                rows.findings.note(Flaw.NOT_A_ROW, f"{name}:{node_id}[{number}]")


def _matrix(text: str, name: str) -> Sequence[Mapping[str, Any]]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SimulateError(f"{name}: is no JSON ({error}); give the whole answer of a range query") from error
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise SimulateError(f"{name}: Prometheus answered with an error: {answer.get('error')}; ask it again")
    data = answer.get("data", answer) if isinstance(answer, dict) else answer
    if isinstance(data, dict):
        kind = data.get("resultType", "matrix")
        if kind != "matrix":
            raise SimulateError(f"{name}: holds a {kind}, not a matrix; ask /api/v1/query_range, not /api/v1/query")
        data = data.get("result")
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise SimulateError(f"{name}: has no result of a range query; give the whole answer of /api/v1/query_range")
    if not data:
        raise SimulateError(f"{name}: the query's result is empty; check its selector and its time range")
    return data


def _ids(labels: Sequence[Mapping[str, str]], name: str) -> Iterable[str]:
    """The labels that differ, `key=value` where there are several; for a single series its node, or the file's name."""
    if len(labels) == 1:
        stem = PurePath(name).name.partition(".")[0]
        return [next((labels[0][key] for key in _NODE_LABELS if key in labels[0]), stem)]
    keys = sorted({key for one in labels for key in one})
    differing = [key for key in keys if len({one.get(key) for one in labels}) > 1]
    node = next((key for key in _NODE_LABELS if len({one.get(key) for one in labels}) == len(labels)), None)
    if node is not None:
        differing = [node]
    if len(differing) == 1:
        return [one.get(differing[0], "") for one in labels]
    return [",".join(f"{key}={one[key]}" for key in differing if key in one) for one in labels]
