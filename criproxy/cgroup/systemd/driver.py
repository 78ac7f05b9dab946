"""The box as a systemd slice: limits that last, without systemd ever waiting for memory or killing for it.

Systemd resets what it did not write itself whenever the first pod enters, somebody sets any property, or it reloads:
so it is told each limit. A limit on memory sinks in the kernel's files first, in steps, and systemd is told what they
hold by then; it rises through systemd, lest an older, lower one be put back over a usage that has grown.
"""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup import files
from criproxy.cgroup.driver import CgroupDriver, CgroupError, PodLimits, no_cpus
from criproxy.cgroup.places import checked_box, checked_pod
from criproxy.cgroup.systemd.slices import (
    Properties,
    Value,
    limit_properties,
    pids_properties,
    pod_properties,
    standing_properties,
)
from criproxy.cgroup.systemd.units import INVALID_ARGS, UnitError, Units
from criproxy.model import CPU, MEMORY, UNLIMITED, LimitChange, Limits, type_unlimited
from criproxy.model.cpulist import Cpus, mask_of


class Files(CgroupDriver, Protocol):
    """The kernel's files (`V1Driver`, `V2Driver`): for slices, too, once systemd has made them."""

    def identity(self, path: str) -> int | None:
        """Tells a cgroup from an earlier one of the same name; None: there is none."""
        ...

    def pids_share(self, box: str, ratio: float) -> int | None:
        """What `write_pids` makes the limit; None: there is no pids controller."""
        ...


class _Slice(Struct):
    """What systemd was told of a slice, which cgroup that was, and the limits in its files after the last write.

    `cpus`: the CPUs that systemd was told.
    `tasks`: the limit on processes and threads that systemd was told, None: none yet.
    """

    cgroup: int | None
    told: dict[str, Value]
    left: Limits | None = None
    cpus: Cpus | type_unlimited = UNLIMITED
    tasks: int | None = None


class SystemdDriver:
    """What a `CgroupDriver` does otherwise when its paths are slices. All methods raise CgroupError."""

    def __init__(self, kernel: Files, units: Units, page_bytes: int) -> None:
        self._kernel = kernel
        self._units = units
        self._page_bytes = page_bytes
        self._version = kernel.capabilities.version
        self._knows_idle = True
        self._slices: dict[str, _Slice] = {}

    def ensure(self, box: str) -> None:
        """Start the slice, unless it is the one that was started; on v1 also make it where systemd does not."""
        checked_box(box)
        known = self._slices.get(box)
        if known is None or known.cgroup is None or known.cgroup != self._kernel.identity(box):
            self._slices[box] = self._start(box)
        self._kernel.ensure(box)

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        """See `CgroupDriver.write`; the files are settled also when systemd does not answer.

        Each write of a quota, of the same one too, gives the box a fresh one at once (kernel/sched/core.c,
        tg_set_cfs_bandwidth): so systemd alone writes it, and once.
        """
        record, held, want = self._slices[box], self._kernel.read(box), self._as_held(limits)
        first, through = self._through_systemd(box, record, held, want)
        changes = (*through, *self._kernel.write(box, first))
        if any(change.drift for change in changes):
            record.told.clear()
        rises = first[MEMORY] != want[MEMORY]
        size = want[MEMORY] if rises else self._lasting(record, want[MEMORY], self._kernel.read(box))
        try:
            told = self._tell(box, record, {CPU: want[CPU], MEMORY: size})
        except CgroupError:
            self._kernel.write(box, {**want, MEMORY: first[MEMORY]})
            raise
        if told:
            # Systemd has written all that it knows, which is less than there is.
            again = self._kernel.write(box, want)
            changes = (*changes, *(replace(change, drift=False) for change in again))
        record.left = {**self._kernel.read(box), CPU: want[CPU]}
        return changes

    def confine(self, box: str, cpus: Cpus | type_unlimited) -> tuple[LimitChange, ...]:
        """Through systemd on v2, which makes the file, too; on v1 it has no say in cpusets.

        What it has reset beside is put back at once, as far as it was ours.
        """
        if self._version == 1:
            return self._kernel.confine(box, cpus)
        if cpus is not UNLIMITED and not cpus:
            raise no_cpus(box)
        record = self._slices[box]
        if record.cpus != cpus:
            self._tell_cpus(box, record, cpus)
        try:
            changes = self._kernel.confine(box, cpus)
        except CgroupError:
            record.cpus = UNLIMITED  # whatever systemd made of it: it is told again
            raise
        if any(change.drift for change in changes):
            self._tell_cpus(box, record, cpus)
            changes = (*changes, *self._kernel.confine(box, cpus))
        return changes

    def _tell_cpus(self, box: str, record: _Slice, cpus: Cpus | type_unlimited) -> None:
        self._set_beside(box, record, {"AllowedCPUs": b"" if cpus is UNLIMITED else mask_of(cpus)})
        record.cpus = cpus

    def _set_beside(self, box: str, record: _Slice, properties: Mapping[str, Value]) -> None:
        """Tell systemd of something beside the limits: it writes those, too, as it was told them last."""
        self._units.set(box, properties)
        if record.left is not None:
            self._kernel.write(box, record.left)

    def squeeze(self, box: str, cores: float) -> tuple[LimitChange, ...]:
        """At once, in the file; the next `write` makes it last."""
        changes = self._kernel.squeeze(box, cores)
        if record := self._slices.get(box):
            held = self._as_held({CPU: cores, MEMORY: UNLIMITED})
            record.left = {**(record.left or self._kernel.read(box)), CPU: held[CPU]}
        return changes

    def write_pids(self, box: str, ratio: float) -> tuple[LimitChange, ...]:
        """The file, and systemd, which would put another value back."""
        record, share = self._slices[box], self._kernel.pids_share(box, ratio)
        changes = self._kernel.write_pids(box, ratio)
        if share is not None and (changes or record.tasks != share):
            record.tasks = None  # it may be done also when no answer comes
            self._set_beside(box, record, pids_properties(share))
            record.tasks = share
        return changes

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        """The memory limit of a slice that is there sinks in the file first."""
        checked_pod(pod)
        new, size_bytes = not self._kernel.exists(pod), None
        if limits.memory_bytes is not None:
            size_bytes = files.whole_pages(limits.memory_bytes, self._page_bytes)
        self._units.start(pod, pod_properties(self._version, replace(limits, memory_bytes=size_bytes if new else None)))
        if size_bytes and not new and self._rises(self._kernel.read(pod)[MEMORY], size_bytes):
            self._units.set(pod, {"MemoryMax": size_bytes})
        self._kernel.ensure_pod(pod, limits)
        if size_bytes and not new:
            self._units.set(pod, {"MemoryMax": size_bytes})

    def remove_pod(self, pod: str) -> bool:
        """Stopping a slice kills what is in it: so only an empty one. On v1, some of its directories are left to us."""
        checked_pod(pod)
        if self._kernel.processes(pod) or not self._units.stop(pod):
            return False
        return self._kernel.remove_pod(pod)

    def _start(self, box: str) -> _Slice:
        standing = self._standing()
        try:
            self._units.start(box, standing)
            if (better := self._standing()) != standing:  # only with a first cgroup, cpu.idle is to be seen
                self._units.set(box, better)
        except UnitError as error:
            if error.name != INVALID_ARGS or not self._knows_idle:
                raise
            # Systemd before 252 has no CPUWeight=idle; it leaves cpu.idle alone, too, once it is written.
            self._knows_idle = False
            return self._start(box)
        return _Slice(self._kernel.identity(box), dict(better))

    def _standing(self) -> Properties:
        return standing_properties(self._version, cpu_idle=self._knows_idle and self._kernel.capabilities.cpu_idle)

    # --- limits ----------------------------------------------------------------------------------------------------

    def _as_held(self, limits: Limits) -> Limits:
        """The limits as the kernel will read them back."""
        cores, size = limits[CPU], limits[MEMORY]
        return {
            CPU: cores if cores is UNLIMITED else files.quota_us(cores) / files.CFS_PERIOD_US,
            MEMORY: size if size is UNLIMITED else files.whole_pages(size, self._page_bytes),
        }

    def _through_systemd(
        self, box: str, record: _Slice, held: Limits, want: Limits
    ) -> tuple[Limits, tuple[LimitChange, ...]]:
        """What is left to us to write first, and the changes that systemd is to make, also if it was told before.

        On v2 these are a changed CPU limit and a memory limit that rises; on v1 there are none, see `_tell`.
        """
        first, left, changes = want, record.left or held, []
        if self._version == 2 and want[CPU] != held[CPU]:
            first, drift = {**first, CPU: held[CPU]}, left[CPU] != held[CPU]
            changes.append(LimitChange(f"{box}: CPUQuota", str(held[CPU]), str(want[CPU]), drift))
            record.told.pop("CPUQuotaPerSecUSec", None)
        if self._version == 2 and self._rises(held[MEMORY], want[MEMORY]):
            first, drift = {**first, MEMORY: held[MEMORY]}, left[MEMORY] != held[MEMORY]
            changes.append(LimitChange(f"{box}: MemoryMax", str(held[MEMORY]), str(want[MEMORY]), drift))
            record.told.pop("MemoryHigh", None)
            record.told.pop("MemoryMax", None)
        return first, tuple(changes)

    @staticmethod
    def _rises(held: float | type_unlimited, want: float | type_unlimited) -> bool:
        return held is not UNLIMITED and (want is UNLIMITED or want > held)

    @staticmethod
    def _lasting(record: _Slice, want: float | type_unlimited, reached: Limits) -> float | type_unlimited:
        """What systemd is told of memory: a limit on its way down not step by step: each call gives a fresh quota."""
        size, told = reached[MEMORY], record.told.get("MemoryMax")
        if size is UNLIMITED or size == want or not isinstance(told, int):
            return size
        return told if size <= told < size + size // 16 else size

    def _tell(self, box: str, record: _Slice, limits: Limits) -> bool:
        """Tell systemd these limits, in one call. False: it knows them already."""
        lasting = dict(limit_properties(self._version, limits))
        if self._version == 1:
            # With each quota systemd tries cpu.shares too, which is refused beside cpu.idle, and logs that: so it gets
            # a first one only, and puts that back, for a tick, when it reloads.
            lasting = {name: value for name, value in lasting.items() if name == "MemoryMax" or name not in record.told}
        news = {name: value for name, value in lasting.items() if record.told.get(name) != value}
        if not news:
            return False
        if not record.told:  # somebody else has changed something: all anew
            news = {**self._standing(), **news}
        try:
            self._units.set(box, news)
        except CgroupError:
            record.told.clear()  # it may have been done all the same
            raise
        record.told.update(news)
        return True
