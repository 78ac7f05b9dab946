"""Looks of parts: each in its time, none kept from it by another, and what fails ends nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from criproxy.concurrency.clock import Clock, Wake
from criproxy.daemon.register import PARTS
from criproxy.daemon.round import LATE_S, UNREADY_S, Round
from criproxy.pods.part import Part
from criproxy.pods.stopping import StopRequests
from tests.fakes.clock import FakeClock
from tests.fakes.counters import FakeCounters
from tests.fakes.log import FakeLog
from tests.fakes.part import node_settings
from tests.fakes.waiting import until

NEVER_S = 3600.0


class Looks(Part):
    """Does `what` in each look, and can be woken. Has ceased `ceased` times."""

    NAME = "looking"

    def __init__(self, what: Callable[[], object] = lambda: None, pause_s: float | None = None) -> None:
        self.what, self._pause_s = what, pause_s
        self._wake = Wake()
        self.looks = self.ceased = self.closed = 0

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        return self._pause_s

    async def look(self) -> None:
        self.looks += 1
        if asyncio.iscoroutine(done := self.what()):
            await done

    def cease(self) -> None:
        self.ceased += 1

    def close(self) -> None:
        self.closed += 1


def run(round: Round, goal: Callable[[], object]) -> None:
    """The round, until something is so; then it is cancelled."""

    async def go() -> None:
        running = asyncio.create_task(round.run())
        await until(goal)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())


def fail() -> None:
    raise OSError("no such file")


def test_part_that_hangs_or_fails_keeps_no_other_from_its_looks_and_all_cease_at_the_end() -> None:
    hangs, fails, well = Looks(lambda: asyncio.sleep(NEVER_S)), Looks(fail, 0.001), Looks(pause_s=0.001)
    log, counters = FakeLog(), FakeCounters()
    run(Round([hangs, fails, well], counters, Clock(), log), lambda: fails.looks >= 3 and well.looks >= 3)

    assert (hangs.looks, hangs.ceased, fails.ceased, well.ceased) == (1, 1, 1, 1)
    assert [(event, fields["error"]) for _, event, fields in log.events] == [("look_failed", "no such file")]
    assert len(counters.of("part_looks_failed")) >= 3
    assert list(fails.problems()) == ["looking failed, and is tried again: no such file"]


def test_look_that_succeeds_again_is_told_and_is_no_problem_any_more() -> None:
    log = FakeLog()
    part = Looks(fail)
    round = Round([part], FakeCounters(), Clock(), log)
    asyncio.run(round.look(part))
    part.what = lambda: None
    asyncio.run(round.look(part))

    assert [event for _, event, _ in log.events] == ["look_failed", "look_succeeded"]
    assert list(part.problems()) == []


def test_part_that_waits_to_be_woken_looks_once_for_each_time_that_it_was() -> None:
    part = Looks()
    part.wake.set()
    seen = []

    async def go() -> None:
        running = asyncio.create_task(Round([part], FakeCounters(), Clock(), FakeLog()).run())
        for _ in range(2):
            await asyncio.sleep(0.02)
            seen.append(part.looks)
            part.wake.set()
        await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())
    assert (seen, part.looks) == ([2, 3], 4), "the first look comes at once; what woke it before counts for the next"


def test_wake_ends_a_long_pause() -> None:
    part = Looks(pause_s=NEVER_S)

    async def go() -> None:
        running = asyncio.create_task(Round([part], FakeCounters(), Clock(), FakeLog()).run())
        await asyncio.sleep(0.01)
        part.wake.set()
        await until(lambda: part.looks >= 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())


def test_first_look_comes_after_a_while_or_when_it_is_woken() -> None:
    class Later(Looks):
        FIRST_S = NEVER_S

    waits, woken = Later(), Later()
    woken.wake.set()
    run(Round([waits, woken], FakeCounters(), Clock(), FakeLog()), lambda: woken.looks)

    assert (waits.looks, woken.looks) == (0, 1)


def test_one_that_fails_to_cease_or_close_keeps_no_other_from_it() -> None:
    class Stubborn(Looks):
        def cease(self) -> None:
            raise RuntimeError

        close = cease

    last = Looks()
    round = Round([Stubborn(), last], FakeCounters(), Clock(), FakeLog())
    run(round, lambda: last.looks == 1)
    asyncio.run(round.close())

    assert (last.ceased, last.closed) == (1, 1)


async def stray() -> None:
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


def test_cancel_that_nobody_asked_for_is_a_failure_and_ends_no_looks() -> None:
    part = Looks(stray, 0.001)
    log = FakeLog()
    run(Round([part], FakeCounters(), Clock(), log), lambda: part.looks >= 3)

    assert [(event, fields["error"]) for _, event, fields in log.events] == [
        ("look_failed", "it was cancelled, though nobody has cancelled it")
    ]
    assert list(part.problems()) != []


def test_look_that_does_not_end_is_a_problem_and_a_metric() -> None:
    part, clock = Looks(lambda: asyncio.sleep(NEVER_S)), FakeClock()
    round = Round([part], FakeCounters(), clock, FakeLog())
    seen = []

    def until() -> bool:
        if part.looks:
            seen.append((list(round.problems()), round.failing(), round.lasting()))
            clock.advance(LATE_S + 1.0)
        return len(seen) == 2

    run(round, until)
    name = Looks.NAME
    assert seen == [
        ([], {name: 0.0}, {name: 0.0}),
        ([f"{name} has waited for 61 s for an answer, and goes on when it comes"], {name: 1.0}, {name: 61.0}),
    ]
    assert round.failing() == {name: 0.0}


def test_part_that_fails_on_and_on_makes_criproxy_unready_until_a_look_succeeds() -> None:
    part, clock = Looks(fail), FakeClock()
    round = Round([part], FakeCounters(), clock, FakeLog())
    said = []
    for what in (fail, fail, lambda: None, fail):
        part.what = what
        asyncio.run(round.look(part))
        said.append(round.unready())
        clock.advance(UNREADY_S + 1.0)

    words = f"{Looks.NAME} has failed for 91 s: `criproxy status` says of what"
    assert said == [None, words, None, None]
    assert round.unready() is not None


def test_look_that_does_not_end_makes_criproxy_unready() -> None:
    part, clock = Looks(lambda: asyncio.sleep(NEVER_S)), FakeClock()
    round = Round([part], FakeCounters(), clock, FakeLog())
    said = []

    def until() -> bool:
        if part.looks:
            said.append(round.unready())
            clock.advance(UNREADY_S + 1.0)
        return len(said) == 2

    run(round, until)
    assert said == [None, f"{Looks.NAME} has waited for 91 s for an answer"]


def names(part: Any) -> list[str]:
    return [part.NAME, *(one.name for one in (*part.GAUGES, *part.COUNTERS))]


def test_no_two_parts_have_a_name_or_a_metric_in_common() -> None:
    found = [name for part in PARTS for name in names(part)]
    assert len(set(found)) == len(found)


class Nobody:
    """Stands for every port, and does not answer: what is asked of it waits for ever."""

    processes: ClassVar[dict[str, object]] = {}
    clock, stops, kubelet_path = Clock(), StopRequests(), Path("/var/lib/kubelet")

    def __getattr__(self, name: str) -> "Nobody":
        return Nobody()

    def __getitem__(self, _: object) -> "Nobody":
        return Nobody()

    def __call__(self, *_: object, **__: object) -> "Nobody":
        return Nobody()

    def __await__(self):
        return asyncio.sleep(NEVER_S).__await__()

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_each_part_can_be_made_configured_begun_ceased_begun_anew_and_closed(kind: type[Part]) -> None:
    """On a node where nothing answers; twice, as after a hand-over that failed."""
    part = kind.made(Nobody())  # type: ignore[arg-type]
    round = Round([part], FakeCounters(), Clock(), FakeLog())
    for now in (
        node_settings(dry_run=True),
        node_settings(pass_through=True),
        node_settings(held_off="repair"),
        node_settings(),
    ):
        round.configure(now)
    for _ in range(2):
        turns = iter(range(5))
        run(round, lambda turns=turns: next(turns, None) is None)  # type: ignore[misc]
    asyncio.run(round.close())

    assert part.failure == ""
    assert isinstance(dict(part.section()), dict)
    assert all(isinstance(words, str) for row in part.rows() for words in row)
