"""What the proxy adds to a call, in time and CPU, and what it holds in memory; direct and proxied interleaved.

Needs root, for the box of the hooked call. criproxy runs in .venv-node, with what it needs on a node and no more.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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

Call = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and how often it is made per side in each of the rounds."""

    name: str
    method: str
    request: bytes
    calls: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians over the rounds of each round's p50, in microseconds; CPU of criproxy's process alone."""

    name: str
    direct_p50_us: float
    proxied_p50_us: float
    added_p50_us: float
    cpu_s_per_1000_calls: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """RSS in MiB, and seconds from exec to the first answered call."""

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


def cases(prefix: str) -> tuple[Case, ...]:
    online, offline = (run_request(prefix, name, offline=name == "offline") for name in ("online", "offline"))
    return (
        Case("small call (Version)", "Version", b"", 200),
        Case("200 KB list", "ListContainerStats", b"", 50),
        Case("RunPodSandbox, online (opened, unchanged)", "RunPodSandbox", online, 100),
        Case("RunPodSandbox, offline (rewritten, box bounded)", "RunPodSandbox", offline, 100),
    )


def measure(case: Case, direct: Call, proxied: Call, pid: int) -> Latency:
    """Rounds of direct and proxied calls in turn, after a warm-up of both."""
    sides = (direct, proxied)
    for side in sides:
        _p50_us(side, case, 20)
    rounds: list[tuple[float, float]] = []
    cpu_s = 0.0
    for number in range(_ROUNDS):
        p50 = [0.0, 0.0]
        for index in (0, 1) if number % 2 else (1, 0):
            before_s = cpu_seconds(pid)
            p50[index] = _p50_us(sides[index], case, case.calls)
            cpu_s += (cpu_seconds(pid) - before_s) if index == 1 else 0.0
        rounds.append((p50[0], p50[1]))
    return Latency(
        name=case.name,
        direct_p50_us=statistics.median(d for d, _ in rounds),
        proxied_p50_us=statistics.median(p for _, p in rounds),
        added_p50_us=statistics.median(p - d for d, p in rounds),
        cpu_s_per_1000_calls=cpu_s / (_ROUNDS * case.calls) * 1000,
    )


def _p50_us(call: Call, case: Case, times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call(case.request)
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
def running(directory: Path) -> Iterator[tuple[Path, Criproxy]]:
    """The backend's socket, and a criproxy before it that was not started."""
    socket = socket_path(directory, "backend.sock")
    command = [sys.executable, "-m", "benchmarks.backend", str(socket)]
    backend = Process("backend", command, directory / "backend.log", {})
    try:
        backend.wait_until(socket.exists, 30, "its socket")
        yield socket, Criproxy(directory, socket, {"colocation": {"enabled": True}}, python=NODE_PYTHON)
    finally:
        backend.stop()


def run(directory: Path) -> tuple[list[Latency], Footprint]:
    with running(directory) as (socket, proxy):
        start_s = start_to_first_call_s(proxy)
        proxy.start()
        try:
            rss_start = rss_mib(proxy.pid)
            with connect(socket) as direct, connect(proxy.socket) as proxied:
                latencies = []
                for case in cases(cgroup_root(directory)):
                    print(f"measuring {case.name} …", file=sys.stderr)
                    method = f"{_RUNTIME}{case.method}"
                    calls = direct.unary_unary(method), proxied.unary_unary(method)
                    latencies.append(measure(case, *calls, proxy.pid))
                print("measuring memory …", file=sys.stderr)
                many, large = (
                    proxied.unary_unary(f"{_RUNTIME}List{kind}Stats") for kind in ("Container", "PodSandbox")
                )
                for _ in range(1000):
                    many(b"")
                rss_many = rss_mib(proxy.pid)
                for _ in range(10):
                    large(b"")
                footprint = Footprint(rss_start, rss_many, rss_mib(proxy.pid), start_s)
        finally:
            proxy.stop()
    return latencies, footprint


def report() -> dict[str, Any]:
    """Measure and print; returns the figures. Raises LabError when the lab can't be had."""
    if os.geteuid() != 0:
        raise LabError("the proxy's benchmark needs root, for the box of its hooked call")
    with claimed() as directory:
        try:
            latencies, footprint = run(directory)
        finally:
            clean(directory)
    print(table(latencies))
    print(table([footprint]))
    return {"latency": [asdict(latency) for latency in latencies], "footprint": asdict(footprint)}
