"""The box, as those see it who let pods in, look after them or report: it notes what it is told."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from criproxy.cgroup.box import BoxState, Held
from criproxy.cgroup.driver import CgroupDriver, CgroupError, HeldLimit
from criproxy.cgroup.naming import BoxPath, PodParent, parse_box
from criproxy.model import AdmissionError, LimitChange, Limits, Resources, Unlimited
from criproxy.model.cpulist import Cpus
from tests.fakes.driver import FakeDriver

T = TypeVar("T")


@dataclass
class FakeAdmissions:
    """An `AdmitsPods`. `full`: why nobody is let in; `refused`: the names of those that are not."""

    admitted: list[tuple[str, int]] = field(default_factory=list)
    resized: list[tuple[str, Resources]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    mid: list[str] = field(default_factory=list)
    full: str = ""
    refused: set[str] = field(default_factory=set)

    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        self._check(place)
        self.shares.append(cpu_shares)
        self.mid += [place.name] if mid else []
        self.admitted.append((place.in_box, memory_bytes))

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        self._check(place)
        self.resized.append((place.in_box, resized))

    def forget(self, name: str) -> None:
        self.forgotten.append(name)

    def _check(self, place: PodParent) -> None:
        if self.full or place.name in self.refused:
            raise AdmissionError(self.full or f"no room for {place.name}")


@dataclass
class FakeBox:
    """The box, its pods and its memory in one; what features read and write goes to `driver`, at once.

    `orders` are what it was told, but for sweeps and CPUs; `known` is what the last sweep was to keep, and `ended`
    what has ended of that.

    `error`: why nothing that it is told can be done. `empty`: the names of pods whose cgroups a sweep may remove.
    `keeps_to`: the CPUs that a container can be kept to; None: whichever are asked for. `there`: the path of a box that
    has pods from before, "": there is none.
    """

    path: str | None = None
    version: int = 1
    limits: Limits | None = None
    wanted: Limits | None = None
    used: Held | None = None
    cpus: str = ""
    tiers: bool = False
    pids: HeldLimit | None = None
    fault: str = ""
    drift: int = 0
    error: str = ""
    orders: list[object] = field(default_factory=list)
    confined: int = 0
    known: frozenset[str] | None = None
    ended: frozenset[str] = frozenset()
    empty: tuple[str, ...] = ()
    shares: dict[str, int] = field(default_factory=dict)
    mid: tuple[str, ...] = ()
    keeps_to: Cpus | None = None
    there: str = ""
    drops: list[frozenset[str]] = field(default_factory=list)
    cache: int = 0
    driver: FakeDriver = field(default_factory=FakeDriver)
    jobs: list[str] = field(default_factory=list)
    """What features have read and written, in words."""

    @property
    def pods(self) -> "FakeBox":
        return self

    @property
    def memory(self) -> "FakeBox":
        return self

    async def found(self) -> BoxPath | None:
        return parse_box(self.there) if self.there else None

    async def reads(self, what: str, job: Callable[[CgroupDriver, str], T]) -> T | None:
        self.jobs.append(what)
        self._check()
        return None if self.path is None else job(self.driver, self.path)

    async def writes(self, what: str, job: Callable[[CgroupDriver, str], T], *, apart: str = "") -> T | None:
        return await self.reads(what, job)

    def state(self) -> BoxState:
        return BoxState(
            self.path,
            self.version,
            self.limits,
            not self.fault,
            self.fault,
            drift=self.drift,
            timeouts=0,
            wanted=self.wanted,
            memory=self.used,
            cpus=self.cpus,
            in_use={"pids": self.pids} if self.pids else {},
            tiers=self.tiers,
        )

    async def confine(self) -> tuple[LimitChange, ...]:
        self._check()
        self.confined += 1
        return ()

    async def adopt(self, box: BoxPath, *, lifted: bool = False) -> None:
        self.orders.append(("adopt", box.path, lifted))
        if self.error:
            raise AdmissionError(self.error)
        self.path = box.path

    async def release(self) -> tuple[LimitChange, ...]:
        self.orders.append("release")
        return ()

    async def carry(self, pods: Collection[PodParent]) -> tuple[str, ...]:
        self.orders.append(("carry", frozenset(pod.name for pod in pods)))
        self._check()
        return ()

    def kept_to(self, cpus: Cpus | Unlimited) -> Cpus | Unlimited:
        return cpus if self.keeps_to is None else self.keeps_to

    def know_asked(self, shares: Mapping[str, int], mid: Collection[str]) -> None:
        self.shares, self.mid = dict(shares), tuple(mid)

    def lower_shares(self, shares: Mapping[str, int]) -> None:
        self.orders.append(("lower shares", dict(shares)))

    async def drop_caches(self, running: Collection[str]) -> int:
        self.drops.append(frozenset(running))
        self._check()
        return self.cache

    async def reap(self, uids: Collection[str]) -> tuple[tuple[str, ...], None]:
        self.orders.append(("reap", uids))
        return (), None

    async def sweep(self, known: frozenset[str], ended: frozenset[str] = frozenset()) -> tuple[str, ...]:
        self.known, self.ended = known, ended
        return tuple(name for name in self.empty if name not in known)

    def _check(self) -> None:
        if self.error:
            raise CgroupError(self.error)
