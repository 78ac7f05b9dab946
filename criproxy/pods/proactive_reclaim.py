"""Takes back memory that offline pods don't use, while nobody is short of it, where the config says so.

The law is `control.proactive_reclaim`. It is the box's memory alone, and page cache alone while the box is bounded, as
the box may not swap then. Beside a limit that sinks nothing is taken.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupDriver, Reclaimable
from criproxy.concurrency.clock import Wake
from criproxy.control.proactive_reclaim import EVERY_S, ReclaimState, step
from criproxy.control.resources import bytes_in_words
from criproxy.model.shown import Counter
from criproxy.model.signals import Missing
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared


def reclaim_asked(now: NodeSettings) -> bool:
    """Whether the config says so, and the box is ours to change."""
    return now.config.memory.proactive_reclaim and now.writes


def reclaimable(driver: CgroupDriver, box: str) -> Reclaimable | Missing | None:
    """A job of the box's: what of its memory could be taken back; None: it has gone."""
    return driver.memory.reclaimable(box) if driver.exists(box) else None


class ProactiveReclaim(Part, Struct):
    """`enabled`: see `reclaim_asked`. While it is not, nothing wakes up."""

    NAME = "taking back memory that offline pods don't use"
    EVERY_S = EVERY_S
    SLACK_S = EVERY_S / 10
    COUNTERS = (
        Counter("proactively_reclaimed_bytes", "Memory taken back from offline pods while nobody was short of it"),
    )

    shared: PodsShared
    box: Box
    enabled: bool = False
    taken_bytes: int = 0
    missing: str = ""
    """Why the kernel can't; "": it can, or was not asked yet."""
    _state: ReclaimState = ReclaimState()
    _wake: Wake = field(default_factory=Wake)

    @classmethod
    def made(cls, ports: Ports) -> "ProactiveReclaim":
        return cls(ports.shared, ports.box)

    def configure(self, now: NodeSettings) -> None:
        before, self.enabled = self.enabled, reclaim_asked(now)
        if not self.enabled:
            self._state, self.missing = ReclaimState(), ""
        if self.enabled and not before:
            self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        return self.EVERY_S if self.enabled else None

    async def look(self) -> None:
        if not self.enabled:
            return
        log = self.shared.log
        found = await self.box.reads("read pressure", reclaimable)
        if isinstance(found, Missing):
            if found.why != self.missing:
                log.warning("proactive_reclaim_not_here", reason=found.why)
            self.missing = found.why
            return
        self.missing = ""
        if found is None:
            return
        size_bytes, self._state = step(found.stall, found.size_bytes, self._state)
        if self.enabled and size_bytes and (taken := await self.box.memory.take_back(size_bytes)):
            self.taken_bytes += taken
            self.shared.counters.count("proactively_reclaimed_bytes", by=taken)
            log.debug("proactively_reclaimed", bytes=taken, asked_bytes=size_bytes)

    def section(self) -> Mapping[str, Any]:
        """What was taken back, or why nothing is; "": it is off."""
        taken = f"{bytes_in_words(self.taken_bytes)} taken back from offline pods so far"
        return {"proactive_reclaim": (self.missing or self.failure or taken) if self.enabled else ""}

    def rows(self) -> Iterator[tuple[str, ...]]:
        if words := self.section()["proactive_reclaim"]:
            yield "reclaim", words
