"""What a user gives: a folder of nodes, their capacities and, perhaps, jobs; as CSV or as answers of Prometheus.

A number that is wrong for a part of a cluster is worse than none. So whatever can't be understood ends the command,
with the file, the line, the value and what to write instead.
"""

import csv
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cells import Moments
from criproxy.commands.simulate.cluster.record import Grid, PodsToCome, RecordedNode, grid_of
from criproxy.commands.simulate.readers import lines, read_json, whole_text
from criproxy.commands.simulate.tables import TableReading
from criproxy.commands.simulate.trace import LATEST_S, Findings, Flaw, Rows, Trace

NODES: Final = "nodes.csv"
CAPACITY: Final = "capacity.csv"
JOBS: Final = "jobs.csv"
CPU_ANSWER, MEMORY_ANSWER = "cpu.json", "memory.json"
CPU_CAPACITY_ANSWER, MEMORY_CAPACITY_ANSWER = "cpu_capacity.json", "memory_capacity.json"

EXAMPLE: Final = Path(__file__).with_name("example")
"""The folder that ships."""

_REFUSED: Final = (Flaw.NOT_A_ROW, Flaw.DUPLICATE, Flaw.NEGATIVE, Flaw.CUT_OFF)
_UNNAMED: Final = "node"
"""The one node of answers whose only series names none."""
_MOST: Final = 1e18
"""Of anything that is counted: bytes, seconds, pods."""
_MOST_CORES: Final = 8192.0
"""As many CPUs as a kernel can have."""
_LEAST_CORES: Final = 0.001
"""That a pod may ask for: Kubernetes counts no finer."""
_LONGER_RATIO: Final = 1.5
"""Of a cell: what comes less often is of another step, not late."""
_NAMED: Final = 3
"""Nodes, or series, that a note names."""
_MOST_ABOVE_RATIO: Final = 0.05
"""More usages above the capacity than this are no peaks, but a wrong unit."""


class RecordedCluster(Struct, frozen=True):
    """`jobs` None: an endless queue of pods of one core. `notes`: what was mended, and how often."""

    nodes: tuple[RecordedNode, ...]
    jobs: tuple[PodsToCome, ...] | None
    notes: tuple[str, ...]

    @property
    def grid(self) -> Grid:
        return grid_of(self.nodes)


def read(folder: Path) -> RecordedCluster:
    """Raises SimulateError where any of it can't be understood."""
    if not os.path.isdir(folder):
        raise SimulateError(f"{folder}: is no folder; give one with {NODES} and {CAPACITY} (or leave it out: example)")
    findings = Findings()
    cpu_rows, memory_rows = Rows(findings, _UNNAMED), Rows(findings, _UNNAMED)
    source = _file(folder, NODES)
    if source is not None:
        has_memory = _read_nodes(source, cpu_rows, memory_rows, findings)
    elif (answer := _file(folder, CPU_ANSWER)) is not None:
        source, has_memory = answer, _read_answers(folder, answer, cpu_rows, memory_rows, findings)
    else:
        raise SimulateError(
            f"{folder}: has neither {NODES} (id,t,cpu,memory) nor {CPU_ANSWER} (the answer of a Prometheus range query)"
        )
    capacities = _capacities(folder, findings, has_memory=has_memory)
    _refuse(findings)
    nodes = _nodes(source, cpu_rows, memory_rows if has_memory else None, capacities)
    _refuse(findings)
    for node_id in sorted(capacities.keys() - {node.id for node in nodes}):
        findings.note(Flaw.NO_USAGE, node_id)
    try:
        grid = grid_of(nodes)
    except SimulateError as error:
        raise SimulateError(f"{source}: {error}") from error
    if grid.cells < 2:
        raise SimulateError(f"{source}: has one moment only; give a record of hours, and better of days")
    _refuse_wrong_unit(findings, source, sum(len(node.cpu.times_s) for node in nodes) * (2 if has_memory else 1))
    notes = [*findings.lines(), *_of_memory(nodes, grid, source), *_of_steps(nodes, grid)]
    jobs = None
    if (file := _file(folder, JOBS)) is not None:
        listed = tuple(_jobs(file, grid, findings, has_memory=has_memory))
        _refuse(findings)
        early = [job for job in listed if job.arrival_s < 0.0]
        jobs = tuple(job for job in listed if job.arrival_s < grid.duration_s)
        if len(early) == len(listed) or not jobs:
            when = "before the record of the nodes begins" if early else "after the record of the nodes ends"
            raise SimulateError(f"{file}: every job arrives {when}; are times the same?")
        if early:
            notes.append(
                f"{_pods(early)} jobs arrive before the record of the nodes begins, and wait from its begin on ({file})"
            )
        if late := _pods(listed) - _pods(jobs):
            notes.append(f"{late} jobs arrive after the record of the nodes ends, and are left out ({file})")
    return RecordedCluster(nodes, jobs, tuple(notes))


def _pods(jobs: Sequence[PodsToCome]) -> int:
    return sum(job.count for job in jobs)


def _of_memory(nodes: Sequence[RecordedNode], grid: Grid, source: Path) -> Iterator[str]:
    """How much of memory's record lies outside CPU's. Raises SimulateError where all of it does."""
    times = [node.memory.times_s for node in nodes if node.memory is not None]
    end_s = grid.start_s + grid.duration_s
    inside = sum(bisect_left(one, end_s) - bisect_left(one, grid.start_s) for one in times)
    if times and not inside:
        raise SimulateError(f"{source}: all of memory's record is before or after CPU's; are times the same?")
    if outside := sum(map(len, times)) - inside:
        yield f"{outside} usages of memory are before or after all of CPU's record, and are left out"


def _of_steps(nodes: Sequence[RecordedNode], grid: Grid) -> Iterator[str]:
    """Whose values come less often than cells."""
    longer = [
        f"{what} of {node.id}: {trace.step_s:g} s"
        for node in nodes
        for what, trace in (("CPU", node.cpu), ("memory", node.memory))
        if trace is not None and trace.step_s > _LONGER_RATIO * grid.cell_s
    ]
    if longer:
        more = ", ..." if len(longer) > _NAMED else ""
        yield (
            f"{len(longer)} series have a longer step than cells of {grid.cell_s:g} s; each value holds until the next "
            f"({', '.join(longer[:_NAMED])}{more})"
        )


def _file(folder: Path, name: str) -> Path | None:
    """The file, or the same with .gz. Raises SimulateError where both are there, and for what is no file: of a pipe
    that nobody writes to, no line ever comes.
    """
    found = [path for path in (folder / name, folder / f"{name}.gz") if os.path.lexists(path)]
    if len(found) > 1:
        raise SimulateError(f"{folder}: has both {name} and {name}.gz; remove one")
    if found and not found[0].is_file():
        raise SimulateError(f"{found[0]}: is no file, and no link to one; write it as a file, or remove it")
    return found[0] if found else None


def _refuse(findings: Findings) -> None:
    """Raises SimulateError for what was found and can't be mended."""
    for flaw in _REFUSED:
        if flaw in findings.counts:
            where = ", ".join(findings.places[flaw])
            raise SimulateError(f"{where}: {findings.counts[flaw]} {flaw}; write them right, or remove them")


def _refuse_wrong_unit(findings: Findings, source: Path, samples: int) -> None:
    above = findings.counts.get(Flaw.ABOVE_CAPACITY, 0)
    if above > _MOST_ABOVE_RATIO * samples:
        first = findings.places[Flaw.ABOVE_CAPACITY][0]
        raise SimulateError(
            f"{source}: {above} of {samples} usages are above the node's capacity, the first at {first}; write cores "
            "and bytes in both files"
        )


# --- CSV --------------------------------------------------------------------------------------------------------------


def _rows(
    file: Path, needed: Sequence[str], other: Sequence[str], findings: Findings
) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row's place, for messages, and its fields by column. Raises SimulateError but for just these columns."""
    reader = csv.reader(lines(str(file), findings), strict=True)
    try:
        titles = [title.strip().lower() for title in next(filter(None, reader), [])]
        listed = ",".join((*needed, *(f"[{name}]" for name in other)))
        if not titles:
            raise SimulateError(f"{file}: is empty; begin it with a line of column names: {listed}")
        wrong = [title for title in titles if title not in (*needed, *other)]
        missing = [name for name in needed if name not in titles]
        if wrong or missing or len({*titles}) < len(titles):
            raise SimulateError(
                f"{file}:1: has the columns {','.join(titles)[:200]}; needed are {listed}, and no others"
            )
        for fields in filter(None, reader):
            place = f"{file}:{reader.line_num}"
            if len(fields) != len(titles):
                raise SimulateError(
                    f"{place}: has {len(fields)} fields, not {len(titles)}: {','.join(fields)[:80]!r}; write "
                    f"{','.join(titles)}"
                )
            yield place, dict(zip(titles, fields, strict=True))
    except csv.Error as error:
        raise SimulateError(f"{file}:{reader.line_num}: {error}; write rows of {','.join(needed)}") from error


def _number(
    place: str, column: str, text: str, remedy: str, *, least: float = 0.0, above: bool = False, most: float = _MOST
) -> float:
    """Raises SimulateError for what is no number from `least` (or above it) to `most`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (least < number if above else least <= number) or not number <= most:
        raise SimulateError(f"{place}: {column} is {text.strip()[:40]!r}; write {remedy}")
    return number


_MOMENTS: Final = Moments()


def _moment(place: str, column: str, text: str) -> float:
    """Unix time in s, of what is that, or finer, or ISO 8601 (UTC where it names no zone). Raises SimulateError."""
    t_s = _MOMENTS.read(text)
    if not math.isfinite(t_s):
        raise SimulateError(f"{place}: {column} is {text.strip()[:40]!r}; write unix seconds or 2026-01-31T12:00:00Z")
    while abs(t_s) > LATEST_S:
        t_s /= 1000.0
    return t_s


def _read_nodes(file: Path, cpu: Rows, memory: Rows, findings: Findings) -> bool:
    """Returns whether memory is recorded."""
    for rows in (cpu, memory):
        rows.begin(lambda _id, number: f"{file}:{number}")
    with_memory: bool | None = None
    for place, row in _rows(file, ("id", "t", "cpu"), ("memory",), findings):
        number = int(place.rpartition(":")[2])
        node_id, t_s = _id(place, row["id"]), _moment(place, "t", row["t"])
        cpu.add(node_id, "", t_s, _number(place, "cpu", row["cpu"], "the cores that online used, such as 3.25"), number)
        with_memory = "memory" in row
        if with_memory:
            used = _number(place, "memory", row["memory"], "the bytes that online used, such as 8589934592")
            memory.add(node_id, "", t_s, used, number)
    if with_memory is None:
        raise SimulateError(f"{file}: has no row; write one for each node and time: id,t,cpu,memory")
    return with_memory


def _id(place: str, text: str) -> str:
    if not text.strip():
        raise SimulateError(f"{place}: id is empty; write the node's name")
    return text.strip()


def _jobs(file: Path, grid: Grid, findings: Findings, *, has_memory: bool) -> Iterator[PodsToCome]:
    found = False
    for place, row in _rows(file, ("arrival", "cpu", "duration"), ("memory", "count"), findings):
        found = True
        count = _number(place, "count", row.get("count", "1"), "how many such pods arrive, such as 10", above=True)
        if count != int(count):
            raise SimulateError(f"{place}: count is {row['count'].strip()!r}; write a whole number")
        memory = _number(place, "memory", row.get("memory", "0"), "the bytes that the pod asks for, such as 1073741824")
        if 0.0 < memory < 1.0:
            raise SimulateError(f"{place}: memory is {row['memory'].strip()[:40]!r}; write bytes, such as 1073741824")
        if memory and not has_memory:
            raise SimulateError(
                f"{place}: memory is {row['memory'].strip()}, and the nodes have none on record; give online's, or 0"
            )
        yield PodsToCome(
            arrival_s=_moment(place, "arrival", row["arrival"]) - grid.start_s,
            cpu=_number(place, "cpu", row["cpu"], "the cores that the pod asks for, such as 0.5", least=_LEAST_CORES),
            memory=memory,
            duration_s=_number(place, "duration", row["duration"], "seconds at full speed, such as 600", above=True),
            count=int(count),
        )
    if not found:
        raise SimulateError(f"{file}: has no row; write arrival,cpu,memory,duration,count, or remove it")


# --- Prometheus -------------------------------------------------------------------------------------------------------


def _read_answers(folder: Path, file: Path, cpu: Rows, memory: Rows, findings: Findings) -> bool:
    """Returns whether memory is recorded."""
    read_json(whole_text(str(file), findings), TableReading(str(file), cpu))
    other = _file(folder, MEMORY_ANSWER)
    if other is not None:
        read_json(whole_text(str(other), findings), TableReading(str(other), memory, unit="bytes"))
    return other is not None


# --- capacities, and nodes --------------------------------------------------------------------------------------------

_Sizes = Mapping[str, tuple[float, float]]
"""Cores and bytes by a node's id."""


def _capacities(folder: Path, findings: Findings, *, has_memory: bool) -> _Sizes:
    file = _file(folder, CAPACITY)
    if file is None:
        return _capacity_answers(folder, findings, has_memory=has_memory)
    found = dict[str, tuple[float, float]]()
    needed, other = (("id", "cpu", "memory"), ()) if has_memory else (("id", "cpu"), ("memory",))
    for place, row in _rows(file, needed, other, findings):
        node_id = _id(place, row["id"])
        if node_id in found:
            raise SimulateError(f"{place}: id is {node_id!r} for the second time; remove one of both rows")
        cores = _number(place, "cpu", row["cpu"], "the node's cores, such as 32", above=True, most=_MOST_CORES)
        size = _number(place, "memory", row.get("memory", "1"), "the node's bytes, such as 137438953472", above=True)
        found[node_id] = (cores, size)
    return found


def _capacity_answers(folder: Path, findings: Findings, *, has_memory: bool) -> _Sizes:
    file, other = _file(folder, CPU_CAPACITY_ANSWER), _file(folder, MEMORY_CAPACITY_ANSWER)
    if file is None or (has_memory and other is None):
        raise SimulateError(
            f"{folder}: has neither {CAPACITY} (id,cpu,memory) nor {CPU_CAPACITY_ANSWER} and {MEMORY_CAPACITY_ANSWER}; "
            "write what each node has, in cores and bytes"
        )
    cores = _last_values(file, findings, "cores", _MOST_CORES)
    if not has_memory or other is None:
        return {node_id: (value, 1.0) for node_id, value in cores.items()}
    sizes = _last_values(other, findings, "bytes", _MOST)
    if missing := sorted(cores.keys() ^ sizes.keys()):
        raise SimulateError(f"{other}: {missing[0]} is only in one of both files of capacities; ask for the same nodes")
    return {node_id: (value, sizes[node_id]) for node_id, value in cores.items()}


def _last_values(file: Path, findings: Findings, unit: str, most: float) -> dict[str, float]:
    """By a node's id. Raises SimulateError for a capacity that no node has."""
    rows = Rows(findings, _UNNAMED)
    read_json(whole_text(str(file), findings), TableReading(str(file), rows, unit=unit))
    found = {trace.id: trace.usages[-1] for trace in rows.traces(lambda _id: (math.inf, ""))}
    for node_id, value in found.items():
        if not 0.0 < value <= most:
            raise SimulateError(f"{file}: {node_id} has {value:g} {unit}; ask for {unit}, above 0 and {most:g} at most")
    return found


def _nodes(source: Path, cpu: Rows, memory: Rows | None, capacities: _Sizes) -> tuple[RecordedNode, ...]:
    by_cpu = _traces(cpu, source, capacities, lambda capacity: capacity[0])
    if not by_cpu:
        raise SimulateError(f"{source}: has no usage of any node")
    if memory is None:
        return tuple(RecordedNode(trace, None) for trace in by_cpu.values())
    by_memory = _traces(memory, source, capacities, lambda capacity: capacity[1])
    if missing := sorted(by_cpu.keys() ^ by_memory.keys()):
        raise SimulateError(f"{source}: {missing[0]} has only one of CPU and memory on record; give both for each node")
    return tuple(RecordedNode(trace, by_memory[node_id]) for node_id, trace in by_cpu.items())


def _traces(
    rows: Rows, source: Path, capacities: _Sizes, of: Callable[[tuple[float, float]], float]
) -> dict[str, Trace]:
    def capacity_of(node_id: str) -> tuple[float, str]:
        known = capacities.get(node_id)
        if known is None:
            raise SimulateError(
                f"{source}: node {node_id!r} has no capacity; add it to {CAPACITY}, where "
                f"{', '.join(map(repr, list(capacities)[:3])) or 'nothing'} is"
            )
        return of(known), ""

    return {trace.id: trace for trace in rows.traces(capacity_of)}
