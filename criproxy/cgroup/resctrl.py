"""The box's share of the last-level cache and of memory bandwidth: one group of resctrl.

The kernel bounds threads, not cgroups: a thread is in one group, and what it starts is in the same. What a runtime
starts comes from outside, so the box's threads are looked through again and again, and those that are new are put into
the group. A thread that has ended leaves by itself, and when the group is removed, all go back to where all are.

Nothing is mounted or changed beside our own group.
Source: Documentation/arch/x86/resctrl.rst.
"""

import contextlib
import errno
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.driver import CgroupError, checked_box
from criproxy.cgroup.schemata import (
    BANDWIDTH,
    LLC,
    BandwidthSteps,
    CacheParts,
    bounded,
    parse_schemata,
    same,
)
from criproxy.cgroup.tree import GONE, Tree, if_there

ROOT: Final = "/sys/fs/resctrl"
GROUP: Final = "criproxy"


class CacheLimits(Struct, frozen=True):
    """The box's share of each last-level cache and of each memory controller's bandwidth; None: all of it."""

    llc_ratio: float | None = None
    bandwidth_ratio: float | None = None

    @property
    def any(self) -> bool:
        return self.llc_ratio is not None or self.bandwidth_ratio is not None


class CacheGroup(Struct, frozen=True):
    """What is in force: the lines of the group's schemata ("": nothing is), and why something requested is not."""

    schemata: str = ""
    threads: int = 0
    problem: str = ""


class Resctrl(Struct):
    """For one thread. `root`: where resctrl is mounted."""

    tree: Tree
    root: str = ROOT
    proc: str = "/proc"
    _bounded: frozenset[str] = frozenset({LLC, BANDWIDTH})
    """What our group may bound; at first, what another process may have had it bound."""

    def keep(self, box: str, limits: CacheLimits) -> CacheGroup:
        """Bound all threads of the box, as far as that can be done; without limits, remove our group.

        Raises CgroupError.
        """
        try:
            possible, problem = self._possible(limits)
            if not possible.any:
                self._remove()
                return CacheGroup(problem=problem)
            schemata = self._settle(possible)
        except ValueError as error:
            raise CgroupError(f"{self.root} has another form than is known: {error}") from error
        return CacheGroup(" ".join(schemata.split()), self._gather(box), problem)

    @property
    def _group(self) -> str:
        return f"{self.root}/{GROUP}"

    def _possible(self, limits: CacheLimits) -> tuple[CacheLimits, str]:
        """What of the request can be met, and why the rest can't; "": there is none."""
        if not limits.any:
            return limits, ""
        if not self.tree.exists(f"{self.root}/schemata"):
            return CacheLimits(), (
                f"resctrl is not mounted: mount -t resctrl resctrl {self.root}, where the processor has it (rdt or "
                "cat_l3 and mba among the flags of /proc/cpuinfo); most virtual machines have not"
            )
        there = parse_schemata(self.tree.read(f"{self.root}/schemata"))
        llc_ratio, bandwidth_ratio, problems = limits.llc_ratio, limits.bandwidth_ratio, []
        if llc_ratio is not None and not any(name.startswith(LLC) for name in there):
            llc_ratio = None
            problems.append("this processor does not divide its last-level cache (L3)")
        if bandwidth_ratio is not None and (why := self._not_in_percent(there.get(BANDWIDTH, {}))):
            bandwidth_ratio = None
            problems.append(why)
        return CacheLimits(llc_ratio, bandwidth_ratio), "; ".join(problems)

    def _not_in_percent(self, held: Mapping[str, str]) -> str:
        """Why memory bandwidth can't be bounded to a share; "": it can. `held`: what each controller has."""
        if not held:
            return "this processor does not bound memory bandwidth (MB)"
        if all(int(value) <= 100 for value in held.values()):
            return ""
        lines = files.lines_of(self.tree.read(f"{self.proc}/self/mountinfo"))
        mounts = (line.partition(" - ")[2].split(" ") for line in lines)
        if any(kind == "resctrl" and "mba_MBps" in options[-1].split(",") for kind, *options in mounts):
            return "resctrl is mounted with mba_MBps, and then has no bandwidth in percent: mount it without"
        return (
            "this processor bounds memory bandwidth in steps of 1/8 GB/s (AMD), and knows no share of it: leave "
            "cache.bandwidth_max_ratio out"
        )

    def _settle(self, limits: CacheLimits) -> str:
        """Make the group, and have it hold what it shall.

        One that may bound what is not asked for is made anew, as the kernel alone knows what a group can have beside
        others.
        """
        asked = {LLC: limits.llc_ratio, BANDWIDTH: limits.bandwidth_ratio}
        bounded_now = frozenset(name for name, ratio in asked.items() if ratio is not None)
        if not self._bounded <= bounded_now:
            self._remove()
        self._bounded = bounded_now
        try:
            self.tree.mkdir(self._group)
        except CgroupError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise CgroupError(
                f"{self.root} has no group left: its processor knows few; remove one", error.errno
            ) from error
        file = f"{self._group}/schemata"
        held = self.tree.read(file)
        here = parse_schemata(held)
        caches = {name: self._parts(name) for name in here if name.startswith(LLC)} if LLC in bounded_now else {}
        steps = self._steps() if BANDWIDTH in bounded_now else None
        want = bounded(here, caches, limits.llc_ratio, steps, limits.bandwidth_ratio)
        lines = (line for line in files.lines_of(held) if line.split(":")[0].strip() in _named(want))
        if not same(want, "\n".join(lines)):
            self._write(file, want)
        return want

    def _write(self, file: str, schemata: str) -> None:
        try:
            self.tree.write(file, schemata)
        except CgroupError as error:
            why = ""
            with contextlib.suppress(CgroupError):
                why = self.tree.read(f"{self.root}/info/last_cmd_status").strip()
            raise CgroupError(f"{error}: {why}" if why else str(error), error.errno) from error

    def _parts(self, name: str) -> CacheParts:
        info = f"{self.root}/info/{name}"
        return CacheParts(int(self.tree.read(f"{info}/cbm_mask"), 16), int(self.tree.read(f"{info}/min_cbm_bits")))

    def _steps(self) -> BandwidthSteps:
        info = f"{self.root}/info/{BANDWIDTH}"
        least, step = (int(self.tree.read(f"{info}/{name}")) for name in ("min_bandwidth", "bandwidth_gran"))
        return BandwidthSteps(least, max(1, step))

    def _gather(self, box: str) -> int:
        """Put the box's threads into the group; returns how many it has."""
        file = f"{self._group}/tasks"
        threads, there = self._threads(box), set(self.tree.read(file).split())
        for thread in threads - there:
            try:
                self.tree.write(file, thread)
            except CgroupError as error:
                if error.errno not in (errno.ESRCH, *GONE):
                    raise
        return len(threads)

    def _threads(self, box: str) -> set[str]:
        mounts = files.parse_mounts(self.tree.read(f"{self.proc}/self/mountinfo"))
        mount, name = (mounts.v1["cpu"], "tasks") if "cpu" in mounts.v1 else (mounts.v2 or "", "cgroup.threads")
        found: set[str] = set()
        for directory in self.tree.below(mount + checked_box(box)):
            with if_there():
                found.update(self.tree.read(f"{directory}/{name}").split())
        return found

    def _remove(self) -> None:
        if self.tree.exists(self._group):
            with if_there():
                self.tree.rmdir(self._group)


def _named(schemata: str) -> set[str]:
    return set(parse_schemata(schemata))
