"""criproxy with one cgroup as its node, so that what else runs on the machine is nobody's online load.

`python -m benchmarks.scoped NODE --config F [--no-idle] [--period-us N]`; NODE is a cgroup that holds kubepods and the
box. With --no-idle the driver does as on a kernel without cpu.idle; --period-us is the period of CPU quotas.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from criproxy.cgroup import files, kernel_files
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.detect import detect
from criproxy.cgroup.kernel_driver import KernelDriver
from criproxy.cgroup.kernel_files import CPU_USAGE, KernelFile
from criproxy.cgroup.tree import Tree
from criproxy.config import Loaded, OwnFiles
from criproxy.daemon.daemon import Daemon
from criproxy.daemon.reload import FileWatch
from criproxy.model import Usage
from criproxy.observe import log
from criproxy.observe.log_writer import LogWriter
from integration.lab.criproxy import CHECKOUT, START_S, Criproxy
from integration.lab.process import Process


class WithoutIdle(Tree):
    """The kernel's files, but for cpu.idle."""

    def exists(self, path: str) -> bool:
        return not path.endswith("/cpu.idle") and super().exists(path)


class ScopedDriver:
    """A driver that takes `node` for the whole node in what it counts of CPU time; all else is the true driver's."""

    def __init__(self, driver: KernelDriver, node: str) -> None:
        self._driver = driver
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def node_usage(self) -> Usage:
        cpu = self._driver.usage(self._node)
        assert cpu is not None, f"{self._node} is gone"
        return Usage(cpu.cpu_usage_s, self._driver.node_usage().working_set_bytes)

    @property
    def files(self) -> "ScopedFiles":
        return ScopedFiles(self._driver.files, self._node)


class ScopedFiles:
    """Of the root, the CPU time is that of `node`, which v1 tells; on v2 kubepods and the box are added up anyway."""

    def __init__(self, files: FileAccess, node: str) -> None:
        self._files = files
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def file(self, row: KernelFile, path: str) -> str:
        return self._files.file(row, self._node if row is CPU_USAGE and not path else path)


class ScopedCriproxy(Criproxy):
    """A lab's criproxy, with the cgroup `node` as its node."""

    def run_on(self, node: str, *, idle: bool = True, period_us: int = files.CFS_PERIOD_US) -> Process:
        """Start it and return once it is ready; to be stopped by the caller. `idle` False: without cpu.idle."""
        command: list[str | Path] = [sys.executable, "-m", "benchmarks.scoped", node, "--config", self.config_file]
        command += [f"--period-us={period_us}", *([] if idle else ["--no-idle"])]
        process = Process("criproxy", command, self.log, {"PYTHONPATH": str(CHECKOUT)})
        process.wait_until(self.is_ready, START_S, "readiness")
        return process


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("node")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--no-idle", action="store_true")
    parser.add_argument("--period-us", type=int, default=files.CFS_PERIOD_US)
    options = parser.parse_args()
    for module in (files, kernel_files):
        vars(module)["CFS_PERIOD_US"] = options.period_us
    log_writer = log.take_stderr()
    watch = FileWatch(options.config)
    own = OwnFiles(watch.file)
    loaded = own.load()
    log.configure(loaded.config.observe.log_level)
    driver: Any = ScopedDriver(detect(WithoutIdle() if options.no_idle else Tree()), options.node)
    asyncio.run(_serve(watch, own, loaded, driver, log_writer))


async def _serve(watch: FileWatch, own: OwnFiles, loaded: Loaded, driver: Any, log_writer: LogWriter) -> None:
    await Daemon(watch, own, loaded, driver, log_writer, dry_run=False).serve()


if __name__ == "__main__":
    main()
