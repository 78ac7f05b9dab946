"""The one clock of the daemon's parts, as an object to inject: what time it is, and waiting, with shared wake-ups.

A part that need not wake up at an exact moment says how much later will do. Whenever the clock wakes up anybody, it
wakes up all whose time has come, however much later they could have been. So the parts that do something each second
or minute share the wake-ups of the control loop, and cost none of their own.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct


@runtime_checkable
class DirectTimers(Protocol):
    """An event loop that has cheaper timers than asyncio's (`criproxy.fronts.event_loop`)."""

    def direct_timer(self, call: Callable[[], None]) -> AbstractContextManager[Callable[[float], object]]:
        """What is yielded has `call` called after the seconds that it is given. Each call asks for the next."""


@contextmanager
def asyncio_timer(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Iterator[Callable[[float], object]]:
    """The same by the timers that every event loop has."""
    pending: asyncio.TimerHandle | None = None

    def call_in(seconds: float) -> None:
        nonlocal pending
        if pending is not None:
            pending.cancel()
        pending = loop.call_later(seconds, call)

    try:
        yield call_in
    finally:
        if pending is not None:
            pending.cancel()


_EARLY: Final = 0.05


class _Sleeper(Struct, eq=False):
    """One who waits, by the event loop's time."""

    earliest_s: float
    latest_s: float
    awake: asyncio.Future[None]


class Wake:
    """Ends a sleep early (`Clock.sleep`): the one under way, or else the next."""

    def __init__(self) -> None:
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """On the event loop."""
        self._is_set = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    @property
    def is_set(self) -> bool:
        """A sleep is to end that has not ended yet."""
        return self._is_set

    async def ends(self, sleeper: "asyncio.Future[None]") -> None:
        """Wait for this one, or until set."""
        self._sleeper = sleeper
        try:
            if not self._is_set:
                await sleeper
        finally:
            self._sleeper, self._is_set = None, False


class Clock:
    """The machine's, in seconds. `boottime_s` (CLOCK_BOOTTIME) only grows, in a suspended machine too; `monotonic_s`
    (CLOCK_MONOTONIC) stands still there; `wall_s` is UTC and may jump; `thread_cpu_s` is what the calling thread has
    used of a CPU. To sleep by it is for one event loop.
    """

    def __init__(self) -> None:
        self._sleepers: list[_Sleeper] = []
        self._timer: asyncio.TimerHandle | None = None

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def thread_cpu_s(self) -> float:
        return time.thread_time()

    async def sleep(self, seconds: float | None, slack_s: float = 0.0, wake: Wake | None = None) -> None:
        """Wait that long, or until `wake` is set; None: for that alone.

        With slack, up to `slack_s` longer or a twentieth shorter, to share a wake-up: two that wait for a second each
        would else miss each other by a millisecond for ever. A suspended machine's time does not count.
        """
        loop, wake = asyncio.get_running_loop(), wake or Wake()
        if seconds is None:
            await wake.ends(loop.create_future())
            return
        until_s = loop.time() + seconds
        sleeper = _Sleeper(until_s - (seconds * _EARLY if slack_s else 0.0), until_s + slack_s, loop.create_future())
        self._sleepers.append(sleeper)
        self._wake_at(sleeper.latest_s, loop)
        try:
            await wake.ends(sleeper.awake)
        finally:
            self._sleepers.remove(sleeper)

    def _wake_at(self, at_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """Wake up by then, or earlier: a timer that comes too soon does no harm."""
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        waiting = [sleeper for sleeper in self._sleepers if not sleeper.awake.done()]
        for sleeper in waiting:
            if sleeper.earliest_s <= now_s:
                sleeper.awake.set_result(None)
        if rest := [sleeper.latest_s for sleeper in waiting if not sleeper.awake.done()]:
            self._wake_at(min(rest), loop)

    async def repeat(self, call: Callable[[], float | None]) -> None:
        """Call again and again, until it returns None: it returns the seconds to wait. Raises what `call` does.

        By timers that cost least: to wake up a task costs a third more, and some calls are many a second.
        """
        if (first := call()) is None:
            return
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def go_on() -> None:
            if done.done():
                return
            try:
                seconds = call()
            except BaseException as error:
                done.set_exception(error)
                return
            if seconds is None:
                done.set_result(None)
            else:
                call_in(seconds)

        with loop.direct_timer(go_on) if isinstance(loop, DirectTimers) else asyncio_timer(loop, go_on) as call_in:
            call_in(first)
            await done
