"""Has all parts take their looks (`criproxy.pods.part`), each in its time, until cancelled.

A part's look keeps no other part's from being taken. What falls into one second shares a wake-up: see
`criproxy.concurrency.clock`. A look that fails is logged once, until one succeeds or fails otherwise; it ends nothing.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.closing import STRAY, done_all, is_cancelled
from criproxy.model import Counters
from criproxy.model.shown import Counter, Gauge, Shows
from criproxy.pods.part import NodeSettings, Part

P = TypeVar("P", bound=Part)


def one_of(parts: Sequence[Part], kind: type[P]) -> P:
    """The one of this kind."""
    return next(part for part in parts if isinstance(part, kind))


LATE_S: Final = 60.0
"""A look that takes longer than this, beyond the part's pause, is a problem: what it waits for may never come."""


UNREADY_S: Final = 90.0
"""A part that has failed, or waited, for longer makes criproxy unready: each part has been tried again by then."""


class Round(Shows, Struct, frozen=True):
    """See the module."""

    GAUGES = (
        Gauge("part_failing", "Whether a part's last look failed, or is late", lambda one: one.failing(), "part"),
        Gauge(
            "part_look_seconds",
            "How long a part's look has lasted by now; 0: none is under way",
            lambda one: one.lasting(),
            "part",
        ),
    )

    COUNTERS = (Counter("part_looks_failed", "Looks of a part that failed", {"part": ()}),)

    parts: Sequence[Part]
    counters: Counters
    clock: Clock
    log: FilteringBoundLogger
    _began_s: dict[str, float] = {}
    """When the look began that is under way (CLOCK_MONOTONIC), by the part's name."""
    _failing_s: dict[str, float] = {}
    """Since when no look has succeeded, of those whose last one failed."""

    # --- what it shows ----------------------------------------------------------------------------------------------

    def lasting(self) -> Mapping[str, float]:
        now_s, began_s = self.clock.monotonic_s(), dict(self._began_s)
        return {part.NAME: now_s - began_s.get(part.NAME, now_s) for part in self.parts}

    def failing(self) -> Mapping[str, float]:
        late = self._late()
        return {part.NAME: float(bool(part.failure) or part.NAME in late) for part in self.parts}

    def problems(self) -> Iterator[str]:
        for name, seconds in self._late().items():
            yield f"{name} has waited for {seconds:.0f} s for an answer, and goes on when it comes"

    def unready(self) -> str | None:
        """What a part failed of may name pods, and is root's to know."""
        now_s, failing_s = self.clock.monotonic_s(), dict(self._failing_s)
        for part in self.parts:
            if (failed_s := now_s - failing_s.get(part.NAME, now_s)) > UNREADY_S:
                return f"{part.NAME} has failed for {failed_s:.0f} s: `criproxy status` says of what"
        for name, late_s in self._late().items():
            if late_s > UNREADY_S:
                return f"{name} has waited for {late_s:.0f} s for an answer"
        return None

    def _late(self) -> Mapping[str, float]:
        return {name: seconds for name, seconds in self.lasting().items() if seconds > LATE_S}

    # --- its life ---------------------------------------------------------------------------------------------------

    def configure(self, now: NodeSettings) -> None:
        for part in self.parts:
            part.configure(now)

    async def run(self) -> None:
        """Until cancelled; then every part has ceased."""
        try:
            async with asyncio.TaskGroup() as looks:
                for part in self.parts:
                    looks.create_task(self._look_on(part))
        finally:
            await done_all(self.log, *((f"cease {part.NAME}", part.cease) for part in self.parts))

    async def close(self) -> None:
        await done_all(self.log, *((f"close {part.NAME}", part.close) for part in self.parts))

    async def _look_on(self, part: Part) -> None:
        if part.FIRST_S:
            await self.clock.sleep(part.FIRST_S, part.SLACK_S, wake=part.wake)
        else:
            await self.clock.sleep(0.0)
        while True:
            await self.look(part)
            await self.clock.sleep(part.pause_s, part.SLACK_S, wake=part.wake)

    async def look(self, part: Part) -> None:
        """One look. Raises nothing but a cancel of ours."""
        self._began_s[part.NAME] = self.clock.monotonic_s()
        try:
            await part.look()
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._failed(part, STRAY, error)
        except Exception as error:
            trace = None if isinstance(error, OSError | CgroupError) else error
            self._failed(part, str(error) or type(error).__name__, trace)
        else:
            if part.failure:
                self.log.info("look_succeeded", part=part.NAME, after=part.failure)
            part.failure = ""
            self._failing_s.pop(part.NAME, None)
        finally:
            self._began_s.pop(part.NAME, None)

    def _failed(self, part: Part, failure: str, trace: BaseException | None) -> None:
        self.counters.count("part_looks_failed", part.NAME)
        self._failing_s.setdefault(part.NAME, self.clock.monotonic_s())
        before, part.failure = part.failure, failure
        if failure != before:
            self.log.warning("look_failed", part=part.NAME, error=failure, exc_info=trace)
