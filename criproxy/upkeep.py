"""Keeps inventory and box in step with the runtime, and carries out what the node's switch says of running pods.

Level-triggered: each round looks at what is, so that a missed event costs a minute and nothing else.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import structlog

from criproxy.cgroup.naming import BoxPath, parse_placement
from criproxy.model import AdmissionError, LimitChange, Sandbox

EVERY_S: Final = 60.0
"""From one listing of the runtime to the next: what left it behind our back is found by then."""

AGAIN_S: Final = 5.0
"""From an event to a listing: a start that a lost connection cut off may have ended only after the first, and a busy
machine may have kept a cgroup for longer than the first sweep waited.
"""

_AFTER_REMOVAL_S: Final = 0.2
"""The runtime answers RemovePodSandbox a moment before the last cgroup is gone."""


class Box(Protocol):
    """What upkeep asks of the box (`criproxy.cgroup.box`)."""

    async def adopt(self, box: BoxPath, *, lifted: bool = False) -> None: ...

    async def release(self) -> tuple[LimitChange, ...]: ...

    async def sweep(self, known: frozenset[str]) -> tuple[str, ...]: ...

    @property
    def path(self) -> str | None: ...


class Inventory(Protocol):
    """What upkeep asks of the inventory (`criproxy.proxy.inventory`)."""

    @property
    def placed(self) -> tuple[Sandbox, ...]: ...

    async def refresh(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """`when_off` is what becomes of pods in the box; None: nothing (colocation is on, or the config says nothing).

    `why`: why it is off, for the log.
    """

    when_off: Literal["release", "evict"] | None
    adopt: bool
    """Whether the box of running pods is taken over, with its limits. Not so while the config is not known."""
    why: str = "colocation was switched off"


class Upkeep:
    """`stop_sandbox` stops one at the runtime and raises ConnectionError; `runtime_ready` tells whether lists hold.

    `clock`: monotonic, in s.
    """

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        box: Box,
        *,
        stop_sandbox: Callable[[str], Awaitable[None]],
        runtime_ready: Callable[[], bool],
        on_swept: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._box = box
        self._stop_sandbox = stop_sandbox
        self._runtime_ready = runtime_ready
        self._on_swept = on_swept
        self._clock = clock
        self._due = asyncio.Event()
        self._evicted: set[str] = set()
        self._trouble = ""
        self._log = structlog.get_logger()

    def configure(self, settings: Settings) -> None:
        """Take up new settings; a round follows at once."""
        self._settings = settings
        self._due.set()

    async def connected(self) -> None:
        """The runtime is there (again): list it, and take over the box that its pods are in."""
        await self._inventory.refresh()
        await self._adopt()
        self._due.set()

    def removed(self, _: Sandbox) -> None:
        """The runtime has removed a sandbox of the box."""
        self._due.set()

    async def run(self) -> None:
        """Rounds, until cancelled: when something has happened, again `AGAIN_S` later, and each `EVERY_S`."""
        list_at_s = self._clock() + EVERY_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), max(0.0, list_at_s - self._clock()))
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
                    await self._inventory.refresh()
                await self._adopt()
                await self._sweep()
                await self._evict()
        except Exception as error:
            if self._trouble != str(error):
                self._log.warning("upkeep_failed", error=str(error), exc_info=not isinstance(error, ConnectionError))
            self._trouble = str(error)
        else:
            self._trouble = ""

    async def _sweep(self) -> None:
        swept = await self._box.sweep(frozenset(parse_placement(place).name for place in self._placements()))
        self._on_swept(len(swept))
        if swept:
            self._log.info("pod_cgroups_removed", pods=list(swept))

    def _placements(self) -> list[str]:
        return [s.placement for s in self._inventory.placed if s.placement is not None]

    async def _adopt(self) -> None:
        boxes = {parse_placement(place).box for place in self._placements()}
        if not self._settings.adopt or not boxes or self._box.path is not None:
            return
        try:
            await self._box.adopt(min(boxes, key=lambda box: box.path), lifted=self._settings.when_off == "release")
        except AdmissionError as error:  # calls must pass all the same
            self._log.error("box_not_adopted", error=str(error))

    async def _release(self) -> None:
        if self._settings.when_off == "release" and (changes := await self._box.release()):
            self._log.info("box_released", files=[change.file for change in changes])

    async def _evict(self) -> None:
        """Stop all pods of the box, at once: one that will not stop must not keep the others."""
        if self._settings.when_off != "evict":
            self._evicted.clear()
            return
        placed = self._inventory.placed
        self._evicted &= {sandbox.id for sandbox in placed}
        stops = [self._stop(sandbox) for sandbox in placed if sandbox.id not in self._evicted]
        failures = [error for error in await asyncio.gather(*stops, return_exceptions=True) if error is not None]
        if failures:
            raise failures[0]

    async def _stop(self, sandbox: Sandbox) -> None:
        pod = sandbox.pod
        self._log.warning("evict", pod=str(pod), pod_uid=pod.uid, reason=self._settings.why)
        await self._stop_sandbox(sandbox.id)
        self._evicted.add(sandbox.id)
