"""Waiting in real time for what another thread, process or peer makes true: there is no event to wait for."""

import asyncio
import inspect
import time
from collections.abc import Callable

LONG_S = 20.0
POLL_S = 0.001


async def until(condition: Callable[[], object], seconds: float = LONG_S) -> None:
    """Wait until `condition` holds; fail when it does not for `seconds`."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, f"not within {seconds} s: {inspect.getsource(condition)}"
        await asyncio.sleep(POLL_S)


def wait_until(condition: Callable[[], object], seconds: float = LONG_S) -> None:
    """`until`, outside a loop."""
    asyncio.run(until(condition, seconds))
