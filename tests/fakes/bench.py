"""The bench on which a test has one part of pods look: a clock, a log, counters, and what is stopped."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from criproxy.model import Sandbox
from criproxy.pods.part import Part
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, Holds
from tests.fakes.clock import FakeClock
from tests.fakes.counters import FakeCounters
from tests.fakes.hold_offs import held_off
from tests.fakes.log import FakeLog
from tests.fakes.part import round_of

T = TypeVar("T")


class PartBench:
    """The inventory, the runtime, the stopper and the worker of the part, too: a test adds what its part asks.

    `settings` are those by which pods are stopped; the pods `uids` are held off, "": the box.
    """

    def __init__(self, *settings: str, uids: tuple[str, ...] = ()) -> None:
        self.clock, self.log, self.counters = FakeClock(), FakeLog(), FakeCounters()
        self.holds = Holds(self.clock, held_off(self.clock, *uids), frozenset(settings))
        self.stopped: list[tuple[str, str]] = []

    def shared(self, **ports: Any) -> PodsShared:
        """What the part is given; `ports` instead of the bench's own."""
        own: dict[str, Any] = {"inventory": self, "runtime": self, "holds": self.holds, "counters": self.counters}
        log: Any = self.log
        return PodsShared(**{**own, "clock": self.clock, "log": log, **ports})

    def stop(self, sandbox: Sandbox, why: str, setting: str, held: str = "") -> None:
        self.stopped.append((sandbox.id, why))
        if held:
            self.holds.hold(sandbox.pod, HOLD_S, held, setting)

    async def run(self, what: str, job: Callable[[], T]) -> T:
        return job()

    def look(self, part: Part, times: int = 1) -> None:
        """So many looks of a round; a failure is logged once."""
        round = round_of(part, self.log, self.clock)

        async def looks() -> None:
            for _ in range(times):
                await round.look(part)

        asyncio.run(looks())
