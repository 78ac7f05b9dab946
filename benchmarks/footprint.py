"""How soon criproxy serves, what it holds in memory after large lists, and what it costs while nothing is called.

Needs root, for the box of the offline pods.
`python -m benchmarks.footprint --beside CHECKOUT [--offline N] [--online N] [--rounds N]`: this checkout's relay and
another one's, "beside", with pods and without a call, at the same time.
"""

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.node import (
    NODE_PYTHON,
    NodeCriproxy,
    backend,
    connect,
    cpu_seconds,
    labs,
    rss_mib,
    run_request,
    wake_ups,
)
from benchmarks.table import table
from benchmarks.wire import Client as WireClient
from criproxy.clients.http2.core import Client
from integration.lab.cgroups import Tree, hierarchies
from integration.lab.criproxy import CHECKOUT
from integration.lab.directory import cgroup_root
from integration.lab.process import LabError, Process

_ENGINES: Final = ("relay", "grpc")
_MANY: Final = "many"
"""The lab of the relay with many pods."""
_HERE: Final = "here"
_BESIDE: Final = "beside"
_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_STARTS: Final = 11
_SETTLE_S: Final = 8.0
_WATCH_S: Final = 60.0
_OFFLINE_PODS: Final = 110
_ONLINE_PODS: Final = 60
_MANY_PODS: Final = 1000
_ANNOTATIONS: Final = 12
"""Of each of many pods, beside kubelet's two."""
_MINUTE_S: Final = 62.0
"""Until the runtime has been listed once more."""
_LOAD: Final = (("Version", 10_000), ("ListContainerStats", 1000), ("ListPodSandboxStats", 10))


@dataclass(frozen=True, slots=True)
class Start:
    """Medians, in ms, of starts in turns: from exec to the first answered call, and the CPU time up to there.

    `python`: `python -c pass`, which is what no program in Python does without.
    """

    what: str
    to_first_call_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Memory:
    """RSS in MiB: when ready, after lists that pass, and with offline pods, a minute later."""

    engine: str
    ready: float
    after_1000_lists_of_200kb: float
    after_ten_lists_of_15mb: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The whole process with the default settings: a tick and a look of the guard each second.

    RSS in MiB. Wake-ups are of all threads.
    """

    engine: str
    offline_pods: int
    online_pods: int
    percent_of_a_core: float
    wake_ups_per_s: float
    rss: float


@dataclass(frozen=True, slots=True)
class Many:
    """RSS in MiB with many online pods, which the runtime lists: once they are known, after 10,000 small calls, 1,000
    lists of 200 KB and ten of 15 MB, after a minute more, and after both once again.
    """

    engine: str
    online_pods: int
    known: float
    after_load: float
    after_a_minute: float
    after_load_again: float
    at_the_end: float


def starts(proxies: Mapping[str, NodeCriproxy], log: Path) -> list[Start]:
    """The runtime answers already."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("python", *proxies)}
    for _ in range(_STARTS):
        found["python"].append(_python_s(log))
        for name, proxy in proxies.items():
            found[name].append(_start_s(proxy))
    return [
        Start(name, *(statistics.median(column) * 1000 for column in zip(*times, strict=True)))
        for name, times in found.items()
    ]


def _python_s(log: Path) -> tuple[float, float]:
    before_s, began_s = _children_s(), time.perf_counter()
    process = Process("python", [NODE_PYTHON, "-c", "pass"], log)
    process.wait_until(lambda: not process.is_alive(), 30, "its end", poll_s=0.001)
    return time.perf_counter() - began_s, _children_s() - before_s


def _children_s() -> float:
    """CPU time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _start_s(proxy: NodeCriproxy) -> tuple[float, float]:
    command: list[str | Path] = [NODE_PYTHON, "-m", "criproxy", "run", "--config", proxy.config_file]
    began_s = time.perf_counter()
    process = Process("criproxy", command, proxy.log, proxy.environment)
    try:
        process.wait_until(lambda: _answers(proxy.socket), 30, "its first answer", poll_s=0.001)
        return time.perf_counter() - began_s, cpu_seconds(process.pid)
    finally:
        process.stop()


def _answers(path: Path) -> bool:
    """Whether a Version call is answered. With a client that is quick itself, as it takes CPU time from who starts."""
    client = Client()
    client.call(f"{_RUNTIME}Version", b"", 5)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
            connection.settimeout(5)
            while True:
                connection.sendall(client.take())
                if not (received := connection.recv(65536)):
                    return False
                if outcomes := client.feed(received):
                    return outcomes[0].code == 0
        except OSError:
            return False


def memory(engine: str, proxy: NodeCriproxy) -> Memory:
    ready = rss_mib(proxy.pid)
    with connect(proxy.socket) as channel:
        many, large = (channel.unary_unary(f"{_RUNTIME}List{kind}Stats") for kind in ("Container", "PodSandbox"))
        for _ in range(1000):
            many(b"")
        after_many = rss_mib(proxy.pid)
        for _ in range(10):
            large(b"")
        return Memory(engine, ready, after_many, rss_mib(proxy.pid))


def many(engine: str, directory: Path) -> Many:
    with ExitStack() as ends:
        runtime = ends.enter_context(backend(directory))
        annotations = {
            f"example.com/mark-{number}".encode(): b"a value of its own " * 4 for number in range(_ANNOTATIONS)
        }
        with WireClient(runtime.socket) as client:
            messages = [
                run_request("", f"online{number}", offline=False, annotations=annotations)
                for number in range(_MANY_PODS)
            ]
            for request in client.requests(f"{_RUNTIME}RunPodSandbox", messages):
                client.check(client.call(request))
        proxy = NodeCriproxy(directory, runtime.socket, engine)
        proxy.start()
        ends.callback(proxy.stop)
        time.sleep(_SETTLE_S)
        found = [rss_mib(proxy.pid)]
        for _ in range(2):
            _load(proxy)
            found.append(rss_mib(proxy.pid))
            time.sleep(_MINUTE_S)
            found.append(rss_mib(proxy.pid))
        return Many(engine, _MANY_PODS, *found)


def _load(proxy: NodeCriproxy) -> None:
    with WireClient(proxy.socket) as client:
        for method, times in _LOAD:
            for request in client.requests(f"{_RUNTIME}{method}", [b""] * times):
                client.check(client.call(request))


def idle(engines: Mapping[str, tuple[NodeCriproxy, str]]) -> list[Idle]:
    """All watched at once: without pods, then with them. Each has a prefix of its own for its cgroups."""
    proxies = {name: proxy for name, (proxy, _) in engines.items()}
    found = _watch(proxies, 0, 0)
    with ExitStack() as ends:
        for proxy, prefix in engines.values():
            _start_pods(proxy, prefix, _OFFLINE_PODS, _ONLINE_PODS, ends)
        return found + _watch(proxies, _OFFLINE_PODS, _ONLINE_PODS)


def _watch(proxies: Mapping[str, NodeCriproxy], offline: int, online: int) -> list[Idle]:
    print(f"watching {offline} offline and {online} online pods for {_WATCH_S:g} s …", file=sys.stderr)
    time.sleep(_SETTLE_S)
    before = {name: (cpu_seconds(proxy.pid), wake_ups(proxy.pid)) for name, proxy in proxies.items()}
    time.sleep(_WATCH_S)
    found = []
    for name, proxy in proxies.items():
        used_s, woken = cpu_seconds(proxy.pid) - before[name][0], wake_ups(proxy.pid) - before[name][1]
        percent = used_s / _WATCH_S * 100
        found.append(Idle(name, offline, online, percent, woken / _WATCH_S, rss_mib(proxy.pid)))
    return found


def _start_pods(proxy: NodeCriproxy, prefix: str, offline: int, online: int, ends: ExitStack) -> None:
    """Online pods are what kubelet and a runtime make: a cgroup each, with one for the sandbox and one for a container
    that sleeps.
    """
    with connect(proxy.socket) as channel:
        run = channel.unary_unary(f"{_RUNTIME}RunPodSandbox")
        for number in range(online):
            run(run_request(prefix, f"online{number}", offline=False))
            for container in ("sandbox", "main"):
                ends.enter_context(_sleeping(f"{prefix}/kubepods/besteffort/podonline{number}/{container}"))
        for number in range(offline):
            run(run_request(prefix, f"p{number}", offline=True))
    if (placed := len(proxy.status()["pods"])) != offline:
        raise LabError(f"{placed} pods are in the box, not {offline}")


@contextmanager
def _sleeping(cgroup: str) -> Iterator[None]:
    """A process that sleeps in this cgroup, in each hierarchy that the lab makes it in."""
    Tree(cgroup).make()
    process = subprocess.Popen(("setpriv", "--pdeathsig", "KILL", "--", "sleep", "infinity"))
    try:
        for hierarchy in hierarchies():
            (hierarchy.directory(cgroup) / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        process.kill()
        process.wait()


def run(directories: Mapping[str, Path]) -> tuple[Sequence[Start], Sequence[Memory], Sequence[Idle]]:
    """`directories`: a lab's for each engine. Each has a runtime of its own, which lists its pods."""
    with ExitStack() as ends:
        proxies = {
            name: NodeCriproxy(directory, ends.enter_context(backend(directory)).socket, name)
            for name, directory in directories.items()
        }
        print("measuring starts …", file=sys.stderr)
        started = starts(proxies, next(iter(directories.values())) / "python.log")
        for proxy in proxies.values():
            proxy.start()
            ends.callback(proxy.stop)
        print("measuring memory …", file=sys.stderr)
        held = [memory(name, proxy) for name, proxy in proxies.items()]
        return started, held, idle({name: (proxies[name], cgroup_root(directories[name])) for name in proxies})


def report() -> dict[str, Any]:
    """Measure and print; returns the figures. Raises LabError when the lab can't be had."""
    if os.geteuid() != 0:
        raise LabError("the footprint's benchmark needs root, for the box")
    with labs((*_ENGINES, _MANY)) as directories:
        with_many = many("relay", directories.pop(_MANY))
        found = (*run(directories), [with_many])
    for rows in found:
        print(table(rows))
    return dict(
        zip(("start", "memory", "idle", "many"), ([asdict(row) for row in rows] for rows in found), strict=True)
    )


def beside(checkout: Path, offline: int, online: int, rounds: int) -> list[Idle]:
    """A row for each of the two in each round."""
    with ExitStack() as ends:
        directories = ends.enter_context(labs((_HERE, _BESIDE)))
        proxies = {
            name: NodeCriproxy(directory, ends.enter_context(backend(directory)).socket, "relay", checkout=of)
            for (name, directory), of in zip(directories.items(), (CHECKOUT, checkout), strict=True)
        }
        for name, proxy in proxies.items():
            proxy.start()
            ends.callback(proxy.stop)
            _start_pods(proxy, cgroup_root(directories[name]), offline, online, ends)
        return [row for _ in range(rounds) for row in _watch(proxies, offline, online)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--beside", type=Path, required=True, help="another checkout")
    parser.add_argument("--offline", type=int, default=10, help="offline pods (%(default)s)")
    parser.add_argument("--online", type=int, default=20, help="online pods (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of a minute each (%(default)s)")
    options = parser.parse_args()
    sys.stdout.write(table(beside(options.beside, options.offline, options.online, options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
