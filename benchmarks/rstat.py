"""What a read of a cgroup's cpu.stat takes on cgroup v2, by how many cgroups below it ran since the last read.

The kernel sums up what ran when it is asked. Needs root. `python -m benchmarks.rstat [--cgroups N]`
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import table
from criproxy.cgroup.files import parse_mounts
from criproxy.cgroup.tree import Tree

_RAN = (0, 10, 100, 500, 1000, 2000, 5000, 10_000)
_ROUNDS = 7
_BYTES = 64


@dataclass(frozen=True, slots=True)
class Reads:
    """What a read took after so many cgroups had run."""

    cgroups_that_ran: int
    median_us: float
    max_us: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rstat", description=__doc__)
    parser.add_argument("--cgroups", metavar="N", type=int, default=5000, help="how many there are (%(default)s)")
    count: int = parser.parse_args().cgroups
    mount = _mount()
    here = mount / Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    top, away = mount / f"rstat-{os.getpid()}", mount / f"rstat-{os.getpid()}-away"
    cgroups = [top / str(number) for number in range(count)]
    try:
        for directory in (away, top, *cgroups):
            directory.mkdir()
        counter = os.open(top / "cpu.stat", os.O_RDONLY)
        print(table([_reads(counter, cgroups[:ran], away) for ran in _RAN if ran <= count]))
        os.close(counter)
    finally:
        (here / "cgroup.procs").write_text("0")
        for directory in (*cgroups, top, away):
            if directory.exists():
                directory.rmdir()
    return 0


def _reads(counter: int, cgroups: list[Path], away: Path) -> Reads:
    """Each read comes after this process has been in each of the cgroups for a moment."""
    times_us = []
    for _ in range(_ROUNDS):
        os.pread(counter, _BYTES, 0)
        for cgroup in cgroups:
            (cgroup / "cgroup.procs").write_text("0")
        (away / "cgroup.procs").write_text("0")
        began_s = time.perf_counter()
        os.pread(counter, _BYTES, 0)
        times_us.append((time.perf_counter() - began_s) * 1e6)
    return Reads(len(cgroups), statistics.median(times_us), max(times_us))


def _mount() -> Path:
    """Where cgroup v2 is mounted."""
    mount = parse_mounts(Tree().read("/proc/self/mountinfo")).v2
    if mount is None:
        sys.exit("benchmarks.rstat: /proc/self/mountinfo has no cgroup2: mount one (mount -t cgroup2 none DIRECTORY)")
    return Path(mount)


if __name__ == "__main__":
    sys.exit(main())
