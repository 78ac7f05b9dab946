"""One phase: an arm, a server and a work for some seconds, and what was measured. And the node that it happens on."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.effect.arms import Arm, Koordlet, allow_realtime, set_idle
from benchmarks.effect.claims import quantile
from benchmarks.effect.offline import ASKED, PACKAGES, Work, rate_of
from benchmarks.effect.offline import prepare as prepare_offline
from benchmarks.effect.online import DATA, HOST, Load, Server
from benchmarks.effect.past import write_past
from benchmarks.node import cpu_seconds
from benchmarks.scoped import ScopedCriproxy
from benchmarks.stage import CLASS, beside
from criproxy.cgroup.detect import detect
from criproxy.cgroup.tree import Tree as Kernel
from criproxy.control.capacity import CapacityReader
from criproxy.model import CPU, MEMORY
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.directory import cgroup_root
from integration.lab.meter import Meter, join
from integration.lab.process import LabError, wait_until

SETTLE_S = 8.0
"""From the arm's beginning, when all of its pods run, to the first request; alone, too, after what was before."""
LATE_S = 0.00025
LATE_RATIO = 0.1
"""A generator that sends a hundredth of its requests later than this, and than so much of the p99, did not keep its
schedule: the phase is void. A virtual CPU takes a tenth of a millisecond and more to wake up."""
STOLEN_RATIO = 0.02
"""When a hypervisor takes more of the CPU time that was wanted, it makes the tail: void, too."""
_MOST_SHARES = 262144
_SHARES_OF_A_CPU = 1024
"""kubepods has so many for each CPU of the node. Source: kubelet, cm.MilliCPUToShares."""
_SAMPLE_S = 1.0
_BY_EVIDENCE = ("open, as nothing tells of harm", "squeezed to ")
"""In the reasons of `criproxy.control.evidence`."""
_RISING_S = 10
"""So often it is looked whether the limit still rises, each two seconds."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a phase measured. Cores are means; those idle, stolen by a hypervisor or used by others, the machine's.

    `agent_cores` are criproxy's own. `others_cores` and `late_s` None: not known; `work_per_s` None: there is no work.
    `bound`: what criproxy said of the box's CPU limit at the end; "": it was not there. `void` says why the phase does
    not count, "" when it does.
    """

    latencies_s: "array[float]"
    settled_s: float
    online_cpu_s_per_request: float
    online_wait_s_per_request: float
    online_cores: float
    offline_cores: float
    agent_cores: float
    generator_cores: float
    idle_cores: float
    stolen_cores: float
    others_cores: float | None
    work_per_s: dict[str, float] | None
    late_s: float | None
    unanswered: int
    bound: str
    void: str


@dataclass(slots=True)
class Past:
    """What the node uses under a load alone, by resource (cores, bytes of the machine's memory), a sample a second; and
    the checkpoint that each arm left beside it, from which the next of the same arm goes on.
    """

    used: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learned: dict[str, bytes] = field(default_factory=dict)


class Node:
    """A containerd, kubepods as kubelet makes it, and one server in an online pod. One phase at a time."""

    def __init__(self, directory: Path, server: Server, runtime: Containerd) -> None:
        self._directory = directory
        self._server = server
        self._runtime = runtime
        self._root = cgroup_root(directory)
        self._data = directory / "offline"
        self._online = f"{self._root}/kubepods/burstable/podonline"
        self.past = Past()
        """Of the load that phases are beside."""
        self.cores = len(os.sched_getaffinity(0))

    def record(self, segments: Sequence[tuple[float, float]]) -> Past:
        """Run this load alone: what the node uses meanwhile, once a second, is what criproxy knows of it (`past`)."""
        meter, machine = Meter({"node": self._root}), detect(Kernel())
        cores: list[float] = []
        memory_bytes: list[float] = []
        ended = threading.Event()

        def sample() -> None:
            before = meter.read()
            while not ended.wait(_SAMPLE_S):
                now = meter.read()
                cores.append(now.cores_since(before, "node"))
                memory_bytes.append(machine.node_usage().working_set_bytes)
                before = now

        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            self._server.load(segments, seed=0)
        finally:
            ended.set()
            sampling.join()
        return Past({CPU: cores, MEMORY: memory_bytes})

    def run(
        self, arm: Arm, work: Work, segments: Sequence[tuple[float, float]], seed: int, settle_s: float = SETTLE_S
    ) -> Figures:
        """One phase, with the load in these segments (requests per s, s); the same seed makes the same arrivals."""
        with self._beside(arm, work) as agent:
            began_s = time.monotonic()
            if agent is not None:
                agent.wait_for_the_limit(by_evidence=arm.by_evidence)
            time.sleep(max(0.0, began_s + settle_s - time.monotonic()))
            settled_s = time.monotonic() - began_s
            meter = Meter({"online": self._online, **self._offline_paths(arm, work)})
            pids = Tree(self._online).pids()
            before, wait_s, machine, done = meter.read(), _wait_seconds(pids), _machine(), work.done(self._data)
            own_s = agent.cpu_s if agent is not None else 0.0
            load = self._server.load(segments, seed) if arm.loaded else _no_load(segments)
            now, waited_s, until = meter.read(), _wait_seconds(pids) - wait_s, _machine()
            own_s = max(0.0, agent.cpu_s - own_s) if agent is not None else 0.0
            seconds = now.at_s - before.at_s
            rate = rate_of(done, work.done(self._data), seconds) if arm.place != "nowhere" else None
            bound = "" if agent is None else agent.bound()[1]
        count = max(1, len(load.latencies_s))
        if self._server.forks:  # who answered has ended by now, and took its count along
            waited_s = 0.0
        online = now.cpu_s["online"] - before.cpu_s["online"]
        offline = sum(now.cores_since(before, name) for name in self._offline_paths(arm, work))
        idle, stolen = (until.idle_s - machine.idle_s) / seconds, (until.stolen_s - machine.stolen_s) / seconds
        known = idle + stolen + offline + (online + own_s + load.generator_s) / seconds
        return Figures(
            latencies_s=load.latencies_s,
            settled_s=settled_s,
            online_cpu_s_per_request=online / count,
            online_wait_s_per_request=max(0.0, waited_s) / count,
            online_cores=online / seconds,
            offline_cores=offline,
            agent_cores=own_s / seconds,
            generator_cores=load.generator_s / seconds,
            idle_cores=idle,
            stolen_cores=stolen,
            others_cores=None if arm.awake else max(0.0, self.cores - known),
            work_per_s=rate,
            late_s=load.late_s,
            unanswered=load.unanswered,
            bound=bound,
            void=why_void(load, stolen / max(0.01, self.cores - idle)),
        )

    # --- the node ---------------------------------------------------------------------------------------------------

    def _offline_paths(self, arm: Arm, work: Work) -> dict[str, str]:
        if arm.place == "nowhere":
            return {}
        return {"offline": f"{self._root}/offline"} if arm.place == "box" else self._parents(arm, work)

    def _parents(self, arm: Arm, work: Work) -> dict[str, str]:
        """Where kubelet places the pods, by their uids."""
        parent = f"{self._root}/kubepods/{'burstable' if arm.place == 'burstable' else 'besteffort'}"
        return {f"offline{n}": f"{parent}/podoffline{n}" for n in range(len(work.commands(pinned=False)))}

    @contextmanager
    def _beside(self, arm: Arm, work: Work) -> "Iterator[_Agent | None]":
        """All of the arm but its load; yields criproxy, where it has one."""
        for old in self._data.glob("done.*"):
            old.unlink()
        if arm.place == "nowhere":
            with _kept_awake() if arm.awake else nullcontext():
                yield None
            return
        parents = self._parents(arm, work)
        with ExitStack() as ends:
            socket, agent = self._runtime.socket, None
            if arm.place == "box":
                agent = ends.enter_context(self._criproxy(arm))
                socket = agent.proxy.socket
            for parent in parents.values():
                kubelet_cgroup.make(parent, shares=2 if arm.place == "besteffort" else 1024)
                if arm.idle_by_hand:
                    set_idle(parent, idle=True)
                    ends.callback(set_idle, parent, idle=False)
            if arm.koordlet:
                pods = f"{self._root}/kubepods"
                ends.enter_context(Koordlet(pods, f"{pods}/besteffort", self.cores))
            client = ends.enter_context(CriClient(socket))
            wait_until(client.is_ready, 60, "the client's connection")
            labels = {CLASS: "offline"} if arm.place == "box" else {}
            commands = work.commands(pinned=arm.pinned_by_hand)
            for (uid, parent), command in zip(parents.items(), commands, strict=True):
                pod = client.run_pod(uid, uid=uid, labels=labels, annotations=ASKED, cgroup_parent=parent)
                ends.callback(client.stop_and_remove, pod)
                client.run_container(pod, "main", command, mounts={**HOST, DATA: self._data})
            yield agent

    @contextmanager
    def _criproxy(self, arm: Arm) -> "Iterator[_Agent]":
        if not arm.idle:
            set_idle(f"{self._root}/offline", idle=False)
        config = {**arm.config, "colocation": {"enabled": True}}
        checkpoint = self._directory / "criproxy.checkpoint"
        if arm.name in self.past.learned:
            checkpoint.write_bytes(self.past.learned[arm.name])
        else:
            write_past(checkpoint, self.past.used, CapacityReader(None).read())
        proxy = ScopedCriproxy(self._directory, self._runtime.socket, config)
        process = proxy.run_on(self._root, idle=arm.idle, period_us=arm.period_us)
        try:
            join(f"{self._root}/agent", process.pid)  # as a node's agents are, not as the load
            yield _Agent(proxy, process.pid)
        finally:
            process.stop()
            self.past.learned[arm.name] = checkpoint.read_bytes()


@dataclass(frozen=True, slots=True)
class _Agent:
    """criproxy beside a phase."""

    proxy: ScopedCriproxy
    pid: int

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def bound(self) -> tuple[float, str]:
        """The box's CPU limit in cores (-1: none is decided), and why it is that."""
        decided = self.proxy.status()["box"]["cpu"]
        return (decided["limit_cores"], decided["reason"]) if decided else (-1.0, "nothing is decided yet")

    def wait_for_the_limit(self, *, by_evidence: bool) -> None:
        """Until the box's CPU limit has stopped rising: it rises by steps, and a node's box is there for long.

        `by_evidence`: and until it is what evidence gives. After some time it is what it is.
        """
        seen_cores = -1.0
        for _ in range(_RISING_S):
            limit_cores, reason = self.bound()
            if 0.0 <= limit_cores <= seen_cores and (not by_evidence or is_by_evidence(reason)):
                return
            seen_cores = limit_cores
            time.sleep(2.0)


def _no_load(segments: Sequence[tuple[float, float]]) -> Load:
    time.sleep(sum(seconds for _, seconds in segments))
    return Load(array("f"), None, 0.0)


@contextmanager
def _kept_awake() -> Iterator[None]:
    """A loop on each CPU, outside of all cgroups and behind all of them (SCHED_IDLE)."""
    command = ("setpriv", "--pdeathsig", "KILL", "--", "chrt", "--idle", "0", "taskset", "-c")
    cpus = os.sched_getaffinity(0)
    loops = [subprocess.Popen((*command, str(cpu), "sh", "-c", "while :; do :; done")) for cpu in cpus]
    try:
        for loop in loops:
            join("/", loop.pid)
        yield
        if any(loop.poll() is not None for loop in loops):
            raise LabError("a loop that was to keep a CPU awake has ended")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def node(directory: Path, server: Server) -> Iterator[Node]:
    """A node with this server in an online pod, and its generator as far as can be as if on another machine.

    It runs before all others, or requests would wait to be sent, and answers to be read, while the kernel gives
    offline its turn of up to a tick, 4 ms. And it has the first CPU, and the server the others, or each time that it
    interrupted the server the kernel would choose anew who is next, and might choose offline. Offline has all CPUs.
    """
    packages = [name for name in (*server.packages, *PACKAGES) if not _installed(name)]
    if packages:
        install = ["apt-get", "install", "-q", "-y", "--no-install-recommends"]
        none_started = {**os.environ, "RUNLEVEL": "1"}  # Source: invoke-rc.d(8)
        subprocess.run([*install, *packages], check=True, stdout=sys.stderr, env=none_started)
    root, data = cgroup_root(directory), directory / "online"
    prepare_offline(directory / "offline")
    server.prepare(data)
    with ExitStack() as ends:
        runtime = Containerd(directory)
        runtime.start()
        ends.callback(runtime.stop)
        online = f"{root}/kubepods/burstable/podonline"
        for path in (online, f"{root}/kubepods/besteffort", f"{root}/generator", f"{root}/agent"):
            Tree(path).make()
        kubelet_cgroup.make(f"{root}/kubepods", shares=_SHARES_OF_A_CPU * len(os.sched_getaffinity(0)))
        kubelet_cgroup.make(f"{root}/kubepods/besteffort", shares=2)
        kubelet_cgroup.make(root, shares=_MOST_SHARES)
        allow_realtime(f"{root}/generator")
        client = ends.enter_context(CriClient(runtime.socket))
        wait_until(client.is_ready, 60, "containerd")
        pod = client.run_pod("online", uid="online", cgroup_parent=online)
        ends.callback(client.stop_and_remove, pod)
        client.run_container(pod, "main", server.command, mounts={**HOST, Path("/etc"): Path("/etc"), DATA: data})
        server.connect(data)
        ends.callback(server.close)
        with beside(f"{root}/generator", server.pids()):  # this process, too: pgbench is its child
            for pid in server.pids():
                os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
            first, *others = sorted(os.sched_getaffinity(0))
            _keep_to(server.pids(), {first})
            _keep_to(Tree(online).pids(), others or {first})
            yield Node(directory, server, runtime)


def _keep_to(pids: Iterable[int], cpus: Iterable[int]) -> None:
    """All threads of these processes, and those to come."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)


def is_by_evidence(reason: str) -> bool:
    """Whether a decision on CPU was made by evidence, from its reason."""
    return any(words in reason for words in _BY_EVIDENCE)


def _installed(package: str) -> bool:
    return subprocess.run(["dpkg", "-s", package], check=False, capture_output=True).returncode == 0


def why_void(load: Load, stolen_ratio: float) -> str:
    """Why a phase does not count, when its generator was late or other machines took the CPU; "": it counts."""
    if stolen_ratio > STOLEN_RATIO:
        return f"other virtual machines took {100 * stolen_ratio:.1f} % of the CPU that was wanted"
    p99_s = quantile(sorted(load.latencies_s), 0.99) if load.latencies_s else 0.0
    if load.late_s is not None and load.late_s > max(LATE_S, LATE_RATIO * p99_s):
        return f"the generator was {1000 * load.late_s:.2f} ms late, for a p99 of {1000 * p99_s:.2f}"
    return ""


@dataclass(frozen=True, slots=True)
class _Machine:
    """CPU time of all CPUs since the machine's start, in s: what nobody used, and what other machines took."""

    idle_s: float
    stolen_s: float


def _machine() -> _Machine:
    """Source: proc(5)."""
    fields = [
        int(field) / os.sysconf("SC_CLK_TCK") for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ]
    return _Machine(fields[3] + fields[4], fields[7])


def _wait_seconds(pids: set[int]) -> float:
    """How long the threads of these processes were ready and had no CPU. Source: kernel, sched-stats, schedstat."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, IndexError):
                total += int(task.read_text().split()[1])
    return total / 1e9
