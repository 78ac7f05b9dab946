"""Measures what the runtime does for offline pods outside the box, and says when that is too much.

A pod that prints costs CPU where no limit of the box holds: its shim passes the bytes on, and the runtime writes each
line to the log, with the time before it. The kernel counts the CPU time of each shim, and so of each pod, but of
the runtime only as a whole; the growth of the pods' logs shows whose share that is.
"""

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from criproxy.cgroup.naming import parse_placement
from criproxy.cgroup.processes import ProcessStat, read_stat
from criproxy.cgroup.strays import astray, cgroups_of
from criproxy.cgroup.tree import TICKS_PER_S
from criproxy.concurrency.worker import Worker
from criproxy.model import PodRef, Sandbox
from criproxy.model.shown import Counter, Gauge
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.runtime import Process, Running
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_RUNTIME_OVERLOAD, StopRequests
from criproxy.pods.words import megabytes

OVERLOAD_S: Final = 60.0
"""How long it must have been too much before it is reported: a burst of lines at a job's start or end is not."""

LOUD_BYTES_PER_S: Final = 1_000_000.0
"""Logs that grow by less do not explain a busy runtime."""

DEAREST_S_PER_BYTE: Final = 50e-9
"""What a byte of log costs at most: containerd 1.6 took 13 to 47 ns (measured). What they do not explain is others'."""


_LOUDEST: Final = 3
"""How many pods are shown."""


Watched = tuple[Running, Process]
"""A sandbox or container of the box, and its first process."""


class OverheadCounters(Struct, frozen=True):
    """What was counted at one moment.

    `runtime`: which process it is, and its CPU time; None: not known. `shims`: by process, the sandbox's id and the CPU
    time. `logs`: by container, the sandbox's id, which file it is, and its size.
    """

    runtime: tuple[int, float] | None = None
    shims: Mapping[tuple[int, int], tuple[str, float]] = {}
    logs: Mapping[str, tuple[str, int, int]] = {}


class PodLoad(Struct, frozen=True):
    """What is done outside the box for one pod."""

    sandbox: Sandbox
    shim_cores: float
    log_bytes_per_s: float

    @property
    def pod(self) -> PodRef:
        return self.sandbox.pod


class OutsideLoad(Struct, frozen=True):
    """What was done outside the box from one look to the next.

    `runtime_cores` is the runtime's own CPU, whatever it did; None: not known. `pods`: the loudest first.
    """

    runtime_cores: float | None = None
    pods: tuple[PodLoad, ...] = ()

    @property
    def shim_cores(self) -> float:
        return sum(pod.shim_cores for pod in self.pods)

    @property
    def log_bytes_per_s(self) -> float:
        return sum(pod.log_bytes_per_s for pod in self.pods)

    @property
    def cores(self) -> float:
        """Of the runtime and the shims of offline pods."""
        return (self.runtime_cores or 0.0) + self.shim_cores


def load_between(
    before: OverheadCounters, after: OverheadCounters, sandboxes: Mapping[str, Sandbox], seconds: float
) -> OutsideLoad:
    """What was done in these seconds. `sandboxes`: by id. What was not there before counts from the next look on."""
    runtime_cores = None
    if before.runtime and after.runtime and before.runtime[0] == after.runtime[0]:
        runtime_cores = (after.runtime[1] - before.runtime[1]) / seconds
    shim_s = dict.fromkeys(sandboxes, 0.0)
    for process, (sandbox_id, cpu_s) in after.shims.items():
        if sandbox_id in shim_s and process in before.shims:
            shim_s[sandbox_id] += cpu_s - before.shims[process][1]
    log_bytes = dict.fromkeys(sandboxes, 0)
    for container_id, (sandbox_id, file, size_bytes) in after.logs.items():
        if sandbox_id in log_bytes and container_id in before.logs:
            _, old_file, old_bytes = before.logs[container_id]
            same = file == old_file and size_bytes >= old_bytes  # or it was rotated
            log_bytes[sandbox_id] += size_bytes - old_bytes if same else size_bytes
    pods = [PodLoad(sandbox, shim_s[id] / seconds, log_bytes[id] / seconds) for id, sandbox in sandboxes.items()]
    pods.sort(key=lambda pod: (pod.log_bytes_per_s, pod.shim_cores), reverse=True)
    return OutsideLoad(runtime_cores, tuple(pods))


def to_blame(load: OutsideLoad, max_cores: float) -> PodLoad | None:
    """The pod for which most is done, when too much is done for offline pods; None: it is not.

    A runtime can be busy for others too: then no offline pod is to blame, unless their logs or shims say so.
    """
    if not load.pods or load.cores < max_cores:
        return None
    explained_cores = load.shim_cores + load.log_bytes_per_s * DEAREST_S_PER_BYTE
    if load.log_bytes_per_s >= LOUD_BYTES_PER_S and explained_cores >= max_cores:
        return load.pods[0]
    if load.shim_cores >= max_cores:
        return max(load.pods, key=lambda pod: pod.shim_cores)
    return None


def in_words(load: OutsideLoad, pod: PodLoad, max_cores: float) -> str:
    """Why it is too much."""
    return (
        f"the runtime and the shims of offline pods take {load.cores:.2f} cores outside the box, more than "
        f"colocation.runtime_max_cores ({max_cores:g}), while offline pods' logs grow by "
        f"{load.log_bytes_per_s / 1e6:.1f} MB/s; most of it is for {pod.pod} "
        f"({pod.log_bytes_per_s / 1e6:.1f} MB/s, shim {pod.shim_cores:.2f} cores)"
    )


class OverheadReader(Struct):
    """Reads the counters, on a thread: a log's disk may be slow to answer. Raises OSError."""

    proc: Path = Path("/proc")
    _shims: dict[str, tuple[int, int]] = {}
    """By the id of what they look after: a process outside the box."""

    def read(self, runtime_pid: int, watched: Collection[Watched]) -> OverheadCounters:
        """`runtime_pid` 0: not known."""
        runtime = self._stat(runtime_pid) if runtime_pid else None
        known, self._shims = self._shims, {}
        shims: dict[tuple[int, int], tuple[str, float]] = {}
        logs: dict[str, tuple[str, int, int]] = {}
        for one, process in watched:
            if shim := known.get(one.id) or self._find_shim(one, process.pid):
                self._count(one, shim, shims)
            if process.log and (file := _file(process.log)) is not None:
                logs[one.id] = (one.sandbox.id, file.st_ino, file.st_size)
        return OverheadCounters((runtime.started, runtime.cpu_s) if runtime else None, shims, logs)

    def _stat(self, pid: int) -> ProcessStat | None:
        return read_stat(self.proc, pid, TICKS_PER_S)

    def _count(self, one: Running, shim: tuple[int, int], shims: dict[tuple[int, int], tuple[str, float]]) -> None:
        if shim not in shims:  # containers of a pod have one in common
            now = self._stat(shim[0])
            if now is None or now.started != shim[1]:  # it has ended, and its number may be another's
                return
            shims[shim] = (one.sandbox.id, now.cpu_s)
        self._shims[one.id] = shim

    def _find_shim(self, one: Running, pid: int | None) -> tuple[int, int] | None:
        """The process that the runtime keeps beside this one (a shim, a conmon); None: there is none.

        It is the parent of the first process. In the box, it is bounded and does not count.
        """
        if not pid or one.sandbox.placement is None:
            return None
        box = parse_placement(one.sandbox.placement).box.path
        first = self._stat(pid)
        if first is None or first.parent <= 1 or not self._in_box(pid, box) or self._in_box(first.parent, box):
            return None
        shim = self._stat(first.parent)
        return None if shim is None else (first.parent, shim.started)

    def _in_box(self, pid: int, box: str) -> bool:
        cgroups = cgroups_of(self.proc, pid)
        return bool(cgroups) and not astray(cgroups, box)


def _file(path: str) -> os.stat_result | None:
    """None: there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


class PodOverhead(PodRef, frozen=True):
    """What is done outside the box for one pod: its shim's CPU, and what its logs grow by."""

    shim_cores: float
    log_bytes_per_s: float


class OverheadStatus(Struct, frozen=True):
    """What the runtime and the shims of offline pods do outside the box at present.

    `runtime_cores` is the runtime's own CPU, whatever it did; None: not known. `pods`: the loudest, the first one most.
    """

    runtime_cores: float | None = None
    shim_cores: float = 0.0
    log_bytes_per_s: float = 0.0
    pods: tuple[PodOverhead, ...] = ()


class OverheadWatch(Part, Struct):
    """`max_cores`: what runtime and shims may take while offline pods print. `load`: at the last look.

    `too_much`: why it is, "" when it is not.
    """

    NAME = "measuring what the runtime does for offline pods"
    EVERY_S = FIRST_S = 10.0
    GAUGES = (
        Gauge(
            "runtime_overloaded",
            "Whether the runtime works too much, outside the box, for offline pods",
            lambda part: bool(part.too_much),
        ),
    )
    COUNTERS = (
        Counter("runtime_cpu_seconds", "CPU time of the runtime's own process, whatever it did"),
        Counter("offline_shim_cpu_seconds", "CPU time of offline pods' shims, outside the box"),
        Counter("offline_log_bytes", "What the logs of offline pods have grown by"),
    )

    shared: PodsShared
    stops: StopRequests
    reader: OverheadReader
    worker: Worker
    max_cores: float = 0.0
    load: OutsideLoad = OutsideLoad()
    too_much: str = ""
    _last: tuple[float, OverheadCounters] | None = None
    _too_much_since_s: float | None = None

    @classmethod
    def made(cls, ports: Ports) -> "OverheadWatch":
        return cls(ports.shared, ports.stops, OverheadReader(), ports.workers["pods-logs"])

    def configure(self, now: NodeSettings) -> None:
        self.max_cores = now.config.colocation.runtime_max_cores

    async def look(self) -> None:
        processes, inventory = self.shared.processes, self.shared.inventory
        watched = tuple((one, processes[one.id]) for one in inventory.running if one.id in processes)
        runtime_pid = self.shared.runtime.pid
        after = await self.worker.run("measure the runtime", lambda: self.reader.read(runtime_pid, watched))
        now_s = self.shared.clock.boottime_s()
        last, self._last = self._last, (now_s, after)
        if last is None or now_s <= last[0]:
            return
        seconds = now_s - last[0]
        self.load = load = load_between(last[1], after, {one.sandbox.id: one.sandbox for one, _ in watched}, seconds)
        count = self.shared.counters.count
        count("runtime_cpu_seconds", by=(load.runtime_cores or 0.0) * seconds)
        count("offline_shim_cpu_seconds", by=load.shim_cores * seconds)
        count("offline_log_bytes", by=load.log_bytes_per_s * seconds)
        self._judge(load, last[0], now_s)

    def _judge(self, load: OutsideLoad, since_s: float, now_s: float) -> None:
        blamed = to_blame(load, self.max_cores)
        if blamed is None:
            if self.too_much:
                self.shared.log.info("runtime_no_longer_overloaded", cores=round(load.cores, 3))
            self.too_much, self._too_much_since_s = "", None
            return
        if self._too_much_since_s is None:
            self._too_much_since_s = since_s
        if self.too_much or now_s - self._too_much_since_s >= OVERLOAD_S:
            reason = in_words(load, blamed, self.max_cores)
            if not self.too_much:
                self.shared.log.warning(
                    "runtime_overloaded", pod=str(blamed.pod), pod_uid=blamed.pod.uid, reason=reason
                )
            self.too_much = reason
        lasts = now_s - self._too_much_since_s >= OVERLOAD_S
        if lasts and self.shared.holds.stops(ON_RUNTIME_OVERLOAD, blamed.pod):
            held = "it printed so much that the runtime was overloaded"
            self.stops.stop(blamed.sandbox, f"{reason} ({ON_RUNTIME_OVERLOAD})", ON_RUNTIME_OVERLOAD, held)
            self._too_much_since_s = now_s  # the next one, if it must be, only when this one's end has not sufficed

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.too_much:
            yield self.too_much

    def status(self) -> OverheadStatus:
        load = self.load
        loudest = [pod for pod in load.pods if pod.log_bytes_per_s or pod.shim_cores][:_LOUDEST]
        pods = [
            PodOverhead(**asdict(one.pod), shim_cores=one.shim_cores, log_bytes_per_s=one.log_bytes_per_s)
            for one in loudest
        ]
        return OverheadStatus(load.runtime_cores, load.shim_cores, load.log_bytes_per_s, tuple(pods))

    def section(self) -> Mapping[str, Any]:
        return {"overhead": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        now = self.status()
        logs = f"for offline pods: shims {now.shim_cores:.2f} cores, logs {megabytes(now.log_bytes_per_s)}"
        runtime = "not known" if now.runtime_cores is None else f"{now.runtime_cores:.2f} cores"
        pods = (f"{pod}: shim {pod.shim_cores:.2f} cores, logs {megabytes(pod.log_bytes_per_s)}" for pod in now.pods)
        yield "overhead", f"runtime {runtime}; {logs}", *pods
