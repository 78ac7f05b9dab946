"""Tables of the kernel that all users of a node share, and no cgroup bounds: how full they are, and what a pod has.

| table | read from | when it is full |
|---|---|---|
| keys | /proc/key-users, root's line | no container starts on the node |
| files | /proc/sys/fs/file-nr | nobody but root opens a file |
| aio | /proc/sys/fs/aio-nr | no database starts that has asynchronous I/O |
| inotify | nothing: whether root can have one more instance, and a watch | kubelet and others watch no file any more |
| epoll | nothing: whether root can have one more file watched | servers that run as root take no connection |
| signals | the queue in /proc/self/status, which is root's | timers and queued signals of root's processes fail |
| tcp | /proc/net/sockstat: memory and orphans | connections of all pods are slowed, and then broken |
| udp | /proc/net/sockstat: memory | packets of all pods are dropped, names are not resolved |
| neighbours | /proc/net/stat/arp_cache, ndisc_cache | no new address of the node's networks can be reached |
| ptys | /proc/sys/kernel/pty/nr | no pod has one any more: no `kubectl exec -it` |
| conntrack | /proc/sys/net/netfilter/nf_conntrack_count | new connections of the node are dropped |

The kernel does not say whose an entry is. What it does say of a process without rights over it is how many files it may
have open (`FDSize`), whether a seccomp profile holds it, and how many sockets its network has.
Nor does it tell how full some others are: root's part of the pages in pipes (fs.pipe-user-pages-soft), of POSIX message
queues, and the memory of compiled filters (net.core.bpf_jit_limit).
Source: keyrings(7), proc(5), inotify(7), epoll(7), tcp(7), arp(7), pty(7); Documentation/admin-guide/sysctl/fs.rst.
"""

import contextlib
import errno
import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.driver import checked_pod
from criproxy.cgroup.tree import Tree, if_there

_IN_DELETE_SELF: Final = 0x400
"""Source: inotify(7)."""


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
    """1 of 1: root can have no more instances, or no more watches.

    Source: inotify_init(2), EMFILE, also where the process has too many files; inotify_add_watch(2), ENOSPC.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd >= 0:
        try:
            is_full = libc.inotify_add_watch(fd, b"/", _IN_DELETE_SELF) < 0 and ctypes.get_errno() == errno.ENOSPC
        finally:
            os.close(fd)
        return Use(int(is_full), 1)
    if ctypes.get_errno() != errno.EMFILE:
        return None
    os.close(os.dup(0))  # raises OSError where it is this process that has too many files
    return Use(1, 1)


def epoll(_: Path) -> Use | None:
    """1 of 1: root can have no more files watched. Source: epoll_ctl(2), ENOSPC."""
    event = os.eventfd(0)
    try:
        with select.epoll() as watcher:
            watcher.register(event)
    except OSError as error:
        return Use(1, 1) if error.errno == errno.ENOSPC else None
    finally:
        os.close(event)
    return Use(0, 1)


def signals(proc: Path) -> Use | None:
    """Those that are queued for root, timers included, of the most. Source: proc(5), SigQ."""
    used, _, most = _fields(_text(proc / "self/status"))["SigQ"].partition("/")
    return Use(int(used), int(most))


def tcp(proc: Path) -> Use | None:
    """Pages of memory, of those from which on the kernel saves; or connections that no process has, of the most."""
    stat = _sockstat(_text(proc / "net/sockstat"))["TCP:"]
    pressure = int(_text(proc / "sys/net/ipv4/tcp_mem").split()[1])
    orphans = Use(stat["orphan"], int(_text(proc / "sys/net/ipv4/tcp_max_orphans")))
    return max(Use(stat["mem"], pressure), orphans, key=lambda use: use.ratio)


def udp(proc: Path) -> Use | None:
    """Pages of memory, of the most."""
    used = _sockstat(_text(proc / "net/sockstat"))["UDP:"]["mem"]
    return Use(used, int(_text(proc / "sys/net/ipv4/udp_mem").split()[2]))


def neighbours(proc: Path) -> Use | None:
    """Of the two protocols, what is nearer to its end. A kernel without IPv6 has one."""
    uses = []
    for protocol, table in (("ipv4", "arp_cache"), ("ipv6", "ndisc_cache")):
        with contextlib.suppress(FileNotFoundError):
            used = int(_text(proc / "net/stat" / table).split("\n")[1].split()[0], 16)
            uses.append(Use(used, int(_text(proc / f"sys/net/{protocol}/neigh/default/gc_thresh3"))))
    return max(uses, key=lambda use: use.ratio, default=None)


def ptys(proc: Path) -> Use | None:
    """Of those that pods can have: some are kept for the node itself. Source: drivers/tty/pty.c, devpts_new_index."""
    used, most, kept = (int(_text(proc / "sys/kernel/pty" / name)) for name in ("nr", "max", "reserve"))
    return Use(used, max(0, most - kept))


def _pair(used: str, most: str) -> Callable[[Path], Use | None]:
    def read(proc: Path) -> Use | None:
        return Use(int(_text(proc / used)), int(_text(proc / most)))

    return read


TABLES: Final[Mapping[str, Callable[[Path], Use | None]]] = {
    "keys": keys,
    "files": open_files,
    "aio": _pair("sys/fs/aio-nr", "sys/fs/aio-max-nr"),
    "inotify": inotify,
    "epoll": epoll,
    "signals": signals,
    "tcp": tcp,
    "udp": udp,
    "neighbours": neighbours,
    "ptys": ptys,
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
            except (OSError, ValueError, LookupError):
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
    stat = _sockstat(sockstat)
    counted = (stat.get(protocol, {}) for protocol in ("TCP:", "UDP:"))
    return sum(pairs.get("inuse", 0) + pairs.get("tw", 0) for pairs in counted)


def _sockstat(text: str) -> dict[str, dict[str, int]]:
    """By the line's first word."""
    lines = (line.split() for line in files.lines_of(text))
    return {
        words[0]: dict(zip(words[1::2], map(int, words[2::2]), strict=False))
        for words in lines
        if words and words[0] in ("TCP:", "UDP:")
    }


def _text(path: Path) -> str:
    return files.kernel_text(path.read_bytes())
