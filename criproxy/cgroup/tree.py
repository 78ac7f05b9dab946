"""The few operations on cgroup files and directories; every failure names the file, the value and the errno."""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.files import kernel_text

# A cgroup that was removed between opening and reading one of its files answers ENODEV.
GONE = (errno.ENOENT, errno.ENODEV)

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""In what /proc counts CPU time."""


@contextlib.contextmanager
def if_there() -> Iterator[None]:
    """What fails within, as its cgroup has gone, ends there."""
    try:
        yield
    except CgroupError as error:
        if error.errno not in GONE:
            raise


_AT_ONCE_BYTES: Final = 1 << 14
"""More than most files have, and less than what malloc asks the kernel for."""

_PART_OF_A_PAGE_BYTES: Final = 1 << 11

_LINKS_OF_A_LEAF: Final = 2
"""Of a file system that does not count directories' links (btrfs, overlayfs), they are 1."""

_MOST_OPEN: Final = 128
"""Descriptors of a thread that stay open: some twenty of one box."""

_KILLED_AT_ONCE: Final = 256
"""A descriptor each, of which a process has 1024."""

_MOST_KILLS: Final = 1000
"""Beyond that, something is started from outside as fast as it is killed."""


class Tree:
    """Plain system calls. A descriptor outlives a call in `read_often` alone, as a directory of the same name may be
    another cgroup.
    """

    def __init__(self) -> None:
        self._open = threading.local()

    def read(self, file: str) -> str:
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = []
                while part := os.read(fd, _AT_ONCE_BYTES):
                    parts.append(part)
            finally:
                os.close(fd)
        except OSError as error:
            raise _failed(f"read {file}", error) from error
        return _text(b"".join(parts))

    def read_often(self, file: str) -> str:
        """As `read`, in one system call: the file stays open, for this thread.

        For files whose text the kernel makes in one piece: all but lists of processes. An open file of a cgroup that
        has been removed answers ENODEV, whatever has its name by now: then that is read. Source: fs/kernfs/file.c,
        kernfs_seq_start; fs/seq_file.c, seq_read_iter.
        """
        opened = self._opened()
        fd = opened.get(file)
        try:
            if fd is None:
                fd = opened[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(fd, _AT_ONCE_BYTES, 0)
        except OSError as error:
            if (stale := opened.pop(file, None)) is None:
                raise _failed(f"read {file}", error) from error
            os.close(stale)
            return self.read(file)
        return _text(text) if len(text) < _AT_ONCE_BYTES else self.read(file)

    def open(self, file: str) -> int:
        """A descriptor of it, for `read_open`; whoever has it closes it (`close`)."""
        try:
            return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _failed(f"read {file}", error) from error

    def read_open(self, fd: int, file: str) -> str:
        """What a file that was opened holds now, if that is little. `file`: how to name it when that fails."""
        try:
            return _text(os.pread(fd, _AT_ONCE_BYTES, 0))
        except OSError as error:
            raise _failed(f"read {file}", error) from error

    def close(self, fd: int) -> None:
        os.close(fd)

    def _opened(self) -> dict[str, int]:
        """By file, the descriptors that stay open; another box's, and those of many, are closed."""
        opened: dict[str, int] | None = getattr(self._open, "files", None)
        if opened is None:
            opened = self._open.files = {}
        elif len(opened) >= _MOST_OPEN:
            while opened:
                os.close(opened.popitem()[1])
        return opened

    def head(self, file: str, most_bytes: int) -> str:
        """The first whole lines of a list of processes, which may be long.

        The kernel makes such a list line by line in a buffer of a page or more, so what leaves room there is all of it.
        Source: fs/seq_file.c, seq_read_iter.
        """
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts: list[bytes] = []
                left = most_bytes
                while left > 0 and (part := os.read(fd, left)):
                    parts.append(part)
                    left -= len(part)
                    if len(part) < _PART_OF_A_PAGE_BYTES:
                        break
            finally:
                os.close(fd)
        except OSError as error:
            raise _failed(f"read {file}", error) from error
        data = b"".join(parts)
        return _text(data if left > 0 else data[: data.rfind(b"\n") + 1])

    def write(self, file: str, value: str) -> None:
        """One write(2): the kernel takes a value whole or not at all."""
        try:
            fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise _failed(f"write {value!r} to {file}", error) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def identity(self, directory: str) -> int | None:
        """Tells a cgroup from a later one of the same name; None when it does not exist."""
        try:
            return os.stat(directory).st_ino
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(f"look at {directory}", error) from error

    def mkdir(self, directory: str) -> bool:
        """Make one cgroup. False when it was there already."""
        try:
            os.mkdir(directory, 0o755)
        except FileExistsError:
            return False
        except OSError as error:
            raise _failed(f"make cgroup {directory}", error) from error
        return True

    def rmdir(self, directory: str) -> None:
        try:
            os.rmdir(directory)
        except OSError as error:
            raise _failed(f"remove cgroup {directory}", error) from error

    def children(self, directory: str) -> tuple[str, ...]:
        """Names of the cgroups directly below; none when the directory does not exist.

        Most have none, which their links tell without a list of all their files: a directory's own two, and one of each
        directory in it. Source: fs/kernfs/inode.c, kernfs_refresh_inode.
        """
        with contextlib.suppress(OSError):
            if os.stat(directory).st_nlink == _LINKS_OF_A_LEAF:
                return ()
        return tuple(entry.name for entry in self._entries(directory) if entry.is_dir(follow_symlinks=False))

    def files(self, directory: str, prefix: str) -> tuple[str, ...]:
        """Names of the files that begin so; none when the directory does not exist."""
        return tuple(sorted(entry.name for entry in self._entries(directory) if entry.name.startswith(prefix)))

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed(f"list {directory}", error) from error

    def below(self, directory: str) -> list[str]:
        """The directory and all cgroups below it, parents first; without recursion, as containers nest at will."""
        found = [directory] if self.exists(directory) else []
        for parent in found:
            found.extend(f"{parent}/{child}" for child in self.children(parent))
        return found

    def first_below(self, directory: str, most: int) -> tuple[list[str], bool]:
        """At most so many of the cgroups below this one, parents first; and whether these are all."""
        found = [directory]
        for parent in found:
            found.extend(f"{parent}/{child}" for child in sorted(self.children(parent)))
            if len(found) > most + 1:
                return found[1 : most + 1], False
        return found[1:], True

    def remove(self, directory: str) -> bool:
        """Remove a cgroup and all below it, leaves first. False when one of them is in use."""
        for cgroup in reversed(self.below(directory)):
            try:
                self.rmdir(cgroup)
            except CgroupError as error:
                if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                    return False
                if error.errno not in GONE:
                    raise
        return True

    def processes(self, directory: str) -> set[int]:
        """The pids in a cgroup and below it."""
        pids: set[int] = set()
        for cgroup in self.below(directory):
            try:
                pids.update(map(int, self.read(f"{cgroup}/cgroup.procs").split()))
            except CgroupError as error:
                # A threaded cgroup (EOPNOTSUPP) lists its processes in the domain above it.
                if error.errno not in (*GONE, errno.EOPNOTSUPP):
                    raise
        return pids

    def kill(self, pids: Callable[[], Collection[int]]) -> None:
        """SIGKILL to those that `pids` returns, and to what they have forked by then; not to one that has got the pid
        of another meanwhile.

        A process that was killed forks no more, so this ends when all that are listed were killed. Raises CgroupError.
        """
        there, killed = set(pids()), set[int]()
        for _ in range(_MOST_KILLS):
            chosen = sorted(there - killed)[:_KILLED_AT_ONCE]
            if not chosen:
                return
            tried, there = self._kill(chosen, pids)
            killed |= tried
        if left := there - killed:
            raise CgroupError(f"processes are started as fast as they are killed: {len(left)} of them are left")

    def _kill(self, chosen: Sequence[int], pids: Callable[[], Collection[int]]) -> tuple[set[int], set[int]]:
        """Returns those of `chosen` that are done with (all, unless descriptors ran out), and who is there now."""
        handles: dict[int, int] = {}
        gone = set[int]()
        try:
            for pid in chosen:
                try:
                    handles[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    gone.add(pid)
                except OSError:
                    if not handles:
                        raise
                    break
            there = set(pids())
            for pid in handles.keys() & there:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
        except OSError as error:
            raise _failed(f"kill one of {len(chosen)} processes", error) from error
        finally:
            for handle in handles.values():
                os.close(handle)
        return gone | handles.keys(), there


def _text(data: bytes) -> str:
    return kernel_text(data).strip()


def _failed(operation: str, error: OSError) -> CgroupError:
    name = errno.errorcode.get(error.errno or 0, "unknown errno")
    return CgroupError(f"cannot {operation}: {name} ({error.strerror})", error.errno)
