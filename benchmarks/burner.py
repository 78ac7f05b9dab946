"""Online load by the clock: one process per CPU in a cgroup, busy when told to, and a watcher of a cgroup file.

`python -m benchmarks.burner load CGROUP` reads lines `FROM UNTIL BUSY_S PERIOD_S` (CLOCK_MONOTONIC) and is busy for
BUSY_S of each PERIOD_S in that time. `python -m benchmarks.burner watch FILE` prints each change, with its time.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from integration.lab.cgroups import hierarchies

_POLL_S = 0.001
_MOST_URGENT = -20


def load(cgroup: str) -> None:
    """Serve stdin until it ends; the children follow their parent's pipe."""
    for hierarchy in hierarchies():
        with contextlib.suppress(OSError):  # a hierarchy without controllers need not be joined
            (hierarchy.directory(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    pipes: list[int] = []
    for _ in os.sched_getaffinity(0):
        reader, writer = os.pipe()
        if os.fork() == 0:
            for other in (writer, *pipes):
                os.close(other)
            with os.fdopen(reader) as commands:
                for line in commands:
                    _burn(*map(float, line.split()))
            os._exit(0)
        os.close(reader)
        pipes.append(writer)
    print("ready", flush=True)
    for line in sys.stdin:
        for writer in pipes:
            os.write(writer, line.encode())


def _burn(start_s: float, until_s: float, busy_s: float, period_s: float) -> None:
    at_s = start_s
    while at_s < until_s:
        time.sleep(max(0.0, at_s - time.monotonic()))
        stop_s = min(at_s + busy_s, until_s)
        while time.monotonic() < stop_s:
            pass
        at_s += period_s


def watch(file: str) -> None:
    """Look every ms, ahead of everybody else."""
    with contextlib.suppress(OSError):
        os.nice(_MOST_URGENT)
    print("ready", flush=True)
    seen = ""
    path = Path(file)
    while True:
        now = path.read_text().strip()
        if now != seen:
            seen = now
            print(time.monotonic(), now, flush=True)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    {"load": load, "watch": watch}[sys.argv[1]](sys.argv[2])
