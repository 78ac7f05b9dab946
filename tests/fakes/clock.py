"""A clock that jumps, and one that is ahead."""

from collections.abc import Callable

from criproxy.concurrency.clock import Clock, Wake


class FakeClock(Clock):
    """Time passes in `sleep` and by hand only. `stop_after` so many sleeps, a `run` is cancelled.

    `during`: what happens in each sleep.
    """

    def __init__(self, boottime_s: float = 1000.0, wall_s: float = 1_700_006_400.0) -> None:
        self.now, self.wall = boottime_s, wall_s
        self.slept: list[float] = []
        self.stop_after: int | None = None
        self.during: Callable[[], object] = lambda: None
        self.suspended_s = 0.0
        self.cpu_s = 0.0

    def boottime_s(self) -> float:
        return self.now

    def monotonic_s(self) -> float:
        return self.now - self.suspended_s

    def thread_cpu_s(self) -> float:
        return self.cpu_s

    def wall_s(self) -> float:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def suspend(self, seconds: float) -> None:
        """CLOCK_MONOTONIC, which counters are read by, stands still meanwhile."""
        self.suspended_s += seconds
        self.advance(seconds)

    async def sleep(self, seconds: float | None, slack_s: float = 0.0, wake: Wake | None = None) -> None:
        self.slept.append(seconds or 0.0)
        self.advance(seconds or 0.0)
        self.during()
        if self.stop_after is not None and len(self.slept) >= self.stop_after:
            raise Stop

    async def repeat(self, call: Callable[[], float | None]) -> None:
        while (seconds := call()) is not None:
            await self.sleep(seconds)


class ClockAhead(Clock):
    """The machine's, but for `ahead_s`."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class Stop(BaseException):
    """Ends `run`, as a cancellation does."""
