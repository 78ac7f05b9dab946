"""The clocks of the control loop, as one object to inject."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Seconds. `boottime_s` (CLOCK_BOOTTIME) only grows, in a suspended machine too; `wall_s` is UTC and may jump.
    `thread_cpu_s` is what the calling thread has used of a CPU.
    """

    def boottime_s(self) -> float: ...

    def wall_s(self) -> float: ...

    def thread_cpu_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    async def repeat(self, call: Callable[[], float | None]) -> None:
        """Call, each time so many seconds later as it has returned last, until it returns None. Raises what it does."""
        ...


class SystemClock:
    """The machine's own. See `Clock`."""

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()

    def thread_cpu_s(self) -> float:
        return time.thread_time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def repeat(self, call: Callable[[], float | None]) -> None:
        """By the event loop's own timers: to wake up a task costs a third more, and some calls are many a second."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def go_on() -> None:
            if done.cancelled():
                return
            try:
                seconds = call()
            except BaseException as error:
                done.set_exception(error)
                return
            if seconds is None:
                done.set_result(None)
            else:
                loop.call_later(seconds, go_on)

        go_on()
        await done
