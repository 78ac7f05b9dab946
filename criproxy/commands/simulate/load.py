"""From files to traces: which format, which capacity, and one clear error when nothing is left."""

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Sequence

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.csvfile import read_csv
from criproxy.commands.simulate.findings import Findings
from criproxy.commands.simulate.prometheus import read_prometheus
from criproxy.commands.simulate.rows import Rows
from criproxy.commands.simulate.source import lines, name_of
from criproxy.commands.simulate.trace import Trace

Capacities = Callable[[str], tuple[float, str] | None]
"""Per id: the capacity, and the family or ""; None when it is not known."""


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
    name, text = name_of(path), lines(path, rows.findings)
    head = []
    for line in text:
        head.append(line)
        if line.strip():
            break
    whole = itertools.chain(head, text)
    if head and head[-1].lstrip()[:1] in ("{", "["):
        read_prometheus("".join(whole), name, rows, family)
    else:
        read_csv(whole, name, rows, family)


def capacities(text: str) -> Capacities:
    """A number for all nodes; or a file, CSV (id,capacity and perhaps family) or JSON (such rows, or id: capacity).

    Raises SimulateError when it is neither.
    """
    try:
        number = float(text)
    except ValueError:
        known = _capacity_file(text)
        return known.get
    if not 0.0 < number < math.inf:
        raise SimulateError(f"--capacity {text}: must be above 0")
    return lambda _id: (number, "")


def _capacity_file(path: str) -> dict[str, tuple[float, str]]:
    text = "".join(lines(path, Findings()))
    try:
        content = json.loads(text) if text.lstrip()[:1] in ("{", "[") else list(csv.DictReader(io.StringIO(text)))
        if isinstance(content, dict):
            content = [{"id": node_id, "capacity": value} for node_id, value in content.items()]
        known = {str(row["id"]): (float(row["capacity"]), str(row.get("family") or "")) for row in content}
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise SimulateError(f"--capacity {path}: is neither a number nor a file of id,capacity ({error!r})") from error
    for node_id, (capacity, _) in known.items():
        if not 0.0 < capacity < math.inf:
            raise SimulateError(f"--capacity {path}: {node_id} has {capacity}, which must be above 0")
    return known
