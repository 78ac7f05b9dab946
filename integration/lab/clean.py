"""Leave nothing behind: end and remove all of a lab, also of one whose owner has died."""

from pathlib import Path

from integration.lab import containerd, control_plane, criproxy, directory, kubelet
from integration.lab.cgroups import Tree
from integration.lab.process import all_pids, argv_of


def clean(lab: Path) -> None:
    """End every process of the lab in this directory, and remove its mounts, cgroups, sockets and the directory.

    Needs nothing but the directory; one that is not there is clean. Raises LabError or OSError on what resists.
    """
    if not lab.exists():
        return
    criproxy.end(lab)
    kubelet.end(lab)
    control_plane.end(lab)
    containerd.end(lab)
    Tree(directory.cgroup_root(lab)).kill()
    directory.remove(lab)


def clean_abandoned(base: Path = directory.BASE) -> list[Path]:
    """Clean every lab whose owner has died; returns their directories."""
    left = directory.abandoned(base)
    for lab in left:
        clean(lab)
    return left


def leftovers(lab: Path) -> list[str]:
    """What is there of a lab, a line for each process, mount, cgroup and path outside its directory."""
    tree = Tree(directory.cgroup_root(lab))
    path, name = str(lab.absolute()), directory.lab_name(lab)
    argvs = {pid: " ".join(argv_of(pid)) for pid in all_pids()}
    return [
        *(f"process {pid}: {argv}" for pid, argv in argvs.items() if path in argv or name in argv),
        *(f"process {pid} in cgroup {tree.path}" for pid in tree.pids()),
        *(f"mount {point}" for point in directory.mounts_below(lab)),
        *(f"cgroup {cgroup}" for cgroup in tree.directories()),
        *(f"log {log}" for logs in kubelet.LOG_DIRECTORIES for log in logs.glob(f"*{name}*")),
    ]
