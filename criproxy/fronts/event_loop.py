"""The daemon's event loop: asyncio's own, but for its timers and for what is read at once.

All timers hang on one timer of the kernel (a timerfd). asyncio gives each epoll_wait the time until its next timer, and
the kernel then sets up and takes down a timer for each wait. A daemon always has a timer pending, so every call that it
carries would pay for that. Here the timer is set only when the next deadline changes, and epoll_wait has no time-out.

What is registered with `read_at_once` is read as soon as epoll_wait names it, and while nothing asks for asyncio's
attention, the next wait follows: a round of asyncio's loop costs about as much as carrying a frame. What looks many
times a second has a timer of its own, `direct_timer`, which is read at once as well.

Only one thread at a time runs Python, and each that wants to while another one does wakes up once more. So a thread
gets its job once the event loop has nothing to do but to wait, and its answer comes by an eventfd that nobody reads.

Source: timerfd_create(2), eventfd(2), epoll(7); kernel, fs/eventpoll.c, ep_poll().
"""

import asyncio
import contextlib
import math
import os
import select
import selectors
import time
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Final, TypeVarTuple

from criproxy.concurrency.clock import asyncio_timer

_Ts = TypeVarTuple("_Ts")

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
"""Source: linux/timerfd.h, TFD_TIMER_ABSTIME."""

_SAME_S: Final = 0.0001
"""asyncio says how long to wait, not until when. What differs by less is the same deadline."""

_EVENTS: Final = 64
"""Of one wait. What has more comes with the next."""

_ROUNDS: Final = 8
"""After so many rounds in which the event loop has not waited, what is to be called before it waits is called."""


class EventLoop(asyncio.SelectorEventLoop):
    """As asyncio's, until `use_timerfd`."""

    def __init__(self) -> None:
        self.waits: Final = AtOnceSelector()
        super().__init__(self.waits)

    def use_timerfd(self) -> None:
        """Where the kernel has no timerfds, all stays as it is. This imports ctypes, which takes some milliseconds."""
        with contextlib.suppress(OSError, AttributeError):  # another kernel, another libc
            self.waits.use(Timerfd(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def _write_to_self(self) -> None:
        """What asyncio calls after another thread has given it something to do."""
        if self.waits.answers is None:
            super()._write_to_self()  # type: ignore[misc]  # typeshed leaves it out
        else:
            os.eventfd_write(self.waits.answers, 1)

    def read_at_once(self, descriptor: int, read: Callable[[], bool]) -> None:
        """Call `read` when the file has something to read, and asyncio reads it, too: asyncio looks when it returns
        False. It must not block and not raise. To be ended by `forget`, before the file is closed.
        """
        self.waits.at_once[descriptor] = read

    def forget(self, descriptor: int) -> None:
        self.waits.at_once.pop(descriptor, None)

    def before_wait(self, call: Callable[[], object]) -> None:
        """Call this once what is to be done now has been done, or when that takes long. It must not block nor raise."""
        self.waits.before.append(call)

    @contextlib.contextmanager
    def direct_timer(self, call: Callable[[], None]) -> Iterator[Callable[[float], object]]:
        """What is yielded has `call` called after the seconds that it is given. `call` must not block nor raise.
        Each call has to ask for the next. One that asks for the same seconds again and again costs no system call, as
        the kernel's timer is periodic then; after a late call, one that would follow within half that time is left out.
        The timer goes with the context.
        """
        try:
            timer = None if self.waits.timer is None else Timerfd()
        except OSError:  # no descriptor is free for a moment
            timer = None
        if timer is None:
            with asyncio_timer(self, call) as call_in:
                yield call_in
            return
        called_s = -math.inf

        def expired() -> bool:
            nonlocal called_s
            try:
                os.read(timer.fd, 8)
            except BlockingIOError:  # it was set anew meanwhile
                return True
            now_s = time.monotonic()
            if now_s - called_s >= timer.each_s / 2:
                called_s = now_s
                call()
            return True

        self.add_reader(timer.fd, expired)
        self.read_at_once(timer.fd, expired)
        try:
            yield timer.expire_each
        finally:
            self.forget(timer.fd)
            self.remove_reader(timer.fd)
            os.close(timer.fd)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.waits.goes_on = False
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.waits.goes_on = False
        return super().call_at(when, callback, *args, context=context)


class AtOnceSelector(selectors.EpollSelector):
    """Once it has a timer, it waits without a time-out, and reads what is in `at_once` while it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once: Final[dict[int, Callable[[], bool]]] = {}
        self.goes_on = False
        """Whether the event loop has nothing to do but to wait."""
        self.before: Final[list[Callable[[], object]]] = []
        """What is called once, before the next wait."""
        self._put_off = 0
        """How many rounds of the event loop have put that off."""
        self.timer: Timerfd | None = None
        self.answers: int | None = None
        """The eventfd by which other threads end a wait."""
        self.epoll = select.epoll.fromfd(os.dup(self.fileno()))

    def use(self, timer: "Timerfd", answers: int) -> None:
        """Each of them ends a wait, and nobody has to read it: as it is edge-triggered, it does so once."""
        for descriptor in (timer.fd, answers):
            self.epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self.timer, self.answers = timer, answers

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        waits = timeout is None or timeout > 0.0
        if waits and timeout is not None and self.timer is not None:
            self.timer.expire_in(timeout)
        if self.before:
            self._call_before(waits)
        if self.timer is None or not waits:
            return super().select(timeout)
        at_once, poll, readable = self.at_once, self.epoll.poll, select.EPOLLIN
        left = False
        self.goes_on = True
        while self.goes_on:
            for descriptor, event in poll(-1, _EVENTS):
                if event != readable or (read := at_once.get(descriptor)) is None or not read():
                    left, self.goes_on = True, False
        return super().select(0) if left else []

    def _call_before(self, waits: bool) -> None:
        self._put_off = 0 if waits else self._put_off + 1
        if self._put_off % _ROUNDS == 0:
            for call in self.before:
                call()
            self.before.clear()

    def close(self) -> None:
        self.epoll.close()
        super().close()
        if self.timer is not None and self.answers is not None:
            answers, self.answers = self.answers, None
            os.close(self.timer.fd)
            os.close(answers)
            self.timer = None


class Timerfd:
    """One timer of CLOCK_MONOTONIC, `fd`, which is readable once it has expired. Raises OSError when there is none."""

    def __init__(self) -> None:
        import ctypes

        libc = ctypes.PyDLL(None, use_errno=True)  # as none of its calls waits for anything, no other thread runs first
        self.fd: Final[int] = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._set_time: Final = libc.timerfd_settime
        self._spec: Final = (ctypes.c_long * 4)()
        """struct itimerspec: the interval's seconds and nanoseconds, and the first expiry's."""
        self._at_s = 0.0
        self.each_s = -1.0

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

    def expire_each(self, seconds: float) -> None:
        """Expire after `seconds`, and then each time they have passed again; what was set before is replaced."""
        if seconds == self.each_s:
            return
        self.each_s = seconds
        whole_s = int(seconds)
        self._spec[0] = self._spec[2] = whole_s
        self._spec[1] = self._spec[3] = max(1, int((seconds - whole_s) * 1e9))  # 0 would switch it off
        self._set_time(self.fd, 0, self._spec, None)
