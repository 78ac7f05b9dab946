"""The demo's one directory: held by one demo at a time, cleaned of all that a demo leaves, and looked at once more."""

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from integration.demo import DemoError
from integration.lab.cgroups import Tree
from integration.lab.clean import clean, leftovers
from integration.lab.containerd import shim_sockets
from integration.lab.directory import cgroup_root, socket_path
from integration.lab.process import descendants, kill_all

_LOCK: Final = "criproxy-demo.lock"
"""Its presence says that the directory is a demo's, its lock that the demo lives, its content which process that is."""

_LONGEST_SOCKET: Final = "kubelet/root/pod-resources/kubelet.sock"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo may make its lab. Nothing outside of it is the demo's, but for what is named after it."""

    base: Path

    @property
    def lab(self) -> Path:
        return self.base / "lab"

    @property
    def second_lab(self) -> Path:
        """Of a cluster's second node."""
        return self.base / "lab2"

    @property
    def labs(self) -> tuple[Path, ...]:
        return (self.lab, self.second_lab)

    @property
    def cgroup(self) -> str:
        """The demo's own cgroup: everything that it bounds or measures lies below."""
        return cgroup_root(self.lab)

    def is_clean(self) -> bool:
        """Whether no earlier demo has left anything."""
        return all(_is_clean(lab) for lab in self.labs)

    def clear(self) -> None:
        """End and remove everything of this or an earlier demo, then look for remains.

        Raises LabError or OSError on what resists, DemoError when something is left nevertheless.
        """
        sockets = [socket for lab in self.labs for socket in shim_sockets(lab)]
        kill_all(lambda: descendants([os.getpid()]))
        for lab in self.labs:
            if not _is_clean(lab):
                lab.mkdir(exist_ok=True)  # the cleaning goes by the directory
                clean(lab)
        if left := self.remains(sockets):
            raise DemoError("This is left of the demo, remove it by hand: " + "; ".join(left))

    def remains(self, sockets: Collection[Path] = ()) -> list[str]:
        """What is left: processes, mounts, cgroups, sockets (those in the directory, and `sockets`) and files."""
        return [
            *(line for lab in self.labs for line in leftovers(lab)),
            *(f"socket {path}" for path in sorted(_unix_sockets(self.labs, sockets))),
            *(f"directory {lab}" for lab in self.labs if lab.exists()),
        ]


@contextlib.contextmanager
def held(base: Path) -> Iterator[Place]:
    """Hold the place for one demo, until this process ends.

    Raises DemoError when another demo holds it or it can't be used, LabError when its name is too long for sockets.
    """
    socket_path(Place(base).second_lab, _LONGEST_SOCKET)
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(base.iterdir()) and not (base / _LOCK).exists():
            raise DemoError(f"{base} is not empty, and not a demo's: give a new or empty --directory.")
        lock = _lock(base)
    except OSError as error:
        raise DemoError(f"{error.filename or base}: {error.strerror}: give another --directory.") from error
    with lock:
        place = Place(base)
        try:
            yield place
        finally:
            if not any(lab.exists() for lab in place.labs):  # else what could not be cleaned is for the next demo
                (base / _LOCK).unlink()
                with contextlib.suppress(OSError):  # somebody has put files into it
                    base.rmdir()


def _lock(base: Path) -> TextIO:
    path = base / _LOCK
    while True:
        lock = path.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise DemoError(
                f"Another demo is running in {base} (pid {owner}): wait for its end, or end it with Ctrl-C."
            ) from None
        if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            return lock
        lock.close()  # its owner has just removed it: take the next one's


def _is_clean(lab: Path) -> bool:
    return not lab.exists() and not Tree(cgroup_root(lab)).directories()


def _unix_sockets(labs: Collection[Path], others: Collection[Path]) -> set[str]:
    """Sockets that are bound, or whose file is there. Source: proc_net_unix(5), the 8th field."""
    fields = [line.split(" ", 7) for line in Path("/proc/net/unix").read_text().splitlines()]
    bound = {field[7].strip() for field in fields if len(field) == 8}
    wanted = {str(path) for path in others}
    below = tuple(f"{lab}/" for lab in labs)
    return {path for path in bound if path.startswith(below) or path in wanted} | {
        str(path) for path in others if path.exists()
    }
