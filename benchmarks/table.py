"""Prints dataclasses as a table, for people."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def table(rows: Sequence[Any]) -> str:
    """Dataclasses of one kind, a row each, a column per field; text on the left, numbers on the right."""
    names = list(asdict(rows[0]))
    cells = [names, *([_cell(value) for value in asdict(row).values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    left = [isinstance(value, str) for value in asdict(rows[0]).values()]
    lines = (
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    )
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
