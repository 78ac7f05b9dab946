"""Keeps the box to its share of the last-level cache and of memory bandwidth, where that is asked for."""

from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.resctrl import CacheGroup, CacheLimits, Resctrl
from criproxy.cgroup.worker import Worker
from criproxy.pods.shared import PodsShared, Trouble

EVERY_S: Final = 2.0
"""How long a new process of the box may have all of the cache."""


class CacheShare(Struct):
    """`group` and `problem` may be asked for from any thread. `limits` None: they are not ours to set now."""

    limits: CacheLimits | None
    shared: PodsShared
    box: Box
    resctrl: Resctrl
    worker: Worker
    group: CacheGroup = CacheGroup()
    _made: bool = True
    """There may be a group of ours, as one process may have left it to the next."""
    _trouble: Trouble = field(default_factory=Trouble)

    def configure(self, limits: CacheLimits | None) -> None:
        """From the next look on."""
        self.limits = limits

    @property
    def problem(self) -> str:
        """Why what is asked for is not in force; "" when it is, or when nothing is asked for."""
        return self._trouble.last or self.group.problem

    async def run(self) -> None:
        while True:
            await self.look()
            await self.shared.clock.sleep(EVERY_S, slack_s=EVERY_S / 2)

    async def look(self) -> None:
        """Never raises: a failure is logged once, and the next look tries again."""
        limits, box = self.limits, self.box.path
        if limits is None or not (limits.any or self._made) or (limits.any and box is None):
            return
        before = self.group
        with self._trouble.logged_by(lambda e: self.shared.log.warning("cache_share_not_in_force", error=str(e))):
            self.group = await self.worker.run("share the cache", lambda: self.resctrl.keep(box or "", limits))
            self._made = limits.any
        if self.group.problem and self.group.problem != before.problem:
            self.shared.log.warning("cache_share_not_in_force", error=self.group.problem)
        elif self.group.schemata != before.schemata:
            self.shared.log.info("cache_share", schemata=self.group.schemata or "all")
