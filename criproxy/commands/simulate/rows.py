"""Rows from any source, collected per node and made into traces: sorted, without doubles, within 0 and capacity."""

import math
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct, field

from criproxy.commands.simulate.findings import Findings, Flaw
from criproxy.commands.simulate.score import GAP_STEPS
from criproxy.commands.simulate.trace import Trace

_ROW_BITS: Final = 40

_LATEST_S: Final = 1e11
"""The year 5138: times beyond it are in a finer unit than seconds."""


class _Node(Struct):
    family: str
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    usages: "array[float]" = field(default_factory=lambda: array("d"))
    places: "array[int]" = field(default_factory=lambda: array("q"))
    """Source and row of each sample, in one number."""


class Rows:
    """Takes rows and notes what is wrong with them. `place_of` of a source names one of its rows, by id and number."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._sources: list[Callable[[str, int], str]] = []
        self._nodes: dict[str, _Node] = {}

    def begin(self, place_of: Callable[[str, int], str]) -> None:
        """The rows that follow are of another source."""
        self._sources.append(place_of)

    def add(self, node_id: str, family: str, t_s: float, usage: float, number: int) -> None:
        """A row; one that is not finite is left out. An empty family is that of the id."""
        if not math.isfinite(t_s + usage):
            self.findings.note(Flaw.NOT_A_NUMBER, self._sources[-1](node_id, number))
            return
        if t_s > _LATEST_S:
            self.findings.note(Flaw.FINER_TIME, self._sources[-1](node_id, number))
            while t_s > _LATEST_S:
                t_s /= 1000.0
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _Node(family)
        node.times_s.append(t_s)
        node.usages.append(usage)
        node.places.append((len(self._sources) - 1) << _ROW_BITS | number)

    def traces(self, capacity_of: Callable[[str], tuple[float, str] | None]) -> Iterator[Trace]:
        """The traces, in the order in which their ids came.

        `capacity_of` an id gives its capacity and family ("" when it knows none); None leaves the series out.
        """
        for node_id, node in self._nodes.items():
            known = capacity_of(node_id)
            if known is None:
                self.findings.note(Flaw.NO_CAPACITY, node_id)
                continue
            capacity, family = known
            self._sort(node_id, node)
            trace = self._clean(node_id, node, family or node.family or family_of(node_id), capacity)
            self._find_gaps(trace)
            yield trace

    def _sort(self, node_id: str, node: _Node) -> None:
        times = node.times_s
        late = [i for i in range(1, len(times)) if times[i] < times[i - 1]]
        for i in late:
            self.findings.note(Flaw.UNSORTED, self._place(node_id, node.places[i]))
        if late:
            order = sorted(range(len(times)), key=times.__getitem__)
            node.times_s = array("d", (times[i] for i in order))
            node.usages = array("d", (node.usages[i] for i in order))
            node.places = array("q", (node.places[i] for i in order))

    def _clean(self, node_id: str, node: _Node, family: str, capacity: float) -> Trace:
        times, usages = array("d"), array("d")
        note = self.findings.note
        for t_s, usage, place in zip(node.times_s, node.usages, node.places, strict=True):
            if times and t_s == times[-1]:
                note(Flaw.DUPLICATE, self._place(node_id, place))
                continue
            if usage < 0.0:
                note(Flaw.NEGATIVE, self._place(node_id, place))
            elif usage > capacity:
                note(Flaw.ABOVE_CAPACITY, self._place(node_id, place))
            times.append(t_s)
            usages.append(min(max(usage, 0.0), capacity))
        return Trace(node_id, family, capacity, times, usages)

    def _find_gaps(self, trace: Trace) -> None:
        longest_s = GAP_STEPS * trace.step_s
        for earlier_s, later_s in pairwise(trace.times_s):
            if later_s - earlier_s > longest_s:
                self.findings.note(Flaw.GAP, f"{trace.id} after t={earlier_s:.0f}")

    def _place(self, node_id: str, place: int) -> str:
        return self._sources[place >> _ROW_BITS](node_id, place & ((1 << _ROW_BITS) - 1))


def family_of(node_id: str) -> str:
    """A node's family by its name: what comes before the first `-`."""
    return node_id.partition("-")[0]
