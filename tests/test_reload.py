"""The look at the config file for a change."""

import asyncio
from types import SimpleNamespace

from criproxy.reload import Reload


class Clock:
    """Time passes in its sleeps alone. It repeats a call three times."""

    def __init__(self):
        self.now_s = 0.0

    async def sleep(self, seconds):
        self.now_s += seconds

    async def repeat(self, call):
        for _ in range(3):
            await self.sleep(call())


def test_first_look_at_the_config_comes_as_long_after_a_task_before_as_all_others():
    """A hand-over that failed begins anew with what it had ceased: a file amid a change is no file at rest."""
    clock, looks = Clock(), []
    watch = SimpleNamespace(changed=lambda: looks.append(clock.now_s))
    reload = Reload(watch, SimpleNamespace(config=None), None, None, None, clock=clock, log=None)
    asyncio.run(reload.watch_config())
    assert looks == [0.5, 1.0, 1.5]
