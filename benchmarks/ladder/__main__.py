"""`python -m benchmarks.ladder [--seeds N …] [--only WORD] [--against REVISION] [--json F]`: the table, law by law.

`--against` plays the same worlds against the detectors and the ladder of a git revision, beside those of this checkout.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.ladder.play import Outcome, play
from benchmarks.ladder.world import GUSTS, HOT, Scenario, world

SCENARIOS = (
    *(
        Scenario(f"innocent, {mean} s each {gap} s", hours, mean_s=mean, gap_s=gap)
        for gap, hours in ((60, 4), (600, 16))
        for mean in (1, 3, 10, 30, 120)
    ),
    Scenario("innocent, gusts, 10 s each 60 s", 4, GUSTS, 10, 60),
    Scenario("innocent, gusts, 30 s each 60 s", 4, GUSTS, 30, 60),
    Scenario("innocent, hot, 10 s each 60 s", 4, HOT, 10, 60),
    Scenario("innocent, hot, no episodes", 12, HOT),
    Scenario("innocent, io, 10 s each 600 s", 8, mean_s=10, gap_s=600, signal="io_pressure"),
    Scenario("innocent, memory, 10 s each 600 s", 8, mean_s=10, gap_s=600, signal="memory_pressure"),
    Scenario("innocent, memory, 30 s each 60 s", 4, mean_s=30, gap_s=60, signal="memory_pressure"),
    Scenario("innocent, service, 10 s each 60 s", 4, mean_s=10, gap_s=60, signal="service_check"),
    Scenario("guilty, 10 min of 20", 20, guilty_s=600, of_s=1200),
    Scenario("guilty, 30 s of 330", 20, guilty_s=30, of_s=330),
    Scenario("guilty, always", 4, guilty_s=4 * 3600 - 700, of_s=4 * 3600 - 400),
    Scenario("guilty, memory, 10 min of 20", 10, guilty_s=600, of_s=1200, signal="memory_pressure"),
    Scenario("60 % guilty, 10 min of 20", 20, guilty_s=600, of_s=1200, part=0.6),
    Scenario("30 % guilty, 10 min of 20", 10, guilty_s=600, of_s=1200, part=0.3),
    Scenario("mixed, 10 min of 20, others 10 s each 600 s", 10, mean_s=10, gap_s=600, guilty_s=600, of_s=1200),
    Scenario("mixed, 10 min of 20, others 10 s each 60 s", 10, mean_s=10, gap_s=60, guilty_s=600, of_s=1200),
    *(Scenario(f"healthy, {cpus} CPUs, 2 days", 48, cpus=cpus) for cpus in (2, 4)),
)


def played(scenario: Scenario, seed: int) -> dict[str, float]:
    found = play(world(scenario, seed), scenario, seed)
    return {**found.row(), **_by_day(scenario, found), "episodes": found.episodes, "phases": found.phases}


def _by_day(scenario: Scenario, found: Outcome) -> dict[str, float]:
    if not scenario.cpus:
        return {}
    days = [0] * math.ceil(scenario.hours / 24.0)
    for at in found.experiments:
        days[int(at / 86400.0)] += 1
    return {f"tried on day {day + 1}": count for day, count in enumerate(days)}


def rows(seeds: list[int], only: str, jobs: int) -> Iterator[dict[str, object]]:
    """One for each scenario and seed."""
    asked = [(one, seed) for one in SCENARIOS if only in one.name for seed in seeds]
    with ProcessPoolExecutor(jobs) as pool:
        for (scenario, seed), row in zip(asked, pool.map(played, *zip(*asked, strict=True)), strict=True):
            yield {"scenario": scenario.name, "seed": seed, **row}


def line(law: str, row: dict[str, object]) -> str:
    cells = (
        f"{name} {value:.3g}" for name, value in row.items() if isinstance(value, int | float) and not math.isnan(value)
    )
    return f"{row['scenario']:44s} {law:8s} {', '.join(cells)}"


def against(revision: str, arguments: list[str]) -> list[dict[str, object]]:
    """The same rows by the detectors and the ladder of a revision: a process of its own, in a copy of its tree."""
    with tempfile.TemporaryDirectory() as directory:
        archive = subprocess.run(["git", "archive", revision, "criproxy"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
        shutil.copytree(Path(__file__).parent, f"{directory}/benchmarks/ladder")
        shutil.copy(Path(__file__).parents[1] / "__init__.py", f"{directory}/benchmarks/__init__.py")
        figures = f"{directory}/figures.json"
        environment = {**os.environ, "PYTHONPATH": directory}
        command = [sys.executable, "-m", "benchmarks.ladder", "--json", figures, *arguments]
        subprocess.run(command, check=True, cwd=directory, env=environment, stdout=subprocess.DEVNULL)
        found: list[dict[str, object]] = json.loads(Path(figures).read_text())["this"]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder", description=__doc__)
    parser.add_argument("--seeds", metavar="N", type=int, nargs="+", default=[1], help="one world for each")
    parser.add_argument("--only", metavar="WORD", default="", help="scenarios with this in their name")
    parser.add_argument("--against", metavar="REVISION", help="a git revision whose law is played, too")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    figures: dict[str, list[dict[str, object]]] = {"this": []}
    for row in rows(options.seeds, options.only, options.jobs):
        figures["this"].append(row)
        print(line("this", row), flush=True)
    if options.against:
        same = ["--seeds", *map(str, options.seeds), "--only", options.only, "--jobs", str(options.jobs)]
        figures[options.against] = against(options.against, same)
        for row in figures[options.against]:
            print(line(options.against[:8], row))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
