"""On which CPUs the box runs, and what the machine and pods of it have used of them."""

import contextlib
from collections.abc import Collection, Mapping

from msgspec import Struct

from criproxy.cgroup import files as texts
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import CgroupError, checked_box, checked_path
from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import TICKS_PER_S, if_there
from criproxy.model.cpulist import Cpus


class CpuUse(Struct, frozen=True):
    """CPU at one moment. `cpus`: those that the box runs on, but for its `isolated` ones.

    Counters: `idle_s` of each CPU that is online, `used_s` of each pod (path) that is there. `cores` and `nodes`: the
    machine's, each by its CPUs; none where the kernel does not say.
    """

    cpus: Cpus
    isolated: Cpus
    idle_s: Mapping[int, float]
    used_s: Mapping[str, float]
    cores: tuple[Cpus, ...] = ()
    nodes: tuple[Cpus, ...] = ()


def cpu_use(files: FileAccess, box: str, pods: Collection[str], topology: Topology, proc: str = "/proc") -> CpuUse:
    """What the box's CPUs and these pods of it (paths) do. Raises CgroupError."""
    used_s = {}
    for pod in pods:
        with if_there():
            used_s[pod] = used_s_of(files, checked_path(pod))
    cpus = files.read(rows.EFFECTIVE_CPUS, checked_box(box))
    isolated = cpus & topology.isolated()
    idle_s = texts.idle_cpu_seconds(files.tree.read_often(f"{proc}/stat"), TICKS_PER_S)
    cores: tuple[Cpus, ...] = ()
    nodes: tuple[Cpus, ...] = ()
    with contextlib.suppress(CgroupError):
        cores = topology.cores()
    with contextlib.suppress(CgroupError):
        nodes = topology.nodes()
    return CpuUse(cpus - isolated, isolated, idle_s, used_s, cores, nodes)


def used_s_of(files: FileAccess, path: str) -> float:
    """CPU seconds of the cgroup. Raises CgroupError."""
    usage = files.read(rows.CPU_USAGE, path)
    return float(usage) / 1e9 if files.version == 1 else float(usage["usage_usec"]) / 1e6
