"""What the ladder should do, and whether it did: `python -m benchmarks.ladder.aims FIGURES.json`, of `--json`'s file.

An aim goes by all rows of its scenarios together, seed by seed and cell by cell: counts are added up, and of medians
the worst is taken, so that no good row hides a bad one. A row without its figure does not meet the aim.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import table

Played = Mapping[str, float]


@dataclass(frozen=True)
class Aim:
    """`of`: words that a scenario's name begins with. `most`: what `measure` of its rows may be."""

    what: str
    of: tuple[str, ...]
    measure: Callable[[Sequence[Played]], float]
    most: float


def worst(column: str) -> Callable[[Sequence[Played]], float]:
    """NaN, which meets no aim, where a row has none. A single phase may: it may end amid a probe, with nothing held."""

    def of_all(rows: Sequence[Played]) -> float:
        values = [(row.get(column, math.nan), row.get("phases", 0)) for row in rows]
        if any(math.isnan(value) and phases != 1 for value, phases in values):
            return math.nan
        return max((value for value, _ in values if not math.isnan(value)), default=math.nan)

    return of_all


def mean(column: str) -> Callable[[Sequence[Played]], float]:
    return lambda rows: sum(row[column] for row in rows) / len(rows)


def share(percent: str, of: str) -> Callable[[Sequence[Played]], float]:
    """In percent, of all that there were."""

    def of_all(rows: Sequence[Played]) -> float:
        return sum(row[percent] * row[of] for row in rows) / max(1.0, sum(row[of] for row in rows))

    return of_all


INNOCENT, GUILTY = ("innocent",), ("guilty, 10 min", "guilty, 30 s", "guilty, always")

# Harm in an hour of guilt, by the law's own terms: 4 s of each new phase, and up to 3 s of each probe, which come 5,
# 10, 20 and 40 s after the cure and then each 90 s. So 40 probes and a phase are 124 s; six phases of ten minutes with
# nine probes each are 186 s; 120 phases of half a minute with two each are 1,200 s.
AIMS = (
    Aim("innocent episodes that convict, %", INNOCENT, share("false %", "episodes"), 1.0),
    Aim("the same, of the worst cell", INNOCENT, worst("false %"), 1.0),
    Aim("pods stopped on an innocent node, a day", INNOCENT, worst("pods/day"), 0.0),
    Aim("convictions of an innocent box outside of episodes, a day", INNOCENT, worst("stray/day"), 1.0),
    Aim("an innocent box's loss, %, mean", INNOCENT, mean("lost %"), 1.0),
    Aim("the same, of the worst cell", INNOCENT, worst("lost %"), 1.0),
    Aim("misses of a fully guilty box, %", GUILTY, share("missed %", "phases"), 1.0),
    Aim("harm before the cure, s, median", GUILTY, worst("harm s p50"), 4.0),
    Aim("all is back after the guilt, s, p90", GUILTY, worst("back s p90"), 100.0),
    Aim("harm by 10 min of guilt each 20, s an hour of guilt", GUILTY[:1], worst("harm s/guilty h"), 200.0),
    Aim("harm by 30 s of guilt each 330, the same", GUILTY[1:2], worst("harm s/guilty h"), 1200.0),
    Aim("harm by guilt without an end, the same", GUILTY[2:], worst("harm s/guilty h"), 125.0),
    Aim("by memory: misses, %", ("guilty, memory",), share("missed %", "phases"), 1.0),
    Aim("by memory: all is back, s, p90", ("guilty, memory",), worst("back s p90"), 100.0),
    Aim("60 % guilty: misses, %", ("60 %",), share("missed %", "phases"), 1.0),
    Aim("60 % guilty: from begin to cure, s, median", ("60 %",), worst("cure s p50"), 15.0),
    Aim("60 % guilty: all is back, s, p90", ("60 %",), worst("back s p90"), 100.0),
    Aim("mixed: misses, %", ("mixed",), share("missed %", "phases"), 1.0),
    Aim("mixed, others each 600 s: harm before the cure, s, median", ("mixed, 10 min of 20, others 10 s each 600",),
        worst("harm s p50"), 4.0),
    Aim("mixed, others each 60 s: the same", ("mixed, 10 min of 20, others 10 s each 60 ",), worst("harm s p50"), 4.0),
    Aim("mixed: others' episodes that convict, %", ("mixed",), share("false %", "episodes"), 1.0),
    Aim("mixed: all is back, s, p90", ("mixed",), worst("back s p90"), 100.0),
    Aim("healthy, 2 CPUs: experiments on the second day", ("healthy, 2",), worst("tried on day 2"), 5.0),
    Aim("healthy, 4 CPUs: experiments on the second day", ("healthy, 4",), worst("tried on day 2"), 5.0),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    aim: str
    rows: int
    most: float
    measured: float
    met: str


def verdicts(rows: Sequence[Mapping[str, object]]) -> list[Verdict]:
    """One for each aim whose scenarios were played."""
    found = []
    for aim in AIMS:
        played = [
            {name: value for name, value in row.items() if isinstance(value, int | float)}
            for row in rows
            if any(f"{row['scenario']} ".startswith(word) for word in aim.of)
        ]
        if played:
            measured = aim.measure(played)
            found.append(Verdict(aim.what, len(played), aim.most, measured, "yes" if measured <= aim.most else "NO"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder.aims", description=__doc__)
    parser.add_argument("figures", type=Path, help="what `python -m benchmarks.ladder --json` has written")
    for law, rows in json.loads(parser.parse_args().figures.read_text()).items():
        print(f"{law}:")
        print(table(verdicts(rows)))


if __name__ == "__main__":
    main()
