"""The limits of the box: what they shall be, and what the kernel holds. All jobs are for the writer's thread."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct, field

from criproxy.cgroup.driver import CgroupDriver, CgroupError, HeldLimit, all_done, checked_box
from criproxy.cgroup.kernel_files import CPU_IDLE, LIMITS
from criproxy.cgroup.naming import is_slice
from criproxy.cgroup.topology import WholeCores
from criproxy.concurrency.clock import Clock
from criproxy.model import CPU, UNLIMITED, LimitChange, Limits, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus

T = TypeVar("T")

_BOUNDED_S: Final = 1.0
"""For so long after all files of the box were settled, or found in force, a pod's start looks at its limits alone. The
control loop looks at them each second; a start would do all of that over again, in a third of its CPU time.
"""


LimitsInForce = tuple[Limits, Mapping[str, HeldLimit]]
"""Limits that the kernel has as requested, and how much of each is in use."""

SETTLED_S: Final = 10.0
"""So often all files of the box are settled, whatever a look at its limits has found."""


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


class _Bounded(Struct, frozen=True):
    """At `at_s` (monotonic) the box at `path` was bounded to `wanted`, and the kernel held `held` of CPU and memory.

    `cpus`: those that could be the box's; `idle`: whether the kernel runs it only while nobody else wants to.
    """

    path: str
    wanted: Limits
    held: Limits
    cpus: Cpus | Unlimited
    idle: bool | None
    at_s: float


class BoxLimits:
    """`cpus` returns, on the writer's thread, the CPUs that the box may run on; of these, `cores` leaves out siblings,
    or chooses whole cores.

    The attributes may be read from any thread; each is replaced as a whole.
    """

    def __init__(
        self,
        driver: CgroupDriver,
        settings: BoxSettings,
        cpus: Callable[[], Cpus | Unlimited],
        cores: WholeCores | None,
        clock: Clock,
    ) -> None:
        self._driver = driver
        self._cpus = cpus
        self._cores = cores
        self._clock = clock
        self.settings = settings
        self.path: str | None = None
        self.wanted: Limits | None = None
        """The limits that were last requested; None: none were."""
        self.held: Limits | None = None
        """What the kernel held after the last write; None: there was none."""
        self.in_use: dict[str, HeldLimit] = {}
        """By resource of `kernel_files.LIMITS`."""
        self.confined: Cpus | Unlimited = UNLIMITED
        """The CPUs that the box is kept to."""
        self.cores_words = ""
        self.drift = 0
        self.fault = ""
        """What kept the box from being bounded; "": nothing did."""
        self._found: Limits | None = None
        """What the kernel gave the box when it was found first, while only lower limits are allowed."""
        self._held_by_kernel: Limits = {}
        """Of CPU and memory, after the last write of both."""
        self.found_s = 0.0
        """When all of it was found in force last (monotonic)."""
        self._bounded: _Bounded | None = None
        """What all files of the box were brought to last, without an error."""

    def configure(self, settings: BoxSettings) -> None:
        """From the next job on."""
        self.settings, self._bounded = settings, None

    def guarded(self, job: Callable[[], T]) -> T:
        """A failure to bound the box keeps new pods out until it has succeeded again."""
        try:
            result = job()
        except CgroupError as error:
            self.fault = str(error)
            raise
        self.fault = ""
        return result

    def at_box(self, job: Callable[[str], tuple[T, ...]]) -> tuple[T, ...]:
        """Do a job that gets the box's path; without a box there is nothing to do."""
        return () if self.path is None else job(self.path)

    # --- jobs ------------------------------------------------------------------------------------------------------

    def settle_at(self, path: str) -> None:
        """The box is there from now on. Raises CgroupError where another one has pods."""
        if self.path is not None and self.path != path:
            pods = self._driver.pods(self.path)
            if pods:
                raise CgroupError(
                    f"kubelet asks for a box at {path}, and the one at {self.path} still has {len(pods)} pods: delete "
                    "the offline pods, then restart kubelet with its new cgroup root"
                )
        self.path = path

    def bound_for_pod(self, path: str) -> None:
        """Bound the box before a pod enters, unless that was done a moment ago."""
        wanted = self.wanted or self.settings.floor
        if not self._is_bounded(path, wanted):
            self.guarded(partial(self._bound, path, wanted))

    def apply(self, limits: Limits) -> tuple[LimitChange, ...]:
        """Put limits in force."""
        if self.settings.only_lower and self.path is not None:
            most = self._found_first(self.path)
            if all(limit is UNLIMITED for limit in most.values()):
                return ()
            limits = _at_most(limits, most)
        self.wanted = limits
        return () if self.path is None else self._bound(self.path, limits)

    def squeeze(self, path: str, cores: float) -> tuple[LimitChange, ...]:
        """Lower the CPU limit alone; never raise it."""
        wanted = self.wanted
        if wanted is None or (wanted[CPU] is not UNLIMITED and wanted[CPU] <= cores):
            return ()
        self.wanted = {**wanted, CPU: cores}
        changes = self._counted_drift(self._driver.write_limit(path, CPU, cores))
        self.held = {**(self.held or {}), **self._driver.read(path)}
        return changes

    def release(self) -> tuple[LimitChange, ...]:
        """Lift the limits."""
        self.wanted = None
        return () if self.path is None else self._bound(self.path, self.settings.lifted)

    def adopt(self, path: str, *, lifted: bool) -> None:
        """Take over a box that is there. `lifted`: it shall have no limits."""
        self.settle_at(path)
        if self.settings.only_lower:
            self.held = self._found_first(path)
        elif lifted:
            self.release()
        else:
            self._take_over(path)

    def confine(self, path: str) -> tuple[LimitChange, ...]:
        """Keep the box to its CPUs, if it is there."""
        if not self._driver.exists(path):
            return ()
        self._driver.ensure(path, hands_off=self.settings.hands_off)
        return self.keep_to_cpus(path)

    def keep_to_cpus(self, path: str) -> tuple[LimitChange, ...]:
        """As `confine`, of a box that is known to be there."""
        return self._keep_to_cpus(path, (self.wanted or self.settings.floor)[CPU])

    # --- what they do ----------------------------------------------------------------------------------------------

    def _found_first(self, path: str) -> Limits:
        if self._found is None:
            self._found = self._driver.read(path) if self._driver.exists(path) else self.settings.lifted
        return self._found

    def _take_over(self, path: str) -> None:
        floor = self.settings.floor
        if self.wanted is None and self._driver.exists(path):
            held = self._driver.read(path).items()
            self.wanted = {**floor, **{name: limit for name, limit in held if limit is not UNLIMITED}}
        if not self.settings.hands_off:
            self._bound(path, self.wanted or floor)
        elif self._driver.exists(path):
            self.held = self._driver.read(path)
            for name in LIMITS:
                self._look_at(path, name)

    def _is_bounded(self, path: str, wanted: Limits) -> bool:
        """Whether the box was bounded so a moment ago, and still is, by its limits and its CPUs.

        What else somebody may have changed since, such as the box's weight, the next tick puts back. A slice is not
        trusted: systemd resets what it did not write itself when the first pod enters.
        """
        last = self._bounded
        if last is None or (last.path, last.wanted) != (path, wanted) or is_slice(path):
            return False
        if self._clock.monotonic_s() - max(last.at_s, self.found_s) > _BOUNDED_S or last.cpus != self._cpus():
            return False
        before = {name: held.limit for name, held in self.in_use.items()}
        try:
            for name in before:
                self._look_at(path, name)
            unchanged = self._driver.read(path) == last.held
        except CgroupError:  # the box has gone: it is made anew
            return False
        return unchanged and before == {name: held.limit for name, held in self.in_use.items()}

    def in_force(self) -> LimitsInForce | None:
        """The last request, where the kernel still has all of it, and how much is in use now; None: it does
        not, or all files of the box are to be settled again. For any thread, as it changes nothing.
        """
        last, held = self._bounded, self.in_use
        if last is None or last.path != self.path or self._clock.monotonic_s() - last.at_s >= SETTLED_S:
            return None
        try:
            if last.cpus != self._cpus() or self._idle(last.path) != last.idle:
                return None
            if self._driver.read(last.path) != last.held:
                return None
            found = {name: self._driver.read_limit(last.path, name) for name in held}
        except CgroupError:  # the box has gone: it is made anew
            return None
        now = {name: one for name, one in found.items() if one is not None and one.limit == held[name].limit}
        return (last.wanted, now) if len(now) == len(held) else None

    def may_have(self, cpus: Cpus) -> Cpus:
        """Those of these CPUs that the box runs on while it has no limit. For any thread, as it changes nothing."""
        leaves = self._cpus()
        allowed = cpus if leaves is UNLIMITED else cpus & leaves
        return allowed if self._cores is None else self._cores.most(allowed, whole=self.settings.whole_cores)

    def _bound(self, path: str, limits: Limits) -> tuple[LimitChange, ...]:
        """One that can't be had keeps none of the others from holding; what failed last is raised then.

        The limits come last: systemd writes all that it was sent before when it is sent something else.
        """
        self._bounded = None
        self._driver.ensure(path)
        others = [partial(self._bound_in, path, name, limits.get(name)) for name in LIMITS]
        changes = all_done(
            (partial(self._keep_to_cpus, path, limits[CPU]), *others, partial(self._write, path, limits))
        )
        now_s = self._clock.monotonic_s()
        self._bounded = _Bounded(path, limits, self._held_by_kernel, self._cpus(), self._idle(path), now_s)
        return changes

    def _idle(self, path: str) -> bool | None:
        """None: the kernel has no cpu.idle."""
        idle: bool | None = self._driver.files.read_if_there(CPU_IDLE, checked_box(path))
        return idle

    def _write(self, path: str, limits: Limits) -> tuple[LimitChange, ...]:
        changes = self._counted_drift(self._driver.write(path, limits))
        others = {name: held.limit for name, held in self.in_use.items() if name in limits}
        self._held_by_kernel = self._driver.read(path)
        self.held = {**self._held_by_kernel, **others}
        return changes

    def _bound_in(self, path: str, name: str, limit: float | Unlimited | None) -> tuple[LimitChange, ...]:
        """`limit` of a resource of `kernel_files.LIMITS`; None: the box's share of what the node can have.

        While the config is not known, the share is not known either: what is in force stays.
        """
        changes: tuple[LimitChange, ...] = ()
        if not self.settings.only_lower:
            if limit is None and (capacity := self._driver.capacity(path, name)) is not None:
                limit = max(1, int(self.settings.share_ratios.get(name, 1.0) * capacity))
            if limit is not None:
                changes = self._counted_drift(self._driver.write_limit(path, name, limit))
        self._look_at(path, name)
        return changes

    def _look_at(self, path: str, name: str) -> None:
        others = {other: held for other, held in self.in_use.items() if other != name}
        held = self._driver.read_limit(path, name)
        self.in_use = others if held is None else {**others, name: held}

    def _keep_to_cpus(self, path: str, limit_cores: float | Unlimited) -> tuple[LimitChange, ...]:
        cpus, words = self._cpus(), ""
        if self._cores is not None and self.settings.whole_cores:
            cpus, words = self._cores.choose(cpus, limit_cores)
        elif self._cores is not None and cpus is not UNLIMITED:
            cpus, words = self._cores.spare(cpus)
        if cpus is not UNLIMITED and (others := cpus - self._driver.can_have(path, cpus)):
            cpus -= others
            above = f"{format_cpus(others)} are not of the cgroup above the box (its cpuset, or a partition beside it)"
            words = f"{words or 'what kubelet leaves'}; {above}"
        changes = self._counted_drift(self._driver.confine(path, cpus))
        self.confined, self.cores_words = cpus, words
        return changes

    def _counted_drift(self, changes: tuple[LimitChange, ...]) -> tuple[LimitChange, ...]:
        self.drift += sum(change.drift for change in changes)
        return changes


def _at_most(limits: Limits, most: Limits) -> Limits:
    """The lower of each; what `most` does not bound stays so, as it was lifted on purpose."""
    bounded = {name: limit for name, limit in limits.items() if limit is not UNLIMITED}
    return {name: limit if limit is UNLIMITED else min(limit, bounded.get(name, limit)) for name, limit in most.items()}
