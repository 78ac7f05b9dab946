"""Verifies that what runs in the box is there: a runtime can put a container elsewhere, and say that all is well.

It only looks, off every call's path: right after each start, and at everything with each listing of the runtime.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from criproxy.cgroup.naming import parse_placement
from criproxy.cgroup.processes import astray
from criproxy.control.clock import Clock
from criproxy.model import PodRef, Sandbox
from criproxy.pods.runtime import Process, Running, UnknownError

CONFIRM_S: Final = 1.0
"""What looks misplaced is looked at again after this: on v1, the kernel shows a process that is ending in the root of
every hierarchy until it is reaped. Source: kernel/cgroup/cgroup.c, proc_cgroup_show.
"""

HOLD_S: Final = 300.0
"""For so long a pod that was evicted right after its start may not start again: it would land there again."""

_ON_HOST: Final = frozenset({"runc", "crun", "youki", "runsc", "linux"})
"""Runtimes whose process is the container's own (of gVisor: its kernel's), by a part of their type or handler.

Of others it can be a shim, which stays outside by design.
"""

_PATH_OF_UNIT: Final = ".slice:"
"""In a cgroup's name: a runtime whose driver is cgroupfs took `a.slice:prefix:id`, which is for systemd, for a path."""

_OTHER_DRIVER: Final = (
    "give the runtime kubelet's cgroup driver, systemd (containerd: SystemdCgroup = true, CRI-O: cgroup_manager = "
    '"systemd"), and restart it'
)
_NOT_HONOURED: Final = "see whether the pod's runtime class honours cgroup_parent, or somebody moves processes"


class Inventory(Protocol):
    """What is asked of the inventory (`criproxy.pods.inventory`)."""

    @property
    def running(self) -> tuple[Running, ...]: ...


class Settings(Struct, frozen=True):
    """`evict`: the pods of misplaced containers are stopped."""

    evict: bool


class Finding(Struct, frozen=True):
    """Of a container, or of a pod's sandbox (`container` ""): where it is, or why that can't be told."""

    pod: PodRef
    container: str
    detail: str


class Verifier:
    """`process_of` asks the runtime and raises ConnectionError or ValueError; `cgroups_of` gives each process's
    /proc/PID/cgroup, if it is there, and raises CgroupError. `evict` stops a sandbox, for a reason, some time.
    """

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        *,
        process_of: Callable[[Running], Awaitable[Process]],
        cgroups_of: Callable[[Collection[int]], Awaitable[Mapping[int, str]]],
        evict: Callable[[Sandbox, str], None],
        on_misplaced: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._process_of = process_of
        self._cgroups_of = cgroups_of
        self._evict = evict
        self._on_misplaced = on_misplaced
        self._clock = clock
        self._due = asyncio.Event()
        self._everything = False
        self._fresh: set[str] = set()
        self._pids: dict[str, int] = {}
        """Processes that were seen in the box. Their numbers may be others' by now: only a good sight of one counts."""
        self._bare: set[str] = set()
        """Sandboxes without a process."""
        self._unknown: dict[str, Finding] = {}
        self._misplaced: dict[str, Finding] = {}
        self._held: dict[str, tuple[float, str]] = {}
        self._trouble = ""
        self._log = structlog.get_logger()

    @property
    def verified(self) -> int:
        """So many were in the box when they were last looked at. Safe to ask for from any thread, as is the rest."""
        return len(self._pids)

    @property
    def misplaced(self) -> tuple[Finding, ...]:
        """What runs outside the box."""
        return tuple(self._misplaced.values())

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """What can't be verified, as with a virtual machine's runtime."""
        return tuple(self._unknown.values())

    def configure(self, settings: Settings) -> None:
        """Take up new settings; a look at everything follows."""
        self._settings = settings
        self.look()

    def started(self, running: Running) -> None:
        """The runtime has just started this."""
        self._fresh.add(running.id)
        self._due.set()

    def look(self) -> None:
        """Look at all that runs in the box."""
        self._everything = True
        self._due.set()

    def held(self, pod: PodRef) -> str:
        """Why the pod may not start for now; "": it may."""
        until_s, where = self._held.get(pod.uid, (0.0, ""))
        if self._clock.boottime_s() >= until_s or not self._settings.evict:
            return ""
        return (
            f"the runtime put it outside the box, at {where}, and it was stopped for that (colocation.on_unbounded), "
            f"so it is not let in for {HOLD_S:g} s"
        )

    async def run(self) -> None:
        """Rounds, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self.round()

    async def round(self) -> None:
        """Look at what is due. Never raises: a failure is logged once, and the next look at everything tries again."""
        everything, self._everything = self._everything, False
        fresh, self._fresh = self._fresh, set()
        try:
            running = {one.id: one for one in self._inventory.running}
            self._forget_others(running)
            due = [one for one in running.values() if everything or one.id in fresh]
            failures = await self._verify(due, fresh)
        except Exception as error:
            failures = [error]
        trouble = str(failures[0]) if failures else ""
        if trouble and trouble != self._trouble:
            known = isinstance(failures[0], ConnectionError)
            self._log.warning("placement_not_verified", error=trouble, exc_info=None if known else failures[0])
        self._trouble = trouble

    def _forget_others(self, running: Collection[str]) -> None:
        for known in (self._pids, self._unknown, self._misplaced):
            for gone in known.keys() - running:
                known.pop(gone, None)
        self._bare &= set(running)
        now_s = self._clock.boottime_s()
        self._held = {uid: held for uid, held in self._held.items() if held[0] > now_s}

    async def _verify(self, due: Iterable[Running], fresh: Collection[str]) -> list[Exception]:
        """Returns what failed for single ones; that must not keep the others."""
        settled = self._unknown.keys() | self._bare
        doubtful = [one for one in await self._not_seen_inside(due) if one.id not in settled]
        suspects, failures = await self._outside(doubtful)
        if any(one.id not in self._misplaced for one, _ in suspects):
            await self._clock.sleep(CONFIRM_S)
            suspects, more = await self._outside([one for one, _ in suspects])
            failures += more
        for one, where in suspects:
            if one.id not in self._misplaced:
                self._found(one, where)
            if self._settings.evict:
                if one.id in fresh:
                    self._held[one.sandbox.pod.uid] = (self._clock.boottime_s() + HOLD_S, where)
                self._evict(one.sandbox, f"it is outside the box, at {where}")
        return failures

    async def _not_seen_inside(self, due: Iterable[Running]) -> list[Running]:
        """The quick look: at the processes that are known already, and without the runtime."""
        due = tuple(due)
        shown = await self._cgroups_of([self._pids[one.id] for one in due if one.id in self._pids])
        left = []
        for one in due:
            cgroups = shown.get(self._pids.get(one.id, 0))
            if cgroups is None or astray(cgroups, _box(one)):
                left.append(one)
        return left

    async def _outside(self, doubtful: Iterable[Running]) -> tuple[list[tuple[Running, str]], list[Exception]]:
        """Those that run outside the box, and where; and what failed."""
        found: list[tuple[Running, str]] = []
        failures: list[Exception] = []
        for one in doubtful:
            try:
                where = await self._where(one)
            except (ConnectionError, ValueError) as error:
                if not isinstance(error, UnknownError):
                    failures.append(error)
                continue
            if where:
                found.append((one, where))
            elif self._misplaced.pop(one.id, None):
                self._log.info("no_longer_misplaced", **_names(one))
        return found, failures

    async def _where(self, one: Running) -> str:
        """Where it runs outside the box; "" when it does not, or nobody knows."""
        self._pids.pop(one.id, None)
        process = await self._process_of(one)
        if process.pid is None:
            self._without_process(one)
            return ""
        cgroups = (await self._cgroups_of([process.pid])).get(process.pid) if process.pid else None
        if cgroups is None:  # it has ended
            return ""
        where = astray(cgroups, _box(one))
        if not where:
            self._pids[one.id] = process.pid
        elif kind := await self._foreign(one, process):
            self._unverifiable(one, f"{kind} may run it in a virtual machine, whose cgroup is not the container's")
            return ""
        return where

    async def _foreign(self, one: Running, process: Process) -> str:
        """The kind of runtime, when it is none whose processes are the pod's own; "" when it is."""
        if process.runtime_type:
            return "" if _ON_HOST.intersection(process.runtime_type.split(".")) else process.runtime_type
        if one.container:  # the sandbox's status alone tells the handler
            process = await self._process_of(Running(one.sandbox, one.sandbox.id, ""))
        return "" if process.handler in {"", *_ON_HOST} else process.handler

    def _without_process(self, one: Running) -> None:
        if one.container:
            self._unverifiable(one, "the runtime does not tell its process")
        else:  # it has none of its own, and its containers are looked at
            self._bare.add(one.id)

    def _unverifiable(self, one: Running, why: str) -> None:
        self._unknown[one.id] = Finding(one.sandbox.pod, one.container, why)
        self._log.info("placement_unknown", **_names(one), reason=why)

    def _found(self, one: Running, where: str) -> None:
        self._misplaced[one.id] = Finding(one.sandbox.pod, one.container, where)
        self._on_misplaced()
        remedy = _OTHER_DRIVER if _PATH_OF_UNIT in where else _NOT_HONOURED
        self._log.error("misplaced", **_names(one), where=where, box=_box(one), remedy=remedy)


def _box(one: Running) -> str:
    assert one.sandbox.placement is not None
    return parse_placement(one.sandbox.placement).box.path


def _names(one: Running) -> dict[str, str]:
    pod = one.sandbox.pod
    return {"pod": str(pod), "pod_uid": pod.uid, "container": one.container}
