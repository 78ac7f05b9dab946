"""The box: the one bounded cgroup of all offline pods, where the request stream and the sample stream meet.

Its promise: a pod is let in only when the box's limits are in force. Everything that changes the box runs in one
thread, so that there is one order of events; what happened is kept there too, whether or not the caller still waits.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.counter import CpuTimes
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits
from criproxy.cgroup.naming import BoxPath, PodParent, parse_box, pod_names
from criproxy.cgroup.places import is_slice
from criproxy.cgroup.tree import GONE
from criproxy.cgroup.worker import Worker
from criproxy.model import UNLIMITED, AdmissionError, LimitChange, Limits, Pids, Usage

T = TypeVar("T")

STARTING_S: Final = 120.0
"""For so long an admitted pod may be unknown to the runtime and empty, and is not swept."""

ORPHAN_S: Final = 60.0
"""For so long a pod's cgroup may have processes and no pod, while the runtime cleans up."""

_LIFTED: Final = Limits(UNLIMITED, UNLIMITED)


class BoxState(Struct, frozen=True):
    """The box at one moment. `path`: None until kubelet or the inventory has told where it is.

    `limits` are what the kernel held after the last write, None when there was none. `welcome`: new offline pods are
    taken; otherwise `reason` says why not. `drift` counts files put back, `timeouts` calls that hung in the kernel.
    `pids` are as of the last write, too; None: there was none, or there is no pids controller.
    """

    path: str | None
    version: int
    limits: Limits | None
    welcome: bool
    reason: str
    drift: int
    timeouts: int
    pods: tuple[str, ...]
    pids: Pids | None = None


class Usages(Struct, frozen=True):
    """One reading of the node and of the box (None: there is no box)."""

    node: Usage
    box: Usage | None


class Box:
    """`floor` holds until the first decision and again after `release`. `clock`: monotonic, in s.

    `pids_ratio` is the box's share of the processes and threads that the node can have.
    `timeout_s` bounds each call; kubelet itself waits two minutes for a pod.
    """

    def __init__(
        self,
        driver: CgroupDriver,
        floor: Limits,
        clock: Callable[[], float],
        *,
        pids_ratio: float = 1.0,
        timeout_s: float = 10.0,
    ) -> None:
        self._driver = driver
        self._version = driver.capabilities.version
        self.floor = floor
        self.pids_ratio = pids_ratio
        self._clock = clock
        self._writer = Worker("cgroup-writer", timeout_s)
        # Readings have a thread of their own: a blocked write must not blind the loop.
        self._reader = Worker("cgroup-reader", timeout_s)
        self._path: str | None = None
        self._wanted: Limits | None = None
        self._limits: Limits | None = None
        self._pids: Pids | None = None
        self._pods: tuple[str, ...] = ()
        self._admitted: dict[str, float] = {}
        self._orphaned_s: dict[str, float] = {}
        self._drift = 0
        self._fault = ""
        self._counted = ""
        """The box's path that the counters are of."""
        self._counters = CpuTimes("")

    # --- for requests ----------------------------------------------------------------------------------------------

    async def admit(self, place: PodParent, memory_bytes: int) -> None:
        """Bound the box, then make the pod's cgroup in it, with what kubelet has set on its own one.

        `memory_bytes`: the pod's memory limit as the request says, 0: it does not. Raises AdmissionError.
        """
        await self._for_request(f"admit {place.in_box}", lambda: self._admit(place, memory_bytes))

    async def update_pod(self, place: PodParent, memory_bytes: int) -> None:
        """Give an admitted pod what kubelet has by now set on its own cgroup of it; `memory_bytes` as in `admit`.

        Raises AdmissionError.
        """
        job = lambda: self._driver.ensure_pod(place.in_box, self._pod_limits(place, memory_bytes))  # noqa: E731
        await self._for_request(f"resize {place.in_box}", job)

    def forget(self, name: str) -> None:
        """The pod's start is over: from now on `sweep` goes by what the runtime knows."""
        self._admitted.pop(name, None)

    @property
    def admitted(self) -> tuple[str, ...]:
        """The names of the pods that are starting."""
        return tuple(self._admitted)

    def expect(self, names: Iterable[str]) -> None:
        """These pods, which another process has admitted, are starting."""
        self._admitted.update(dict.fromkeys(names, self._clock()))

    async def settle(self) -> None:
        """Wait until what was asked for has been written. Raises CgroupError."""
        await self._writer.run("finish", lambda: None)

    # --- for the loop ----------------------------------------------------------------------------------------------

    async def adopt(self, box: BoxPath, *, lifted: bool = False) -> None:
        """The runtime already has pods in this box, from before a restart of ours.

        Limits that the kernel still holds stay in force until the first decision; with `lifted` there shall be none.
        Raises AdmissionError.
        """
        job = lambda: self._guarded(lambda: self._adopt(box.path, lifted))  # noqa: E731
        try:
            await self._writer.run(f"adopt {box.path}", job)
        except CgroupError as error:
            raise AdmissionError(str(error)) from error

    async def apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        """Put limits in force; without a box they are kept for its first pod. Raises CgroupError."""
        return await self._writer.run("apply limits", lambda: self._guarded(lambda: self._apply(limits)))

    async def squeeze(self, cores: float) -> tuple[LimitChange, ...]:
        """Lower the CPU limit in force to `cores`, alone and at once; never raise it. Raises CgroupError.

        The next `apply` supersedes it.
        """
        return await self._writer.run("squeeze the box", lambda: self._squeeze(cores))

    async def release(self) -> tuple[LimitChange, ...]:
        """Lift the limits; the priority stays lowest. A later `admit` starts from the floor. Raises CgroupError."""
        return await self._writer.run("lift limits", lambda: self._guarded(self._release))

    async def tend(self) -> tuple[str, ...]:
        """Keep what kubelet's own cgroups of the pods in the box need (`CgroupDriver.keep_anchors`), limits or not.

        Returns what was started or stopped. Raises CgroupError.
        """
        path = self._path
        if path is None or self._version == 1 or not is_slice(path):  # only systemd on v2 needs any
            return ()
        return await self._writer.run("tend", lambda: self._driver.keep_anchors(path))

    async def carry(self) -> tuple[str, ...]:
        """Give each pod in the box what kubelet has set on its own cgroup of it, but for memory; returns whose changed.

        This follows a resize of which the runtime is not told. Raises CgroupError.
        """
        return await self._writer.run("carry limits of pods", self._carry)

    async def usage(self) -> Usages:
        """Raises CgroupError."""
        return await self._reader.run("read usage", self._usage)

    async def sweep(self, known: Collection[str]) -> tuple[str, ...]:
        """Remove empty pod cgroups that the runtime does not know (`known`: names, `pod<uid>`); returns their names.

        Raises CgroupError.
        """
        known = frozenset(known)
        return await self._writer.run("sweep", lambda: self._sweep(known))

    async def reap(self, uids: Collection[str]) -> tuple[str, ...]:
        """Kill what runs in the cgroups of pods that have been gone for `ORPHAN_S`; returns the cgroups' names.

        A runtime that was killed may leave processes of a pod that it then removes. In its own cgroups, kubelet ends
        them. `uids`: of all pods that the runtime knows. `sweep` removes the cgroups. Raises CgroupError.
        """
        known = frozenset(name for uid in uids for name in pod_names(uid))
        return await self._writer.run("reap", lambda: self._reap(known))

    def cpu_times(self) -> tuple[float, float] | None:
        """CPU seconds of the node and of the box; None: there is no box. Raises OSError.

        For the event loop: two small files that the kernel answers at once. On v2 the node is kubepods and the box.
        """
        path = self._path
        if path is None:
            return None
        if self._counted != path:
            self._count_at(path)
        try:
            return self._counters.read()
        except OSError as error:
            if error.errno in GONE:
                return None
            raise

    def _count_at(self, path: str) -> None:
        self._counters.close()
        driver = self._driver
        box, node = driver.cpu_counter(path), driver.node_cpu_counter
        beside = driver.cpu_counter(parse_box(path).online)
        self._counters = CpuTimes(box, node=node) if node is not None else CpuTimes(box, beside=beside)
        self._counted = path

    def pressure_file(self) -> str | None:
        """Where the kernel tells how long online waits for CPU; None: nowhere, or there is no box."""
        path = self._path
        return None if path is None else self._driver.pressure_file(parse_box(path).online)

    @property
    def path(self) -> str | None:
        """Where the box is; None until kubelet or the inventory has told."""
        return self._path

    def state(self) -> BoxState:
        stuck = self._writer.stuck
        return BoxState(
            path=self._path,
            version=self._version,
            limits=self._limits,
            welcome=not stuck and not self._fault,
            reason="a cgroup write is blocked in the kernel" if stuck else self._fault,
            drift=self._drift,
            timeouts=self._writer.timeouts + self._reader.timeouts,
            pods=self._pods,
            pids=self._pids,
        )

    def close(self) -> None:
        """End the threads. The box stays as it is, with its limits: pods are in it."""
        self._counters.close()
        self._writer.close()
        self._reader.close()

    # --- jobs, on the threads --------------------------------------------------------------------------------------

    async def _for_request(self, what: str, job: Callable[[], None]) -> None:
        try:
            await self._writer.run(what, job)
        except CgroupError as error:
            raise AdmissionError(str(error)) from error

    def _guarded(self, job: Callable[[], T]) -> T:
        """A failure to bound the box keeps new pods out until it has succeeded again."""
        try:
            result = job()
        except CgroupError as error:
            self._fault = str(error)
            raise
        self._fault = ""
        return result

    def _admit(self, place: PodParent, memory_bytes: int) -> None:
        self._settle_at(place.box.path)
        self._guarded(lambda: self._bound(place.box.path, self._wanted or self.floor))
        self._driver.ensure_pod(place.in_box, self._pod_limits(place, memory_bytes))
        self._admitted[place.name] = self._clock()
        self._driver.keep_anchors(place.box.path)
        self._pods = tuple(sorted({*self._pods, place.name}))

    def _pod_limits(self, place: PodParent, memory_bytes: int) -> PodLimits:
        found = self._set_by_kubelet(place) or PodLimits()
        return replace(found, memory_bytes=memory_bytes) if memory_bytes else found

    def _set_by_kubelet(self, place: PodParent) -> PodLimits | None:
        """What kubelet has set on its own cgroup of the pod; None: it has none (any more)."""
        return next((found for path in place.at_kubelet if (found := self._held_by(path)) is not None), None)

    def _held_by(self, path: str) -> PodLimits | None:
        """The limits of a pod's cgroup; None: it has gone."""
        try:
            return self._driver.pod_limits(path) if self._driver.exists(path) else None
        except CgroupError as error:
            if error.errno in GONE:
                return None
            raise

    def _carry(self) -> tuple[str, ...]:
        if self._path is None:
            return ()
        changed, failures = [], []
        for name in self._driver.pods(self._path):
            try:
                if self._carry_to(PodParent(parse_box(self._path), name)):
                    changed.append(name)
            except CgroupError as error:  # the others' limits are carried all the same
                failures.append(error)
        if failures:
            raise failures[0]
        return tuple(changed)

    def _carry_to(self, place: PodParent) -> bool:
        """False: the pod has what kubelet has set, or kubelet's cgroup or ours is gone."""
        wanted, held = self._set_by_kubelet(place), self._held_by(place.in_box)
        if wanted is None or held is None or replace(wanted, memory_bytes=held.memory_bytes) == held:
            return False
        self._driver.ensure_pod(place.in_box, replace(wanted, memory_bytes=None))
        return True

    def _adopt(self, path: str, lifted: bool) -> None:
        self._settle_at(path)
        if lifted:
            self._release()
        else:
            self._take_over(path)
        self._pods = self._driver.pods(path)

    def _take_over(self, path: str) -> None:
        if self._wanted is None and self._driver.exists(path):
            held = self._driver.read(path)
            self._wanted = Limits(
                cpu_cores=self.floor.cpu_cores if held.cpu_cores is UNLIMITED else held.cpu_cores,
                memory_bytes=self.floor.memory_bytes if held.memory_bytes is UNLIMITED else held.memory_bytes,
            )
        self._bound(path, self._wanted or self.floor)

    def _apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        self._wanted = limits
        return () if self._path is None else self._bound(self._path, limits)

    def _squeeze(self, cores: float) -> tuple[LimitChange, ...]:
        wanted = self._wanted
        if self._path is None or wanted is None or (wanted.cpu_cores is not UNLIMITED and wanted.cpu_cores <= cores):
            return ()
        self._wanted = replace(wanted, cpu_cores=cores)
        changes = self._driver.squeeze(self._path, cores)
        self._drift += sum(change.drift for change in changes)
        self._limits = self._driver.read(self._path)
        return changes

    def _release(self) -> tuple[LimitChange, ...]:
        self._wanted = None
        return () if self._path is None else self._bound(self._path, _LIFTED)

    def _settle_at(self, path: str) -> None:
        if self._path is not None and self._path != path:
            pods = self._driver.pods(self._path)
            if pods:
                raise CgroupError(
                    f"kubelet asks for a box at {path}, and the one at {self._path} still has {len(pods)} pods: delete "
                    "the offline pods, then restart kubelet with its new cgroup root"
                )
        self._path = path

    def _bound(self, path: str, limits: Limits) -> tuple[LimitChange, ...]:
        self._driver.ensure(path)
        changes = (*self._driver.write(path, limits), *self._driver.write_pids(path, self.pids_ratio))
        self._drift += sum(change.drift for change in changes)
        self._limits, self._pids = self._driver.read(path), self._driver.read_pids(path)
        return changes

    def _usage(self) -> Usages:
        path = self._path
        return Usages(self._driver.node_usage(), None if path is None else self._driver.usage(path))

    def _sweep(self, known: frozenset[str]) -> tuple[str, ...]:
        if self._path is None:
            return ()
        oldest = self._clock() - STARTING_S
        for name, admitted_s in tuple(self._admitted.items()):
            if admitted_s < oldest:
                self._admitted.pop(name, None)
        kept = known | self._admitted.keys()
        there = self._driver.pods(self._path)
        box = parse_box(self._path)
        removed = tuple(name for name in there if name not in kept and self._driver.remove_pod(box.pod(name)))
        self._pods = tuple(name for name in there if name not in removed)
        return removed

    def _reap(self, known: frozenset[str]) -> tuple[str, ...]:
        if self._path is None:
            return ()
        now_s, box = self._clock(), parse_box(self._path)
        kept = known | self._admitted.keys()
        orphans = [name for name in self._driver.pods(box.path) if name not in kept]
        self._orphaned_s = {name: self._orphaned_s.get(name, now_s) for name in orphans}
        due = tuple(name for name, since_s in self._orphaned_s.items() if now_s - since_s >= ORPHAN_S)
        for name in due:
            self._driver.kill_pod(box.pod(name))
        return due
