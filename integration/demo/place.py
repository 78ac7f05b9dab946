"""The demo's one directory: held by one demo at a time, and cleaned; and what is needed beside it."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Never, TextIO

from integration.demo import DemoError
from integration.lab.cgroups import Tree, hierarchies
from integration.lab.clean import clean, leftovers
from integration.lab.containerd import shim_sockets
from integration.lab.directory import cgroup_root, socket_path
from integration.lab.process import LabError, descendants, kill_all

_LOCK: Final = "criproxy-demo.lock"
"""Its presence says that the directory is a demo's, its lock that the demo lives, its content which process that is."""

_LONGEST_SOCKET: Final = "kubelet/root/pod-resources/kubelet.sock"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """The user, or the system, ends the demo with a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo may make its labs, the second for a cluster's second node."""

    base: Path

    @property
    def lab(self) -> Path:
        return self.base / "lab"

    @property
    def labs(self) -> tuple[Path, ...]:
        return (self.lab, self.base / "lab2")

    @property
    def cgroup(self) -> str:
        """The demo's own cgroup: everything that it bounds or measures lies below."""
        return cgroup_root(self.lab)

    def is_clean(self) -> bool:
        """Whether no earlier demo has left anything."""
        return not any(lab.exists() or Tree(cgroup_root(lab)).directories() for lab in self.labs)

    def clear(self) -> None:
        """End and remove everything of this or an earlier demo, then look for remains.

        Raises LabError or OSError on what resists, DemoError when something is left nevertheless.
        """
        sockets = [path for lab in self.labs for path in shim_sockets(lab)]
        kill_all(lambda: descendants([os.getpid()]))
        for lab in self.labs:
            lab.mkdir(exist_ok=True)  # the cleaning goes by the directory
            clean(lab)
        left = [line for lab in self.labs for line in leftovers(lab)]
        left += [str(path) for path in (*sockets, *self.labs) if path.exists()]
        if left:
            raise DemoError("This is left of the demo, remove it by hand: " + "; ".join(left))


def check_cgroups() -> None:
    """Raises DemoError when there are none."""
    try:
        hierarchies()
    except LabError:
        here = "run the demo on a machine (or in a container) with /sys/fs/cgroup"
        raise DemoError(f"No cgroup hierarchy is mounted here: {here}.") from None


def check_port(port: int) -> None:
    """Raises DemoError when 127.0.0.1:`port` is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            what = "is taken by another program" if taken else f"can't be used ({error.strerror})"
            raise DemoError(f"Port 127.0.0.1:{port} {what}: give a free one with --port.") from error


@contextlib.contextmanager
def held(base: Path) -> Iterator[Place]:
    """Hold the place for one demo, until this process ends; signals become `Stopped`.

    Raises DemoError when another demo holds it or it can't be used, LabError when its name is too long for sockets.
    """
    place = Place(base)
    socket_path(place.labs[-1], _LONGEST_SOCKET)
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(base.iterdir()) and not (base / _LOCK).exists():
            raise DemoError(f"{base} is not empty, and not a demo's: give a new or empty --directory.")
        lock = _lock(base)
    except OSError as error:
        raise DemoError(f"{error.filename or base}: {error.strerror}: give another --directory.") from error
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    with lock:
        try:
            yield place
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
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
            wait = "wait for its end, or end it with Ctrl-C"
            raise DemoError(f"Another demo is running in {base} (pid {owner}): {wait}.") from None
        if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            return lock
        lock.close()  # its owner has just removed it: take the next one's


@contextlib.contextmanager
def cleaned(place: Place, port: int | None = None) -> Iterator[None]:
    """Clean up, whatever happens, undisturbed by further signals, and say so; and first what an earlier demo left.

    Raises DemoError when the port is taken.
    """
    if not place.is_clean():
        say(f"Cleaning up what an earlier demo left in {place.base}.")
        place.clear()
    if port is not None:
        check_port(port)
    place.lab.mkdir()
    try:
        try:
            yield
        finally:
            _ignore_signals()
    finally:  # also when a signal came just before it would have been ignored
        start_s = time.monotonic()
        place.clear()
        with contextlib.suppress(OSError):  # the terminal may be gone
            took = f"Cleaned up in {time.monotonic() - start_s:.1f} s"
            say(f"{took}, and looked again: no process, mount, cgroup, socket or file of the demo is left.")


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, _frame: FrameType | None) -> Never:
    _ignore_signals()  # one is enough: from here on it is cleaning up
    raise Stopped(number)


def say(text: str) -> None:
    """Tell the user one line."""
    print(text, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """A step of the set-up, told with the time that it took."""
    start_s = time.monotonic()
    yield
    say(f"  {time.monotonic() - start_s:5.1f} s  {what}")
