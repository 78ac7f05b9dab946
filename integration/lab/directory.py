"""A lab's directory: claimed by one process, cleaned up by its owner or, once that has died, by anyone.

All that a lab leaves outside its directory is named after the directory, so a later run needs nothing else.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from integration.lab.cgroups import Tree, mounts
from integration.lab.process import LabError

BASE = Path("/run/criproxy-lab")
"""Root's alone, short enough for sockets, and empty after a boot."""

SOCKET_PATH_MAX = 107
"""Bytes. Source: unix(7), sun_path less its final 0."""

MNT_DETACH = 2


def lab_name(directory: Path) -> str:
    """The name of a lab: of its cgroup, its node, and whatever else has to be told from other labs'."""
    return f"criproxy-lab-{hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()[:8]}"


def cgroup_root(directory: Path) -> str:
    """The lab's own cgroup, as the start of a cgroup_parent."""
    return f"/{lab_name(directory)}"


def socket_path(directory: Path, name: str) -> Path:
    """The path of a socket in the lab. Raises LabError when the kernel would not take its length."""
    path = directory.absolute() / name
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX:
        raise LabError(f"{path} has {length} bytes, a socket's path at most {SOCKET_PATH_MAX}: use a shorter directory")
    return path


@contextlib.contextmanager
def claimed(base: Path = BASE) -> Iterator[Path]:
    """A new directory that `abandoned` does not name while this process lives. It is its user's to clean."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    unseen = Path(tempfile.mkdtemp(prefix=".", dir=base))  # until it is locked: else it would look abandoned
    directory = base / unseen.name[1:]
    with (unseen / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it with the process, and children don't inherit it
        unseen.rename(directory)
        yield directory


def abandoned(base: Path = BASE) -> list[Path]:
    """The directories whose owner has died without cleaning up."""
    return [directory for directory in sorted(base.glob("[!.]*/")) if not _has_owner(directory)]


def _has_owner(directory: Path) -> bool:
    try:
        with (directory / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def mounts_below(directory: Path) -> list[str]:
    """Mount points in the directory, the last mounted first."""
    prefix = f"{directory.absolute()}/"
    return [mount.point for mount in reversed(mounts()) if mount.point.startswith(prefix)]


def remove(directory: Path) -> None:
    """Unmount all below the directory, and remove the lab's cgroups and the directory; its processes must have ended.

    Raises LabError or OSError when something can't be removed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for point in mounts_below(directory):
        if libc.umount2(os.fsencode(point), MNT_DETACH) != 0 and os.path.ismount(point):
            raise LabError(f"can't unmount {point}: {os.strerror(ctypes.get_errno())}")
    Tree(cgroup_root(directory)).remove()
    while directory.exists():
        with contextlib.suppress(FileNotFoundError):  # what a shim that ends has removed itself meanwhile
            shutil.rmtree(directory)
    with contextlib.suppress(OSError):  # others' labs are in it
        directory.parent.rmdir()
