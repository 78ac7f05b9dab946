"""Records of nodes' online usage: one trace a node, made of rows from any source; and the example that ships."""

import math
import posixpath
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Final

from msgspec import Struct, field

from criproxy.commands.simulate import SimulateError

GAP_STEPS: Final = 3.0
"""A pause of more steps is a gap: nobody knows what happened in it."""


class Trace(Struct, frozen=True, dict=True):
    """Samples of one resource of one node: at `times_s[i]` online used `usages[i]`, of `capacity` (one unit for both).

    Times rise strictly; usages lie within 0 and capacity.
    """

    id: str
    family: str
    capacity: float
    times_s: "array[float]"
    usages: "array[float]"

    @cached_property
    def step_s(self) -> float:
        return usual_step_s(self.times_s)


def usual_step_s(times_s: Sequence[float]) -> float:
    """The median time from one sample to the next; 0 with fewer than two samples."""
    return median(later - earlier for earlier, later in pairwise(times_s)) if len(times_s) > 1 else 0.0


# --- what was wrong with the input ------------------------------------------------------------------------------------

_SHOWN: Final = 3
"""Places that a message names."""


class Flaw(StrEnum):
    """What can be wrong without being fatal, in words that follow a count."""

    NOT_A_ROW = "rows left out: too few or too many fields"
    NOT_A_NUMBER = "rows left out: time or usage is not a finite number"
    FINER_TIME = "times too large for seconds, taken as milli-, micro- or nanoseconds"
    NOT_A_SIGNAL = "lines left out: no JSON with t_s, signal and value"
    DUPLICATE = "rows left out: a second usage for the same id and time"
    NEGATIVE = "usages below 0 counted as 0, as the daemon does"
    ABOVE_CAPACITY = "usages above the capacity cut down to it: if they are many, is it too small?"
    UNSORTED = "rows out of order in time, sorted"
    GAP = "gaps of more than 3 steps, in which nothing is scored"
    WARNED = "warnings of Prometheus: its answers may not be whole or right"
    NO_VALUES = "series left out: they have no values"
    CUT_OFF = "files end too early; what came before is used"
    OTHER_COLUMN = "columns ignored"
    NO_CAPACITY = "series left out: no capacity is given for them"
    NO_USAGE = "nodes left out: they have a capacity, and no usage on record"
    TOO_SHORT = "series not scored: nothing is left after the warm-up"


class Findings(Struct):
    """Collects flaws; each has a place, such as `nodes.csv:12`. The first few places are kept."""

    counts: dict[Flaw, int] = field(default_factory=dict)
    places: dict[Flaw, list[str]] = field(default_factory=dict)

    def note(self, flaw: Flaw, place: str) -> None:
        self.counts[flaw] = self.counts.get(flaw, 0) + 1
        shown = self.places.setdefault(flaw, [])
        if len(shown) < _SHOWN:
            shown.append(place)

    def lines(self) -> Iterator[str]:
        """One line per flaw, in the order of `Flaw`."""
        for flaw in Flaw:
            if count := self.counts.get(flaw):
                more = ", ..." if count > len(self.places[flaw]) else ""
                yield f"{count} {flaw} ({', '.join(self.places[flaw])}{more})"


# --- from rows to traces ----------------------------------------------------------------------------------------------

_ROW_BITS: Final = 40

LATEST_S: Final = 1e11
"""The year 5138: times beyond it are in a finer unit than seconds."""


class _NodeSeries(Struct):
    family: str
    of_capacity: bool
    """Its usages are percentages of the node's capacity."""
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    usages: "array[float]" = field(default_factory=lambda: array("d"))
    places: "array[int]" = field(default_factory=lambda: array("q"))
    """Source and row of each sample, in one number."""


class Rows:
    """Takes rows and notes what is wrong with them. `place_of` of a source names one of its rows, by id and number.

    `unnamed` is the node of rows that name none; "": that of each file has the file's name.
    """

    def __init__(self, findings: Findings, unnamed: str = "") -> None:
        self.findings, self._unnamed = findings, unnamed
        self._sources: list[Callable[[str, int], str]] = []
        self._nodes: dict[str, _NodeSeries] = {}
        self._files: dict[str, str] = {}

    def begin(self, place_of: Callable[[str, int], str]) -> None:
        """The rows that follow are of another source."""
        self._sources.append(place_of)

    def add(
        self, node_id: str, family: str, t_s: float, usage: float, number: int, *, of_capacity: bool = False
    ) -> None:
        """A row; one that is not finite is left out. An empty family is that of the id.

        `of_capacity`: the usage is a percentage of the node's capacity. Raises SimulateError where another row of the
        node is none.
        """
        if not math.isfinite(t_s + usage):
            self.findings.note(Flaw.NOT_A_NUMBER, self._sources[-1](node_id, number))
            return
        if t_s > LATEST_S:
            self.findings.note(Flaw.FINER_TIME, self._sources[-1](node_id, number))
            while t_s > LATEST_S:
                t_s /= 1000.0
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _NodeSeries(family, of_capacity)
        elif node.of_capacity != of_capacity:
            place = self._sources[-1](node_id, number)
            raise SimulateError(
                f"{place}: of {node_id}, some usages are percentages and some not; give all in one unit"
            )
        node.times_s.append(t_s)
        node.usages.append(usage)
        node.places.append((len(self._sources) - 1) << _ROW_BITS | number)

    def node_of_file(self, path: str) -> str:
        """The node of a file that names none. Raises SimulateError where another file has the same name."""
        if self._unnamed:
            return self._unnamed
        node_id = posixpath.basename(path).partition(".")[0]
        other = self._files.setdefault(node_id, path)
        if other != path:
            raise SimulateError(f"{other} and {path}: have one name, and may be of two nodes; rename one, or give ids")
        return node_id

    def traces(self, capacity_of: Callable[[str], tuple[float, str] | None]) -> Iterator[Trace]:
        """The traces, in the order in which their ids came.

        `capacity_of` an id gives its capacity and family ("" when it knows none); None leaves the series out. A family
        that nobody names is what comes before the first `-` of the id.
        """
        for node_id, node in self._nodes.items():
            known = capacity_of(node_id)
            if known is None:
                self.findings.note(Flaw.NO_CAPACITY, node_id)
                continue
            capacity, family = known
            self._sort(node_id, node)
            trace = self._clean(node_id, node, family or node.family or node_id.partition("-")[0], capacity)
            self._find_gaps(trace)
            yield trace

    def _sort(self, node_id: str, node: _NodeSeries) -> None:
        times = node.times_s
        unsorted = [i for i in range(1, len(times)) if times[i] < times[i - 1]]
        for i in unsorted:
            self.findings.note(Flaw.UNSORTED, self._place(node_id, node.places[i]))
        if unsorted:
            order = sorted(range(len(times)), key=times.__getitem__)
            node.times_s = array("d", (times[i] for i in order))
            node.usages = array("d", (node.usages[i] for i in order))
            node.places = array("q", (node.places[i] for i in order))

    def _clean(self, node_id: str, node: _NodeSeries, family: str, capacity: float) -> Trace:
        times, usages = array("d"), array("d")
        note = self.findings.note
        factor = capacity / 100.0 if node.of_capacity else 1.0
        for t_s, written, place in zip(node.times_s, node.usages, node.places, strict=True):
            usage = written * factor
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


# --- the example ------------------------------------------------------------------------------------------------------

CAPACITY_CORES: Final = 16.0
STEP_S: Final = 60
DAYS: Final = 2
START_S: Final = 1_735_689_600
"""2025-01-01, midnight UTC."""


def example() -> list[Trace]:
    """CPU usage in cores."""
    source = random.Random(2025)
    moments = [START_S + i * STEP_S for i in range(DAYS * 86400 // STEP_S)]
    hours = [t_s % 86400 / 3600.0 for t_s in moments]
    web = [6.0 - 3.5 * math.cos((hour - 3.0) / 24.0 * math.tau) + source.gauss(0.0, 0.35) for hour in hours]
    rush = [4.5 * math.exp(-((hour - 9.0) ** 2) / 2.0) + 6.0 * math.exp(-((hour - 20.0) ** 2) / 3.0) for hour in hours]
    burst = [source.uniform(2.0, 5.0) if source.random() < 0.004 else 0.0 for _ in hours]
    shop = [2.0 + r + b + source.gauss(0.0, 0.2) for r, b in zip(rush, burst, strict=True)]
    risen_s = START_S + 86400 + 14 * 3600
    steady = [4.0 + (3.0 if t_s >= risen_s else 0.0) + source.gauss(0.0, 0.1) for t_s in moments]
    return [
        Trace(
            f"{name}-node",
            name,
            CAPACITY_CORES,
            array("d", moments),
            array("d", (min(max(usage, 0.0), CAPACITY_CORES) for usage in usages)),
        )
        for name, usages in (("web", web), ("shop", shop), ("steady", steady))
    ]
