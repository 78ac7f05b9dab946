"""The demo's labs, cleaned whatever happens, and what the machine must have for them."""

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, Never

from integration.demo import DemoError
from integration.lab.cgroups import hierarchies
from integration.lab.clean import clean, clean_abandoned, leftovers
from integration.lab.containerd import shim_sockets
from integration.lab.directory import abandoned, claimed
from integration.lab.process import LabError, descendants, kill_all

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """The user, or the system, ends the demo with a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


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
def cleaned(count: int, port: int | None = None) -> Iterator[list[Path]]:
    """So many labs, cleaned at the end whatever happens; and first what an earlier demo left. Signals are `Stopped`.

    Raises DemoError when the port is taken, or when something is left nevertheless.
    """
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    with contextlib.ExitStack() as stack:
        try:
            if left := abandoned():
                say(f"Cleaning up what an earlier demo left in {', '.join(map(str, left))}.")
                clean_abandoned()
            if port is not None:
                check_port(port)
            labs = [stack.enter_context(claimed()) for _ in range(count)]
            try:
                yield labs
            finally:
                _ignore_signals()
                _clear(labs)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _clear(labs: Sequence[Path]) -> None:
    """End and remove everything, then look for remains. Raises LabError or OSError on what resists."""
    start_s, sockets = time.monotonic(), [path for lab in labs for path in shim_sockets(lab)]
    kill_all(lambda: descendants([os.getpid()]))
    for lab in labs:
        clean(lab)
    left = [line for lab in labs for line in leftovers(lab)]
    left += [str(path) for path in (*sockets, *labs) if path.exists()]
    if left:
        raise DemoError("This is left of the demo, remove it by hand: " + "; ".join(left))
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
