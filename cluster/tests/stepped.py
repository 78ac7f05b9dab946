"""Time that passes while everybody waits, and only then: what a test says of seconds holds on a busy machine too.

A stepped event loop does all that can be done now; when nothing can, its clock jumps to the next timer. So it is for
tests whose parts are all in that one loop, as with the API server in memory (`fake_kube`).
"""

import asyncio
import selectors
import time


class _Jumping(selectors.DefaultSelector):
    now_s = 1000.0

    def select(self, timeout=None):
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class SteppedLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now_s


class SteppedTime:
    """What our modules use of `time`, by the running loop. `suspended_s`: so long the machine was, which a clock that
    only grows while it runs does not have.
    """

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    suspended_s = 0.0

    def __init__(self):
        self._ahead_s = time.time() - _Jumping.now_s

    def monotonic(self):
        return asyncio.get_running_loop().time()

    def clock_gettime(self, _):
        return self.monotonic() + self.suspended_s

    def time(self):
        return self._ahead_s + self.monotonic() + self.suspended_s


def run(scenario):
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(scenario)
