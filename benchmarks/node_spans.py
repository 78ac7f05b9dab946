"""A folder for `criproxy simulate --cluster` of many nodes, each some hours that a recorded node lived.

`python -m benchmarks.node_spans [--nodes N] [--hours H] [--memory FILE] [--endless] CPU FOLDER`

CPU and memory are files of `id,t,u`: cores of nodes with 32, and GiB of nodes with 128. Series are cut to spans of H
hours, and each is a node. Where there are more than are wanted, some are drawn; where there are fewer, spans that begin
at other moments are drawn beside them, so that nodes overlap in time. Spans that lack a tenth of their samples are left
out. The memory of a node is that of the series of the same name (but for the family before the first dash) and the same
time; where the memory file has
none, of any, drawn.

jobs.csv has more pods of one core and 2 GiB than fit, all there at the beginning: of 10 minutes, an hour and four hours
on average, exponentially distributed, with equal pod-time each. With `--endless` there is none.
"""

import argparse
import random
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.readers import load
from criproxy.commands.simulate.trace import Trace

CORES: Final = 32
GIBS: Final = 128
STEP_S: Final = 300
"""What is recorded more often is thinned to this."""

WHOLE_RATIO: Final = 0.9
POD_BYTES: Final = 2 << 30
MEANS_S: Final = (600.0, 3600.0, 14400.0)
LOT: Final = 20
"""So many pods have one line, and one length."""

SEED: Final = 20260131


class NodeSpan(Struct, frozen=True):
    """A span of a series: which, and from which step on."""

    series: int
    begin: int


class Recorded:
    """A series in steps of `STEP_S`, of which some may lack. `id`: without the family before its first dash."""

    def __init__(self, trace: Trace, span_s: int) -> None:
        self.count = span_s // STEP_S
        self.id, begin_s = trace.id.partition("-")[2] or trace.id, trace.times_s[0]
        sums: dict[int, list[float]] = {}
        for t_s, usage in zip(trace.times_s, trace.usages, strict=True):
            sums.setdefault(int(t_s - begin_s) // STEP_S, []).append(usage)
        self.steps = array("q", sorted(sums))
        self.usages = array("d", (min(sum(sums[step]) / len(sums[step]), trace.capacity) for step in self.steps))

    @property
    def begins(self) -> range:
        """Steps at which a span may begin, of which each `count`-th begins where another ends."""
        return range(max(0, self.steps[-1] + 2 - self.count))

    def span(self, begin: int) -> list[tuple[int, float]]:
        """The usages from that step on, by seconds from there; [] if too few are there."""
        first, count = begin, self.count
        low, high = bisect_left(self.steps, first), bisect_left(self.steps, first + count)
        if high - low < WHOLE_RATIO * count:
            return []
        return [((self.steps[i] - first) * STEP_S, self.usages[i]) for i in range(low, high)]


def apart(series: Sequence[Recorded]) -> list[NodeSpan]:
    """Those that do not overlap. Raises ValueError where there is none."""
    spans = [NodeSpan(i, begin) for i, one in enumerate(series) for begin in one.begins[:: one.count]]
    if not (found := [one for one in spans if series[one.series].span(one.begin)]):
        raise ValueError("no series is long enough")
    return found


def drawn(series: Sequence[Recorded], nodes: int, luck: random.Random) -> list[NodeSpan]:
    """First what does not overlap, then what does. Raises ValueError where there is nothing."""
    there = apart(series)
    found = luck.sample(there, min(nodes, len(there)))
    usable = [i for i, one in enumerate(series) if one.begins]
    while len(found) < nodes:
        which = luck.choice(usable)
        begin = luck.choice(series[which].begins)
        if series[which].span(begin):
            found.append(NodeSpan(which, begin))
    return found


def rows(
    spans: Sequence[NodeSpan], cpu: Sequence[Recorded], memory: Sequence[Recorded], luck: random.Random
) -> Iterator[str]:
    """Lines of nodes.csv. `memory` (): without."""
    places = {one.id: i for i, one in enumerate(memory)}
    any_span = apart(memory) if memory else []
    for number, one in enumerate(spans):
        used = cpu[one.series].span(one.begin)
        held: dict[int, float] = {}
        if memory:
            place = places.get(cpu[one.series].id)
            held = {} if place is None else dict(memory[place].span(one.begin))
            if not held:
                other = luck.choice(any_span)
                held = dict(memory[other.series].span(other.begin))
        for t_s, cores in used:
            if not memory:
                yield f"node-{number:04},{t_s},{cores:.3f}\n"
            elif t_s in held:
                yield f"node-{number:04},{t_s},{cores:.3f},{held[t_s] * 2**30:.0f}\n"


def jobs(nodes: int, span_s: int, luck: random.Random, *, memory: bool) -> Iterator[str]:
    """Lines of jobs.csv, of as much work as the nodes could do in that time without online."""
    lots = []
    for mean_s in MEANS_S:
        count = int(nodes * CORES * span_s / len(MEANS_S) / mean_s / LOT)
        lots += [max(1.0, luck.expovariate(1.0 / mean_s)) for _ in range(count)]
    luck.shuffle(lots)
    for length_s in lots:
        yield f"0,1,{POD_BYTES if memory else 0},{length_s:.0f},{LOT}\n"


def write(
    cpu: Sequence[Trace], memory: Sequence[Trace], folder: Path, nodes: int, span_s: int, *, endless: bool
) -> str:
    """Returns what was made. Raises ValueError."""
    luck = random.Random(SEED)
    of_cpu, of_memory = [Recorded(one, span_s) for one in cpu], [Recorded(one, span_s) for one in memory]
    spans = drawn(of_cpu, nodes, luck)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "capacity.csv").open("w") as file:
        file.write("id,cpu,memory\n" if memory else "id,cpu\n")
        size = f",{GIBS << 30}" if memory else ""
        file.writelines(f"node-{number:04},{CORES}{size}\n" for number in range(nodes))
    with (folder / "nodes.csv").open("w") as file:
        file.write("id,t,cpu,memory\n" if memory else "id,t,cpu\n")
        file.writelines(rows(spans, of_cpu, of_memory, luck))
    if endless:
        (folder / "jobs.csv").unlink(missing_ok=True)
    else:
        with (folder / "jobs.csv").open("w") as file:
            file.write("arrival,cpu,memory,duration,count\n")
            file.writelines(jobs(nodes, span_s, luck, memory=bool(memory)))
    own = {one.id for one in of_cpu} <= {one.id for one in of_memory}
    overlap = sum(one.begin % of_cpu[one.series].count != 0 for one in spans)
    told = f"{folder}: {nodes} nodes of {len(of_cpu)} series, {overlap} of which others overlap in time"
    return told + ("" if own or not memory else "; their memory is that of other series")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.node_spans", description=__doc__.partition("\n")[0])
    parser.add_argument("cpu", metavar="CPU")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--nodes", metavar="N", type=int, default=1000)
    parser.add_argument("--hours", metavar="H", type=int, default=24)
    parser.add_argument("--memory", metavar="FILE")
    parser.add_argument("--endless", action="store_true")
    given = parser.parse_args(arguments)
    try:
        cpu = load([given.cpu], str(CORES), None)[0]
        memory = load([given.memory], str(GIBS), None)[0] if given.memory else []
        sys.stdout.write(
            f"{write(cpu, memory, given.folder, given.nodes, 3600 * given.hours, endless=given.endless)}\n"
        )
    except (SimulateError, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
