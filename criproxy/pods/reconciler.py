"""Keeps inventory and box in step with the runtime: lists its pods, takes over their box, lifts its limits when
colocation is off, and removes what ended pods have left.

Level-triggered: each round looks at what is, so that a missed event costs a minute and nothing else.
"""

import math
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.naming import BoxPath, parse_placement
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.closing import all_tried
from criproxy.model import AdmissionError, Sandbox
from criproxy.model.shown import Counter
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared

EVERY_S: Final = 60.0
"""From one listing of the runtime to the next: what left it behind our back is found by then."""

AGAIN_S: Final = 5.0
"""From an event to a listing: a start that a lost connection cut off may have ended only after the first, and a busy
machine may have kept a cgroup for longer than the first sweep waited.
"""

AFTER_REMOVAL_S: Final = 0.2
"""The runtime answers RemovePodSandbox a moment before the last cgroup is gone."""


class Reconciler(PodObserver, Part, Struct, eq=False):
    """A round follows each event, and another with a listing `AGAIN_S` later. Lists count while the runtime is ready.

    `lifts` and `adopts` are as in `NodeSettings`. `swept`: how many cgroups of pods were removed.
    """

    NAME = "keeping step with the runtime"
    SLACK_S = 0.0
    COUNTERS = (
        Counter("page_cache_dropped_bytes", "Page cache taken back that ended pods had left in the box"),
        Counter("box_swept", "Pod cgroups removed from the box"),
    )

    shared: PodsShared
    box: Box
    lifts: bool = False
    adopts: bool = False
    swept: int = 0
    _round_s: float = math.inf
    """When the next round is due (CLOCK_BOOTTIME)."""
    _listing_s: float = math.inf
    """When the next round with a listing is."""
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "Reconciler":
        return cls(ports.shared, ports.box)

    # --- events -----------------------------------------------------------------------------------------------------

    def configure(self, now: NodeSettings) -> None:
        self.lifts, self.adopts = now.lifts, now.adopts
        self._round_soon()

    async def connected(self) -> None:
        """The runtime is there (again): list it, and take over the box that its pods are in."""
        await self.shared.inventory.refresh()
        self._know_asked()
        await self._adopt()
        self._round_soon()

    async def take_over(self, box: BoxPath) -> None:
        """Another process has served this box until now. What its pods ask for is known first, lest they be given
        less.
        """
        self._know_asked()
        await self._adopt_box(box)
        self._round_soon()

    def pod_removed(self, sandbox: Sandbox) -> None:
        self._round_soon()

    def _round_soon(self) -> None:
        self._round_s = min(self._round_s, self.shared.clock.boottime_s() + AFTER_REMOVAL_S)
        self._wake.set()

    # --- rounds -----------------------------------------------------------------------------------------------------

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float:
        return max(0.0, min(self._round_s, self._listing_s) - self.shared.clock.boottime_s())

    def cease(self) -> None:
        self._listing_s = math.inf

    async def look(self) -> None:
        """A round, if one is due."""
        now_s = self.shared.clock.boottime_s()
        if self._listing_s == math.inf:
            self._listing_s = now_s + EVERY_S
        lists = now_s >= self._listing_s
        if now_s < self._round_s and not lists:
            return
        self._round_s = math.inf
        self._listing_s = now_s + EVERY_S if lists else min(self._listing_s, now_s + AGAIN_S)
        await self.round(lists=lists)

    async def round(self, *, lists: bool) -> None:
        """Raises the first failure of any step, once all are done."""
        await all_tried(self._lift(), self._follow_runtime(lists=lists))

    async def _lift(self) -> None:
        if self.lifts and (changes := await self.box.release()):
            self.shared.log.info("box_released", files=[change.file for change in changes])

    async def _follow_runtime(self, *, lists: bool) -> None:
        if not self.shared.runtime.ready:
            await self._adopt_found()
            return
        if lists:
            await self.shared.inventory.refresh()
            self._know_asked()
        await self._adopt()
        of_all = [self._drop_caches(), self._sweep()] if self.shared.inventory.places_known else []
        await all_tried(*([self._reap()] if lists else []), *of_all)

    def _know_asked(self) -> None:
        """Of which pods the box has, once that is known of all: those that are not named are forgotten."""
        if not self.shared.inventory.places_known:
            return
        placed = self.shared.inventory.placed
        names = {parse_placement(s.placement).name: s for s in placed if s.placement}
        shares = {name: s.cpu_shares for name, s in names.items()}
        self.box.pods.know_asked(shares, [name for name, s in names.items() if s.mid])

    async def _reap(self) -> None:
        killed, failure = await self.box.pods.reap(self.shared.inventory.uids)
        if killed:
            self.shared.log.warning("orphans_killed", pods=list(killed), reason="the runtime has forgotten these pods")
        if failure is not None:
            raise failure

    async def _drop_caches(self) -> None:
        if size_bytes := await self.box.memory.drop_caches(_names(self.shared.inventory.running_pods)):
            self.shared.counters.count("page_cache_dropped_bytes", by=size_bytes)
            reason = "pods that have ended have left it"
            self.shared.log.info("page_cache_dropped", bytes=size_bytes, reason=reason)

    async def _sweep(self) -> None:
        placed, ended = self.shared.inventory.placed, self.shared.inventory.ended_pods
        over = {one.id for one in ended}
        still_run = _names(one for one in placed if one.id not in over)  # a pod may have had another sandbox before
        swept = await self.box.pods.sweep(_names(placed), _names(ended) - still_run)
        self.swept += len(swept)
        self.shared.counters.count("box_swept", by=len(swept))
        if swept:
            self.shared.log.info("pod_cgroups_removed", pods=list(swept))

    # --- the box ----------------------------------------------------------------------------------------------------

    async def _adopt(self) -> None:
        if boxes := {parse_placement(one.placement).box for one in self.shared.inventory.placed if one.placement}:
            await self._adopt_box(min(boxes, key=lambda box: box.path))

    async def _adopt_found(self) -> None:
        """Pods run on while the runtime is away: they are bounded also by a criproxy that starts meanwhile."""
        if self.adopts and self.box.path is None and (box := await self.box.pods.found()) is not None:
            await self._adopt_box(box)

    async def _adopt_box(self, box: BoxPath) -> None:
        if not self.adopts or self.box.path is not None:
            return
        try:
            await self.box.adopt(box, lifted=self.lifts)
        except AdmissionError as error:  # calls must pass all the same
            self.shared.log.error("box_not_adopted", error=str(error))


def _names(sandboxes: Iterable[Sandbox]) -> frozenset[str]:
    """Of their pods' cgroups in the box."""
    return frozenset(parse_placement(one.placement).name for one in sandboxes if one.placement)
