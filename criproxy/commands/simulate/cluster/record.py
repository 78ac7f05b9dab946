"""One node's record, and the grid of equal cells on which all nodes of a cluster are replayed."""

import math
from array import array
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.trace import GAP_STEPS, Trace, usual_step_s

LEAST_CELL_S: Final = 30.0

MOST_CELLS: Final = 4_000_000
"""Of a grid: four years in cells of 30 s."""
MOST_OF_ALL: Final = 64_000_000
"""Cells of all nodes; each takes some tens of bytes."""

WARM_UP_S: Final = 24 * 3600.0
LONG_S: Final = 3 * 86400.0
SHORT_WARM_UP_S: Final = 6 * 3600.0
SHORT_WARM_UP_RATIO: Final = 0.25


class RecordedNode(Struct, frozen=True):
    """A node: what online used of its CPU, in cores, and of its memory, in bytes; None where memory is not recorded."""

    cpu: Trace
    memory: Trace | None

    @property
    def id(self) -> str:
        return self.cpu.id


class PodsToCome(Struct, frozen=True):
    """`count` equal pods that arrive together: s from the record's start (below 0: before it), cores, bytes, s at full
    speed.
    """

    arrival_s: float
    cpu: float
    memory: float
    duration_s: float
    count: int = 1


class Grid(Struct, frozen=True):
    """Cells of `cell_s` from `start_s` on (unix time). What comes before `warm_cells` is replayed, and not counted."""

    start_s: float
    cell_s: float
    cells: int

    @property
    def duration_s(self) -> float:
        return self.cell_s * self.cells

    @property
    def warm_cells(self) -> int:
        """A day of a record of more than three days; else a quarter of it, and six hours at most."""
        long = self.duration_s > LONG_S
        warm_s = WARM_UP_S if long else min(SHORT_WARM_UP_S, SHORT_WARM_UP_RATIO * self.duration_s)
        return int(warm_s // self.cell_s)

    def cell_of(self, t_s: float) -> int:
        """Which cell a moment lies in, a thousandth of a cell early at most; below 0 and from `cells` on: outside."""
        return math.floor((t_s - self.start_s) / self.cell_s + 1e-3)


def grid_of(nodes: Sequence[RecordedNode]) -> Grid:
    """From the first sample of CPU of all to the last, in cells of the usual step, and of 30 s at least.

    Raises SimulateError for more cells than can be replayed: mostly, one time is wrong.
    """
    steps = sorted(step for node in nodes if (step := node.cpu.step_s) > 0.0)
    cell_s = max(LEAST_CELL_S, float(steps[len(steps) // 2])) if steps else LEAST_CELL_S
    first = min(nodes, key=lambda node: node.cpu.times_s[0])
    last = max(nodes, key=lambda node: node.cpu.times_s[-1])
    start_s, end_s = first.cpu.times_s[0], last.cpu.times_s[-1]
    cells = int((end_s - start_s) / cell_s + 1e-3) + 1
    if cells > MOST_CELLS or cells * len(nodes) > MOST_OF_ALL:
        raise SimulateError(
            f"the record is from t = {start_s:.0f} (node {first.id}) to t = {end_s:.0f} (node {last.id}): {cells} "
            f"cells of {cell_s:g} s for each of {len(nodes)} nodes are too many; remove rows whose time is wrong, or "
            "give fewer nodes or days"
        )
    return Grid(start_s, cell_s, cells)


def on_grid(times_s: Sequence[float], values: Sequence[float], grid: Grid, *, last: bool = False) -> "array[float]":
    """The mean, or with `last` the last, of the values in each cell; what lies outside the grid is left out. A cell
    without a value has that of the cell before. NaN where no value is on record: before the first, and in a gap from
    the third empty cell on, or from the third usual step of the values, where that is longer.
    """
    held_cells = GAP_STEPS * max(1.0, usual_step_s(times_s) / grid.cell_s)
    sums, counts = array("d", bytes(8 * grid.cells)), array("l", bytes(array("l").itemsize * grid.cells))
    for t_s, value in zip(times_s, values, strict=True):
        cell = grid.cell_of(t_s)
        if not 0 <= cell < grid.cells:
            continue
        if last:
            sums[cell], counts[cell] = value, 1
        else:
            sums[cell] += value
            counts[cell] += 1
    found, held, empty = array("f"), math.nan, 0
    for total, count in zip(sums, counts, strict=True):
        held, empty = (total / count, 0) if count else (held, empty + 1)
        found.append(held if empty < held_cells else math.nan)
    return found
