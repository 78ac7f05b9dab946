"""The clocks of the control loop, as one object to inject."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds. `boottime_s` (CLOCK_BOOTTIME) only grows, in a suspended machine too; `wall_s` is UTC and may jump."""

    def boottime_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own. See `Clock`."""

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
