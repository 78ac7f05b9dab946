"""A walk through the parts' lives: begun, woken, configured, failed, hung and ceased at each of their awaits.

A seeded scheduler decides what becomes of each await. SCHEDULES says how many there are:
`SCHEDULES=10000 .venv/bin/python -m pytest tests/daemon/test_life.py`.
"""

import asyncio
import os
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.clock import Clock, Wake
from criproxy.concurrency.worker import StuckError
from criproxy.daemon.checkpoint import Checkpointer
from criproxy.daemon.register import PARTS
from criproxy.daemon.round import Round
from criproxy.model import PodRef, Sandbox
from criproxy.pods.part import Part
from criproxy.pods.stopping import StopBudget, StopRequests
from tests.fakes.counters import FakeCounters
from tests.fakes.log import FakeLog
from tests.fakes.part import node_settings

SCHEDULES = int(os.environ.get("SCHEDULES", "20"))
"""For each part."""
pytestmark = pytest.mark.timeout(300 + SCHEDULES)

ENDS_WITHIN = 50
"""Passes of the event loop from a cancel to the end of all looks: nobody waits for anything on the way."""

SETTINGS = (
    node_settings,
    lambda: node_settings(dry_run=True),
    lambda: node_settings(pass_through=True),
    lambda: node_settings(held_off="repair"),
    lambda: node_settings("io.weight = 'io.cost'\nmemory.proactive_reclaim = true\ncpuset.pin_pods = true"),
)
POD = Sandbox("s1", PodRef("u1", "batch", "job"), "/offline/podu1")
FAILURES = (OSError("full"), CgroupError("gone"), StuckError("it hangs"), ConnectionError("away"), ValueError("odd"))


class Turns(Clock):
    """A sleep takes one pass of the event loop, and the time that it was to take."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def boottime_s(self) -> float:
        return self.now_s

    monotonic_s = boottime_s

    async def sleep(self, seconds: float | None, slack_s: float = 0.0, wake: Wake | None = None) -> None:
        if seconds is None:
            assert wake is not None
            await wake.ends(asyncio.get_running_loop().create_future())
            return
        self.now_s += max(seconds, 0.001)
        await asyncio.sleep(0)


class Anybody:
    """Stands for every port, and for all that comes of it. Of what is awaited, `chance` decides what becomes."""

    processes: ClassVar[dict[str, object]] = {}
    placed = running_pods = (POD,)
    path = "/offline"
    kubelet_path = Path("/var/lib/kubelet")
    version = 2

    def __init__(self, chance: random.Random, clock: Clock) -> None:
        self._chance, self.clock, self.stops = chance, clock, StopRequests(clock)

    def __getattr__(self, name: str) -> "Anybody":
        if name.startswith("__"):
            raise AttributeError(name)
        return Anybody(self._chance, self.clock)

    def __getitem__(self, _: object) -> "Anybody":
        return self

    def __call__(self, *_: object, **__: object) -> "Anybody":
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __await__(self) -> Generator[Any, None, "Anybody"]:
        for _ in range(self._chance.randrange(3)):
            yield from asyncio.sleep(0).__await__()
        match self._chance.randrange(4):
            case 0:
                raise self._chance.choice(FAILURES)
            case 1:
                yield from asyncio.get_running_loop().create_future().__await__()  # for ever
        return self


async def passes(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def life(round: Round, part: Part, chance: random.Random) -> None:
    """It is begun a few times, as after hand-overs that failed, and always ends at once."""
    for _ in range(chance.randint(1, 3)):
        running = asyncio.create_task(round.run())
        for _ in range(chance.randrange(6)):
            await passes(chance.randrange(8))
            if chance.random() < 0.5:
                round.configure(chance.choice(SETTINGS)())
            elif part.wake is not None:
                part.wake.set()
        assert not running.done(), "what fails of a look ends nothing"
        running.cancel()
        await passes(ENDS_WITHIN)
        assert running.cancelled(), "it waits for something on its way out"
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it has left something at work"
    await round.close()


def checkpointer(anybody: Any) -> Part:
    return Checkpointer(anybody, anybody, anybody, anybody, StopBudget(), anybody)


MADE = {kind.__name__: kind.made for kind in PARTS} | {"Checkpointer": checkpointer}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_part_ends_at_once_whatever_becomes_of_each_of_its_awaits(make: Callable[[Any], Part]) -> None:
    for seed in range(SCHEDULES):
        chance, clock, log = random.Random(seed), Turns(), FakeLog()
        part = make(Anybody(chance, clock))
        round = Round([part], FakeCounters(), clock, log)
        round.configure(SETTINGS[-1]())
        try:
            asyncio.run(life(round, part, chance))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}; it failed of {part.failure!r}") from error
        told = [fields["error"] for _, event, fields in log.events if event == "look_failed"]
        assert not part.failure or part.failure in told
        assert bool(part.failure) <= bool(list(Part.problems(part)))
