"""A node for benchmarks of the box: containerd, criproxy, a busy offline pod, and online load that obeys."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.scoped import ScopedCriproxy
from integration.lab import kubelet_cgroup
from integration.lab.cgroups import Tree, hierarchies, of_process, version
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd
from integration.lab.criproxy import Config
from integration.lab.directory import cgroup_root
from integration.lab.meter import Meter
from integration.lab.process import wait_until
from integration.lab.usage import busy_loops

CLASS = "colocation.criproxy.io/class"
PERIOD_US = 100_000
_SHARES, _MOST_SHARES = 1024, 262144
"""Of a cgroup: the kernel's default, and the most."""


@contextmanager
def beside(path: str, pids: Collection[int]) -> Iterator[None]:
    """This process and others in a cgroup for CPU time, with a share like kubelet's pods, as on a node."""
    hierarchy = next(
        one for one in hierarchies() if {"cpu", ""}.intersection(one.controllers) and one.version == version()
    )
    controller = "cpu" if version() == 1 else ""
    own = os.getpid()
    before = of_process(own)[controller]
    for pid in (own, *pids):
        (hierarchy.directory(path) / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (hierarchy.directory(before) / "cgroup.procs").write_text(str(own))


class Helper:
    """A module that runs as a process of its own: lines go in by `tell`, and come out of `lines`."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.lines.get(timeout=60) == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line.strip())


@dataclass(frozen=True)
class Quota:
    """A quota that was seen in the kernel at a moment (CLOCK_MONOTONIC)."""

    at_s: float
    cores: float


@dataclass(frozen=True)
class Stage:
    """`meter` counts "node", "online" and "box"; the node is the lab's own cgroup."""

    proxy: ScopedCriproxy
    pid: int
    meter: Meter
    online: Helper
    watcher: Helper
    cores: int
    seen: list[Quota]
    """Every quota so far, as of the last `quotas`."""

    def quotas(self) -> list[Quota]:
        """The quotas seen since the last call."""
        found = []
        while not self.watcher.lines.empty():
            at_s, quota, *_ = self.watcher.lines.get().split()
            found.append(Quota(float(at_s), self.cores if quota in ("-1", "max") else int(quota) / PERIOD_US))
        self.seen.extend(found)
        return found

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Meanwhile the node's cgroup goes before what else runs on the machine, so that a step gets all CPUs."""
        kubelet_cgroup.make(self.meter.paths["node"], shares=_MOST_SHARES)
        try:
            yield
        finally:
            kubelet_cgroup.make(self.meter.paths["node"], shares=_SHARES)

    def burn(self, start_s: float, seconds: float, busy_s: float = 1.0, period_s: float = 1.0) -> None:
        """Load on every CPU from a moment on: busy for so much of each period."""
        self.online.tell(start_s, start_s + seconds, busy_s, period_s)


@contextmanager
def stage(directory: Path, config: Config) -> Iterator[Stage]:
    """Up and running with `config`, the offline pod in the box."""
    root, cores = cgroup_root(directory), len(os.sched_getaffinity(0))
    with ExitStack() as on_exit:
        runtime = Containerd(directory)
        runtime.start()
        online = f"{root}/kubepods/burstable/podonline"
        Tree(online).make()
        proxy = ScopedCriproxy(directory, runtime.socket, {**config, "colocation": {"enabled": True}})
        process = proxy.run_on(root)
        on_exit.callback(process.stop)
        with CriClient(proxy.socket) as client:
            wait_until(client.is_ready, 60, "the client's connection")
            parent = f"{root}/kubepods/besteffort/podoffline"
            Tree(parent).make()
            pod = client.run_pod("offline", uid="offline", labels={CLASS: "offline"}, cgroup_parent=parent)
            client.run_container(pod, "main", busy_loops(cores))
        box = f"{root}/offline"
        controller, name = ("cpu", "cpu.cfs_quota_us") if version() == 1 else ("", "cpu.max")
        quota = next(one.directory(box) / name for one in hierarchies() if controller in one.controllers)
        Tree(f"{root}/system").make()
        on_exit.enter_context(beside(f"{root}/system", [process.pid]))
        yield Stage(
            proxy=proxy,
            pid=process.pid,
            meter=Meter({"node": root, "online": online, "box": box}),
            online=on_exit.enter_context(Helper("benchmarks.burner", "load", online)),
            watcher=on_exit.enter_context(Helper("benchmarks.burner", "watch", str(quota))),
            cores=cores,
            seen=[],
        )


def cpu(on: Stage) -> Any:
    """What criproxy says of CPU; waits for the first tick."""
    return wait_until(lambda: on.proxy.status()["box"]["cpu"], 60, "the first tick", on.proxy.log)


def settle(on: Stage, at_least_cores: float, timeout_s: float = 120.0) -> float:
    """Wait until the quota has risen to this; returns the quota."""
    deadline_s = time.monotonic() + timeout_s
    while on.quotas() or not on.seen or on.seen[-1].cores < at_least_cores:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the quota has not risen to {at_least_cores} cores: {on.seen[-3:]}; {cpu(on)}")
        time.sleep(0.02)
    return on.seen[-1].cores
