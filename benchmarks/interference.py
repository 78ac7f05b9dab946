"""What each bound of the box is worth: memcached's latency under open-loop load, and what offline gets done beside it.

Needs root and Debian's memcached. `python -m benchmarks.interference [--rounds N] [--json F]`
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.effect.claims import quantile
from benchmarks.stage import PERIOD_US, Helper
from benchmarks.table import table
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree, hierarchies, version
from integration.lab.clean import clean
from integration.lab.directory import cgroup_root, claimed, socket_path
from integration.lab.meter import Meter
from integration.lab.process import LabError, Process, wait_until

_RATE = 1500.0
_PHASE_S = 5.0
_PAUSE_S = 0.5
_LOWEST_SHARES = 2


@dataclass(frozen=True, slots=True)
class Way:
    """A way to bound the box. `watermark` None: no quota; else quota = CPUs x watermark - online's usage alone."""

    name: str
    offline: bool = True
    idle: bool = False
    watermark: float | None = None


WAYS = (
    Way("online alone", offline=False),
    Way("cpu.idle", idle=True),
    Way("cpu.idle, watermark 1.0", idle=True, watermark=1.0),
    Way("cpu.idle, watermark 0.9", idle=True, watermark=0.9),
    Way("cpu.idle, watermark 0.7", idle=True, watermark=0.7),
    Way("lowest shares"),
    Way("lowest shares, watermark 0.9", watermark=0.9),
    Way("lowest shares, watermark 0.7", watermark=0.7),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of one way: latencies in s, cores in use."""

    p50: float
    p99: float
    p999: float
    online_cores: float
    offline_cores: float


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over the rounds, of each round's ratio to online alone in the same round; p99 alone in ms as it was."""

    way: str
    p50_ratio: float
    p99_ratio: float
    p99_ratio_range: str
    p999_ratio: float
    p99_ms: float
    online_cores: float
    offline_cores: float


class Box:
    """The offline cgroup, with what bounds it written by hand."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = next(
            one.directory(path)
            for one in hierarchies()
            if one.version == version() and {"cpu", ""}.intersection(one.controllers)
        )

    def bound(self, idle: bool, quota_cores: float | None) -> None:
        """Lowest weight, or idle; with a quota or none."""
        (self._directory / "cpu.idle").write_text("1" if idle else "0")
        if not idle:
            kubelet_cgroup.make(self._path, shares=_LOWEST_SHARES)
        quota_us = None if quota_cores is None else max(1000, int(quota_cores * PERIOD_US))
        if version() == 1:
            (self._directory / "cpu.cfs_quota_us").write_text(str(quota_us or -1))
        else:
            (self._directory / "cpu.max").write_text(f"{quota_us or 'max'} {PERIOD_US}")


@dataclass(frozen=True)
class Ground:
    box: Box
    meter: Meter
    client: Helper
    offline: Helper
    latencies: Path
    """Where the client leaves those of a phase."""
    cores: int

    def phase(self, way: Way, online_cores: float) -> Phase:
        quota = None if way.watermark is None else self.cores * way.watermark - online_cores
        self.box.bound(way.idle, quota)
        if way.offline:
            now_s = time.monotonic()
            self.offline.tell(now_s, now_s + _PHASE_S + 2 * _PAUSE_S, 1.0, 1.0)
        time.sleep(_PAUSE_S)
        before = self.meter.read()
        self.client.tell(self.latencies, random.getrandbits(31), _RATE, _PHASE_S)
        self.client.lines.get(timeout=60.0)
        now = self.meter.read()
        time.sleep(2 * _PAUSE_S)
        cores = {name: now.cores_since(before, name) for name in ("online", "box")}
        latencies_s = sorted(array("f", self.latencies.read_bytes()))
        p50, p99, p999 = (quantile(latencies_s, ratio) for ratio in (0.5, 0.99, 0.999))
        return Phase(p50, p99, p999, cores["online"], cores["box"])


@contextmanager
def ground(directory: Path) -> Iterator[Ground]:
    """memcached and its client in an online cgroup, busy loops in a box beside it."""
    if shutil.which("memcached") is None:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "memcached"], check=True)
    root, socket = cgroup_root(directory), socket_path(directory, "memcached.sock")
    online, box = f"{root}/kubepods", f"{root}/offline"
    for path in (online, f"{box}/pod"):
        Tree(path).make()
    with ExitStack() as on_exit:
        server = Process("memcached", ["memcached", "-u", "root", "-t", "2", "-s", socket], directory / "memcached.log")
        on_exit.callback(server.stop)
        server.wait_until(socket.exists, 20, "its socket")
        client = on_exit.enter_context(Helper("benchmarks.effect.openloop", "memcached", str(socket)))
        offline = on_exit.enter_context(Helper("benchmarks.burner", "load", f"{box}/pod"))
        for pid in (server.pid, client.pid):
            join(online, pid)
        wait_until(lambda: len(Tree(online).pids()) >= 2, 10, "memcached and its client in their cgroup")
        meter, latencies = Meter({"online": online, "box": box}), directory / "latencies"
        yield Ground(Box(box), meter, client, offline, latencies, len(os.sched_getaffinity(0)))


def join(cgroup: str, pid: int) -> None:
    """Put a process into a cgroup, where its CPU is counted and shared."""
    joined = [h for h in hierarchies() if {"cpu", "cpuacct", ""}.intersection(h.controllers)]
    for hierarchy in joined:
        (hierarchy.directory(cgroup) / "cgroup.procs").write_text(str(pid))


def report(rounds: int) -> dict[str, Any]:
    conditions = {"cpus": len(os.sched_getaffinity(0)), "rounds": rounds, "load_average_before": os.getloadavg()}
    found: dict[str, list[Phase]] = {way.name: [] for way in WAYS}
    with claimed() as directory:
        try:
            with ground(directory) as on:
                on.phase(WAYS[0], 0.0)  # a warm-up
                for number in range(rounds):
                    online_cores = on.phase(WAYS[0], 0.0).online_cores
                    for way in random.sample(WAYS, len(WAYS)):
                        found[way.name].append(on.phase(way, online_cores))
                    print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
                print(file=sys.stderr)
        except OSError as error:
            raise LabError(f"{error}: does the kernel have cpu.idle (5.15)?") from error
        finally:
            clean(directory)
    conditions["load_average_after"] = os.getloadavg()
    results = [_result(name, phases, found[WAYS[0].name]) for name, phases in found.items()]
    print(table(results))
    phases = {name: [asdict(phase) for phase in of] for name, of in found.items()}
    return {"conditions": conditions, "results": [asdict(result) for result in results], "phases": phases}


def _result(name: str, phases: list[Phase], alone: list[Phase]) -> Result:
    def ratios(quantile: str) -> list[float]:
        return [getattr(one, quantile) / getattr(base, quantile) for one, base in zip(phases, alone, strict=True)]

    p99 = sorted(ratios("p99"))
    return Result(
        way=name,
        p50_ratio=statistics.median(ratios("p50")),
        p99_ratio=statistics.median(p99),
        p99_ratio_range=f"{p99[0]:.2f}-{p99[-1]:.2f}",
        p999_ratio=statistics.median(ratios("p999")),
        p99_ms=1000 * statistics.median(phase.p99 for phase in phases),
        online_cores=statistics.median(phase.online_cores for phase in phases),
        offline_cores=statistics.median(phase.offline_cores for phase in phases),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interference", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all ways in random order (%(default)s)")
    parser.add_argument("--json", metavar="F", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    figures = report(options.rounds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
