"""Keeps inventory and box in step with the runtime, and carries out what the node's switch says of running pods.

Level-triggered: each round looks at what is, so that a missed event costs a minute and nothing else.
"""

import asyncio
import contextlib
from typing import Final, Literal

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.naming import BoxPath, is_slice, parse_placement
from criproxy.model import AdmissionError, Sandbox
from criproxy.pods.inventory import PodObserver
from criproxy.pods.shared import PodsShared, Trouble
from criproxy.pods.stopping import ON_DISABLE, Leave, PodStopper

EVERY_S: Final = 60.0
"""From one listing of the runtime to the next: what left it behind our back is found by then."""

AGAIN_S: Final = 5.0
"""From an event to a listing: a start that a lost connection cut off may have ended only after the first, and a busy
machine may have kept a cgroup for longer than the first sweep waited.
"""

TEND_EVERY_S: Final = 1.0
"""Kubelet looks each minute or so at what `Reconciler.tend_once` keeps, and kills the pod when it finds it gone."""

_AFTER_REMOVAL_S: Final = 0.2
"""The runtime answers RemovePodSandbox a moment before the last cgroup is gone."""


def may_need_anchors(version: int, box: str | None) -> bool:
    """Whether kubelet's own cgroups of the pods in the box may need something there (`CgroupDriver.keep_anchors`)."""
    return version == 2 and box is not None and is_slice(box)


class ReconcilerSettings(Struct, frozen=True):
    """`when_off` is what becomes of pods in the box; None: nothing (colocation is on, or the config says nothing).

    `adopt`: the box of running pods is taken over, with its limits; not so in a dry run. `why` colocation is off, for
    the log, and by which `setting` pods go then.
    """

    when_off: Literal["release", "evict"] | None
    adopt: bool
    why: str = "colocation was switched off"
    setting: str = ON_DISABLE


class Reconciler(PodObserver, Struct, eq=False):
    """Stops single pods of the box, too. Lists of the runtime are used only while it is ready.

    `swept`: how many cgroups of pods were removed. `_to_stop`: the single pods that shall stop, by sandbox id.
    """

    settings: ReconcilerSettings
    shared: PodsShared
    box: Box
    stopper: PodStopper
    swept: int = 0
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _to_stop: dict[str, Leave] = {}
    _trouble: Trouble = field(default_factory=Trouble)
    _tend_trouble: Trouble = field(default_factory=Trouble)
    _cache_trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    def configure(self, settings: ReconcilerSettings) -> None:
        """Take up new settings; a round follows at once."""
        self.settings = settings
        self._due.set()

    async def connected(self) -> None:
        """The runtime is there (again): list it, and take over the box that its pods are in."""
        await self.shared.inventory.refresh()
        self._know_asked()
        await self._adopt()
        self._due.set()

    async def take_over(self, box: BoxPath) -> None:
        """Another process has served this box until now; a round follows."""
        await self._adopt_box(box)
        self._due.set()

    def pod_removed(self, sandbox: Sandbox) -> None:
        self._due.set()

    def stop(self, sandbox: Sandbox, why: str, setting: str) -> None:
        """Stop this one of the box by a setting; when it does not stop, each round tries again."""
        self._to_stop.setdefault(sandbox.id, Leave(sandbox.pod, why, setting))
        self._due.set()

    async def run(self) -> None:
        """Rounds, and a look at the box's anchors each second, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rounds())
                tasks.create_task(self._tend())
        finally:
            self.stopper.cease()

    async def _rounds(self) -> None:
        """When something has happened, again `AGAIN_S` later, and each `EVERY_S`."""
        list_at_s = self.shared.clock.boottime_s() + EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, list_at_s - self.shared.clock.boottime_s())):
                    await self._due.wait()
                await asyncio.sleep(_AFTER_REMOVAL_S)
                list_at_s = min(list_at_s, self.shared.clock.boottime_s() + AGAIN_S)
            self._due.clear()
            if refresh := self.shared.clock.boottime_s() >= list_at_s:
                list_at_s = self.shared.clock.boottime_s() + EVERY_S
            await self.round(refresh=refresh)

    async def round(self, *, refresh: bool) -> None:
        """One round. Never raises: a failure is logged once, and the next round tries again."""
        log = self.shared.log
        with self._trouble.logged_by(
            lambda e: log.warning("upkeep_failed", error=str(e), exc_info=not isinstance(e, ConnectionError))
        ):
            await self._release()
            if not self.shared.runtime.ready:
                return
            if refresh:
                await self.shared.inventory.refresh()
                self._know_asked()
            await self._adopt()
            if refresh:
                await self._reap()
            await self._sweep()
            await self._stop_pods()

    async def _tend(self) -> None:
        """Whether or not the box's limits are ours to set."""
        while True:
            await self.tend_once()
            await self.shared.clock.sleep(TEND_EVERY_S / 2, slack_s=TEND_EVERY_S / 2)  # with the control loop's tick

    async def tend_once(self) -> None:
        """Never raises: a failure is logged once."""
        log, harm = self.shared.log, "kubelet may restart offline pods"
        with self._tend_trouble.logged_by(lambda e: log.error("anchors_failed", error=str(e), consequence=harm)):
            if not may_need_anchors(self.box.version, self.box.path):
                return
            if changed := await self.box.writes("tend", lambda driver, box: driver.keep_anchors(box)):
                self.shared.log.info("anchors_changed", slices=list(changed))

    async def _sweep(self) -> None:
        running = {parse_placement(one.placement).name for one in self.shared.inventory.running_pods if one.placement}
        with self._cache_trouble.logged_by(lambda e: self.shared.log.warning("page_cache_stays", error=str(e))):
            if size_bytes := await self.box.memory.drop_caches(running):
                self.shared.counters.count("page_cache_dropped_bytes", by=size_bytes)
                reason = "pods that have ended have left it"
                self.shared.log.info("page_cache_dropped", bytes=size_bytes, reason=reason)
        swept = await self.box.pods.sweep(frozenset(parse_placement(place).name for place in self._placements()))
        self.swept += len(swept)
        self.shared.counters.count("box_swept", by=len(swept))
        if swept:
            self.shared.log.info("pod_cgroups_removed", pods=list(swept))

    def _know_asked(self) -> None:
        placed = self.shared.inventory.placed
        names = {parse_placement(s.placement).name: s for s in placed if s.placement}
        shares = {name: s.cpu_shares for name, s in names.items()}
        self.box.pods.know_asked(shares, [name for name, s in names.items() if s.mid])

    async def _reap(self) -> None:
        if killed := await self.box.pods.reap(self.shared.inventory.uids):
            self.shared.log.warning("orphans_killed", pods=list(killed), reason="the runtime has forgotten these pods")

    def _placements(self) -> list[str]:
        return [s.placement for s in self.shared.inventory.placed if s.placement is not None]

    async def _adopt(self) -> None:
        if boxes := {parse_placement(place).box for place in self._placements()}:
            await self._adopt_box(min(boxes, key=lambda box: box.path))

    async def _adopt_box(self, box: BoxPath) -> None:
        if not self.settings.adopt or self.box.path is not None:
            return
        try:
            await self.box.adopt(box, lifted=self.settings.when_off == "release")
        except AdmissionError as error:  # calls must pass all the same
            self.shared.log.error("box_not_adopted", error=str(error))

    async def _release(self) -> None:
        if self.settings.when_off == "release" and (changes := await self.box.release()):
            self.shared.log.info("box_released", files=[change.file for change in changes])

    async def _stop_pods(self) -> None:
        """Stop the pods of the box that shall. Those that are merely to make room for the schedule, or for who switches
        colocation off, keep to their disruption budgets.
        """
        placed = {sandbox.id: sandbox.pod for sandbox in self.shared.inventory.placed}
        stops_by = self.shared.holds.stops_by
        self._to_stop = {
            one: leave for one, leave in self._to_stop.items() if one in placed and leave.setting in stops_by
        }
        off = self.settings
        everything = placed if off.when_off == "evict" else {}
        wanted = {one: Leave(pod, off.why, off.setting) for one, pod in everything.items()} | self._to_stop
        patient = everything.keys() - self._to_stop.keys()
        stands = self.stopper.stands
        await self.stopper.stop_all({one: leave for one, leave in wanted.items() if stands(leave)}, patient)
