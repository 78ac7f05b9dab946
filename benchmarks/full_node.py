"""What kubelet waits for on a node of which kubepods and the box take every CPU: direct, through Go, through criproxy.

Needs root and cgroup v1. `python -m benchmarks.full_node [--seconds N]`. Cgroups of its own stand beside each other as
on a node: kubepods with the weight that kubelet gives it and two busy loops for each CPU, the box with the lowest
weight (and cpu.idle, where the kernel has it) and as many, a system slice of the default weight with client and runtime
in it, and one for each proxy: with the default weight, and with that of criproxy's unit.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import proxy
from benchmarks.effect.arms import set_idle
from benchmarks.node import NodeCriproxy, backend, labs, run_request
from benchmarks.proxy import Side
from benchmarks.table import table
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree
from integration.lab.directory import cgroup_root
from integration.lab.meter import join

_DEFAULT_SHARES: Final = 1024
_UNIT_SHARES: Final = 10240
"""Of CPUWeight=1000. Source: systemd, cgroup.c, cgroup_cpu_weight_to_shares."""
_PACE_S: Final = 0.02
_LOOPS_PER_CPU: Final = 2
_METHODS: Final = ("Version", "RunPodSandbox")


@dataclass(frozen=True, slots=True)
class Wait:
    """In ms, over all calls of this kind; the calls of all ways take turns."""

    call: str
    way: str
    shares: int
    calls: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float


@contextmanager
def busy(cgroup: str, shares: int, *, idle: bool = False) -> Iterator[None]:
    kubelet_cgroup.make(cgroup, shares=shares)
    if idle:
        set_idle(cgroup, idle=True)
    loops = [
        subprocess.Popen(("setpriv", "--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"))
        for _ in range(_LOOPS_PER_CPU * (os.cpu_count() or 1))
    ]
    try:
        for loop in loops:
            join(cgroup, loop.pid)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(sides: Sequence[tuple[Side, int]], seconds: float) -> list[Wait]:
    taken_s: dict[tuple[str, str], list[float]] = {}
    until_s, number = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        for method in _METHODS:
            for side, _ in sides:
                number += 1
                message = run_request("", f"{side.name}{number}", offline=False) if method == "RunPodSandbox" else b""
                (request,) = side.clients[0].requests(f"/runtime.v1.RuntimeService/{method}", [message])
                time.sleep(_PACE_S)
                began_s = time.perf_counter()
                answer = side.clients[0].call(request)
                taken_s.setdefault((method, side.name), []).append(time.perf_counter() - began_s)
                side.clients[0].check(answer)
    return [
        _wait(method, side.name, shares, taken_s[method, side.name]) for method in _METHODS for side, shares in sides
    ]


def _wait(method: str, way: str, shares: int, taken_s: Sequence[float]) -> Wait:
    cuts = statistics.quantiles(taken_s, n=100)
    p50, p90, p99 = (1000.0 * cuts[part - 1] for part in (50, 90, 99))
    return Wait(method, way, shares, len(taken_s), p50, p90, p99, 1000.0 * statistics.mean(taken_s))


def run(directory: Path, seconds: float) -> list[Wait]:
    root = f"{cgroup_root(directory)}-full"
    system = f"{root}/system"
    with ExitStack() as ends:
        ends.callback(lambda: Tree(root).remove())
        runtime = ends.enter_context(backend(directory))
        Tree(system).make()
        join(system, runtime.pid)
        sides = [(Side("direct", proxy.connected(runtime.socket, ends), 0, ""), _DEFAULT_SHARES)]
        rival = ends.enter_context(proxy.built(proxy.RIVAL, "go_proxy/build", directory, runtime.socket))
        own = NodeCriproxy(directory, runtime.socket, "relay")
        own.start()
        ends.callback(own.stop)
        relay = Side("criproxy", proxy.connected(own.socket, ends), own.pid, "")
        for side, shares in ((rival, _DEFAULT_SHARES), (relay, _DEFAULT_SHARES)):
            kubelet_cgroup.make(f"{root}/{side.name}", shares=shares)
            join(f"{root}/{side.name}", side.pid)
        time.sleep(5.0)
        join(system, os.getpid())
        ends.callback(lambda: join("", os.getpid()))
        found = []
        with busy(f"{root}/kubepods", _DEFAULT_SHARES * (os.cpu_count() or 1)), busy(f"{root}/offline", 2, idle=True):
            for shares in (_DEFAULT_SHARES, _UNIT_SHARES):
                for side in (rival, relay):
                    kubelet_cgroup.make(f"{root}/{side.name}", shares=shares)
                found += measure([*sides, (rival, shares), (relay, shares)], seconds / 2)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.full_node", description="What kubelet waits for, see above."
    )
    parser.add_argument("--seconds", metavar="N", type=float, default=120.0, help="in all (%(default)s)")
    options = parser.parse_args()
    with labs(("relay",)) as directories:
        print(table(run(directories["relay"], options.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
