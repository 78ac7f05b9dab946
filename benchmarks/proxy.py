"""What each engine adds to a call, in time and CPU, and what it holds in memory; direct and proxied interleaved.

Needs root, for the box of the hooked call. criproxy runs in .venv-node, with what it needs on a node and no more.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks.table import table
from criproxy.proxy import cri_pb2 as cri
from integration.lab.clean import clean
from integration.lab.criproxy import CHECKOUT, Criproxy
from integration.lab.directory import cgroup_root, claimed, socket_path
from integration.lab.process import LabError, Process

NODE_PYTHON = CHECKOUT / ".venv-node" / "bin" / "python"

_RUNTIME = "/runtime.v1.RuntimeService/"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STARTS = 5
_ROUNDS = 10

ENGINES: Mapping[str, Mapping[str, object]] = {
    "grpc": {"engine": "grpc"},
    "relay": {"engine": "relay"},
    "blind": {"blind": True},
}
"""What a config's [proxy] says of each."""

Call = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and how often it is made per side in each of the rounds.

    `request` makes it for a node whose cgroups begin with a prefix. `hooked`: a blind pipe can't do this.
    """

    name: str
    method: str
    request: Callable[[str], bytes]
    calls: int
    hooked: bool = False


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians over the rounds of each round's p50, in microseconds; CPU of criproxy's process alone."""

    name: str
    engine: str
    direct_p50_us: float
    proxied_p50_us: float
    added_p50_us: float
    cpu_s_per_1000_calls: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """RSS in MiB, and seconds from exec to the first answered call."""

    engine: str
    rss_start_mib: float
    rss_after_1000_lists_of_200kb_mib: float
    rss_after_ten_lists_of_15mb_mib: float
    start_to_first_call_s: float


def run_request(prefix: str, name: str, *, offline: bool) -> bytes:
    """A RunPodSandboxRequest as kubelet sends it for a BestEffort pod, with `prefix` before its kubepods."""
    marks = [cri.StringEntry(key=b"colocation.criproxy.io/class", value=b"offline")] if offline else []
    parent = f"{prefix}/kubepods/besteffort/pod{name}".encode()
    metadata = cri.PodSandboxMetadata(name=name.encode(), uid=name.encode(), namespace=b"bench")
    config = cri.PodSandboxConfig(metadata=metadata, labels=marks, linux={"cgroup_parent": parent})
    return cri.RunPodSandboxRequest(config=config).SerializeToString()


CASES: Final = (
    Case("small call (Version)", "Version", lambda _: b"", 200),
    Case("200 KB list", "ListContainerStats", lambda _: b"", 50),
    Case(
        "RunPodSandbox, online (opened, unchanged)",
        "RunPodSandbox",
        lambda prefix: run_request(prefix, "online", offline=False),
        100,
        hooked=True,
    ),
    Case(
        "RunPodSandbox, offline (rewritten, box bounded)",
        "RunPodSandbox",
        lambda prefix: run_request(prefix, "offline", offline=True),
        100,
        hooked=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Side:
    """A way to the backend. `pid`: of the criproxy in it, 0: there is none. `prefix`: where its cgroups begin."""

    name: str
    channel: grpc.Channel
    pid: int
    prefix: str

    def p50_us(self, case: Case, times: int) -> float:
        call, request = self.channel.unary_unary(f"{_RUNTIME}{case.method}"), case.request(self.prefix)
        return _p50_us(call, request, times)


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
    return [
        Latency(
            name=case.name,
            engine=side.name,
            direct_p50_us=statistics.median(p50[direct.name]),
            proxied_p50_us=statistics.median(p50[side.name]),
            added_p50_us=statistics.median(p - d for d, p in zip(p50[direct.name], p50[side.name], strict=True)),
            cpu_s_per_1000_calls=cpu_s[side.name] / (_ROUNDS * case.calls) * 1000,
        )
        for side in proxied
    ]


def _p50_us(call: Call, request: bytes, times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call(request)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def cpu_seconds(pid: int) -> float:
    """User and system time of a process. Source: proc(5), /proc/PID/stat, fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Resident memory. Source: proc(5), /proc/PID/statm."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def start_to_first_call_s(proxy: Criproxy) -> float:
    """Median of some starts, each watched for the socket and then asked for the version."""

    def once() -> float:
        command: list[str | Path] = [NODE_PYTHON, "-m", "criproxy", "run", "--config", proxy.config_file]
        started = time.perf_counter()
        process = Process("criproxy", command, proxy.log, {"PYTHONPATH": str(CHECKOUT)})
        process.wait_until(lambda: _answers(proxy.socket), 30, "its first answer", poll_s=0.001)
        seconds = time.perf_counter() - started
        process.stop()
        return seconds

    return statistics.median(once() for _ in range(_STARTS))


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    with connect(socket) as channel:
        try:
            channel.unary_unary(f"{_RUNTIME}Version")(b"", timeout=1)
        except grpc.RpcError:
            return False
    return True


def connect(socket: Path) -> grpc.Channel:
    options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    return grpc.insecure_channel(f"unix:{socket}", options=options)


@contextmanager
def backend(directory: Path) -> Iterator[Path]:
    """The socket of a runtime that answers at once."""
    socket = socket_path(directory, "backend.sock")
    command = [sys.executable, "-m", "benchmarks.backend", str(socket)]
    process = Process("backend", command, directory / "backend.log", {})
    try:
        process.wait_until(socket.exists, 30, "its socket")
        yield socket
    finally:
        process.stop()


def on_node(directory: Path, runtime: Path, engine: str = "grpc") -> Criproxy:
    """A criproxy with what it needs on a node and no more; it was not started."""
    config = {"proxy": ENGINES[engine], "colocation": {"enabled": True}}
    return Criproxy(directory, runtime, config, python=NODE_PYTHON)


@contextmanager
def running(directory: Path) -> Iterator[tuple[Path, Criproxy]]:
    """The backend's socket, and a criproxy before it that was not started."""
    with backend(directory) as socket:
        yield socket, on_node(directory, socket)


def run(directories: Mapping[str, Path]) -> tuple[list[Latency], list[Footprint]]:
    """`directories`: a lab's for each engine."""
    with ExitStack() as ends:
        socket = ends.enter_context(backend(next(iter(directories.values()))))
        proxies = {name: on_node(directory, socket, name) for name, directory in directories.items()}
        starts_s = {name: start_to_first_call_s(proxy) for name, proxy in proxies.items()}
        sides, rss_start = [], {}
        for name, proxy in proxies.items():
            proxy.start()
            ends.callback(proxy.stop)
            rss_start[name] = rss_mib(proxy.pid)
            channel = ends.enter_context(connect(proxy.socket))
            sides.append(Side(name, channel, proxy.pid, cgroup_root(directories[name])))
        direct = Side("direct", ends.enter_context(connect(socket)), 0, "")
        latencies = []
        for case in CASES:
            print(f"measuring {case.name} …", file=sys.stderr)
            able = [side for side in sides if not (case.hooked and side.name == "blind")]
            latencies += measure(case, direct, able)
        print("measuring memory …", file=sys.stderr)
        return latencies, [_footprint(side, rss_start[side.name], starts_s[side.name]) for side in sides]


def _footprint(side: Side, rss_start_mib: float, start_s: float) -> Footprint:
    many, large = (side.channel.unary_unary(f"{_RUNTIME}List{kind}Stats") for kind in ("Container", "PodSandbox"))
    for _ in range(1000):
        many(b"")
    rss_many = rss_mib(side.pid)
    for _ in range(10):
        large(b"")
    return Footprint(side.name, rss_start_mib, rss_many, rss_mib(side.pid), start_s)


def report() -> dict[str, Any]:
    """Measure and print; returns the figures. Raises LabError when the lab can't be had."""
    if os.geteuid() != 0:
        raise LabError("the proxy's benchmark needs root, for the box of its hooked call")
    with ExitStack() as ends:
        directories = {}
        for name in ENGINES:
            directories[name] = ends.enter_context(claimed())
            ends.callback(clean, directories[name])
        latencies, footprints = run(directories)
    print(table(latencies))
    print(table(footprints))
    return {"latency": [asdict(one) for one in latencies], "footprint": [asdict(one) for one in footprints]}
