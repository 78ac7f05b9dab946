"""What the parts that look after pods share, so that each is given it as one thing."""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from typing import Protocol

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.pod_use import PodCounters
from criproxy.concurrency.clock import Clock
from criproxy.control.day import Day
from criproxy.control.interference.ladder import Transition
from criproxy.model import Counters
from criproxy.pods.inventory import Inventory
from criproxy.pods.runtime import Process, Runtime
from criproxy.pods.stopping import Evicts, Holds, PodStopper, StopBudget


class TellsLadder(Protocol):
    """Whoever tells the cluster how the box's harm to online pods is answered."""

    def transition(self, one: Transition) -> None:
        """A resource has changed its rung. Neither blocks nor raises."""


class Turns(Struct):
    """Takes pods by turns, so that to look at some each time costs the same however many there are."""

    _last: str = ""

    def next(self, ids: Collection[str], most: int) -> frozenset[str]:
        """The next `most` of these, or all where there are no more."""
        turn = sorted(ids)
        if len(turn) > most:
            first = bisect_right(turn, self._last)
            turn = (turn[first:] + turn[:first])[:most]
        self._last = turn[-1] if turn else ""
        return frozenset(turn)


class PodReadings(Struct):
    """What was counted of the box's pods at `at_s` (CLOCK_MONOTONIC), by their paths; none: nothing is known yet, or no
    pod runs. Replaced as a whole.
    """

    at_s: float = 0.0
    of: Mapping[str, PodCounters] = {}


class PodsShared(Struct, frozen=True):
    """The pods of this node, the runtime that runs them, and what every part needs for its work.

    `processes`: the first one of each sandbox and container of the box, as the runtime answered last, so that it is
    asked only once. `PlacementCheck` keeps it, and `PodUseWatch` keeps `readings`. `day` gets a mark of what happens to
    the box and its pods. `budget` is one for all that have pods leave.
    """

    inventory: Inventory
    runtime: Runtime
    holds: Holds
    counters: Counters
    clock: Clock
    log: FilteringBoundLogger
    evicts: Evicts | None = None
    tells: TellsLadder | None = None
    processes: dict[str, Process] = {}
    readings: PodReadings = field(default_factory=PodReadings)
    day: Day = field(default_factory=Day)
    budget: StopBudget = field(default_factory=StopBudget)

    def stopper(self) -> PodStopper:
        """One for a part that has pods leave."""
        return PodStopper(
            self.runtime, self.log, self.inventory, self.holds, self.evicts, self.clock, self.day, self.budget
        )
