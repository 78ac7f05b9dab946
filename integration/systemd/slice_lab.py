"""Slices on this node: the driver under test, cgroups' files, and pods as a runtime makes them."""

import subprocess
import time
import uuid
from pathlib import Path

from criproxy.cgroup.detect import detect_any
from criproxy.cgroup.driver import CgroupDriver, PodLimits
from criproxy.cgroup.kernel_driver import processes_in
from criproxy.cgroup.naming import directory_of, parse_box
from criproxy.cgroup.systemd.units import SystemdUnits
from criproxy.cgroup.tree import Tree
from criproxy.model import UNLIMITED, Limits
from integration.lab.cgroups import version
from integration.lab.process import wait_until

BOX = "offline.slice"
V1 = version() == 1
LIMITS: Limits = {"cpu": 0.3, "memory": 200 << 20}
WAIT_S = 30


def new_driver() -> CgroupDriver:
    """As the daemon makes it."""
    return detect_any(Tree(), SystemdUnits(time.monotonic, time.sleep))


def systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=WAIT_S * 2, check=True)
    return done.stdout.strip()


def shown(unit: str, name: str) -> str:
    """A property of a unit, as systemd knows it."""
    return systemctl("show", unit, "--value", "-p", name)


def directory(path: str, controller: str = "memory") -> Path:
    return Path("/sys/fs/cgroup", controller if V1 else "", directory_of(path).lstrip("/"))


def text(path: str, file: str, controller: str = "memory") -> str:
    return (directory(path, controller) / file).read_text().strip()


def held(path: str) -> dict[str, str]:
    """All that bounds the box, in the kernel's words."""
    files: dict[str, tuple[str, ...]]
    if V1:
        files = {"cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.idle")}
        files["memory"] = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    else:
        names = ("cpu.max", "cpu.idle", "io.weight", "memory.high", "memory.max", "memory.swap.max")
        files = {"": names}
    return {name: text(path, name, controller) for controller, names in files.items() for name in names}


class Box:
    """The box, bounded by `LIMITS` on the driver under test; `tick` is what one round of the loop does to it."""

    def __init__(self) -> None:
        self.driver = new_driver()
        self.limits = LIMITS
        self.drift = 0
        self._runs: list[str] = []

    def tick(self) -> int:
        """How many files had drifted."""
        self.driver.ensure(BOX)
        drift = sum(change.drift for change in self.driver.write(BOX, self.limits))
        if self.limits["memory"] is not UNLIMITED:
            self.driver.memory.reclaim(BOX, int(self.limits["memory"]))
        self.drift += drift
        return drift

    def pod(self, memory_bytes: int = 0) -> str:
        """Make a pod's slice in the box; returns it."""
        name = f"offline-pod{uuid.uuid4().hex[:12]}.slice"
        self.driver.ensure_pod(name, PodLimits(memory_bytes=memory_bytes or None))
        return name

    def run(self, slice_: str, *command: str) -> str:
        """A container in a slice, as runc has them: a scope with all controllers. Returns the scope."""
        scope = f"lab-{uuid.uuid4().hex[:12]}.scope"
        options = ["--scope", "--quiet", f"--slice={slice_}", "-p", "Delegate=yes", f"--unit={scope}"]
        subprocess.Popen(["systemd-run", *options, *(command or ("sleep", "2147483647"))])
        wait_until(lambda: processes_in(self.driver.files, slice_), WAIT_S, f"{scope} to run")
        self._runs.append(scope)
        return scope

    def end(self, scope: str) -> None:
        """End a container, and wait until its cgroup has gone."""
        subprocess.run(["systemctl", "kill", "-s", "KILL", scope], check=False, capture_output=True)
        subprocess.run(["systemctl", "stop", scope], check=False, capture_output=True)
        self._runs.remove(scope)

    def close(self) -> None:
        for scope in list(self._runs):
            self.end(scope)
        for name in self.driver.pods(BOX):
            self.driver.remove_pod(parse_box(BOX).pod(name))
        systemctl("stop", BOX)
