"""The pods of the box: each is let in, has what kubelet has set on its own cgroup of it, and is swept when it has gone.

What is written is written by jobs of the writer's thread, by one of the reclaimer's (`_make_room`) and those of the
reaper's (`_kill`).
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from criproxy.cgroup import files
from criproxy.cgroup.box.limits import BoxLimits
from criproxy.cgroup.box.threads import BoxThreads, for_request
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.kernel_files import weight_of
from criproxy.cgroup.naming import DEFAULT_BOXES, BoxPath, PodParent, is_slice, parse_box, parse_placement, pod_names
from criproxy.cgroup.tiers import tiered
from criproxy.cgroup.tree import if_there
from criproxy.concurrency.clock import Clock
from criproxy.model import HIGHEST_SHARES, LOWEST_SHARES, MEMORY_HIGH, SHARES_OF_CORE, UNLIMITED, Resources, Unlimited
from criproxy.model.cpulist import Cpus

STARTING_S: Final = 300.0
"""For so long an admitted pod may be unknown to the runtime and empty, and is not swept, unless its start is over by
then. Kubelet waits for its sandbox for twice its runtimeRequestTimeout, which is two minutes by default.
"""

STARTING_MOST_S: Final = 30.0
"""For so long an admitted pod counts as starting, when no container of it runs: it may be waiting for an image."""

ORPHAN_S: Final = 60.0
"""For so long a pod's cgroup may have processes and no pod, while the runtime cleans up."""


class BoxPods:
    """See the module. All but the jobs is for the event loop; it implements `pods.admission.AdmitsPods`."""

    def __init__(self, driver: CgroupDriver, limits: BoxLimits, threads: BoxThreads, clock: Clock) -> None:
        self._driver = driver
        self._limits = limits
        self._threads = threads
        self._clock = clock
        self.names: frozenset[str] = frozenset()
        """Of those that had a cgroup in the box when it was looked at last; replaced as a whole."""
        self.none_left = False
        """The last sweep has left no pod but such as have ended, and none has been let in or started since."""
        self._shares: Mapping[str, int] = {}
        """Replaced as a whole, as is `_mid`: the writer reads them."""
        self._mid: frozenset[str] = frozenset()
        """The names of the pods of the higher tier."""
        self._admitted: dict[str, float] = {}
        self._starting: dict[str, float] = {}
        self._orphaned_s: dict[str, float] = {}

    # --- for requests ----------------------------------------------------------------------------------------------

    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        """Bound the box, then make the pod's cgroup in it, with what kubelet has set on its own one.

        `memory_bytes`: the memory limit that the pod asks for in an annotation, 0: none; it holds where kubelet has set
        none. `cpu_shares` are given to a pod that kubelet has given the lowest weight. `mid`: it is of the higher tier.
        Raises AdmissionError.
        """
        self._admitted[place.name] = self._clock.monotonic_s()  # it may wait for others, and is starting meanwhile
        self.know_asked({**self._shares, place.name: cpu_shares}, {*self._mid, *([place.name] if mid else [])})
        await for_request(f"admit {place.in_box}", lambda: self._admit(place, memory_bytes), self._threads.writer)

    def know_asked(self, shares: Mapping[str, int], mid: Collection[str] = ()) -> None:
        """What pods of the box, by name, ask for beyond kubelet's knowledge, in CPU shares (0: nothing); and which of
        them are of the higher tier.

        Of pods that are starting, what is known already stays.
        """
        starting = {name: asked for name, asked in self._shares.items() if name in self._admitted}
        self._shares = {name: asked for name, asked in {**starting, **shares}.items() if asked}
        self._mid = frozenset(mid) | (self._mid & self._admitted.keys())

    def lower_shares(self, shares: Mapping[str, int]) -> None:
        """Pods of the box, by name, ask for no more than so many CPU shares, whatever was said of them before."""
        lowered = {name: min(self._shares.get(name, 0), most) for name, most in shares.items()}
        self._shares = {name: asked for name, asked in {**self._shares, **lowered}.items() if asked}

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        """Give an admitted pod what kubelet's request says, and else what kubelet has set on its own cgroup of it.

        The request wins, as kubelet of 1.36 and later asks first and writes its own cgroup afterwards. Raises
        AdmissionError.
        """
        path, memory_bytes = place.in_box, resized.memory_limit_bytes
        if memory_bytes:
            job = partial(self._make_room, path, memory_bytes)
            await for_request(f"make room in {path}", job, self._threads.reclaimer)
        job = partial(self._set_limits, place, resized=resized)
        await for_request(f"resize {path}", job, self._threads.writer)

    def forget(self, name: str) -> None:
        """The pod's start is over: from now on `sweep` goes by what the runtime knows."""
        self._admitted.pop(name, None)

    @property
    def admitted(self) -> tuple[str, ...]:
        """The names of the pods that are starting."""
        return tuple(self._admitted)

    def started(self, name: str) -> None:
        """A container of the pod runs."""
        self.none_left = False
        self._starting.pop(name, None)

    @property
    def starting(self) -> int:
        """How many pods have been let in and have no container yet that runs."""
        oldest = self._clock.monotonic_s() - STARTING_MOST_S
        return sum(admitted_s >= oldest for admitted_s in tuple(self._starting.values()))

    def expect(self, names: Iterable[str]) -> None:
        """These pods, which another process has admitted, are starting."""
        expected = dict.fromkeys(names, self._clock.monotonic_s())
        self._admitted.update(expected)
        self._starting.update(expected)

    def kept_to(self, cpus: Cpus | Unlimited) -> Cpus | Unlimited:
        """Of CPUs that may be the box's, those that a container in it can be kept to now.

        On v1 they must be among those that the box has; on v2 a container has of its own as many as the box has of them
        at any time. Source: cpuset(7), Restrictions; cgroup-v2.rst, cpuset.cpus.
        """
        held = self._limits.confined
        if self._driver.version != 1 or held is UNLIMITED:
            return cpus
        return held if cpus is UNLIMITED else (cpus & held or held)

    def may_have(self, cpus: Cpus) -> Cpus:
        """Those of these CPUs that pods may run on while the box has no limit. For the event loop: some small files."""
        return self._limits.may_have(cpus)

    # --- for those that look after pods ----------------------------------------------------------------------------

    async def carry(self, pods: Collection[PodParent]) -> tuple[str, ...]:
        """Give these pods of the box what kubelet has set on its own cgroups of them; returns the names of those that
        had something else.

        A memory limit that kubelet has not set stays. This follows a resize that the runtime does not hear of, and
        takes back one that was refused. What failed of one pod is raised after all were tried, as CgroupError.
        """
        return await self._at_box("carry limits of pods", lambda path: self._carry(path, pods))

    async def found(self) -> BoxPath | None:
        """A box, where kubelet's defaults would have it, that has pods from before a restart; None: there is none."""
        return await self._threads.reader.run("find the box", self._found)

    async def sweep(self, known: Collection[str], ended: Collection[str] = ()) -> tuple[str, ...]:
        """Remove empty pod cgroups that the runtime does not know (`known`: names, `pod<uid>`); returns their names.

        `ended`: the names of those that it knows and of which nothing runs any more. Raises CgroupError.
        """
        known, ended = frozenset(known), frozenset(ended)
        return await self._at_box("sweep", lambda path: self._sweep(parse_box(path), known, ended))

    async def reap(self, uids: Collection[str]) -> tuple[tuple[str, ...], CgroupError | None]:
        """Kill what runs in the cgroups of pods that have been gone for `ORPHAN_S`; returns the cgroups' names, and why
        one of the others could not be killed.

        A runtime that was killed may leave processes of a pod that it then removes. In its own cgroups, kubelet ends
        them. `uids`: of all pods that the runtime knows. `sweep` removes the cgroups. One that takes long, or can't be
        killed, keeps no other from being killed. Raises CgroupError, and StuckError while that still goes on.
        """
        known = frozenset(name for uid in uids for name in pod_names(uid))
        due = await self._at_box("find orphans", lambda path: self._due(parse_box(path), known))
        return await self._threads.apart("cgroup-reaper").run("kill orphans", partial(self._kill, due))

    async def _at_box(self, what: str, job: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
        """A job of the writer's that gets the box's path; without a box there is nothing to do."""
        return await self._threads.writer.run(what, partial(self._limits.at_box, job))

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _found(self) -> BoxPath | None:
        there = (box for box in DEFAULT_BOXES if self._driver.exists(box.path) and self._driver.pods(box.path))
        return next(there, None)

    def adopt(self, path: str) -> None:
        """On the writer's thread: what is in a box that was taken over."""
        self.names = frozenset(self._driver.pods(path))

    def _admit(self, place: PodParent, memory_bytes: int) -> None:
        path = place.box.path
        self._limits.settle_at(path)
        self._limits.bound_for_pod(path)
        self._set_limits(place, asked_bytes=memory_bytes)
        if is_slice(path):  # systemd takes an empty box out of v1's cpusets, and the pod brings it back
            self._limits.keep_to_cpus(path)
        self._admitted[place.name] = self._starting[place.name] = self._clock.monotonic_s()
        self._orphaned_s.pop(place.name, None)
        self._driver.keep_anchors(path)
        self.names |= {place.name}

    def _make_room(self, pod: str, size_bytes: int) -> None:
        """On the reclaimer's thread: so that the pod's own limit can be set without waiting."""
        for _ in range(files.RECLAIM_STEPS):
            if not self._driver.exists(pod) or not self._driver.memory.reclaim(pod, size_bytes):
                return

    def _set_limits(self, place: PodParent, *, asked_bytes: int = 0, resized: Resources | None = None) -> None:
        self.none_left = False
        limits = self._set_by_kubelet(place) or PodLimits()
        if resized is not None:
            limits = _resized(limits, resized, self._driver.version)
        if memory_bytes := limits.memory_bytes or asked_bytes:
            limits = replace(limits, memory_bytes=memory_bytes)
        self._driver.ensure_pod(place.in_box, self._weighed(place, limits))

    def _set_by_kubelet(self, place: PodParent) -> PodLimits | None:
        """What kubelet has set on its own cgroup of the pod; None: it has none (any more)."""
        return next((found for path in place.at_kubelet if (found := self._held_by(path)) is not None), None)

    def _weighed(self, place: PodParent, limits: PodLimits) -> PodLimits:
        """A pod to which kubelet gave the lowest weight gets that of the shares which the pod asks for."""
        asked, version = min(self._shares.get(place.name, 0), shares_of_node()), self._driver.version
        lowest = limits.cpu_weight is None or limits.cpu_weight <= weight_of(LOWEST_SHARES, version)
        if asked and lowest:
            limits = replace(limits, cpu_weight=weight_of(asked, version))
        limits = replace(limits, oom_group=True)  # kubelet has it on containers alone
        if not self._limits.settings.tiers:
            return replace(limits, protected=False)
        mid = place.name in self._mid
        return replace(limits, cpu_weight=tiered(limits.cpu_weight, mid, version), protected=mid and version == 2)

    def _held_by(self, path: str) -> PodLimits | None:
        """The limits of a pod's cgroup; None: it has gone."""
        with if_there():
            return self._driver.pod_limits(path) if self._driver.exists(path) else None
        return None

    def _is_squeezed(self, path: str) -> bool:
        """Whether a pod's memory.high, which v1 has not, is below its limit."""
        with if_there():
            return self._driver.version == 2 and MEMORY_HIGH in self._driver.read(path)
        return False

    def _carry(self, path: str, pods: Collection[PodParent]) -> tuple[str, ...]:
        changed, failures = [], []
        for place in pods:
            try:
                if place.box.path == path and self._carry_to(place):
                    changed.append(place.name)
            except CgroupError as error:  # the others' limits are carried all the same
                failures.append(error)
        if failures:
            raise failures[0]
        return tuple(changed)

    def _carry_to(self, place: PodParent) -> bool:
        """False: the pod has what kubelet has set, or kubelet's cgroup or ours is gone.

        A resize that was refused may have left a memory.high of its own, below the limit.
        """
        limits, held = self._set_by_kubelet(place), self._held_by(place.in_box)
        if limits is None or held is None:
            return False
        wanted = _with(self._weighed(place, limits), held)
        if limits.cpu_weight is None and place.name not in self._shares:
            wanted = replace(wanted, cpu_weight=held.cpu_weight)
        squeezed = self._is_squeezed(place.in_box)
        if wanted == held and not squeezed:
            return False
        same_memory = wanted.memory_bytes == held.memory_bytes and not squeezed
        self._driver.ensure_pod(place.in_box, replace(wanted, memory_bytes=None) if same_memory else wanted)
        return True

    def _sweep(self, box: BoxPath, known: frozenset[str], ended: frozenset[str]) -> tuple[str, ...]:
        now_s = self._clock.monotonic_s()
        for since, most_s in ((self._admitted, STARTING_S), (self._starting, STARTING_MOST_S)):
            for name, admitted_s in tuple(since.items()):
                if admitted_s < now_s - most_s:
                    since.pop(name, None)
        kept = known | self._admitted.keys()
        there = self._driver.pods(box.path)
        removed = tuple(name for name in there if name not in kept and self._driver.remove_pod(box.pod(name)))
        self.names = frozenset(there).difference(removed)
        self.none_left = self.names <= ended - self._admitted.keys()
        return removed

    def _due(self, box: BoxPath, known: frozenset[str]) -> tuple[str, ...]:
        """The cgroups of pods that have been gone for long enough."""
        now_s = self._clock.monotonic_s()
        kept = known | self._admitted.keys()
        orphans = [name for name in self._driver.pods(box.path) if name not in kept]
        self._orphaned_s = {name: self._orphaned_s.get(name, now_s) for name in orphans}
        due = (name for name, since_s in self._orphaned_s.items() if now_s - since_s >= ORPHAN_S)
        return tuple(box.pod(name) for name in due)

    def _kill(self, due: Sequence[str]) -> tuple[tuple[str, ...], CgroupError | None]:
        """On the reaper's thread; a pod that has come back meanwhile is left alone."""
        killed, failure = list[str](), None
        for pod in due:
            name = parse_placement(pod).name
            try:
                if name in self._orphaned_s:
                    self._driver.kill_pod(pod)
                    killed.append(name)
            except CgroupError as error:
                failure = failure or error
        return tuple(killed), failure


def shares_of_node() -> int:
    """The shares of all of the node's CPUs: no scheduler has placed a pod here that asks for more."""
    return SHARES_OF_CORE * (os.cpu_count() or 1)


def _with(wanted: PodLimits, held: PodLimits) -> PodLimits:
    """`wanted`, where it says something; what it leaves alone, but for the weight, is as `held` has it."""
    fields = ("memory_bytes", "cpu_cores", "pids")
    return replace(wanted, **{name: getattr(held, name) for name in fields if getattr(wanted, name) is None})


def _resized(limits: PodLimits, resized: Resources, version: int) -> PodLimits:
    """What kubelet's request says goes before what its own cgroup has held until now."""
    if shares := resized.cpu_shares:
        limits = replace(limits, cpu_weight=weight_of(min(HIGHEST_SHARES, max(LOWEST_SHARES, shares)), version))
    if resized.cpu_quota_us and version == 2:
        period_us = resized.cpu_period_us or files.CFS_PERIOD_US
        cores = UNLIMITED if resized.cpu_quota_us < 0 else resized.cpu_quota_us / period_us
        limits = replace(limits, cpu_cores=cores)
    return replace(limits, memory_bytes=resized.memory_limit_bytes or limits.memory_bytes)
