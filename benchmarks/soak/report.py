"""`./bench soak`: the load, the watch, the verdict and the picture."""

import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.node import NODE_PYTHON, rss_mib
from benchmarks.soak.jobs import JOBS
from benchmarks.soak.load import Load, Tally
from benchmarks.soak.plot import draw
from benchmarks.soak.watch import Sample, drift, open_files, open_sockets, watch
from benchmarks.table import table
from integration.lab.clean import clean
from integration.lab.criproxy import CHECKOUT, Config, Criproxy
from integration.lab.directory import cgroup_root, claimed, socket_path
from integration.lab.process import LabError, Process, wait_until

_SAMPLES: Final = 360
_SHOWN: Final = 20
_CLOSED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one run. RSS and files early and late are medians (see `watch.Drift`); before and after: without a client."""

    minutes: float
    calls: int
    failures: int
    calls_per_s: float
    cpu_percent: float
    rss_before_mib: float
    rss_early_mib: float
    rss_late_mib: float
    rss_max_mib: float
    files_before: int
    files_early: float
    files_late: float
    files_after: int
    flat: bool

    def line(self) -> str:
        return (
            f"{self.minutes:g} minutes, {self.calls:,} calls ({self.calls_per_s:.0f}/s, {self.cpu_percent:.1f} % of a "
            f"core), {self.failures} failures; RSS {self.rss_early_mib:.1f} MiB early, {self.rss_late_mib:.1f} late, "
            f"{self.rss_max_mib:.1f} at most; open files {self.files_early:g} early, {self.files_late:g} late, "
            f"{self.files_before} before and {self.files_after} after"
        )


def report(minutes: float, plot: Path | None) -> dict[str, Any]:
    """Run, print and draw into `plot`; returns the figures.

    Raises LabError when a call failed, or RSS or open files were not flat, or the lab can't be had.
    """
    if os.geteuid() != 0:
        raise LabError("the soak needs root, for the box of its hooked calls")
    with claimed() as directory, ExitStack() as ends:
        ends.callback(clean, directory)
        samples, tally, summary = _run(directory, minutes)
    print(table([summary]))
    print(summary.line())
    if plot is not None:
        draw(samples, f"criproxy, relay engine, mixed load: {summary.calls:,} calls", plot)
    for failure in tally.failures[:_SHOWN]:
        print(failure, file=sys.stderr)
    if tally.failures or not summary.flat:
        raise LabError(f"the soak found something: {summary.line()}; what failed is above")
    return {**asdict(summary), "by_job": dict(tally.calls), "samples": [asdict(sample) for sample in samples]}


def _run(directory: Path, minutes: float) -> tuple[list[Sample], Tally, Summary]:
    with ExitStack() as ends:
        proxy, pid = _start(directory, ends)
        rss_before, files_before, sockets_before = rss_mib(pid), open_files(pid), open_sockets(pid)
        with Load(proxy.socket, cgroup_root(directory), JOBS) as load:
            seconds = minutes * 60
            samples = watch(pid, lambda: load.tally.total, seconds, max(0.5, seconds / _SAMPLES))
        tally = load.tally
        try:
            wait_until(lambda: open_sockets(pid) <= sockets_before, _CLOSED_S, "all connections to be closed")
        except LabError as error:
            tally.failures.append(str(error))
        if load_errors := [event for event in proxy.events() if event.get("level") in ("error", "critical")]:
            tally.failures += [f"criproxy's log: {event}" for event in load_errors]
        change = drift(samples)
        summary = Summary(
            minutes=minutes,
            calls=tally.total,
            failures=len(tally.failures),
            calls_per_s=tally.total / seconds,
            cpu_percent=sum(sample.cpu_percent for sample in samples) / len(samples),
            rss_before_mib=rss_before,
            rss_early_mib=change.rss_early_mib,
            rss_late_mib=change.rss_late_mib,
            rss_max_mib=max(sample.rss_mib for sample in samples),
            files_before=files_before,
            files_early=change.files_early,
            files_late=change.files_late,
            files_after=open_files(pid),
            flat=change.flat,
        )
    return samples, tally, summary


def _start(directory: Path, ends: ExitStack) -> tuple[Criproxy, int]:
    """The runtime and, before it, a criproxy with what it needs on a node and no more."""
    runtime = socket_path(directory, "runtime.sock")
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.soak.runtime", runtime]
    log = directory / "runtime.log"
    process = Process("runtime", command, log, {"PYTHONPATH": str(CHECKOUT)})
    ends.callback(process.stop)
    process.wait_until(runtime.exists, 60, "its socket")
    config: Config = {"proxy": {"engine": "relay"}, "colocation": {"enabled": True}}
    proxy = Criproxy(directory, runtime, config, python=NODE_PYTHON)
    proxy.start()
    ends.callback(proxy.stop)
    return proxy, proxy.pid
