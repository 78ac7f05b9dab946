"""Cgroups as kubelet makes them, with values of its choice: by files, or by systemd where that is the driver."""

import os
import subprocess

from integration.lab.cgroups import Tree, version
from integration.lab.naming import Driver, driver, spelled
from integration.lab.usage import Cgroup


def make(path: str, *, pids: int | None = None, shares: int | None = None, memory_bytes: int | None = None) -> str:
    """Make a cgroup with limits on processes and memory and with CPU shares (on v2 the weight for them).

    Returns `path`.
    """
    Tree(path).make()
    weight = shares if version() == 1 or shares is None else 1 + (shares - 2) * 9999 // 262142
    if driver() is Driver.SYSTEMD:
        names = {"TasksMax": pids, "CPUShares" if version() == 1 else "CPUWeight": weight, "MemoryMax": memory_bytes}
        values = [f"{name}={value}" for name, value in names.items() if value is not None]
        unit = os.path.basename(spelled(path))
        if values:
            subprocess.run(["systemctl", "set-property", "--runtime", unit, *values], check=True, timeout=60)
        return path
    if pids is not None:
        Cgroup(path).file("pids", "pids.max").write_text(str(pids))
    if weight is not None:
        Cgroup(path).file("cpu", "cpu.shares" if version() == 1 else "cpu.weight").write_text(str(weight))
    if memory_bytes is not None:
        name = "memory.limit_in_bytes" if version() == 1 else "memory.max"
        Cgroup(path).file("memory", name).write_text(str(memory_bytes))
    return path
