"""What each engine adds to a call, in time and CPU, beside a proxy in Go that only carries bytes (`go_proxy`).

Direct and proxied calls take turns. Needs root, for the box of the hooked call, and Debian's Go for the rival.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.node import ENGINES, NodeCriproxy, backend, cpu_seconds, labs, run_request
from benchmarks.table import table
from benchmarks.wire import Client
from integration.lab.criproxy import CHECKOUT
from integration.lab.directory import cgroup_root, socket_path
from integration.lab.process import LabError, Process

_RIVAL: Final = "go"
_RUNTIME = "/runtime.v1.RuntimeService/"
_ROUNDS = 10
_SETTLE_S = 5.0
"""What a process that has just begun does beside its calls is over by then."""


_UIDS: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and how often it is made per side in each of the rounds.

    `request` makes it for a node whose cgroups begin with a prefix, anew for each call. `starts_pods`: they are
    removed after each round, uncounted.
    """

    name: str
    method: str
    request: Callable[[str], bytes]
    calls: int
    starts_pods: bool = False


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians over the rounds of each round's p50, in microseconds; CPU of the proxy's process alone.

    The ratios are to the rival's figures in the same rounds.
    """

    name: str
    engine: str
    direct_p50_us: float
    proxied_p50_us: float
    added_p50_us: float
    added_ratio: float
    cpu_s_per_1000_calls: float
    cpu_ratio: float


CASES: Final = (
    Case("small call (Version)", "Version", lambda _: b"", 400),
    Case("200 KB list", "ListContainerStats", lambda _: b"", 100),
    Case(
        "RunPodSandbox, online (opened, unchanged)",
        "RunPodSandbox",
        lambda prefix: run_request(prefix, "online", offline=False),
        100,
    ),
    Case(
        "RunPodSandbox, offline (rewritten, box bounded)",
        "RunPodSandbox",
        lambda prefix: run_request(prefix, f"offline{next(_UIDS)}", offline=True),
        100,
        starts_pods=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Side:
    """A way to the backend. `pid`: of the proxy in it, 0: there is none. `prefix`: where its cgroups begin."""

    name: str
    client: Client
    pid: int
    prefix: str

    def p50_us(self, case: Case, times: int) -> float:
        """Over so many calls, one after the other."""
        return self._p50_us(case.method, [case.request(self.prefix) for _ in range(times)])

    def remove_pods(self) -> None:
        """All that the backend has."""
        self._p50_us("RemoveAll", [b""])

    def _p50_us(self, method: str, messages: Sequence[bytes]) -> float:
        taken = []
        for request in self.client.requests(f"{_RUNTIME}{method}", messages):
            started = time.perf_counter()
            answer = self.client.call(request)
            taken.append(time.perf_counter() - started)
            self.client.check(answer)
        return statistics.median(taken) * 1e6


def measure(case: Case, direct: Side, proxied: Sequence[Side]) -> list[Latency]:
    """Rounds of calls on all sides in turn, beginning with another in each, after a warm-up of all."""
    sides = [direct, *proxied]
    for side in sides:
        side.p50_us(case, 20)
    p50: dict[str, list[float]] = {side.name: [] for side in sides}
    cpu_s = dict.fromkeys(p50, 0.0)
    for number in range(_ROUNDS):
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            before_s = cpu_seconds(side.pid) if side.pid else 0.0
            p50[side.name].append(side.p50_us(case, case.calls))
            cpu_s[side.name] += cpu_seconds(side.pid) - before_s if side.pid else 0.0
            if case.starts_pods:
                side.remove_pods()
    added_us = {
        name: statistics.median(p - d for d, p in zip(p50[direct.name], taken, strict=True))
        for name, taken in p50.items()
    }
    return [
        Latency(
            name=case.name,
            engine=side.name,
            direct_p50_us=statistics.median(p50[direct.name]),
            proxied_p50_us=statistics.median(p50[side.name]),
            added_p50_us=added_us[side.name],
            added_ratio=added_us[side.name] / added_us[_RIVAL],
            cpu_s_per_1000_calls=cpu_s[side.name] / (_ROUNDS * case.calls) * 1000,
            cpu_ratio=cpu_s[side.name] / cpu_s[_RIVAL],
        )
        for side in proxied
    ]


@contextmanager
def rival(directory: Path, runtime: Path) -> Iterator[Side]:
    """The proxy in Go. Raises LabError when it can't be built."""
    build = (CHECKOUT / "benchmarks" / "go_proxy" / "build",)
    built = subprocess.run(build, check=False, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        raise LabError("the rival could not be built: see above")
    socket = socket_path(directory, "go.sock")
    process = Process("go-proxy", [built.stdout.strip(), str(socket), str(runtime)], directory / "go-proxy.log", {})
    try:
        process.wait_until(socket.exists, 30, "its socket")
        with Client(socket) as client:
            yield Side(_RIVAL, client, process.pid, "")
    finally:
        process.stop()


def run(directories: Mapping[str, Path]) -> list[Latency]:
    """`directories`: a lab's for each engine."""
    with ExitStack() as ends:
        first = next(iter(directories.values()))
        socket = ends.enter_context(backend(first))
        sides = [ends.enter_context(rival(first, socket))]
        for name, directory in directories.items():
            proxy = NodeCriproxy(directory, socket, name)
            proxy.start()
            ends.callback(proxy.stop)
            client = ends.enter_context(Client(proxy.socket))
            sides.append(Side(name, client, proxy.pid, cgroup_root(directory)))
        direct = Side("direct", ends.enter_context(Client(socket)), 0, "")
        time.sleep(_SETTLE_S)
        latencies = []
        for case in CASES:
            print(f"measuring {case.name} …", file=sys.stderr)
            latencies += measure(case, direct, sides)
        return latencies


def report() -> list[dict[str, Any]]:
    """Measure and print; returns the figures. Raises LabError when the lab or the rival can't be had."""
    if os.geteuid() != 0:
        raise LabError("the proxy's benchmark needs root, for the box of its hooked call")
    with labs(ENGINES) as directories:
        latencies = run(directories)
    print(table(latencies))
    return [asdict(one) for one in latencies]
