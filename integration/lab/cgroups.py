"""The machine's cgroup hierarchies, and one tree of the lab's own in all of them."""

import contextlib
import os
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from integration.lab.naming import Driver, driver, spelled, told
from integration.lab.process import END_S, LabError, argv_of, kill_all, wait_until

CPUSET_FILES = ("cpuset.mems", "cpuset.cpus")


@dataclass(frozen=True, slots=True)
class Mount:
    """One of this process' mounts. `device` is MAJOR:MINOR, `options` are the file system's; names are escaped."""

    device: str
    point: str
    kind: str
    options: str


def mounts() -> list[Mount]:
    """In the order in which they were mounted. Source: proc_pid_mountinfo(5).

    Others' mounts may have an empty source, and names that are no UTF-8.
    """
    found = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n"):
        match [part.split(" ") for part in line.split(" - ")]:
            case [[_, _, device, _, point, *_], [kind, _, options]]:
                found.append(Mount(device, point, kind, options))
    return found


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy. `controllers` as /proc/PID/cgroup names them; v2's is ("",), whatever it holds."""

    mount: Path
    controllers: tuple[str, ...]
    version: int

    def directory(self, path: str) -> Path:
        """Where the cgroup `path` (absolute, as `naming` has it) lies."""
        return self.mount / spelled(path).lstrip("/")


@cache
def hierarchies() -> tuple[Hierarchy, ...]:
    """All mounted hierarchies: each of v1's, its named ones too, and v2's (alone, or beside v1's: hybrid).

    Raises LabError when none is mounted.
    """
    found: dict[tuple[str, ...], Hierarchy] = {}
    for mount in mounts():
        point = Path(mount.point)
        if mount.kind == "cgroup2":
            found.setdefault(("",), Hierarchy(point, ("",), 2))
        elif mount.kind == "cgroup":
            names = tuple(o for o in mount.options.split(",") if o.startswith("name=") or o in _v1_controllers())
            found.setdefault(names, Hierarchy(point, names, 1))
    if not found:
        raise LabError("no cgroup hierarchy is mounted (/proc/self/mountinfo): mount one at /sys/fs/cgroup")
    return tuple(found.values())


def version() -> int:
    """Which version carries the controllers: 1 (also when v2 is mounted beside it) or 2."""
    return min(hierarchy.version for hierarchy in hierarchies())


def unkept() -> frozenset[str]:
    """The controllers in which the v1 systemd driver leaves a container's processes where it likes (measured).

    runc 1.1 does not join misc, and systemd moves a sandbox from its scope up to its slice of devices, now and then.
    """
    return frozenset({"misc", "devices"} if version() == 1 and driver() is Driver.SYSTEMD else ())


def of_process(pid: int) -> dict[str, str]:
    """The cgroup of a process in each hierarchy, by controller ("" is v2), as `naming.told` has it.

    Raises FileNotFoundError or ProcessLookupError when it is gone. Source: cgroups(7), /proc/[pid]/cgroup.
    """
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    fields = [line.split(":", 2) for line in lines]
    return {controller: told(path) for _, controllers, path in fields for controller in controllers.split(",")}


@dataclass(frozen=True, slots=True)
class Tree:
    """The cgroup `path` (as `naming` has it) and all below it, in every hierarchy."""

    path: str

    def make(self) -> None:
        """Make the cgroup everywhere, ready for children in every controller. Raises LabError when that is refused.

        Under systemd, as a slice; the controllers in which it would not be are added, as kubelet does. What of it was
        empty may go meanwhile: systemd takes it away when it comes to that, on a slow node after the next start.
        """
        try:
            wait_until(self._is_made, END_S, f"the cgroups of {self.path} to stay")
        except OSError as error:
            raise LabError(f"can't make the cgroup {error.filename}: {error.strerror}; is this root?") from error

    def _is_made(self) -> bool:
        _systemctl("start", self.path)
        try:
            for hierarchy in hierarchies():
                _make(hierarchy, hierarchy.directory(self.path))
        except FileNotFoundError:
            return False
        return True

    def directories(self, versions: Collection[int] = (1, 2)) -> list[Path]:
        """Every directory of the tree that exists, children first, in the hierarchies of these versions."""
        roots = [hierarchy.directory(self.path) for hierarchy in hierarchies() if hierarchy.version in versions]
        return [Path(top) for root in roots for top, _, _ in os.walk(root, topdown=False)]

    def cgroups(self, versions: Collection[int] = (1, 2)) -> set[str]:
        """`directories`, as `naming` has them."""
        roots = [hierarchy for hierarchy in hierarchies() if hierarchy.version in versions]
        return {
            told(f"/{os.path.relpath(directory, root.mount)}")
            for root in roots
            for directory, _, _ in os.walk(root.directory(self.path))
        }

    def children(self) -> set[str]:
        """The names of the cgroups directly below it, in any hierarchy."""
        return {name for above, name in map(os.path.split, self.cgroups()) if above == self.path}

    def pids(self) -> set[int]:
        """The processes in the tree."""
        return {pid for directory in self.directories() for pid in _pids(directory)}

    def kill(self) -> None:
        """End every process in the tree. Raises LabError when one does not end."""
        for directory in self.directories():
            with contextlib.suppress(OSError):  # a frozen process of v1 can't be killed
                if (directory / "freezer.state").exists():
                    (directory / "freezer.state").write_text("THAWED")
        kill_all(self.pids)

    def remove(self) -> None:
        """Remove the tree; its processes must have ended. Raises LabError, with what is in it, after a minute."""

        def gone() -> bool:
            left = self.directories()
            for directory in left:
                with contextlib.suppress(OSError):  # busy until its last process has been reaped
                    directory.rmdir()
            return not left

        if self.directories():
            _systemctl("stop", self.path)
        try:
            wait_until(gone, END_S, f"the kernel to let go of the cgroups of {self.path}")
        except LabError as error:
            raise LabError(f"{error}; in it: {', '.join(self.occupants()) or 'nothing'}") from error

    def occupants(self) -> list[str]:
        """The processes in the tree, in words, a line for each cgroup that one is in."""
        return sorted(
            f"{pid} {argv_of(pid)} in {directory}" for directory in self.directories() for pid in _pids(directory)
        )


@cache
def _v1_controllers() -> frozenset[str]:
    lines = Path("/proc/cgroups").read_text().splitlines()
    return frozenset(line.split("\t")[0] for line in lines if not line.startswith("#"))


def _systemctl(verb: str, path: str) -> None:
    """Have systemd start or stop a slice; nothing happens under cgroupfs. Raises LabError when it refuses."""
    unit = os.path.basename(spelled(path))
    if driver() is Driver.CGROUPFS or not unit.endswith(".slice"):
        return
    done = subprocess.run(["systemctl", verb, unit], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"systemctl {verb} {unit}: {done.stderr.strip()}")


def _pids(directory: Path) -> list[int]:
    try:
        return [int(line) for line in (directory / "cgroup.procs").read_text().split()]
    except OSError:  # removed meanwhile, or a v2 threaded cgroup
        return []


def _make(hierarchy: Hierarchy, directory: Path) -> None:
    if directory == hierarchy.mount:
        return
    _make(hierarchy, directory.parent)
    if hierarchy.version == 2:
        available = (directory.parent / "cgroup.controllers").read_text().split()
        (directory.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))
    directory.mkdir(exist_ok=True)
    if "cpuset" in hierarchy.controllers:  # v1: a cpuset without CPUs and memory nodes takes no process
        for name in CPUSET_FILES:
            if not (directory / name).read_text().strip():
                (directory / name).write_text((directory.parent / name).read_text())
