"""On which CPUs the box runs, and what the machine and pods of it have used of them."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from criproxy.cgroup import files as texts
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import checked_box, checked_path
from criproxy.cgroup.topology import SYS_CPU, isolated_cpus
from criproxy.cgroup.tree import TICKS_PER_S, if_there
from criproxy.model.cpulist import Cpus


class CpuUse(Struct, frozen=True):
    """CPU at one moment. `cpus`: those that the box runs on, but for its `isolated` ones.

    Counters: `idle_s` of each CPU that is online, `used_s` of each pod (path) that is there.
    """

    cpus: Cpus
    isolated: Cpus
    idle_s: Mapping[int, float]
    used_s: Mapping[str, float]


def cpu_use(files: FileAccess, box: str, pods: Collection[str], proc: str = "/proc", sys_cpu: str = SYS_CPU) -> CpuUse:
    """What the box's CPUs and these pods of it (paths) do. Raises CgroupError."""
    used_s = {}
    for pod in pods:
        with if_there():
            used_s[pod] = _used_s(files, checked_path(pod))
    cpus = files.read(rows.EFFECTIVE_CPUS, checked_box(box))
    isolated = cpus & isolated_cpus(files.tree, sys_cpu)
    idle_s = texts.idle_cpu_seconds(files.tree.read_often(f"{proc}/stat"), TICKS_PER_S)
    return CpuUse(cpus - isolated, isolated, idle_s, used_s)


def _used_s(files: FileAccess, path: str) -> float:
    usage = files.read(rows.CPU_USAGE, path)
    return float(usage) / 1e9 if files.version == 1 else float(usage["usage_usec"]) / 1e6
