"""The daemon's event loop: asyncio's own, except that all its timers hang on one timer of the kernel (a timerfd).

asyncio gives each epoll_wait the time until its next timer, and the kernel then sets up and takes down a timer for each
wait. A daemon always has a timer pending, so every call that it carries would pay for that. Here the timer is set only
when the next deadline changes, and epoll_wait has no time-out.

Source: timerfd_create(2), epoll(7); kernel, fs/eventpoll.c, ep_poll().
"""

import asyncio
import contextlib
import os
import select
import selectors
import time
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
"""Source: linux/timerfd.h, TFD_TIMER_ABSTIME."""

_SAME_S: Final = 0.0001
"""asyncio says how long to wait, not until when. What differs by less is the same deadline."""


class EventLoop(asyncio.SelectorEventLoop):
    """As asyncio's, until `use_timerfd`."""

    def __init__(self) -> None:
        self._timers = TimerSelector()
        super().__init__(self._timers)

    def use_timerfd(self) -> None:
        """Where the kernel has no timerfds, all stays as it is. This imports ctypes, which takes some milliseconds."""
        with contextlib.suppress(OSError, AttributeError):  # another kernel, another libc
            self._timers.use(Timerfd())


class TimerSelector(selectors.EpollSelector):
    """Waits without a time-out once it has a timer."""

    _timer: "Timerfd | None" = None

    def use(self, timer: "Timerfd") -> None:
        """The timer's expiry ends a wait, and nobody has to read it: as it is edge-triggered, it does so once."""
        with contextlib.closing(select.epoll.fromfd(os.dup(self.fileno()))) as same:
            same.register(timer.fd, select.EPOLLIN | select.EPOLLET)
        self._timer = timer

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._timer is not None and timeout is not None and timeout > 0.0:
            self._timer.expire_in(timeout)
            timeout = None
        return super().select(timeout)

    def close(self) -> None:
        super().close()
        if self._timer is not None:
            os.close(self._timer.fd)
            self._timer = None


class Timerfd:
    """One timer of CLOCK_MONOTONIC, `fd`, which is readable once it has expired. Raises OSError when there is none."""

    def __init__(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: Final[int] = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._set_time: Final = libc.timerfd_settime
        self._spec: Final = (ctypes.c_long * 4)()
        """struct itimerspec: the interval's seconds and nanoseconds, which stay 0, and the deadline's."""
        self._at_s = 0.0

    def expire_in(self, seconds: float) -> None:
        """Expire once, in `seconds`; an expiry that was set before is replaced."""
        now_s = time.monotonic()
        at_s = now_s + seconds
        if now_s < self._at_s and abs(at_s - self._at_s) < _SAME_S:
            return
        self._at_s = at_s
        self._spec[2] = whole_s = int(at_s)
        self._spec[3] = int((at_s - whole_s) * 1e9)
        self._set_time(self.fd, _ABSOLUTE, self._spec, None)
