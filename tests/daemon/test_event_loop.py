"""The event loop whose timers hang on one timer of the kernel."""

import asyncio
import select
from collections.abc import Coroutine
from typing import Any

import pytest

from criproxy.daemon import event_loop
from criproxy.daemon.event_loop import EventLoop


class Epoll:
    """The kernel's; `waits` are the time-outs that it was polled with."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.waits: list[float] = []

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        self.waits.append(timeout)
        return self._epoll.poll(timeout, maxevents)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def run(monkeypatch: pytest.MonkeyPatch, scenario: Coroutine[Any, Any, None]) -> list[float]:
    """The time-outs of all polls."""
    made: list[Epoll] = []
    monkeypatch.setattr(event_loop.TimerSelector, "_selector_cls", lambda _: made.append(Epoll()) or made[0])
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario)
        return list(made[0].waits)


def use_timerfd() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, EventLoop)
    loop.use_timerfd()


def test_with_a_timerfd_no_poll_has_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        use_timerfd()
        await asyncio.gather(*(asyncio.sleep(seconds) for seconds in (0.02, 0.001, 0.00005, 0.01, 0.01)))
        await asyncio.sleep(0.003)

    waits = run(monkeypatch, scenario())
    assert set(waits) <= {-1, 0}
    assert -1 in waits


def test_before_it_timers_are_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(wait > 0 for wait in run(monkeypatch, asyncio.sleep(0.002)))


def test_timer_that_is_due_before_the_one_that_was_waited_for_comes_first() -> None:
    async def scenario() -> list[str]:
        use_timerfd()
        loop, order, over = asyncio.get_running_loop(), list[str](), asyncio.Event()
        loop.call_later(0.03, lambda: (order.append("late"), over.set()))
        await asyncio.sleep(0)
        loop.call_later(0.002, order.append, "soon")
        loop.call_later(0.001, order.append, "cancelled").cancel()
        await over.wait()
        return order

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(scenario()) == ["soon", "late"]


def test_many_timers_one_after_the_other_all_come() -> None:
    """Also those that are due at once, or while the one before them is dealt with."""

    async def scenario() -> None:
        use_timerfd()
        async with asyncio.timeout(30):
            for number in range(300):
                await asyncio.sleep(number % 7 * 0.00004)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())


def test_without_timerfds_timers_stay_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object) -> None:
        raise OSError("ENOSYS")

    monkeypatch.setattr(event_loop.Timerfd, "__init__", none)

    async def scenario() -> None:
        use_timerfd()
        await asyncio.sleep(0.002)

    assert any(wait > 0 for wait in run(monkeypatch, scenario()))
