"""Checks that what should run in the box is there: a runtime can put a container elsewhere, and say that all is well.

It looks off every call's path: a moment after each start, and at everything with each listing of the runtime. Then, and
each minute, it looks at all processes of the pods, too: one may leave the box while its container's first one stays.

What looks misplaced is looked at again a second later, in a look of its own: on v1, the kernel shows a process that is
ending in the root of every hierarchy until it is reaped. Source: kernel/cgroup/cgroup.c, proc_cgroup_show. A process
that is outside in both looks is a stray; as one that leaves may fork and end, so is one that was made in a container of
which another was outside a second before.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from criproxy.cgroup.naming import parse_placement
from criproxy.cgroup.processes import ProcCgroupReader
from criproxy.cgroup.strays import Stray, astray
from criproxy.concurrency.clock import Wake
from criproxy.model import Finding
from criproxy.model.shown import Counter, Gauge, listed
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.runtime import Process, Running, UnknownError
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import HOLD_S, ON_UNBOUNDED, StopRequests

CONFIRM_S: Final = 1.0
"""How much later what looks misplaced is looked at again, at least."""

TOGETHER_S: Final = 0.5
"""What starts within this time, as a pod's sandbox and its containers, shares a look."""

_ASKED_AT_ONCE: Final = 8
"""Of the runtime, and no more, as kubelet asks it meanwhile."""

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


class PlacementStatus(Struct, frozen=True):
    """Where the runtime put what belongs in the box: `verified` containers and sandboxes are there.

    `strays` are single processes that run outside it.
    """

    verified: int
    misplaced: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    strays: tuple[Finding, ...] = ()


class _Suspect(Struct, frozen=True):
    """`fresh`: it had just started."""

    since_s: float
    fresh: bool


class _Suspected(Struct, frozen=True):
    """`processes` of a container were outside at `seen_s`. `left`: one of them was made in the container."""

    seen_s: float
    processes: frozenset[tuple[int, int]]
    left: bool


class PlacementCheck(PodObserver, Part, Struct):
    """See the module."""

    NAME = "checking that offline pods run in the box"
    EVERY_S = 60.0
    GAUGES = (
        Gauge(
            "misplaced_containers",
            "Containers, and pod sandboxes, of the box that run outside it",
            lambda part: len(part.misplaced),
        ),
        Gauge(
            "unverified_containers",
            "Containers, and pod sandboxes, whose cgroup is not known",
            lambda part: len(part.unknown),
        ),
        Gauge(
            "stray_processes",
            "Processes of the box's containers that run outside it",
            lambda part: len(part.strays),
        ),
    )
    COUNTERS = (
        Counter("misplacements", "Containers, and pod sandboxes, that were found outside the box"),
        Counter("strays", "Processes that were found to have left the box"),
    )

    shared: PodsShared
    proc_cgroups: ProcCgroupReader
    stops: StopRequests
    verified_only: bool = False
    """Whether what can't be verified is a problem."""
    _everything: bool = False
    _fresh: set[str] = set()
    _fresh_since_s: float = 0.0
    _suspects: dict[str, _Suspect] = {}
    """What was outside the box in one look, by its id."""
    _suspected: dict[str, _Suspected] = {}
    """Containers of which single processes were so, by id."""
    _strays: dict[tuple[str, int, int], Finding] = {}
    """By their container's id, their number and their start."""
    _pids: dict[str, int] = {}
    """Processes that were seen in the box. Their numbers may be others' by now: only a good sight of one counts."""
    _bare: set[str] = set()
    """Sandboxes without a process."""
    _unknown: dict[str, Finding] = {}
    _misplaced: dict[str, Finding] = {}
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "PlacementCheck":
        return cls(ports.shared, ports.proc_cgroups, ports.stops)

    @property
    def verified(self) -> int:
        """How many were in the box when they were last looked at. Safe to ask for from any thread, as is the rest."""
        return len(self._pids)

    @property
    def misplaced(self) -> tuple[Finding, ...]:
        """What runs outside the box."""
        return tuple(self._misplaced.values())

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """What can't be checked, as with a virtual machine's runtime."""
        return tuple(self._unknown.values())

    @property
    def strays(self) -> tuple[Finding, ...]:
        """The processes that run outside the box, though their containers do not."""
        return tuple(self._strays.values())

    def configure(self, now: NodeSettings) -> None:
        """Look at everything: whom to stop may have changed in `Holds`."""
        self.verified_only = now.config.hardening.verified_only
        self.pods_listed()

    def pod_started(self, running: Running) -> None:
        if not self._fresh:
            self._fresh_since_s = self.shared.clock.boottime_s()
        self._fresh.add(running.id)
        self._wake.set()

    def pods_listed(self) -> None:
        """Look at all that runs in the box."""
        self._everything = True
        self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    @property
    def pause_s(self) -> float | None:
        if self._fresh:
            return TOGETHER_S
        return CONFIRM_S if self._suspects or self._suspected else self.EVERY_S

    @property
    def _gathers(self) -> bool:
        """Whether what has just started waits for others, to share a look."""
        if self._everything or not self._fresh:
            return False
        return self.shared.clock.boottime_s() - self._fresh_since_s < TOGETHER_S

    async def look(self) -> None:
        """At what is due. What failed is due again with the next listing."""
        if self._gathers:
            return
        everything, self._everything = self._everything, False
        fresh, self._fresh = self._fresh, set()
        inventory = self.shared.inventory
        due = inventory.running if everything else inventory.running_of(fresh | self._suspects.keys())
        if everything:
            self._forget_others({one.id for one in due})
        failure = await self._check(due, fresh)
        if everything or not fresh:
            await self._check_processes()
        if failure is not None:
            raise failure

    def section(self) -> Mapping[str, Any]:
        return {"placement": PlacementStatus(self.verified, self.misplaced, self.unknown, self.strays)}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if misplaced := len(self.misplaced):
            yield f"{misplaced} containers of offline pods run outside the box"
        for one in self.strays:
            yield f"offline pod {one}: {one.detail}, outside the box"
        if self.verified_only and (unknown := len(self.unknown)):
            yield (
                f"of {unknown} containers of offline pods it can't be known whether they run in the box "
                "(hardening.verified_only)"
            )

    def rows(self) -> Iterator[tuple[str, ...]]:
        misplaced, unknown = self.misplaced, self.unknown
        counts = f"{self.verified} containers verified, {len(misplaced)} misplaced, {len(unknown)} not known"
        rows = (*_rows("misplaced", misplaced), *_rows("not known", unknown), *_rows("stray", self.strays))
        yield "placement", counts, *rows

    def _forget_others(self, running: set[str]) -> None:
        for known in (self.shared.processes, self._pids, self._unknown, self._misplaced, self._suspects):
            for gone in known.keys() - running:
                known.pop(gone, None)
        self._bare &= running

    async def _check(self, due: Iterable[Running], fresh: Collection[str]) -> Exception | None:
        """Returns what failed first for a single one; that must not keep the others."""
        settled = self._unknown.keys() | self._bare
        doubtful = [one for one in await self._not_seen_inside(due) if one.id not in settled]
        outside, failure = await self._outside(doubtful)
        suspected, now_s = self._suspects, self.shared.clock.boottime_s()
        self._suspects = {}
        for one, where in outside:
            suspect = suspected.get(one.id) or _Suspect(now_s, one.id in fresh)
            if one.id not in self._misplaced:
                if now_s - suspect.since_s < CONFIRM_S:
                    self._suspects[one.id] = suspect
                    continue
                self._found(one, where)
            if self.shared.holds.stops(ON_UNBOUNDED, one.sandbox.pod):
                if suspect.fresh:
                    why = f"the runtime put it outside the box, at {where}"
                    self.shared.holds.hold(one.sandbox.pod, HOLD_S, why, ON_UNBOUNDED)
                self.stops.stop(one.sandbox, f"it is outside the box, at {where}", ON_UNBOUNDED)
        return failure

    async def _check_processes(self) -> None:
        """All processes of the containers whose first ones are in the box."""
        firsts = {self._pids[one.id]: one for one in self.shared.inventory.running if one.id in self._pids}
        found = await self.proc_cgroups.strays({pid: _box(one) for pid, one in firsts.items()})
        known, self._strays = self._strays, {}
        told = {container for container, _, _ in known}
        confirmed = told | self._confirmed(firsts, [one for one in found if firsts[one.first].id not in told])
        for stray in found:
            one = firsts[stray.first]
            key = one.id, stray.pid, stray.started
            if one.id not in confirmed:
                continue
            where = f"its process {stray.pid} runs at {stray.where}"
            self._strays[key] = Finding(**asdict(one.sandbox.pod), container=one.container, detail=where)
            if key not in known:
                self.shared.counters.count("strays")
            if one.id not in told:
                self.shared.log.error("stray_process", **_names(one), pid=stray.pid, where=stray.where, box=_box(one))
            if self.shared.holds.stops(ON_UNBOUNDED, one.sandbox.pod):
                self.shared.holds.hold(one.sandbox.pod, HOLD_S, f"{where}, outside the box", ON_UNBOUNDED)
                self.stops.stop(one.sandbox, f"{where}, outside the box", ON_UNBOUNDED)

    def _confirmed(self, firsts: Mapping[int, Running], found: Iterable[Stray]) -> set[str]:
        """The containers, by id, of which enough looks have seen processes outside; the others are suspected."""
        outside: dict[str, list[Stray]] = {}
        for one in found:
            outside.setdefault(firsts[one.first].id, []).append(one)
        before, now_s, confirmed = self._suspected, self.shared.clock.boottime_s(), set[str]()
        self._suspected = {}
        for id, strays in outside.items():
            processes = frozenset((one.pid, one.started) for one in strays)
            left, was = not all(one.entered for one in strays), before.get(id)
            if was is None or now_s - was.seen_s < CONFIRM_S:
                self._suspected[id] = was or _Suspected(now_s, processes, left)
            elif processes & was.processes or (left and was.left):
                confirmed.add(id)
            else:
                self._suspected[id] = _Suspected(now_s, processes, left)
        return confirmed

    async def _not_seen_inside(self, due: Iterable[Running]) -> list[Running]:
        """The quick look: at the processes that are known already, and without the runtime."""
        due = tuple(due)
        shown = await self.proc_cgroups.read([self._pids[one.id] for one in due if one.id in self._pids])
        left = []
        for one in due:
            cgroups = shown.get(self._pids.get(one.id, 0))
            if cgroups is None or astray(cgroups, _box(one)):
                left.append(one)
        return left

    async def _outside(self, doubtful: Sequence[Running]) -> tuple[list[tuple[Running, str]], Exception | None]:
        """Those that run outside the box, and where; and what failed first: each failure holds its frames, and a
        runtime that is away fails for all.
        """
        found: list[tuple[Running, str]] = []
        asked: list[tuple[Running, Process]] = []
        failure: Exception | None = None
        for begin in range(0, len(doubtful), _ASKED_AT_ONCE):
            some = doubtful[begin : begin + _ASKED_AT_ONCE]
            for one, answer in zip(some, await asyncio.gather(*map(self._answer, some)), strict=True):
                if isinstance(answer, Process):
                    asked.append((one, answer))
                else:
                    failure = failure or answer
        shown = await self.proc_cgroups.read([process.pid for _, process in asked if process.pid])
        for one, process in asked:
            try:
                where = await self._where(one, process, shown)
            except (ConnectionError, ValueError) as error:
                failure = failure or _worth_telling(error)
                continue
            if where:
                found.append((one, where))
            elif self._misplaced.pop(one.id, None):
                self.shared.log.info("no_longer_misplaced", **_names(one))
        return found, failure

    async def _where(self, one: Running, process: Process, shown: Mapping[int, str]) -> str:
        """Where it runs outside the box; "" when it does not, or nobody knows. `shown`: processes' cgroups."""
        if process.pid is None:
            if one.container:
                self._unverifiable(one, "the runtime does not tell its process")
            else:  # it has none of its own, and its containers are looked at
                self._bare.add(one.id)
            return ""
        if (cgroups := shown.get(process.pid)) is None:  # it has ended
            return ""
        where = astray(cgroups, _box(one))
        if not where:
            self._pids[one.id] = process.pid
        elif kind := await self._foreign(one, process):
            self._unverifiable(one, f"{kind} may run it in a virtual machine, whose cgroup is not the container's")
            return ""
        return where

    async def _answer(self, one: Running) -> Process | Exception | None:
        """What the runtime says of it, or what is worth telling of why it does not."""
        self._pids.pop(one.id, None)
        try:
            return await self._ask(one)
        except (ConnectionError, ValueError) as error:
            return _worth_telling(error)

    async def _ask(self, one: Running) -> Process:
        process = self.shared.processes[one.id] = await self.shared.runtime.process_of(one)
        return process

    async def _foreign(self, one: Running, process: Process) -> str:
        """The kind of runtime, when it is none whose processes are the pod's own; "" when it is."""
        if process.runtime_type:
            return "" if _ON_HOST.intersection(process.runtime_type.split(".")) else process.runtime_type
        if one.container:  # only the sandbox's status has the handler
            process = await self._ask(Running(one.sandbox, one.sandbox.id, ""))
        return "" if process.handler in {"", *_ON_HOST} else process.handler

    def _unverifiable(self, one: Running, why: str) -> None:
        self._unknown[one.id] = Finding(**asdict(one.sandbox.pod), container=one.container, detail=why)
        self.shared.log.info("placement_unknown", **_names(one), reason=why)

    def _found(self, one: Running, where: str) -> None:
        self._misplaced[one.id] = Finding(**asdict(one.sandbox.pod), container=one.container, detail=where)
        self.shared.counters.count("misplacements")
        remedy = _OTHER_DRIVER if _PATH_OF_UNIT in where else _NOT_HONOURED
        self.shared.log.error("misplaced", **_names(one), where=where, box=_box(one), remedy=remedy)


def _worth_telling(error: Exception) -> Exception | None:
    """Not that it has gone meanwhile."""
    return None if isinstance(error, UnknownError) else error


def _box(one: Running) -> str:
    assert one.sandbox.placement is not None
    return parse_placement(one.sandbox.placement).box.path


def _names(one: Running) -> dict[str, str]:
    pod = one.sandbox.pod
    return {"pod": str(pod), "pod_uid": pod.uid, "container": one.container}


def _rows(head: str, found: Sequence[Finding]) -> Iterator[str]:
    named = [(one, f"container {one.container}" if one.container else "sandbox") for one in found]
    yield from listed([f"{head}: {one}, {what}: {one.detail}" for one, what in named])
