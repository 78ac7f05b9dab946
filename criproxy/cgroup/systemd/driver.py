"""The box as a systemd slice: limits that last, without systemd ever waiting for memory or killing for it.

Systemd resets what it did not write itself whenever the first pod enters, somebody sets any property, or it reloads:
so it is sent each limit. A limit on memory sinks in the kernel's files first, in steps, and systemd is sent what they
hold by then; it rises through systemd, lest an older, lower one be put back over a usage that has grown.
"""

import contextlib
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.cgroup import files
from criproxy.cgroup import kernel_files as rows
from criproxy.cgroup.driver import CgroupError, ContainerLimits, PodLimits, all_done, checked_box, checked_pod, is_box
from criproxy.cgroup.kernel_driver import KernelDriver, processes_in
from criproxy.cgroup.kernel_files import CPUS, LIMITS, KernelFile, Properties, PropertyValue, properties
from criproxy.cgroup.naming import is_slice
from criproxy.cgroup.systemd.anchor import Anchors
from criproxy.cgroup.systemd.units import INVALID_ARGS, SystemdUnits, UnitError
from criproxy.cgroup.tree import if_there
from criproxy.model import CPU, MEMORY, MEMORY_HIGH, UNLIMITED, LimitChange, Limits, Unlimited
from criproxy.model.cpulist import Cpus


class _Slice(Struct):
    """Which cgroup a slice was when it was started, which properties it was sent, and the limits after the last write.

    `sent`: the properties of priority, CPU and memory. `single`: the values of the files that are sent one by one;
    None: it is not known what systemd made of it. `is_started`: by this process; else it was found, and has kept its
    priority.
    """

    cgroup: int | None
    sent: dict[str, PropertyValue]
    left: Limits | None = None
    single: dict[KernelFile, Any] = field(default_factory=dict)
    is_started: bool = True


class SystemdDriver:
    """A `CgroupDriver` for paths of either shape: `a-b.slice` through systemd, `/a/b` through the kernel's files alone.

    The shape is kubelet's, so that the choice is no option of ours. `anchors` None: there is no need of any (v1).
    """

    def __init__(self, kernel: KernelDriver, units: SystemdUnits, anchors: Anchors | None) -> None:
        self._kernel = kernel
        self._units = units
        self._anchors = anchors
        self.version = kernel.version
        self._knows_idle = True
        self._slices: dict[str, _Slice] = {}
        # What only reads, and what systemd has no part in, is the kernel's files in either shape.
        self.files = kernel.files
        self.node_usage, self.usage, self.exists = kernel.node_usage, kernel.usage, kernel.exists
        self.read, self.memory = kernel.read, kernel.memory
        self.capacity, self.read_limit, self.can_have = kernel.capacity, kernel.read_limit, kernel.can_have
        self.may_swap = kernel.may_swap
        self.pods, self.pod_limits, self.kill_pod = kernel.pods, kernel.pod_limits, kernel.kill_pod

    def ensure(self, box: str, *, hands_off: bool = False) -> None:
        """Start the slice, unless it is the one that was started; on v1 also make it where systemd does not."""
        checked_box(box)
        if is_slice(box):
            known, cgroup = self._slices.get(box), self._kernel.identity(box)
            if known is None or known.cgroup is None or known.cgroup != cgroup:
                known = _Slice(cgroup, {}, is_started=False)
            if cgroup is None or not (known.is_started or hands_off):
                known = replace(self._start(box), single=known.single)
            self._slices[box] = known
        self._kernel.ensure(box)

    def write(self, box: str, limits: Limits) -> tuple[LimitChange, ...]:
        """See `CgroupDriver.write`; the files are settled also when systemd does not answer, and systemd is sent the
        limits also when the kernel has refused something.

        Each write of a quota, of the same one too, gives the box a fresh one at once (kernel/sched/core.c,
        tg_set_cfs_bandwidth): so systemd alone writes it, and once.
        """
        if not is_slice(box):
            return self._kernel.write(box, limits)
        record, held, want = self._slices[box], self._kernel.read(box), _as_held(limits)
        first, through = self._through_systemd(box, record, held, want)
        try:
            written = all_done(
                (partial(self._in_files, box, record, first), partial(self._in_systemd, box, record, first, want))
            )
        finally:
            record.left = self._kernel.read(box)
        return (*through, *written)

    def _in_files(self, box: str, record: _Slice, limits: Limits) -> tuple[LimitChange, ...]:
        changes = self._kernel.write(box, limits)
        if any(change.drift for change in changes):
            record.sent.clear()
        return changes

    def _in_systemd(self, box: str, record: _Slice, first: Limits, want: Limits) -> tuple[LimitChange, ...]:
        """`first`: what was written in the files before."""
        rises = first[MEMORY] != want[MEMORY]
        size = want[MEMORY] if rises else _lasting(record, want[MEMORY], self._kernel.read(box))
        try:
            sent = self._send(box, record, {CPU: want[CPU], MEMORY: size})
        except CgroupError:
            self._kernel.write(box, {**want, MEMORY: first[MEMORY]})
            raise
        if not sent:
            return ()
        # Systemd has written all that it knows, which is less than there is.
        return tuple(replace(change, drift=False) for change in self._kernel.write(box, want))

    def confine(self, path: str, cpus: Cpus | Unlimited) -> tuple[LimitChange, ...]:
        """Through systemd on v2, which makes the file, too; on v1 it has no say in cpusets, nor is it told of pods'.

        What it has reset beside is put back at once. The file is settled also when systemd does not answer.
        """
        if self.version == 1 or not is_slice(path) or not is_box(path):
            return self._kernel.confine(path, cpus)
        box = path
        if cpus is not UNLIMITED:
            cpus = self._kernel.can_have(box, cpus)
        record = self._slices[box]
        if record.single.get(CPUS, UNLIMITED) != cpus:
            try:
                self._send_one(box, record, CPUS, cpus)
            except CgroupError:
                with contextlib.suppress(CgroupError):  # systemd may not have made the file yet
                    self._kernel.confine(box, cpus)
                raise
        try:
            changes = self._kernel.confine(box, cpus)
        except CgroupError:
            record.single[CPUS] = None  # whatever systemd made of it: it is sent again
            raise
        if any(change.drift for change in changes):
            self._send_one(box, record, CPUS, cpus)
            changes = (*changes, *self._kernel.confine(box, cpus))
        return changes

    def _send_one(self, box: str, record: _Slice, row: KernelFile, value: Any) -> None:
        """Send systemd the value of one file beside the limits: it then writes those, too, as they were sent last.

        So what the kernel held is put back: a squeeze, or what an operator has written there in a hold-off.
        """
        record.single[row] = None  # it may be done also when no answer comes
        held = self._kernel.limit_files(box)
        self._units.set(box, properties(self.version, {row: value}))
        self._kernel.put_back(box, held)
        record.single[row] = value

    def _squeeze(self, box: str, cores: Any) -> tuple[LimitChange, ...]:
        changes = self._kernel.write_limit(box, CPU, cores)
        if record := self._slices.get(box):
            held = _as_held({CPU: cores, MEMORY: UNLIMITED})
            record.left = {**(record.left or self._kernel.read(box)), CPU: held[CPU]}
        return changes

    def write_limit(self, box: str, name: str, limit: Any) -> tuple[LimitChange, ...]:
        """The file, and systemd, which would put another value back. Of CPU, the next `write` makes it last."""
        if name == CPU:
            return self._squeeze(box, limit)
        changes, row = self._kernel.write_limit(box, name, limit), LIMITS[name].limit
        if is_slice(box):
            record = self._slices[box]
            news = changes or record.single.get(row) != limit
            if news and self._kernel.can_limit(box, name):
                self._send_one(box, record, row, limit)
        return changes

    def ensure_pod(self, pod: str, limits: PodLimits) -> None:
        """The memory limit of a slice that is there sinks in the file first."""
        if not is_slice(pod):
            self._kernel.ensure_pod(pod, limits)
            return
        checked_pod(pod)
        new, size_bytes = not self._kernel.exists(pod), None
        if limits.memory_bytes is not None:
            size_bytes = files.whole_pages(limits.memory_bytes)
        self._units.start(pod, pod_properties(self.version, replace(limits, memory_bytes=size_bytes if new else None)))
        if size_bytes and not new and _rises(self._kernel.read(pod)[MEMORY], size_bytes):
            self._units.set(pod, {"MemoryMax": size_bytes})
        self._kernel.ensure_pod(pod, limits)
        if size_bytes and not new:
            self._set_of_pod(pod, checked_pod(pod)[1], {"MemoryMax": size_bytes})

    def settle_container(self, pod: str, container_id: str, limits: ContainerLimits) -> tuple[LimitChange, ...]:
        """In the files first, where a memory limit sinks and nobody waits for it; then systemd is sent what they hold,
        as it would put what the runtime has told it back.
        """
        changes = self._kernel.settle_container(pod, container_id, limits)
        path = self._kernel.container_cgroup(pod, container_id) if changes else None
        scope = "" if path is None else path.rpartition("/")[2]
        if path is not None and scope.endswith(".scope"):
            held = self._kernel.pod_limits(path)
            values = {rows.CPU_WEIGHT: limits.cpu_weight and held.cpu_weight, rows.MEMORY_MAX: held.memory_bytes}
            self._set_of_pod(scope, path, properties(self.version, values))
        return changes

    def _set_of_pod(self, unit: str, path: str, values: Properties) -> None:
        """Set properties of a pod's slice or a container's scope (`path`: its directory), which stays to be killed
        whole: with any property of memory, systemd writes memory.oom.group, too, which it was never told.

        Source: src/core/cgroup.c, cgroup_context_apply.
        """
        whole = self.files.read_if_there(rows.MEMORY_OOM_GROUP, path)
        try:
            self._units.set(unit, values)
        finally:
            with if_there():
                if whole and not self.files.read(rows.MEMORY_OOM_GROUP, path):
                    self.files.write(rows.MEMORY_OOM_GROUP, path, whole)

    def remove_pod(self, pod: str) -> bool:
        """Stopping a slice kills what is in it: so only an empty one. On v1, some of its directories are left to us."""
        checked_pod(pod)
        if is_slice(pod) and (processes_in(self.files, pod) or not self._units.stop(pod)):
            return False
        return self._kernel.remove_pod(pod)

    def keep_anchors(self, box: str) -> tuple[str, ...]:
        if self._anchors is None or not is_slice(box):
            return ()
        return self._anchors.keep(box, self._kernel.pods(box))

    def _start(self, box: str) -> _Slice:
        first = self._priority()
        try:
            self._units.start(box, first)
            if (better := self._priority()) != first:  # only with a first cgroup, cpu.idle is to be seen
                self._units.set(box, better)
        except UnitError as error:
            if error.name != INVALID_ARGS or not self._knows_idle:
                raise
            # Systemd before 252 has no CPUWeight=idle; it leaves cpu.idle alone, too, once it is written.
            self._knows_idle = False
            return self._start(box)
        return _Slice(self._kernel.identity(box), dict(better))

    def _priority(self) -> Properties:
        return priority_properties(self.version, cpu_idle=self._knows_idle and self._kernel.cpu_idle)

    # --- limits ----------------------------------------------------------------------------------------------------

    def _through_systemd(
        self, box: str, record: _Slice, held: Limits, want: Limits
    ) -> tuple[Limits, tuple[LimitChange, ...]]:
        """What is left to us to write first, and the changes that systemd is to make, also if they were sent before.

        On v2 these are a changed CPU limit and a memory limit that rises; on v1 there are none, see `_send`.
        """
        first, left, changes = want, record.left or held, []
        if self.version == 2 and want[CPU] != held[CPU]:
            first, drift = {**first, CPU: held[CPU]}, left[CPU] != held[CPU]
            changes.append(LimitChange(f"{box}: CPUQuota", str(held[CPU]), str(want[CPU]), drift))
            record.sent.pop("CPUQuotaPerSecUSec", None)
        if self.version == 2 and _rises(held[MEMORY], want[MEMORY]):
            first, drift = {**first, MEMORY: held[MEMORY]}, left[MEMORY] != held[MEMORY]
            changes.append(LimitChange(f"{box}: MemoryMax", str(held[MEMORY]), str(want[MEMORY]), drift))
            record.sent.pop("MemoryHigh", None)
            record.sent.pop("MemoryMax", None)
        return first, tuple(changes)

    def _send(self, box: str, record: _Slice, limits: Limits) -> bool:
        """Send systemd these limits, in one call. False: it has them already."""
        lasting = dict(limit_properties(self.version, limits))
        if self.version == 1:
            # With each quota systemd tries cpu.shares too, which is refused beside cpu.idle, and logs that: so it gets
            # a first one only, and puts that back, for a tick, when it reloads.
            lasting = {name: value for name, value in lasting.items() if name == "MemoryMax" or name not in record.sent}
        news = {name: value for name, value in lasting.items() if record.sent.get(name) != value}
        if not news:
            return False
        if not record.sent:  # somebody else has changed something: all anew
            news = {**self._priority(), **news}
        try:
            self._units.set(box, news)
        except CgroupError:
            record.sent.clear()  # it may have been done all the same
            raise
        record.sent.update(news)
        return True


def _as_held(limits: Limits) -> Limits:
    """The limits as the kernel will read them back."""
    cores, size = limits[CPU], limits[MEMORY]
    high = {MEMORY_HIGH: limits[MEMORY_HIGH]} if MEMORY_HIGH in limits else {}
    return {
        CPU: cores if cores is UNLIMITED else files.quota_us(cores) / files.CFS_PERIOD_US,
        MEMORY: size if size is UNLIMITED else files.whole_pages(size),
        **high,
    }


def _rises(held: float | Unlimited, want: float | Unlimited) -> bool:
    return held is not UNLIMITED and (want is UNLIMITED or want > held)


def _lasting(record: _Slice, want: float | Unlimited, reached: Limits) -> float | Unlimited:
    """The memory limit to send. One on its way down is not sent at each step, as each call gives a fresh quota."""
    size, sent = reached[MEMORY], record.sent.get("MemoryMax")
    if size is UNLIMITED or size == want or not isinstance(sent, int):
        return size
    return sent if size <= sent < size + size // 16 else size


# --- properties: names and values only. Source: systemd.resource-control(5) ------------------------------------------


def priority_properties(version: int, *, cpu_idle: bool) -> Properties:
    """What the box's slice has besides limits: the lowest priority, and files in every controller.

    `cpu_idle`: the kernel has cpu.idle. Systemd does not know it on v1.
    """
    weight = {rows.CPU_WEIGHT: 2} if version == 1 else {rows.CPU_IDLE: True} if cpu_idle else {rows.CPU_WEIGHT: 1}
    return {**_accounting("CPU", "Memory", "IO", "Tasks"), **properties(version, {**weight, rows.IO_WEIGHT: 1})}


def pod_properties(version: int, limits: PodLimits) -> Properties:
    """What a pod's slice has; systemd knows no limits on huge pages."""
    values = {
        rows.CPU_WEIGHT: limits.cpu_weight or (2 if version == 1 else 1),
        rows.CPU_QUOTA: limits.cpu_cores,
        rows.PIDS_MAX: limits.pids,
        rows.MEMORY_MAX: limits.memory_bytes,
        rows.MEMORY_PROTECTED: limits.protected,
    }
    return {**_accounting("CPU", "Memory", "Tasks"), **properties(version, values)}


def limit_properties(version: int, limits: Limits) -> Properties:
    """The properties that make systemd write these limits.

    MemoryHigh is never below MemoryMax, which the usage never exceeds: so systemd never waits for reclaim.
    """
    cores, size = limits[CPU], limits[MEMORY]
    swap = UNLIMITED if size is UNLIMITED else 0
    return properties(
        version, {rows.CPU_QUOTA: cores, rows.MEMORY_HIGH: size, rows.MEMORY_MAX: size, rows.SWAP_MAX: swap}
    )


def _accounting(*names: str) -> dict[str, bool]:
    return {f"{name}Accounting": True for name in names}
