"""The box's memory: what must be reclaimed for a limit that sinks, and what is taken back beside the limits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Final

from msgspec import Struct

from criproxy.cgroup import files
from criproxy.cgroup.box.limits import BoxLimits
from criproxy.cgroup.box.pods import BoxPods
from criproxy.cgroup.box.threads import BoxThreads
from criproxy.cgroup.driver import CgroupDriver, CgroupError
from criproxy.cgroup.naming import parse_box
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import StuckError
from criproxy.model import MEMORY, MEMORY_HIGH, UNLIMITED, Limits, Unlimited

_STEP_S: Final = 1.0
"""For so long what follows a step of reclaim waits for its end: one takes that long on a slow disk only."""

_CACHE_S: Final = 3.0
"""For so long page cache is dropped at a time, and not begun again while a limit is to sink."""


class Held(Struct, frozen=True):
    """One reading of the memory that counts towards the box's limit, and the limit that was wanted at that moment."""

    used_bytes: int
    wanted_bytes: float | Unlimited


class BoxMemory:
    """How a limit sinks stands in the package's docstring. All but the jobs of the reclaimer is for the event loop."""

    def __init__(
        self, driver: CgroupDriver, limits: BoxLimits, pods: BoxPods, threads: BoxThreads, clock: Clock
    ) -> None:
        self._driver = driver
        self._limits = limits
        self._pods = pods
        self._threads = threads
        self._clock = clock
        self.last: Held | None = None
        """As of the last reading of usage; None: not read yet."""
        self._sinking: asyncio.Task[None] | None = None
        self._at_rest = 0
        self._failure: CgroupError | None = None
        """Of the last reclaim."""
        self._sink_to: int | None = None
        """The memory limit that is sought by reclaim; None: none, so that it stops."""
        self._dropped: frozenset[str] = frozenset()
        """The ended pods that have no page cache left to take."""

    @property
    def spares(self) -> bool:
        """Memory can be taken back without a limit that kills: there is memory.high, which v1 has not."""
        return self._driver.version == 2

    # --- a limit that sinks ----------------------------------------------------------------------------------------

    def sink(self) -> CgroupError | None:
        """Begin, or go on, with what stands above the wanted limit. Returns what failed of it before."""
        held, wanted = self._limits.held, None if self._at_rest else self._limits.wanted
        self._sink_to = None if held is None or wanted is None else self._sought(held, wanted)
        failure, self._failure = self._failure, None
        if self._sink_to is not None and (self._sinking is None or self._sinking.done()):
            self._sinking = asyncio.create_task(self._reclaimed())
        return failure

    def first_sink(self) -> None:
        """As `sink`, for a box that was taken over; what fails of it is returned by the next."""
        self._failure = self.sink()

    async def stop(self) -> None:
        """Let no further step begin, and wait a while for the one that is under way."""
        self.halt()
        if self._sinking is not None and not self._sinking.done():
            await asyncio.wait([self._sinking], timeout=_STEP_S)

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Within this, no limit begins to sink; what was under way has ended before, or has been waited for a while."""
        self._at_rest += 1
        try:
            await self.stop()
            yield
        finally:
            self._at_rest -= 1

    def halt(self) -> None:
        """Let no further step begin."""
        self._sink_to = None

    def _sought(self, held: Limits, wanted: Limits) -> int | None:
        high, memory = wanted.get(MEMORY_HIGH, UNLIMITED), self.last
        if high is UNLIMITED or not self.spares:
            return _below(held[MEMORY], wanted[MEMORY])
        return int(high) if memory is None or memory.used_bytes > high else _below(held[MEMORY], wanted[MEMORY])

    async def _reclaimed(self) -> None:
        try:
            await self._threads.reclaimer.run("reclaim memory", self._reclaim)
        except StuckError:
            pass  # it takes long, which `BoxState.memory` says
        except CgroupError as error:
            self._failure = error

    def _reclaim(self) -> None:
        """On the reclaimer's thread: to what is wanted at each step's beginning."""
        for _ in range(files.RECLAIM_STEPS):
            path, size = self._limits.path, self._sink_to
            if path is None or size is None or not self._driver.memory.reclaim(path, size):
                return

    # --- beside the limits -----------------------------------------------------------------------------------------

    async def drop_caches(self, running: Collection[str]) -> int:
        """Take back the page cache of ended pods, each once: of all but `running` (names); returns how many bytes.

        Without that it counts towards the box's limit, also when the pods' cgroups are gone, until the kernel needs the
        memory. What takes long is left for the next call. Raises CgroupError.
        """
        path, kept = self._limits.path, frozenset(running)
        if path is None:
            return 0
        return await self._threads.reclaimer.run("drop caches", lambda: self._drop_caches(path, kept))

    async def take_back(self, size_bytes: int) -> int:
        """Take back so much of the box's memory, beside its limits; returns by how many bytes it fell.

        A limit that is to sink goes first, and what takes long is left. Raises CgroupError.
        """
        path = self._limits.path
        if path is None:
            return 0
        return await self._threads.reclaimer.run("take back", lambda: self._take_back(path, size_bytes))

    def _drop_caches(self, path: str, running: frozenset[str]) -> int:
        there = self._driver.pods(path)
        ended = [name for name in there if name not in running and name not in self._pods.admitted]
        self._dropped &= frozenset(ended)
        box, until_s, dropped_bytes = parse_box(path), self._clock.monotonic_s() + _CACHE_S, 0
        for name in ended:
            while name not in self._dropped:
                if self._sink_to is not None or self._clock.monotonic_s() > until_s:
                    return dropped_bytes
                if (size := self._driver.memory.drop_cache(box.pod(name))) is None:
                    self._dropped |= {name}
                else:
                    dropped_bytes += size
        return dropped_bytes

    def _take_back(self, path: str, size_bytes: int) -> int:
        until_s, left_bytes = self._clock.monotonic_s() + _CACHE_S, size_bytes
        while left_bytes > 0 and self._sink_to is None and self._clock.monotonic_s() <= until_s:
            taken_bytes = self._driver.memory.take_back(path, min(left_bytes, files.CACHE_STEP_BYTES))
            left_bytes -= taken_bytes
            if not taken_bytes:
                break
        return size_bytes - left_bytes


def _below(held: float | Unlimited, wanted: float | Unlimited) -> int | None:
    """The wanted limit when the one in force is above it, else None."""
    return None if wanted is UNLIMITED or (held is not UNLIMITED and held <= wanted) else int(wanted)
