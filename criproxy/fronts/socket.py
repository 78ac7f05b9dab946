"""Own the unix socket that clients dial: a file of this process, behind a stable symlink that is swapped by rename.

gRPC binds over a live socket without a word, and unlinks the path when it stops, whoever it belongs to by then. So no
two processes bind one path: each binds `<listen>.<pid>`, and only the symlink `<listen>` changes hands.
"""

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

_MAX_PATH_BYTES: Final = 107
"""Source: unix(7), sun_path is 108 bytes with its closing NUL."""


class SocketError(Exception):
    """The socket cannot be had; the message names the path, what is wrong with it and the remedy."""


def grpc_target(path: Path) -> str:
    """How gRPC spells the unix socket at `path`. Source: gRPC naming; the path is part of a URI."""
    return f"unix:{quote(str(path))}"


class ListenSocket:
    """This process's claim on `path`. In order: `claim`, bind `own` within `private`, `publish`; at the end `release`.

    `bypass`: the socket that `path` may lead to while no criproxy runs. `succeeds`: the criproxy that serves there
    hands over to us. All methods raise SocketError when the file system refuses.
    """

    def __init__(self, path: Path, pid: int, bypass: Path | None = None, *, succeeds: bool = False) -> None:
        self.path = path
        self._bypass = bypass
        self._succeeds = succeeds
        self.own = path.with_name(f"{path.name}.{pid}")

    def claim(self) -> None:
        """Make the directory, refuse what is in the way, and clear away what dead processes have left behind."""
        size = len(os.fsencode(self.own))
        if size > _MAX_PATH_BYTES:
            raise SocketError(
                f"listen {str(self.path)!r}: its socket {self.own.name!r} would have a path of {size} bytes, "
                f"and the kernel takes {_MAX_PATH_BYTES}: choose a shorter path"
            )
        with _explained(self.path):
            _make_directory(self.path.parent)
            self._refuse_what_is_in_the_way()
            self._refuse_the_living()
        self.clear_leftovers()

    def clear_leftovers(self) -> None:
        """Clear away what dead processes have left behind."""
        with _explained(self.path):
            for entry in self._sockets():
                if not accepts(entry):
                    entry.unlink(missing_ok=True)

    def _sockets(self) -> Iterator[Path]:
        """Those of all processes that have claimed `path`."""
        ours = re.compile(re.escape(self.path.name) + r"\.\d+~?")
        for entry in self.path.parent.iterdir():
            if ours.fullmatch(entry.name) and (entry.is_symlink() or entry.is_socket()):
                yield entry

    @contextlib.contextmanager
    def private(self) -> Iterator[None]:
        """Bind within this: from its first moment, the socket is for our own user alone. Raises SocketError."""
        umask = os.umask(0o177)
        try:
            yield
        except (OSError, RuntimeError) as error:  # the latter is gRPC's
            raise SocketError(f"{error}: check the directory of {str(self.own)!r}") from error
        finally:
            os.umask(umask)

    def publish(self) -> None:
        """Point the stable symlink at our own socket, atomically."""
        new = self.own.with_name(f"{self.own.name}~")
        with _explained(self.path):
            new.unlink(missing_ok=True)
            new.symlink_to(self.own.name)
            new.rename(self.path)

    @property
    def is_published(self) -> bool:
        """Whether `path` leads to our own socket."""
        return self.path.is_symlink() and os.readlink(self.path) == self.own.name

    @property
    def is_bypassed(self) -> bool:
        """Whether `path` leads into the bypass."""
        try:
            return self._bypass is not None and os.readlink(self.path) == str(self._bypass)
        except OSError:
            return False

    def follow(self, runtime: Path) -> None:
        """Take the owner and mode of the runtime's socket; while there is none, stay as we are."""
        with _explained(self.own):
            try:
                theirs = runtime.stat()
            except FileNotFoundError:
                return
            ours = self.own.stat()
            if (ours.st_uid, ours.st_gid, ours.st_mode) != (theirs.st_uid, theirs.st_gid, theirs.st_mode):
                self.own.chmod(0o600)  # first, so that no moment in between lets in more than one of the two states
                os.chown(self.own, theirs.st_uid, theirs.st_gid)
                self.own.chmod(stat.S_IMODE(theirs.st_mode))

    def release(self) -> None:
        """Remove our own socket, and the symlink when it is still ours."""
        with _explained(self.path):
            if self.is_published:
                self.path.unlink()
            self.own.unlink(missing_ok=True)

    def _refuse_what_is_in_the_way(self) -> None:
        if self.is_bypassed or (self.path.is_symlink() and not self.path.exists()):
            return  # `publish` replaces it
        if not os.path.lexists(self.path):
            return
        if not self.path.is_socket():
            kind = "a directory" if self.path.is_dir() else "not a socket"
            raise SocketError(f"listen {str(self.path)!r} exists and is {kind}: remove it or choose another path")
        if not self._succeeds and accepts(self.path):
            raise SocketError(
                f"listen {str(self.path)!r}: another process serves this socket: stop it or choose another path"
            )

    def _refuse_the_living(self) -> None:
        """The path may lead to the bypass although a criproxy lives: two would bound one box."""
        if self._succeeds:
            return
        for entry in self._sockets():
            if not entry.is_symlink() and accepts(entry):
                raise SocketError(
                    f"listen {str(self.path)!r}: another criproxy serves at {entry.name!r}: stop it (`systemctl stop "
                    "criproxy`, or take the DaemonSet's pod off this node) or choose another path"
                )


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(0o755)  # whatever the umask is
    if not directory.is_dir():
        raise SocketError(f"listen directory {str(directory)!r} is not a directory: remove it or choose another path")


def accepts(path: Path) -> bool:
    """Whether somebody listens at `path`; where that is not certain, yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fsencode(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SocketError(
            f"socket {str(path)!r}: {error.strerror} ({error.filename!r}): check the directory and its owner"
        ) from error
