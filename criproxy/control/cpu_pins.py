"""On which CPUs each offline pod stays, so that the kernel's load balancer need not move its tasks about. Pure.

Why
---
Since Linux 6.6 the scheduler remembers that the box has had more than its share of a CPU for as long as one of its
tasks waits there. The balancer takes offline's tasks off a CPU whenever online is busy on it, and back when it rests:
whoever comes then has no debt, and may have a turn of a tick (4 ms at 250 Hz) while online waits. Offline work that
stays on its CPUs has no such turns, warmer caches, and gets more done (docs/measurements.md, The effect).

How it works
------------
A pod stays on as many CPUs as its own CPU limit, rounded up. One that has no limit, or a limit of as many CPUs as there
are, has all of them: nothing says that it could not use them.

    new      it gets the CPUs on which least is allowed to run, of these the most idle
    waits    it uses less than its limit, and none of its CPUs has room. It moves to the CPUs that promise most, if that
             is a fifth more than it has. A CPU promises what is idle there and what the pods that are busy on it use,
             divided by them and the one that comes. If none promises that, it gets the most idle CPU beside its own:
             where there are fewer busy pods than CPUs, none of them alone is what a pod could have
    crowded  of the CPUs of a pod that has more than its limit, nothing is idle any more, and on those that it would
             leave another pinned pod is busy: it goes back to as many, each time after having had more twice as long
    in vain  a pod that never used more since its last change waits twice as long for its next (FIRST_PAUSE_S to
             MOST_PAUSE_S): it has little to do, or there is nothing to be had

So no CPU stays idle for long while a pod waits elsewhere; and on a node that is full, where moves hurt, there are few.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.model.cpulist import Cpus

FIRST_PAUSE_S: Final = 10.0
MOST_PAUSE_S: Final = 600.0
IDLE_RATIO: Final = 0.1
"""A CPU that is idle for more of the time has room."""

CROWDED_RATIO: Final = 0.03
"""On a CPU that is idle for less, nothing is left."""

_BUSY_RATIO: Final = 0.05
"""A pod that uses less of a CPU does not count on it."""

_SATISFIED_RATIO: Final = 0.9
_GAIN_RATIO: Final = 1.2
_GAIN_CORES: Final = 0.05
"""Of each CPU that a pod stays on."""


class PodCpu(Struct, frozen=True):
    """`limit_cores`: the pod's own. `used_cores`: since the last look; None: it was not there then."""

    limit_cores: float
    used_cores: float | None = None

    @property
    def size(self) -> int:
        """On how many CPUs it stays."""
        return max(1, math.ceil(round(self.limit_cores, 6)))


class Pin(Struct, frozen=True):
    """A pod stays on `cpus` since `since_s`, for `pause_s` at least, and for `keeps_s` if they are more than its limit.

    `before_cores`: what it used before it came; None: it is new here. `most_cores`: the most that it used since.
    """

    cpus: Cpus
    since_s: float
    pause_s: float = FIRST_PAUSE_S
    before_cores: float | None = None
    most_cores: float = 0.0
    keeps_s: float = FIRST_PAUSE_S


def step(
    pods: Mapping[str, PodCpu], cpus: Cpus, idle: Mapping[int, float], pins: Mapping[str, Pin], now_s: float
) -> dict[str, Pin]:
    """Where the pods stay from now on, by name; of those with a limit below the number of `cpus`.

    `cpus`: the box's. `idle`: for which part of the time since the last look each of them was idle (0-1). `pins`: what
    this returned the last time.
    """
    sized = {name: pod for name, pod in pods.items() if pod.size < len(cpus)}
    new = {
        name: replace(pin, most_cores=max(pin.most_cores, sized[name].used_cores or 0.0))
        for name, pin in pins.items()
        if name in sized and pin.cpus <= cpus and len(pin.cpus) >= sized[name].size
    }
    allowed = dict.fromkeys(cpus, 0.0)
    for name, pin in new.items():
        for cpu in pin.cpus:
            allowed[cpu] += sized[name].limit_cores / len(pin.cpus)
    for name, pod in sorted(sized.items(), key=lambda item: (-item[1].size, item[0])):
        if name not in new:
            chosen = sorted(cpus, key=lambda cpu: (allowed[cpu], -idle.get(cpu, 0.0), -cpu))[: pod.size]
            new[name] = Pin(frozenset(chosen), now_s)
            for cpu in chosen:
                allowed[cpu] += pod.limit_cores / pod.size
    return {**new, **_changed(sized, cpus, idle, new, now_s)}


def _changed(
    pods: Mapping[str, PodCpu], cpus: Cpus, idle: Mapping[int, float], pins: Mapping[str, Pin], now_s: float
) -> dict[str, Pin]:
    """The pins of those that move, or get more CPUs or fewer. The pods that use most go first."""
    used = {name: pod.used_cores for name, pod in pods.items() if pod.used_cores is not None}
    room = {cpu: idle.get(cpu, 0.0) for cpu in cpus}
    busy = dict.fromkeys(cpus, 0)
    for name, cores in used.items():
        each = cores / len(pins[name].cpus)
        for cpu in pins[name].cpus:
            room[cpu] += each
            busy[cpu] += each >= _BUSY_RATIO
    spare = dict(idle)
    changed = {}
    for name in sorted(used, key=lambda name: -used[name]):
        pod, pin, has = pods[name], pins[name], used[name]
        stayed_s = now_s - pin.since_s
        may_shrink = len(pin.cpus) > pod.size and stayed_s >= pin.keeps_s
        waits = has < _SATISFIED_RATIO * pod.limit_cores and stayed_s >= pin.pause_s and not _has_room(pin.cpus, spare)
        if not (may_shrink or waits):
            continue
        counts = has / len(pin.cpus) >= _BUSY_RATIO
        others = {cpu: number - (counts and cpu in pin.cpus) for cpu, number in busy.items()}
        promise = {cpu: room[cpu] / (others[cpu] + 1) for cpu in cpus}
        if may_shrink and (fewer := _fewer(pod.size, pin.cpus, others, idle)) != pin.cpus:
            changed[name] = Pin(fewer, now_s, keeps_s=min(MOST_PAUSE_S, 2 * pin.keeps_s))
        elif waits and (better := _better(pod.size, pin.cpus, has, promise, spare)) != pin.cpus:
            helped = pin.before_cores is None or pin.most_cores >= _GAIN_RATIO * pin.before_cores + _GAIN_CORES
            pause_s = FIRST_PAUSE_S if helped else min(MOST_PAUSE_S, 2 * pin.pause_s)
            changed[name] = Pin(better, now_s, pause_s, has, keeps_s=pin.keeps_s)
        else:
            continue
        for cpu in pin.cpus:
            busy[cpu] -= counts
        for cpu in changed[name].cpus - pin.cpus:
            spare[cpu] = 0.0
        for cpu in changed[name].cpus:
            busy[cpu] += 1
    return changed


def _fewer(size: int, held: Cpus, others: Mapping[int, int], idle: Mapping[int, float]) -> Cpus:
    """Without the CPUs beyond `size` where a pod is crowded. `others`: how many others are busy on each CPU."""
    kept = frozenset(sorted(held, key=lambda cpu: (others[cpu], -cpu))[:size])
    is_crowded = all(idle.get(cpu, 0.0) < CROWDED_RATIO for cpu in held) and all(others[cpu] for cpu in held - kept)
    return kept if is_crowded else held


def _has_room(cpus: Cpus, idle: Mapping[int, float]) -> bool:
    return any(idle.get(cpu, 0.0) > IDLE_RATIO for cpu in cpus)


def _better(size: int, held: Cpus, has_cores: float, promise: Mapping[int, float], idle: Mapping[int, float]) -> Cpus:
    """Where a pod that waits gets more than it has. `promise`: what it would get on each of the box's CPUs.

    `idle`: but for CPUs that another pod comes to at this look.
    """
    best = frozenset(sorted(promise, key=lambda cpu: (-promise[cpu], -cpu))[:size])
    stays_cores = max(has_cores, sum(promise[cpu] for cpu in held))
    if sum(promise[cpu] for cpu in best) >= _GAIN_RATIO * stays_cores + _GAIN_CORES * size:
        return best
    most = max(promise, key=lambda cpu: (idle.get(cpu, 0.0), cpu))
    return held | {most} if idle.get(most, 0.0) > IDLE_RATIO else held
