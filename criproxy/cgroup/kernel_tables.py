"""Tables of the kernel that all users of a node share, and no cgroup bounds: how full they are, and what a pod has.

| table | read from | when it is full |
|---|---|---|
| keys | /proc/key-users, root's line | no container starts on the node |
| files | /proc/sys/fs/file-nr | nobody but root opens a file |
| aio | /proc/sys/fs/aio-nr | no database starts that has asynchronous I/O |
| inotify | nothing: whether root can have one more instance | kubelet and others watch no file any more |
| ptys | /proc/sys/kernel/pty/nr | nobody logs in, no `kubectl exec -it` |
| conntrack | /proc/sys/net/netfilter/nf_conntrack_count | new connections of the node are dropped |

The kernel does not say whose an entry is. What it does say of a process without rights over it is how many files it may
have open (`FDSize`), whether a seccomp profile holds it, and how many sockets its network has.
Source: keyrings(7), proc(5), inotify(7), pty(7); Documentation/admin-guide/sysctl/fs.rst.
"""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.driver import checked_pod
from criproxy.cgroup.tree import Tree, if_there


class Use(Struct, frozen=True):
    """How many entries of a table are in use, of how many there can be."""

    used: int
    most: int

    @property
    def ratio(self) -> float:
        return self.used / self.most if self.most > 0 else 0.0


class Holding(Struct, frozen=True):
    """What a pod may have of the tables: `files` open at most, `sockets` in its network, and whether `keys` at all."""

    files: int = 0
    sockets: int = 0
    keys: bool = False


def keys(proc: Path) -> Use | None:
    """Root's: of their number and their bytes, what is nearer to its end."""
    for line in files.lines_of(_text(proc / "key-users")):
        match line.split():
            case ["0:", _, _, *pairs]:
                uses = [Use(*map(int, pair.split("/"))) for pair in pairs]
                return max(uses, key=lambda use: use.ratio)
    return None


def open_files(proc: Path) -> Use | None:
    used, _, most = map(int, _text(proc / "sys/fs/file-nr").split())
    return Use(used, most)


def inotify(_: Path) -> Use | None:
    """1 of 1: root can have no more. Source: inotify_init(2), EMFILE, also where the process has too many files."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd >= 0:
        os.close(fd)
        return Use(0, 1)
    if ctypes.get_errno() != errno.EMFILE:
        return None
    os.close(os.dup(0))  # raises OSError where it is this process that has too many files
    return Use(1, 1)


def _pair(used: str, most: str) -> Callable[[Path], Use | None]:
    def read(proc: Path) -> Use | None:
        return Use(int(_text(proc / used)), int(_text(proc / most)))

    return read


TABLES: Final[Mapping[str, Callable[[Path], Use | None]]] = {
    "keys": keys,
    "files": open_files,
    "aio": _pair("sys/fs/aio-nr", "sys/fs/aio-max-nr"),
    "inotify": inotify,
    "ptys": _pair("sys/kernel/pty/nr", "sys/kernel/pty/max"),
    "conntrack": _pair("sys/net/netfilter/nf_conntrack_count", "sys/net/netfilter/nf_conntrack_max"),
}


class KernelTables(Struct, frozen=True):
    """Reads them: not for the event loop."""

    tree: Tree
    proc: Path = Path("/proc")
    tables: Mapping[str, Callable[[Path], Use | None]] = MappingProxyType(TABLES)

    def read(self) -> dict[str, Use]:
        """By the table's name; what this kernel does not have, or can't be read, is left out."""
        found = {}
        for name, read in self.tables.items():
            try:
                use = read(self.proc)
            except (OSError, ValueError):
                continue
            if use is not None:
                found[name] = use
        return found

    def holdings(self, placements: Mapping[str, str]) -> dict[str, Holding]:
        """What pods have, by sandbox id, as their placements are. Raises CgroupError or OSError."""
        mounts = files.parse_mounts(self.tree.read(f"{self.proc}/self/mountinfo"))
        mount = mounts.v1.get("cpu") or mounts.v2 or ""
        return {id: self._holding(mount + checked_pod(placement)[1]) for id, placement in placements.items()}

    def _holding(self, directory: str) -> Holding:
        opened, sockets, has_keys = 0, 0, False
        for below in self.tree.below(directory):
            pids: list[str] = []
            with if_there():
                pids = self.tree.read(f"{below}/cgroup.procs").split()
            for pid in pids:
                try:
                    status = _fields(_text(self.proc / pid / "status"))
                    sockets = max(sockets, _sockets(_text(self.proc / pid / "net/sockstat")))
                except (FileNotFoundError, ProcessLookupError):
                    continue
                opened += int(status.get("FDSize", "0"))
                has_keys |= status.get("Seccomp") == "0" and "0" in status.get("Uid", "").split()
        return Holding(opened, sockets, has_keys)


def _fields(status: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in files.lines_of(status))}


def _sockets(sockstat: str) -> int:
    """Connections of a network, those included that have just ended: `TCP: inuse 4 orphan 0 tw 2 …`."""
    total = 0
    for line in files.lines_of(sockstat):
        words = line.split()
        pairs = dict(zip(words[1::2], words[2::2], strict=False))
        if words and words[0] in ("TCP:", "UDP:"):
            total += int(pairs.get("inuse", 0)) + int(pairs.get("tw", 0))
    return total


def _text(path: Path) -> str:
    return files.kernel_text(path.read_bytes())
