"""The box, as the rest of criproxy sees it; how it works stands in the package's docstring."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, field

from criproxy.cgroup.box.limits import BoxLimits, BoxSettings, LimitsInForce
from criproxy.cgroup.box.memory import BoxMemory, Held
from criproxy.cgroup.box.pods import BoxPods
from criproxy.cgroup.box.threads import BoxThreads, for_request
from criproxy.cgroup.counter import CpuTimes, cpu_times
from criproxy.cgroup.driver import CgroupDriver, HeldLimit
from criproxy.cgroup.naming import BoxPath
from criproxy.cgroup.topology import WholeCores
from criproxy.cgroup.tree import GONE
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.workers import Workers
from criproxy.model import MEMORY, UNLIMITED, LimitChange, Limits, Unlimited, UsageReading
from criproxy.model.cpulist import Cpus, format_cpus

T = TypeVar("T")

_AT_ONCE_S: Final = 0.001
"""Without a box, the event loop itself reads usage, as it is /proc/meminfo and, on v2, /proc/stat alone: 30 us on two
CPUs. Where that takes longer, as with hundreds of CPUs, kubelet's calls would wait for it: then a thread reads.
"""


_AT_ONE_MOMENT_S: Final = 0.05
_TRIES: Final = 3
"""A thread that is kept from running between the node's counter and the clock makes of a second's use that of less."""


class BoxState(Struct, frozen=True):
    """The box at one moment. `path`: None until kubelet or the inventory has named it.

    `limits` are what the kernel held after the last write, None when there was none. `welcome`: new offline pods are
    taken; otherwise `reason` says why not. `drift` counts files put back, `timeouts` calls that hung in the kernel.
    `wanted`: the limits that were last requested; None: none were. `memory` None: not read yet.
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
    wanted: Limits | None = None
    memory: Held | None = None
    cpus: str = ""
    in_use: Mapping[str, HeldLimit] = field(default_factory=dict)
    cores: str = ""
    tiers: bool = False


class Box:
    """`cpus` and `cores`: see `BoxLimits`. `pods` and `memory` are parts of it with methods of their own.

    `timeout_s` bounds each job on a thread; kubelet itself waits four minutes for a sandbox.
    """

    def __init__(
        self,
        driver: CgroupDriver,
        settings: BoxSettings,
        cpus: Callable[[], Cpus | Unlimited],
        clock: Clock,
        *,
        cores: WholeCores | None = None,
        workers: Workers | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._driver = driver
        self._version = driver.version
        self._clock = clock
        self._threads = BoxThreads(workers or Workers(timeout_s))
        self._limits = BoxLimits(driver, settings, cpus, cores, clock)
        self.pods = BoxPods(driver, self._limits, self._threads, clock)
        self.memory = BoxMemory(driver, self._limits, self.pods, self._threads, clock)
        self._reading_s = 0.0
        """How long the node's usage took to be read, the last time."""
        self._in_force: LimitsInForce | None = None
        """What the last reading has found in force, until the next call of `apply`; None: that must look for itself."""
        self._counted = ""
        """The box's path that the counters are of."""
        self._counters = CpuTimes("", "", whole=True)

    # --- limits ----------------------------------------------------------------------------------------------------

    def configure(self, settings: BoxSettings) -> None:
        """From the next call on."""
        self._limits.configure(settings)

    async def adopt(self, box: BoxPath, *, lifted: bool = False) -> None:
        """The runtime already has pods in this box, from before a restart of ours.

        Limits that the kernel still holds stay in force until the first decision; with `lifted` there shall be none.
        Raises AdmissionError.
        """
        job = partial(self._limits.guarded, partial(self._adopt, box.path, lifted))
        await for_request(f"adopt {box.path}", job, self._threads.writer, first=True)
        self.memory.first_sink()  # systemd has put its own memory.high there, which is the limit

    async def apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        """Put limits in force; without a box they are kept for its first pod. Raises CgroupError.

        Memory that must be reclaimed for that goes on sinking afterwards; what failed of it is raised by the next call.
        """
        if self._limits.path is None:  # no thread has to wake up for that, each second
            self._limits.wanted = limits
            return ()
        found, self._in_force = self._in_force, None
        if found is not None and limits == found[0] == self._limits.wanted:  # no thread wakes up for what is there
            self._limits.in_use, self._limits.found_s = dict(found[1]), self._clock.monotonic_s()
            if (failure := self.memory.sink()) is not None:
                raise failure
            return ()
        job = partial(self._limits.guarded, partial(self._limits.apply, limits))
        try:
            changes = await self._threads.writer.run("apply limits", job, first=True)
        finally:  # memory sinks also when something beside the limits could not be written
            failure = self.memory.sink()
        if failure is not None:
            raise failure
        return changes

    async def squeeze(self, cores: float) -> tuple[LimitChange, ...]:
        """Lower the CPU limit in force to `cores`, alone and at once; never raise it. Raises CgroupError.

        The next `apply` supersedes it.
        """
        return await self._at_box("squeeze the box", lambda path: self._limits.squeeze(path, cores))

    async def confine(self) -> tuple[LimitChange, ...]:
        """Let the box run on `cpus` alone, whether or not its limits are ours to set. Raises CgroupError."""
        return await self._at_box("confine the box", self._limits.confine)

    async def release(self) -> tuple[LimitChange, ...]:
        """Lift the limits; the priority stays lowest. A later pod starts from the floor. Raises CgroupError."""
        job = partial(self._limits.guarded, self._limits.release)
        async with self.memory.at_rest():
            return await self._threads.writer.run("lift limits", job, first=True)

    async def settle(self) -> None:
        """Wait until all requests so far have been written and killed, as far as no memory must be reclaimed, and no
        step of that is under way. Raises StuckError.
        """
        async with self.memory.at_rest():  # until the writes are done: each of them has memory sink
            await self._threads.drained()

    # --- for features ----------------------------------------------------------------------------------------------

    async def reads(self, what: str, job: Callable[[CgroupDriver, str], T]) -> T | None:
        """A reading of a feature's own: what `job` makes of driver and box, on the reader's thread. None: there is no
        box, and no thread wakes up.

        Raises CgroupError, and what `job` does.
        """
        path = self._limits.path
        return None if path is None else await self._threads.reader.run(what, lambda: job(self._driver, path))

    async def writes(self, what: str, job: Callable[[CgroupDriver, str], T], *, apart: str = "") -> T | None:
        """As `reads`, for what changes something: in one order with all else that the writer's thread does.

        The box may be one that a job before this one makes. `apart`: the name of a thread of its own for it, where it
        may wait for something slow; then the box is one that is there by now.
        """
        path = self._limits.path
        if apart:
            return None if path is None else await self._threads.apart(apart).run(what, lambda: job(self._driver, path))
        return await self._threads.writer.run(what, lambda: self._written(job))

    # --- what is known ---------------------------------------------------------------------------------------------

    async def usage(
        self, beside: Callable[[CgroupDriver, str], T] | None = None
    ) -> tuple[UsageReading | Exception, T | Exception | None]:
        """What node and box use, and what `beside` makes of driver and box in the same wake-up of the reader's thread;
        None: there is no box. An error stands where a reading would.
        """
        path = self._limits.path
        if path is None and self._reading_s < _AT_ONCE_S:  # then no thread has to wake up for it, each second
            return _or_error(lambda: self._usage(None)), None

        def read() -> tuple[LimitsInForce | None, UsageReading | Exception, T | Exception | None]:
            in_force, usage = self._limits.in_force(), _or_error(lambda: self._usage(path))
            found = None if path is None or beside is None else _or_error(lambda: beside(self._driver, path))
            return in_force, usage, found

        self._in_force = None
        try:
            self._in_force, usage, found = await self._threads.reader.run("read usage and signals", read)
        except Exception as error:  # the thread is stuck
            return error, None if beside is None else error
        return usage, found

    def cpu_times(self) -> tuple[float, float] | None:
        """CPU seconds of the node and of the box; None: there is no box, or no pod runs in it. Raises OSError.

        For the event loop: two small files that the kernel answers at once. On v2 the node is kubepods and the box.
        """
        path = self._limits.path
        if path is None or self.pods.none_left:
            return None
        if self._counted != path:
            self._counters.close()
            self._counters, self._counted = cpu_times(self._driver.files, path), path
        try:
            return self._counters.read()
        except OSError as error:
            if error.errno in GONE:
                return None
            raise

    def state(self) -> BoxState:
        stuck, limits = self._threads.writer.stuck, self._limits
        return BoxState(
            path=limits.path,
            version=self._version,
            limits=limits.held,
            welcome=not stuck and not limits.fault,
            reason="a cgroup write is blocked in the kernel" if stuck else limits.fault,
            drift=limits.drift,
            timeouts=self._threads.timeouts,
            wanted=limits.wanted,
            memory=self.memory.last,
            cpus="" if limits.confined is UNLIMITED else format_cpus(limits.confined),
            in_use=dict(limits.in_use),
            cores=limits.cores_words,
            tiers=limits.settings.tiers,
        )

    @property
    def path(self) -> str | None:
        """Where the box is; None until kubelet or the inventory has named it."""
        return self._limits.path

    @property
    def limits(self) -> Limits | None:
        """What the kernel held after the last write; None: there was none."""
        return self._limits.held

    @property
    def starting(self) -> int:
        """How many pods have been let in and have no container yet that runs."""
        return self.pods.starting

    @property
    def version(self) -> int:
        """Of cgroups: 1 or 2."""
        return self._version

    @property
    def spares_memory(self) -> bool:
        """Memory can be taken back without a limit that kills: there is memory.high, which v1 has not."""
        return self.memory.spares

    def close(self) -> None:
        """End the threads. The box stays as it is, with its limits: pods are in it."""
        self._counters.close()
        self.memory.halt()
        self._threads.close()

    # --- jobs, on the threads --------------------------------------------------------------------------------------

    async def _at_box(self, what: str, job: Callable[[str], tuple[T, ...]]) -> tuple[T, ...]:
        return await self._threads.writer.run(what, partial(self._limits.at_box, job), first=True)

    def _written(self, job: Callable[[CgroupDriver, str], T]) -> T | None:
        path = self._limits.path
        return None if path is None else job(self._driver, path)

    def _adopt(self, path: str, lifted: bool) -> None:
        self.pods.none_left = False
        self._limits.adopt(path, lifted=lifted)
        self.pods.adopt(path)

    def _usage(self, path: str | None) -> UsageReading:
        wanted = self._limits.wanted
        for _ in range(_TRIES):
            began_s = self._clock.monotonic_s()
            node, read_s = self._driver.node_usage(), self._clock.monotonic_s()
            self._reading_s = read_s - began_s
            if self._reading_s < _AT_ONE_MOMENT_S:
                break
        box = None if path is None else self._driver.usage(path)
        self.memory.last = None if box is None or wanted is None else Held(box.memory_bytes, wanted[MEMORY])
        return UsageReading(node, box, read_s)


def _or_error(read: Callable[[], T]) -> T | Exception:
    try:
        return read()
    except Exception as error:
        return error
