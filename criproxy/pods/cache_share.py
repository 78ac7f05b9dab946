"""Keeps the box to its share of the last-level cache and of memory bandwidth, where the config says so."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from criproxy.cgroup.box import Box
from criproxy.cgroup.resctrl import CacheGroup, CacheLimits, Resctrl
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.worker import Worker
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared


def cache_asked(now: NodeSettings) -> CacheLimits | None:
    """None: what is in force is not ours to change."""
    if now.lifts:
        return CacheLimits()
    cache = now.config.cache
    return CacheLimits(cache.llc_max_ratio, cache.bandwidth_max_ratio) if now.writes else None


class CacheShare(Part, Struct):
    """`limits`: see `cache_asked`. A new process of the box may have all of the cache until the next look."""

    NAME = "sharing the processor's caches"
    EVERY_S = 2.0

    shared: PodsShared
    box: Box
    resctrl: Resctrl
    worker: Worker
    limits: CacheLimits | None = None
    group: CacheGroup = CacheGroup()
    _made: bool = True
    """There may be a group of ours, as one process may have left it to the next."""

    @classmethod
    def made(cls, ports: Ports) -> "CacheShare":
        return cls(ports.shared, ports.box, Resctrl(Tree()), ports.workers["cache-share"])

    def configure(self, now: NodeSettings) -> None:
        self.limits = cache_asked(now)

    async def look(self) -> None:
        limits, box = self.limits, self.box.path
        if limits is None or not (limits.any or self._made) or (limits.any and box is None):
            return
        before = self.group
        self.group = await self.worker.run("share the cache", lambda: self.resctrl.keep(box or "", limits))
        self._made = limits.any
        if self.group.problem and self.group.problem != before.problem:
            self.shared.log.warning("cache_share_not_in_force", error=self.group.problem)
        if self.group.schemata != before.schemata:
            self.shared.log.info("cache_share", schemata=self.group.schemata or "all")

    def section(self) -> Mapping[str, Any]:
        """The box's share, and why something else that the config bounds is not; "": it sets no bound."""
        group, problem = self.group, self.failure or self.group.problem
        in_force = group.schemata and not self.failure
        words = f"{group.schemata} for {group.threads} threads of offline pods" if in_force else ""
        return {"cache": "; ".join(filter(None, (words, problem and f"not bounded: {problem}")))}

    def rows(self) -> Iterator[tuple[str, ...]]:
        if words := self.section()["cache"]:
            yield "cache", words
