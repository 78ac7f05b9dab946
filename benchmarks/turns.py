"""For how long at a time the kernel runs a box with cpu.idle on a CPU that an online process wants all of.

`python -m benchmarks.turns [--seconds N]`, as root: on one CPU, an endless loop in a cgroup with kubepods' shares,
beside one in a cgroup with cpu.idle, which notes when it runs. The kernel counts such a cgroup as if it had 3 shares,
where a CPU of kubepods has 1,024, and gives it that part of the CPU; but it looks who is next only with its tick, or
when somebody wakes up.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.effect.arms import set_idle
from benchmarks.table import table
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree
from integration.lab.meter import join

_SHARES = (128, 512, 1024, 4096)
_BEGINS_S = 1.0
_AWAY_S = 0.0002
"""Who has not run for so long was not just interrupted."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Of the box, beside online with these shares."""

    online_shares: int
    box_percent: float
    turns_a_second: float
    median_ms: float
    longest_ms: float


def main() -> int:
    if sys.argv[1:2] == ["note"]:
        _note(float(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("--seconds", metavar="N", type=float, default=20.0, help="for each row (%(default)s)")
    seconds: float = parser.parse_args().seconds
    root = f"/criproxy-turns-{os.getpid()}"
    online, box = f"{root}/kubepods", f"{root}/offline"
    for path in (online, box):
        Tree(path).make()
    try:
        set_idle(box, idle=True)
        print(table([_turns(online, box, shares, seconds) for shares in _SHARES]))
    finally:
        Tree(root).remove()
    return 0


def _turns(online: str, box: str, shares: int, seconds: float) -> Turns:
    kubelet_cgroup.make(online, shares=shares)
    cpu = max(os.sched_getaffinity(0))
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    noting = [sys.executable, "-m", "benchmarks.turns", "note", str(seconds)]
    box_process = subprocess.Popen(noting, stdout=subprocess.PIPE, text=True)
    try:
        assert box_process.stdout is not None
        box_process.stdout.readline()
        for path, process in ((online, busy), (box, box_process)):
            join(path, process.pid)
            os.sched_setaffinity(process.pid, {cpu})
        time.sleep(_BEGINS_S + seconds)
        busy.kill()  # else the box would take a minute to tell what it found
        told = box_process.communicate()[0]
    finally:
        for process in (busy, box_process):
            process.kill()
            process.wait()
    lengths_s = [float(line) for line in told.split()]
    return Turns(
        online_shares=shares,
        box_percent=100.0 * sum(lengths_s) / seconds,
        turns_a_second=len(lengths_s) / seconds,
        median_ms=1000.0 * statistics.median(lengths_s) if lengths_s else 0.0,
        longest_ms=1000.0 * max(lengths_s, default=0.0),
    )


def _note(seconds: float) -> None:
    """Print how long each turn was, in s. A turn that is under way at the beginning or at the end does not count."""
    found: list[float] = []
    print("ready", flush=True)
    time.sleep(_BEGINS_S)
    until_s = time.monotonic() + seconds
    began_s = before_s = time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        if now_s - before_s > _AWAY_S:
            found.append(before_s - began_s)
            began_s = now_s
        before_s = now_s
    print(*found[1:], sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
