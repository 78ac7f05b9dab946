"""The event loop whose timers hang on one timer of the kernel, and which reads at once."""

import asyncio
import errno
import itertools
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from criproxy.concurrency.clock import Clock
from criproxy.fronts import event_loop
from criproxy.fronts.event_loop import EventLoop
from tests.fakes.waiting import until


class Epoll:
    """The kernel's; `waits` are the time-outs that it was polled with."""

    def __init__(self, epoll: select.epoll, waits: list[float]) -> None:
        self._epoll = epoll
        self._waits = waits

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        self._waits.append(timeout)
        return self._epoll.poll(timeout, maxevents)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def run(monkeypatch: pytest.MonkeyPatch, scenario: Coroutine[Any, Any, None]) -> list[float]:
    """The time-outs of all polls, asyncio's and our own."""
    waits: list[float] = []
    monkeypatch.setattr(event_loop.AtOnceSelector, "_selector_cls", lambda _: Epoll(select.epoll(), waits))
    loop = EventLoop()
    monkeypatch.setattr(loop.waits, "epoll", Epoll(loop.waits.epoll, waits))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scenario)
    return waits


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
        loop.call_later(0.03, lambda: (order.append("late"), over.set()))  # type: ignore[func-returns-value]
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


def test_repeated_call_without_a_free_descriptor_for_a_timer_goes_by_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    called: list[int] = []

    def call() -> float | None:
        called.append(1)
        return 0.001 if len(called) < 3 else None

    async def scenario() -> None:
        use_timerfd()
        monkeypatch.setattr(event_loop.Timerfd, "__init__", none)
        await Clock().repeat(call)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(asyncio.wait_for(scenario(), 10.0))
    assert len(called) == 3


class Reads:
    """A socket that asyncio's loop reads, too: `rounds` of that. `at_once`: what was read from within the wait."""

    def __init__(self, then: Callable[[bytes], bool]) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.at_once: list[bytes] = []
        self.rounds: list[bytes] = []
        self._then = then
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EventLoop)
        self._loop = loop
        loop.add_reader(self.ours, lambda: self.rounds.append(self.ours.recv(100)))
        loop.read_at_once(self.ours.fileno(), self._read)

    def _read(self) -> bool:
        peeked = self.ours.recv(100, socket.MSG_PEEK)
        if not self._then(peeked):
            return False
        self.at_once.append(self.ours.recv(len(peeked)))
        return True

    def close(self) -> None:
        self._loop.forget(self.ours.fileno())
        self._loop.remove_reader(self.ours)
        self.ours.close()
        self.theirs.close()


@pytest.mark.parametrize("timerfd", [True, False])
def test_what_is_read_at_once_asyncio_does_not_see(timerfd: bool) -> None:
    async def scenario() -> tuple[list[bytes], list[bytes]]:
        if timerfd:
            use_timerfd()
        reads = Reads(lambda found: found != b"for asyncio")
        for number, word in enumerate((b"one", b"for asyncio", b"two"), 1):
            reads.theirs.send(word)
            await until(lambda: len(reads.at_once) + len(reads.rounds) == number)  # noqa: B023
        reads.close()
        return reads.at_once, reads.rounds

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        at_once, rounds = runner.run(scenario())
    assert (at_once, rounds) == (
        ([b"one", b"two"], [b"for asyncio"]) if timerfd else ([], [b"one", b"for asyncio", b"two"])
    )


def test_while_nothing_else_is_to_be_done_the_wait_goes_on() -> None:
    """Also when what is read writes: asyncio's loop makes one round before, and one when it is wanted."""

    async def scenario() -> int:
        use_timerfd()
        over = asyncio.get_running_loop().create_future()

        def then(found: bytes) -> bool:
            if len(reads.at_once) < 100:
                reads.theirs.send(found)
            else:
                over.set_result(None)
            return True

        reads = Reads(then)
        asyncio.get_running_loop().call_soon(reads.theirs.send, b"x")
        before = selected()
        async with asyncio.timeout(20):
            await over
        reads.close()
        return selected() - before

    selections: list[float | None] = []

    def selected() -> int:
        return len(selections)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, EventLoop)
        select_once = loop.waits.select
        loop.waits.select = lambda timeout=None: selections.append(timeout) or select_once(timeout)  # type: ignore
        assert runner.run(scenario()) < 5


@pytest.mark.parametrize("seconds", [0, 0.002])
def test_what_a_read_schedules_comes_though_nothing_more_is_read(seconds: float) -> None:
    async def scenario() -> None:
        use_timerfd()
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def then(_: bytes) -> bool:
            if seconds:
                loop.call_later(seconds, over.set)
            else:
                loop.call_soon(over.set)
            return True

        reads = Reads(then)
        loop.call_soon(reads.theirs.send, b"x")
        async with asyncio.timeout(20):
            await over.wait()
        reads.close()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())


def test_signal_ends_the_wait() -> None:
    async def scenario() -> None:
        use_timerfd()
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, over.set)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        async with asyncio.timeout(20):
            await over.wait()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())


def test_direct_timer_that_is_asked_for_the_same_again_makes_no_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        use_timerfd()
        loop, over, called, set_times = asyncio.get_running_loop(), asyncio.Event(), list[float](), list[object]()
        assert isinstance(loop, EventLoop)
        made = event_loop.Timerfd.__init__

        def watched(timer: event_loop.Timerfd) -> None:
            made(timer)
            set_time = timer._set_time
            timer._set_time = lambda *args: set_times.append(args) or set_time(*args)  # type: ignore

        monkeypatch.setattr(event_loop.Timerfd, "__init__", watched)

        def call() -> None:
            called.append(loop.time())
            if len(called) == 20:
                over.set()
            else:
                call_in(0.002 if len(called) < 10 else 0.001)

        with loop.direct_timer(call) as call_in:
            call_in(0.002)
            async with asyncio.timeout(20):
                await over.wait()
        return len(set_times)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(scenario()) == 2


def test_direct_timer_after_a_late_call_leaves_out_one_that_would_follow_at_once() -> None:
    async def scenario() -> list[float]:
        use_timerfd()
        loop, over, called_s = asyncio.get_running_loop(), asyncio.Event(), list[float]()
        assert isinstance(loop, EventLoop)

        def call() -> None:
            called_s.append(time.monotonic())
            if len(called_s) == 3:
                over.set()
            else:
                call_in(0.1)

        with loop.direct_timer(call) as call_in:
            call_in(0.1)
            time.sleep(0.19)  # noqa: ASYNC251 - the first call is late, and the second's time comes 10 ms later
            async with asyncio.timeout(20):
                await over.wait()
        return [later - earlier for earlier, later in itertools.pairwise(called_s)]

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert min(runner.run(scenario())) > 0.05


def test_what_waits_for_the_next_wait_is_called_after_all_that_is_to_be_done_at_this_moment() -> None:
    async def scenario() -> list[str]:
        loop, order = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, EventLoop)
        loop.before_wait(lambda: order.append("before the wait"))
        order.append("now")
        await asyncio.sleep(0)
        order.append("next")
        await asyncio.sleep(0.001)
        return order

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(scenario()) == ["now", "next", "before the wait"]


def test_what_waits_for_the_next_wait_is_called_after_the_timer_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that wakes up for it finds the interpreter free."""
    order: list[str] = []
    monkeypatch.setattr(event_loop.Timerfd, "expire_in", lambda *_: order.append("set"))

    async def scenario() -> None:
        use_timerfd()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EventLoop)
        later = loop.call_later(3600, lambda: None)
        order.clear()
        loop.before_wait(lambda: order.append("before the wait"))
        loop.before_wait(lambda: os.eventfd_write(loop.waits.answers or -1, 1))
        loop.waits.select(1.0)
        later.cancel()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())

    assert order == ["set", "before the wait"]


def test_what_waits_for_the_next_wait_is_called_though_the_event_loop_has_work_without_end() -> None:
    async def scenario() -> int:
        loop, called = asyncio.get_running_loop(), list[int]()
        assert isinstance(loop, EventLoop)
        loop.before_wait(lambda: called.append(1))
        for rounds in range(20):
            if called:
                return rounds
            await asyncio.sleep(0)
        return 20

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(scenario()) <= 10


def test_answers_of_threads_end_waits_without_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bytes] = []
    monkeypatch.setattr(EventLoop, "_process_self_data", lambda _, data: reads.append(data))

    async def scenario() -> None:
        use_timerfd()
        loop = asyncio.get_running_loop()
        for _ in range(20):
            await loop.run_in_executor(None, time.sleep, 0.001)

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(scenario())
        assert reads == []
