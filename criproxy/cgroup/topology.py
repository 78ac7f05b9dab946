"""The machine's physical cores, as the kernel tells them, and the box's choice of whole ones.

Source: Documentation/ABI/stable/sysfs-devices-system-cpu (topology/thread_siblings_list).
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.kernel_files import EFFECTIVE_CPUS
from criproxy.cgroup.tree import Tree
from criproxy.cgroup.whole_cores import choose, spared
from criproxy.model import UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, parse_cpus

SYS_CPU: Final = "/sys/devices/system/cpu"


def root_cpuset(driver: CgroupDriver) -> str | None:
    """The root's file of effective CPUs; None where there is no cpuset controller."""
    if driver.version == 0 or not driver.files.has(EFFECTIVE_CPUS, ""):
        return None
    return driver.files.file(EFFECTIVE_CPUS, "")


class Topology(Struct):
    """For one thread. `root_cpuset`: the file of the CPUs that cgroups may have; None: there is none.

    The cores are read anew when other CPUs are online.
    """

    tree: Tree
    root_cpuset: str | None
    directory: str = SYS_CPU
    _online: str = ""
    _cores: tuple[Cpus, ...] = ()

    def cores(self) -> tuple[Cpus, ...]:
        """Each by its CPUs that are online. Raises CgroupError."""
        try:
            online = self.tree.read(f"{self.directory}/online")
            if online != self._online:
                self._cores = tuple({self._siblings(cpu) for cpu in parse_cpus(online)})
                self._online = online
            if self.root_cpuset is None:
                return self._cores
            there = parse_cpus(self.tree.read(self.root_cpuset))
        except ValueError as error:
            raise CgroupError(f"{self.directory} does not say which CPUs are one core: {error}") from error
        return tuple(core for core in self._cores if core <= there)

    def _siblings(self, cpu: int) -> Cpus:
        return parse_cpus(self.tree.read(f"{self.directory}/cpu{cpu}/topology/thread_siblings_list"))


class WholeCores(Struct):
    """The box's cores, whole ones if it is to have those; the next choice begins at the last.

    `own`: the CPUs that offline pods have alone; `exclusive`: those that online pods have alone.
    """

    topology: Topology
    own: Callable[[], Cpus]
    exclusive: Callable[[], Cpus]
    _held: Cpus = frozenset()

    def choose(self, allowed: Cpus | Unlimited, limit_cores: float | Unlimited) -> tuple[Cpus | Unlimited, str]:
        """Of the CPUs that may be the box's, those that it shall have, and in words what these are.

        Raises CgroupError.
        """
        cpus, words = choose(self.topology.cores(), allowed, self.own(), self._held, limit_cores)
        if cpus is not UNLIMITED:
            self._held = cpus
        return cpus, words

    def spare(self, allowed: Cpus) -> tuple[Cpus, str]:
        """The CPUs that may be the box's, without siblings of exclusive ones, and in words what these are.

        Never raises: what is not known to be a sibling stays the box's, which is to leave the exclusive CPUs at least.
        """
        try:
            return spared(self.topology.cores(), allowed, self.own(), self.exclusive())
        except CgroupError as error:
            return allowed, f"what kubelet leaves; which of them are siblings of exclusive CPUs is not known: {error}"
