"""What the kernel says of a machine's CPUs, in a directory."""

from collections.abc import Sequence
from pathlib import Path

from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import Tree
from criproxy.model.cpulist import Cpus, format_cpus


def machine(directory: Path, cores: Sequence[Cpus], nodes: Sequence[Cpus] = ()) -> Topology:
    """Its cores and NUMA nodes, each by its CPUs that are online. Without nodes, the kernel knows nothing of NUMA."""
    online = frozenset().union(*cores)
    files = {"online": online, "root": online}
    files |= {f"cpu{cpu}/topology/thread_siblings_list": core for core in cores for cpu in core}
    if nodes:
        files |= {f"node{number}/cpulist": node for number, node in enumerate(nodes)}
        files["has_cpu"] = frozenset(range(len(nodes)))
    for name, numbers in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"{format_cpus(numbers)}\n")
    return Topology(Tree(), str(directory / "root"), str(directory), str(directory))
