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

Two hyperthreads share a core. A busy thread beside a CPU takes a third of its speed, and one of online (of all that no
pod uses that has its place) counts twice, as online loses as much. Of the CPUs on which as little may run, a new pod
gets those that are worth most by that: beside idle threads first, and threads of several cores before those of one. A
move must give a fifth more of CPU time, and be worth a fifth more, so that siblings alone have nobody move.

A pod's CPUs are of one NUMA node: of the one that it was on, or else of that with most room, which is what is idle
there without what pods may use. Where those of several nodes are worth a fifth more, or a fifth less may run on them,
it gets these; so does one that waits where those of its node are not worth a move. One that has more CPUs than a node
is on as few nodes as have them.

So no CPU stays idle for long while a pod waits elsewhere; and on a node that is full, where moves hurt, there are few.
"""

import math
from collections.abc import Mapping, Sequence, Set
from itertools import chain
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

_SIBLING_SLOWS: Final = 0.5
"""Beside one busy thread, work takes half as long again: it has two thirds of the core's speed."""

_ONLINE_LOAD: Final = 2.0
"""A thread of online counts twice: not only the pod is slowed, but online, too."""


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
    `limit_cores`: its limit at the last look.
    """

    cpus: Cpus
    since_s: float
    pause_s: float = FIRST_PAUSE_S
    before_cores: float | None = None
    most_cores: float = 0.0
    keeps_s: float = FIRST_PAUSE_S
    limit_cores: float = 0.0


def step(
    pods: Mapping[str, PodCpu],
    cpus: Cpus,
    idle: Mapping[int, float],
    pins: Mapping[str, Pin],
    now_s: float,
    *,
    cores: Sequence[Cpus] = (),
    nodes: Sequence[Cpus] = (),
) -> dict[str, Pin]:
    """Where the pods stay from now on, by name; of those with a limit below the number of `cpus`.

    `cpus`: the box's. `idle`: for which part of the time since the last look each of the machine's was idle (0-1).
    `pins`: what this returned the last time. `cores` and `nodes`: the machine's physical cores and its NUMA nodes, each
    by its CPUs; a CPU of no core is one by itself, those of no node are one together.

    A pod whose limit has sunk begins anew: what it has beyond it, it has not for want of more.
    """
    sized = {name: pod for name, pod in pods.items() if pod.size < len(cpus)}
    new = {
        name: replace(pin, most_cores=max(pin.most_cores, sized[name].used_cores or 0.0))
        for name, pin in pins.items()
        if name in sized
        and pin.cpus <= cpus
        and len(pin.cpus) >= sized[name].size
        and pin.limit_cores <= sized[name].limit_cores
    }
    allowed = dict.fromkeys(cpus, 0.0)
    for name, pin in new.items():
        for cpu in pin.cpus:
            allowed[cpu] += sized[name].limit_cores / len(pin.cpus)
    neighbours = _Neighbours.of(cores, nodes, allowed, idle)
    there = {cpu: idle.get(cpu, 0.0) for cpu in cpus}
    for name, pod in sorted(sized.items(), key=lambda item: (-item[1].size, item[0])):
        if name not in new:
            before = pins[name].cpus if name in pins else frozenset[int]()
            chosen = neighbours.chosen(pod.size, cpus, allowed, there, before)
            new[name] = Pin(chosen, now_s)
            neighbours.add(chosen, pod.limit_cores / pod.size)
    after = {**new, **_changed(sized, cpus, idle, new, now_s, cores=cores, nodes=nodes)}
    return {name: replace(pin, limit_cores=sized[name].limit_cores) for name, pin in after.items()}


def _changed(
    pods: Mapping[str, PodCpu],
    cpus: Cpus,
    idle: Mapping[int, float],
    pins: Mapping[str, Pin],
    now_s: float,
    *,
    cores: Sequence[Cpus],
    nodes: Sequence[Cpus],
) -> dict[str, Pin]:
    """The pins of those that move, or get more CPUs or fewer. The pods that use most go first."""
    used = {name: pod.used_cores for name, pod in pods.items() if pod.used_cores is not None}
    room = {cpu: idle.get(cpu, 0.0) for cpu in cpus}
    offline = dict.fromkeys(cpus, 0.0)
    busy = dict.fromkeys(cpus, 0)
    for name, has in used.items():
        each = has / len(pins[name].cpus)
        for cpu in pins[name].cpus:
            room[cpu] += each
            offline[cpu] += each
            busy[cpu] += each >= _BUSY_RATIO
    neighbours = _Neighbours.of(cores, nodes, offline, idle)
    spare = dict(idle)
    changed = {}
    for name in sorted(used, key=lambda name: -used[name]):
        pod, pin, has = pods[name], pins[name], used[name]
        stayed_s = now_s - pin.since_s
        may_shrink = len(pin.cpus) > pod.size and stayed_s >= pin.keeps_s
        waits = has < _SATISFIED_RATIO * pod.limit_cores and stayed_s >= pin.pause_s and not _has_room(pin.cpus, spare)
        if not (may_shrink or waits):
            continue
        each = has / len(pin.cpus)
        counts = each >= _BUSY_RATIO
        others = {cpu: number - (counts and cpu in pin.cpus) for cpu, number in busy.items()}
        promise = {cpu: room[cpu] / (others[cpu] + 1) for cpu in cpus}
        neighbours.add(pin.cpus, -each)
        if may_shrink and (fewer := _fewer(pod.size, pin.cpus, others, idle, neighbours)) != pin.cpus:
            changed[name] = Pin(fewer, now_s, keeps_s=min(MOST_PAUSE_S, 2 * pin.keeps_s))
        elif (
            waits
            and (better := _better(pod.size, pin.cpus, has, promise, idle=spare, neighbours=neighbours)) != pin.cpus
        ):
            helped = pin.before_cores is None or pin.most_cores >= _GAIN_RATIO * pin.before_cores + _GAIN_CORES
            pause_s = FIRST_PAUSE_S if helped else min(MOST_PAUSE_S, 2 * pin.pause_s)
            changed[name] = Pin(better, now_s, pause_s, has, keeps_s=pin.keeps_s)
        else:
            neighbours.add(pin.cpus, each)
            continue
        neighbours.add(changed[name].cpus, pod.limit_cores / len(changed[name].cpus))
        for cpu in pin.cpus:
            busy[cpu] -= counts
        for cpu in changed[name].cpus - pin.cpus:
            spare[cpu] = 0.0
        for cpu in changed[name].cpus:
            busy[cpu] += 1
    return changed


def _fewer(
    size: int, held: Cpus, others: Mapping[int, int], idle: Mapping[int, float], neighbours: "_Neighbours"
) -> Cpus:
    """Without the CPUs beyond `size` where a pod is crowded. `others`: how many others are busy on each CPU."""
    kept = neighbours.chosen(size, held, others, dict.fromkeys(held, 1.0))
    is_crowded = all(idle.get(cpu, 0.0) < CROWDED_RATIO for cpu in held) and all(others[cpu] for cpu in held - kept)
    return kept if is_crowded else held


def _has_room(cpus: Cpus, idle: Mapping[int, float]) -> bool:
    return any(idle.get(cpu, 0.0) > IDLE_RATIO for cpu in cpus)


def _better(
    size: int,
    held: Cpus,
    has_cores: float,
    promise: Mapping[int, float],
    *,
    idle: Mapping[int, float],
    neighbours: "_Neighbours",
) -> Cpus:
    """Where a pod that waits gets more than it has. `promise`: what it would get on each of the box's CPUs.

    `idle`: but for CPUs that another pod comes to at this look. `neighbours`: without what the pod itself uses.
    """
    cpus, nobody, each = frozenset(promise), dict.fromkeys(promise, 0), has_cores / len(held)
    stays_cores = max(has_cores, sum(promise[cpu] for cpu in held))
    stays_worth = max(neighbours.worth(held, dict.fromkeys(held, each)), neighbours.worth(held, promise))
    best = neighbours.best(size, cpus, nobody, promise)
    for found in (neighbours.near(best, cpus, nobody, promise, held), best):
        cores, worth = sum(promise[cpu] for cpu in found), neighbours.worth(found, promise)
        if _is_more(cores, stays_cores, size) and _is_more(worth, stays_worth, size):
            return found
    free = frozenset(cpu for cpu in promise if idle.get(cpu, 0.0) > IDLE_RATIO)
    if not free:
        return held
    neighbours.add(held, each)
    more = neighbours.chosen(1, free, nobody, idle, held)
    neighbours.add(held, -each)
    return held | more


def _is_more(cores: float, than_cores: float, size: int) -> bool:
    """On `size` CPUs, so much more that it is worth a change."""
    return cores >= _GAIN_RATIO * than_cores + _GAIN_CORES * size


class _Neighbours(Struct, frozen=True):
    """The box's CPUs: what goes on beside each on its core, and which of them are of one NUMA node.

    `siblings`: the box's other CPUs of its core, of each that has some. `offline`: how many cores pods use of each, or
    may use. `slowed`: how many times as long work takes on each, for what goes on on its siblings, the box's or not.
    """

    siblings: Mapping[int, Cpus]
    nodes: Sequence[Cpus]
    offline: dict[int, float]
    slowed: dict[int, float]

    @classmethod
    def of(
        cls, cores: Sequence[Cpus], nodes: Sequence[Cpus], offline: dict[int, float], idle: Mapping[int, float]
    ) -> "_Neighbours":
        """Of the CPUs that `offline` names."""
        cpus, slowed = frozenset(offline), dict.fromkeys(offline, 1.0)

        def load(cpu: int) -> float:
            pods = offline.get(cpu, 0.0)
            return min(1.0, pods) + _ONLINE_LOAD * max(0.0, 1.0 - idle.get(cpu, 0.0) - pods)

        for core in cores:
            if len(core) > 1:
                loads = {cpu: load(cpu) for cpu in core}
                for cpu in core & cpus:
                    slowed[cpu] += _SIBLING_SLOWS * sum(loads[other] for other in core - {cpu})
        siblings = {cpu: core & cpus - {cpu} for core in cores for cpu in core if len(core & cpus) > 1}
        parts = [node & cpus for node in nodes]
        parts.append(cpus.difference(*parts))
        return cls(siblings, [part for part in parts if part], offline, slowed)

    def add(self, cpus: Cpus, each_cores: float) -> None:
        """On each of `cpus`, pods use so much more."""
        for cpu in cpus:
            before = self.offline[cpu]
            after = self.offline[cpu] = before + each_cores
            for sibling in self.siblings.get(cpu, ()):
                self.slowed[sibling] += _SIBLING_SLOWS * (min(1.0, after) - min(1.0, before))

    def worth(self, cpus: Cpus, gets: Mapping[int, float]) -> float:
        """What a pod that is on `cpus` gets there, in cores of which nothing runs on the other threads."""
        return sum(gets[cpu] / self._slowed(cpu, cpus) for cpu in cpus)

    def chosen(
        self, size: int, among: Cpus, taken: Mapping[int, float], gets: Mapping[int, float], held: Cpus = frozenset()
    ) -> Cpus:
        """The best `size` of the CPUs `among`: those of which least is `taken`, of these where the pod `gets` most.

        They are of one NUMA node, or else of as few as have so many, unless the best of all are much better.
        """
        return self.near(self.best(size, among, taken, gets), among, taken, gets, held)

    def near(self, best: Cpus, among: Cpus, taken: Mapping[int, float], gets: Mapping[int, float], held: Cpus) -> Cpus:
        """What is `chosen` where the best of all are `best`."""
        size = len(best)
        if len(self.nodes) < 2:
            return best

        def preference(node: Cpus) -> tuple[float, ...]:
            return -len(node & held), sum(taken[cpu] - gets[cpu] for cpu in node & among), -max(node)

        nodes = sorted(self.nodes, key=preference)
        together = (frozenset[int]().union(*nodes[:number]) for number in range(2, len(nodes)))
        for part in chain(nodes, together):
            if len(part & among) >= size:
                near = self.best(size, part & among, taken, gets)
                if near == best or not (
                    _is_more(sum(taken[cpu] for cpu in near), sum(taken[cpu] for cpu in best), size)
                    or _is_more(self.worth(best, gets), self.worth(near, gets), size)
                ):
                    return near
        return best

    def best(self, size: int, among: Cpus, taken: Mapping[int, float], gets: Mapping[int, float]) -> Cpus:
        """As `chosen`, regardless of nodes. Of CPUs of one core, each counts as slowed by those that come before it."""
        slowed = self.slowed
        ranked = sorted((taken[cpu], -gets[cpu] / slowed[cpu], -cpu) for cpu in among)
        if self.siblings:
            passed = set[int]()
            for place, (less, _, cpu) in enumerate(ranked):
                ranked[place] = less, -gets[-cpu] / self._slowed(-cpu, passed), cpu
                passed.add(-cpu)
            ranked.sort()
        return frozenset(-cpu for *_, cpu in ranked[:size])

    def _slowed(self, cpu: int, own: Set[int]) -> float:
        """As `slowed`, for a pod that runs on the CPUs `own`, too."""
        beside = self.siblings.get(cpu)
        return self.slowed[cpu] + (_SIBLING_SLOWS * len(beside & own) if beside else 0.0)
