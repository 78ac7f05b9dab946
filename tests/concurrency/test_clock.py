"""The machine's clock in an event loop: what it repeats, and until when."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from criproxy.concurrency.clock import Clock
from criproxy.fronts.event_loop import EventLoop


def _direct_timers() -> asyncio.AbstractEventLoop:
    loop = EventLoop()
    loop.use_timerfd()
    return loop


@pytest.fixture(params=[asyncio.new_event_loop, EventLoop, _direct_timers], ids=["asyncio's", "ours", "direct timers"])
def run(request):
    """Runs a coroutine in each kind of event loop, for at most 30 s."""

    def run_in(scenario: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(scenario, 30))

    return run_in


def test_repeat_calls_until_there_is_no_next_time(run):
    left = [0.0, 0.001, None, 0.0]
    run(Clock().repeat(lambda: left.pop(0)))
    assert left == [0.0]


def test_repeat_waits_as_long_as_the_call_has_said(run):
    """In all: where one call comes late, a direct timer keeps to the time of the next."""
    clock, called_s = Clock(), []

    def call():
        called_s.append(clock.boottime_s())
        return 0.05 if len(called_s) < 3 else None

    run(clock.repeat(call))
    assert [called - called_s[0] >= number * 0.045 for number, called in enumerate(called_s)] == [True] * 3


@pytest.mark.parametrize("at", [1, 2], ids=["first", "later"])
def test_repeat_raises_what_the_call_does(at, run):
    called = []

    def call():
        called.append(1)
        if len(called) == at:
            raise ZeroDivisionError
        return 0.0

    with pytest.raises(ZeroDivisionError):
        run(Clock().repeat(call))


def test_repeat_that_is_cancelled_calls_no_more(run):
    called = []

    def call():
        called.append(1)
        return 0.0

    async def scenario():
        repeating = asyncio.create_task(Clock().repeat(call))
        while len(called) < 3:  # noqa: ASYNC110 - the timer makes it so
            await asyncio.sleep(0)
        repeating.cancel()
        until = len(called)
        with pytest.raises(asyncio.CancelledError):
            await repeating
        await asyncio.sleep(0.01)
        return until

    assert run(scenario()) == len(called)


def test_repeat_lets_others_go_on_between(run):
    async def scenario():
        other = asyncio.Event()
        asyncio.get_running_loop().call_soon(other.set)
        await Clock().repeat(lambda: None if other.is_set() else 0.0)

    run(scenario())


def test_two_repeats_side_by_side_both_go_on(run):
    async def scenario():
        clock, left = Clock(), [[0.001] * 3 + [None], [0.001] * 3 + [None]]
        await asyncio.gather(*(clock.repeat(partial(each.pop, 0)) for each in left))
        return left

    assert run(scenario()) == [[], []]


def test_repeat_goes_on_while_the_loop_has_always_something_to_do(run):
    async def scenario():
        left, busy = [0.001] * 5 + [None], True

        def spin():
            if busy:
                asyncio.get_running_loop().call_soon(spin)

        spin()
        await Clock().repeat(lambda: left.pop(0))
        busy = False
        return left

    assert run(scenario()) == []


async def _slept(clock, seconds, slack_s, name, order):
    await clock.sleep(seconds, slack_s)
    order.append(name)


def test_sleep_with_slack_ends_with_the_next_that_ends_once_its_time_has_come():
    async def scenario():
        clock = Clock()
        order: list[str] = []
        slack = asyncio.create_task(_slept(clock, 0.01, 3600.0, "slack", order))
        await _slept(clock, 0.001, 0.0, "too soon", order)
        assert not slack.done()
        await _slept(clock, 0.02, 0.0, "next", order)
        await slack
        return order

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == ["too soon", "slack", "next"]


def test_sleep_with_slack_joins_a_wake_up_that_comes_a_little_before_its_time():
    async def scenario():
        clock = Clock()
        slack = asyncio.create_task(clock.sleep(1.0, 3600.0))
        await clock.sleep(0.97)
        await slack

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_sleep_with_slack_ends_by_itself_when_nobody_else_wakes_up():
    asyncio.run(asyncio.wait_for(Clock().sleep(0.001, 0.01), 30))


def test_sleeps_that_share_a_wake_up_need_one_timer(monkeypatch):
    async def scenario():
        loop, timers = asyncio.get_running_loop(), []
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda when, *rest: timers.append(when) or call_at(when, *rest))  # type: ignore[func-returns-value]
        clock = Clock()
        await asyncio.gather(clock.sleep(0.02), *(clock.sleep(0.001, slack_s=3600.0) for _ in range(5)))
        return timers

    assert len(asyncio.run(scenario())) == 1


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "the last"])
def test_sleep_that_is_cancelled_keeps_nobody_else_from_waking_up(which):
    async def scenario():
        clock = Clock()
        tasks = [asyncio.create_task(clock.sleep(seconds)) for seconds in (0.01, 0.02)]
        await asyncio.sleep(0)
        tasks[which].cancel()
        await asyncio.wait(tasks)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == [which == 0, which == 1]


def test_sleep_of_no_time_lets_others_go_on():
    asyncio.run(asyncio.wait_for(Clock().sleep(-1.0), 30))
