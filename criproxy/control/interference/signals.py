"""The arithmetic of signals: of two readings of the kernel's counters, the values that detectors judge.

How it works
------------
Each signal is worse the higher it is, and is 0 when nobody is hurt. Counters become rates over the time between the
two readings. A value is a *bound from below*: as much harm as is proven; `most` is the bound from above. They differ
for CPU alone, where online also waits for limits of its own, which nobody must answer for:

    most  = growth of PSI `some` of kubepods / time
    own   = time for which own limits stopped online's cgroups / CPU time in which online's CPUs were not idle
    free  = the same growth of the pod that waited longest, of those that no limit has stopped
    value = max(most - own, min(most, free))

`own` is what own limits explain *at most*. PSI's `some` is a mean over CPUs, weighted by the time n in which each CPU
was not idle for online. While a limit stops a cgroup on a CPU, for t, that CPU counts as waiting. So limits add at most

    sum(t * n) / sum(n) <= time * sum(t) / sum(n)      as no n is longer than the time between the readings

and sum(n) is at least the CPU time of online, and of each cgroup its CPU time and t, as it does not run while it is
stopped. Kubelet gives a pod the sum of its containers' limits, and both stop the same tasks at the same time. So of a
cgroup and what is below it the larger counts (measured, kernel 6.18: 2.9 s for a container and 1.9 s for its pod, which
used as much CPU as with the container's limit alone).

One pod with many threads at its limit explains more than all that is seen, and then most - own says nothing of the
others, which may wait for the box. So `free` looks at each pod by itself (`pod_waits`): where no limit, of the pod, of
what is in it or of what it is in, has stopped anything since the last reading, none of its waiting is for one.

The times t take a read of each cgroup, so they are read only on an alarm: until two readings have them, there is no
`value`, and a `most` below the bar says all that is needed: see `observed`. The kernel adds up t when a stop ends, so
that the last period of 0.1 s may be missing.

Without pressure, sampled threads say how much of the time in which they wanted CPU they waited for it; of each thread's
waiting, the time for which its cgroup, or one above it, was stopped counts as its own limits'.

    signal           unit     here where
    memory_shortage  %        always; 100 is kubelet's eviction, 98 the margin above it (2 % of the node's memory)
    cpu_pressure     %        cgroup v2 with PSI
    run_queue_delay  ms/s     there is no PSI, and the kernel counts it
    memory_pressure  %        cgroup v2 with PSI
    refaults         pages/s  the kernel counts them: v2; v1 in newer kernels
    io_pressure      %        cgroup v2 with PSI
    pids_shortage    %        always; 100: no process or thread can be made on the node any more
    pod_pressure     %        always: the pod that waits most for CPU, against its own bar (`interference.pod_waits`)
    box_io_share     %        the kernel counts the box's IO: v2 with the io controller; v1 where blkio counts

`box_io_share` says whether the box can be what online waits for at its disks. It is no part of `io_pressure`: a box
that is squeezed does less IO whatever was the cause, so the share may keep an experiment from being begun, but must
never judge one.

A counter that has gone back is another one's: a cgroup was made anew. Then there is no value this time (a `gap`), which
is neither harm nor calm. What vanishes between two readings has no growth; as it may have been stopped by its limit
until then, the bound from below is not known for that once.

Source: Documentation/accounting/psi.rst; kernel/sched/psi.c, collect_percpu_times; scheduler/sched-bwc.rst (throttled).
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from criproxy.control.memory_pressure import EvictionHard, margin_bytes
from criproxy.model.signals import (
    DiskCounters,
    DiskIo,
    Missing,
    OwnLimits,
    RunQueue,
    SignalReading,
    Stall,
    ThreadTimes,
    Throttling,
)

T = TypeVar("T")
Readings = tuple[SignalReading | None, SignalReading]
"""The last one (None: there was none) and this."""

SHORTEST_S: Final = 0.1
"""Between two readings. Less says nothing: pressure moves by whole waits, and limits by periods of this length."""

TOLERANCE_RATIO: Final = 0.25
"""By so much a rate may exceed what is possible, as counters and clock are not read at one instant. What exceeds it by
more is no measurement: a virtual machine was resumed."""

LEAST_WANTED_S: Final = 0.02
"""Sampled threads that wanted less CPU than this between them count as if they had wanted so much: of a millisecond of
work, half a millisecond of waiting is no harm."""

LEAST_POD_WANTED_S: Final = 0.1
"""What one pod's sampled threads want at least: below, it waits for nothing."""

_MARGIN_POINTS: Final = 2.0
"""Of `memory_shortage`: from kubelet's threshold to the margin above it, which the box's limit leaves free."""

LEAST_BYTES_PER_S: Final = 1 << 20
LEAST_OPERATIONS_PER_S: Final = 20.0
"""A disk that does less of both is not busy, and the box's share of it means nothing."""

_FIRST: Final = "two readings are needed, and this is the first"
_BACK: Final = "the counter has gone back: the cgroup was made anew"


CPU_SIGNALS: Final = ("cpu_pressure", "run_queue_delay")
"""Either is enough to say that a signal for CPU is at work; what is only absent is not."""


class SignalValue(Struct, frozen=True):
    """A signal at one moment, in its `unit`. `value` is at least so much harm, `most` at most; None: not known.

    `absent` says why this node can't have the signal; "": it is here. `gap` says why a signal that is here has no value
    this time; "": it has one. `note` is what a person should know of the value.
    """

    name: str
    unit: str
    value: float | None = None
    most: float | None = None
    absent: str = ""
    gap: str = ""
    note: str = ""


class _Of(Struct, frozen=True):
    """What a row makes of a reading, or of two: a value with its bound from above, or why there is none."""

    value: float | None = None
    most: float | None = None
    gap: str = ""
    note: str = ""


class SignalRow(Struct, frozen=True):
    """A signal by its name, in its unit: what `law` makes of two readings, with kubelet's own threshold for memory."""

    name: str
    unit: str
    law: Callable[[Readings, EvictionHard], _Of | Missing]


def values(before: SignalReading | None, now: SignalReading, hard: EvictionHard) -> tuple[SignalValue, ...]:
    """All signals, in the order of the table above. `before`: the reading just before `now`; None: there was none.

    `hard` is kubelet's own threshold for memory. Never raises.
    """
    return tuple(_value(row, row.law((before, now), hard)) for row in SIGNALS)


def _value(row: SignalRow, of: _Of | Missing) -> SignalValue:
    if isinstance(of, Missing):
        return SignalValue(row.name, row.unit, absent=of.why)
    return SignalValue(row.name, row.unit, of.value, of.value if of.most is None else of.most, gap=of.gap, note=of.note)


def observed(signal: SignalValue, level: float) -> tuple[float | None, bool]:
    """What a detector is to be shown of a signal, and whether own limits must be read with the next readings.

    `level` is where the detector sees no harm any more (its bar, less its hysteresis). Below it even the bound from
    above is no harm, so that nobody needs to know more. None: nothing is known.
    """
    if signal.most is None:
        return None, False
    if signal.most < level:
        return (signal.most if signal.value is None else signal.value), False
    return signal.value, True


def _growth(
    field: str, kind: type[T], law: Callable[[T, T, Readings], _Of]
) -> Callable[[Readings, EvictionHard], _Of | Missing]:
    """The law of a counter, which needs two readings of it: `field` of `SignalReading`, of this kind."""

    def grown(pair: Readings, _: EvictionHard) -> _Of | Missing:
        last, this = (None if each is None else getattr(each, field) for each in pair)
        if isinstance(this, Missing):
            return this
        return law(last, this, pair) if isinstance(last, kind) and isinstance(this, kind) else _Of(gap=_FIRST)

    return grown


# --- CPU -------------------------------------------------------------------------------------------------------------


def _cpu(last: Stall, this: Stall, pair: Readings) -> _Of:
    pressure = _pressure(last, this, pair)
    if pressure.value is None:
        return pressure
    held = _held(*pair)
    if isinstance(held, str):
        return _Of(None if pressure.value else 0.0, pressure.value, gap=held if pressure.value else "")
    own = 100.0 * _explained_ratio(held)
    if not own:
        return _Of(pressure.value, pressure.value)
    note = f"{min(own, pressure.value):.0f} of {pressure.value:.0f} % are explained by online's own limits"
    left, (free, pod) = max(0.0, pressure.value - own), _free(pair, held)
    if free > left:
        note += f", but not {free:.0f} % of {pod}, which was not stopped by any"
    return _Of(max(left, min(pressure.value, free)), pressure.value, note=note)


class _Throttled(Struct, frozen=True):
    """For how long limits have stopped those cgroups, in s, that they stopped at all, by path.

    `widest_s`: the most that one cgroup of online's ran or was stopped; `online_s`: online's CPU time, 0.0: not known.
    """

    of: Mapping[str, float]
    widest_s: float
    online_s: float


def _held(before: SignalReading | None, now: SignalReading) -> _Throttled | str:
    """For how long own limits have stopped online since the last reading; why it is not known."""
    last, this = None if before is None else before.own_limits, now.own_limits
    if isinstance(this, Missing):
        return f"what online waits for its own limits is not known: {this.why}"
    if this is None or last is None or isinstance(last, Missing):
        return "what online waits for its own limits was not read twice in a row"
    if not (last.complete and this.complete):
        return "online has more cgroups than are looked at, so what it waits for its own limits is not known"
    gone = [path for path, throttling in last.of.items() if throttling.throttled_s > 0.0 and path not in this.of]
    if gone:
        return f"{gone[0]}, which had been stopped by its own limit, has gone since the last reading"
    of, widest_s = dict[str, float](), 0.0
    for path, throttling in this.of.items():
        grown = _grown(last.of.get(path), throttling)
        widest_s = max(widest_s, grown.throttled_s + (grown.usage_s or 0.0))
        if grown.throttled_s > 0.0:
            of[path] = grown.throttled_s
    return _Throttled(of, widest_s, _online_s(last, this))


def _online_s(last: OwnLimits, this: OwnLimits) -> float:
    """Online's CPU time since the last reading; 0.0: not known."""
    return 0.0 if last.online_s is None or this.online_s is None else max(0.0, this.online_s - last.online_s)


def _grown(last: Throttling | None, this: Throttling) -> Throttling:
    """A cgroup that is new, or made anew, has done since the last reading all that it has done."""
    anew = last is None or this.throttled_s < last.throttled_s or (this.usage_s or 0.0) < (last.usage_s or 0.0)
    if last is None or anew:
        return this
    return Throttling(this.throttled_s - last.throttled_s, (this.usage_s or 0.0) - (last.usage_s or 0.0))


def _explained_ratio(held: _Throttled) -> float:
    """The share of time, at most, in which own limits let online wait: see the module."""
    stopped_s = _all_stopped_s(held.of)
    return min(1.0, stopped_s / max(held.online_s, held.widest_s)) if stopped_s > 0.0 else 0.0


def _free(pair: Readings, held: _Throttled) -> tuple[float, str]:
    """The most that a pod waited which no limit has stopped, in %, and its path; (0.0, ""): there is none."""
    waits = _waits(*pair, held).values()
    return max(((one.percent, one.path) for one in waits if one.stopped is False), default=(0.0, ""))


class PodWait(Struct, frozen=True):
    """For how much of the time a pod, of this cgroup, waited for CPU, in %; where there is no pressure, of the time in
    which its sampled threads wanted some. `stopped`: a limit of online's own has stopped it, or something in it or
    around it, since the last reading; None: that is not known.
    """

    path: str
    percent: float
    stopped: bool | None = None


def pod_waits(before: SignalReading | None, now: SignalReading) -> Mapping[str, PodWait]:
    """Of each online pod of which two readings tell, by its uid."""
    return _waits(before, now, _held(before, now))


def _waits(before: SignalReading | None, now: SignalReading, held: _Throttled | str) -> Mapping[str, PodWait]:
    if before is None or isinstance(before.pods, Missing) or isinstance(now.pods, Missing):
        return {}
    last, this = before.run_queue, now.run_queue
    if isinstance(last, RunQueue) and isinstance(this, RunQueue):
        percents = _waits_of_threads(last, this, {pod.path: uid for uid, pod in now.pods.items()})
    else:
        pairs = ((uid, before.pods.get(uid), pod) for uid, pod in now.pods.items())
        grown = {
            uid: _pressure(old.cpu, pod.cpu, (before, now)).value
            for uid, old, pod in pairs
            if old is not None and old.path == pod.path and old.cpu is not None and pod.cpu is not None
        }
        percents = {uid: value for uid, value in grown.items() if value is not None}
    is_stopped = None if isinstance(held, str) else _stops(held)
    return {
        uid: PodWait(path := now.pods[uid].path, percent, None if is_stopped is None else is_stopped(path))
        for uid, percent in percents.items()
    }


def _stops(held: _Throttled) -> Callable[[str], bool]:
    """Whether a limit stopped a cgroup, one in it, or one around it."""
    around = set[str]()
    for path in held.of:
        above = path
        while above not in ("", "/") and above not in around:
            around.add(above)
            above = above.rpartition("/")[0]
    return lambda path: path in around or any(above in held.of for above in _and_above(path))


def _waits_of_threads(last: RunQueue, this: RunQueue, pods: Mapping[str, str]) -> dict[str, float]:
    """By uid; `pods`: the uids by cgroup. Pods of which no thread was sampled twice are left out."""
    elapsed_s = this.read_s - last.read_s
    if elapsed_s < SHORTEST_S:
        return {}
    wanted_s, waited_s = dict[str, float](), dict[str, float]()
    for thread in _threads(last.threads, this.threads, elapsed_s * (1.0 + TOLERANCE_RATIO)):
        uid = next((pods[path] for path in _and_above(thread.cgroup) if path in pods), None)
        if uid is not None:
            wanted_s[uid] = wanted_s.get(uid, 0.0) + thread.ran_s + thread.waited_s
            waited_s[uid] = waited_s.get(uid, 0.0) + thread.waited_s
    return {
        uid: 100.0 * waited_s[uid] / wanted if wanted >= LEAST_POD_WANTED_S else 0.0 for uid, wanted in wanted_s.items()
    }


@lru_cache(256)
def _and_above(path: str) -> tuple[str, ...]:
    """The path, and those of the cgroups that it is in. Most threads are looked at in several readings."""
    found = [path]
    while (path := path.rpartition("/")[0]) not in ("", "/"):
        found.append(path)
    return tuple(found)


def _all_stopped_s(of: Mapping[str, float]) -> float:
    """The sum over separate cgroups; of one and those below it, the larger counts."""
    below_s: dict[str, float] = {}
    for path in sorted(of, key=lambda path: path.count("/"), reverse=True):
        stopped_s = max(of[path], below_s.pop(path, 0.0))
        parent = path.rpartition("/")[0]
        below_s[parent] = below_s.get(parent, 0.0) + stopped_s
    return sum(below_s.values())


def _delay(last: RunQueue, this: RunQueue, pair: Readings) -> _Of:
    elapsed_s = this.read_s - last.read_s
    if elapsed_s < SHORTEST_S:
        return _Of(gap=_short(elapsed_s))
    if not last.threads and not this.threads:
        return _Of(0.0, note="no thread of online's was found")
    grown = _threads(last.threads, this.threads, elapsed_s * (1.0 + TOLERANCE_RATIO))
    if not grown:
        return _Of(gap="no thread was looked at twice in a row")
    wanted_s = max(LEAST_WANTED_S, sum(thread.ran_s + thread.waited_s for thread in grown))
    most = 1000.0 * sum(thread.waited_s for thread in grown) / wanted_s
    note = f"of {len(grown)} sampled threads"
    held = _held(*pair)
    if isinstance(held, str):
        return _Of(None if most else 0.0, most, held if most else "", note)
    proven_s = sum(max(0.0, thread.waited_s - _stopped_s(thread.cgroup, held)) for thread in grown)
    return _Of(1000.0 * proven_s / wanted_s, most, note=note)


def _threads(last: Mapping[int, ThreadTimes], this: Mapping[int, ThreadTimes], most_s: float) -> list[ThreadTimes]:
    """By how much the times have grown of threads that are in both readings; an id may have become another thread's."""
    found = []
    for tid, times in this.items():
        old = last.get(tid)
        if old is None or old.cgroup != times.cgroup:
            continue
        ran_s, waited_s = times.ran_s - old.ran_s, times.waited_s - old.waited_s
        if ran_s >= 0.0 and waited_s >= 0.0 and ran_s + waited_s <= most_s:
            found.append(ThreadTimes(times.cgroup, ran_s, waited_s))
    return found


def _stopped_s(cgroup: str, held: _Throttled) -> float:
    """For how long, at most, a thread of this cgroup waited for a limit of it, or of one above it."""
    return max((held.of[path] for path in _and_above(cgroup) if path in held.of), default=0.0)


# --- pressure of memory and IO ---------------------------------------------------------------------------------------


def _pressure(last: Stall, this: Stall, _: Readings) -> _Of:
    """The share of time in which some task waited. Not `avg10`, which still remembers what is over."""
    elapsed_s, some_s = this.read_s - last.read_s, this.some_s - last.some_s
    if gap := _gap(elapsed_s, some_s):
        return _Of(gap=gap)
    if some_s > elapsed_s * (1.0 + TOLERANCE_RATIO):
        return _Of(gap=f"the counter has grown by {some_s:.1f} s in {elapsed_s:.1f} s, which is no measurement")
    return _Of(min(100.0, 100.0 * some_s / elapsed_s))


def _gap(elapsed_s: float, *grown: float) -> str:
    if elapsed_s < SHORTEST_S:
        return _short(elapsed_s)
    return _BACK if min(grown) < 0 else ""


def _short(elapsed_s: float) -> str:
    return f"the last reading was {elapsed_s:.2f} s ago, less than {SHORTEST_S} s"


# --- memory ----------------------------------------------------------------------------------------------------------


def _shortage(pair: Readings, hard: EvictionHard) -> _Of | Missing:
    """100 - 2 x (available - kubelet's threshold) / margin, never below 0; the box's limit leaves the margin free.

    On a node of 5 GB or more, each point is a hundredth of its memory. Available is what kubelet goes by, or the
    kernel's own MemAvailable where that is less: kubelet counts page cache that is in use as used, and the kernel knows
    of memory that can't be had.
    """
    room = pair[1].room
    if isinstance(room, Missing):
        return room
    if room.capacity <= 0:
        return _Of(gap=f"the node's memory is said to be {room.capacity} bytes")
    kernels = room.kubelets_available if room.available is None else room.available
    available = min(room.kubelets_available, kernels)
    threshold = hard.of(room.capacity)
    above = available - (threshold if threshold < room.capacity else 0.0)
    value = max(0.0, 100.0 - _MARGIN_POINTS * above / margin_bytes(room.capacity))
    whose = "by the kernel's MemAvailable" if kernels < room.kubelets_available else "by kubelet's measure"
    return _Of(value, note=whose)


def _pids(pair: Readings, _: EvictionHard) -> _Of | Missing:
    room = pair[1].pids
    if isinstance(room, Missing):
        return room
    if room.most <= 0:
        return _Of(gap=f"the node is said to have room for {room.most} processes")
    return _Of(100.0 * room.used / room.most, note=f"{room.used} of {room.most}")


def _counted(what: str, *keys: str) -> Callable[[Readings, EvictionHard], _Of | Missing]:
    """The law of what memory.stat counts under these keys, all of them together, a second. A kernel may lack some."""

    def grown(pair: Readings, _: EvictionHard) -> _Of | Missing:
        before, this = pair[0], pair[1].memory_stat
        if isinstance(this, Missing):
            return this
        known = [key for key in keys if key in this.of]
        if not known:
            return Missing(f"{this.file} counts no {what}")
        if before is None or isinstance(last := before.memory_stat, Missing):
            return _Of(gap=_FIRST)
        elapsed_s, counts = this.read_s - last.read_s, [this.of[key] - last.of.get(key, 0) for key in known]
        if gap := _gap(elapsed_s, *counts):
            return _Of(gap=gap)
        return _Of(sum(counts) / elapsed_s)

    return grown


_FROM_SWAP: Final = "workingset_refault_anon"
_SWAPPED: Final = _counted("refaults", _FROM_SWAP)
_ALL_REFAULTS: Final = _counted("refaults", "workingset_refault_file", _FROM_SWAP, "workingset_refault")
"""Before Linux 5.9 there is one sum, of file pages: the last."""


def _refaults(pair: Readings, hard: EvictionHard) -> _Of | Missing:
    found, swapped = _ALL_REFAULTS(pair, hard), _SWAPPED(pair, hard)
    if isinstance(found, _Of) and not found.gap and isinstance(swapped, _Of) and swapped.value:
        return replace(found, note=f"{swapped.value:.0f} pages/s of them from swap")
    return found


# --- disks -----------------------------------------------------------------------------------------------------------


def _io_share(last: DiskCounters, this: DiskCounters, _: Readings) -> _Of:
    """The box's share of the busy disk that it takes most of: of its bytes, or of its operations, whichever is more."""
    elapsed_s = this.read_s - last.read_s
    if elapsed_s < SHORTEST_S:
        return _Of(gap=_short(elapsed_s))
    shares = disk_shares(last, this)
    if not shares:
        return _Of(0.0)
    number = max(shares, key=lambda number: shares[number])
    share = shares[number]
    return _Of(100.0 * share, note=f"of {this.names.get(number, number)}" if share else "")


def disk_shares(last: DiskCounters, this: DiskCounters) -> dict[str, float]:
    """The box's share (0 to 1) of each disk that it has ever used; 0.0 where the disk is not busy."""
    elapsed_s = this.read_s - last.read_s
    return {number: _disk_share(number, last, this, elapsed_s) for number in this.box}


def _disk_share(number: str, last: DiskCounters, this: DiskCounters, elapsed_s: float) -> float:
    """0.0 where the disk is not busy, or where a counter is another disk's by now."""
    box, node = _io(last.box.get(number), this.box[number]), _io(last.node.get(number), this.node.get(number))
    if box is None or node is None:
        return 0.0
    size_bytes, operations = max(node.size_bytes, box.size_bytes), max(node.operations, box.operations)
    if size_bytes < LEAST_BYTES_PER_S * elapsed_s and operations < LEAST_OPERATIONS_PER_S * elapsed_s:
        return 0.0
    return max(_part(box.size_bytes, size_bytes), _part(box.operations, operations))


def _io(last: DiskIo | None, this: DiskIo | None) -> DiskIo | None:
    """What was done since the last reading; a cgroup has no line of a disk before it uses it. None: not known."""
    if this is None or last is None:
        return this
    size_bytes, operations = this.size_bytes - last.size_bytes, this.operations - last.operations
    return None if size_bytes < 0 or operations < 0 else DiskIo(size_bytes, operations)


def _part(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


SIGNALS: Final = (
    SignalRow("memory_shortage", "%", _shortage),
    SignalRow("cpu_pressure", "%", _growth("cpu", Stall, _cpu)),
    SignalRow("run_queue_delay", "ms/s", _growth("run_queue", RunQueue, _delay)),
    SignalRow("memory_pressure", "%", _growth("memory", Stall, _pressure)),
    SignalRow("refaults", "pages/s", _refaults),
    SignalRow("io_pressure", "%", _growth("io", Stall, _pressure)),
    SignalRow("pids_shortage", "%", _pids),
    SignalRow("box_io_share", "%", _growth("disks", DiskCounters, _io_share)),
)
"""See the table above. A new one is a row here, what is read for it (`model.signals`, `cgroup.signals`; of what
memory.stat counts: nothing more), and a detector (`detectors`)."""
