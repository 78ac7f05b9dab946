"""Has all parts take their looks (`criproxy.pods.part`), each in its time, until cancelled.

A part's look keeps no other part's from being taken. What falls into one second shares a wake-up: see
`criproxy.concurrency.clock`. A look that fails is logged once, until one succeeds or fails otherwise; it ends nothing.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.clock import Clock
from criproxy.pods.part import NodeSettings, Part

P = TypeVar("P", bound=Part)


def one_of(parts: Sequence[Part], kind: type[P]) -> P:
    """The one of this kind."""
    return next(part for part in parts if isinstance(part, kind))


class Round(Struct, frozen=True):
    """See the module."""

    parts: Sequence[Part]
    clock: Clock
    log: FilteringBoundLogger

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
            for part in self.parts:
                with contextlib.suppress(Exception):  # one that fails keeps no other from it
                    part.cease()

    def close(self) -> None:
        for part in self.parts:
            with contextlib.suppress(Exception):
                part.close()

    async def _look_on(self, part: Part) -> None:
        await self.clock.sleep(part.FIRST_S, part.SLACK_S if part.FIRST_S else 0.0)
        while True:
            await self.look(part)
            await self.clock.sleep(part.pause_s, part.SLACK_S, wake=part.wake)

    async def look(self, part: Part) -> None:
        """One look. Never raises."""
        try:
            await part.look()
        except Exception as error:
            before, part.failure = part.failure, str(error) or type(error).__name__
            if part.failure != before:
                trace = None if isinstance(error, OSError | CgroupError) else error
                self.log.warning("look_failed", part=part.NAME, error=part.failure, exc_info=trace)
        else:
            if part.failure:
                self.log.info("look_succeeded", part=part.NAME, after=part.failure)
            part.failure = ""
