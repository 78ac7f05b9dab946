"""A clock that jumps."""

from criproxy.control.clock import Clock


class FakeClock(Clock):
    """Time passes in `sleep` and by hand only. `sleeps` ends a `run` by cancelling it after so many sleeps."""

    def __init__(self, boottime_s=1000.0, wall_s=1_700_006_400.0):
        self.now, self.wall, self.slept = boottime_s, wall_s, []
        self.stop_after = None
        self.suspended_s = 0.0
        self.cpu_s = 0.0

    def boottime_s(self):
        return self.now

    def thread_cpu_s(self):
        return self.cpu_s

    def wall_s(self):
        return self.wall

    def advance(self, seconds):
        self.now += seconds
        self.wall += seconds

    def suspend(self, seconds):
        """CLOCK_MONOTONIC, which counters are read by, stands still meanwhile."""
        self.suspended_s += seconds
        self.advance(seconds)

    async def sleep(self, seconds, slack_s=0.0):
        self.slept.append(seconds)
        self.advance(seconds)
        if self.stop_after is not None and len(self.slept) >= self.stop_after:
            raise Stop

    async def repeat(self, call):
        while (seconds := call()) is not None:
            await self.sleep(seconds)


class Stop(BaseException):
    """Ends `run`, as a cancellation does."""
