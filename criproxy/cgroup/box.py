"""The box: the one bounded cgroup of all offline pods, where the request stream and the sample stream meet.

**Threads.** The event loop only asks and waits, never longer than a time-out; the work is done by `Worker`s:

| thread | does | may wait for |
|---|---|---|
| cgroup-writer | all that changes the box, one job after another, so in one order | systemd, a cgroup lock |
| cgroup-reader | readings of usage (`_AT_ONCE_S`), signals, kills: no blocked write blinds the loop | a cgroup lock |
| cgroup-reclaimer | lowers memory limits, drops ended pods' page cache, in steps | the kernel's reclaim: seconds |
| cgroup-disks | bounds the box on disks; there is none until that is asked for first | a disk's queue |

What happened is kept by the job, on its thread, whether or not the caller still waits. Other threads and the event loop
read those attributes; each is replaced, or copied, as a whole.

**States**, by `_path` (where the box is) and `_wanted` (the limits that it shall have):

| state | path | wanted | what the kernel holds |
|---|---|---|---|
| no box yet | None | None, or what was decided already | nothing |
| bounded | set | the last decision; None: the floor | `_limits`, which are at most what is wanted, but for memory |
| lifted, by `release` | set | None | no limit on what is decided about (`BoxSettings.lifted`); the rest stays |
| config not known (`only_lower`) | set | never above what was found first | as bounded |

The rest is always in force: the lowest priority, the CPUs (`cpus`) and what else bounds the box by one file each
(`kernel_files.LIMITS`: what was decided, or else a share of what the node can have).

**Memory.** A limit below the usage is brought to just above the usage by the writer. What is left takes reclaim and
sinks on the reclaimer's thread (`_sink`), towards `_sink_to`; each step looks at that anew, so that the steps stop as
soon as the wanted limit has risen. What a last step undid, the next `apply` mends. What memory is to be brought down to
below its limit (MEMORY_HIGH), on v2, sinks the same way, and leaves memory.max alone.

**Invariants.** A pod's cgroup is made in the job that has bounded the box, after that (`_admit`), or that has found the
limits in the kernel which another job left there a moment ago (`_is_bounded`). Neither CPU nor the start of a pod waits
for memory. Something that can't be bounded keeps nothing else from being bounded (`_bound`).

**Errors.** One that kept the box from being bounded is its `_fault`: no pod is admitted until it was bounded again.
A call without an answer in time fails (`StuckError`); while its job is blocked, all others of that thread fail at once,
and with the writer blocked no pod is admitted. What failed of a reclaim is raised by the next `apply`. Requests get an
`AdmissionError`.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup import files
from criproxy.cgroup.counter import CpuTimes
from criproxy.cgroup.driver import (
    CgroupDriver,
    CgroupError,
    ContainerLimits,
    CpuUse,
    HeldLimit,
    PodLimits,
    Reclaimable,
)
from criproxy.cgroup.kernel_files import LIMITS, weight_of
from criproxy.cgroup.naming import BoxPath, PodParent, is_slice, parse_box, pod_names
from criproxy.cgroup.signals import SignalReader
from criproxy.cgroup.tiers import tiered
from criproxy.cgroup.topology import WholeCores
from criproxy.cgroup.tree import GONE, if_there
from criproxy.cgroup.worker import StuckError, Worker
from criproxy.model import (
    CPU,
    HIGHEST_SHARES,
    LOWEST_SHARES,
    MEMORY,
    MEMORY_HIGH,
    UNLIMITED,
    AdmissionError,
    Asked,
    LimitChange,
    Limits,
    Resources,
    Unlimited,
    Usage,
    UsageReading,
)
from criproxy.model.clock import MonotonicClock
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.model.signals import DiskRate, Missing, SignalReading

T = TypeVar("T")

STARTING_S: Final = 120.0
"""For so long an admitted pod may be unknown to the runtime and empty, and is not swept."""

STARTING_MOST_S: Final = 30.0
"""For so long an admitted pod counts as starting, when no container of it runs: it may be waiting for an image."""

ORPHAN_S: Final = 60.0
"""For so long a pod's cgroup may have processes and no pod, while the runtime cleans up."""

_AT_ONCE_S: Final = 0.001
"""Without a box, the event loop itself reads usage, as it is /proc/meminfo and, on v2, /proc/stat alone: 30 us on two
CPUs. Where that takes longer, as with hundreds of CPUs, kubelet's calls would wait for it: then a thread reads.
"""

_STEP_S: Final = 1.0
"""For so long what follows a step of reclaim waits for its end: one takes that long on a slow disk only."""

_BOUNDED_S: Final = 1.0
"""For so long after all files of the box were settled, a pod's start looks at the box's limits alone. The loop's tick
settles them each second; a start would do all of that over again, in a third of its CPU time.
"""

_CACHE_S: Final = 3.0
"""For so long page cache is dropped at a time, and not begun again while a limit is to sink."""


class Held(Struct, frozen=True):
    """One reading of the memory that counts towards the box's limit, and the limit that was wanted at that moment."""

    used_bytes: int
    wanted_bytes: float | Unlimited


class AskedOfContainer(Struct, frozen=True):
    """What a container of a pod in the box (`pod`: its path) asks for; `id` is the runtime's."""

    pod: str
    id: str
    asked: Asked


class BoxState(Struct, frozen=True):
    """The box at one moment. `path`: None until kubelet or the inventory has named it.

    `limits` are what the kernel held after the last write, None when there was none. `welcome`: new offline pods are
    taken; otherwise `reason` says why not. `drift` counts files put back, `timeouts` calls that hung in the kernel.
    `wanted` is what the limits shall be, None: nothing was asked for. `memory` None: not read yet.
    `cpus` are those that the box is kept to ("0-3,8"), "": it has all that the node has.
    `in_use` is of the resources of `kernel_files.LIMITS` that the kernel can bound, as of the last write. `cores` says
    how many whole cores these CPUs are, or why they are not, or that siblings are left out, "": neither. `tiers`: its
    pods are in two.
    """

    path: str | None
    version: int
    limits: Limits | None
    welcome: bool
    reason: str
    drift: int
    timeouts: int
    pods: tuple[str, ...]
    wanted: Limits | None = None
    memory: Held | None = None
    cpus: str = ""
    in_use: Mapping[str, HeldLimit] = field(default_factory=dict)
    cores: str = ""
    tiers: bool = False


class _Bounded(Struct, frozen=True):
    """At `at_s` (monotonic) the box at `path` was bounded to `wanted`, and the kernel held `held` of CPU and memory.

    `cpus`: those that could be the box's.
    """

    path: str
    wanted: Limits
    held: Limits
    cpus: Cpus | Unlimited
    at_s: float


class BoxSettings(Struct, frozen=True):
    """`floor` holds until the first decision and again after `release`.

    `share_ratios` is the box's share of what the node can have, by resource of `kernel_files.LIMITS` (1.0 where it is
    not named). `only_lower`: the config is not known; a box that is taken over never gets more than the kernel gave it
    then, and its shares stay as they are. `hands_off`: a box that is taken over keeps all that the kernel holds.
    `whole_cores`: the box runs on whole physical cores. `tiers`: its pods are in two, see `cgroup.tiers`.
    """

    floor: Limits
    share_ratios: Mapping[str, float] = field(default_factory=dict)
    only_lower: bool = False
    hands_off: bool = False
    whole_cores: bool = False
    tiers: bool = False

    @property
    def lifted(self) -> Limits:
        """No limit on any resource that is decided about, which are those of the floor; shares stay."""
        return dict.fromkeys(self.floor, UNLIMITED)


class Box:
    """`cpus` returns, on the writer's thread, the CPUs that the box may run on; of these, `cores` leaves out siblings,
    or chooses whole cores.

    `timeout_s` bounds each call; kubelet itself waits two minutes for a pod.
    """

    def __init__(
        self,
        driver: CgroupDriver,
        settings: BoxSettings,
        cpus: Callable[[], Cpus | Unlimited],
        clock: MonotonicClock,
        *,
        cores: WholeCores | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._driver = driver
        self._version = driver.version
        self._settings = settings
        self._cpus = cpus
        self._cores = cores
        self._cores_words = ""
        self._found: Limits | None = None
        """What the kernel gave the box when it was found first, while only lower limits are allowed."""
        self._clock = clock
        self._writer = Worker("cgroup-writer", timeout_s)
        # Readings have a thread of their own: a blocked write must not blind the loop.
        self._reader = Worker("cgroup-reader", timeout_s)
        self._reclaimer = Worker("cgroup-reclaimer", timeout_s)
        self._disk_writer: Worker | None = None
        self._timeout_s = timeout_s
        self._sinking: asyncio.Task[None] | None = None
        self._lifting = False
        self._failure: CgroupError | None = None
        """Of the last reclaim."""
        self._sink_to: int | None = None
        """The memory limit that is sought by reclaim; None: none, so that it stops."""
        self._path: str | None = None
        self._wanted: Limits | None = None
        self._limits: Limits | None = None
        self._held_by_kernel: Limits = {}
        """Of CPU and memory, after the last write of both."""
        self._bounded: _Bounded | None = None
        """What all files of the box were brought to last, without an error."""
        self._memory: Held | None = None
        self._reading_s = 0.0
        """How long the node's usage took to be read, the last time."""
        self._held: dict[str, HeldLimit] = {}
        """By resource of `kernel_files.LIMITS`."""
        self._pods: frozenset[str] = frozenset()
        self._empty = False
        """The last sweep has left no pod, and none has been let in since."""
        self._dropped: frozenset[str] = frozenset()
        """The ended pods that have no page cache left to take."""
        self._shares: Mapping[str, int] = {}
        """Replaced as a whole, as is `_mid`: the writer reads them."""
        self._mid: frozenset[str] = frozenset()
        """The names of the pods of the higher tier."""
        self._admitted: dict[str, float] = {}
        self._starting: dict[str, float] = {}
        self._orphaned_s: dict[str, float] = {}
        self._drift = 0
        self._fault = ""
        self._counted = ""
        """The box's path that the counters are of."""
        self._counters = CpuTimes("", "", whole=True)
        self._confined: Cpus | Unlimited = UNLIMITED

    def configure(self, settings: BoxSettings) -> None:
        """From the next call on."""
        self._settings, self._bounded = settings, None

    # --- for requests ----------------------------------------------------------------------------------------------

    async def admit(self, place: PodParent, memory_bytes: int, cpu_shares: int = 0, *, mid: bool = False) -> None:
        """Bound the box, then make the pod's cgroup in it, with what kubelet has set on its own one.

        `memory_bytes`: the memory limit that the pod asks for in an annotation, 0: none; it holds where kubelet has set
        none. `cpu_shares` are given to a pod that kubelet has given the lowest weight. `mid`: it is of the higher tier.
        Raises AdmissionError.
        """
        self.know_asked({**self._shares, place.name: cpu_shares}, {*self._mid, *([place.name] if mid else [])})
        await self._for_request(f"admit {place.in_box}", lambda: self._admit(place, memory_bytes))

    def know_asked(self, shares: Mapping[str, int], mid: Collection[str] = ()) -> None:
        """What pods of the box, by name, ask for beyond kubelet's knowledge, in CPU shares (0: nothing); and which of
        them are of the higher tier.

        Of pods that are starting, what is known already stays.
        """
        starting = {name: asked for name, asked in self._shares.items() if name in self._admitted}
        self._shares = {name: asked for name, asked in {**starting, **shares}.items() if asked}
        self._mid = frozenset(mid) | (self._mid & self._admitted.keys())

    async def update_pod(self, place: PodParent, resized: Resources) -> None:
        """Give an admitted pod what kubelet's request says, and else what kubelet has set on its own cgroup of it.

        The request wins, as kubelet of 1.36 and later asks first and writes its own cgroup afterwards. Raises
        AdmissionError.
        """
        path, memory_bytes = place.in_box, resized.memory_limit_bytes
        if memory_bytes:
            job = partial(self._make_room, path, memory_bytes)
            await self._for_request(f"make room in {path}", job, self._reclaimer)
        await self._for_request(f"resize {path}", lambda: self._set_pod_limits(place, resized=resized))

    def forget(self, name: str) -> None:
        """The pod's start is over: from now on `sweep` goes by what the runtime knows."""
        self._admitted.pop(name, None)

    @property
    def admitted(self) -> tuple[str, ...]:
        """The names of the pods that are starting."""
        return tuple(self._admitted)

    def started(self, name: str) -> None:
        """A container of the pod runs."""
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
        held = self._confined
        if self._version != 1 or held is UNLIMITED:
            return cpus
        return held if cpus is UNLIMITED else (cpus & held or held)

    @property
    def version(self) -> int:
        """Of cgroups: 1 or 2."""
        return self._version

    @property
    def tiers(self) -> bool:
        """Whether the box's pods are in two tiers."""
        return self._settings.tiers

    @property
    def spares_memory(self) -> bool:
        """Memory can be taken back without a limit that kills: there is memory.high, which v1 has not."""
        return self._version == 2

    async def settle(self) -> None:
        """Wait until what was asked for has been written, as far as no memory must be reclaimed. Raises CgroupError."""
        await self._stop_sinking()
        await self._writer.run("finish", lambda: None)

    # --- for the loop ----------------------------------------------------------------------------------------------

    async def adopt(self, box: BoxPath, *, lifted: bool = False) -> None:
        """The runtime already has pods in this box, from before a restart of ours.

        Limits that the kernel still holds stay in force until the first decision; with `lifted` there shall be none.
        Raises AdmissionError.
        """
        await self._for_request(f"adopt {box.path}", lambda: self._guarded(partial(self._adopt, box.path, lifted)))
        self._failure = self._sink()  # systemd has put its own memory.high there, which is the limit

    async def apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        """Put limits in force; without a box they are kept for its first pod. Raises CgroupError.

        Memory that must be reclaimed for that goes on sinking afterwards; what failed of it is raised by the next call.
        """
        if self._path is None:  # no thread has to wake up for that, each second
            self._wanted = limits
            return ()
        try:
            changes = await self._writer.run("apply limits", lambda: self._guarded(partial(self._apply, limits)))
        finally:  # memory sinks also when something beside the limits could not be written
            failure = self._sink()
        if failure is not None:
            raise failure
        return changes

    async def confine(self) -> tuple[LimitChange, ...]:
        """Let the box run on `cpus` alone, whether or not its limits are ours to set. Raises CgroupError."""
        return await self._at_box("confine the box", self._confine)

    async def pin(self, pods: Mapping[str, Cpus | None]) -> tuple[LimitChange, ...]:
        """Let each of these pods of the box (paths) run on these of its CPUs alone; None: on all of them.

        A pod that has gone is no error. What failed keeps none of the others from it, and is raised then, as
        CgroupError.
        """
        return await self._at_box("pin pods", lambda _: self._pin(pods))

    async def cpu_use(self, pods: Collection[str]) -> CpuUse | None:
        """What the box's CPUs and these pods of it (paths) do; None: there is no box. Raises CgroupError."""
        path, paths = self._path, tuple(pods)
        if path is None:
            return None
        return await self._reader.run("read pods' CPU", lambda: self._driver.cpu_use(path, paths))

    async def cpu_limits_of(self, places: Collection[PodParent]) -> dict[str, float]:
        """The CPU limits that kubelet has set on its own cgroups of these pods, in cores, of those that have one.

        By their paths in the box. Raises CgroupError.
        """
        asked = tuple(places)
        held = await self._reader.run("read pods' CPU limits", lambda: [self._cpu_limit(place) for place in asked])
        return {place.in_box: limit for place, limit in zip(asked, held, strict=True) if limit is not None}

    async def squeeze(self, cores: float) -> tuple[LimitChange, ...]:
        """Lower the CPU limit in force to `cores`, alone and at once; never raise it. Raises CgroupError.

        The next `apply` supersedes it.
        """
        return await self._at_box("squeeze the box", lambda path: self._squeeze(path, cores))

    async def release(self) -> tuple[LimitChange, ...]:
        """Lift the limits; the priority stays lowest. A later `admit` starts from the floor. Raises CgroupError."""
        self._lifting = True
        try:
            await self._stop_sinking()
            return await self._writer.run("lift limits", lambda: self._guarded(self._release))
        finally:
            self._lifting = False

    async def tend(self) -> tuple[str, ...]:
        """Keep what kubelet's own cgroups of the pods in the box need (`CgroupDriver.keep_anchors`), limits or not.

        Returns what was started or stopped. Raises CgroupError.
        """
        path = self._path
        if path is None or self._version == 1 or not is_slice(path):  # only systemd on v2 needs any
            return ()
        return await self._writer.run("tend", lambda: self._driver.keep_anchors(path))

    async def carry(self, pods: Collection[PodParent]) -> tuple[str, ...]:
        """Give these pods of the box what kubelet has set on its own cgroups of them; returns the names of those that
        had something else.

        A memory limit that kubelet has not set stays. This follows a resize that the runtime does not hear of, and
        takes back one that was refused. What failed of one pod is raised after all were tried, as CgroupError.
        """
        return await self._at_box("carry limits of pods", lambda path: self._carry(path, pods))

    async def settle_containers(self, asked: Collection[AskedOfContainer]) -> tuple[LimitChange, ...]:
        """Give these containers what they ask for, where kubelet has given them nothing; one that has gone is no error.

        What failed of one is raised after all were tried, as CgroupError.
        """
        return await self._at_box("settle containers", lambda _: self._settle_containers(asked))

    async def usage(self) -> UsageReading:
        """Raises CgroupError."""
        path = self._path
        if path is None and self._reading_s < _AT_ONCE_S:  # then no thread has to wake up for it, each second
            return self._usage(None)
        return await self._reader.run("read usage", lambda: self._usage(path))

    async def usage_of(self, pods: Collection[str]) -> dict[str, Usage]:
        """What these pods of the box (paths) use, of those that are there. Raises CgroupError."""
        paths = tuple(pods)
        usages = await self._reader.run("read pods' usage", lambda: [self._driver.usage(path) for path in paths])
        return {path: usage for path, usage in zip(paths, usages, strict=True) if usage is not None}

    async def memory_limits_of(self, pods: Collection[str]) -> dict[str, float]:
        """The memory limits of these pods of the box (paths), in bytes, of those that have one. Raises CgroupError."""
        held = await self._reader.run("read pods' limits", lambda: {path: self._memory_limit(path) for path in pods})
        return {path: limit for path, limit in held.items() if limit is not UNLIMITED}

    def _memory_limit(self, path: str) -> float | Unlimited:
        with if_there():
            return self._driver.read(path)[MEMORY]
        return UNLIMITED

    async def signals(
        self, reader: SignalReader, *, own_limits: bool, counted: Collection[str] | None = None
    ) -> SignalReading | None:
        """What the kernel says about harm to online; None: there is no box, so kubelet's cgroup is not known yet.

        `own_limits`: see `SignalReader.read`; `counted`: the uids of the online pods that the processor is to count,
        None: none. Raises CgroupError when the kernel does not answer.
        """
        path = self._path
        if path is None:
            return None
        box = parse_box(path)
        pods = None if counted is None else {uid: _at_kubelet(box, uid) for uid in counted}
        return await self._reader.run("read signals", lambda: reader.read(path, own_limits=own_limits, pods=pods))

    async def disk_use_of(self, pods: Collection[str]) -> dict[str, int]:
        """How many bytes these pods of the box (paths) have read from disks and written, of those that are counted.

        Raises CgroupError.
        """
        paths = tuple(pods)
        uses = await self._reader.run("read pods' IO", lambda: [self._driver.disk_use(path) for path in paths])
        return {path: use for path, use in zip(paths, uses, strict=True) if use is not None}

    async def hold_disks(self, wanted: Mapping[str, DiskRate]) -> tuple[LimitChange, ...]:
        """Bound the box on these disks and on no others (`CgroupDriver.hold_disks`). Raises CgroupError."""
        path = self._path
        if path is None:
            return ()
        if self._disk_writer is None:
            self._disk_writer = Worker("cgroup-disks", self._timeout_s)
        return await self._disk_writer.run("bound disks", lambda: self._driver.hold_disks(path, wanted))

    async def kill(self, pod: str) -> None:
        """Kill what runs in a pod's cgroup (its path), with no runtime in between. Raises CgroupError."""
        await self._reader.run("kill a pod", lambda: self._driver.kill_pod(pod))

    async def sweep(self, known: Collection[str]) -> tuple[str, ...]:
        """Remove empty pod cgroups that the runtime does not know (`known`: names, `pod<uid>`); returns their names.

        Raises CgroupError.
        """
        known = frozenset(known)
        return await self._at_box("sweep", lambda path: self._sweep(parse_box(path), known))

    async def drop_caches(self, running: Collection[str]) -> int:
        """Take back the page cache of ended pods, each once: of all but `running` (names); returns how many bytes.

        Without that it counts towards the box's limit, also when the pods' cgroups are gone, until the kernel needs the
        memory. What takes long is left for the next call. Raises CgroupError.
        """
        kept = frozenset(running)
        path = self._path
        return 0 if path is None else await self._reclaimer.run("drop caches", lambda: self._drop_caches(path, kept))

    async def reclaimable(self) -> Reclaimable | Missing | None:
        """What of the box's memory could be taken back; None: there is no box. Raises CgroupError."""
        path = self._path
        return None if path is None else await self._reader.run("read pressure", lambda: self._reclaimable(path))

    async def take_back(self, size_bytes: int) -> int:
        """Take back so much of the box's memory, beside its limits; returns by how many bytes it fell.

        A limit that is to sink goes first, and what takes long is left. Raises CgroupError.
        """
        path = self._path
        return 0 if path is None else await self._reclaimer.run("take back", lambda: self._take_back(path, size_bytes))

    async def reap(self, uids: Collection[str]) -> tuple[str, ...]:
        """Kill what runs in the cgroups of pods that have been gone for `ORPHAN_S`; returns the cgroups' names.

        A runtime that was killed may leave processes of a pod that it then removes. In its own cgroups, kubelet ends
        them. `uids`: of all pods that the runtime knows. `sweep` removes the cgroups. Raises CgroupError.
        """
        known = frozenset(name for uid in uids for name in pod_names(uid))
        return await self._at_box("reap", lambda path: self._reap(parse_box(path), known))

    def cpu_times(self) -> tuple[float, float] | None:
        """CPU seconds of the node and of the box; None: there is no box, or no pod in it. Raises OSError.

        For the event loop: two small files that the kernel answers at once. On v2 the node is kubepods and the box.
        """
        path = self._path
        if path is None or self._empty:
            return None
        if self._counted != path:
            self._counters.close()
            self._counters, self._counted = self._driver.cpu_times(path), path
        try:
            return self._counters.read()
        except OSError as error:
            if error.errno in GONE:
                return None
            raise

    def pressure_file(self) -> str | None:
        """Where the kernel says how long online waits for CPU; None: nowhere, or there is no box."""
        path = self._path
        return None if path is None else self._driver.pressure_file(parse_box(path).online)

    @property
    def path(self) -> str | None:
        """Where the box is; None until kubelet or the inventory has named it."""
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
            timeouts=sum(one.timeouts for one in self._workers),
            pods=tuple(sorted(self._pods)),
            wanted=self._wanted,
            memory=self._memory,
            cpus="" if self._confined is UNLIMITED else format_cpus(self._confined),
            in_use=dict(self._held),
            cores=self._cores_words,
            tiers=self._settings.tiers,
        )

    def close(self) -> None:
        """End the threads. The box stays as it is, with its limits: pods are in it."""
        self._counters.close()
        self._sink_to = None
        for worker in self._workers:
            worker.close()

    @property
    def limits(self) -> Limits | None:
        """What the kernel held after the last write; None: there was none."""
        return self._limits

    @property
    def _workers(self) -> tuple[Worker, ...]:
        workers = (self._writer, self._reader, self._reclaimer, self._disk_writer)
        return tuple(one for one in workers if one is not None)

    # --- memory that must be reclaimed -----------------------------------------------------------------------------

    def _sink(self) -> CgroupError | None:
        """Begin, or go on, with what stands above the wanted limit. Returns what failed of it before."""
        held, wanted = self._limits, None if self._lifting else self._wanted
        self._sink_to = None if held is None or wanted is None else self._sought(held, wanted)
        failure, self._failure = self._failure, None
        if self._sink_to is not None and (self._sinking is None or self._sinking.done()):
            self._sinking = asyncio.create_task(self._reclaimed())
        return failure

    def _sought(self, held: Limits, wanted: Limits) -> int | None:
        high, memory = wanted.get(MEMORY_HIGH, UNLIMITED), self._memory
        if high is UNLIMITED or not self.spares_memory:
            return _below(held[MEMORY], wanted[MEMORY])
        return int(high) if memory is None or memory.used_bytes > high else _below(held[MEMORY], wanted[MEMORY])

    async def _reclaimed(self) -> None:
        try:
            await self._reclaimer.run("reclaim memory", self._reclaim)
        except StuckError:
            pass  # it takes long, which `BoxState.memory` says
        except CgroupError as error:
            self._failure = error

    async def _stop_sinking(self) -> None:
        self._sink_to = None
        if self._sinking is not None and not self._sinking.done():
            await asyncio.wait([self._sinking], timeout=_STEP_S)

    # --- jobs, on the threads --------------------------------------------------------------------------------------

    async def _for_request(self, what: str, job: Callable[[], None], worker: Worker | None = None) -> None:
        try:
            await (worker or self._writer).run(what, job)
        except CgroupError as error:
            raise AdmissionError(str(error)) from error

    async def _at_box(self, what: str, job: Callable[[str], tuple[T, ...]]) -> tuple[T, ...]:
        """A job of the writer's that gets the box's path; without a box there is nothing to do."""
        return await self._writer.run(what, lambda: () if self._path is None else job(self._path))

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
        wanted = self._wanted or self._settings.floor
        if not self._is_bounded(place.box.path, wanted):
            self._guarded(partial(self._bound, place.box.path, wanted))
        self._set_pod_limits(place, asked_bytes=memory_bytes)
        if is_slice(place.box.path):  # systemd takes an empty box out of v1's cpusets, and the pod brings it back
            self._keep_to_cpus(place.box.path, self._wanted_cores)
        self._admitted[place.name] = self._starting[place.name] = self._clock.monotonic_s()
        self._driver.keep_anchors(place.box.path)
        self._pods |= {place.name}

    def _set_pod_limits(self, place: PodParent, *, asked_bytes: int = 0, resized: Resources | None = None) -> None:
        self._empty = False
        limits = self._set_by_kubelet(place) or PodLimits()
        if resized is not None:
            limits = _resized(limits, resized, self._version)
        if memory_bytes := limits.memory_bytes or asked_bytes:
            limits = replace(limits, memory_bytes=memory_bytes)
        self._driver.ensure_pod(place.in_box, self._weighed(place, limits))

    def _set_by_kubelet(self, place: PodParent) -> PodLimits | None:
        """What kubelet has set on its own cgroup of the pod; None: it has none (any more)."""
        return next((found for path in place.at_kubelet if (found := self._held_by(path)) is not None), None)

    def _weighed(self, place: PodParent, limits: PodLimits) -> PodLimits:
        """A pod to which kubelet gave the lowest weight gets that of the shares which the pod asks for."""
        asked = self._shares.get(place.name)
        lowest = limits.cpu_weight is None or limits.cpu_weight <= weight_of(LOWEST_SHARES, self._version)
        if asked and lowest:
            limits = replace(limits, cpu_weight=weight_of(asked, self._version))
        limits = replace(limits, oom_group=True)  # kubelet has it on containers alone
        if not self._settings.tiers:
            return replace(limits, protected=False)
        mid = place.name in self._mid
        weight = tiered(limits.cpu_weight, mid, self._version)
        return replace(limits, cpu_weight=weight, protected=mid and self._version == 2)

    def _held_by(self, path: str) -> PodLimits | None:
        """The limits of a pod's cgroup; None: it has gone."""
        with if_there():
            return self._driver.pod_limits(path) if self._driver.exists(path) else None
        return None

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
        """False: the pod has what kubelet has set, or kubelet's cgroup or ours is gone."""
        limits, held = self._set_by_kubelet(place), self._held_by(place.in_box)
        if limits is None or held is None:
            return False
        wanted = _with(self._weighed(place, limits), held)
        if limits.cpu_weight is None and place.name not in self._shares:
            wanted = replace(wanted, cpu_weight=held.cpu_weight)
        if wanted == held:
            return False
        same_memory = wanted.memory_bytes == held.memory_bytes
        self._driver.ensure_pod(place.in_box, replace(wanted, memory_bytes=None) if same_memory else wanted)
        return True

    def _settle_containers(self, asked: Collection[AskedOfContainer]) -> tuple[LimitChange, ...]:
        return _all_done(partial(self._settle_container, one) for one in asked)

    def _settle_container(self, one: AskedOfContainer) -> tuple[LimitChange, ...]:
        weight = weight_of(one.asked.cpu_shares, self._version) if one.asked.cpu_shares else None
        limits = ContainerLimits(weight, one.asked.memory_bytes or None)
        return self._driver.settle_container(one.pod, one.id, limits)

    def _adopt(self, path: str, lifted: bool) -> None:
        self._empty = False
        self._settle_at(path)
        if self._settings.only_lower:
            self._limits = self._found_first(path)
        elif lifted:
            self._release()
        else:
            self._take_over(path)
        self._pods = frozenset(self._driver.pods(path))

    def _found_first(self, path: str) -> Limits:
        if self._found is None:
            self._found = self._driver.read(path) if self._driver.exists(path) else self._settings.lifted
        return self._found

    def _take_over(self, path: str) -> None:
        floor = self._settings.floor
        if self._wanted is None and self._driver.exists(path):
            held = self._driver.read(path).items()
            self._wanted = {**floor, **{name: limit for name, limit in held if limit is not UNLIMITED}}
        if not self._settings.hands_off:
            self._bound(path, self._wanted or floor)
        elif self._driver.exists(path):
            self._limits = self._driver.read(path)
            for name in LIMITS:
                self._look_at(path, name)

    def _apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        if self._settings.only_lower and self._path is not None:
            most = self._found_first(self._path)
            if all(limit is UNLIMITED for limit in most.values()):
                return ()
            limits = _at_most(limits, most)
        self._wanted = limits
        return () if self._path is None else self._bound(self._path, limits)

    def _pin(self, pods: Mapping[str, Cpus | None]) -> tuple[LimitChange, ...]:
        return _all_done(partial(self._driver.pin, pod, cpus) for pod, cpus in pods.items())

    def _cpu_limit(self, place: PodParent) -> float | None:
        """None: there is none, or kubelet has no cgroup of the pod."""
        for path in place.at_kubelet:
            limit = self._driver.cpu_limit(path)
            if limit is not None:
                return None if limit is UNLIMITED else limit
        return None

    def _squeeze(self, path: str, cores: float) -> tuple[LimitChange, ...]:
        wanted = self._wanted
        if wanted is None or (wanted[CPU] is not UNLIMITED and wanted[CPU] <= cores):
            return ()
        self._wanted = {**wanted, CPU: cores}
        changes = self._counted_drift(self._driver.squeeze(path, cores))
        self._limits = {**(self._limits or {}), **self._driver.read(path)}
        return changes

    def _release(self) -> tuple[LimitChange, ...]:
        self._wanted = None
        return () if self._path is None else self._bound(self._path, self._settings.lifted)

    def _settle_at(self, path: str) -> None:
        if self._path is not None and self._path != path:
            pods = self._driver.pods(self._path)
            if pods:
                raise CgroupError(
                    f"kubelet asks for a box at {path}, and the one at {self._path} still has {len(pods)} pods: delete "
                    "the offline pods, then restart kubelet with its new cgroup root"
                )
        self._path = path

    def _is_bounded(self, path: str, wanted: Limits) -> bool:
        """Whether the box was bounded so a moment ago, and still is, by its limits and its CPUs.

        What else somebody may have changed since, such as the box's weight, the next tick puts back. A slice is not
        trusted: systemd resets what it did not write itself when the first pod enters.
        """
        last = self._bounded
        if last is None or (last.path, last.wanted) != (path, wanted) or is_slice(path):
            return False
        if self._clock.monotonic_s() - last.at_s > _BOUNDED_S or last.cpus != self._cpus():
            return False
        before = {name: held.limit for name, held in self._held.items()}
        try:
            for name in before:
                self._look_at(path, name)
            unchanged = self._driver.read(path) == last.held
        except CgroupError:  # the box has gone: it is made anew
            return False
        return unchanged and before == {name: held.limit for name, held in self._held.items()}

    def _bound(self, path: str, limits: Limits) -> tuple[LimitChange, ...]:
        """One that can't be had keeps none of the others from holding; what failed last is raised then.

        The limits come last: systemd writes all that it was sent before when it is sent something else.
        """
        self._bounded = None
        self._driver.ensure(path)
        others = [partial(self._bound_in, path, name, limits.get(name)) for name in LIMITS]
        changes = _all_done(
            (partial(self._keep_to_cpus, path, limits[CPU]), *others, partial(self._write, path, limits))
        )
        self._bounded = _Bounded(path, limits, self._held_by_kernel, self._cpus(), self._clock.monotonic_s())
        return changes

    def _write(self, path: str, limits: Limits) -> tuple[LimitChange, ...]:
        changes = self._counted_drift(self._driver.write(path, limits))
        others = {name: held.limit for name, held in self._held.items() if name in limits}
        self._held_by_kernel = self._driver.read(path)
        self._limits = {**self._held_by_kernel, **others}
        return changes

    def _bound_in(self, path: str, name: str, limit: float | Unlimited | None) -> tuple[LimitChange, ...]:
        """`limit` of a resource of `kernel_files.LIMITS`; None: the box's share of what the node can have.

        While the config is not known, the share is not known either: what is in force stays.
        """
        changes: tuple[LimitChange, ...] = ()
        if not self._settings.only_lower:
            if limit is None and (capacity := self._driver.capacity(path, name)) is not None:
                limit = max(1, int(self._settings.share_ratios.get(name, 1.0) * capacity))
            if limit is not None:
                changes = self._counted_drift(self._driver.write_limit(path, name, limit))
        self._look_at(path, name)
        return changes

    def _look_at(self, path: str, name: str) -> None:
        others = {other: held for other, held in self._held.items() if other != name}
        held = self._driver.read_limit(path, name)
        self._held = others if held is None else {**others, name: held}

    def _confine(self, path: str) -> tuple[LimitChange, ...]:
        if not self._driver.exists(path):
            return ()
        self._driver.ensure(path)
        return self._keep_to_cpus(path, self._wanted_cores)

    @property
    def _wanted_cores(self) -> float | Unlimited:
        return (self._wanted or self._settings.floor)[CPU]

    def _keep_to_cpus(self, path: str, limit_cores: float | Unlimited) -> tuple[LimitChange, ...]:
        cpus, words = self._cpus(), ""
        if self._cores is not None and self._settings.whole_cores:
            cpus, words = self._cores.choose(cpus, limit_cores)
        elif self._cores is not None and cpus is not UNLIMITED:
            cpus, words = self._cores.spare(cpus)
        changes = self._counted_drift(self._driver.confine(path, cpus))
        self._confined, self._cores_words = cpus, words
        return changes

    def _counted_drift(self, changes: tuple[LimitChange, ...]) -> tuple[LimitChange, ...]:
        self._drift += sum(change.drift for change in changes)
        return changes

    def _reclaim(self) -> None:
        """On the reclaimer's thread: to what is wanted at each step's beginning."""
        for _ in range(files.RECLAIM_STEPS):
            path, size = self._path, self._sink_to
            if path is None or size is None or not self._driver.reclaim(path, size):
                return

    def _make_room(self, pod: str, size_bytes: int) -> None:
        """On the reclaimer's thread, too: so that the pod's own limit can be set without waiting."""
        for _ in range(files.RECLAIM_STEPS):
            if not self._driver.exists(pod) or not self._driver.reclaim(pod, size_bytes):
                return

    def _drop_caches(self, path: str, running: frozenset[str]) -> int:
        ended = [name for name in self._driver.pods(path) if name not in running and name not in self._admitted]
        self._dropped &= frozenset(ended)
        box, until_s, dropped_bytes = parse_box(path), self._clock.monotonic_s() + _CACHE_S, 0
        for name in ended:
            while name not in self._dropped:
                if self._sink_to is not None or self._clock.monotonic_s() > until_s:
                    return dropped_bytes
                if (size := self._driver.drop_cache(box.pod(name))) is None:
                    self._dropped |= {name}
                else:
                    dropped_bytes += size
        return dropped_bytes

    def _reclaimable(self, path: str) -> Reclaimable | Missing | None:
        return self._driver.reclaimable(path) if self._driver.exists(path) else None

    def _take_back(self, path: str, size_bytes: int) -> int:
        until_s, left_bytes = self._clock.monotonic_s() + _CACHE_S, size_bytes
        while left_bytes > 0 and self._sink_to is None and self._clock.monotonic_s() <= until_s:
            taken_bytes = self._driver.take_back(path, min(left_bytes, files.CACHE_STEP_BYTES))
            left_bytes -= taken_bytes
            if not taken_bytes:
                break
        return size_bytes - left_bytes

    def _usage(self, path: str | None) -> UsageReading:
        wanted, began_s = self._wanted, self._clock.monotonic_s()
        node, read_s = self._driver.node_usage(), self._clock.monotonic_s()
        self._reading_s = read_s - began_s
        box = None if path is None else self._driver.usage(path)
        self._memory = None if box is None or wanted is None else Held(box.memory_bytes, wanted[MEMORY])
        return UsageReading(node, box, read_s)

    def _sweep(self, box: BoxPath, known: frozenset[str]) -> tuple[str, ...]:
        now_s = self._clock.monotonic_s()
        for since, most_s in ((self._admitted, STARTING_S), (self._starting, STARTING_MOST_S)):
            for name, admitted_s in tuple(since.items()):
                if admitted_s < now_s - most_s:
                    since.pop(name, None)
        kept = known | self._admitted.keys()
        there = self._driver.pods(box.path)
        removed = tuple(name for name in there if name not in kept and self._driver.remove_pod(box.pod(name)))
        self._pods = frozenset(there).difference(removed)
        self._empty = not self._pods
        return removed

    def _reap(self, box: BoxPath, known: frozenset[str]) -> tuple[str, ...]:
        now_s = self._clock.monotonic_s()
        kept = known | self._admitted.keys()
        orphans = [name for name in self._driver.pods(box.path) if name not in kept]
        self._orphaned_s = {name: self._orphaned_s.get(name, now_s) for name in orphans}
        due = tuple(name for name, since_s in self._orphaned_s.items() if now_s - since_s >= ORPHAN_S)
        for name in due:
            self._driver.kill_pod(box.pod(name))
        return due


def _at_kubelet(box: BoxPath, uid: str) -> tuple[str, ...]:
    """Where kubelet's own cgroup of a pod may be."""
    return tuple(path for name in dict.fromkeys(pod_names(uid)) for path in PodParent(box, name).at_kubelet)


def _all_done(jobs: Iterable[Callable[[], tuple[LimitChange, ...]]]) -> tuple[LimitChange, ...]:
    """What all of these have changed. One that fails keeps no other from being done, and the last failure is raised."""
    changes: list[LimitChange] = []
    failure: CgroupError | None = None
    for job in jobs:
        try:
            changes += job()
        except CgroupError as error:
            failure = error
    if failure is not None:
        raise failure
    return tuple(changes)


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


def _below(held: float | Unlimited, wanted: float | Unlimited) -> int | None:
    """The wanted limit when the one that is held is above it, else None."""
    return None if wanted is UNLIMITED or (held is not UNLIMITED and held <= wanted) else int(wanted)


def _at_most(limits: Limits, most: Limits) -> Limits:
    """The lower of each; what `most` does not bound stays so, as it was lifted on purpose."""
    bounded = {name: limit for name, limit in limits.items() if limit is not UNLIMITED}
    return {name: limit if limit is UNLIMITED else min(limit, bounded.get(name, limit)) for name, limit in most.items()}
