"""Watches how near the node is to kubelet's eviction of pods for memory, and whether the box has to answer for it.

It reads kubelet's threshold, off the event loop, and judges what is in use at each look of the control loop
(`control.memory_pressure`). What follows is the ladder's to say (`pods.interference`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from criproxy.cgroup.box import Box
from criproxy.concurrency.worker import Worker
from criproxy.control.decider import Decider
from criproxy.control.memory_pressure import (
    EvictionHard,
    EvictionStatus,
    Evidence,
    MemoryVerdict,
    halfway_bytes,
    judge,
    kept_free_bytes,
)
from criproxy.control.resources import RESOURCES, bytes_in_words
from criproxy.model import MEMORY, UNLIMITED, Limit, Usage, UsageReading
from criproxy.model.shown import Gauge
from criproxy.pods.eviction import PodEviction
from criproxy.pods.part import NodeSettings, Part
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_OVER_LIMIT

_READ_LATELY_S: Final = 60.0
"""What was read of pods before says nothing of what they hold now."""


class ReliefSettings(Struct, frozen=True):
    """`active`: the box's limits are ours to set. `floor_bytes`: the policy's floor, with no need of online's.

    The floor is also what it gives where it does not know better: after a cold start, or outside of the schedule.
    """

    active: bool
    floor_bytes: float = 0.0


class MemoryRelief(Part, Struct):
    """Judges what is in use of memory. `read_hard` reads kubelet's threshold, in `worker`'s thread.

    `hard`: kubelet's threshold, as far as known.
    """

    NAME = "reading kubelet's threshold of eviction"
    EVERY_S = 60.0
    """It changes with kubelet's restart only."""
    FIRST_S = 2.0
    """The first calls come before that."""
    GAUGES = (
        Gauge(
            "eviction_hard_bytes",
            "kubelet's threshold for memory.available, hard or soft, or its default",
            lambda now: now.hard_bytes,
        ),
        Gauge("memory_available_bytes", "As kubelet counts it", lambda now: now.available_bytes),
        Gauge("eviction_hard_known", "Whether kubelet's evictionHard could be read", lambda now: not now.problem),
    )

    shared: PodsShared
    box: Box
    eviction: PodEviction
    read_hard: Callable[[], EvictionHard]
    worker: Worker
    settings: ReliefSettings = ReliefSettings(active=False)
    hard: EvictionHard = EvictionHard(problem="it was not read yet")
    _above_since_s: float | None = None
    _verdict: MemoryVerdict = MemoryVerdict(above=False, over=False)
    _evidence: Evidence | None = None
    _swaps: bool = False
    """See `CgroupDriver.may_swap`."""

    def configure(self, now: NodeSettings) -> None:
        self.settings = ReliefSettings(now.relieves, now.config.memory.min_bytes)

    @property
    def _stops(self) -> bool:
        """Otherwise it is only logged."""
        return ON_OVER_LIMIT in self.shared.holds.stops_by

    @property
    def accountable(self) -> bool:
        """The box is above its bound, and somebody wants that answered."""
        return self.settings.active and self._verdict.above and self._stops

    def irreducible(self, after_s: float) -> str:
        """Why no reclaim brings the box back to its bound, in words; "": it does, or nobody wants that answered.

        By a sample later than `after_s` (CLOCK_BOOTTIME): what a pod's end has given back is not known before. While an
        operator holds criproxy off the box, its limits are not criproxy's. Where what ended pods have left is above the
        bound by itself, no pod's end brings the box back.
        """
        seen = self._evidence
        if seen is None or seen.t_s <= after_s or not self._stops or self.shared.holds.hold_offs.of_box() is not None:
            return ""
        if seen.bound is None or not self._is_above(seen) or self._left_by_ended(seen):
            return ""
        return (
            f"the box's anonymous memory alone, {bytes_in_words(seen.anon)}, is above its limit of "
            f"{bytes_in_words(seen.bound)}, and can't be reclaimed"
        )

    def _is_above(self, seen: Evidence) -> bool:
        """Whether no reclaim brings the box back to its bound. One that is the floor may be there for no need of
        online's.
        """
        floor = self.settings.floor_bytes
        firm = min(floor, RESOURCES[MEMORY].firm_floor)
        return seen.bound is not None and seen.bound != floor and seen.bound > firm and seen.irreducible

    def _left_by_ended(self, seen: Evidence) -> float:
        """What the box holds beside its pods, where that alone is above its bound and they alone are not; 0 where it is
        not so, or where it is not known what they hold.
        """
        readings = self.shared.readings
        paths = {one.placement for one in self.shared.inventory.running_pods if one.placement}
        known = paths and paths <= readings.of.keys()
        if not known or self.shared.clock.monotonic_s() - readings.at_s > _READ_LATELY_S:
            return 0.0
        held = sum(readings.of[path].memory_bytes for path in paths)
        left = seen.anon - held
        above = structs.replace(seen, anon=left).irreducible and not structs.replace(seen, anon=held).irreducible
        return left if above else 0.0

    @property
    def evidence(self) -> Evidence | None:
        """Of the last sample."""
        return self._evidence

    @property
    def excess_bytes(self) -> float:
        """By how much the box is above its bound; 0: it is not, or has none."""
        seen = self._evidence
        return 0.0 if seen is None or seen.bound is None else max(0.0, seen.box - seen.bound)

    def kept_free(self, capacity_bytes: float) -> float:
        """What the box's limit must leave free of so much memory."""
        return kept_free_bytes(self.hard, capacity_bytes)

    def now(self) -> EvictionStatus:
        return self.status()

    def section(self) -> Mapping[str, Any]:
        return {"eviction": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        now = self.status()
        if now.hard_bytes == 0:
            yield "eviction", f"kubelet evicts no pod for memory ({now.source})"
            return
        why = f"assumed, as {now.problem}" if now.problem else now.source
        hard, available, halfway = (
            "not known" if amount is None else bytes_in_words(amount)
            for amount in (now.hard_bytes, now.available_bytes, now.halfway_bytes)
        )
        yield (
            "eviction",
            f"kubelet evicts pods below {hard} of memory.available ({why})",
            f"memory.available is {available}; below {halfway}, a pod goes while the box is above its memory limit",
            *([f"stopped last: {now.last}"] if now.last else []),
        )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self._swaps:
            yield (
                "a limit on the box's memory swaps offline pods out to disk: the kernel does not count swap by cgroup; "
                "boot without swapaccount=0 (on cgroup v1, perhaps with swapaccount=1), or without swap"
            )
        if self._verdict.over:
            yield self._words()
        seen = self._evidence
        if seen is not None and self._is_above(seen) and (left := self._left_by_ended(seen)):
            yield (
                f"ended pods have left {bytes_in_words(left)} in the box that can't be reclaimed, as in files of a "
                "tmpfs: the box stays above its memory limit until somebody removes them, and no pod is stopped for it"
            )

    def status(self) -> EvictionStatus:
        hard, evidence = self.hard, self._evidence
        return EvictionStatus(
            source=hard.source,
            problem=hard.problem,
            hard_bytes=None if evidence is None else round(hard.of(evidence.capacity)),
            halfway_bytes=None if evidence is None else round(halfway_bytes(hard, evidence.capacity)),
            available_bytes=None if evidence is None else round(evidence.available),
            last=self.eviction.last.get(MEMORY, ""),
        )

    # --- for the control loop ---------------------------------------------------------------------------------------

    def judge(self, t_s: float, usage: UsageReading, capacity_bytes: int, decider: Decider) -> None:
        """Judge this moment, also when the limits can't be written: then it is needed most."""
        box = usage.box or Usage(0.0, 0)
        bound = self._bound(decider.given.get(MEMORY, UNLIMITED))
        seen = Evidence(
            t_s,
            capacity_bytes,
            min(usage.node.working_set_bytes, capacity_bytes),
            box.working_set_bytes,
            bound,
            self.hard,
            anon=box.anon_bytes,
            charged=box.memory_bytes,
        )
        if seen.irreducible:  # what online leaves the box takes a decision of its own, and is seldom needed
            seen = structs.replace(seen, due=self._bound(decider.due(MEMORY)) or 0.0)
        self._judge(seen)

    def _bound(self, limit: Limit) -> float | None:
        bounded = self.settings.active and self.box.state().memory is not None
        return limit if bounded and limit is not UNLIMITED else None

    def _judge(self, seen: Evidence) -> None:
        self._evidence = seen
        before = self._verdict
        self._verdict, self._above_since_s = judge(self._evidence, self._above_since_s)
        if self._verdict.over and not before.over:
            remedy = "an offline pod is stopped" if self._stops else f"none: {ON_OVER_LIMIT}"
            self.shared.log.warning("memory_over_limit", detail=self._words(), remedy=remedy)
        elif before.over and not self._verdict.over:
            self.shared.log.info("memory_within_limit")

    def _words(self) -> str:
        seen = self._evidence
        assert seen is not None
        threshold, above = seen.hard.of(seen.capacity), seen.box - (seen.bound or 0.0)
        return (
            f"memory.available is {bytes_in_words(seen.available)}, and kubelet evicts pods below "
            f"{bytes_in_words(threshold)}, while the box is {bytes_in_words(above)} above its memory limit"
        )

    # --- kubelet's threshold ----------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Say what has changed."""
        try:
            hard = await self.worker.run("read kubelet's evictionHard", self.read_hard)
        except Exception as error:  # what was known holds
            hard = structs.replace(self.hard, problem=f"it can't be read now: {error}")
        if hard != self.hard:
            words = _in_words(hard.size_bytes, hard.ratio)
            if hard.soft_bytes or hard.soft_ratio:
                words += f", soft {_in_words(hard.soft_bytes, hard.soft_ratio)}"
            if hard.problem:
                remedy = f"{words} is assumed, {hard.source}"
                self.shared.log.warning("eviction_threshold_unknown", reason=hard.problem, consequence=remedy)
            else:
                self.shared.log.info("eviction_threshold", memory_available=words, source=hard.source)
        self.hard = hard
        swaps = await self.box.reads("see whether swap is bounded", lambda driver, box: driver.may_swap(box))
        self._swaps = bool(swaps)


def _in_words(size_bytes: int, ratio: float) -> str:
    return f"{ratio:.1%}" if ratio else bytes_in_words(size_bytes)
