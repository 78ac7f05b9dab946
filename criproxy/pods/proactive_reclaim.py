"""Takes back memory that offline pods don't use, while nobody is short of it, where that is asked for.

The law is `control.proactive_reclaim`. It is the box's memory alone, and page cache alone while the box is bounded, as
the box may not swap then. Beside a limit that sinks nothing is taken.
"""

import asyncio

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.control.proactive_reclaim import EVERY_S, ReclaimState, step
from criproxy.model.signals import Missing
from criproxy.pods.shared import PodsShared, Trouble


class ProactiveReclaim(Struct):
    """`enabled`: it is asked for, and the box is ours to change. `problem` and `taken_bytes` are for any thread."""

    enabled: bool
    shared: PodsShared
    box: Box
    taken_bytes: int = 0
    missing: str = ""
    """Why the kernel can't; "": it can, or was not asked yet."""
    _state: ReclaimState = ReclaimState()
    _on: asyncio.Event = field(default_factory=asyncio.Event)
    _trouble: Trouble = field(default_factory=Trouble)

    def configure(self, enabled: bool) -> None:
        if not enabled:
            self._on.clear()
            self._state, self.missing = ReclaimState(), ""
        self.enabled = enabled
        if enabled:
            self._on.set()

    @property
    def problem(self) -> str:
        """Why nothing is taken although it is asked for; "": it is, or is not asked for."""
        return self.missing or self._trouble.last

    async def run(self) -> None:
        """While it is off, nothing wakes up."""
        self.configure(self.enabled)
        while True:
            await self._on.wait()
            await self.look()
            await self.shared.clock.sleep(EVERY_S, slack_s=EVERY_S / 10)

    async def look(self) -> None:
        """Never raises: a failure is logged once, and the next look tries again."""
        log = self.shared.log
        with self._trouble.logged_by(lambda error: log.warning("proactive_reclaim_failed", error=str(error))):
            found = await self.box.reclaimable()
            if isinstance(found, Missing):
                if found.why != self.missing:
                    log.warning("proactive_reclaim_not_here", reason=found.why)
                self.missing = found.why
                return
            self.missing = ""
            if found is None:
                return
            size_bytes, self._state = step(found.stall, found.size_bytes, self._state)
            if self.enabled and size_bytes and (taken := await self.box.take_back(size_bytes)):
                self.taken_bytes += taken
                self.shared.counters.count("proactively_reclaimed_bytes", by=taken)
                log.debug("proactively_reclaimed", bytes=taken, asked_bytes=size_bytes)
