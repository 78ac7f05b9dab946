"""Keeps inventory and box in step with the runtime, and carries out what the node's switch says of running pods.

Level-triggered: each round looks at what is, so that a missed event costs a minute and nothing else.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Literal, Protocol

import structlog
from msgspec import Struct

from criproxy.cgroup.naming import BoxPath, parse_placement
from criproxy.model import AdmissionError, LimitChange, Sandbox
from criproxy.pods.stopping import Evictions

EVERY_S: Final = 60.0
"""From one listing of the runtime to the next: what left it behind our back is found by then."""

AGAIN_S: Final = 5.0
"""From an event to a listing: a start that a lost connection cut off may have ended only after the first, and a busy
machine may have kept a cgroup for longer than the first sweep waited.
"""

TEND_EVERY_S: Final = 1.0
"""Kubelet looks each minute or so at what `Box.tend` keeps, and kills the pod when it finds it gone."""

_AFTER_REMOVAL_S: Final = 0.2
"""The runtime answers RemovePodSandbox a moment before the last cgroup is gone."""


class Box(Protocol):
    """What upkeep asks of the box (`criproxy.cgroup.box`)."""

    async def adopt(self, box: BoxPath, *, lifted: bool = False) -> None: ...

    async def release(self) -> tuple[LimitChange, ...]: ...

    async def sweep(self, known: frozenset[str]) -> tuple[str, ...]: ...

    async def carry(self) -> tuple[str, ...]: ...

    async def reap(self, uids: Collection[str]) -> tuple[str, ...]: ...

    async def tend(self) -> tuple[str, ...]: ...

    @property
    def path(self) -> str | None: ...


class Inventory(Protocol):
    """What upkeep asks of the inventory (`criproxy.pods.inventory`)."""

    @property
    def placed(self) -> tuple[Sandbox, ...]: ...

    @property
    def uids(self) -> frozenset[str]: ...

    async def refresh(self) -> None: ...


class Settings(Struct, frozen=True):
    """`when_off` is what becomes of pods in the box; None: nothing (colocation is on, or the config says nothing).

    `why`: why it is off, for the log.
    """

    when_off: Literal["release", "evict"] | None
    adopt: bool
    """Whether the box of running pods is taken over, with its limits. Not so in a dry run."""
    why: str = "colocation was switched off"


class Upkeep:
    """`stop_sandbox` stops one at the runtime and raises ConnectionError; `runtime_ready` tells whether lists hold.

    `on_listed` is called after each listing. `bound` is called in each round, and deals with pods that are outside the
    box. `clock`: monotonic, in s.
    """

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        box: Box,
        *,
        stop_sandbox: Callable[[str], Awaitable[None]],
        runtime_ready: Callable[[], bool],
        on_listed: Callable[[], None],
        on_swept: Callable[[int], None],
        bound: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._box = box
        self._evictions = Evictions(stop_sandbox)
        self._runtime_ready = runtime_ready
        self._on_listed = on_listed
        self._on_swept = on_swept
        self._bound = bound
        self._clock = clock
        self._due = asyncio.Event()
        self._condemned: dict[str, str] = {}
        """Why single pods shall stop, by sandbox id."""
        self._trouble = self._tend_trouble = ""
        self._log = structlog.get_logger()

    def configure(self, settings: Settings) -> None:
        """Take up new settings; a round follows at once."""
        self._settings = settings
        self._due.set()

    async def connected(self) -> None:
        """The runtime is there (again): list it, and take over the box that its pods are in."""
        await self._list()
        await self._adopt()
        self._due.set()

    async def take_over(self, box: BoxPath) -> None:
        """Another process has served this box until now; a round follows."""
        await self._adopt_box(box)
        self._due.set()

    def removed(self, _: Sandbox) -> None:
        """The runtime has removed a sandbox of the box."""
        self._due.set()

    def evict(self, sandbox: Sandbox, why: str) -> None:
        """Stop this one of the box, whatever the switch says; when it does not stop, each round tries again."""
        self._condemned.setdefault(sandbox.id, why)
        self._due.set()

    async def run(self) -> None:
        """Rounds, until cancelled: when something has happened, again `AGAIN_S` later, and each `EVERY_S`."""
        list_at_s = self._clock() + EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, list_at_s - self._clock())):
                    await self._due.wait()
                await asyncio.sleep(_AFTER_REMOVAL_S)
                list_at_s = min(list_at_s, self._clock() + AGAIN_S)
            self._due.clear()
            if refresh := self._clock() >= list_at_s:
                list_at_s = self._clock() + EVERY_S
            await self.round(refresh=refresh)

    async def round(self, *, refresh: bool) -> None:
        """One round. Never raises: a failure is logged once, and the next round tries again."""
        try:
            await self._release()
            if self._runtime_ready():
                if refresh:
                    await self._list()
                await self._adopt()
                if refresh:
                    await self._reap()
                await self._sweep()
                if refresh:
                    await self._carry()
                try:
                    await self._evict()
                finally:  # a pod that does not stop keeps no other from it
                    await self._bound()
        except Exception as error:
            if self._trouble != str(error):
                self._log.warning("upkeep_failed", error=str(error), exc_info=not isinstance(error, ConnectionError))
            self._trouble = str(error)
        else:
            self._trouble = ""

    async def _list(self) -> None:
        await self._inventory.refresh()
        self._on_listed()

    async def tend(self) -> None:
        """Look after the box once a second until cancelled, whether or not its limits are ours to set."""
        while True:
            await self.tend_once()
            await asyncio.sleep(TEND_EVERY_S)

    async def tend_once(self) -> None:
        """Never raises: a failure is logged once."""
        try:
            if changed := await self._box.tend():
                self._log.info("anchors_changed", slices=list(changed))
        except Exception as error:
            if self._tend_trouble != str(error):
                self._log.error("anchors_failed", error=str(error), consequence="kubelet may restart offline pods")
            self._tend_trouble = str(error)
        else:
            self._tend_trouble = ""

    async def _sweep(self) -> None:
        swept = await self._box.sweep(frozenset(parse_placement(place).name for place in self._placements()))
        self._on_swept(len(swept))
        if swept:
            self._log.info("pod_cgroups_removed", pods=list(swept))

    async def _carry(self) -> None:
        if carried := await self._box.carry():
            self._log.info("pod_limits_carried", pods=list(carried), reason="kubelet has set others on its own cgroup")

    async def _reap(self) -> None:
        if killed := await self._box.reap(self._inventory.uids):
            self._log.warning("orphans_killed", pods=list(killed), reason="the runtime has forgotten these pods")

    def _placements(self) -> list[str]:
        return [s.placement for s in self._inventory.placed if s.placement is not None]

    async def _adopt(self) -> None:
        if boxes := {parse_placement(place).box for place in self._placements()}:
            await self._adopt_box(min(boxes, key=lambda box: box.path))

    async def _adopt_box(self, box: BoxPath) -> None:
        if not self._settings.adopt or self._box.path is not None:
            return
        try:
            await self._box.adopt(box, lifted=self._settings.when_off == "release")
        except AdmissionError as error:  # calls must pass all the same
            self._log.error("box_not_adopted", error=str(error))

    async def _release(self) -> None:
        if self._settings.when_off == "release" and (changes := await self._box.release()):
            self._log.info("box_released", files=[change.file for change in changes])

    async def _evict(self) -> None:
        """Stop the pods of the box that shall."""
        placed = {sandbox.id: sandbox for sandbox in self._inventory.placed}
        self._condemned = {one: why for one, why in self._condemned.items() if one in placed}
        everything = dict.fromkeys(placed, self._settings.why) if self._settings.when_off == "evict" else {}
        reasons = everything | self._condemned
        await self._evictions.carry_out({one: (placed[one].pod, why) for one, why in reasons.items()})
