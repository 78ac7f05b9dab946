"""What it takes to let an offline pod into the box, in CPU time, beside the kernel's part: the bare directories.

Needs root. `python -m benchmarks.admission [--pods N]`
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import table
from criproxy.cgroup import files
from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.detect import detect
from criproxy.cgroup.naming import PodParent, parse_kubelet_parent
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Clock
from criproxy.model import UNLIMITED

_ROUNDS = 9
_SETTINGS = BoxSettings({"cpu": 0.1, "memory": 64 << 20}, {"pids": 0.25})


@dataclass(frozen=True, slots=True)
class Admission:
    """CPU time of one pod, all threads, as the median over the rounds. `ratio`: to the bare directories."""

    what: str
    hierarchies: int
    median_us: float
    ratio: float


class Ground:
    """A box of its own, below a cgroup that nobody else has."""

    def __init__(self) -> None:
        mounts = files.parse_mounts(Tree().read("/proc/self/mountinfo"))
        self._roots = sorted({*mounts.v1.values(), *([mounts.v2] if mounts.v2 else [])})
        self._cpuset = mounts.v1.get("cpuset")
        self._top = f"/criproxy-bench-{os.getpid()}"
        self._driver = detect(Tree())
        self.box = Box(self._driver, _SETTINGS, lambda: UNLIMITED, Clock())

    @property
    def hierarchies(self) -> int:
        return len(self._roots)

    def places(self, count: int) -> list[PodParent]:
        return [parse_kubelet_parent(f"{self._top}/kubepods/besteffort/pod{number}") for number in range(count)]

    async def admit(self, places: list[PodParent], between: Callable[[], object]) -> float:
        """Let them in, and remove them, uncounted. Returns the CPU time in s; `between` is called before each."""
        began_s = time.process_time()
        for place in places:
            between()
            await self.box.pods.admit(place, 0)
        took_s = time.process_time() - began_s
        for place in places:
            self._driver.remove_pod(place.in_box)
        return took_s

    def make_bare(self, places: list[PodParent]) -> float:
        """Make the directories alone, and where there are cpusets, give them what processes need."""
        parent = f"{self._top}/offline"
        held = {}
        if self._cpuset:
            held = {
                name: Path(f"{self._cpuset}{parent}/{name}").read_bytes() for name in ("cpuset.cpus", "cpuset.mems")
            }
        directories = [f"{root}{place.in_box}" for place in places for root in self._roots]
        began_s = time.process_time()
        for directory in directories:
            os.mkdir(directory, 0o755)
            if held and directory.startswith(f"{self._cpuset}/"):
                for name, value in held.items():
                    file = os.open(f"{directory}/{name}", os.O_WRONLY)
                    os.write(file, value)
                    os.close(file)
        took_s = time.process_time() - began_s
        for directory in directories:
            os.rmdir(directory)
        return took_s

    def remove(self) -> None:
        self.box.close()
        for root in self._roots:
            Tree().remove(f"{root}{self._top}")


async def measure(ground: Ground, count: int) -> list[Admission]:
    """Rounds of all ways in turn."""
    places = ground.places(count)
    await ground.admit(places, lambda: None)
    took_s: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for what, seconds in (
            ("the bare directories", ground.make_bare(places)),
            ("a pod within a second of another, or of a tick", await ground.admit(places, lambda: None)),
            ("a pod for which all of the box is settled", await ground.admit(places, _anew(ground.box))),
        ):
            took_s.setdefault(what, []).append(seconds / count)
    medians = {what: statistics.median(rounds) for what, rounds in took_s.items()}
    bare_s = next(iter(medians.values()))
    return [Admission(what, ground.hierarchies, 1e6 * one_s, one_s / bare_s) for what, one_s in medians.items()]


def _anew(box: Box) -> Callable[[], object]:
    return lambda: box.configure(_SETTINGS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission", description=__doc__)
    parser.add_argument("--pods", metavar="N", type=int, default=30, help="in each round (%(default)s)")
    options = parser.parse_args()
    ground = Ground()
    try:
        sys.stdout.write(table(asyncio.run(measure(ground, options.pods))))
    finally:
        ground.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
