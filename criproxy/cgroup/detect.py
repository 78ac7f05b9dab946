"""Finds the cgroup hierarchy of this machine and gives its driver."""

from criproxy.cgroup import files
from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.kernel_driver import KernelDriver
from criproxy.cgroup.signals import SignalReader
from criproxy.cgroup.systemd.anchor import Anchors
from criproxy.cgroup.systemd.driver import SystemdDriver
from criproxy.cgroup.systemd.units import SystemdUnits
from criproxy.cgroup.tree import Tree, if_there
from criproxy.cgroup.v1 import V1Hierarchies
from criproxy.cgroup.v2 import V2Hierarchy
from criproxy.concurrency.clock import Clock
from criproxy.model import rootless

_NEEDED_V1 = ("cpu", "cpuacct", "memory")
_NEEDED_V2 = ("cpu", "memory")
_CAP_DAC_OVERRIDE = 1
"""The bit of the right to write files of others. Source: include/uapi/linux/capability.h."""


def detect_any(tree: Tree, units: SystemdUnits, proc: str = "/proc") -> CgroupDriver:
    """The driver for what is mounted and for paths of either shape. The first slice connects to systemd.

    Raises as `detect`, and when this process has no right to the machine's cgroups.
    """
    _check_rights(tree, proc)
    version = _version(tree, proc)
    anchors = Anchors(version.mount, tree, units) if isinstance(version, V2Hierarchy) else None
    return SystemdDriver(KernelDriver(version, tree, proc), units, anchors)


def detect(tree: Tree, proc: str = "/proc") -> KernelDriver:
    """The files of what is mounted: v1, hybrid (v1 with a bare v2 mount beside it) or v2. By itself, for cgroupfs.

    Raises CgroupError when cpu and memory are not to be had in one version.
    """
    return KernelDriver(_version(tree, proc), tree, proc)


def detect_signals(tree: Tree, clock: Clock, proc: str = "/proc") -> SignalReader:
    """What reads the signals of interference of what is mounted. Raises as `detect`."""
    return SignalReader(_version(tree, proc).access, tree, clock, proc)


def _check_rights(tree: Tree, proc: str) -> None:
    with if_there():  # a kernel without user namespaces has no such file
        if rootless.is_rootless(uid_map := tree.read(f"{proc}/self/uid_map")):
            raise CgroupError(
                f"criproxy runs in a user namespace, as rootless Kubernetes does ({proc}/self/uid_map has "
                f"{rootless.in_words(uid_map)}), where it can't have cgroups for offline pods: run it, kubelet and the "
                "runtime as root on the host"
            )
    with if_there():
        status = dict(line.partition(":")[::2] for line in files.lines_of(tree.read(f"{proc}/self/status")))
        user = status["Uid"].split()[1]
        if user != "0" and not int(status["CapEff"], 16) & 1 << _CAP_DAC_OVERRIDE:
            raise CgroupError(f"criproxy runs as user {user}, who may not write the machine's cgroups: run it as root")


def _version(tree: Tree, proc: str) -> V1Hierarchies | V2Hierarchy:
    file = f"{proc}/self/mountinfo"
    mounts = files.parse_mounts(tree.read(file))
    missing = [controller for controller in _NEEDED_V1 if controller not in mounts.v1]
    if not missing:
        return V1Hierarchies(mounts.v1, mounts.v2, tree)
    if len(missing) < len(_NEEDED_V1):
        raise CgroupError(
            f"{file} has no cgroup v1 mount of {', '.join(missing)}: mount them, or boot with cgroup v2 alone"
        )
    if mounts.v2 is None:
        raise CgroupError(
            f"{file} has no cgroup mount of the whole tree: run on the host, or in a container with the host's "
            "cgroup namespace and /sys/fs/cgroup"
        )
    available = tree.read(f"{mounts.v2}/cgroup.controllers").split()
    missing = [controller for controller in _NEEDED_V2 if controller not in available]
    if missing:
        raise CgroupError(f"{mounts.v2}/cgroup.controllers lacks {', '.join(missing)}: check the kernel's command line")
    return V2Hierarchy(mounts.v2, tree, proc)
