"""Rows from the answer of a Prometheus range query, as its HTTP API gives it.

Source: Prometheus, HTTP API, "Range queries" and "Range vectors".
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.findings import Flaw
from criproxy.commands.simulate.rows import Rows

_NODE_LABELS: Final = ("node", "instance")
_FAMILY: Final = "family"


def read_prometheus(text: str, name: str, rows: Rows, family: str | None) -> None:
    """Add the values of a matrix: the whole answer, or its `data`, or its `result`.

    A series is named by the labels in which the series differ. `family` names the label that the family is taken from,
    if not `family` itself. Raises SimulateError on anything else.
    """
    matrix = _matrix(text, name)
    labels = [{str(k): str(v) for k, v in _mapping(one, "metric").items()} for one in matrix]
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
    except ValueError as error:
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


def _mapping(one: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = one.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    """Prometheus writes values as text; NaN for what is no number."""
    try:
        return float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        return math.nan
