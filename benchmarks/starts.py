"""How long offline pods take that start at once, while online is busy and the box at its floor.

Needs root. `python -m benchmarks.starts [--pods N] [--rounds N]`
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stage import CLASS, Stage, cpu, stage
from benchmarks.table import table
from integration.lab.cgroups import Tree
from integration.lab.clean import clean
from integration.lab.client import CriClient, Pod
from integration.lab.criproxy import Config
from integration.lab.directory import cgroup_root, claimed
from integration.lab.process import wait_until

_CONFIG: Config = {
    "control": {"predictor": "histogram"},
    "cpu": {"watermark_ratio": 0.1, "bound": "prediction"},
    "guard": {"enabled": False},
}
"""Online leaves CPU idle, and the watermark leaves none of it to the box, so that this is at its floor."""
_BUSY_RATIO = 0.6
_PERIOD_S = 0.05
_STRETCH_S = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds from the first call until so many pods run, and the CPU time of the box meanwhile."""

    pods: int
    first_s: float
    median_s: float
    all_s: float
    box_cpu_s: float


def measure(on: Stage, directory: Path, count: int, number: int) -> Row:
    """Start `count` pods at once, then remove them."""
    wait_until(lambda: float(cpu(on)["limit_cores"]) <= 0.1, 60, "the box at its floor")
    before_s = on.meter.read().cpu_s["box"]
    with CriClient(on.proxy.socket) as client, ThreadPoolExecutor(count) as threads:
        start = _starter(client, f"{cgroup_root(directory)}/kubepods/besteffort", time.monotonic())
        started = list(threads.map(start, [f"start{number}-{index}" for index in range(count)]))
        used_s = on.meter.read().cpu_s["box"] - before_s
        for pod, _ in started:
            client.stop_and_remove(pod)
    took_s = sorted(seconds for _, seconds in started)
    return Row(count, took_s[0], statistics.median(took_s), took_s[-1], used_s)


def _starter(client: CriClient, parents: str, began_s: float) -> Callable[[str], tuple[Pod, float]]:
    def start(name: str) -> tuple[Pod, float]:
        parent = f"{parents}/pod{name}"
        Tree(parent).make()
        pod = client.run_pod(name, uid=name, labels={CLASS: "offline"}, cgroup_parent=parent)
        client.run_container(pod, "main", ["sleep", "2147483647"])
        return pod, time.monotonic() - began_s

    return start


@contextmanager
def _busy(on: Stage) -> Iterator[None]:
    """Online's load, in stretches: what was told it ends, and nothing else stops it."""
    ended = threading.Event()

    def go_on() -> None:
        until_s = time.monotonic()
        while not ended.wait(until_s - time.monotonic() - _STRETCH_S / 2):
            on.burn(until_s, _STRETCH_S, _BUSY_RATIO * _PERIOD_S, _PERIOD_S)
            until_s += _STRETCH_S

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--pods", type=int, default=10, help="how many start at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (%(default)s)")
    options = parser.parse_args()
    with claimed() as directory:
        try:
            with stage(directory, _CONFIG) as on, _busy(on):
                rows = [measure(on, directory, options.pods, number) for number in range(options.rounds)]
        finally:
            clean(directory)
    sys.stdout.write(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
