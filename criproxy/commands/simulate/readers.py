"""From files to traces: tables and JSON, plain or gzip, answers of Prometheus; and what each node's capacity is."""

import codecs
import gzip
import io
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.tables import (
    CapacityRow,
    TableReading,
    are_rows,
    read_capacities,
    read_csv,
    read_objects,
)
from criproxy.commands.simulate.trace import Findings, Flaw, Rows, Trace

Capacities = Callable[[str], tuple[float, str] | None]
"""Per id: the capacity, and the family or ""; None when it is not known."""

_FAMILY: Final = "family"

MOST_LINE: Final = 1 << 20
"""Characters of a line of CSV."""

MOST_ANSWER: Final = 256 << 20
"""Characters of a JSON file, which is read as a whole and takes eight times as much memory: two days of 10,000 nodes
with a value each 5 minutes, and 2 GiB.
"""

MOST_TEXT: Final = 512 << 20
"""Characters of a file, unpacked: a few hundred kilobytes of gzip may hold as much."""

MOST_LINES: Final = 20_000_000
"""Of a file; a row takes 24 bytes."""

_MOST_BLANK: Final = 1000
"""Lines before the first that is not."""


def load(paths: Sequence[str], capacity: str, family: str | None, unit: str = "cores") -> tuple[list[Trace], Findings]:
    """The traces of tables and range-query answers. `capacity` is a number, or a file with one per id.

    `unit` is that of capacity and usage, where a usage does not say its own. Raises SimulateError when a file can't be
    understood, or no row of all is of use.
    """
    findings = Findings()
    capacity_of = capacities(capacity, unit)
    rows = Rows(findings)
    for path in paths:
        _read(path, TableReading(name_of(path), rows, family, unit))
    traces = list(rows.traces(capacity_of))
    if not traces:
        why = "; ".join(findings.lines()) or "there are no rows"
        raise SimulateError(f"{', '.join(map(name_of, paths))}: no usable row: {why}")
    return traces, findings


def _read(path: str, reading: TableReading) -> None:
    name, text = reading.name, pieces(path, reading.rows.findings)
    head = []
    for line in text:
        head.append(line)
        if line.strip():
            break
        if len(head) > _MOST_BLANK:
            raise SimulateError(f"{name}: begins with more than {_MOST_BLANK} empty lines; give rows of id,t,u")
    whole = itertools.chain(head, text)
    if head and head[-1].lstrip()[:1] in ("{", "[") and "} =>" not in head[-1]:
        read_json(_together(whole, name), reading)
    else:
        read_csv(_whole_lines(whole, name), reading)


def capacities(text: str, unit: str = "cores") -> Capacities:
    """A number for all nodes; or a file, CSV (id,capacity and perhaps family) or JSON (such rows, or id: capacity).

    Raises SimulateError when it is neither.
    """
    try:
        number = float(text)
    except ValueError:
        return _capacity_file(text, unit).get
    if not 0.0 < number < math.inf:
        raise SimulateError(f"--capacity {text}: must be above 0")
    return lambda _id: (number, "")


def _capacity_file(path: str, unit: str) -> dict[str, tuple[float, str]]:
    text, name = whole_text(path, Findings()), f"--capacity {path}"
    try:
        if text.lstrip()[:1] in ("{", "["):
            rows = list(_json_capacities(text, name))
        else:
            rows = list(read_capacities(text.splitlines(keepends=True), unit, name))
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        why = repr(error)[:300]
        raise SimulateError(f"{name}: is neither a number nor a file of id,capacity ({why})") from error
    known = dict[str, tuple[float, str]]()
    for row in rows:
        if row.node_id in known:
            other = known[row.node_id][0]
            raise SimulateError(
                f"{row.place}: {row.node_id!r} is there for the second time, with {row.capacity:g} after {other:g}; "
                "remove one of both"
            )
        if not 0.0 < row.capacity < math.inf:
            raise SimulateError(f"{row.place}: {row.node_id} has {row.capacity}, which must be above 0")
        known[row.node_id] = row.capacity, row.family
    return known


def _json_capacities(text: str, name: str) -> Iterator[CapacityRow]:
    """Of a list of objects with id, capacity and perhaps family, or of one that has a capacity for each id."""
    if text.lstrip().startswith("{"):
        content = [{"id": key, "capacity": value} for key, value in json.loads(text, object_pairs_hook=list)]
    else:
        content = json.loads(text)
    for number, row in enumerate(content, 1):
        node_id, capacity = str(row["id"]), float(row["capacity"])
        yield CapacityRow(f"{name}: entry {number}", node_id, capacity, str(row.get("family") or ""))


def _number(value: object) -> float:
    """NaN for what is no number; Prometheus, too, writes values as text."""
    try:
        return float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return math.nan


# --- files as text ----------------------------------------------------------------------------------------------------

_GZIP_MAGIC: Final = b"\x1f\x8b"

_PACKED: Final = {
    b"PK\x03\x04": "a zip or an Excel workbook: unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save the sheet as CSV",
    b"\xfd7zXZ": "packed with xz: unpack it (xz -d)",
    b"BZh": "packed with bzip2: unpack it (bzip2 -d)",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it (zstd -d)",
    b"PAR1": "Parquet: write it as CSV",
    b"SQLite format 3": "a database: select id,t,u into CSV",
}
"""What a file is that begins so, and how it is read."""


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


def whole_text(path: str, findings: Findings) -> str:
    """A file that may be one line. Raises SimulateError as `pieces`, and for more than `MOST_ANSWER`."""
    return _together(pieces(path, findings), name_of(path))


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
            begin = raw.peek(16)
            for mark, words in _PACKED.items():
                if begin.startswith(mark):
                    raise SimulateError(f"{name_of(path)}: is {words}")
            unpacked = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if begin[:2] == _GZIP_MAGIC else raw
            try:
                wide = unpacked.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                encoding = "utf-16" if wide else "utf-8-sig"
                text = io.TextIOWrapper(unpacked, encoding=encoding, errors="replace", newline="")
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


# --- Prometheus -------------------------------------------------------------------------------------------------------

_NODE_LABELS: Final = ("node", "instance")

_EXPORTED: Final = frozenset({"metric", "values", "timestamps"})
"""The keys of a line of VictoriaMetrics' export."""


def read_json(text: str, reading: TableReading) -> None:
    """Add the values of JSON: rows, or range-query answers, one or several. Raises SimulateError for anything else."""
    found = _values(text, reading.name)
    for one in (said for answer in found for key in ("warnings", "infos") for said in warnings(answer, key)):
        reading.rows.findings.note(Flaw.WARNED, f"{reading.name}: {one}")
    rows = found[0] if len(found) == 1 and isinstance(found[0], list) else found
    if are_rows(rows):
        read_objects(rows, reading)
    else:
        _read_matrix([series for one in found for series in matrix(one, reading.name)], reading)


def _values(text: str, name: str) -> list[Any]:
    """The values that stand one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    text = text.strip()
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            found.append(value)
            while text[at : at + 1].isspace():
                at += 1
    except (ValueError, RecursionError) as error:
        raise SimulateError(f"{name}: is no JSON ({error}); give the whole answer of a range query") from error
    return found


def _read_matrix(found: Sequence[Mapping[str, Any]], reading: TableReading) -> None:
    """A series is named by the labels in which the series differ."""
    name, rows, family = reading.name, reading.rows, reading.family
    metrics = [metric if isinstance(metric := one.get("metric"), dict) else {} for one in found]
    labels = [{str(key): str(value) for key, value in metric.items()} for metric in metrics]
    if family is not None and not any(family in one for one in labels):
        raise SimulateError(f"{name}: no series has the label {family} for the family")
    rows.begin(lambda node_id, number: f"{name}:{node_id}[{number}]")
    for one, metric, known in zip(found, labels, _ids(labels), strict=True):
        node_id = rows.node_of_file(name) if known is None else known
        group = metric.get(family or _FAMILY, "")
        values = one.get("values") or []
        if not isinstance(values, list):
            raise SimulateError(
                f"{name}:{node_id}: has {str(values)[:40]} for values, which are no list; give the whole answer of "
                "/api/v1/query_range"
            )
        if not values:
            rows.findings.note(Flaw.NO_VALUES, f"{name}:{node_id}")
        for number, value in enumerate(values):
            if isinstance(value, list) and len(value) == 2:
                rows.add(node_id, group, _number(value[0]), _number(value[1]), number)
            else:
                rows.findings.note(Flaw.NOT_A_ROW, f"{name}:{node_id}[{number}]")


def matrix(answer: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """The series of the whole answer, or its `data`, or its `result`, or of a line of an export.

    Raises SimulateError, with the name of where it is from, for anything else.
    """
    if isinstance(answer, dict) and answer.keys() >= _EXPORTED:
        values, times = answer["values"], answer["timestamps"]
        if not isinstance(values, list) or not isinstance(times, list) or len(values) != len(times):
            raise SimulateError(f"{name}: has a line whose values and timestamps are not as many; export it again")
        return [{"metric": answer["metric"], "values": list(map(list, zip(times, values, strict=True)))}]
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise SimulateError(f"{name}: Prometheus answered with an error: {answer.get('error')}; ask it again")
    if isinstance(answer, dict) and ("results" in answer or "frames" in answer):
        raise SimulateError(f"{name}: is an answer of Grafana's own; download the panel's data as CSV")
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


def warnings(answer: Any, key: str = "warnings") -> list[str]:
    """What the answer says beside its data, a line each; nothing where it is no answer."""
    said = answer.get(key) if isinstance(answer, dict) else None
    return [" ".join(str(one)[:300].split()) for one in said] if isinstance(said, list) else []


def _ids(labels: Sequence[Mapping[str, str]]) -> Iterable[str | None]:
    """The labels that differ, `key=value` where there are several; for a single series its node; None: it has none.

    What has all labels of another is more of the same series.
    """
    unique = list({tuple(sorted(one.items())): one for one in labels}.values())
    if len(unique) == 1:
        return [next((unique[0][key] for key in _NODE_LABELS if key in unique[0]), None)] * len(labels)
    keys = sorted({key for one in unique for key in one})
    differing = [key for key in keys if len({one.get(key) for one in unique}) > 1]
    node = next((key for key in _NODE_LABELS if len({one.get(key) for one in unique}) == len(unique)), None)
    if node is not None:
        differing = [node]
    if len(differing) == 1:
        return [one.get(differing[0], "") for one in labels]
    return [",".join(f"{key}={one[key]}" for key in differing if key in one) for one in labels]
