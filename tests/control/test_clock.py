"""The machine's clock in an event loop: what it repeats, and until when."""

import asyncio
import itertools

import pytest

from criproxy.control.clock import SystemClock


def test_repeat_calls_until_there_is_no_next_time():
    left = [0.0, 0.001, None, 0.0]
    asyncio.run(SystemClock().repeat(lambda: left.pop(0)))
    assert left == [0.0]


def test_repeat_waits_as_long_as_the_call_has_said():
    clock, called_s = SystemClock(), []

    def call():
        called_s.append(clock.boottime_s())
        return 0.05 if len(called_s) < 3 else None

    asyncio.run(clock.repeat(call))
    assert all(later - earlier >= 0.045 for earlier, later in itertools.pairwise(called_s))


@pytest.mark.parametrize("at", [1, 2], ids=["first", "later"])
def test_repeat_raises_what_the_call_does(at):
    called = []

    def call():
        called.append(1)
        if len(called) == at:
            raise ZeroDivisionError
        return 0.0

    with pytest.raises(ZeroDivisionError):
        asyncio.run(SystemClock().repeat(call))


def test_repeat_that_is_cancelled_calls_no_more():
    called = []

    def call():
        called.append(1)
        return 0.0

    async def scenario():
        repeating = asyncio.create_task(SystemClock().repeat(call))
        while len(called) < 3:  # noqa: ASYNC110 - the timer makes it so
            await asyncio.sleep(0)
        repeating.cancel()
        until = len(called)
        with pytest.raises(asyncio.CancelledError):
            await repeating
        await asyncio.sleep(0.01)
        return until

    assert asyncio.run(scenario()) == len(called)


def test_repeat_lets_others_go_on_between():
    async def scenario():
        other = asyncio.Event()
        asyncio.get_running_loop().call_soon(other.set)
        await SystemClock().repeat(lambda: None if other.is_set() else 0.0)

    asyncio.run(asyncio.wait_for(scenario(), 30))
