"""The machine's physical cores and NUMA nodes, as the kernel tells them, and the box's choice of whole cores.

Source: Documentation/ABI/stable/sysfs-devices-system-cpu (topology/thread_siblings_list), sysfs-devices-node.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.kernel_files import EFFECTIVE_CPUS
from criproxy.cgroup.tree import Tree, if_there
from criproxy.cgroup.whole_cores import choose, spared
from criproxy.model import UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus, parse_cpus

SYS_CPU: Final = "/sys/devices/system/cpu"
SYS_NODE: Final = "/sys/devices/system/node"


def root_cpuset(driver: CgroupDriver) -> str | None:
    """The root's file of effective CPUs; None where there is no cpuset controller."""
    if driver.version == 0 or not driver.files.has(EFFECTIVE_CPUS, ""):
        return None
    return driver.files.file(EFFECTIVE_CPUS, "")


def isolated_cpus(tree: Tree, directory: str = SYS_CPU) -> Cpus:
    """The CPUs that are kept idle for who pins itself there, of `isolcpus=` and `nohz_full=`, though cpusets have them.

    The kernel balances no load between isolated ones. Those that are not told, or not as a list, are none. Source:
    Documentation/admin-guide/kernel-parameters.txt; drivers/base/cpu.c, which has "(null)" for no list.
    """
    found: Cpus = frozenset()
    for file in ("isolated", "nohz_full"):
        with contextlib.suppress(CgroupError, ValueError):
            found |= parse_cpus(tree.read_often(f"{directory}/{file}"))
    return found


class Topology(Struct):
    """For any thread. `root_cpuset`: the file of the CPUs that cgroups may have; None: there is none.

    Cores and nodes are read anew when other CPUs are online.
    """

    tree: Tree
    root_cpuset: str | None
    directory: str = SYS_CPU
    node_directory: str = SYS_NODE
    _known: tuple[str, tuple[Cpus, ...]] = ("", ())
    """The cores, and the list of CPUs that were online then; replaced as a whole."""
    _known_nodes: tuple[str, tuple[Cpus, ...]] = ("", ())
    """The same for the nodes."""

    def cores(self) -> tuple[Cpus, ...]:
        """Each by its CPUs that are online. Raises CgroupError."""
        try:
            online = self.tree.read(f"{self.directory}/online")
            then, cores = self._known
            if online != then:
                cores = tuple({self._siblings(cpu) for cpu in parse_cpus(online)})
                self._known = online, cores
            if self.root_cpuset is None:
                return cores
            there = parse_cpus(self.tree.read(self.root_cpuset))
        except ValueError as error:
            raise CgroupError(f"{self.directory} does not say which CPUs are one core: {error}") from error
        return tuple(core for core in cores if core <= there)

    def nodes(self) -> tuple[Cpus, ...]:
        """Those of NUMA that have CPUs, each by those that are online; none on a kernel without. Raises CgroupError."""
        online = self.tree.read(f"{self.directory}/online")
        then, nodes = self._known_nodes
        if online != then:
            nodes = ()
            with if_there():
                try:
                    numbers = parse_cpus(self.tree.read(f"{self.node_directory}/has_cpu"))
                    nodes = tuple(
                        parse_cpus(self.tree.read(f"{self.node_directory}/node{number}/cpulist"))
                        for number in sorted(numbers)
                    )
                except ValueError as error:
                    raise CgroupError(f"{self.node_directory} does not say which CPUs a node has: {error}") from error
            self._known_nodes = online, nodes
        return nodes

    def isolated(self) -> Cpus:
        return isolated_cpus(self.tree, self.directory)

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
        cores = self.topology.cores()
        left, without = self._left(frozenset().union(*cores) if allowed is UNLIMITED else allowed)
        cpus, words = choose(cores, left if without else allowed, self.own(), self._held, limit_cores)
        if cpus is not UNLIMITED:
            self._held = cpus
        return cpus, words + without

    def _left(self, allowed: Cpus) -> tuple[Cpus, str]:
        """Without isolated CPUs, unless no others are left; and in words which these are, "": none."""
        isolated = (self.topology.isolated() & allowed) - self.own()
        if not isolated or isolated >= allowed:
            return allowed, ""
        return allowed - isolated, f"; {format_cpus(isolated)} are isolated (isolcpus, nohz_full), and never the box's"

    def spare(self, allowed: Cpus) -> tuple[Cpus, str]:
        """The CPUs that may be the box's, without isolated ones and siblings of exclusive ones, and what these are.

        Never raises: what is not known to be a sibling stays the box's, which is to leave the exclusive CPUs at least.
        """
        left, without = self._left(allowed)
        try:
            cpus, words = spared(self.topology.cores(), left, self.own(), self.exclusive())
        except CgroupError as error:
            words = f"what kubelet leaves; which of them are siblings of exclusive CPUs is not known: {error}"
            return left, words + without
        return cpus, (words or "what kubelet leaves") + without if without else words

    def most(self, allowed: Cpus, *, whole: bool) -> Cpus:
        """Of the CPUs that may be the box's, those that it has while it has no limit, on `whole` cores or not.

        For any thread, as it changes nothing. Never raises: where the cores are not known, none is left out for them.
        """
        left, _ = self._left(allowed)
        if not whole and not self.exclusive():  # no file to be read
            return left
        try:
            cores = self.topology.cores()
        except CgroupError:
            return left
        if not whole:
            return spared(cores, left, self.own(), self.exclusive())[0]
        cpus, _ = choose(cores, left, self.own(), frozenset(), UNLIMITED)
        return left if cpus is UNLIMITED else cpus
