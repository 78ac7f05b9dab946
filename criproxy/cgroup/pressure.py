"""Listens to the kernel's reports that the processes of a cgroup wait for CPU (PSI triggers).

Source: Documentation/accounting/psi.rst, "Monitoring for pressure thresholds".
"""

import asyncio
import errno
import os
import select
from collections.abc import Callable
from typing import Final

from criproxy.cgroup.driver import CgroupDriver, checked_path
from criproxy.cgroup.kernel_files import CPU_PRESSURE
from criproxy.cgroup.naming import parse_box

TRIGGERS: Final = ((50_000, 500_000), (200_000, 2_000_000))
"""Waiting time and window in us: a tenth of each window. Without CAP_SYS_RESOURCE only windows of 2 s are taken."""

_RETRY_S: Final = 5.0
_WITHOUT: Final = "the guard goes by usage alone, where the prediction bounds CPU"


def online_pressure(driver: CgroupDriver, box: str | None) -> str | None:
    """The file that says how long online waits for CPU, by its box; None: there is no box, or none on this version."""
    if box is None or driver.version != 2:
        return None
    return driver.files.file(CPU_PRESSURE, checked_path(parse_box(box).online))


class PressureListener:
    """`file` returns where to listen now: a cpu.pressure file, or None where the kernel has none.

    A trigger lives as long as its file stays open. Its event is POLLPRI, which the event loop does not poll for: so it
    is put into an epoll instance, which in turn is readable.
    """

    def __init__(self, file: Callable[[], str | None]) -> None:
        self._file = file
        self._fd = -1
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._armed: str | None = ""
        self._next_s = 0.0
        self._reported = False
        self._on_report: Callable[[], None] | None = None
        self.note = "not listening"

    def follow(self, now_s: float, on_report: Callable[[], None]) -> None:
        """Listen to the present file; looked at again every few seconds, since cgroups come and go.

        `now_s`: by any clock that only grows, always the same one. `on_report` is called with each report.
        """
        self._on_report = on_report
        if now_s < self._next_s:
            return
        self._next_s = now_s + _RETRY_S
        file = self._file()
        if file != self._armed:
            self.close()
            self._next_s = now_s + _RETRY_S
            self._arm(file)

    def take(self) -> bool:
        reported, self._reported = self._reported, False
        return reported

    def close(self) -> None:
        """Stop listening; `follow` begins anew."""
        if self._epoll is not None and self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._epoll, self._armed, self._next_s = -1, None, "", 0.0
        self._reported = False
        self.note = "not listening"

    def _arm(self, file: str | None) -> None:
        if file is None:
            self._armed = None
            self.note = f"not reported by cgroup v1; {_WITHOUT}"
            return
        try:
            self._fd, window_us = _open(file)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "unknown errno")
            self.note = f"not reported: {file}: {name} ({error.strerror}); {_WITHOUT}"
            return
        self._epoll = select.epoll()
        self._epoll.register(self._fd, select.EPOLLPRI)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._heard)
        self._armed = file
        self.note = f"listening to {file}, windows of {window_us / 1e6:g} s"

    def _heard(self) -> None:
        if self._epoll is None:
            return
        # Polling takes the event away, and the event loop has polled: only what stays, an error, is found here.
        if any(events & select.EPOLLERR for _, events in self._epoll.poll(0)):
            self.close()  # the cgroup is gone
        else:
            self._reported = True
            if self._on_report is not None:
                self._on_report()


def _open(file: str) -> tuple[int, int]:
    """The descriptor of the first trigger that the kernel takes, and its window in us. Raises OSError."""
    refused: OSError | None = None
    for stall_us, window_us in TRIGGERS:
        fd = os.open(file, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, f"some {stall_us} {window_us}".encode())
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
            refused = error
        else:
            return fd, window_us
    raise refused or OSError(errno.EINVAL, "no trigger is taken")
